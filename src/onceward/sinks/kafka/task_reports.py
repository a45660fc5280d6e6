"""What the tasks say they wrote, and whether it can be true. Pure: values in, a manifest out.

Tasks make a :class:`TaskReport` each (:mod:`tasks`, on executors); the driver checks all of them against the
sequencer's book (:func:`check`, called by :mod:`target` as step 6). Integrity does not rest on the sequencer alone:
the broker refuses a gap in the sequence, and an overlap or a missing report shows here, before anything is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from onceward.engine.task_writer import each_task_once
from onceward.errors import ReportMismatch
from onceward.ids import TopicPartition
from onceward.ledger.record import Output
from onceward.records.batch import next_sequence
from onceward.records.checksum import ContentChecksum
from onceward.sinks.kafka.sequencer.book import LeaseTurn

KIND = "kafka"
"""Of a ledger record's output."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive records of one partition: sequences ``base_sequence`` on, offsets ``base_offset`` on."""

    base_sequence: int
    count: int
    base_offset: int
    last_offset: int
    checksum: ContentChecksum


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one task attempt wrote, per partition in the order of writing; and the oldest timestamp, ms since 1970, that
    rows brought with them, by topic."""

    partition_id: int
    task_attempt_id: int
    segments: Mapping[TopicPartition, Sequence[Segment]]
    oldest_ms: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        """JSON values; offsets and sequences exact."""
        segments = [
            [tp.topic, tp.partition, [[s.base_sequence, s.count, s.base_offset, s.last_offset, s.checksum.to_list()]
                                      for s in parts]]
            for tp, parts in self.segments.items()
        ]  # fmt: skip
        return [self.partition_id, self.task_attempt_id, segments, dict(self.oldest_ms)]

    @staticmethod
    def from_json(values: list[Any]) -> TaskReport:
        """The report that :meth:`to_json` made."""
        partition_id, task_attempt_id, segments, oldest_ms = values
        return TaskReport(
            partition_id,
            task_attempt_id,
            {
                TopicPartition(topic, partition): [
                    Segment(sequence, count, base, last, ContentChecksum.from_list(checksum))
                    for sequence, count, base, last, checksum in parts
                ]
                for topic, partition, parts in segments
            },
            oldest_ms,
        )


@dataclass(frozen=True, slots=True)
class PartitionOutput:
    """What one job, or several one after the other, put into one partition; offsets inclusive."""

    count: int
    first_offset: int
    last_offset: int
    checksum: ContentChecksum


Written = Mapping[TopicPartition, PartitionOutput]


def check(
    reports: Sequence[TaskReport],
    turns: Iterable[LeaseTurn],
    task_count: int,
    first_sequences: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Written:
    """What the job wrote, if ``reports`` and the book agree.

    Checked: every task reported once; every partition's turns form one chain from sequence 0, or from where the
    epoch's job before left it (``first_sequences``); each turn is filled exactly by the segments of the task that held
    it; offsets go up and never overlap; nothing was written outside a turn.

    :raises ReportMismatch: naming the task or partition; the batch is aborted and runs again.
    """
    each_task_once([report.partition_id for report in reports], task_count)
    written = {
        (partition, report.task_attempt_id): list(segments)
        for report in reports
        for partition, segments in report.segments.items()
    }
    chains: dict[TopicPartition, list[Segment]] = {}
    for turn in turns:
        chain = chains.setdefault(turn.partition, [])
        segments = written.get((turn.partition, turn.task.task_attempt_id), [])
        _fill(turn, chain, segments, first_sequences.get(turn.partition, 0))
    left_over = [key for key, segments in written.items() if segments]
    if left_over:
        raise _mismatch(f"records were written to {left_over[0][0]} outside any lease")
    return {partition: _summary(partition, chain) for partition, chain in chains.items() if chain}


def _fill(turn: LeaseTurn, chain: list[Segment], segments: list[Segment], first_sequence: int) -> None:
    """Move the segments of ``turn`` from its task's ``segments`` to the partition's ``chain``."""
    sequence = next_sequence(chain[-1].base_sequence, chain[-1].count) if chain else first_sequence
    if turn.base_sequence != sequence:
        raise _mismatch(f"{turn.partition}: a lease began at sequence {turn.base_sequence}, not at {sequence}")
    while sequence != turn.next_sequence:
        if not segments or segments[0].base_sequence != sequence:
            raise _mismatch(f"{turn.partition}: no task reports sequence {sequence} of a lease it gave back")
        segment = segments.pop(0)
        chain.append(segment)
        sequence = next_sequence(sequence, segment.count)


def joined(first: Written, then: Written) -> dict[TopicPartition, PartitionOutput]:
    """What two jobs of one transaction wrote, one after the other.

    :raises ReportMismatch: the second claims offsets that the first has.
    """
    both = dict(first)
    for partition, added in then.items():
        before = first.get(partition)
        if before is None:
            both[partition] = added
            continue
        if added.first_offset <= before.last_offset:
            raise _mismatch(f"{partition}: offset {added.first_offset} was written after {before.last_offset}")
        checksum = ContentChecksum.combine(before.checksum, added.checksum)
        both[partition] = PartitionOutput(before.count + added.count, before.first_offset, added.last_offset, checksum)
    return both


def output_of(written: Written) -> Output:
    """``written`` as the ledger keeps it: kind ``kafka``, whose data is the manifest.

    ``{topic: {"partition": [count, first_offset, last_offset, checksum]}}``, offsets inclusive. Between them lie only
    this batch's records: a partition is written by one producer identity at a time, but other producers' records may
    stand between, so that the count may be smaller than the offsets say. ``checksum`` is
    :meth:`onceward.records.checksum.ContentChecksum.hexdigest` over the records in offset order.
    """
    manifest: dict[str, dict[str, list[Any]]] = {}
    for partition, part in sorted(written.items()):
        entry = [part.count, part.first_offset, part.last_offset, part.checksum.hexdigest()]
        manifest.setdefault(partition.topic, {})[str(partition.partition)] = entry
    return Output(KIND, 1, sum(part.count for part in written.values()), manifest)


def payload_bytes(written: Written) -> int:
    """Bytes of keys, values and headers, as they were before compression."""
    return sum(stretch.length for part in written.values() for stretch in part.checksum.stretches[1:])


def _summary(partition: TopicPartition, chain: Sequence[Segment]) -> PartitionOutput:
    checksum = ContentChecksum.EMPTY
    highest = -1
    for segment in chain:
        fits = segment.base_offset > highest and segment.last_offset - segment.base_offset + 1 == segment.count
        if segment.count < 1 or not fits:
            raise _mismatch(
                f"{partition}: offsets {segment.base_offset} to {segment.last_offset} cannot hold {segment.count} "
                f"records after offset {highest}"
            )
        highest = segment.last_offset
        checksum = ContentChecksum.combine(checksum, segment.checksum)
    count = sum(segment.count for segment in chain)
    return PartitionOutput(count, chain[0].base_offset, highest, checksum)


def _mismatch(what: str) -> ReportMismatch:
    return ReportMismatch(
        f"the tasks' reports do not add up: {what}",
        next_step="nothing; the batch is aborted and runs again under a new epoch. If it repeats, report it",
    )
