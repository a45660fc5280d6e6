"""What a client gets of a SELECT, as the same Arrow columns that a binlog's rows become: equal rows give equal texts. Pure.

Called by what reads a snapshot, with the values as MySQL's text protocol sends them: bytes, None for NULL. For that the
session has ``time_zone = '+00:00'`` and ``character_set_results = 'utf8mb4'``, and each column is asked for by
:func:`select_expression`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from onceward.binlog.column import Column, Kind
from onceward.binlog.refusals import BadCell, unreadable
from onceward.binlog.table_map import TableMap
from onceward.binlog.values import arrow_type

SESSION = "SET time_zone = '+00:00', character_set_results = 'utf8mb4', sql_mode = ''"
"""What has to be said before a SELECT whose values are to be read here."""


_FLOAT_BYTES = 4
_ADDRESS_BYTES = {4, 16}


def select_expression(column: Column) -> str:
    """A column as it has to be selected: what a client is shown of a FLOAT has six digits, and of MariaDB's UUID and
    INET types, which a binlog has as a BINARY of their size, a text."""
    name = "`" + column.name.replace("`", "``") + "`"
    if column.kind is Kind.FLOAT and column.width == _FLOAT_BYTES:
        return f"{name} + 0e0"  # a double, and with all the digits that it needs
    if column.padded and column.size in _ADDRESS_BYTES:
        return f"CAST({name} AS BINARY({column.size}))"
    return name


def columns_from_text(table: TableMap, rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch:
    """:param rows: of a SELECT of all of ``table``'s columns, in its order.

    :raises BadCell: a value is none of its column's type: the table was altered.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(table.columns)
    arrays = [array_from_text(table, column, values) for column, values in zip(table.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


def array_from_text(table: TableMap, column: Column, values: Sequence[bytes | None]) -> pa.Array:
    """Of one column.

    :raises BadCell: see :func:`columns_from_text`.
    """
    wanted, raw = arrow_type(column), pa.array(values, pa.binary())
    if wanted == pa.binary():
        return raw
    try:
        text = raw.cast(pa.string())
        if column.kind is Kind.JSON:
            return pc.replace_substring(text, "\n", "")  # in base64, and nowhere else
        if wanted == pa.string():
            return text
        if column.kind in (Kind.INTEGER, Kind.YEAR):
            return _whole(text).cast(wanted)
        if column.kind is Kind.FLOAT:
            return text.cast(pa.float64()).cast(wanted)
        return _decimals(text, wanted)
    except pa.ArrowInvalid as error:
        what = f"column {column.name!r} of {table.name} gave a value that is no {column.kind.value}: {error}"
        raise BadCell(0, unreadable("column_type", what, "read the snapshot again: the table was altered")) from None


def _whole(text: pa.Array) -> pa.Array:
    """A ZEROFILL has zeros in front; some of Arrow's parsers take no more digits than a number can have."""
    trimmed = pc.ascii_ltrim(text, "0")
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), "0", trimmed)


def _decimals(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    return text.cast(wanted)

