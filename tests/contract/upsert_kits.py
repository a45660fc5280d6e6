"""What the contract has to know of an upsert sink, whatever server it writes to."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import onceward as ow
from onceward.engine.ledger.chain import Ledger
from onceward_testing.sink_contract import Died, Process, TwoPhaseKit
from support.tasks_here import ArrowFrame


class UpsertKit(TwoPhaseKit):
    """Rows under keys by lot, so that one that is written under two attempts shows twice."""

    def __init__(
        self, spark: Any, name: str, folder: Path, ledger: Ledger, **settings: Any
    ) -> None:
        self.name = name
        self.settings = {
            "key": "id", "pipeline_id": name, "ledger": ledger, "store": folder / "store",
            "chunk_rows": 2,
            "commit_timeout_s": 5.0, **settings,
        }  # fmt: skip
        super().__init__(spark, lambda: ow.UpsertSink(**self.settings), self._visible)

    def _visible(self) -> Counter[str]:
        return Counter(row["value"] for row in self.rows().values())

    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """What a reader finds, by key, without the versions."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """The column ``value`` of them."""
        return {key: row["value"] for key, row in self.rows().items()}

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        rows = [(uuid.uuid4().hex, value) for value in values]
        return self._spark.createDataFrame(rows, "id string, value string").repartition(tasks)


class TasksOfUpsertsHere(UpsertKit):
    """Tasks run here, one after the other."""

    def frame(self, values: Sequence[str], tasks: int = 2) -> ArrowFrame:
        return self.of(id=[uuid.uuid4().hex for _ in values], value=values, tasks=tasks)

    def failing(self, values: Sequence[str]) -> ArrowFrame:
        return replace(self.frame(values), error=ValueError("this plan hurts"))

    def of(self, tasks: int = 1, **columns: Any) -> ArrowFrame:
        """In the order in which they are given."""
        texts = {
            name: pa.array(column, pa.string())
            for name, column in columns.items()
            if name != "version"
        }
        counted = (
            {"version": pa.array(columns["version"], pa.int64())} if "version" in columns else {}
        )
        return ArrowFrame(pa.table({**texts, **counted}), tasks=tasks)

    def write(self, process: Process | None = None, **columns: Any) -> Process:
        """One batch of these rows, decided and written."""
        return self.write_frame(process, self.of(**columns))

    def write_frame(self, process: Process | None, frame: ArrowFrame) -> Process:
        process = process or Process(self).open()
        process.stage(frame)
        process.attempt.commit()
        process.newest = process.attempt.record
        return process.finish()

    def die_around_the_second_chunk(self, moment: str) -> None:
        """Of a batch with a key in two chunks, and twice in one: ``"before"`` it is written, or
        ``"after"``.
        """
        process = Process(self).open()
        deliver = process.target.deliver  # type: ignore[attr-defined]

        def dying(chunk: ow.delivery.Chunk) -> None:
            if chunk.number == 1:
                if moment == "after":
                    deliver(chunk)
                raise Died
            deliver(chunk)

        process.target.deliver = dying  # type: ignore[attr-defined]
        with pytest.raises(Died):
            self.write(process, id=["a", "b", "a", "a", "b"], value=["1", "2", "3", "4", "5"])

    def with_another_ledger(self, folder: Path) -> None:
        """Which begins anew, and its versions with it. The store is another one, too, and has
        nothing of the first.
        """
        self.settings |= {
            "ledger": ow.FolderLedger(folder / "another"),
            "store": folder / "another-store",
        }
