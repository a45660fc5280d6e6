"""A binary column with what encoding asks of it again and again. Called by
``kafka.records.layout`` and its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.kafka.records.columns import offsets_of
from onceward.kafka.records.varint import Int64s


@dataclass(frozen=True, slots=True)
class Payload:
    """n rows of bytes. Null rows cover no bytes in ``array``, so the bytes of any run of rows lie
    together.
    """

    array: Any  # pa.BinaryArray
    lengths: Int64s  # -1 for null
    sizes: Int64s  # 0 for null
    offsets: npt.NDArray[np.int32]  # n + 1, into the array's data buffer

    @staticmethod
    def of(array: Any) -> Payload:
        """The payload of any binary array, sliced or not. Copies only bytes that lie under nulls
        (Arrow allows it).
        """
        offsets = offsets_of(array)
        sizes = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
        if not array.null_count:
            return Payload(array, sizes, sizes, offsets)
        null = array.is_null().to_numpy(zero_copy_only=False)
        if sizes[null].any():
            array = array.fill_null(b"")
            offsets = offsets_of(array)
            sizes = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
        return Payload(array, np.where(null, -1, sizes), sizes, offsets)

    def slice(self, start: int, end: int) -> Payload:
        """Rows ``start`` up to ``end``; shares all memory."""
        return Payload(
            self.array.slice(start, end - start),
            self.lengths[start:end],
            self.sizes[start:end],
            self.offsets[start : end + 1],
        )

    def bytes_between(self, start: int, end: int) -> memoryview:
        """The bytes of rows ``start`` up to ``end``, without copying."""
        data = self.array.buffers()[2]
        if data is None:
            return memoryview(b"")
        return memoryview(data)[int(self.offsets[start]) : int(self.offsets[end])]
