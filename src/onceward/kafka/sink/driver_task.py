"""Small batches without a Python worker: the driver encodes and sends their rows itself. Driver
only.

Called by :mod:`attempt` in the place of a job of :mod:`tasks`, when a batch of a query without
state spans few source records (:mod:`onceward.engine.driver_rows`). There is nobody to share a
partition with, hence no lease: sequences go on from where the transaction's last job left them,
and the same check reads the same report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.sink.rows import HeldRows
from onceward.kafka.sink.sequencer.book import LeaseTurn
from onceward.kafka.sink.task_reports import Segment, TaskReport
from onceward.kafka.sink.tasks import number, segment
from onceward.kafka.wire.appends.producer import PartitionProducer
from onceward.patience import ShouldStop

Announce = Callable[[Sequence[TopicPartition]], None]

_PART_BYTES = {
    "value": "COALESCE(OCTET_LENGTH(value), 0)",
    "key": "COALESCE(OCTET_LENGTH(key), 0)",
    "topic": "COALESCE(OCTET_LENGTH(topic), 0)",
    "headers": "COALESCE(AGGREGATE(headers, 0, "
    "(size, header) -> size + OCTET_LENGTH(header.key) + COALESCE(OCTET_LENGTH(header.value), 0) "
    "+ 8), 0)",
}
_THE_DRIVER = TaskAttempt(partition_id=0, attempt_number=0, task_attempt_id=-1)


def row_bytes(columns: Iterable[str]) -> str:
    """SQL for the payload bytes of a row with these columns, as made by :mod:`columns`."""
    return " + ".join(_PART_BYTES[name] for name in columns if name in _PART_BYTES)


def send(
    rows: HeldRows,
    producer: PartitionProducer,
    first_sequences: Mapping[TopicPartition, int],
    announce: Announce,
    should_stop: ShouldStop,
) -> tuple[TaskReport, list[LeaseTurn]]:
    """Encode, stamp and send all rows held; the report of it, and the turns that a sequencer would
    have booked.

    :param first_sequences: where the epoch's partitions go on that it has written to; all others
        begin at 0.
    :param announce: called with the partitions before the first byte is sent
        (``Transaction.add_partitions``).
    :param should_stop: called all the while; what it raises ends the send.
    :raises OncewardError: as a task does; see ``PartitionProducer.send`` and :class:`HeldRows`.
    """
    fragments = rows.encode()
    if not fragments:
        return TaskReport.of(_THE_DRIVER.partition_id, _THE_DRIVER.task_attempt_id, {}), []
    first = {partition: first_sequences.get(partition, 0) for partition in fragments}
    appends, following = number(fragments, first)
    announce(list(fragments))
    segments: dict[TopicPartition, list[Segment]] = {}
    for append, done in zip(appends, producer.send(appends, should_stop=should_stop), strict=True):
        segments.setdefault(append.partition, []).append(segment(append, done))
    turns = [
        LeaseTurn(partition, _THE_DRIVER, first[partition], following[partition])
        for partition in fragments
    ]
    return TaskReport.of(
        _THE_DRIVER.partition_id, _THE_DRIVER.task_attempt_id, segments, rows.oldest_ms
    ), turns
