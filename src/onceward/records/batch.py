"""Kafka record batches (format v2) from columns: first everything that does not depend on the producer, then the stamp.

A :class:`Fragment` is encoded while its partition may still be leased to another task; :func:`stamp` writes the
61-byte header once producer id, epoch and base sequence are known, and copies nothing.

Called by the Kafka sink's tasks and the ledger writer. Source: KIP-98, ``DefaultRecordBatch`` of kafka-clients.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np

from onceward.errors import ConfigurationError, RecordTooLarge
from onceward.ids import ProducerIdentity
from onceward.records.checksum import ContentChecksum
from onceward.records.columns import RecordColumns
from onceward.records.compression import Codec, compress
from onceward.records.layout import Rows
from onceward.records.varint import Field, Int64s, ascending

HEADER_BYTES = 61
MAX_SEQUENCE = (1 << 31) - 1

_OUTER = struct.Struct(">qiibI")  # base offset, length, partition leader epoch, magic, CRC-32C
_INNER = struct.Struct(">hiqqqhii")  # attributes … record count: what the CRC covers, with the records
_LENGTH_LESS = 12  # base offset and the length itself are not counted in the length
_MAGIC = 2
_TRANSACTIONAL = 0x10
_LARGEST_BATCH = (1 << 31) - 1
_BLOCK_BYTES = 2 * 1024 * 1024  # rows encoded at a time: enough to pay for the calls, little enough for the cache


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """One future record batch, complete but for producer id, epoch and base sequence."""

    records: Any  # bytes | memoryview | pa.Buffer: the records section as it goes on the wire
    count: int
    codec: Codec
    base_timestamp_ms: int
    max_timestamp_ms: int
    checksum: ContentChecksum

    @property
    def size(self) -> int:
        """Bytes on the wire, header included."""
        return HEADER_BYTES + len(self.records)


def encode_fragments(
    columns: RecordColumns,
    *,
    codec: Codec,
    batch_bytes: int,
    now_ms: int,
    compression_level: int | None = None,
) -> list[Fragment]:
    """``columns`` as record batches of at most ``batch_bytes`` each, header included, in input order.

    Sizes are judged before compression, and never below the truth. A record that alone exceeds ``batch_bytes`` is
    compressed alone; raises RecordTooLarge when it is still too large. A batch that compression would enlarge travels
    uncompressed. Raises BadColumn for timestamps and headers that no Kafka record can have.
    """
    if not HEADER_BYTES < batch_bytes <= _LARGEST_BATCH:
        raise ConfigurationError(
            f"batch.size={batch_bytes} is no usable size", next_step=f"choose {HEADER_BYTES + 1} to {_LARGEST_BATCH}"
        )
    if len(columns) == 0:
        return []
    rows = Rows.of(columns, now_ms)
    ends = np.cumsum(rows.size_bounds())
    fragments = []
    for cuts in _blocks(ends, _cuts(ends, batch_bytes - HEADER_BYTES)):
        _refuse_unencodable(ends, cuts, batch_bytes)
        fragments += _encode_block(rows, cuts, codec, batch_bytes, compression_level)
    return fragments


def stamp(
    fragment: Fragment, identity: ProducerIdentity, base_sequence: int, *, transactional: bool
) -> list[bytes | Any]:
    """The record batch as two buffers: its header, and ``fragment.records`` itself, not copied.

    ``base_sequence`` is the first record's sequence (-1 with producer id -1, for a producer without idempotence).
    The broker assigns base offset and partition leader epoch; they are outside the CRC.
    """
    inner = _INNER.pack(
        fragment.codec | (_TRANSACTIONAL if transactional else 0),
        fragment.count - 1,
        fragment.base_timestamp_ms,
        fragment.max_timestamp_ms,
        identity.producer_id,
        identity.epoch,
        base_sequence,
        fragment.count,
    )
    crc = crc32c.crc32c(fragment.records, crc32c.crc32c(inner))
    return [_OUTER.pack(0, fragment.size - _LENGTH_LESS, -1, _MAGIC, crc) + inner, fragment.records]


def next_sequence(sequence: int, count: int) -> int:
    """The sequence after ``count`` records from ``sequence`` on; 2**31 - 1 is followed by 0.

    ``DefaultRecordBatch.incrementSequence`` of kafka-clients.
    """
    return (sequence + count) % (MAX_SEQUENCE + 1)


def _cuts(ends: Int64s, room: int) -> list[int]:
    """Row numbers that part the rows into batches whose sizes stay within ``room`` (one row at least)."""
    cuts = [0]
    while cuts[-1] < len(ends):
        filled = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cut = int(np.searchsorted(ends, filled + room, side="right"))
        cuts.append(max(cut, cuts[-1] + 1))
    return cuts


def _blocks(ends: Int64s, cuts: list[int]) -> Iterator[list[int]]:
    """Consecutive cuts in groups worth encoding together; each group repeats the last cut of the one before."""
    first = 0
    for i in range(1, len(cuts)):
        start = int(ends[cuts[first] - 1]) if cuts[first] else 0
        last = i == len(cuts) - 1
        if last or int(ends[cuts[i + 1] - 1]) - start > _BLOCK_BYTES:
            yield cuts[first : i + 1]
            first = i


def _refuse_unencodable(ends: Int64s, cuts: list[int], batch_bytes: int) -> None:
    size = int(ends[cuts[-1] - 1]) - (int(ends[cuts[0] - 1]) if cuts[0] else 0)
    if size > _LARGEST_BATCH - HEADER_BYTES:
        raise _too_large(size, batch_bytes)


def _encode_block(rows: Rows, cuts: list[int], codec: Codec, batch_bytes: int, level: int | None) -> list[Fragment]:
    start = cuts[0]
    counts = np.diff(cuts)
    deltas = [ascending(count) for count in counts.tolist()]
    bases = np.zeros(1, np.int64) if rows.timestamp_ms is None else np.repeat(rows.timestamp_ms[cuts[:-1]], counts)
    data, offsets = rows.encode(start, cuts[-1], bases, _one_after_the_other(deltas))
    view = memoryview(data)
    return [
        _fragment(rows, view[int(offsets[a - start]) : int(offsets[b - start])], a, b, codec, batch_bytes, level)
        for a, b in itertools.pairwise(cuts)
    ]


def _one_after_the_other(fields: list[Field]) -> Field:
    if len(fields) == 1:
        return fields[0]
    return Field(
        np.concatenate([field.words for field in fields]),
        np.concatenate([field.widths for field in fields]),
        max(field.widest for field in fields),
    )


def _fragment(
    rows: Rows, plain: memoryview, start: int, end: int, codec: Codec, batch_bytes: int, level: int | None
) -> Fragment:
    records: Any = plain
    if codec is not Codec.NONE:
        compressed = compress(codec, plain, level)
        records, codec = (compressed, codec) if len(compressed) < len(plain) else (plain, Codec.NONE)
    if HEADER_BYTES + len(records) > batch_bytes:
        raise _too_large(HEADER_BYTES + len(records), batch_bytes)
    times = rows.timestamp_ms
    return Fragment(
        records=records,
        count=end - start,
        codec=codec,
        base_timestamp_ms=rows.base_ms if times is None else int(times[start]),
        max_timestamp_ms=rows.base_ms if times is None else int(times[start:end].max()),
        checksum=rows.checksum(start, end),
    )


def _too_large(size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"one record takes {size} bytes and a batch may have {limit}",
        next_step="raise batch.size, max.request.size and the topic's max.message.bytes, or make the record smaller",
        details={"record_bytes": size, "limit_bytes": limit},
    )
