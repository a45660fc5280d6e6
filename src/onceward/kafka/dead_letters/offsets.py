"""A set of offsets of one partition, as few stretches as it has, and its text in the ledger. Pure.

Used by :mod:`onceward.kafka.dead_letters.ledger` for what has been replayed. What is replayed in
order is one stretch, however long; each letter that a filter leaves out in between costs one more.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_left, bisect_right

import numpy as np

_MOST_BYTES = 1 << 30


class OffsetSet:
    """Stretches ``[from, to)`` that neither touch nor overlap, by their borders, ascending.
    Changed in place.
    """

    def __init__(self, borders: list[int] | None = None) -> None:
        self._borders = borders or []

    def __contains__(self, offset: int) -> bool:
        return bisect_right(self._borders, offset) % 2 == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self._borders == other._borders

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __bool__(self) -> bool:
        return bool(self._borders)

    def __len__(self) -> int:
        """How many stretches."""
        return len(self._borders) // 2

    def next_outside(self, offset: int) -> int:
        """``offset`` itself, or where the stretch that it is in ends."""
        place = bisect_right(self._borders, offset)
        return self._borders[place] if place % 2 else offset

    def add(self, start: int, end: int) -> None:
        """All of ``[start, end)``."""
        if start >= end:
            return
        low, high = bisect_left(self._borders, start), bisect_right(self._borders, end)
        self._borders[low:high] = ([start] if low % 2 == 0 else []) + (
            [end] if high % 2 == 0 else []
        )

    def forget_below(self, offset: int) -> None:
        """What lies before ``offset`` is asked for no more."""
        place = bisect_right(self._borders, offset)
        self._borders[:place] = [offset] if place % 2 else []

    def copy(self) -> OffsetSet:
        return OffsetSet(list(self._borders))

    def to_text(self) -> str:
        """Distances of the borders, little-endian and 64 bits wide, deflated, in base64: two to
        three bits an offset where every other one is in it, and next to nothing for long
        stretches.
        """
        distances = np.diff(np.asarray(self._borders, np.int64), prepend=0).astype("<i8")
        return base64.b64encode(zlib.compress(distances.tobytes(), 6)).decode()

    @staticmethod
    def from_text(text: str) -> OffsetSet:
        """The set that :meth:`to_text` wrote. :raises ValueError: it is none."""
        try:
            unpacking = zlib.decompressobj()
            packed = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"no set of offsets: {error}") from None
        if not unpacking.eof or len(packed) % 16:
            raise ValueError("no set of offsets: it is cut off")
        borders = np.cumsum(np.frombuffer(packed, "<i8")).tolist()
        if any(after <= before for before, after in zip([-1, *borders], borders, strict=False)):
            raise ValueError("no set of offsets: it does not ascend")
        return OffsetSet(borders)
