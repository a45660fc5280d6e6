"""The driver's path of a frame: it fetches the rows of a small batch, encodes and sends them
itself. Driver only.

Called by :mod:`attempt` in the place of :mod:`tasks_path`, when a batch of a query without state
spans few source records (:mod:`onceward.engine.driver_rows`); it saves the start of Python
workers. Nobody shares a partition with the driver, hence no lease: sequences go on from where the
transaction's last job left them, and the same check reads the same report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward import events, surroundings
from onceward.engine import driver_rows
from onceward.engine.ending import TimeLimit
from onceward.errors import Fenced, RecordTooLarge
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.sink.columns import RecordFrame, row_bytes, sort_columns
from onceward.kafka.sink.rows import HeldRows
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.sequencer.leases import ReturnedLease
from onceward.kafka.sink.task_reports import Segment, Sent, TaskReport, check
from onceward.kafka.sink.tasks import number, segment
from onceward.kafka.wire.appends.producer import PartitionProducer
from onceward.patience import ShouldStop
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation

Announce = Callable[[Sequence[TopicPartition]], None]

_THE_DRIVER = TaskAttempt(partition_id=0, attempt_number=0, task_attempt_id=-1)


def write(
    run: KafkaRun,
    limit: TimeLimit,
    frame: RecordFrame,
    first_sequences: Mapping[TopicPartition, int],
    running: RunningBatch,
    computation: Computation,
    ids: Mapping[str, Any],
) -> Sent | None:
    """Write a frame that is small enough for the driver: steps 3, 5 and 6. None: it is not
    that small after all, and nothing was sent.

    :param first_sequences: where the partitions go on that the transaction has written to;
        others begin at 0.
    :param ids: of the attempt, for events.
    """
    transaction = run.chain.transaction
    sending_since = surroundings.monotonic()

    def should_stop() -> None:
        unacknowledged_s = surroundings.monotonic() - sending_since
        if (error := limit.passed() or run.timeout_error(running, unacknowledged_s)) is not None:
            raise error

    with events.step(events.SEND, **ids) as values:
        values["path"] = "driver"
        size = row_bytes(frame.rows.columns)
        table = driver_rows.fetch(
            frame.rows, size, running, run.driver_turn, computation, limit.passed
        )
        if table is None:
            return None
        settings = run.producer_settings(frame.topic)
        rows = HeldRows(
            frame.only_topic,
            run.partition_counts(frame.only_topic),
            settings,
            first=running.batch.batch_id,
        )
        for part in sort(table).to_batches():
            rows.add(part)
        producer = run.chain.producer(settings)
        sending_since = surroundings.monotonic()
        try:
            report, returned = send(
                rows, producer, first_sequences, transaction.add_partitions, should_stop
            )
        except (Fenced, RecordTooLarge) as refusal:
            raise run.explain(refusal) from refusal
    with events.step(events.CHECK, **ids) as values:
        written = check([report], returned, 1, first_sequences)
        values["records"] = sum(part.count for part in written.values())
    following = {**first_sequences, **{lease.partition: lease.next_sequence for lease in returned}}
    return Sent(written, following, report.oldest_ms)


def sort(rows: pa.Table) -> pa.Table:
    """Return ``rows`` as ``order_by=`` wants them, nulls first, without the columns sorted by."""
    names = sort_columns(rows.column_names)
    if not names:
        return rows
    keys: dict[str, pa.ChunkedArray] = {}
    # nulls first, in the words of every version of Arrow
    for name in names:
        keys |= {f"{name} is there": rows.column(name).is_valid(), name: rows.column(name)}
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    return rows.take(order).drop_columns(names)


def send(
    rows: HeldRows,
    producer: PartitionProducer,
    first_sequences: Mapping[TopicPartition, int],
    announce: Announce,
    should_stop: ShouldStop,
) -> tuple[TaskReport, list[ReturnedLease]]:
    """Encode, stamp and send all rows held; return the report, and the leases that a sequencer
    would have booked.

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
    for append, appended in zip(
        appends, producer.send(appends, should_stop=should_stop), strict=True
    ):
        segments.setdefault(append.partition, []).append(segment(append, appended))
    returned = [
        ReturnedLease(partition, _THE_DRIVER, first[partition], following[partition])
        for partition in fragments
    ]
    return TaskReport.of(
        _THE_DRIVER.partition_id, _THE_DRIVER.task_attempt_id, segments, rows.oldest_ms
    ), returned
