"""Reports of tasks on what they wrote, and the check whether they can be true. Pure: values in, a
manifest out.

Tasks make a :class:`TaskReport` each (:mod:`tasks`, on executors); the driver checks all of them
against the leases of the sequencer (:func:`check`, step 6). Integrity does not rest on the
sequencer alone: the broker refuses a gap in the sequence, and an overlap or a missing report shows
here, before anything is committed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onceward.engine.ledger.record import Output
from onceward.engine.task_writer import check_each_task_once
from onceward.errors import ReportMismatch
from onceward.ids import TopicPartition
from onceward.kafka.records.batch import MAX_SEQUENCE
from onceward.kafka.records.checksum import ContentChecksum, Stretch, combine_runs
from onceward.kafka.sink.sequencer.leases import ReturnedLease

KIND = "kafka"
"""The kind of a ledger record's output."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive records of one partition, by their first sequence and their offsets."""

    base_sequence: int
    count: int
    base_offset: int
    last_offset: int
    checksum: ContentChecksum


_PACKED = np.dtype(
    [
        ("partition", "<i4"),
        ("base_sequence", "<i8"),
        ("count", "<i8"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("crcs", "<u4", 4),
        ("lengths", "<i8", 4),
    ]
)
"""A segment, in the order of the checksum's stretches."""

Packed = npt.NDArray[np.void]


@dataclass(frozen=True, eq=False)
class TaskReport:
    """Report of one task attempt: by topic its segments in :data:`_PACKED`, those of one partition
    in the order of writing; and the oldest timestamp, ms since 1970, that rows brought with them,
    by topic. A driver has a segment for each task and partition, hence no objects of Python's: 100
    bytes are 100 MB of a million."""

    partition_id: int
    task_attempt_id: int
    segments: Mapping[str, Packed]
    oldest_ms: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(
        partition_id: int,
        task_attempt_id: int,
        segments: Mapping[TopicPartition, Sequence[Segment]],
        oldest_ms: Mapping[str, int] = MappingProxyType({}),
    ) -> TaskReport:
        """Pack the segments of a task, where the task is."""
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for tp, parts in segments.items():
            rows.setdefault(tp.topic, []).extend(_row(tp.partition, part) for part in parts)
        packed = {topic: np.array(some, _PACKED) for topic, some in rows.items()}
        return TaskReport(partition_id, task_attempt_id, packed, dict(oldest_ms))

    def to_json(self) -> list[Any]:
        """Return the report as JSON values; offsets and sequences exact."""
        packed = [
            [topic, base64.b64encode(zlib.compress(one.tobytes(), 1)).decode()]
            for topic, one in self.segments.items()
        ]
        return [self.partition_id, self.task_attempt_id, packed, dict(self.oldest_ms)]

    @staticmethod
    def from_json(values: list[Any]) -> TaskReport:
        """Return the report that :meth:`to_json` made."""
        partition_id, task_attempt_id, packed, oldest_ms = values
        segments = {
            topic: np.frombuffer(zlib.decompress(base64.b64decode(text)), _PACKED)
            for topic, text in packed
        }
        return TaskReport(partition_id, task_attempt_id, segments, oldest_ms)


def _row(partition: int, part: Segment) -> tuple[Any, ...]:
    crcs, lengths = zip(*part.checksum.stretches, strict=True)
    return (
        partition,
        part.base_sequence,
        part.count,
        part.base_offset,
        part.last_offset,
        crcs,
        lengths,
    )


@dataclass(frozen=True, slots=True)
class PartitionOutput:
    """The records that one job, or several in a row, put into one partition; offsets inclusive."""

    count: int
    first_offset: int
    last_offset: int
    checksum: ContentChecksum


Written = Mapping[TopicPartition, PartitionOutput]


class Sent(NamedTuple):
    """One frame's records, acknowledged and checked; where the transaction's partitions go on; and
    by topic the oldest timestamp that rows brought with them, ms since 1970."""

    written: Written
    next_sequences: Mapping[TopicPartition, int]
    oldest_ms: Mapping[str, int]


def check(
    reports: Sequence[TaskReport],
    returned: Sequence[ReturnedLease],
    task_count: int,
    first_sequences: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Written:
    """Return the job's output, if ``reports`` and leases agree.

    Checked: every task reported once; every partition's leases form one chain from sequence 0, or
    from where the epoch's job before left it (``first_sequences``); each lease is filled exactly
    by the segments of the task that held it; offsets go up and never overlap; nothing was written
    outside a lease.

    :raises ReportMismatch: naming the task or partition; the batch is aborted and runs again.
    """
    check_each_task_once([report.partition_id for report in reports], task_count)
    topics = sorted(
        {topic for report in reports for topic in report.segments}
        | {lease.partition.topic for lease in returned}
    )
    places = _Places(topics)
    segments, wrote = _all_segments(reports, places)
    leased = _leased(returned, places)
    _one_chain_each(leased, places, first_sequences)
    order = _in_chains(segments, wrote, leased, places)
    return _summed(segments[order], wrote.place[order], places)


class _Places:
    """Partitions of several topics as numbers that sort as the partitions do."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self._numbers = {topic: number for number, topic in enumerate(topics)}

    def of(self, topic: str, partitions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        return np.asarray(partitions, np.int64) + (self._numbers[topic] << 32)

    def number(self, place: TopicPartition) -> int:
        return (self._numbers[place.topic] << 32) + place.partition

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition(self._topics[number >> 32], number & 0xFFFFFFFF)


class _Wrote(NamedTuple):
    """Partition and task attempt of each segment."""

    place: npt.NDArray[np.int64]
    attempt: npt.NDArray[np.int64]


class _Leased(NamedTuple):
    """The leases, in the order in which they were given back."""

    place: npt.NDArray[np.int64]
    attempt: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    next: npt.NDArray[np.int64]


def _all_segments(reports: Sequence[TaskReport], places: _Places) -> tuple[Packed, _Wrote]:
    parts = [
        (report.task_attempt_id, topic, one)
        for report in reports
        for topic, one in report.segments.items()
    ]
    segments = np.concatenate([one for _, _, one in parts]) if parts else np.empty(0, _PACKED)
    of_place = [places.of(topic, one["partition"]) for _, topic, one in parts]
    of_attempt = [np.full(len(one), attempt, np.int64) for attempt, _, one in parts]
    none = [np.empty(0, np.int64)]
    return segments, _Wrote(np.concatenate(of_place or none), np.concatenate(of_attempt or none))


def _leased(returned: Sequence[ReturnedLease], places: _Places) -> _Leased:
    values = (
        (places.number(t.partition), t.task.task_attempt_id, t.base_sequence, t.next_sequence)
        for t in returned
    )
    return _Leased(*np.fromiter(values, np.dtype((np.int64, 4)), len(returned)).T)


def _one_chain_each(
    leased: _Leased, places: _Places, first_sequences: Mapping[TopicPartition, int]
) -> None:
    """Check that each lease goes on where the one before it, or the job before, has ended."""
    order = np.argsort(leased.place, kind="stable")
    place, base = leased.place[order], leased.base[order]
    begins = np.flatnonzero(np.append([True], place[1:] != place[:-1])[: len(place)])
    should = np.append([0], leased.next[order])[: len(place)]
    should[begins] = [
        first_sequences.get(places.partition(number), 0) for number in place[begins].tolist()
    ]
    for wrong in np.flatnonzero(base != should)[:1].tolist():
        raise _mismatch(
            f"{places.partition(place[wrong])}: a lease began at sequence {base[wrong]}, not at "
            f"{should[wrong]}"
        )


def _in_chains(
    segments: Packed, wrote: _Wrote, leased: _Leased, places: _Places
) -> npt.NDArray[np.int64]:
    """Return the order of the segments by partition and lease. Each lease is filled exactly by the
    segments of the task that held it, in the order in which that wrote them."""
    by_task = np.lexsort((np.arange(len(segments)), wrote.attempt, wrote.place))
    returned = np.lexsort((np.arange(len(leased.place)), leased.attempt, leased.place))
    size = (leased.next - leased.base) % (MAX_SEQUENCE + 1)
    # a lease that sent nothing
    returned = returned[size[returned] > 0]
    count = segments["count"][by_task]
    for wrong in np.flatnonzero(count < 1)[:1].tolist():
        raise _mismatch(
            f"{places.partition(wrote.place[by_task[wrong]])}: a report of {count[wrong]} records"
        )
    # Both lists are in the same order, by partition and task. Laid end to end, record by record,
    # each segment is to lie within a turn of its own partition and task, and all returned are to
    # be covered.
    ends, lease_ends = np.cumsum(count), np.cumsum(size[returned])
    within = np.searchsorted(lease_ends, ends)
    nearest = np.minimum(within, len(returned) - 1)
    if len(segments) and not len(returned):
        raise _mismatch(
            f"records were written to {places.partition(wrote.place[by_task[0]])} outside any "
            "lease"
        )
    at = returned[nearest] if len(returned) else nearest
    begun = (ends - count) - (lease_ends[nearest] - size[at])
    fits = (
        (within < len(returned))
        & (leased.place[at] == wrote.place[by_task])
        & (leased.attempt[at] == wrote.attempt[by_task])
        & (begun >= 0)
        & ((leased.base[at] + begun) % (MAX_SEQUENCE + 1) == segments["base_sequence"][by_task])
    )
    for wrong in np.flatnonzero(~fits)[:1].tolist():
        segment = segments[by_task[wrong]]
        raise _mismatch(
            f"{places.partition(wrote.place[by_task[wrong]])}: {segment['count']} records from "
            f"sequence {segment['base_sequence']} on, of task attempt "
            f"{wrote.attempt[by_task[wrong]]}, are not what it leased"
        )
    _refuse_uncovered(ends, lease_ends, leased, returned, places)
    rank = np.empty(len(segments), np.int64)
    rank[by_task] = at
    return np.lexsort((np.arange(len(segments)), rank, wrote.place))


def _refuse_uncovered(
    ends: npt.NDArray[np.int64],
    lease_ends: npt.NDArray[np.int64],
    leased: _Leased,
    returned: npt.NDArray[np.int64],
    places: _Places,
) -> None:
    covered = int(ends[-1]) if len(ends) else 0
    if covered == (int(lease_ends[-1]) if len(lease_ends) else 0):
        return
    at = min(int(np.searchsorted(lease_ends, covered, side="right")), len(returned) - 1)
    missing = returned[at]
    raise _mismatch(
        f"{places.partition(leased.place[missing])}: no task reports all of a lease that was "
        f"given back, from sequence {leased.base[missing]} on"
    )


def _summed(segments: Packed, place: npt.NDArray[np.int64], places: _Places) -> Written:
    """Return each partition's chain as one output. Offsets go up, and hold the records."""
    if not len(segments):
        return {}
    begins = np.append([True], place[1:] != place[:-1])
    first, last = segments["base_offset"], segments["last_offset"]
    before = np.where(begins, -1, np.append([-1], last[:-1]))
    for wrong in np.flatnonzero((first <= before) | (last - first + 1 != segments["count"]))[
        :1
    ].tolist():
        raise _mismatch(
            f"{places.partition(place[wrong])}: offsets {first[wrong]} to {last[wrong]} cannot "
            f"hold {segments['count'][wrong]} records after offset {before[wrong]}"
        )
    starts = np.flatnonzero(begins)
    counts = np.add.reduceat(segments["count"], starts)
    ends = np.append(starts[1:], len(segments)) - 1
    crcs, lengths = combine_runs(segments["crcs"], segments["lengths"], np.cumsum(begins) - 1)
    return {
        places.partition(number): PartitionOutput(
            count, base, end, ContentChecksum(*map(Stretch, run_crcs, run_lengths))
        )
        for number, count, base, end, run_crcs, run_lengths in zip(
            place[starts].tolist(), counts.tolist(), first[starts].tolist(), last[ends].tolist(),
            crcs.tolist(), lengths.tolist(), strict=True,
        )
    }  # fmt: skip


def joined(first: Written, then: Written) -> dict[TopicPartition, PartitionOutput]:
    """Return two jobs' output, one after the other. :raises ReportMismatch: they overlap."""
    both = dict(first)
    for partition, added in then.items():
        before = first.get(partition)
        if before is None:
            both[partition] = added
            continue
        if added.first_offset <= before.last_offset:
            raise _mismatch(
                f"{partition}: offset {added.first_offset} was written after {before.last_offset}"
            )
        checksum = ContentChecksum.combine(before.checksum, added.checksum)
        both[partition] = PartitionOutput(
            before.count + added.count, before.first_offset, added.last_offset, checksum
        )
    return both


def kafka_output(written: Written) -> Output:
    """Return ``written`` as the ledger keeps it: kind ``kafka``, whose data is the manifest.

    ``{topic: {"partition": [count, first_offset, last_offset, checksum]}}``, offsets inclusive.
    Between them lie only this batch's records: a partition is written by one producer identity at
    a time, but other producers' records may stand between, so that the count may be smaller than
    the offsets say. ``checksum`` is
    :meth:`onceward.kafka.records.checksum.ContentChecksum.hexdigest` over the records in offset
    order.
    """
    manifest: dict[str, dict[str, list[Any]]] = {}
    for partition, part in sorted(written.items()):
        entry = [part.count, part.first_offset, part.last_offset, part.checksum.hexdigest()]
        manifest.setdefault(partition.topic, {})[str(partition.partition)] = entry
    return Output(KIND, 1, sum(part.count for part in written.values()), manifest)


def payload_bytes(written: Written) -> int:
    """Return the bytes of keys, values and headers, as they were before compression."""
    return sum(
        stretch.length for part in written.values() for stretch in part.checksum.stretches[1:]
    )


def _mismatch(what: str) -> ReportMismatch:
    return ReportMismatch(
        f"the tasks' reports do not add up: {what}",
        next_step="nothing; the batch is aborted and runs again under a new epoch. If it repeats, "
        "report it",
    )
