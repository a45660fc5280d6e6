"""What a client gets of a SELECT, as the same Arrow columns that a binlog's rows become: equal
rows give equal texts. Pure.

Called by what reads a snapshot, with the values as MySQL's text protocol sends them, in a session
that has said :data:`SESSION`, each column asked for by :func:`select_expression`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.refusals import BadCell, unreadable
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import arrow_type
from onceward.mysql.binlog.values.text import decoded

SESSION = "SET time_zone = '+00:00', character_set_results = NULL, sql_mode = ''"
"""Moments in UTC, texts in their columns' own charsets, as they are in a binlog, and without the
spaces of a CHAR.
"""

_FLOAT_BYTES = 4
_ADDRESS_BYTES = {4, 16}
_CHARACTERS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})


def select_expression(column: Column) -> str:
    """A column as it has to be selected: what a client is shown of a FLOAT has six digits, and of
    MariaDB's UUID and INET types, which a binlog has as a BINARY of their size, a text.
    """
    name = "`" + column.name.replace("`", "``") + "`"
    if column.kind is Kind.FLOAT and column.width == _FLOAT_BYTES:
        return (
            f"{name} * 1e0"  # a double, with all the digits that it needs, and the sign of a zero
        )
    if column.padded and column.size in _ADDRESS_BYTES:
        return f"CAST({name} AS BINARY({column.size}))"
    return name


def columns_from_text(
    table: TableMap, columns: Sequence[pa.Array | Sequence[bytes | None]]
) -> pa.RecordBatch:
    """:param columns: the bytes of each of ``table``'s columns, in its order, null for NULL.

    :raises BadCell: a value is none of its column's type: the table was altered meanwhile.
    """
    arrays = [
        array_from_text(table, column, raw)
        for column, raw in zip(table.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


def array_from_text(
    table: TableMap, column: Column, raw: pa.Array | Sequence[bytes | None]
) -> pa.Array:
    """Of one column.

    :raises BadCell: see :func:`columns_from_text`.
    """
    wanted = arrow_type(column)
    if not isinstance(raw, pa.Array):
        raw = pa.array(raw, pa.binary())
    if wanted == pa.binary():
        return raw.cast(wanted)
    if column.kind in _CHARACTERS:
        return decoded(table, column, raw)
    try:
        text = raw.cast(pa.string())
        if column.kind is Kind.JSON:
            return pc.replace_substring(
                text, "\n", ""
            )  # the server breaks lines in long base64, and nowhere else
        if column.kind is Kind.FLOAT:
            return text.cast(pa.float64()).cast(wanted)
        # A ZEROFILL has zeros in front.
        return text.cast(wanted)
    except pa.ArrowInvalid as error:
        what = (
            f"column {column.name!r} of {table.name} gave a value that is no "
            f"{column.kind.value}: {error}"
        )
        raise BadCell(
            0, unreadable("column_type", what, "read the snapshot again: the table was altered")
        ) from None
