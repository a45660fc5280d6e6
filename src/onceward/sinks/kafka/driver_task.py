"""Small batches without a Python worker: rows come to the driver, which encodes and sends them itself. Driver only.

Called by :mod:`target` in the place of a job of :mod:`tasks`, when a batch of a query without state spans few source
records. The user's plan runs as it is, in all of its tasks, so that a slow function is as parallel as ever; its rows
come back as Arrow, as in ``DataFrame.toArrow``. There is nobody to share a partition with, hence no lease: sequences go
on from where the transaction's last job left them, and the same check reads the same report.

What bounds it, so that no batch can fill the driver: a plan may make many rows of few records, or large ones. So the
plan itself is told how much it may give back (:class:`Bound`): each task gives at most so many rows, and an oversized
record only says that it is oversized. When either happened, nothing has been sent, and the batch goes to tasks.

That Spark computes part of the plan a second time (``spark.shuffles``) is as dangerous here as elsewhere: the caller
looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from onceward.ids import TaskAttempt, TopicPartition
from onceward.sinks.kafka.rows import HeldRows
from onceward.sinks.kafka.sequencer.book import LeaseTurn
from onceward.sinks.kafka.task_reports import Segment, TaskReport
from onceward.sinks.kafka.tasks import number, segment
from onceward.spark.query import RunningBatch
from onceward.wire.appends.producer import PartitionProducer
from onceward.wire.deadline import ShouldStop

Announce = Callable[[Sequence[TopicPartition]], None]

_OVERSIZED = "oversized"
_LEVELS = (100, 1_000)  # few of them: Spark compiles the plan's code once for each
_ROOM = 2  # a plan may make two rows of one record
_SPREAD = 64  # how much more than wished may come in the worst case, when every task gives all it may
_LEAST_RECORD_BYTES = 1_000
_ROW_IN_TASK = "monotonically_increasing_id() & 8589934591L"  # the lower 33 bits (its documentation promises them)
_PART_BYTES = {
    "value": "COALESCE(OCTET_LENGTH(value), 0)",
    "key": "COALESCE(OCTET_LENGTH(key), 0)",
    "topic": "COALESCE(OCTET_LENGTH(topic), 0)",
    "headers": "COALESCE(AGGREGATE(headers, 0, "
    "(size, header) -> size + OCTET_LENGTH(header.key) + COALESCE(OCTET_LENGTH(header.value), 0) + 8), 0)",
}
_MANY_TASKS = 32
_PASSES = 50  # frames that go to tasks before the driver looks again
_THE_DRIVER = TaskAttempt(partition_id=0, attempt_number=0, task_attempt_id=-1)


@dataclass(frozen=True, slots=True)
class Bound:
    """What one task of the plan may give to the driver: rows, and payload bytes of one row."""

    rows: int
    record_bytes: int

    @staticmethod
    def of(source_records: int, tasks: int, driver_records: int, driver_bytes: int) -> Bound:
        """For a batch of ``source_records``, at most ``driver_records``, whose plan has so many ``tasks``.

        All tasks together give no more than 64 times ``driver_bytes``, or ``driver_records`` kilobytes a task where
        that is more.
        """
        wanted = min(_ROOM * source_records, driver_records)
        rows = next((level for level in _LEVELS if wanted <= level <= driver_records), driver_records)
        return Bound(rows, max(_LEAST_RECORD_BYTES, _SPREAD * driver_bytes // (rows * max(1, tasks))))


class DriverTurn:
    """Whether the driver takes a batch: by what is known of it, and of those before it."""

    def __init__(self, driver_records: int, driver_bytes: int) -> None:
        self._records = driver_records
        self._bytes = driver_bytes
        self._passes = 0
        self._tasks = _MANY_TASKS  # of the plan, as far as known

    def takes(self, running: RunningBatch) -> bool:
        """For each frame once. State is left to tasks: its output has no relation to the batch's source records."""
        if running.stateful or running.input_records is None or self._bytes == 0:
            return False
        if not running.input_records <= self._records or self._records == 0:
            return False
        if self._passes:
            self._passes -= 1
            return False
        return True

    def bound(self, running: RunningBatch) -> Bound:
        """For a batch that is taken."""
        return Bound.of(running.input_records or 0, self._tasks, self._records, self._bytes)

    def saw(self, table: pa.Table | None, tasks: int) -> None:
        """What came of it, and how many tasks the plan had, which is known only then without planning it twice. After
        too much of it, tasks have the next ones: looking costs a job."""
        self._tasks = tasks
        if table is None or table.nbytes > self._bytes:
            self._passes = _PASSES


def bounded(prepared: DataFrame, bound: Bound) -> DataFrame:
    """``prepared`` (columns as made by :mod:`columns`) within ``bound``: one row too many, or an oversized one without
    its content, where it is not."""
    size = " + ".join(_PART_BYTES[name] for name in prepared.columns if name in _PART_BYTES)
    oversized = f"({size}) > {bound.record_bytes}"
    kept = [f"IF({oversized}, NULL, {name}) AS {name}" for name in prepared.columns]
    # A filter, no LIMIT: Spark runs that one in several jobs, one after the other.
    return prepared.where(f"({_ROW_IN_TASK}) <= {bound.rows}").selectExpr(*kept, f"{oversized} AS {_OVERSIZED}")


def within(table: pa.Table, bound: Bound) -> pa.Table | None:
    """The rows of a :func:`bounded` frame, if they are all there is; None when a task had to leave something out."""
    if table.num_rows > bound.rows or pc.any(table.column(_OVERSIZED)).as_py():
        return None
    return table.drop_columns([_OVERSIZED])


def send(
    rows: HeldRows,
    producer: PartitionProducer,
    first_sequences: Mapping[TopicPartition, int],
    announce: Announce,
    should_stop: ShouldStop,
) -> tuple[TaskReport, list[LeaseTurn]]:
    """Encode, stamp and send all rows held; the report of it, and the turns that a sequencer would have booked.

    :param first_sequences: where the epoch's partitions go on that it has written to; all others begin at 0.
    :param announce: called with the partitions before the first byte is sent (``Transaction.add_partitions``).
    :param should_stop: called all the while; what it raises ends the send.
    :raises OncewardError: as a task does; see ``PartitionProducer.send`` and :class:`HeldRows`.
    """
    fragments = rows.encode()
    if not fragments:
        return TaskReport(_THE_DRIVER.partition_id, _THE_DRIVER.task_attempt_id, {}), []
    first = {partition: first_sequences.get(partition, 0) for partition in fragments}
    appends, following = number(fragments, first)
    announce(list(fragments))
    segments: dict[TopicPartition, list[Segment]] = {}
    for append, done in zip(appends, producer.send(appends, should_stop=should_stop), strict=True):
        segments.setdefault(append.partition, []).append(segment(append, done))
    turns = [LeaseTurn(partition, _THE_DRIVER, first[partition], following[partition]) for partition in fragments]
    return TaskReport(_THE_DRIVER.partition_id, _THE_DRIVER.task_attempt_id, segments), turns
