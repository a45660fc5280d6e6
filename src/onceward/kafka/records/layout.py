"""Rows to the bytes of Kafka records (format v2, KIP-98, ``DefaultRecord``), a block of rows at a
time.

A record is short runs of metadata between payloads that already lie in Arrow buffers. Each row
becomes a few pieces: metadata joined into words of up to eight bytes, and the key, value and
headers where they are.

::

    metadata: length | attributes | timestamp delta | offset delta | key length
    view:     KEY
    metadata: value length
    views:    VALUE | HEADERS

Called by ``kafka.records.batch``; runs in executor tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import InvalidColumn
from onceward.kafka.records.checksum import ContentChecksum, Stretch
from onceward.kafka.records.columns import NOW, RecordColumns, binary_offsets, payload_bytes
from onceward.kafka.records.varint import (
    WORD_BYTES,
    ZERO_BYTE,
    Field,
    Int64s,
    constant,
    varints,
    zigzag_width,
)


@dataclass(frozen=True, slots=True)
class Payload:
    """n rows of bytes. Null rows cover none in ``array``: the bytes of any run lie together."""

    array: Any  # pa.BinaryArray
    lengths: Int64s  # -1 for null
    sizes: Int64s  # 0 for null
    # n + 1, into the array's data buffer
    offsets: npt.NDArray[np.int32]

    @staticmethod
    def of(array: Any) -> Payload:
        """Return the payload of any binary array, sliced or not. Copies only bytes that lie under
        nulls (Arrow allows it)."""
        offsets = binary_offsets(array)
        sizes = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
        if not array.null_count:
            return Payload(array, sizes, sizes, offsets)
        null = array.is_null().to_numpy(zero_copy_only=False)
        if sizes[null].any():
            array = array.fill_null(b"")
            offsets = binary_offsets(array)
            sizes = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
        return Payload(array, np.where(null, -1, sizes), sizes, offsets)

    def slice(self, start: int, end: int) -> Payload:
        """Return rows ``start`` up to ``end``; shares all memory."""
        return Payload(
            self.array.slice(start, end - start),
            self.lengths[start:end],
            self.sizes[start:end],
            self.offsets[start : end + 1],
        )

    def bytes_between(self, start: int, end: int) -> memoryview:
        """Return the bytes of rows ``start`` up to ``end``, without copying."""
        data = self.array.buffers()[2]
        if data is None:
            return memoryview(b"")
        return memoryview(data)[int(self.offsets[start]) : int(self.offsets[end])]


# Arrow's binary views are 16 bytes each: up to twelve bytes inline, or a pointer into a buffer. A
# row of the output is a row of views; casting them to plain binary copies every piece to its
# place. Nothing else in NumPy or Arrow copies ragged runs at this speed
# (``binary_join_element_wise`` takes two to three times as long). Needs pyarrow 19: before it,
# arrays of views could not be built from buffers, or not cast.
_INLINE = np.dtype([("size", "<i4"), ("bytes", "<u8"), ("unused", "<u4")])
_POINTER = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
# any 16-byte type: moves a view as one item
_WHOLE = np.dtype(np.complex128)
_INLINE_LIMIT = 12


def side_by_side(
    rows: int, pieces: Sequence[Any], last: Field | None = None
) -> tuple[Any, npt.NDArray[np.int32]]:
    """Join ``pieces`` (fields, or binary arrays without bytes under nulls) of each of ``rows``
    rows. Return the bytes (pa.Buffer) and the ``rows + 1`` offsets of the rows in them, less than
    2 GiB together: the caller keeps blocks small. ``last`` follows the last row once. No row costs
    a step of Python."""
    count = rows * len(pieces)
    views = np.empty(count + (last is not None), _WHOLE)
    by_row = views[:count].reshape(rows, len(pieces))
    buffers: list[Any] = []
    arrays = []
    for i, piece in enumerate(pieces):
        if isinstance(piece, Field):
            _write_inline(by_row[:, i], piece)
        else:
            arrays.append(i)
    # largest first: the first one's pointers need no renumbering
    for i in sorted(arrays, key=lambda i: payload_bytes(pieces[i]), reverse=True):
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


def _write_inline(slot: npt.NDArray[np.complex128], field: Field) -> None:
    inline = slot.view(_INLINE)
    inline["size"] = field.widths
    inline["bytes"] = field.words


def _pointers(array: Any, buffers: list[Any]) -> npt.NDArray[np.complex128]:
    """Return the views of ``array``; the buffers they point into join ``buffers``."""
    views = array.cast(pa.binary_view())
    _, raw, *data = views.buffers()
    pointers = np.frombuffer(raw, _POINTER)[views.offset : views.offset + len(array)]
    # what the view of a null row holds is undefined
    if array.null_count:
        pointers = pointers.copy()
        pointers["size"][array.is_null().to_numpy(zero_copy_only=False)] = 0
    # inline views keep bytes where the others have the number of their buffer
    if buffers:
        outside = pointers["size"] > _INLINE_LIMIT
        if outside.any():
            pointers = pointers.copy()
            pointers["buffer"][outside] += len(buffers)
    buffers.extend(data)
    return pointers.view(_WHOLE)


def header_sections(headers: Any) -> Payload:
    """Return the headers section (KIP-82, ``DefaultRecord.writeTo``) of each row, at least one, of
    a ``list<struct<key: string, value: binary>>``. A null or empty list gives one zero byte.
    Raises InvalidColumn for a header without a key."""
    counts = (
        pc.fill_null(pc.list_value_length(headers), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    # the headers of all rows, without those under null lists or outside the slice
    every = headers.flatten()
    if len(every) == 0:
        return Payload.of(_binary(*side_by_side(len(counts), [varints(counts)])))
    names, values = every.flatten()
    if every.null_count or names.null_count:
        raise InvalidColumn(
            "column 'headers' holds a header without a key",
            next_step="drop headers whose key is null in the query; only a header's value may be "
            "null",
        )
    name, value = Payload.of(names.cast(pa.binary())), Payload.of(values)
    # two lengths a header, one count a row: more than they can take
    metadata = 16 * (len(every) + 1)
    if int(name.sizes.sum()) + int(value.sizes.sum()) + metadata >= 1 << 31:
        raise InvalidColumn(
            "column 'headers' holds more than 2 GiB in one Arrow batch",
            next_step="lower spark.sql.execution.arrow.maxRecordsPerBatch",
        )
    joined, ends = side_by_side(
        len(every), [varints(name.lengths), name.array, varints(value.lengths), value.array]
    )
    by_row = _binary(joined, ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])])
    return Payload.of(_binary(*side_by_side(len(counts), [varints(counts), by_row])))


def _binary(data: Any, offsets: Any) -> Any:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    )


_LATEST_MS = 1 << 54
"""Far beyond any calendar; keeps timestamp deltas to eight bytes."""

_ZEROS = bytes(1 << 16)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one input, measured once, for any number of blocks and fragments."""

    count: int
    key: Payload | None
    key_lengths: Field
    value: Payload
    value_lengths: Field
    headers: Payload | None  # whole sections
    # None: all rows have base_ms
    timestamp_ms: Int64s | None
    base_ms: int
    # n × 2, big-endian int32: key and value length, for the checksum
    lengths: npt.NDArray[Any]

    @staticmethod
    def of(columns: RecordColumns, now_ms: int) -> Rows:
        """Return ``columns`` (at least one row) measured. Raises InvalidColumn for times and
        headers that Kafka cannot take."""
        key = None if columns.key is None else Payload.of(columns.key)
        value = Payload.of(columns.value)
        lengths = np.empty((len(columns), 2), ">i4")
        lengths[:, 0] = -1 if key is None else key.lengths
        lengths[:, 1] = value.lengths
        return Rows(
            count=len(columns),
            key=key,
            key_lengths=constant(-1) if key is None else varints(key.lengths),
            value=value,
            value_lengths=varints(value.lengths),
            headers=None if columns.headers is None else header_sections(columns.headers),
            timestamp_ms=_timestamps(columns.timestamp_ms, now_ms),
            base_ms=now_ms,
            lengths=lengths,
        )

    def size_bounds(self) -> Int64s:
        """Return for each row a size that its record will not exceed, whatever its batch."""
        spread = (
            0
            if self.timestamp_ms is None
            else int(self.timestamp_ms.max() - self.timestamp_ms.min())
        )
        fixed = 1 + zigzag_width(-spread - 1) + zigzag_width(self.count)
        sizes = self._payload_sizes(0, self.count) + (
            self.key_lengths.widths + self.value_lengths.widths + fixed
        )
        sizes += zigzag_width(int(sizes.max()))
        return sizes

    def encode(
        self, start: int, end: int, bases: Int64s, offset_deltas: Field
    ) -> tuple[Any, npt.NDArray[np.int32]]:
        """Return the records of rows ``start`` up to ``end``: their bytes, and the ``end - start +
        1`` offsets in them. ``bases``: for each row the time of the first record of its batch."""
        times = (
            ZERO_BYTE
            if self.timestamp_ms is None
            else varints(self.timestamp_ms[start:end] - bases)
        )
        key_lengths = self.key_lengths.slice(start, end)
        value_lengths = self.value_lengths.slice(start, end)
        bodies = self._payload_sizes(start, end) + (
            1 + times.widths + offset_deltas.widths + key_lengths.widths + value_lengths.widths
        )
        parts: list[Field | Payload] = [
            varints(bodies),
            ZERO_BYTE,
            times,
            offset_deltas,
            key_lengths,
        ]
        if self.key is not None:
            parts.append(self.key.slice(start, end))
        parts += [value_lengths, self.value.slice(start, end)]
        if self.headers is not None:
            return side_by_side(end - start, _packed([*parts, self.headers.slice(start, end)]))
        # No headers is one zero byte at the end of each record: it costs a piece less at the start
        # of the next one.
        data, offsets = side_by_side(end - start, _packed([ZERO_BYTE, *parts]), last=ZERO_BYTE)
        return data, offsets + 1

    def checksum(self, start: int, end: int) -> ContentChecksum:
        """Return the content checksum of rows ``start`` up to ``end``."""
        return ContentChecksum(
            Stretch.of(self.lengths[start:end]),
            Stretch(0, 0) if self.key is None else Stretch.of(self.key.bytes_between(start, end)),
            Stretch.of(self.value.bytes_between(start, end)),
            _zeros(end - start)
            if self.headers is None
            else Stretch.of(self.headers.bytes_between(start, end)),
        )

    def _payload_sizes(self, start: int, end: int) -> Int64s:
        """Return bytes of key, value and headers section of each row."""
        sizes = self.value.sizes[start:end] + (
            1 if self.headers is None else self.headers.sizes[start:end]
        )
        if self.key is not None:
            sizes += self.key.sizes[start:end]
        return sizes


def _timestamps(timestamp_ms: Int64s | None, now_ms: int) -> Int64s | None:
    if timestamp_ms is None:
        return None
    times = np.where(timestamp_ms == NOW, now_ms, timestamp_ms)
    low, high = int(times.min()), int(times.max())
    if low < 0 or high >= _LATEST_MS:
        raise InvalidColumn(
            f"column 'timestamp' holds {low if low < 0 else high} ms since 1970, which no Kafka "
            "record can have",
            next_step="give times from 1970 on, or null for the time of writing",
        )
    return times


def _packed(parts: Sequence[Field | Payload]) -> list[Any]:
    """Return neighbouring fields joined while they fit a word; payloads as their arrays."""
    pieces: list[Any] = []
    for part in parts:
        last = pieces[-1] if pieces else None
        if isinstance(part, Payload):
            pieces.append(part.array)
        elif isinstance(last, Field) and last.widest + part.widest <= WORD_BYTES:
            pieces[-1] = last.then(part)
        else:
            pieces.append(part)
    return pieces


def _zeros(count: int) -> Stretch:
    whole, rest = divmod(count, len(_ZEROS))
    return Stretch.of(*[_ZEROS] * whole, memoryview(_ZEROS)[:rest])
