"""Rows to the bytes of Kafka records (format v2, KIP-98, ``DefaultRecord``), a block of rows at a
time.

A record is short runs of metadata between payloads that already lie in Arrow buffers. Each row
becomes a few pieces: metadata joined into words of up to eight bytes, and the key, value and
headers where they are.

::

    record:  length | attributes | timestamp delta | offset delta | key length | KEY | value length | VALUE | HEADERS
    pieces:  [------------------- metadata --------------------------------][view][-- metadata --][view ][ view  ]

Called by ``kafka.records.batch``; runs in executor tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.errors import InvalidColumn
from onceward.kafka.records.checksum import ContentChecksum, Stretch
from onceward.kafka.records.columns import NOW, RecordColumns
from onceward.kafka.records.headers import header_sections
from onceward.kafka.records.payload import Payload
from onceward.kafka.records.pieces import side_by_side
from onceward.kafka.records.varint import (
    WORD_BYTES,
    ZERO_BYTE,
    Field,
    Int64s,
    constant,
    varints,
    zigzag_width,
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
    timestamp_ms: Int64s | None  # None: all rows have base_ms
    base_ms: int
    lengths: npt.NDArray[Any]  # n × 2, big-endian int32: key and value length, for the checksum

    @staticmethod
    def of(columns: RecordColumns, now_ms: int) -> Rows:
        """``columns`` (at least one row) measured. Raises InvalidColumn for times and headers that
        Kafka cannot take.
        """
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
        """For each row a number of bytes that its record will not exceed, whatever batch it ends
        up in.
        """
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
        """The records of rows ``start`` up to ``end``: their bytes, and the ``end - start + 1``
        offsets in them.

        ``bases`` holds each row's base timestamp: that of the first record of its batch.
        """
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
        """The content checksum of rows ``start`` up to ``end``."""
        return ContentChecksum(
            Stretch.of(self.lengths[start:end]),
            Stretch(0, 0) if self.key is None else Stretch.of(self.key.bytes_between(start, end)),
            Stretch.of(self.value.bytes_between(start, end)),
            _zeros(end - start)
            if self.headers is None
            else Stretch.of(self.headers.bytes_between(start, end)),
        )

    def _payload_sizes(self, start: int, end: int) -> Int64s:
        """Bytes of key, value and headers section of each row."""
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
            f"record can have",
            next_step="give times from 1970 on, or null for the time of writing",
        )
    return times


def _packed(parts: Sequence[Field | Payload]) -> list[Any]:
    """Neighbouring fields joined while they fit a word; payloads as their arrays."""
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
