"""Cells of fixed width to Arrow columns: integers, floats, years, decimals, dates and times. Pure;
called by :mod:`values`.

A decimal is groups of nine digits, four bytes each and big-endian, on both sides of the point; the
outermost are smaller. The first bit is inverted, and all bits of a negative one (MySQL
``strings/decimal.cc``, ``bin2decimal``).

Dates and times become MySQL's text: their digits are put into a table of bytes, a column at a
time, and never pass through a calendar: months of 0, days of 0 and the thirtieth of February are
values that a server may hold (``sql-common/my_time.cc``: ``TIME_from_longlong_datetime_packed``,
``my_time_packed_from_binary``, ``my_timestamp_from_binary``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.mysql.binlog.column_types import ColumnKind, TableColumn, decimal_bytes
from onceward.mysql.binlog.event import InvalidCell, damaged_data
from onceward.mysql.binlog.rows import Bytes, Cells, Mask, Numbers, RowData
from onceward.mysql.binlog.table_map import TableMap


class CellBytes:
    """Views of a block in which each byte is the first of a word: a gather of those is one load a
    cell, aligned or not. A block has spare bytes at its end, so that the last cell can be read
    this way, too.
    """

    def __init__(self, block: RowData) -> None:
        self.data = block.data
        self._views: dict[str, npt.NDArray[Any]] = {}

    def words(self, kind: str, start: Numbers) -> npt.NDArray[Any]:
        """Return a word at each start.

        :param kind: numpy's type, such as ``"<u4"``.
        """
        view = self._views.get(kind)
        if view is None:
            dtype = np.dtype(kind)
            shape = (len(self.data) - dtype.itemsize + 1,)
            view = self._views[kind] = np.ndarray(shape, dtype, buffer=self.data, strides=(1,))
        found: npt.NDArray[Any] = view[start]
        return found

    def big_endian(self, start: Numbers, width: int) -> Numbers:
        """Return unsigned numbers of ``width`` bytes, up to 7."""
        if width == 1:
            found: Numbers = self.words("u1", start).astype(np.int64)
        elif width <= 4:
            found = self.words(">u4", start).astype(np.int64) >> (32 - 8 * width)
        else:
            found = (self.words(">u8", start) >> np.uint64(64 - 8 * width)).astype(np.int64)
        return found

    def binary(self, cells: Cells) -> pa.Array:
        """Return the cells as one Arrow array. Cells and the gaps between them are one array over
        the block; every other of it is taken, which Arrow does natively.
        """
        rows = len(cells.start)
        if not rows:
            return pa.array([], pa.binary())
        assert cells.length is not None  # noqa: S101  a type with length bytes
        edges = np.empty(2 * rows, np.int32)
        edges[::2] = cells.start
        edges[1::2] = cells.start + cells.length
        both = pa.Array.from_buffers(
            pa.binary(), 2 * rows - 1, [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        )
        return both.take(pa.array(np.arange(0, 2 * rows, 2), mask=cells.null))

    def slices(self, cells: Cells) -> list[bytes | None]:
        """Return the cells as Python's bytes, for types that are decoded one by one."""
        assert cells.length is not None  # noqa: S101  a type with length bytes
        data = self.data
        null = [False] * len(cells.start) if cells.null is None else cells.null.tolist()
        stop = (cells.start + cells.length).tolist()
        return [
            None if missing else data[first:last]
            for first, last, missing in zip(cells.start.tolist(), stop, null, strict=True)
        ]


def validity(null: Mask | None) -> pa.Buffer | None:
    """Return Arrow's validity bitmap."""
    return None if null is None else pa.array(~null).buffers()[1]


_MOST_DIGITS_64 = 18
_FIRST_YEAR = 1900
_LIMB_BITS = np.uint64(32)
_LIMB = np.uint64(0xFFFFFFFF)


