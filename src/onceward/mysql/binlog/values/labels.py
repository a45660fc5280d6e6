"""ENUM and SET: numbers of labels, and bits of them. Pure; called by
:mod:`onceward.mysql.binlog.values`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.refusals import BadCell, damaged
from onceward.mysql.binlog.rows import Cells, Numbers
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values.bytes_at import BytesAt

_WORDS = {1: "u1", 2: "<u2", 3: "<u4", 4: "<u4", 8: "<u8"}


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """The labels.

    :raises BadCell: a number that is no label's.
    """
    numbers = at.words(_WORDS.get(column.width, "<u8"), cells.start)
    if column.kind is Kind.ENUM:
        # Number 0 is what a server that is not strict makes of a label that there is not.
        numbers = numbers.astype(np.int64)
        if cells.null is not None:
            numbers[cells.null] = 0
        _require(table, column, numbers <= len(column.labels))
        return _labels(["", *column.labels], numbers, cells)
    bits = numbers.astype(np.uint64)
    if column.width < 8:
        bits &= np.uint64((1 << 8 * column.width) - 1)
    if cells.null is not None:
        bits[cells.null] = 0
    _require(table, column, bits <= np.uint64((1 << len(column.labels)) - 1))
    different, which = np.unique(bits, return_inverse=True)
    texts = [
        ",".join(label for n, label in enumerate(column.labels) if each >> n & 1)
        for each in different.tolist()
    ]
    return _labels(texts, which.reshape(-1), cells)


def _labels(texts: list[str], numbers: Numbers, cells: Cells) -> pa.Array:
    return pc.take(pa.array(texts, pa.string()), pa.array(numbers, mask=cells.null))


def _require(
    table: TableMap, column: Column, fits: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> None:
    if not fits.all():
        what = f"column {column.name!r} of {table.name} has a label that its type has not"
        raise BadCell(int(np.argmin(fits)), damaged(what))
