"""Cells to Arrow columns, a type at a time, and the values of a SELECT to the same columns. Pure;
called by the decoder and by the snapshot.

The Arrow type of each column (:func:`arrow_type`) holds everything that a server can hold, whether
it comes from a binlog (:func:`decode_columns`) or from a SELECT (:func:`columns_from_text`):

===============================  ======================================================
in MySQL or MariaDB              in Arrow
===============================  ======================================================
TINYINT … BIGINT, UNSIGNED       int8, int16, int32 (also MEDIUMINT), int64; uint8 …
FLOAT, DOUBLE                    float32, float64
DECIMAL(p, s)                    decimal128(p, s), from 39 digits on decimal256
YEAR                             uint16, 0 for 0000
DATE, TIME, DATETIME, TIMESTAMP  string: MySQL's own text with all digits of its
                                 fraction, TIMESTAMP in UTC. It can be 0000-00-00,
                                 2024-00-00 and -838:59:59, unlike Arrow's types
CHAR, VARCHAR, TEXT, ENUM, SET   string; ENUM's error value is the empty text, a SET's
                                 labels have commas
JSON of MySQL                    string: the server's own text of it
JSON of MariaDB                  string: it is a LONGTEXT
BIT, BINARY, VARBINARY, BLOB     binary; BINARY(n) with all its n bytes
GEOMETRY                         binary: four bytes SRID, little-endian, then WKB
VECTOR                           binary: floats of 4 bytes, little-endian
INET6, INET4, UUID of MariaDB    binary: a binlog has a BINARY of 16 or 4
===============================  ======================================================

MariaDB's COMPRESSED columns begin with a byte whose upper half is the method (0: none, 8: zlib)
and whose lower three bits are how many bytes of length follow, the greatest first; its bit 3 means
raw deflate, without zlib's header (MariaDB ``sql/field_comp.cc``).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import OncewardError
from onceward.mysql.binlog.charsets import UTF8, decoder_for, single_byte_table
from onceward.mysql.binlog.column_types import TEMPORAL, ColumnKind, TableColumn
from onceward.mysql.binlog.event import START_ANEW, InvalidCell, damaged_data, unreadable_change
from onceward.mysql.binlog.fixed_width import (
    CellBytes,
    check_cells,
    decimal_array,
    number_array,
    temporal_array,
)
from onceward.mysql.binlog.json_binary import InvalidJson, json_text
from onceward.mysql.binlog.rows import Cells, Numbers, RowData
from onceward.mysql.binlog.sql_tables import quote, quote_table
from onceward.mysql.binlog.table_map import TableMap

_PLAIN, _ZLIB = 0, 8
_RAW = 8
_MOST = 1032
"""Bytes that one of deflate becomes at most: a greater length is wrong."""


def _variable_bytes(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Return the bytes of cells that have a length, decompressed."""
    if not column.is_compressed:
        return at.binary(cells)
    found: list[bytes | None] = []
    title = f"a value of the compressed column {column.name!r} of {table.name}"
    try:
        for value in at.slices(cells):
            found.append(value and _decompress_value(value))  # noqa: PERF401  for its length
    except (zlib.error, ValueError) as error:
        raise InvalidCell(
            len(found), damaged_data(f"{title} cannot be unpacked: {error}")
        ) from None
    except NotImplementedError as error:
        step = (
            f"ALTER TABLE {quote_table(table.db, table.table)} to have it without COMPRESSED, and "
            "start from a position after that"
        )
        raise InvalidCell(
            len(found), unreadable_change("column_type", f"{title} is packed by {error}", step)
        ) from None
    return pa.array(found, pa.binary())


def _decompress_value(value: bytes) -> bytes:
    method, width = value[0] >> 4, value[0] & 7
    if method == _PLAIN:
        return value[1:]
    if method != _ZLIB:
        raise NotImplementedError(f"method {method}, which is not known")
    length = int.from_bytes(value[1 : 1 + width], "big")
    data = value[1 + width :]
    if length > _MOST * len(data):
        raise ValueError(f"{len(data)} bytes cannot become {length}")
    inflate = zlib.decompressobj(-zlib.MAX_WBITS if value[0] & _RAW else zlib.MAX_WBITS)
    found = inflate.decompress(data, length + 1)
    if len(found) != length:
        raise ValueError(f"they are {len(found)} bytes or more, and say {length}")
    return found


