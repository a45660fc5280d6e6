"""Counts of how often the output names each source record, a window at a time.

Pure: fed by ``conservation`` with offsets. Memory is bounded by :func:`windows`, which cuts what
batches have read into pieces of so many offsets; a cell of one offset is a byte for its kind and a
byte for each count.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from onceward_verify.chain import Skipped
from onceward_verify.ledger import LedgerBatch, kafka_position

Rule = Literal["exactly", "at-most", "at-least"]
Source = tuple[str, int]
"""Topic and partition of a source."""

_IS_RECORD, _READ, _COMPLETE, _SKIPPED = 1, 2, 4, 8
_MANY = 255


@dataclass(frozen=True)
class BatchGroup:
    """One batch of the query, with its supplements: all that was written for what it read.

    ``spans``: for each source partition the first offset and the end (exclusive).
    """

    batch_id: int
    sequences: tuple[int, ...]
    spans: Mapping[Source, tuple[int, int]]
    supplements_alone: bool = False
    """The record of the batch itself is not there."""

    def __str__(self) -> str:
        return f"batch {self.batch_id} (sequence {self.sequences[0]})"


@dataclass(frozen=True, slots=True)
class Slice:
    """Piece of what one group has read; of no group (-1), if its batch was skipped."""

    group: int
    source: Source
    start: int
    end: int


_NO_GROUP = -1


@dataclass(frozen=True)
class Window:
    """Slices that are counted at one time. ``begins``: the groups that are met for the first
    time.
    """

    slices: tuple[Slice, ...]
    begins: frozenset[int]

    @property
    def groups(self) -> frozenset[int]:
        """Groups whose output has to be read."""
        return self.begins | {piece.group for piece in self.slices if piece.group != _NO_GROUP}


def group_batches(batches: Iterable[LedgerBatch]) -> list[BatchGroup]:
    """Group each batch with its supplements. Sources that are not Kafka's are left out.

    :raises ValueError: one source partition is read twice by the same query; names it.
    """
    groups: list[BatchGroup] = []
    for batch in batches:
        if batch.supplement and groups and groups[-1].batch_id == batch.batch_id:
            last = groups[-1]
            groups[-1] = BatchGroup(
                last.batch_id,
                (*last.sequences, batch.sequence),
                last.spans,
                last.supplements_alone,
            )
        else:
            groups.append(
                BatchGroup(batch.batch_id, (batch.sequence,), _spans(batch), batch.supplement)
            )
    return groups


def _spans(batch: LedgerBatch) -> dict[Source, tuple[int, int]]:
    spans: dict[Source, tuple[int, int]] = {}
    for span in batch.spans:
        begins, ends = kafka_position(span.start) or {}, kafka_position(span.end) or {}
        for source, end in ends.items():
            if source in spans:
                raise ValueError(f"{source[0]}-{source[1]}")
            # A partition that is new is read from its beginning
            start = begins.get(source, 0)
            spans[source] = (start, max(start, end))
    return spans


def windows(
    groups: Sequence[BatchGroup], skipped: Iterable[Skipped], cells: int
) -> Iterator[Window]:
    """Yield everything that was read, each group in order, by at most ``cells`` cells."""
    pieces: list[Slice] = []
    begins: set[int] = set()
    extents: dict[Source, tuple[int, int]] = {}
    size = 0
    for group, source, start, end in _ranges(groups, skipped):
        if source is None:
            # Nothing of Kafka was read, and there may be output all the same.
            begins.add(group)
            continue
        for cut in range(start, end, cells):
            piece = Slice(group, source, cut, min(end, cut + cells))
            low, high = extents.get(source, (piece.start, piece.start))
            wider = min(low, piece.start), max(high, piece.end)
            size += (wider[1] - wider[0]) - (high - low)
            if pieces and size > cells:
                yield Window(tuple(pieces), frozenset(begins))
                pieces, begins, extents = [], set(), {}
                wider, size = (piece.start, piece.end), piece.end - piece.start
            extents[source] = wider
            pieces.append(piece)
            if group != _NO_GROUP and cut == start and source == next(_sources(groups[group])):
                begins.add(group)
    yield Window(tuple(pieces), frozenset(begins))


def _ranges(
    groups: Sequence[BatchGroup], skipped: Iterable[Skipped]
) -> Iterator[tuple[int, Source | None, int, int]]:
    for number, group in enumerate(groups):
        read = False
        for source in _sources(group):
            read = True
            yield number, source, *group.spans[source]
        if not read:
            yield number, None, 0, 0
    for of_query in skipped:
        for source, first, last in of_query.ranges:
            yield _NO_GROUP, source, first, last + 1


def _sources(group: BatchGroup) -> Iterator[Source]:
    return (source for source, (start, end) in group.spans.items() if start < end)


@dataclass
class WindowResult:
    """Result of a window, in numbers of records.

    Stretches are (source, first, last), offsets inclusive.
    """

    inputs: int = 0
    """Committed records that batches have read."""
    skipped: int = 0
    """Committed records that only skipped batches have read."""
    named: list[int] = field(default_factory=list)
    """Inputs that are named, per count."""
    never: list[int] = field(default_factory=list)
    """Inputs that nothing names, as far as that can be judged."""
    again: list[int] = field(default_factory=list)
    """Inputs that are named more than once."""
    unjudged: list[int] = field(default_factory=list)
    """Inputs that nothing names, where some of the output is missing."""
    lost: list[tuple[int, Source, int, int]] = field(default_factory=list)
    """Stretches that nothing names, with the count that shows it."""
    repeated: list[tuple[int, Source, int, int, int]] = field(default_factory=list)
    """Stretches named more than once, and how often at most."""
    strangers: list[tuple[Source, int, int]] = field(default_factory=list)
    """Stretches that are named and are no committed records."""
    unknown: list[tuple[Source, int, int]] = field(default_factory=list)
    """Stretches that may or may not be records: expired, truncated, compacted."""


class Tally:
    """Cells of one window.

    :param counts: number of independent counts (one in all, or one for each output topic).
    """

    def __init__(self, window: Window, groups: Sequence[BatchGroup], counts: int) -> None:
        self._window = window
        self._groups = groups
        self._counts = counts
        self._slices: dict[Source, list[Slice]] = defaultdict(list)
        self._own: dict[tuple[int, Source], list[Slice]] = defaultdict(list)
        for piece in window.slices:
            self._slices[piece.source].append(piece)
            self._own[piece.group, piece.source].append(piece)
        self.extents: dict[Source, tuple[int, int]] = {}
        """Per source partition the first offset and the end (exclusive) of what is counted."""
        self._kinds: dict[Source, Any] = {}
        self._named: dict[Source, Any] = {}
        for source, pieces in self._slices.items():
            pieces.sort(key=lambda piece: piece.start)
            low, high = pieces[0].start, max(piece.end for piece in pieces)
            self.extents[source] = low, high
            self._kinds[source] = np.zeros(high - low, np.uint8)
            self._named[source] = np.zeros((counts, high - low), np.uint8)

    def add_records(self, source: Source, offsets: Any) -> None:
        """Mark ``offsets`` (a numpy array, within the extent) as committed records."""
        self._kinds[source][offsets - self.extents[source][0]] |= _IS_RECORD

    def add_names(self, count: int, group: int, source: Source, offsets: Any) -> tuple[Any, Any]:
        """Count ``offsets`` of ``source`` as named by output records of ``group``.

        Return two masks over ``offsets``: those that the group has not read (only in the window in
        which it begins, so that they come up once), and those that were named before, or twice
        here.
        """
        start, end = self._groups[group].spans.get(source, (0, 0))
        outside = (offsets < start) | (offsets >= end)
        mine = np.zeros(len(offsets), bool)
        for piece in self._own.get((group, source), ()):
            mine |= (offsets >= piece.start) & (offsets < piece.end)
        again = np.zeros(len(offsets), bool)
        if mine.any():
            cells, places, times = np.unique(
                offsets[mine] - self.extents[source][0], return_inverse=True, return_counts=True
            )
            row = self._named[source][count]
            total = np.minimum(row[cells] + times, _MANY)
            row[cells] = total
            again[mine] = total[places] > 1
        if group not in self._window.begins:
            outside[:] = False
        return outside, again

    def summarize(
        self,
        complete: frozenset[int],
        ranges: Mapping[Source, tuple[int, int]],
        compacted: frozenset[Source],
    ) -> WindowResult:
        """Return the window's result.

        :param complete: groups whose output is all there, so that what nothing names is lost.
        :param ranges: for each source partition from where to where (exclusive) its records were
            read.
        :param compacted: source partitions of which records may be gone in between.
        """
        outcome = WindowResult(named=[0] * self._counts, never=[0] * self._counts)
        outcome.again, outcome.unjudged = [0] * self._counts, [0] * self._counts
        for source, pieces in self._slices.items():
            kinds, base = self._kinds[source], self.extents[source][0]
            for piece in pieces:
                kind = _READ | _COMPLETE if piece.group in complete else _READ
                kind = _SKIPPED if piece.group == _NO_GROUP else kind
                kinds[piece.start - base : piece.end - base] |= kind
            within = np.zeros(len(kinds), bool)
            first, end = ranges.get(source, (0, 0))
            within[max(0, first - base) : max(0, end - base)] = True
            self._evaluate(source, within, source in compacted, outcome)
        return outcome

    def _evaluate(
        self, source: Source, within: Any, compacted: bool, outcome: WindowResult
    ) -> None:
        kinds, base = self._kinds[source], self.extents[source][0]
        is_record, read = (kinds & _IS_RECORD) != 0, (kinds & _READ) != 0
        complete = is_record & ((kinds & _COMPLETE) != 0)
        inputs = is_record & read
        outcome.inputs += int(inputs.sum())
        # Not all that is not read was skipped: between two slices lie offsets of another window.
        outcome.skipped += int((is_record & ((kinds & _SKIPPED) != 0) & ~read).sum())
        by_any = self._named[source].any(axis=0)
        if not compacted:
            outcome.strangers += [
                (source, *run) for run in _runs(by_any & within & ~is_record, base)
            ]
        unknown = read & ~is_record & ~by_any if compacted else read & ~within
        outcome.unknown += [(source, *run) for run in _runs(unknown, base)]
        for count, row in enumerate(self._named[source]):
            never, again = row == 0, row > 1
            outcome.named[count] += int((inputs & ~never).sum())
            outcome.never[count] += int((complete & never).sum())
            outcome.unjudged[count] += int((inputs & ~complete & never).sum())
            outcome.again[count] += int(again.sum())
            outcome.lost += [(count, source, *run) for run in _runs(complete & never, base)]
            for first, last in _runs(again, base):
                most = int(row[first - base : last - base + 1].max())
                outcome.repeated.append((count, source, first, last, most))

    def reader_at(self, source: Source, offset: int) -> BatchGroup | None:
        """Return the group that has read ``offset``, if any."""
        pieces = self._slices[source]
        number = bisect.bisect_right(pieces, offset, key=lambda piece: piece.start)
        for piece in reversed(pieces[:number]):
            if piece.start <= offset < piece.end:
                return None if piece.group == _NO_GROUP else self._groups[piece.group]
        return None


def _runs(mask: Any, base: int) -> list[tuple[int, int]]:
    """Return the stretches of ``mask``, as first and last offset."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(base + first, base + end - 1) for first, end in pairs]
