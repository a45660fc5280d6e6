"""The values that Debezium writes to JSON in another form than MySQL does. Pure; called by
:mod:`texts`.

With ``time.precision.mode=adaptive_time_microseconds``, ``decimal.handling.mode=string`` and
``binary.handling.mode=base64``: a DATE is days since 1970, a DATETIME milliseconds or, from four
digits of its fraction on, microseconds, as if it were in UTC, a TIME microseconds, a TIMESTAMP a
text in UTC with a ``T`` and a ``Z``, bits are turned around. A date that no calendar has is an
error here, where Debezium writes null or 1970: neither can be told from a value.

Source: Debezium's documentation of its MySQL connector, "Data type mappings".
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import OncewardError
from onceward.mysql.binlog.column import TEMPORAL, Column, Kind
from onceward.mysql.binlog.refusals import BadCell, unreadable
from onceward.mysql.binlog.rows import Numbers
from onceward.mysql.binlog.table_map import TableMap

CONVERTED = TEMPORAL
_SECOND_BYTES = 19
_MILLISECOND_DIGITS = 3
_HOURS_DIGITS = 3


def in_debezium(table: TableMap, column: Column, array: pa.Array) -> tuple[pa.Array, bool]:
    """The texts of a column of moments, and whether they go between quotes.

    :raises BadCell: one that is none.
    """
    null = None if not array.null_count else array.is_null().to_numpy(zero_copy_only=False)
    if column.kind is Kind.TIME:
        return _numbers(_time(column, array), null), False
    digits = _digits(array, "0001-01-01 00:00:00.000000"[: _width(column)])
    days = _days(table, column, digits)
    if column.kind is Kind.DATE:
        return _numbers(days, null), False
    if column.kind is Kind.TIMESTAMP:
        # Written as they are but for these two; a null stays one.
        parts = [
            pc.utf8_slice_codeunits(array, 0, 10),
            "T",
            pc.utf8_slice_codeunits(array, 11),
            "Z",
            "",
        ]
        return pc.binary_join_element_wise(*parts), True
    seconds = ((days * 24 + _number(digits, 11, 2)) * 60 + _number(digits, 14, 2)) * 60 + _number(
        digits, 17, 2
    )
    if column.fsp <= _MILLISECOND_DIGITS:
        return _numbers(seconds * 1000 + _fraction(digits, column.fsp, 3), null), False
    return _numbers(seconds * 1_000_000 + _fraction(digits, column.fsp, 6), null), False


def geometry_in_debezium(value: bytes) -> str:
    """Its ``io.debezium.data.geometry.Geometry``."""
    srid = int.from_bytes(value[:4], "little")
    wkb = binascii.b2a_base64(value[4:], newline=False).decode()
    return f'{{"wkb":"{wkb}","srid":{srid or "null"}}}'


def bits_in_debezium(value: bytes) -> str:
    """Its ``io.debezium.data.Bits``: the least byte first."""
    return binascii.b2a_base64(value[::-1], newline=False).decode()


def _width(column: Column) -> int:
    return 10 if column.kind is Kind.DATE else _SECOND_BYTES + (column.fsp and column.fsp + 1)


def _digits(array: pa.Array, instead: str) -> Numbers:
    """A line of digits for each text, all of which are as long. ``instead`` stands for a null."""
    if array.null_count:
        array = pc.fill_null(array, instead)
    _, edges, data = array.buffers()
    start = int(np.frombuffer(edges, np.int32)[array.offset])
    width = len(instead)
    return (
        np.frombuffer(data, np.uint8, len(array) * width, start)
        .reshape(-1, width)
        .astype(np.int64)
        - 48
    )


def _number(digits: Numbers, place: int, count: int) -> Numbers:
    found = np.zeros(len(digits), np.int64)
    for k in range(place, place + count):
        found = found * 10 + digits[:, k]
    return found


def _fraction(digits: Numbers, fsp: int, wanted: int) -> Numbers:
    if not fsp:
        return np.zeros(len(digits), np.int64)
    scale: int = 10 ** (wanted - fsp)
    return _number(digits, _SECOND_BYTES + 1, fsp) * scale


def _days(table: TableMap, column: Column, digits: Numbers) -> Numbers:
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 2), _number(digits, 8, 2)
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    first = months.astype("M8[D]").astype(np.int64)
    length = (months + 1).astype("M8[D]").astype(np.int64) - first
    fits = (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    if not fits.all():
        row = int(np.argmin(fits))
        text = "".join(chr(digit + 48) for digit in digits[row].tolist())
        raise BadCell(row, _no_day(table, column, text))
    return first + day - 1


def _time(column: Column, array: pa.Array) -> Numbers:
    """Sign and hours have no fixed width: the rest is counted from the end."""
    filled = pc.fill_null(array, "00:00:00") if array.null_count else array
    negative = pc.starts_with(filled, "-").to_numpy(zero_copy_only=False)
    width = _HOURS_DIGITS + 6 + (column.fsp and column.fsp + 1)
    digits = _digits(pc.ascii_lpad(pc.ascii_ltrim(filled, "-"), width, "0"), "0" * width)
    whole = (_number(digits, 0, 3) * 60 + _number(digits, 4, 2)) * 60 + _number(digits, 7, 2)
    fraction = _number(digits, 10, column.fsp) * 10 ** (6 - column.fsp) if column.fsp else 0
    microseconds = whole * 1_000_000 + fraction
    return np.where(negative, -microseconds, microseconds)


def _numbers(
    numbers: Numbers, null: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None
) -> pa.Array:
    return pa.array(numbers, mask=null).cast(pa.string())


def _no_day(table: TableMap, column: Column, text: str) -> OncewardError:
    return unreadable(
        "column_type",
        f"column {column.name!r} of {table.name} has {text!r}, which is no day of the calendar "
        f"and has no place in "
        "Debezium's form",
        'read the changes with values="text", which has such dates as MySQL writes them; or '
        "correct the value on the "
        "server",
    )