def decode_texts(table: TableMap, column: TableColumn, raw: pa.Array) -> pa.Array:
    """Decode the bytes of ``raw`` by the column's charset.

    :raises InvalidCell: bytes are no text of it, or it has no codec.
    """
    if column.charset in UTF8:
        with suppress(pa.ArrowInvalid):
            # looks at every byte
            return raw.cast(pa.string())
    elif single_byte_table(column.charset) is not None and raw.null_count < len(raw):
        return _decode_single_byte(table, column, raw)
    return _decode_one_by_one(table, column, raw)


def _decode_single_byte(table: TableMap, column: TableColumn, raw: pa.Array) -> pa.Array:
    """Decode all texts of a column as one text, and find their ends by sums of lengths."""
    decode = decoder_for(column.charset)
    assert decode is not None  # noqa: S101  there is a table
    valid, edges, data = raw.buffers()
    places = np.frombuffer(edges, np.int32)[raw.offset : raw.offset + len(raw) + 1]
    content = memoryview(data)[places[0] : places[-1]] if data is not None else memoryview(b"")
    try:
        text = decode(bytes(content)).encode()
    except UnicodeDecodeError:
        return _decode_one_by_one(table, column, raw)
    if len(text) == len(content):
        edges_out = places - places[0]
    else:
        table_lengths = [len(each.encode()) for each in single_byte_table(column.charset) or ""]
        lengths = np.array(table_lengths, np.uint8)[np.frombuffer(content, np.uint8)]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        edges_out = ends[places - places[0]].astype(np.int32)
    if raw.offset:
        valid = None if not raw.null_count else pa.array(raw.is_valid()).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(),
        len(raw),
        [valid, pa.py_buffer(np.ascontiguousarray(edges_out)), pa.py_buffer(text)],
    )


def _decode_one_by_one(table: TableMap, column: TableColumn, raw: pa.Array) -> pa.Array:
    decode = decoder_for(column.charset)
    found: list[str | None] = []
    for row, value in enumerate(raw.to_pylist()):
        if value is None:
            found.append(None)
            continue
        try:
            if decode is None:
                raise InvalidCell(row, _no_codec_error(table, column))
            text = decode(value)
            text.encode()
            found.append(text)
        except UnicodeError:
            raise InvalidCell(row, _no_text_error(table, column, value)) from None
    return pa.array(found, pa.string())


def _no_codec_error(table: TableMap, column: TableColumn) -> OncewardError:
    return unreadable_change(
        "column_type",
        f"column {column.name!r} of {table.name} has the charset "
        f"{column.charset or 'of nobody knows which name'}, which cannot be read here",
        f"ALTER TABLE {quote_table(table.db, table.table)} CONVERT TO CHARACTER SET utf8mb4, and "
        "start from a position after that; or leave the table out of the wanted ones",
    )


def _no_text_error(table: TableMap, column: TableColumn, value: bytes) -> OncewardError:
    return unreadable_change(
        "column_type",
        f"column {column.name!r} of {table.name} has bytes that are no text of its charset "
        f"{column.charset}, among them {value[:32]!r}",
        "correct the value on the server, and read the row again from the table; a column that "
        "holds such bytes for good should be a VARBINARY",
    )


_SRID_BYTES = 4
_FLOAT_BYTES = 4


