"""One output partition as it streams by: tallies of batches, and offsets.

Fed with stretches of records in offset order; keeps intervals and checksums, never records, so
that topics of any size can be checked. Pure but for the messages it is handed.

The content checksum of a manifest is recomputed from its definition alone: four running CRC-32C
over the records of one partition in offset order: key and value lengths (big-endian int32, -1 for
null), key bytes, value bytes, and each record's headers section (zigzag varint count, then for
each header varint key length, key, varint value length, value). Printed as
``llllllll-kkkkkkkk-vvvvvvvv-hhhhhhhh``.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onceward_verify.findings import Unavailable
from onceward_verify.ledger import OutputPart

try:
    from crc32c import crc32c
except ImportError as missing:  # pragma: no cover  it is a dependency of the package
    raise Unavailable(
        "the crc32c package is missing", next_step="pip install onceward"
    ) from missing

Headers = Sequence[tuple[str, "bytes | None"]]


class RunningChecksum:
    """Content checksum and number of the records fed so far."""

    __slots__ = ("_crcs", "count")

    def __init__(self) -> None:
        self.count = 0
        self._crcs = [0, 0, 0, 0]

    def feed(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Headers | None],
    ) -> None:
        """Add the next records, one item each."""
        lengths: Any = np.empty((len(keys), 2), ">i4")
        lengths[:, 0] = [-1 if key is None else len(key) for key in keys]
        lengths[:, 1] = [-1 if value is None else len(value) for value in values]
        sections = b"".join([headers_section(item) if item else b"\0" for item in headers])
        for index, data in enumerate((lengths.tobytes(), _join(keys), _join(values), sections)):
            self._crcs[index] = crc32c(data, self._crcs[index])
        self.count += len(keys)

    def hexdigest(self) -> str:
        """Return the checksum as manifests print it."""
        return "-".join(f"{crc:08x}" for crc in self._crcs)


def headers_section(headers: Headers) -> bytes:
    """Encode the headers of one record as Kafka's record format has them (KIP-82)."""
    section = varint(len(headers))
    for name, value in headers:
        data = name.encode()
        section += varint(len(data)) + data
        section += varint(-1) if value is None else varint(len(value)) + value
    return section


def varint(number: int) -> bytes:
    """Encode ``number`` as zigzag varint: seven bits a byte, least significant first."""
    rest = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest % 0x80 + 0x80)
        rest //= 0x80
    return bytes([*out, rest])


def _join(parts: Sequence[bytes | None]) -> bytes:
    return b"".join([part for part in parts if part])


Interval = tuple[int, int]
"""First and last offset, both inclusive."""


class Offsets:
    """Set of offsets that arrive in ascending order, kept as intervals."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self.count = 0

    def add(self, offsets: Any) -> None:
        """Add ``offsets``, an ascending numpy array, all above those added before."""
        if len(offsets) == 0:
            return
        self.count += len(offsets)
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        firsts = offsets[np.concatenate([[0], breaks])].tolist()
        lasts = offsets[np.concatenate([breaks, [len(offsets)]]) - 1].tolist()
        runs = list(zip(firsts, lasts, strict=True))
        if self.intervals and self.intervals[-1][1] + 1 == runs[0][0]:
            runs[0] = (self.intervals.pop()[0], runs[0][1])
        self.intervals += runs

    def __contains__(self, offset: int) -> bool:
        return next(iter(self.within(offset, offset)), None) is not None

    def around(self, offset: int) -> Interval | None:
        """Return the complete interval that ``offset`` lies in, if any."""
        index = bisect.bisect_right(self.intervals, offset, key=lambda run: run[0]) - 1
        if index < 0 or self.intervals[index][1] < offset:
            return None
        return self.intervals[index]

    def within(self, first: int, last: int) -> Iterator[Interval]:
        """Yield the intervals of this set between ``first`` and ``last``, cut to them."""
        index = bisect.bisect_left(self.intervals, first, key=lambda run: run[1])
        for run in itertools.islice(self.intervals, index, None):
            if run[0] > last:
                return
            yield max(run[0], first), min(run[1], last)

    def missing(self, first: int, last: int) -> list[Interval]:
        """Return the intervals of ``first`` to ``last`` that this set lacks."""
        holes, expected = [], first
        for begin, end in self.within(first, last):
            if begin > expected:
                holes.append((expected, begin - 1))
            expected = end + 1
        if expected <= last:
            holes.append((expected, last))
        return holes

    def count_within(self, first: int, last: int) -> int:
        """Return the number of offsets from ``first`` to ``last``."""
        return sum(end - begin + 1 for begin, end in self.within(first, last))


class PartitionLog:
    """Visible records of one partition, set against the parts of batches.

    :param parts: of this partition, by offset, without overlap.
    :param accounted_from: from this offset on every record must belong to one of ``parts``; None:
        nowhere.
    :param accounted_to: up to this offset, exclusive; what comes later may belong to batches not
        read yet.
    """

    def __init__(
        self, parts: Sequence[OutputPart], accounted_from: int | None, accounted_to: int
    ) -> None:
        self.parts = list(parts)
        self.tallies = [RunningChecksum() for _ in parts]
        self.visible = Offsets()
        self.unaccounted = Offsets()
        self._from = accounted_to if accounted_from is None else accounted_from
        self._to = accounted_to
        # A first interval that nothing lies in, so that every offset has a predecessor to look at.
        self._firsts = np.array([-2, *(part.first for part in parts)], np.int64)
        self._lasts = np.array([-2, *(part.last for part in parts)], np.int64)

    def feed(self, messages: Sequence[Any], offsets: Any) -> None:
        """Add the next visible records; ``offsets`` are theirs, as a numpy array."""
        for number, start, stop in self._runs(offsets):
            if number == 0:
                foreign = offsets[start:stop]
                self.unaccounted.add(foreign[(foreign >= self._from) & (foreign < self._to)])
            else:
                stretch = messages[start:stop]
                self.tallies[number - 1].feed(
                    [m.key() for m in stretch],
                    [m.value() for m in stretch],
                    [m.headers() for m in stretch],
                )
        self.visible.add(offsets)

    def stretches(self, offsets: Any) -> Iterator[tuple[OutputPart | None, int, int]]:
        """Yield each stretch of ``offsets`` in one part, or in none: part, begin and end."""
        for number, start, stop in self._runs(offsets):
            yield self.parts[number - 1] if number else None, start, stop

    def _runs(self, offsets: Any) -> Iterator[tuple[int, int, int]]:
        """Yield each stretch with the part's number from 1 on, 0 for none."""
        numbers = np.searchsorted(self._firsts, offsets, side="right") - 1
        numbers[offsets > self._lasts[numbers]] = 0
        cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
        for start, stop in itertools.pairwise([0, *cuts, len(offsets)]):
            yield int(numbers[start]), start, stop

    def part_at(self, offset: int) -> OutputPart | None:
        """Return the part that ``offset`` lies in, if any."""
        number = int(np.searchsorted(self._firsts, offset, side="right")) - 1
        return self.parts[number - 1] if number > 0 and offset <= self._lasts[number] else None
