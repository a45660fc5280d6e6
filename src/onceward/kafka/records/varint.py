"""Kafka's variable-length integers for whole columns: zigzag, seven bits a byte, low bits first
(``ByteUtils``).

A column of varints is kept as unsigned 64-bit *words* whose low bytes are the encoding, and a
*width* in bytes for each word. Fields join by shifting, so that several fields of a record become
one word without a loop over records. Called by ``kafka.records.layout`` and
``kafka.records.batch``; runs in executor tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

WORD_BYTES = 8
_SEVEN_BITS = np.uint64(0x7F)
# Varints of -8192 to 8191 take two bytes at most, and come from a table
_NEAR = 1 << 13
_ONE_ROW = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of n records: its bytes and how many of them count. Both arrays have n elements,
    or 1 when it is the same in all rows: NumPy broadcasts it."""

    words: Words
    widths: Int64s
    # No width is larger; eight at most
    widest: int

    def then(self, following: Field) -> Field:
        """Join two fields side by side, this one first. Their widest together must fit a word."""
        shifted = following.words << (self.widths << 3).view(np.uint64)
        return Field(
            self.words | shifted, self.widths + following.widths, self.widest + following.widest
        )

    def slice(self, start: int, end: int) -> Field:
        """Return rows ``start`` up to ``end``."""
        words = self.words if len(self.words) == 1 else self.words[start:end]
        widths = self.widths if len(self.widths) == 1 else self.widths[start:end]
        return Field(words, widths, self.widest)


def varints(values: Int64s) -> Field:
    """Return ``values`` (at least one, between -2**55 and 2**55 - 1) as zigzag varints."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return constant(low)
    if low >= -_NEAR and high < _NEAR:
        return _near(values, low, high)
    return _computed(values)


@lru_cache(maxsize=1024)
def constant(value: int) -> Field:
    """Return the varint of ``value`` in every row."""
    return _computed(np.array([value], np.int64))


@lru_cache(maxsize=32)
def ascending(count: int) -> Field:
    """Return the varints of 0 to ``count - 1``: the offset deltas of a batch."""
    return _ascending_table(max(count - 1, 1023).bit_length()).slice(0, count)


def one_after_the_other(fields: Sequence[Field]) -> Field:
    """Return the rows of one field after the other; each field has an element for each row."""
    if len(fields) == 1:
        return fields[0]
    return Field(
        np.concatenate([field.words for field in fields]),
        np.concatenate([field.widths for field in fields]),
        max(field.widest for field in fields),
    )


def zigzag_width(value: int) -> int:
    """Return bytes of the zigzag varint of one signed value."""
    return _width(value << 1 if value >= 0 else ~(value << 1))


def _near(values: Int64s, low: int, high: int) -> Field:
    table = _near_table()
    # negative values index from the end, where the table has them
    words = table.words.take(values)
    widest = max(zigzag_width(low), zigzag_width(high))
    if widest == 1 or low > 63 or high < -64:
        return Field(words, _ONE_ROW * widest, widest)
    return Field(words, table.widths.take(values), widest)


@cache
def _near_table() -> Field:
    return _computed(np.concatenate([np.arange(_NEAR), np.arange(-_NEAR, 0)]))


@cache
def _ascending_table(bits: int) -> Field:
    return _computed(np.arange(1 << bits, dtype=np.int64))


def _computed(values: Int64s) -> Field:
    unsigned = ((values << 1) ^ (values >> 63)).view(np.uint64)
    words = unsigned & _SEVEN_BITS
    widths = np.ones(len(values), np.int64)
    widest = _width(int(unsigned.max()))
    for byte in range(1, widest):
        rest = unsigned >> np.uint64(7 * byte)
        more = rest != 0
        widths += more
        words |= more.astype(np.uint64) << np.uint64(8 * byte - 1)
        words |= (rest & _SEVEN_BITS) << np.uint64(8 * byte)
    return Field(words, widths, widest)


def _width(unsigned: int) -> int:
    return max(1, (unsigned.bit_length() + 6) // 7)


ZERO_BYTE = constant(0)
