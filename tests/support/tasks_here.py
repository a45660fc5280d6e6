"""The tasks of a batch in this process, one after the other, for tests of sinks that need no
Spark.

Each task has a copy of the writer's opener, through pickle, as in a Spark job; what Spark itself
adds is for tests on Spark. Use as ``monkeypatch.setattr(task_job, "run", TasksHere().run)``;
frames are then anything with ``parts``.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from onceward.engine.task_writer import OpenWriter, TaskResult, _written
from onceward.errors import OncewardError, from_json, to_json
from onceward.ids import TaskAttempt
from onceward.sql.sink.pieces import SessionCache


def forget_all(sessions: SessionCache[Any]) -> None:
    """Close all cached sessions of this process."""
    for dsn in list(sessions.cached):
        sessions.forget(dsn)


@dataclass
class ArrowFrame:
    """A frame whose rows are here: every task has every so-manieth of them."""

    rows: pa.Table
    error: Exception | None = None
    """Raised by each task after its rows."""
    again: Sequence[int] = ()
    """Tasks that run twice: the first attempt does all, and its report is lost."""
    tasks: int = 2
    schema: StructType = field(init=False)

    def __post_init__(self) -> None:
        self.schema = from_arrow_schema(self.rows.schema, prefer_timestamp_ntz=True)

    def count(self) -> int:
        return int(self.rows.num_rows)

    def part(self, number: int) -> Iterator[pa.RecordBatch]:
        mine = self.rows.take(pa.array(range(number, self.rows.num_rows, self.tasks), pa.int64()))
        yield from mine.combine_chunks().to_batches()
        if self.error is not None:
            raise self.error


class TasksHere:
    """Numbers its task attempts."""

    def __init__(self) -> None:
        self._attempts = itertools.count()

    def run(
        self,
        frame: Any,
        open_writer: OpenWriter,
        computation: object,
        limit: object,
        prepared: list[TaskResult],
    ) -> None:
        """In the place of :func:`onceward.engine.spark_jobs.run`."""
        for number in frame.again:
            self._task(number, frame, open_writer)
        prepared += [self._task(number, frame, open_writer) for number in range(frame.tasks)]

    def _task(self, number: int, frame: Any, open_writer: OpenWriter) -> TaskResult:
        task = TaskAttempt(number, 0, next(self._attempts))
        copy = pickle.loads(cloudpickle.dumps(open_writer))  # noqa: S301 — our own
        try:
            rows, committable = _written(copy, task, frame.part(number))
        except OncewardError as error:
            raise from_json(to_json(error)) from None  # as it crosses from an executor
        return TaskResult(number, task.task_attempt_id, rows, json.loads(committable))
