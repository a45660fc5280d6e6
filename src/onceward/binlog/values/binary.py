"""BIT, BINARY, VARBINARY, BLOB, GEOMETRY and VECTOR. Pure; called by :mod:`onceward.binlog.values`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onceward.binlog.column import Column, Kind
from onceward.binlog.rows import Cells
from onceward.binlog.table_map import TableMap
from onceward.binlog.values import unpacked
from onceward.binlog.values.bytes_at import BytesAt


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """The bytes."""
    if column.kind is Kind.BIT:
        fixed = at.words(f"V{column.width}", cells.start)
        raw = pa.Array.from_buffers(pa.binary(column.width), len(fixed), [None, pa.py_buffer(fixed.tobytes())])
        raw = raw.cast(pa.binary())
        return raw if cells.null is None else pc.if_else(pa.array(cells.null), pa.scalar(None, pa.binary()), raw)
    if column.packed:
        return unpacked.array(table, column, at, cells)
    raw = at.binary(cells)
    return _padded(raw, column.size) if column.padded else raw


def _padded(raw: pa.Array, size: int) -> pa.Array:
    """With the zeros at the end that are not in the binlog."""
    lengths = pc.binary_length(raw)
    if pc.min(lengths).as_py() in (None, size):
        return raw
    zeros = pa.array([bytes(size - length) for length in range(size + 1)], pa.binary())
    return pc.binary_join_element_wise(raw, pc.take(zeros, lengths), b"")