def number_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Decode integers, floats or years.

    :raises InvalidCell: a float is not finite.
    """
    if column.kind is ColumnKind.YEAR:
        year = at.words("u1", cells.start).astype(np.uint16)
        return pa.array(
            np.where(year == 0, 0, year + _FIRST_YEAR).astype(np.uint16), mask=cells.null
        )
    if column.kind is ColumnKind.FLOAT:
        floats = at.words(f"<f{column.width}", cells.start)
        check_cells(np.isfinite(floats), cells.null, f"{_describe(table, column)} is none")
        return pa.array(floats, mask=cells.null, from_pandas=False)
    if column.width != 3:
        return pa.array(
            at.words(f"<{'u' if column.unsigned else 'i'}{column.width}", cells.start),
            mask=cells.null,
        )
    if column.unsigned:
        return pa.array(at.words("<u4", cells.start) & np.uint32(0xFFFFFF), mask=cells.null)
    return pa.array(at.words("<i4", cells.start) << np.int32(8) >> np.int32(8), mask=cells.null)


def decimal_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Decode decimals, as their digits without the point: Arrow knows the scale.

    :raises InvalidCell: digits are none.
    """
    negative = (at.words("u1", cells.start) & 128) == 0
    groups = _digit_groups(column, at, cells, negative)
    for digits, group in groups:
        check_cells(group < 10**digits, cells.null, f"{_describe(table, column)} is none")
    if column.precision <= _MOST_DIGITS_64:
        value = np.zeros(len(cells.start), np.int64)
        for digits, group in groups:
            value = value * 10**digits + group
        value = np.where(negative, -value, value)
        wide = np.empty((len(value), 2), np.int64)
        wide[:, 0], wide[:, 1] = value, value >> 63
        return _array_from_words(pa.decimal128(column.precision, column.scale), wide, cells.null)
    make = pa.decimal128 if column.precision <= 38 else pa.decimal256
    kind = make(column.precision, column.scale)
    return _array_from_words(kind, _limbs(groups, negative, kind.bit_width // 32), cells.null)


def _digit_groups(
    column: TableColumn, at: CellBytes, cells: Cells, negative: Mask
) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Return the number of digits and their value for each group, from the left."""
    whole, found, place = column.precision - column.scale, [], 0
    for digits in (whole % 9, *[9] * (whole // 9), *[9] * (column.scale // 9), column.scale % 9):
        if not (width := decimal_bytes(digits)):
            continue
        group = at.big_endian(cells.start + place, width)
        if place == 0:
            group ^= 1 << (8 * width - 1)
        found.append((digits, group ^ np.where(negative, (1 << 8 * width) - 1, 0)))
        place += width
    return found


def _limbs(
    groups: list[tuple[int, npt.NDArray[np.int64]]], negative: Mask, count: int
) -> npt.NDArray[Any]:
    """Return numbers of more than 64 bits in limbs of 32, as two's complement."""
    limbs = np.zeros((len(negative), count), np.uint64)
    for digits, group in groups:
        carry = group.astype(np.uint64)
        for place in range(count):
            product = limbs[:, place] * np.uint64(10**digits) + carry
            limbs[:, place], carry = product & _LIMB, product >> _LIMB_BITS
    carry = negative.astype(np.uint64)
    flip = np.where(negative, _LIMB, np.uint64(0))
    for place in range(count):
        limb = (limbs[:, place] ^ flip) + carry
        limbs[:, place], carry = limb & _LIMB, limb >> _LIMB_BITS
    return limbs.astype(np.uint32)


def _array_from_words(kind: pa.DataType, words: npt.NDArray[Any], null: Mask | None) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(words), [validity(null), pa.py_buffer(np.ascontiguousarray(words))]
    )


def _describe(table: TableMap, column: TableColumn) -> str:
    return f"a {column.kind.value} of column {column.name!r} of {table.name}"


def check_cells(fits: Mask, null: Mask | None, description: str) -> None:
    """Check that all values fit, but those of nulls."""
    if not fits.all():
        fits = fits if null is None else fits | null
        if not fits.all():
            raise InvalidCell(int(np.argmin(fits)), damaged_data(description))


_PAIRS = np.frombuffer("".join(f"{n:02d}" for n in range(100)).encode(), "<u2")
_DATE_BYTES, _SECOND_BYTES = 10, 19
_DATE_PATTERN = np.frombuffer(b"0000-00-00", np.uint8)
_DATETIME_PATTERN = np.frombuffer(b"0000-00-00 00:00:00.000000", np.uint8)
_DAY_SECONDS = 86_400
_NO_NUMBER = " has a number that none has"
_DATETIME_ZERO = 0x8000000000
_TIME_ZERO = 0x800000


def temporal_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Decode dates and times to texts.

    :raises InvalidCell: a number in it is greater than any that a server writes.
    """
    if column.kind is ColumnKind.TIME:
        return _time_array(table, column, at, cells)
    if column.kind is ColumnKind.DATE:
        value = at.words("<u4", cells.start).astype(np.int64) & 0xFFFFFF
        parts = [value >> 9, value >> 5 & 15, value & 31]
        check_cells(parts[0] < 10_000, cells.null, f"{_describe(table, column)}{_NO_NUMBER}")
        digits = np.empty((len(value), _DATE_BYTES), np.uint8)
        digits[:] = _DATE_PATTERN
    else:
        is_datetime = column.kind is ColumnKind.DATETIME
        fraction = _fraction(at, cells.start + (5 if is_datetime else 4), column.fsp)
        parts = _datetimes(at, cells) if is_datetime else _timestamps(at, cells, fraction)
        fits = (parts[0] < 10_000) & (parts[0] >= 0) & (fraction < 1_000_000)
        fits &= (parts[3] < 24) & (parts[4] < 60) & (parts[5] < 60)
        check_cells(fits, cells.null, f"{_describe(table, column)}{_NO_NUMBER}")
        if cells.null is not None:
            fraction = np.where(cells.null, 0, fraction)
        digits = np.empty(
            (len(fraction), _SECOND_BYTES + (column.fsp and column.fsp + 1)), np.uint8
        )
        digits[:] = _DATETIME_PATTERN[: digits.shape[1]]
        _put_fraction(digits, _SECOND_BYTES + 1, fraction, column.fsp)
    if cells.null is not None:
        parts = [np.where(cells.null, 0, part) for part in parts]
    _put_pair(digits, 0, parts[0] // 100)
    for place, part in zip((2, 5, 8, 11, 14, 17), (parts[0] % 100, *parts[1:]), strict=False):
        _put_pair(digits, place, part)
    rows, width = digits.shape
    edges = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return _string_array(edges, digits, cells.null)


def _datetimes(at: CellBytes, cells: Cells) -> list[Numbers]:
    value = at.big_endian(cells.start, 5) - _DATETIME_ZERO
    month = value >> 22 & 0x1FFFF
    return [
        np.where(value < 0, -1, month // 13), month % 13, value >> 17 & 31,
        value >> 12 & 31, value >> 6 & 63, value & 63,
    ]  # fmt: skip


def _timestamps(at: CellBytes, cells: Cells, fraction: Numbers) -> list[Numbers]:
    """Split seconds since 1970; 0 without a fraction stands for 0000-00-00."""
    seconds = at.big_endian(cells.start, 4)
    days = (seconds // _DAY_SECONDS).astype("M8[D]")
    months = days.astype("M8[M]")
    day = (days - months.astype("M8[D]")).astype(np.int64) + 1
    month = months.astype(np.int64)
    seconds_of_day = seconds % _DAY_SECONDS
    parts = [
        1970 + month // 12, month % 12 + 1, day,
        seconds_of_day // 3600, seconds_of_day // 60 % 60, seconds_of_day % 60,
    ]  # fmt: skip
    zero = (seconds == 0) & (fraction == 0)
    return [np.where(zero, 0, part) for part in parts] if zero.any() else parts


def _fraction(at: CellBytes, start: Numbers, fsp: int) -> Numbers:
    """Return the fraction in microseconds."""
    if not fsp:
        return np.zeros(len(start), np.int64)
    scale: int = 10 ** (6 - 2 * ((fsp + 1) // 2))
    return at.big_endian(start, (fsp + 1) // 2) * scale


def _put_fraction(digits: Bytes, place: int, millionths: Numbers, fsp: int) -> None:
    if not fsp:
        return
    pairs = (millionths // 10_000, millionths // 100 % 100, millionths % 100)
    for k in range(fsp // 2):
        _put_pair(digits, place + 2 * k, pairs[k])
    if fsp % 2:
        digits[:, place + fsp - 1] = 48 + pairs[fsp // 2] // 10


def _put_pair(digits: Bytes, place: int, numbers: Numbers) -> None:
    """Write two digits of each."""
    digits[:, place : place + 2] = _PAIRS[numbers].view(np.uint8).reshape(-1, 2)


def _time_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Decode TIME: hours may have a third digit and a sign, so the text has no fixed length."""
    places = (column.fsp + 1) // 2
    width = 3 + places
    # The fraction of a negative one is part of the same number: it has to be read as a whole.
    value = at.big_endian(cells.start, width) - (_TIME_ZERO << 8 * places)
    negative = value < 0
    value = np.abs(value)
    whole, fraction = value >> 8 * places, value & ((1 << 8 * places) - 1)
    fraction = fraction * 10 ** (6 - 2 * places)
    hours = whole >> 12 & 0x3FF
    fits = (hours < 1000) & (whole >> 6 & 63 < 60) & (whole & 63 < 60) & (fraction < 1_000_000)
    check_cells(fits, cells.null, f"{_describe(table, column)}{_NO_NUMBER}")
    if cells.null is not None:
        hours, fraction = np.where(cells.null, 0, hours), np.where(cells.null, 0, fraction)
    pattern = np.frombuffer(b"-000:00:00.000000", np.uint8)[: 10 + (column.fsp and column.fsp + 1)]
    digits = np.empty((len(value), len(pattern)), np.uint8)
    digits[:] = pattern
    digits[:, 1] = 48 + hours // 100
    _put_pair(digits, 2, hours % 100)
    _put_pair(digits, 5, whole >> 6 & 63)
    _put_pair(digits, 8, whole & 63)
    _put_fraction(digits, 11, fraction, column.fsp)
    visible = np.ones(digits.shape, np.bool_)
    visible[:, 0], visible[:, 1] = negative, hours >= 100
    ends = np.cumsum(visible.sum(axis=1), dtype=np.int32)
    return _string_array(
        np.concatenate([np.zeros(1, np.int32), ends]), digits[visible], cells.null
    )


def _string_array(edges: npt.NDArray[np.int32], digits: Bytes, null: Mask | None) -> pa.Array:
    buffers = [validity(null), pa.py_buffer(edges), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), len(edges) - 1, buffers)
