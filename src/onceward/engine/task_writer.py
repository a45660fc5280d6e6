"""The tasks of a batch, for every sink that is written in Python. Executors only.

The driver's side is :mod:`onceward.engine.spark_jobs`. A task opens a writer, hands it all of its
rows, and returns one row to the driver: what the writer has prepared (the committable), or the
error of ours that it met.

What if a task dies, hangs or runs twice? Its writer has made nothing visible. Of a task's attempts
Spark takes the result of one; what another has prepared is named nowhere, and never becomes true.
Kafka's writers share one sequence of records, so that theirs have to stop the others:
:mod:`onceward.kafka.sink.tasks`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark import TaskContext

from onceward.errors import (
    ConfigurationError,
    OncewardError,
    ReportMismatch,
    SendFailed,
    from_json,
    to_json,
)
from onceward.ids import AttemptId, BatchId, PipelineId, TaskAttempt
from onceward.spark.batch.carried import Carrier
from onceward.spark.session.zip_importers import drop_zip_importers

RESULT_DDL = "partition_id int, task_attempt_id long, rows long, committable string, error string"
_RESULT = pa.schema(
    [
        ("partition_id", pa.int32()),
        ("task_attempt_id", pa.int64()),
        ("rows", pa.int64()),
        ("committable", pa.string()),
        ("error", pa.string()),
    ]
)


class TaskWriter(ABC):
    """Writes the rows of one task attempt so that nobody sees them yet."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Take some rows: the frame's columns, in its order of rows. Called as often as Spark has
        more of them."""

    @abstractmethod
    def pre_commit(self) -> Any:
        """Make all rows durable, and none of them visible. Called after the last rows. :returns:
        the committable, JSON values by which the driver can make it visible, or drop it, later,
        and on another machine; None when there is nothing to commit."""

    def close(self) -> None:  # noqa: B027 — not every writer holds something
        """Release what it holds; without a :meth:`pre_commit` before it, drop what was written.
        Called in the end, whatever happened."""


class Task(NamedTuple):
    """One attempt of one task that writes a part of a batch. No two have the same :attr:`name`."""

    pipeline: PipelineId
    batch: BatchId
    attempt: AttemptId
    frame: int
    """Of the batch's frames which, from 0."""
    partition_id: int
    attempt_number: int
    task_attempt_id: int

    @property
    def name(self) -> str:
        """Unique for all time, of characters that file and transaction names may have. Begins with
        the pipeline's id and ``@``, which no id has."""
        batch, (owner, number) = f"{self.batch.query_id[:8]}-{self.batch.batch_id}", self.attempt
        task = f"{self.frame}-{self.partition_id}.{self.task_attempt_id}"
        return f"{self.pipeline}@{batch}-{owner}.{number}-{task}"


class Beginner(Protocol):
    """The part of a committer that is pickled for the tasks."""

    def begin(self, task: Task) -> TaskWriter:
        """Return the writer of a task. In a task."""


OpenWriter = Callable[[TaskAttempt], TaskWriter]
"""Pickled into the job's closure, and called once in each task attempt."""

Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class OpenTaskWriter:
    """Opens the writer in each task attempt, and names what its methods raise."""

    committer: Beginner
    pipeline: PipelineId
    batch: BatchId
    attempt: AttemptId
    frame: int
    carrier: Carrier = field(default_factory=Carrier)

    def __call__(self, task: TaskAttempt) -> TaskWriter:
        of_task = Task(
            self.pipeline,
            self.batch,
            self.attempt,
            self.frame,
            task.partition_id,
            task.attempt_number,
            task.task_attempt_id,
        )
        with self.calling("begin()"):
            return _NamedWriter(self.committer.begin(of_task), self)

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Name what a method of the user's raises inside. The task fails, and may be tried again
        by Spark. Errors of ours pass."""
        try:
            yield
        except OncewardError:
            raise
        except Exception as error:
            with self.carrier():
                raise SendFailed(
                    f"{what} of {type(self.committer).__name__} raised {type(error).__name__}: "
                    f"{error}",
                    next_step="nothing, the batch runs again; if it repeats, mend what it names: "
                    "the executor's log has the traceback",
                ) from error


class _NamedWriter(TaskWriter):
    def __init__(self, writer: TaskWriter, opened_by: OpenTaskWriter) -> None:
        self._writer = writer
        self._opened_by = opened_by

    def write(self, rows: pa.RecordBatch) -> None:
        with self._opened_by.calling("write()"):
            self._writer.write(rows)

    def pre_commit(self) -> Any:
        with self._opened_by.calling("pre_commit()"):
            committable = self._writer.pre_commit()
        try:
            json.dumps(committable, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"pre_commit() of {type(self._opened_by.committer).__name__} returned what JSON "
                f"has not: {error}",
                next_step="let it return texts, whole numbers, booleans, None, or lists and dicts "
                "of them",
            ) from error
        return committable

    def close(self) -> None:
        with self._opened_by.calling("close()"):
            self._writer.close()


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task attempt has prepared: so many rows, and the committable."""

    partition_id: int
    task_attempt_id: int
    rows: int
    committable: Any


