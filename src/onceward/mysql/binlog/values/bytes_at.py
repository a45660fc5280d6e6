"""The bytes of a column's cells out of a block, all at once. Called by the modules beside it.
Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.mysql.binlog.rows import Block, Cells, Mask, Numbers


class BytesAt:
    """Views of a block in which each byte is the first of a word: a gather of those is one load a
    cell, aligned or not. A block has spare bytes at its end, so that the last cell may be read so
    as well.
    """

    def __init__(self, block: Block) -> None:
        self.data = block.data
        self._views: dict[str, npt.NDArray[Any]] = {}

    def words(self, kind: str, start: Numbers) -> npt.NDArray[Any]:
        """:param kind: numpy's, such as ``"<u4"``."""
        view = self._views.get(kind)
        if view is None:
            dtype = np.dtype(kind)
            shape = (len(self.data) - dtype.itemsize + 1,)
            view = self._views[kind] = np.ndarray(shape, dtype, buffer=self.data, strides=(1,))
        found: npt.NDArray[Any] = view[start]
        return found

    def big_endian(self, start: Numbers, width: int) -> Numbers:
        """Unsigned numbers of ``width`` bytes, up to 7."""
        if width == 1:
            found: Numbers = self.words("u1", start).astype(np.int64)
        elif width <= 4:
            found = self.words(">u4", start).astype(np.int64) >> (32 - 8 * width)
        else:
            found = (self.words(">u8", start) >> np.uint64(64 - 8 * width)).astype(np.int64)
        return found

    def binary(self, cells: Cells) -> pa.Array:
        """As one Arrow array. Cells and the gaps between them are one array over the block; every
        other of it is taken, which Arrow does natively.
        """
        rows = len(cells.start)
        if not rows:
            return pa.array([], pa.binary())
        assert cells.length is not None  # noqa: S101  a type with length bytes
        edges = np.empty(2 * rows, np.int32)
        edges[::2] = cells.start
        edges[1::2] = cells.start + cells.length
        both = pa.Array.from_buffers(
            pa.binary(), 2 * rows - 1, [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        )
        return both.take(pa.array(np.arange(0, 2 * rows, 2), mask=cells.null))

    def slices(self, cells: Cells) -> list[bytes | None]:
        """As Python's bytes, for types that are read one by one."""
        assert cells.length is not None  # noqa: S101  a type with length bytes
        data, null = (
            self.data,
            [False] * len(cells.start) if cells.null is None else cells.null.tolist(),
        )
        stop = (cells.start + cells.length).tolist()
        return [
            None if missing else data[first:last]
            for first, last, missing in zip(cells.start.tolist(), stop, null, strict=True)
        ]


def validity(null: Mask | None) -> pa.Buffer | None:
    """As Arrow has it."""
    return None if null is None else pa.array(~null).buffers()[1]
