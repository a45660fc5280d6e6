"""Arrow columns of a table's rows to one JSON text a row, a column at a time. Pure; called by
:mod:`blocks`: rows of equal content give the same bytes, from a binlog or a snapshot.

In the form ``"text"`` a value is as MySQL itself writes it: numbers by their digits, times such as
``"2024-01-31 10:00:00.123"`` (a TIMESTAMP in UTC), texts, labels; ``BIT(1)`` is true or false,
bytes are in base64, MySQL's JSON stands in the row as it is, geometry is ``{"srid":…,"wkb":…}``, a
vector a list of numbers.

The form ``"debezium"`` is Debezium's with ``time.precision.mode=adaptive_time_microseconds``,
``decimal.handling.mode=string`` and ``binary.handling.mode=base64``: a DATE is days since 1970, a
DATETIME milliseconds or, from four digits of its fraction on, microseconds, as if it were in UTC,
a TIME microseconds, a TIMESTAMP a text in UTC with a ``T`` and a ``Z``, bits are in reverse order.
A date that no calendar has is an error here, where Debezium writes null or 1970: neither can be
told from a value. Source: Debezium's documentation of its MySQL connector, "Data type mappings".
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import OncewardError
from onceward.mysql.binlog.column_types import TEMPORAL, ColumnKind, TableColumn
from onceward.mysql.binlog.event import InvalidCell, unreadable_change
from onceward.mysql.binlog.json_binary import double_text
from onceward.mysql.binlog.rows import Mask, Numbers
from onceward.mysql.binlog.table_map import TableMap

_SECOND_BYTES = 19
_HOURS_DIGITS = 3


def _debezium_temporals(
    table: TableMap, column: TableColumn, array: pa.Array
) -> tuple[pa.Array, bool]:
    """Return the texts of a temporal column, and whether they are quoted."""
    null = None if not array.null_count else array.is_null().to_numpy(zero_copy_only=False)
    if column.kind is ColumnKind.TIME:
        return _number_texts(_microseconds(column, array), null), False
    digits = _digit_table(array, "0001-01-01 00:00:00.000000"[: _width(column)])
    days = _days(table, column, digits)
    if column.kind is ColumnKind.DATE:
        return _number_texts(days, null), False
    if column.kind is ColumnKind.TIMESTAMP:
        # Written as they are but for these two; a null stays one.
        day, clock = pc.utf8_slice_codeunits(array, 0, 10), pc.utf8_slice_codeunits(array, 11)
        return pc.binary_join_element_wise(day, "T", clock, "Z", ""), True
    minutes = (days * 24 + _number(digits, 11, 2)) * 60 + _number(digits, 14, 2)
    seconds = minutes * 60 + _number(digits, 17, 2)
    precision = 3 if column.fsp <= 3 else 6
    numbers = seconds * 10**precision + _scaled_fraction(digits, column.fsp, precision)
    return _number_texts(numbers, null), False


def _debezium_geometry(value: bytes) -> str:
    """Return ``io.debezium.data.geometry.Geometry``."""
    srid = int.from_bytes(value[:4], "little")
    wkb = _base64(value[4:])
    return f'{{"wkb":"{wkb}","srid":{srid or "null"}}}'


def _width(column: TableColumn) -> int:
    return (
        10 if column.kind is ColumnKind.DATE else _SECOND_BYTES + (column.fsp and column.fsp + 1)
    )


def _digit_table(array: pa.Array, instead: str) -> Numbers:
    """Return a row of digits for each text, all of one length; ``instead`` is for nulls."""
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


def _scaled_fraction(digits: Numbers, fsp: int, precision: int) -> Numbers:
    if not fsp:
        return np.zeros(len(digits), np.int64)
    scale: int = 10 ** (precision - fsp)
    return _number(digits, _SECOND_BYTES + 1, fsp) * scale


def _days(table: TableMap, column: TableColumn, digits: Numbers) -> Numbers:
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 2), _number(digits, 8, 2)
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    first = months.astype("M8[D]").astype(np.int64)
    length = (months + 1).astype("M8[D]").astype(np.int64) - first
    fits = (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    if not fits.all():
        row = int(np.argmin(fits))
        text = "".join(chr(digit + 48) for digit in digits[row].tolist())
        raise InvalidCell(row, _no_day_error(table, column, text))
    return first + day - 1


def _microseconds(column: TableColumn, array: pa.Array) -> Numbers:
    """Return TIME in microseconds: sign and hours vary in width, so it reads from the end."""
    texts = pc.fill_null(array, "00:00:00") if array.null_count else array
    negative = pc.starts_with(texts, "-").to_numpy(zero_copy_only=False)
    width = _HOURS_DIGITS + 6 + (column.fsp and column.fsp + 1)
    digits = _digit_table(pc.ascii_lpad(pc.ascii_ltrim(texts, "-"), width, "0"), "0" * width)
    whole = (_number(digits, 0, 3) * 60 + _number(digits, 4, 2)) * 60 + _number(digits, 7, 2)
    fraction = _number(digits, 10, column.fsp) * 10 ** (6 - column.fsp) if column.fsp else 0
    microseconds = whole * 1_000_000 + fraction
    return np.where(negative, -microseconds, microseconds)


def _number_texts(numbers: Numbers, null: Mask | None) -> pa.Array:
    return pa.array(numbers, mask=null).cast(pa.string())


def _no_day_error(table: TableMap, column: TableColumn, text: str) -> OncewardError:
    return unreadable_change(
        "column_type",
        f"column {column.name!r} of {table.name} has {text!r}, which is no day of the calendar "
        "and has no place in Debezium's form",
        'read the changes with values="text", which has such dates as MySQL writes them; or '
        "correct the value on the server",
    )


ValueForm = Literal["text", "debezium"]

_PLAIN_SCALE = 6
"""Arrow writes a small decimal with more digits behind its point with an exponent."""
_FIRST_PRINTABLE = 0x20
_LONGEST_ESCAPE = 5
"""Additional bytes."""
MOST_BYTES = (1 << 31) - 2
"""Of all texts of a column: Arrow's offsets have 32 bits."""
_ESCAPED = [*range(_FIRST_PRINTABLE), ord('"'), ord("\\")]
_IS_ESCAPED = np.isin(np.arange(256), _ESCAPED)


