"""I10: the contract over the example of a custom sink, with each ledger that it may have."""

from __future__ import annotations

import csv
import importlib.util
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import onceward as ow
from onceward.engine import spark_jobs
from onceward.engine.ledger.chain import Ledger
from onceward.errors import OncewardError, SendFailed
from onceward_testing import LocalKafka
from onceward_testing.sink_contract import Process, TwoPhaseContract, TwoPhaseKit
from support.tasks_here import ArrowFrame, TasksHere

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "folder_sink.py"


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("folder_sink", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["folder_sink"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


folder_sink = _example()


def test_the_page_shows_the_example_as_it_is():
    page = (EXAMPLE.parents[1] / "docs" / "how-to" / "write-your-own-sink.md").read_text()
    assert f"```python\n{EXAMPLE.read_text()}```" in page
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 60


def reader(folder: Path) -> Callable[[], Counter[str]]:
    def visible() -> Counter[str]:
        rows = (
            row
            for path in folder.glob("*.csv")
            for row in csv.reader(path.read_text().splitlines())
        )
        return Counter(row[0] for row in rows)

    return visible


@pytest.mark.once_more
class TestOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> TwoPhaseKit:
        class Keeps(folder_sink.FolderSink):
            """Keeps in the driver what no task can be sent."""

            kept: Any = None

            def recover(self) -> Any:
                self.kept = threading.Lock()
                return super().recover()

        return TwoPhaseKit(
            spark,
            lambda: Keeps(
                folder=tmp_path / "out",
                pipeline_id="contract",
                ledger=ow.FolderLedger(tmp_path / "ledger"),
            ),
            reader(tmp_path / "out"),
        )


def test_what_a_method_raises_in_a_task_is_named(spark: Any, tmp_path: Path):
    class Broken(folder_sink.FolderSink):
        """Its methods fail one after the other."""

        broken = "begin"

        def begin(self, task: Any) -> ow.TaskWriter:
            if self.broken == "begin":
                raise ConnectionError("no route to warehouse-7")
            writer, broken = super().begin(task), self.broken

            def fails(*_: object) -> Any:
                if broken == "no JSON":
                    return b"bytes"
                raise ConnectionError("no route to warehouse-7")

            setattr(writer, "pre_commit" if broken == "no JSON" else broken, fails)
            return writer

        def recover(self) -> Any:
            return None if self.broken == "recover" else super().recover()

    def fails(broken: str) -> OncewardError:
        def new_sink() -> Broken:
            folder, ledger = tmp_path / broken, ow.FolderLedger(tmp_path / broken)
            sink = Broken(folder=folder, pipeline_id="p", ledger=ledger)
            sink.broken = broken
            return sink

        kit = TwoPhaseKit(spark, new_sink, reader(tmp_path / broken))
        with pytest.raises(OncewardError) as met:
            Process(kit).open().write(kit.frame(["a"], 1))
        assert met.value.next_step
        return met.value

    for method in ("begin", "write", "pre_commit", "close"):
        error = fails(method)
        assert type(error) is SendFailed
        assert f"{method}() of Broken raised ConnectionError: no route" in error.message
    assert "pre_commit() of Broken" in fails("no JSON").message
    assert "recover() of Broken has answered None" in fails("recover").message


class InThisProcess(TwoPhaseKit):
    """Tasks run here, one after the other, each with a copy of the sink; everything else is as on
    Spark.
    """

    def __init__(self, folder: Path, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        pipeline = f"contract-{uuid.uuid4().hex[:10]}"
        super().__init__(
            None,
            lambda: folder_sink.FolderSink(folder=folder, pipeline_id=pipeline, ledger=ledger),
            reader(folder),
        )
        patch.setattr(spark_jobs, "run", TasksHere().run)

    def frame(self, values: Sequence[str], tasks: int = 2) -> ArrowFrame:
        return ArrowFrame(pa.table({"value": pa.array(values, pa.string())}))

    def failing(self, values: Sequence[str]) -> ArrowFrame:
        return replace(self.frame(values), error=ValueError("this plan hurts"))


class TestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoPhaseKit:
        return InThisProcess(tmp_path / "out", ow.FolderLedger(tmp_path / "ledger"), monkeypatch)


@pytest.mark.once_more
class TestWithALedgerInKafka(TwoPhaseContract):
    @pytest.fixture
    def kit(
        self, kafka: LocalKafka, new_topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> TwoPhaseKit:
        topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
        return InThisProcess(
            tmp_path / "out", ow.KafkaLedger(kafka.bootstrap_servers, topic), monkeypatch
        )
