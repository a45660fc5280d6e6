"""Texts and bytes of a SELECT to the Arrow columns that a binlog's rows have. Pure; called by :mod:`as_of`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onceward.binlog.column import Column, Kind
from onceward.binlog.table_map import TableMap
from onceward.binlog.values import arrow_type
from onceward.binlog.values.text import decoded

_WRITTEN = frozenset({Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL, Kind.YEAR})
_CHARACTERS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})


def selected(table: TableMap, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """
    :param columns: of bytes, as a session gets them whose character_set_results is NULL: texts in their own charsets.
    """
    arrays = [_array(table, column, raw) for column, raw in zip(table.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


def _array(table: TableMap, column: Column, raw: pa.Array) -> pa.Array:
    if column.kind in _CHARACTERS:
        return decoded(table, column, raw)
    kind = arrow_type(column)
    if column.kind not in _WRITTEN:
        return raw.cast(kind)
    written = raw.cast(pa.string())
    return written.cast(pa.float64()).cast(kind) if pa.types.is_float32(kind) else written.cast(kind)
