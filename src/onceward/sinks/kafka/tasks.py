"""What runs on the executors: rows in, record batches to the brokers, one report out.

Called by Spark through ``mapInArrow`` in the last stage of the user's own plan, once per task, in a Python worker.
Steps 3 to 5 of a micro-batch:

3. **Encode.** Rows are held back until there is enough to send, then put to their partitions and encoded.
4. **Lease.** Partitions are leased from the driver's sequencer, a share at a time, whichever are free.
5. **Stamp and send.** Each lease's fragments get producer id, epoch and sequence, are sent, and only when every one
   of them is acknowledged is the lease given back with the next sequence.

What if this process dies? With a lease: its connection breaks, the sequencer poisons the epoch, the batch runs again.
Without: Spark runs another attempt of the task, which may go on under the same epoch because nothing was sent. What if
output that the tasks read is lost? Part of the batch would be computed again, so all of it is: ``spark.shuffles``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import pyarrow as pa
from pyspark import TaskContext

from onceward.errors import AttemptSuperseded, EpochPoisoned, OncewardError, SequencerUnreachable, to_json
from onceward.ids import TopicPartition
from onceward.records.batch import Fragment, next_sequence
from onceward.sinks.kafka.report import Segment, TaskReport
from onceward.sinks.kafka.rows import HeldRows, partition_counts, pieces
from onceward.sinks.kafka.sequencer.book import TaskAttempt
from onceward.sinks.kafka.sequencer.lease import SequencerConnection
from onceward.sinks.kafka.sequencer.ticket import EpochTicket
from onceward.spark.zip_importers import drop_zip_importers
from onceward.wire.appends.producer import Append, Appended, PartitionProducer
from onceward.wire.client import KafkaClient
from onceward.wire.options.settings import ClientSettings, ProducerSettings

REPORT_SCHEMA = "report string, error string"
"""One row a task: its :class:`TaskReport`, or why it could not even begin (an error of ours as JSON)."""

_REPORT_TYPE = pa.schema([("report", pa.string()), ("error", pa.string())])

_SHARES = 4  # lease about a quarter of what is wanted at a time, so that tasks take turns instead of queueing


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """All a task needs to know. Pickled into the job's closure; ``repr`` shows no secret.

    ``topics`` is the number of partitions of topics that the driver looked up, the same for all tasks of the batch;
    ``held_bytes`` how many payload bytes a task holds back before it sends.
    """

    client: ClientSettings
    producer: ProducerSettings
    topic: str | None
    topics: Mapping[str, int]
    ledger_topic: str
    held_bytes: int
    ticket: EpochTicket = field(repr=False)
    transactional_id: str
    transaction_version: Literal[1, 2]
    connect_timeout_s: float


Batches = Iterable[pa.RecordBatch]


def writer(spec: TaskSpec) -> Callable[[Batches], Batches]:
    """The function for ``mapInArrow``: takes a task's rows, yields one row of :data:`REPORT_SCHEMA`."""

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        drop_zip_importers()
        try:
            report, error = _run(spec, batches).to_json(), None
        except SequencerUnreachable as unreachable:
            report, error = None, to_json(unreachable)  # there is no sequencer to tell it to
        drop_zip_importers()
        columns = [pa.array([report], pa.string()), pa.array([error], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=_REPORT_TYPE)

    return write


def this_attempt() -> TaskAttempt:
    """The task attempt that this code runs in, as Spark numbers it."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this function runs in Spark tasks only")
    return TaskAttempt(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )


def _run(spec: TaskSpec, batches: Batches) -> TaskReport:
    task = this_attempt()
    with SequencerConnection(spec.ticket, task, spec.connect_timeout_s) as sequencer:
        try:
            report = _TransactionalTask(spec, task, sequencer).run(batches)
        except (EpochPoisoned, AttemptSuperseded):
            raise  # said by the sequencer itself
        except OncewardError as error:
            sequencer.fail(error)  # Spark would carry its text only; the driver wants its type
            raise
        sequencer.finish()
    return report


class _TransactionalTask:
    """One task attempt writing under the epoch of its ticket."""

    def __init__(self, spec: TaskSpec, task: TaskAttempt, sequencer: SequencerConnection) -> None:
        self._spec = spec
        self._task = task
        self._sequencer = sequencer
        self._client = KafkaClient.shared(spec.client)
        counts = partition_counts(self._client, spec.topics, spec.ledger_topic)
        self._rows = HeldRows(spec.topic, counts, spec.producer, first=task.partition_id)
        self._producer: PartitionProducer | None = None
        self._segments: dict[TopicPartition, list[Segment]] = {}

    def run(self, batches: Batches) -> TaskReport:
        for piece in chain.from_iterable(map(pieces, batches)):
            self._rows.add(piece)
            if self._rows.held_bytes >= self._spec.held_bytes:
                self._send_all()
        self._send_all()
        return TaskReport(self._task.partition_id, self._task.task_attempt_id, self._segments)

    def _send_all(self) -> None:
        """Encode, lease, stamp and send all that is held. The order of rows within a partition is kept."""
        fragments = self._rows.encode()
        waiting = _rotated(list(fragments), self._task.partition_id)
        share = max(1, -(-len(waiting) // _SHARES))
        while waiting:
            leases = self._sequencer.lease_some(waiting, limit=share)
            self._send({partition: fragments.pop(partition) for partition in leases}, leases)
            waiting = [partition for partition in waiting if partition in fragments]

    def _send(self, fragments: Mapping[TopicPartition, list[Fragment]], leases: Mapping[TopicPartition, int]) -> None:
        appends, following = number(fragments, leases)
        appended = self._the_producer().send(appends, should_stop=self._sequencer.check)
        for append, done in zip(appends, appended, strict=True):
            self._segments.setdefault(append.partition, []).append(segment(append, done))
        # Every fragment is acknowledged: whoever leases the partition next can rely on the sequence.
        self._sequencer.release(following)

    def _the_producer(self) -> PartitionProducer:
        if self._producer is None:
            self._producer = PartitionProducer(
                self._client,
                self._spec.producer,
                self._spec.ticket.identity,
                transactional_id=self._spec.transactional_id,
                version=self._spec.transaction_version,
            )
        return self._producer


def number(
    fragments: Mapping[TopicPartition, list[Fragment]], first: Mapping[TopicPartition, int]
) -> tuple[list[Append], dict[TopicPartition, int]]:
    """Give every fragment its base sequence, from ``first`` on; returns the appends and the sequences that follow."""
    appends: list[Append] = []
    following: dict[TopicPartition, int] = {}
    for partition, parts in fragments.items():
        sequence = first[partition]
        for fragment in parts:
            appends.append(Append(partition, fragment, sequence))
            sequence = next_sequence(sequence, fragment.count)
        following[partition] = sequence
    return appends, following


def segment(append: Append, done: Appended) -> Segment:
    """What the report says of one acknowledged fragment."""
    fragment = append.fragment
    return Segment(append.base_sequence, fragment.count, done.base_offset, done.last_offset, fragment.checksum)


def _rotated(items: list[TopicPartition], by: int) -> list[TopicPartition]:
    """``items`` begun elsewhere in each task, so that tasks do not all ask for the same partition first."""
    if not items:
        return items
    start = by % len(items)
    return items[start:] + items[:start]
