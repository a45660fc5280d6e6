"""Ragged bytes put side by side, row by row, in C++: the one copying kernel of ``records``.

Arrow's binary views are 16 bytes each: either up to twelve bytes inline, or a pointer into some
buffer. A row of the output is a row of views; casting them to plain binary copies every piece to
its place. Nothing else in NumPy or Arrow copies ragged runs at this speed
(``binary_join_element_wise`` takes two to three times as long).

Needs pyarrow 19 or later: before it, arrays of views could not be built from buffers, or not cast.
Called by ``kafka.records.layout`` and ``kafka.records.headers``; runs in executor tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.kafka.records.columns import payload_bytes
from onceward.kafka.records.varint import Field

_INLINE = np.dtype([("size", "<i4"), ("bytes", "<u8"), ("unused", "<u4")])
_POINTER = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
_WHOLE = np.dtype(np.complex128)  # any 16-byte type: moves a view as one item
_INLINE_LIMIT = 12


def side_by_side(
    rows: int, pieces: Sequence[Any], last: Field | None = None
) -> tuple[Any, npt.NDArray[np.int32]]:
    """``pieces`` (fields, or binary arrays without bytes under nulls) of each of ``rows`` rows,
    joined.

    Returns the bytes (pa.Buffer) and the ``rows + 1`` offsets of the rows in them, less than 2 GiB
    together: the caller keeps blocks small. ``last`` follows the last row once. No row costs a
    step of Python.
    """
    count = rows * len(pieces)
    views = np.empty(count + (last is not None), _WHOLE)
    by_row = views[:count].reshape(rows, len(pieces))
    buffers: list[Any] = []
    for i in sorted(range(len(pieces)), key=lambda i: _bytes_held(pieces[i]), reverse=True):
        if isinstance(pieces[i], Field):
            _write_inline(by_row[:, i], pieces[i])
        else:
            by_row[:, i] = _pointers(pieces[i], buffers)
    if last is not None:
        _write_inline(views[count:], last)
    flat = pa.Array.from_buffers(
        pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers]
    )
    joined = flat.cast(pa.binary())
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][
        : count + 1 : len(pieces)
    ]
    return joined.buffers()[2], offsets


def _bytes_held(piece: Any) -> int:
    """For the order: the largest column first, because the first one's pointers need no
    renumbering.
    """
    return -1 if isinstance(piece, Field) else payload_bytes(piece)


def _write_inline(slot: npt.NDArray[np.complex128], field: Field) -> None:
    inline = slot.view(_INLINE)
    inline["size"] = field.widths
    inline["bytes"] = field.words


def _pointers(array: Any, buffers: list[Any]) -> npt.NDArray[np.complex128]:
    """The views of ``array``; the buffers they point into join ``buffers``."""
    views = array.cast(pa.binary_view())
    _, raw, *data = views.buffers()
    pointers = np.frombuffer(raw, _POINTER)[views.offset : views.offset + len(array)]
    if array.null_count:  # what the view of a null row holds is undefined
        pointers = pointers.copy()
        pointers["size"][array.is_null().to_numpy(zero_copy_only=False)] = 0
    if buffers:  # inline views keep bytes where the others have the number of their buffer
        outside = pointers["size"] > _INLINE_LIMIT
        if outside.any():
            pointers = pointers.copy()
            pointers["buffer"][outside] += len(buffers)
    buffers.extend(data)
    return pointers.view(_WHOLE)
