"""Kafka's variable-length integers for whole columns: zigzag, seven bits a byte, low bits first (``ByteUtils``).

A column of varints is kept as unsigned 64-bit *words* whose low bytes are the encoding, and a *width* in bytes for
each word. Fields join by shifting, so that several fields of a record become one word without a loop over records.
Called by ``records.layout`` and ``records.headers``; runs in executor tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

WORD_BYTES = 8
_SEVEN_BITS = np.uint64(0x7F)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of n records: its bytes and how many of them count. Arrays of n, or of 1 when all rows are equal."""

    words: Words
    widths: Int64s
    widest: int  # no width is larger; at most eight

    def then(self, following: Field) -> Field:
        """Both fields side by side, this one first. Their widest together must fit a word."""
        shifted = following.words << (self.widths << 3).view(np.uint64)
        return Field(self.words | shifted, self.widths + following.widths, self.widest + following.widest)

    def slice(self, start: int, end: int) -> Field:
        return Field(self.words[start:end], self.widths[start:end], self.widest)


def constant(value: int) -> Field:
    """The same varint in every row; ``value`` is signed and smaller than 2**55."""
    return varints(np.array([value], np.int64))


ZERO_BYTE = Field(np.zeros(1, np.uint64), np.ones(1, np.int64), 1)


def varints(values: Int64s) -> Field:
    """``values`` (at least one, between -2**55 and 2**55 - 1) as zigzag varints."""
    unsigned = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(unsigned.max())
    if largest < 0x80:
        return Field(unsigned, np.ones(len(values), np.int64), 1)
    words = unsigned & _SEVEN_BITS
    widths = np.ones(len(values), np.int64)
    for byte in range(1, width_of(largest)):
        rest = unsigned >> np.uint64(7 * byte)
        more = rest != 0
        widths += more
        words |= more.astype(np.uint64) << np.uint64(8 * byte - 1)
        words |= (rest & _SEVEN_BITS) << np.uint64(8 * byte)
    return Field(words, widths, width_of(largest))


def zigzag_width(value: int) -> int:
    """Bytes of the zigzag varint of one signed value."""
    return width_of(value << 1 if value >= 0 else ~(value << 1))


def width_of(unsigned: int) -> int:
    """Bytes of one unsigned value, seven bits each."""
    return max(1, (unsigned.bit_length() + 6) // 7)


def ascending(count: int) -> Field:
    """The varints of 0 to ``count - 1``: the offset deltas of a batch."""
    return _ascending_table(max(count - 1, 1023).bit_length()).slice(0, count)


@cache
def _ascending_table(bits: int) -> Field:
    # Every batch begins with the same offset deltas; the table is made once for each power of two.
    return varints(np.arange(1 << bits, dtype=np.int64))