def row_json(table: TableMap, rows: pa.RecordBatch, values: ValueForm = "text") -> pa.Array:
    """Return each row as a JSON object of all its columns, in the table's order.

    :param rows: with a column for each of ``table``'s, of the types of
        :func:`onceward.mysql.binlog.values.arrow_type`.
    :raises InvalidCell: a value has no place in the form (a zero date in Debezium's).
    """
    return _objects(table, range(table.own_columns), rows, values)


def key_json(table: TableMap, rows: pa.RecordBatch, values: ValueForm = "text") -> pa.Array:
    """Return each row's primary key as a JSON object, in the key's order; null without one."""
    if not table.key:
        return pa.nulls(rows.num_rows, pa.string())
    return _objects(table, table.key, rows, values)


def _objects(
    table: TableMap, places: Sequence[int], rows: pa.RecordBatch, values: ValueForm
) -> pa.Array:
    """Join all columns' texts with what stands between them, in one call of Arrow's."""
    parts: list[pa.Array | pa.Scalar] = []
    between = "{"
    for place in places:
        column, array = table.columns[place], rows.column(place)
        between += json.dumps(column.name, ensure_ascii=False) + ":"
        if array.null_count == len(array):
            # In all rows: no text of its own for each
            between += "null,"
            continue
        text, quoted = _value_texts(table, column, array, values)
        # Which is what Arrow makes of more than it can address.
        if isinstance(text, pa.ChunkedArray):
            raise _too_long_error(table, [array])
        if text.null_count:
            if quoted:
                text = pc.binary_join_element_wise('"', text, '"', "")
            text, quoted = pc.fill_null(text, "null"), False
        if quoted:
            between += '"'
        parts += [pa.scalar(between), text]
        between = '",' if quoted else ","
    if not parts:
        return pa.repeat(pa.scalar(between[:-1] + "}"), rows.num_rows)
    try:
        return pc.binary_join_element_wise(*parts, pa.scalar(between[:-1] + "}"), "")
    except pa.ArrowCapacityError:
        raise _too_long_error(table, rows.columns) from None


