"""CHAR, VARCHAR and TEXT by their charsets. Pure; called by
:mod:`onceward.mysql.binlog.values`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceward.errors import OncewardError
from onceward.mysql.binlog.charsets import UTF8, decoder_of, single_byte_table
from onceward.mysql.binlog.column import Column
from onceward.mysql.binlog.refusals import BadCell, unreadable
from onceward.mysql.binlog.rows import Cells
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import unpacked
from onceward.mysql.binlog.values.bytes_at import BytesAt


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """:raises BadCell: bytes that are no text of the column's charset, or a charset that there is
    no codec of.
    """
    raw = unpacked.array(table, column, at, cells) if column.packed else at.binary(cells)
    return decoded(table, column, raw)


def decoded(table: TableMap, column: Column, raw: pa.Array) -> pa.Array:
    """The texts that ``raw`` are the bytes of."""
    if column.charset in UTF8:
        try:
            return raw.cast(pa.string())  # looks at every byte
        except pa.ArrowInvalid:
            return _one_by_one(table, column, raw)
    if single_byte_table(column.charset) is not None and raw.null_count < len(raw):
        return _single_byte(table, column, raw)
    return _one_by_one(table, column, raw)


def _single_byte(table: TableMap, column: Column, raw: pa.Array) -> pa.Array:
    """All texts of a column as one text: where each byte lies in it is a sum of the lengths of
    those before.
    """
    decode = decoder_of(column.charset)
    assert decode is not None  # noqa: S101  there is a table
    valid, edges, data = raw.buffers()
    places = np.frombuffer(edges, np.int32)[raw.offset : raw.offset + len(raw) + 1]
    held = memoryview(data)[places[0] : places[-1]] if data is not None else memoryview(b"")
    try:
        joined = decode(bytes(held)).encode()
    except UnicodeDecodeError:
        return _one_by_one(table, column, raw)
    if len(joined) == len(held):
        moved = places - places[0]
    else:
        lengths = _utf8_lengths(column.charset)[np.frombuffer(held, np.uint8)]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        moved = ends[places - places[0]].astype(np.int32)
    if raw.offset:
        valid = None if not raw.null_count else pa.array(raw.is_valid()).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(),
        len(raw),
        [valid, pa.py_buffer(np.ascontiguousarray(moved)), pa.py_buffer(joined)],
    )


def _utf8_lengths(charset: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.array(
        [len(character.encode()) for character in single_byte_table(charset) or ""], np.uint8
    )


def _one_by_one(table: TableMap, column: Column, raw: pa.Array) -> pa.Array:
    decode = decoder_of(column.charset)
    found: list[str | None] = []
    for row, value in enumerate(raw.to_pylist()):
        if value is None:
            found.append(None)
            continue
        try:
            if decode is None:
                raise BadCell(row, _no_codec(table, column))
            text = decode(value)
            text.encode()
            found.append(text)
        except UnicodeError:
            raise BadCell(row, _no_text(table, column, value)) from None
    return pa.array(found, pa.string())


def _no_codec(table: TableMap, column: Column) -> OncewardError:
    return unreadable(
        "column_type",
        f"column {column.name!r} of {table.name} has the charset "
        f"{column.charset or 'of nobody knows which name'}, "
        "which cannot be read here",
        f"ALTER TABLE {table.name} CONVERT TO CHARACTER SET utf8mb4, and start from a position "
        f"after that; or leave "
        "the table out of the wanted ones",
    )


def _no_text(table: TableMap, column: Column, value: bytes) -> OncewardError:
    return unreadable(
        "column_type",
        f"column {column.name!r} of {table.name} has bytes that are no text of its charset "
        f"{column.charset}, "
        f"among them {value[:32]!r}",
        "correct the value on the server, and read the row again from the table; a column "
        "that holds such bytes for good should be a VARBINARY",
    )
