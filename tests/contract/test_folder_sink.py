"""The contract over the example of a sink of one's own, with each ledger that it may have."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import pickle
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from memory_target import Rows
from pyspark import cloudpickle

import onceward as ow
from onceward.engine import task_job
from onceward.engine.task_writer import OpenWriter, TaskResult, _written
from onceward.ids import TaskAttempt
from onceward.ledger.chain import Ledger
from onceward.testing import LocalKafka
from onceward.testing.sink_contract import TwoPhaseContract, TwoPhaseKit

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
    page = (EXAMPLE.parents[1] / "docs" / "write-your-own-sink.md").read_text()
    assert f"```python\n{EXAMPLE.read_text()}```" in page
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 60


def reader(folder: Path) -> Callable[[], Counter[str]]:
    def visible() -> Counter[str]:
        rows = (row for path in folder.glob("*.csv") for row in csv.reader(path.read_text().splitlines()))
        return Counter(row[0] for row in rows)

    return visible


class TestOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> TwoPhaseKit:
        return TwoPhaseKit(
            spark,
            lambda: folder_sink.FolderSink(
                folder=tmp_path / "out", pipeline_id="contract", ledger=ow.FolderLedger(tmp_path / "ledger")
            ),
            reader(tmp_path / "out"),
        )


class InThisProcess(TwoPhaseKit):
    """Tasks run here, one after the other, each with a copy of the sink; everything else is as on Spark."""

    def __init__(self, folder: Path, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        pipeline = f"contract-{uuid.uuid4().hex[:10]}"
        super().__init__(
            None,
            lambda: folder_sink.FolderSink(folder=folder, pipeline_id=pipeline, ledger=ledger),
            reader(folder),
        )
        self._tasks = itertools.count()
        patch.setattr(task_job, "run", self._run)

    def frame(self, values: Sequence[str], tasks: int = 2) -> Rows:
        return Rows(values)

    def failing(self, values: Sequence[str]) -> Rows:
        return Rows(values, ValueError("this plan hurts"))

    def _run(
        self, frame: Any, open_writer: OpenWriter, computation: object, limit: object, prepared: list[TaskResult]
    ) -> None:
        prepared += [self._task(number, frame, open_writer) for number in range(2)]

    def _task(self, number: int, frame: Any, open_writer: OpenWriter) -> TaskResult:
        task = TaskAttempt(number, 0, next(self._tasks))

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"value": pa.array(frame.values[number::2], pa.string())})
            if frame.error is not None:
                raise frame.error

        copy = pickle.loads(cloudpickle.dumps(open_writer))  # noqa: S301 — our own
        rows, committable = _written(copy, task, batches())
        return TaskResult(number, task.task_attempt_id, rows, json.loads(committable))


class TestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoPhaseKit:
        return InThisProcess(tmp_path / "out", ow.FolderLedger(tmp_path / "ledger"), monkeypatch)


class TestWithALedgerInKafka(TwoPhaseContract):
    @pytest.fixture
    def kit(self, kafka: LocalKafka, new_topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoPhaseKit:
        topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
        return InThisProcess(tmp_path / "out", ow.KafkaLedger(kafka.bootstrap_servers, topic), monkeypatch)