def _binary_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Return BIT, BINARY, VARBINARY, BLOB, GEOMETRY or VECTOR as bytes."""
    if column.kind is ColumnKind.BIT:
        fixed = at.words(f"V{column.width}", cells.start)
        raw = pa.Array.from_buffers(
            pa.binary(column.width), len(fixed), [None, pa.py_buffer(fixed.tobytes())]
        )
        raw = raw.cast(pa.binary())
        if cells.null is None:
            return raw
        return pc.if_else(pa.array(cells.null), pa.scalar(None, pa.binary()), raw)
    raw = _variable_bytes(table, column, at, cells)
    if column.is_padded:
        return _pad(table, column, raw)
    if column.kind is ColumnKind.GEOMETRY:
        _check_bytes(table, column, pc.greater_equal(pc.binary_length(raw), _SRID_BYTES))
    elif column.kind is ColumnKind.VECTOR:
        lengths = pc.binary_length(raw)
        _check_bytes(table, column, pc.equal(pc.bit_wise_and(lengths, _FLOAT_BYTES - 1), 0))
        floats = [
            None if each is None else np.isfinite(np.frombuffer(each, "<f4")).all()
            for each in raw.to_pylist()
        ]
        _check_bytes(table, column, pa.array(floats, pa.bool_()))
    return raw


def _pad(table: TableMap, column: TableColumn, raw: pa.Array) -> pa.Array:
    """Append the zeros at the end that are not in the binlog."""
    missing = pc.subtract(column.size, pc.binary_length(raw))
    _check_bytes(table, column, pc.greater_equal(missing, 0))
    if not pc.any(pc.greater(missing, 0)).as_py():
        return raw
    zeros = pc.binary_repeat(pa.repeat(b"\0", len(raw)), missing)
    return pc.binary_join_element_wise(raw, zeros, b"")


def _check_bytes(table: TableMap, column: TableColumn, fits: pa.Array) -> None:
    if pc.all(fits).as_py() is False:
        what = (
            f"a {column.kind.value} of column {column.name!r} of {table.name} has a length or a "
            "number that none has"
        )
        raise InvalidCell(pc.index(fits, False).as_py(), damaged_data(what))


_WORDS = {1: "u1", 2: "<u2", 3: "<u4", 4: "<u4", 8: "<u8"}


def _label_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    """Decode ENUM, a number of a label, or SET, a bit for each."""
    unknown = f"column {column.name!r} of {table.name} has a label that its type has not"
    numbers = at.words(_WORDS.get(column.width, "<u8"), cells.start)
    if column.kind is ColumnKind.ENUM:
        # Number 0 is what a server that is not strict makes of a label that there is not.
        numbers = numbers.astype(np.int64)
        if cells.null is not None:
            numbers[cells.null] = 0
        check_cells(numbers <= len(column.labels), None, unknown)
        return _take_labels(["", *column.labels], numbers, cells)
    bits = numbers.astype(np.uint64)
    if column.width < 8:
        bits &= np.uint64((1 << 8 * column.width) - 1)
    if cells.null is not None:
        bits[cells.null] = 0
    check_cells(bits <= np.uint64((1 << len(column.labels)) - 1), None, unknown)
    different, which = np.unique(bits, return_inverse=True)
    texts = [
        ",".join(label for n, label in enumerate(column.labels) if each >> n & 1)
        for each in different.tolist()
    ]
    return _take_labels(texts, which.reshape(-1), cells)


def _take_labels(texts: list[str], numbers: Numbers, cells: Cells) -> pa.Array:
    return pc.take(pa.array(texts, pa.string()), pa.array(numbers, mask=cells.null))


def _json_array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    found: list[str | None] = []
    try:
        for document in at.slices(cells):
            text = None if document is None else json_text(document)
            found.append(text)
    except InvalidJson as error:
        what = (
            f"column {column.name!r} of {table.name} has a document that cannot be read: {error}"
        )
        raise InvalidCell(len(found), damaged_data(what)) from None
    return pa.array(found, pa.string())


_BINARY_KINDS = frozenset(
    {ColumnKind.BIT, ColumnKind.BINARY, ColumnKind.GEOMETRY, ColumnKind.VECTOR}
)
_MOST_DIGITS_128 = 38
_INTEGERS = {
    1: (pa.int8(), pa.uint8()),
    2: (pa.int16(), pa.uint16()),
    8: (pa.int64(), pa.uint64()),
}
_OTHER_INTEGERS = (pa.int32(), pa.uint32())


def arrow_type(column: TableColumn) -> pa.DataType:
    """Return a column's Arrow type, by the table above."""
    if column.kind is ColumnKind.INTEGER:
        return _INTEGERS.get(column.width, _OTHER_INTEGERS)[column.unsigned]
    if column.kind is ColumnKind.FLOAT:
        return pa.float32() if column.width == 4 else pa.float64()
    if column.kind is ColumnKind.DECIMAL:
        wide = column.precision > _MOST_DIGITS_128
        return (pa.decimal256 if wide else pa.decimal128)(column.precision, column.scale)
    if column.kind is ColumnKind.YEAR:
        return pa.uint16()
    return pa.binary() if column.kind in _BINARY_KINDS else pa.string()


