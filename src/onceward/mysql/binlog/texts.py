"""Arrow columns of a table's rows to one JSON text a row, a column at a time. Pure; called by
:mod:`changes` and by what reads a snapshot: rows of equal content give the same bytes, whichever
way they came.

In the form ``"text"`` a value is as MySQL itself writes it: numbers by their digits, moments such
as ``"2024-01-31 10:00:00.123"`` (a TIMESTAMP in UTC), texts, labels; ``BIT(1)`` is true or false,
what is binary is in base64, MySQL's JSON stands in the row as it is, geometry is
``{"srid":…,"wkb":…}``, a vector a list of numbers. The form ``"debezium"`` is in
:mod:`texts_debezium`.
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

from onceward.mysql.binlog.column import TEMPORAL, Column, Kind
from onceward.mysql.binlog.float_text import double_text
from onceward.mysql.binlog.refusals import BadCell, unreadable
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.texts_debezium import (
    CONVERTED,
    bits_in_debezium,
    geometry_in_debezium,
    in_debezium,
)

Values = Literal["text", "debezium"]

_PLAIN_SCALE = 6
"""Arrow writes a decimal with more digits behind its point with an exponent, where it is small."""
_FIRST_PRINTABLE = 0x20
_LONGEST_ESCAPE = 5
"""More bytes than before."""
MOST_BYTES = (1 << 31) - 2
"""Of all texts of a column: Arrow's offsets have 32 bits."""
_ESCAPED = [*range(_FIRST_PRINTABLE), ord('"'), ord("\\")]
_IS_ESCAPED = np.isin(np.arange(256), _ESCAPED)


def row_texts(table: TableMap, rows: pa.RecordBatch, values: Values = "text") -> pa.Array:
    """Each row as a JSON object of all its columns, in the table's order.

    :param rows: with a column for each of ``table``'s, of the types of
        :func:`onceward.mysql.binlog.values.arrow_type`.
    :raises BadCell: a value has no place in the form (a zero date in Debezium's).
    """
    return _objects(table, range(len(table.columns)), rows, values)


def key_texts(table: TableMap, rows: pa.RecordBatch, values: Values = "text") -> pa.Array:
    """Each row's primary key as a JSON object of its columns, in the key's order; null if the
    table has none.
    """
    if not table.key:
        return pa.nulls(rows.num_rows, pa.string())
    return _objects(table, table.key, rows, values)


def _objects(
    table: TableMap, places: Sequence[int], rows: pa.RecordBatch, values: Values
) -> pa.Array:
    """One join of all columns' texts with what stands between them."""
    parts: list[pa.Array | pa.Scalar] = []
    between = "{"
    for place in places:
        column, array = table.columns[place], rows.column(place)
        between += json.dumps(column.name, ensure_ascii=False) + ":"
        if array.null_count == len(array):
            between += "null,"  # in all rows: no text of its own for each
            continue
        text, quoted = _texts(table, column, array, values)
        if isinstance(
            text, pa.ChunkedArray
        ):  # which is what Arrow makes of more than it can address
            raise _too_long(table, [array])
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
        raise _too_long(table, rows.columns) from None


def _texts(
    table: TableMap, column: Column, array: pa.Array, values: Values
) -> tuple[pa.Array, bool]:
    """Of one column, and whether they go between quotes."""
    kind, debezium = column.kind, values == "debezium"
    if debezium and kind in CONVERTED:
        return in_debezium(table, column, array)
    if kind in (Kind.INTEGER, Kind.YEAR):
        return array.cast(pa.string()), False
    if kind is Kind.DECIMAL:
        return _decimals(column, array), debezium
    if kind is Kind.FLOAT:
        return _floats(array), False
    if kind in TEMPORAL:
        return array, True
    if kind is Kind.JSON and not debezium:
        return array, False
    if kind in (Kind.TEXT, Kind.ENUM, Kind.SET, Kind.JSON):
        return escaped(array, table), True
    if column.is_single_bit:
        return pc.if_else(pc.equal(array, b"\x01"), "true", "false"), False
    if kind is Kind.GEOMETRY:
        return _each(array, geometry_in_debezium if debezium else _geometry), False
    if kind is Kind.VECTOR:
        return _each(array, _vector), False
    return _each(array, bits_in_debezium if debezium and kind is Kind.BIT else _base64), True


def escaped(array: pa.Array, table: TableMap) -> pa.Array:
    """What may not stand in a JSON text as it is, by a pass over the column for each such byte
    that is in it. Most columns have none, and are looked at once.

    :raises BadCell: it would be more than a column of Arrow's can hold, where replacing corrupts
        it without a word.
    """
    _, edges, data = array.buffers()
    if data is None or not len(array):
        return array
    first, last = (
        int(each)
        for each in np.frombuffer(edges, np.int32)[[array.offset, array.offset + len(array)]]
    )
    held = (
        np.frombuffer(data, np.uint8, last - first, first)
        if last > first
        else np.zeros(0, np.uint8)
    )
    if not ((held < _FIRST_PRINTABLE) | (held == ord('"')) | (held == ord("\\"))).any():
        return array
    counts = np.bincount(held, minlength=256) * _IS_ESCAPED
    if len(held) + int(counts.sum()) * _LONGEST_ESCAPE > MOST_BYTES:
        raise _too_long(table, [array])
    there = np.flatnonzero(counts)
    # The backslash first: the others are replaced by texts that have one.
    for byte in sorted(there.tolist(), key=lambda byte: byte != ord("\\")):
        array = pc.replace_substring(array, chr(byte), json.dumps(chr(byte))[1:-1])
    return array


def _decimals(column: Column, array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if column.scale <= _PLAIN_SCALE:
        return texts
    zero = pa.scalar("0." + "0" * column.scale)
    texts = pc.if_else(pc.starts_with(texts, "0E"), zero, texts)
    odd = pc.match_substring(texts, "E")
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(texts, pc.fill_null(odd, False), _written_out(array.filter(odd)))


def _written_out(array: pa.Array) -> pa.Array:
    return pa.array([format(number, "f") for number in array.to_pylist()], pa.string())


def _floats(array: pa.Array) -> pa.Array:
    """By the fewest digits that mean the same number: of a FLOAT more than a client is shown,
    which is six.
    """
    texts = array.cast(pa.string())
    odd = pc.match_substring(texts, "e")
    if not pc.any(odd).as_py():
        return texts
    # Digits that mean a float mean the double next to them as well, and are its shortest.
    written = pa.array(
        [double_text(float(text)) for text in texts.filter(odd).to_pylist()], pa.string()
    )
    return pc.replace_with_mask(texts, pc.fill_null(odd, False), written)


def _each(array: pa.Array, text: Callable[[bytes], str]) -> pa.Array:
    return pa.array(
        [None if value is None else text(value) for value in array.to_pylist()], pa.string()
    )


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


def _too_long(table: TableMap, columns: Sequence[pa.Array]) -> BadCell:
    """Of the longest row: what is decoded at once is bounded, so it takes one that is too long by
    itself.
    """
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
    return BadCell(longest, unreadable("column_type", what, step))


def _geometry(value: bytes) -> str:
    return f'{{"srid":{int.from_bytes(value[:4], "little")},"wkb":"{_base64(value[4:])}"}}'


def _vector(value: bytes) -> str:
    floats = pa.array(
        struct.unpack(f"<{len(value) // 4}f", value[: len(value) // 4 * 4]), pa.float32()
    )
    return f"[{','.join(_floats(floats).to_pylist())}]"
