"""BIT, BINARY, VARBINARY, BLOB, GEOMETRY and VECTOR. Pure; called by
:mod:`onceward.mysql.binlog.values`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.refusals import BadCell, damaged
from onceward.mysql.binlog.rows import Cells
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import unpacked
from onceward.mysql.binlog.values.bytes_at import BytesAt

_SRID_BYTES = 4
_FLOAT_BYTES = 4


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """The bytes.

    :raises BadCell: a server writes no such.
    """
    if column.kind is Kind.BIT:
        fixed = at.words(f"V{column.width}", cells.start)
        raw = pa.Array.from_buffers(
            pa.binary(column.width), len(fixed), [None, pa.py_buffer(fixed.tobytes())]
        )
        raw = raw.cast(pa.binary())
        return (
            raw
            if cells.null is None
            else pc.if_else(pa.array(cells.null), pa.scalar(None, pa.binary()), raw)
        )
    if column.packed:
        return unpacked.array(table, column, at, cells)
    raw = at.binary(cells)
    if column.padded:
        return _padded(table, column, raw)
    if column.kind is Kind.GEOMETRY:
        _require(table, column, pc.greater_equal(pc.binary_length(raw), _SRID_BYTES))
    elif column.kind is Kind.VECTOR:
        lengths = pc.binary_length(raw)
        _require(table, column, pc.equal(pc.bit_wise_and(lengths, _FLOAT_BYTES - 1), 0))
        floats = [
            None if each is None else np.isfinite(np.frombuffer(each, "<f4")).all()
            for each in raw.to_pylist()
        ]
        _require(table, column, pa.array(floats, pa.bool_()))
    return raw


def _padded(table: TableMap, column: Column, raw: pa.Array) -> pa.Array:
    """With the zeros at the end that are not in the binlog."""
    missing = pc.subtract(column.size, pc.binary_length(raw))
    _require(table, column, pc.greater_equal(missing, 0))
    if not pc.any(pc.greater(missing, 0)).as_py():
        return raw
    zeros = pc.binary_repeat(pa.repeat(b"\0", len(raw)), missing)
    return pc.binary_join_element_wise(raw, zeros, b"")


def _require(table: TableMap, column: Column, fits: pa.Array) -> None:
    if pc.all(fits).as_py() is False:
        what = (
            f"a {column.kind.value} of column {column.name!r} of {table.name} has a length or "
            f"a number that none has"
        )
        raise BadCell(pc.index(fits, False).as_py(), damaged(what))