def decode_columns(table: TableMap, block: RowData, cells: list[Cells]) -> pa.RecordBatch:
    """Decode all columns of the rows of ``cells``.

    :raises InvalidCell: a value does not fit its column's type, or cannot be held.
    """
    at = CellBytes(block)
    arrays = [
        _array(table, column, at, each) for column, each in zip(table.columns, cells, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


def _array(table: TableMap, column: TableColumn, at: CellBytes, cells: Cells) -> pa.Array:
    kind = column.kind
    if kind in (ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.YEAR):
        return number_array(table, column, at, cells)
    if kind is ColumnKind.DECIMAL:
        return decimal_array(table, column, at, cells)
    if kind in TEMPORAL:
        return temporal_array(table, column, at, cells)
    if kind is ColumnKind.TEXT:
        return decode_texts(table, column, _variable_bytes(table, column, at, cells))
    if kind is ColumnKind.JSON:
        return _json_array(table, column, at, cells)
    if kind in (ColumnKind.ENUM, ColumnKind.SET):
        return _label_array(table, column, at, cells)
    return _binary_array(table, column, at, cells)


_BASE64 = "base64:type"
_LINES = re.compile(rf'(?<!\\)"{_BASE64}\d+:(?:[A-Za-z0-9+/]{{76}}\\n)+[A-Za-z0-9+/]+=*"')
"""A text that is all of this, begins at a quote that nothing escapes, and has lines of 76."""
_ADDRESS_BYTES = {4, 16}
_CHARACTERS = frozenset({ColumnKind.TEXT, ColumnKind.ENUM, ColumnKind.SET})


def select_expression(column: TableColumn) -> str:
    """Return the expression that selects a column. A client is sent six digits of a FLOAT, and
    texts of MariaDB's UUID and INET types, which a binlog has as a BINARY of their size.
    """
    name = quote(column.name)
    if column.kind is ColumnKind.FLOAT and column.width == _FLOAT_BYTES:
        # A double, with all the digits that it needs, and the sign of a zero
        return f"{name} * 1e0"
    if column.is_padded and column.size in _ADDRESS_BYTES:
        return f"CAST({name} AS BINARY({column.size}))"
    return name


def columns_from_text(
    table: TableMap, columns: Sequence[pa.Array | Sequence[bytes | None]]
) -> pa.RecordBatch:
    """Return the values of MySQL's text protocol as the columns that a binlog's rows become: equal
    rows give equal JSON. The session gives them as a binlog does: times in UTC (``time_zone``),
    texts in their columns' own charsets (``character_set_results = NULL``), no padding of CHAR
    (``sql_mode = ''``); it selects by :func:`select_expression`.

    :param columns: the bytes of each of ``table``'s columns, in its order, null for NULL.
    :raises InvalidCell: bytes are no text of the column's charset.
    :raises ChangeUnreadable: values do not fit a column's type: the table was altered meanwhile.
    """
    arrays = [
        array_from_text(table, column, raw)
        for column, raw in zip(table.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


def array_from_text(
    table: TableMap, column: TableColumn, raw: pa.Array | Sequence[bytes | None]
) -> pa.Array:
    """Return one column."""
    arrow = arrow_type(column)
    if not isinstance(raw, pa.Array):
        raw = pa.array(raw, pa.binary())
    if arrow == pa.binary():
        return raw.cast(arrow)
    if column.kind in _CHARACTERS:
        return decode_texts(table, column, raw)
    try:
        text = raw.cast(pa.string())
        if column.kind is ColumnKind.JSON:
            return _join_lines_of_base64(text)
        if column.kind is ColumnKind.FLOAT:
            return text.cast(pa.float64()).cast(arrow)
        # A ZEROFILL has zeros in front.
        return text.cast(arrow)
    except pa.ArrowInvalid as error:
        what = (
            f"column {column.name!r} of {table.name} gave a value that is no {column.kind.value}: "
            f"{error}"
        )
        raise unreadable_change(
            "column_type", what, f"the table was altered: {START_ANEW}"
        ) from None


def _join_lines_of_base64(documents: pa.Array) -> pa.Array:
    """Leave the line breaks out that the server has in long values of base64, and nowhere else:
    plain ones in MySQL 8.0.12, in newer ones those that JSON has in texts. A binlog has none. (Of
    a text of a user's that looks just so newer servers' words are the same.)
    """
    documents = pc.replace_substring(documents, "\n", "")
    if not pc.any(pc.match_substring(documents, _BASE64), min_count=0).as_py():
        return documents
    joined = [
        each and _LINES.sub(lambda found: found[0].replace(r"\n", ""), each)
        for each in documents.to_pylist()
    ]
    return pa.array(joined, documents.type)
