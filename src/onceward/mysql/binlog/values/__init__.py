"""Cells to Arrow columns, a type at a time. Pure; called by :mod:`onceward.mysql.binlog.changes`
and by what reads a snapshot.

Which Arrow type each type of a column becomes (:func:`arrow_type`), chosen so that nothing that a
server can hold is lost on the way, whether it comes from a binlog (:func:`columns_of`) or from a
SELECT (:mod:`.from_text`):

============================================  =====================================================================
in MySQL or MariaDB                           in Arrow
============================================  =====================================================================
TINYINT … BIGINT, also UNSIGNED               int8, int16, int32 (also MEDIUMINT), int64; uint8 … uint64
FLOAT, DOUBLE                                 float32, float64
DECIMAL(p, s)                                 decimal128(p, s), from 39 digits on decimal256
YEAR                                          uint16, 0 for 0000
DATE, TIME, DATETIME, TIMESTAMP               string: MySQL's own text with all digits of its fraction, TIMESTAMP in
                                              UTC. It has 0000-00-00, 2024-00-00 and -838:59:59,
                                              which no type of Arrow's has, and sorts as they do
                                              (TIME does not)
CHAR, VARCHAR, TEXT, ENUM, SET                string; ENUM's error value is the empty text, a SET's labels have commas
JSON of MySQL                                 string: the server's own text of it
JSON of MariaDB                               string: it is a LONGTEXT
BIT, BINARY, VARBINARY, BLOB                  binary; BINARY(n) with all its n bytes
GEOMETRY                                      binary: four bytes SRID, little-endian, then WKB, as a client gets it
VECTOR                                        binary: floats of 4 bytes, little-endian
INET6, INET4, UUID of MariaDB                 binary: a binlog has them as a BINARY of 16 or 4
============================================  =====================================================================
"""

from __future__ import annotations

import pyarrow as pa

from onceward.mysql.binlog.column import TEMPORAL, Column, Kind
from onceward.mysql.binlog.rows import Block, Cells
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import binary, json, labels, numbers, temporal, text
from onceward.mysql.binlog.values.bytes_at import BytesAt

_BINARY = frozenset({Kind.BIT, Kind.BINARY, Kind.GEOMETRY, Kind.VECTOR})
_MOST_DIGITS_128 = 38
_INTEGERS = {
    1: (pa.int8(), pa.uint8()),
    2: (pa.int16(), pa.uint16()),
    8: (pa.int64(), pa.uint64()),
}
_OTHER_INTEGERS = (pa.int32(), pa.uint32())


def arrow_type(column: Column) -> pa.DataType:
    """See the table above."""
    if column.kind is Kind.INTEGER:
        return _INTEGERS.get(column.width, _OTHER_INTEGERS)[column.unsigned]
    if column.kind is Kind.FLOAT:
        return pa.float32() if column.width == 4 else pa.float64()
    if column.kind is Kind.DECIMAL:
        wide = column.precision > _MOST_DIGITS_128
        return (pa.decimal256 if wide else pa.decimal128)(column.precision, column.scale)
    if column.kind is Kind.YEAR:
        return pa.uint16()
    return pa.binary() if column.kind in _BINARY else pa.string()


def columns_of(table: TableMap, block: Block, cells: list[Cells]) -> pa.RecordBatch:
    """All columns of the rows that ``cells`` are of.

    :raises BadCell: a value is not one of its column's type, or none that can be held.
    """
    at = BytesAt(block)
    arrays = [
        _array(table, column, at, each) for column, each in zip(table.columns, cells, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


def _array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    kind = column.kind
    if kind in (Kind.INTEGER, Kind.FLOAT, Kind.YEAR):
        return numbers.array(table, column, at, cells)
    if kind is Kind.DECIMAL:
        return numbers.decimals(table, column, at, cells)
    if kind in TEMPORAL:
        return temporal.array(table, column, at, cells)
    if kind is Kind.TEXT:
        return text.array(table, column, at, cells)
    if kind is Kind.JSON:
        return json.array(table, column, at, cells)
    if kind in (Kind.ENUM, Kind.SET):
        return labels.array(table, column, at, cells)
    return binary.array(table, column, at, cells)
