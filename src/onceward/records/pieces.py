"""Ragged bytes put side by side, row by row, in C++: the one copying kernel of ``records``.

Arrow's binary views are 16 bytes each: either up to twelve bytes inline, or a pointer into some buffer. A row of the
output is a row of views; casting them to plain binary copies every piece to its place. Nothing else in NumPy or
Arrow copies ragged runs at this speed (``binary_join_element_wise`` takes two to three times as long).

Called by ``records.layout`` and ``records.headers``; runs in executor tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.records.varint import Field

_INLINE = np.dtype([("size", "<i4"), ("bytes", "<u8"), ("unused", "<u4")])
_POINTER = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
_WHOLE = np.dtype(np.complex128)  # any 16-byte type: moves a view as one item
_INLINE_LIMIT = 12


def side_by_side(rows: int, pieces: Sequence[Any]) -> tuple[Any, npt.NDArray[np.int32]]:
    """``pieces`` (fields, or binary arrays without bytes under nulls) of each of ``rows`` rows, joined.

    Returns the bytes (pa.Buffer) and the ``rows + 1`` offsets of the rows in them, less than 2 GiB together: the
    caller keeps blocks small. No row costs a step of Python.
    """
    views = np.empty((rows, len(pieces)), _WHOLE)
    buffers: list[Any] = []
    for i, piece in enumerate(pieces):
        if isinstance(piece, Field):
            slot = views.view(_INLINE)[:, i]
            slot["size"] = piece.widths
            slot["bytes"] = piece.words
        else:
            views[:, i] = _pointers(piece, buffers)
    flat = pa.Array.from_buffers(pa.binary_view(), views.size, [None, pa.py_buffer(views), *buffers])
    joined = flat.cast(pa.binary())
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][: views.size + 1 : len(pieces)]
    return joined.buffers()[2], offsets


def _pointers(array: Any, buffers: list[Any]) -> npt.NDArray[np.complex128]:
    """The views of ``array``; the buffer they point into joins ``buffers``."""
    views = array.cast(pa.binary_view())
    _, raw, *data = views.buffers()
    pointers = np.frombuffer(raw, _POINTER)[views.offset : views.offset + len(array)]
    if array.null_count or (buffers and data):
        pointers = pointers.copy()
        if array.null_count:
            pointers["size"][array.is_null().to_numpy(zero_copy_only=False)] = 0
        if buffers:  # inline views keep bytes where the others have the number of their buffer
            pointers["buffer"][pointers["size"] > _INLINE_LIMIT] += len(buffers)
    buffers.extend(data)
    return pointers.view(_WHOLE)
