"""DATE, TIME, DATETIME and TIMESTAMP as MySQL writes them. Pure; called by
:mod:`onceward.mysql.binlog.values`.

Their digits are put into a table of bytes, a column at a time, and never pass through a calendar:
months of 0, days of 0 and the thirtieth of February are values that a server may hold. Source:
MySQL ``sql-common/my_time.cc`` (``TIME_from_longlong_datetime_packed``,
``my_time_packed_from_binary``, ``my_timestamp_from_binary``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.refusals import BadCell, damaged
from onceward.mysql.binlog.rows import Bytes, Cells, Mask, Numbers
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values.bytes_at import BytesAt, validity

_TWO = np.frombuffer("".join(f"{n:02d}" for n in range(100)).encode(), "<u2")
_DATE_BYTES, _SECOND_BYTES = 10, 19
_DATE_PATTERN = np.frombuffer(b"0000-00-00", np.uint8)
_DATETIME_PATTERN = np.frombuffer(b"0000-00-00 00:00:00.000000", np.uint8)
_DAY_SECONDS = 86_400
_DATETIME_ZERO = 0x8000000000
_TIME_ZERO = 0x800000


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """The texts.

    :raises BadCell: a number in it is greater than any that a server writes.
    """
    if column.kind is Kind.TIME:
        return _times(table, column, at, cells)
    if column.kind is Kind.DATE:
        packed = at.words("<u4", cells.start).astype(np.int64) & 0xFFFFFF
        parts = [packed >> 9, packed >> 5 & 15, packed & 31]
        _require(table, column, parts[0] < 10_000, cells.null)
        digits = np.empty((len(packed), _DATE_BYTES), np.uint8)
        digits[:] = _DATE_PATTERN
    else:
        parts = _datetimes(at, cells) if column.kind is Kind.DATETIME else _timestamps(at, cells)
        fraction = _fraction(
            at, cells.start + (5 if column.kind is Kind.DATETIME else 4), column.fsp
        )
        fits = (
            (parts[0] < 10_000)
            & (parts[0] >= 0)
            & (parts[3] < 24)
            & (parts[4] < 60)
            & (parts[5] < 60)
        )
        fits &= fraction < 1_000_000
        _require(table, column, fits, cells.null)
        if cells.null is not None:
            fraction = np.where(cells.null, 0, fraction)
        digits = np.empty(
            (len(fraction), _SECOND_BYTES + (column.fsp and column.fsp + 1)), np.uint8
        )
        digits[:] = _DATETIME_PATTERN[: digits.shape[1]]
        _put_fraction(digits, _SECOND_BYTES + 1, fraction, column.fsp)
    if cells.null is not None:
        parts = [np.where(cells.null, 0, part) for part in parts]
    _put(digits, 0, parts[0] // 100)
    for place, part in zip((2, 5, 8, 11, 14, 17), (parts[0] % 100, *parts[1:]), strict=False):
        _put(digits, place, part)
    return _texts(digits, cells.null)


def _datetimes(at: BytesAt, cells: Cells) -> list[Numbers]:
    packed = at.big_endian(cells.start, 5) - _DATETIME_ZERO
    month = packed >> 22 & 0x1FFFF
    return [
        np.where(packed < 0, -1, month // 13), month % 13, packed >> 17 & 31,
        packed >> 12 & 31, packed >> 6 & 63, packed & 63,
    ]  # fmt: skip


def _timestamps(at: BytesAt, cells: Cells) -> list[Numbers]:
    """Of seconds since 1970, which 0 is no second of: it is 0000-00-00."""
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
    zero = seconds == 0
    return [np.where(zero, 0, part) for part in parts] if zero.any() else parts


def _fraction(at: BytesAt, start: Numbers, fsp: int) -> Numbers:
    """Millionths."""
    if not fsp:
        return np.zeros(len(start), np.int64)
    scale: int = 10 ** (6 - 2 * ((fsp + 1) // 2))
    return at.big_endian(start, (fsp + 1) // 2) * scale


def _put_fraction(digits: Bytes, place: int, millionths: Numbers, fsp: int) -> None:
    if not fsp:
        return
    pairs = (millionths // 10_000, millionths // 100 % 100, millionths % 100)
    for k in range(fsp // 2):
        _put(digits, place + 2 * k, pairs[k])
    if fsp % 2:
        digits[:, place + fsp - 1] = 48 + pairs[fsp // 2] // 10


def _put(digits: Bytes, place: int, numbers: Numbers) -> None:
    """Two digits of each."""
    digits[:, place : place + 2] = _TWO[numbers].view(np.uint8).reshape(-1, 2)


def _times(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """Hours may have a third digit and a sign, so the text has no fixed length."""
    places = (column.fsp + 1) // 2
    width = 3 + places
    # The fraction of a negative one is part of the same number: it has to be read as a whole.
    packed = at.big_endian(cells.start, width) - (_TIME_ZERO << 8 * places)
    negative = packed < 0
    packed = np.abs(packed)
    whole, fraction = packed >> 8 * places, packed & ((1 << 8 * places) - 1)
    fraction = fraction * 10 ** (6 - 2 * places)
    hours = whole >> 12 & 0x3FF
    fits = (hours < 1000) & (whole >> 6 & 63 < 60) & (whole & 63 < 60) & (fraction < 1_000_000)
    _require(table, column, fits, cells.null)
    if cells.null is not None:
        hours, fraction = np.where(cells.null, 0, hours), np.where(cells.null, 0, fraction)
    pattern = np.frombuffer(b"-000:00:00.000000", np.uint8)[: 10 + (column.fsp and column.fsp + 1)]
    digits = np.empty((len(packed), len(pattern)), np.uint8)
    digits[:] = pattern
    digits[:, 1] = 48 + hours // 100
    _put(digits, 2, hours % 100)
    _put(digits, 5, whole >> 6 & 63)
    _put(digits, 8, whole & 63)
    _put_fraction(digits, 11, fraction, column.fsp)
    kept = np.ones(digits.shape, np.bool_)
    kept[:, 0], kept[:, 1] = negative, hours >= 100
    ends = np.cumsum(kept.sum(axis=1), dtype=np.int32)
    return _of_bytes(np.concatenate([np.zeros(1, np.int32), ends]), digits[kept], cells.null)


def _texts(digits: Bytes, null: Mask | None) -> pa.Array:
    rows, width = digits.shape
    return _of_bytes(np.arange(0, (rows + 1) * width, width, dtype=np.int32), digits, null)


def _of_bytes(edges: npt.NDArray[np.int32], digits: Bytes, null: Mask | None) -> pa.Array:
    buffers = [validity(null), pa.py_buffer(edges), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), len(edges) - 1, buffers)


def _require(table: TableMap, column: Column, fits: Mask, null: Mask | None) -> None:
    if null is not None:
        fits = fits | null
    if not fits.all():
        what = (
            f"a {column.kind.value} of column {column.name!r} of {table.name} has a number "
            f"that none has"
        )
        raise BadCell(int(np.argmin(fits)), damaged(what))