def _value_texts(
    table: TableMap, column: TableColumn, array: pa.Array, values: ValueForm
) -> tuple[pa.Array, bool]:
    """Return the texts of one column, and whether they are quoted."""
    kind, debezium = column.kind, values == "debezium"
    if debezium and kind in TEMPORAL:
        return _debezium_temporals(table, column, array)
    if kind in (ColumnKind.INTEGER, ColumnKind.YEAR):
        return array.cast(pa.string()), False
    if kind is ColumnKind.DECIMAL:
        return _decimal_texts(column, array), debezium
    if kind is ColumnKind.FLOAT:
        return _float_texts(array), False
    if kind in TEMPORAL:
        return array, True
    if kind is ColumnKind.JSON and not debezium:
        return array, False
    if kind in (ColumnKind.TEXT, ColumnKind.ENUM, ColumnKind.SET, ColumnKind.JSON):
        return escape(array, table), True
    if kind is ColumnKind.BIT and column.bits == 1:
        return pc.if_else(pc.equal(array, b"\x01"), "true", "false"), False
    if kind is ColumnKind.GEOMETRY:
        return _map_texts(array, _debezium_geometry if debezium else _geometry), False
    if kind is ColumnKind.VECTOR:
        return _map_texts(array, _vector), False
    if kind is ColumnKind.BIT and debezium:
        # io.debezium.data.Bits: the least byte first
        array = pc.binary_reverse(array)
    return _map_texts(array, _base64), True


def escape(array: pa.Array, table: TableMap) -> pa.Array:
    """Escape texts, by a pass over the column for each special byte that is in it. Most columns
    have none, and are scanned once.

    :raises InvalidCell: the result exceeds a column of Arrow's, where replacing corrupts it
        silently.
    """
    _, edges, data = array.buffers()
    if data is None or not len(array):
        return array
    first, last = (
        int(each)
        for each in np.frombuffer(edges, np.int32)[[array.offset, array.offset + len(array)]]
    )
    content = (
        np.frombuffer(data, np.uint8, last - first, first)
        if last > first
        else np.zeros(0, np.uint8)
    )
    if not ((content < _FIRST_PRINTABLE) | (content == ord('"')) | (content == ord("\\"))).any():
        return array
    counts = np.bincount(content, minlength=256) * _IS_ESCAPED
    if len(content) + int(counts.sum()) * _LONGEST_ESCAPE > MOST_BYTES:
        raise _too_long_error(table, [array])
    there = np.flatnonzero(counts)
    # The backslash first: the others are replaced by texts that have one.
    for byte in sorted(there.tolist(), key=lambda byte: byte != ord("\\")):
        array = pc.replace_substring(array, chr(byte), json.dumps(chr(byte))[1:-1])
    return array


def _decimal_texts(column: TableColumn, array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if column.scale <= _PLAIN_SCALE:
        return texts
    zero = pa.scalar("0." + "0" * column.scale)
    texts = pc.if_else(pc.starts_with(texts, "0E"), zero, texts)
    odd = pc.match_substring(texts, "E")
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(
        texts,
        pc.fill_null(odd, False),
        pa.array([format(each, "f") for each in array.filter(odd).to_pylist()], pa.string()),
    )


def _float_texts(array: pa.Array) -> pa.Array:
    """Return the fewest digits that mean the same number: more than a client is sent."""
    texts = array.cast(pa.string())
    odd = pc.match_substring(texts, "e")
    if not pc.any(odd).as_py():
        return texts
    # Digits that mean a float mean the double next to them as well, and are its shortest.
    written = pa.array(
        [double_text(float(text)) for text in texts.filter(odd).to_pylist()], pa.string()
    )
    return pc.replace_with_mask(texts, pc.fill_null(odd, False), written)


def _map_texts(array: pa.Array, text: Callable[[bytes], str]) -> pa.Array:
    return pa.array(
        [None if value is None else text(value) for value in array.to_pylist()], pa.string()
    )


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


def _too_long_error(table: TableMap, columns: Sequence[pa.Array]) -> InvalidCell:
    """Return the error of the longest row, which is too long by itself."""
    texts = [
        each for each in columns if pa.types.is_string(each.type) or pa.types.is_binary(each.type)
    ]
    lengths = [
        pc.fill_null(pc.binary_length(each), 0).to_numpy(zero_copy_only=False) for each in texts
    ]
    longest = int(np.argmax(np.sum(lengths, axis=0, dtype=np.int64))) if lengths else 0
    what = f"a row of {table.name} that becomes more than 2 GiB of text"
    step = (
        "keep such rows out of the wanted tables, or lower max_allowed_packet on the server, "
        "which bounds a row"
    )
    return InvalidCell(longest, unreadable_change("column_type", what, step))


def _geometry(value: bytes) -> str:
    return f'{{"srid":{int.from_bytes(value[:4], "little")},"wkb":"{_base64(value[4:])}"}}'


def _vector(value: bytes) -> str:
    floats = pa.array(
        struct.unpack(f"<{len(value) // 4}f", value[: len(value) // 4 * 4]), pa.float32()
    )
    return f"[{','.join(_float_texts(floats).to_pylist())}]"
