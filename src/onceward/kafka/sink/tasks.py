"""Tasks, as they run on executors: rows in, record batches to the brokers, one report out. Called
by :mod:`onceward.engine.task_writer` in the last stage of the user's own plan, once per task.
Steps 3 to 5 of a micro-batch:

3. **Encode.** Rows are held back until there is enough to send, then put to their partitions and
  encoded.
4. **Lease.** Partitions are leased from the driver's sequencer, a share at a time, whichever are
  free.
5. **Stamp and send.** Each lease's fragments get producer id, epoch and sequence, are sent, and
   only when every one of them is acknowledged is the lease given back with the next sequence.

What if this process dies? With a lease: its connection breaks, the sequencer poisons the epoch,
the batch runs again. Without: Spark runs another attempt of the task, which may go on under the
same epoch because nothing was sent. What if output that the tasks read is lost? Part of the batch
would be computed again, so all of it is: ``spark.shuffles``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from onceward.engine.task_writer import TaskWriter
from onceward.errors import AttemptSuperseded, EpochPoisoned, OncewardError
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.records.batch import Fragment, next_sequence
from onceward.kafka.sink.rows import HeldRows, partition_counts, pieces
from onceward.kafka.sink.sequencer.client import SequencerClient
from onceward.kafka.sink.sequencer.frames import EpochCredentials
from onceward.kafka.sink.task_reports import Segment, TaskReport
from onceward.kafka.wire.appends.producer import Append, Appended, PartitionProducer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings, ProducerSettings

# lease about a quarter of what is wanted at a time, so that tasks take turns instead of queueing
SHARES = 4


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Settings of a task. Pickled into the job's closure; ``repr`` shows no secret. ``topics`` is
    the number of partitions of topics that the driver looked up, the same for all tasks of the
    batch; ``held_bytes`` how many payload bytes a task holds back before it sends."""

    client: ClientSettings
    producer: ProducerSettings
    topic: str | None
    topics: Mapping[str, int]
    ledger_topic: str
    held_bytes: int
    credentials: EpochCredentials = field(repr=False)
    transactional_id: str
    transaction_version: Literal[1, 2]
    connect_timeout_s: float


def open_kafka_writer(spec: TaskSpec, task: TaskAttempt) -> KafkaWriter:
    """Connect to the sequencer and return the task's writer. :raises SequencerUnreachable: there
    is nobody to tell it to but the driver that waits for the job."""
    sequencer = SequencerClient(spec.credentials, task, spec.connect_timeout_s)
    try:
        with _reporting_errors(sequencer):
            return KafkaWriter(spec, task, sequencer)
    except BaseException:
        sequencer.close()
        raise


class KafkaWriter(TaskWriter):
    """Writer of one task attempt, under its credentials' epoch; commits a :class:`TaskReport`."""

    def __init__(self, spec: TaskSpec, task: TaskAttempt, sequencer: SequencerClient) -> None:
        self._spec = spec
        self._task = task
        self._sequencer = sequencer
        self._client = KafkaClient.shared(spec.client)
        counts = partition_counts(self._client, spec.topics, spec.ledger_topic)
        self._rows = HeldRows(spec.topic, counts, spec.producer, first=task.partition_id)
        self._producer = PartitionProducer(
            self._client,
            spec.producer,
            spec.credentials.identity,
            transactional_id=spec.transactional_id,
            version=spec.transaction_version,
        )
        self._segments: dict[TopicPartition, list[Segment]] = {}

    def write(self, rows: pa.RecordBatch) -> None:
        with _reporting_errors(self._sequencer):
            for piece in pieces(rows):
                self._rows.add(piece)
                if self._rows.held_bytes >= self._spec.held_bytes:
                    self._send_all()

    def pre_commit(self) -> Any:
        with _reporting_errors(self._sequencer):
            self._send_all()
        self._sequencer.finish()
        task = self._task
        return TaskReport.of(
            task.partition_id, task.task_attempt_id, self._segments, self._rows.oldest_ms
        ).to_json()

    def close(self) -> None:
        self._sequencer.close()

    def _send_all(self) -> None:
        """Encode, lease, stamp and send all that is held; a partition's rows keep their order."""
        fragments = self._rows.encode()
        waiting = _rotated(list(fragments), self._task.partition_id)
        share = max(1, -(-len(waiting) // SHARES))
        while waiting:
            leases = self._sequencer.lease_some(waiting, limit=share)
            self._send({partition: fragments.pop(partition) for partition in leases}, leases)
            waiting = [partition for partition in waiting if partition in fragments]

    def _send(
        self,
        fragments: Mapping[TopicPartition, list[Fragment]],
        leases: Mapping[TopicPartition, int],
    ) -> None:
        appends, following = number(fragments, leases)
        appended = self._producer.send(appends, should_stop=self._sequencer.check)
        for append, done in zip(appends, appended, strict=True):
            self._segments.setdefault(append.partition, []).append(segment(append, done))
        # Only now that every fragment is acknowledged may the lease go back: 1. a fragment gets no
        # answer, 2. the next task goes on from its sequence, 3. the fragment is sent again. The
        # broker refuses the gap, or, where it does not know the producer yet, takes any first
        # sequence and then refuses the fragment (KIP-98, ``ProducerAppendInfo.checkSequence``).
        self._sequencer.release(following)


class DroppingWriter(TaskWriter):
    """Writer that drops the task's rows: what the task computes fails or does not."""

    def __init__(self, _: TaskAttempt) -> None:
        pass

    def write(self, rows: pa.RecordBatch) -> None:
        pass

    def pre_commit(self) -> None:
        pass


@contextmanager
def _reporting_errors(sequencer: SequencerClient) -> Iterator[None]:
    """Report a task's error to the driver, which wants its type: Spark carries its text only."""
    try:
        yield
    except (EpochPoisoned, AttemptSuperseded):
        # said by the sequencer itself
        raise
    except OncewardError as error:
        sequencer.fail(error)
        raise


def number(
    fragments: Mapping[TopicPartition, list[Fragment]], first: Mapping[TopicPartition, int]
) -> tuple[list[Append], dict[TopicPartition, int]]:
    """Number the fragments from ``first`` on; return the appends and the sequences that follow."""
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
    """Return the segment for one acknowledged fragment."""
    fragment = append.fragment
    return Segment(
        append.base_sequence, fragment.count, done.base_offset, done.last_offset, fragment.checksum
    )


def _rotated(items: list[TopicPartition], by: int) -> list[TopicPartition]:
    """Return ``items`` begun elsewhere in each task, so that not all ask for the same first."""
    if not items:
        return items
    start = by % len(items)
    return items[start:] + items[:start]