def task_function(
    open_writer: OpenWriter,
    names: Sequence[str],
    returned_errors: tuple[type[OncewardError], ...] = (OncewardError,),
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow``: it takes a task's rows, yields one row of
    :data:`RESULT_DDL`.

    :param names: of the columns, for the writer.
    :param returned_errors: errors of a writer that come to the driver as they are, as the task's
        result. Any other fails the task, as in any job of Spark's: of those the driver sees the
        text, and the task may be tried again.
    """

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        drop_zip_importers()
        task = this_attempt()
        rows, committable, error = 0, None, None
        try:
            named = (batch.rename_columns(list(names)) for batch in batches)
            rows, committable = _written(open_writer, task, named)
        except returned_errors as caught:
            error = to_json(caught)
        drop_zip_importers()
        values = [task.partition_id, task.task_attempt_id, rows, committable, error]
        yield pa.RecordBatch.from_arrays(
            [pa.array([value], kind.type) for value, kind in zip(values, _RESULT, strict=True)],
            schema=_RESULT,
        )

    return run


def this_attempt() -> TaskAttempt:
    """Return the task attempt that this code runs in."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this function runs in Spark tasks only")
    return TaskAttempt(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )


def _written(open_writer: OpenWriter, task: TaskAttempt, batches: Batches) -> tuple[int, str]:
    writer, rows = open_writer(task), 0
    try:
        for batch in batches:
            rows += batch.num_rows
            writer.write(batch)
        prepared = json.dumps(writer.pre_commit(), separators=(",", ":"), allow_nan=False)
    except BaseException:
        # What it has failed for counts, and not what becomes of it
        with suppress(Exception):
            writer.close()
        raise
    writer.close()
    return rows, prepared


def results(rows: Iterable[Any], task_count: int) -> list[TaskResult]:
    """Return what the tasks have prepared, in the order of their partitions.

    :param rows: the job's, by the names of :data:`RESULT_DDL`.
    :raises OncewardError: what a task brought back.
    :raises ReportMismatch: not every task once.
    """
    found: list[TaskResult] = []
    errors = collect_reports(rows, found)
    if errors:
        raise errors[0]
    check_each_task_once([result.partition_id for result in found], task_count)
    return found


def collect_reports(rows: Iterable[Any], found: list[TaskResult]) -> list[OncewardError]:
    """Add what tasks have prepared to ``found``, by partitions; return the errors of others."""
    errors = []
    for row in sorted(rows, key=lambda row: int(row.partition_id)):
        if row.error is not None:
            errors.append(from_json(row.error))
        else:
            found.append(
                TaskResult(
                    row.partition_id, row.task_attempt_id, row.rows, json.loads(row.committable)
                )
            )
    return errors


def check_each_task_once(partition_ids: Sequence[int], task_count: int) -> None:
    """Raise ReportMismatch unless the reports are those of all tasks of a job, each once."""
    if sorted(partition_ids) != list(range(task_count)):
        raise ReportMismatch(
            f"the tasks' reports do not add up: {task_count} tasks were run, but reports came "
            f"from {sorted(partition_ids)}",
            next_step="nothing; the batch is aborted and runs again. If it repeats, report it",
        )
