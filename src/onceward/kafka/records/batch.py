"""Kafka record batches (format v2) from columns: first everything that does not depend on the
producer, then the stamp.

A :class:`Fragment` is encoded while its partition may still be leased to another task;
:func:`stamp` writes the 61-byte header once producer id, epoch and base sequence are known, and
copies nothing.

Called by the Kafka sink's tasks and the ledger writer. Source: KIP-98, ``DefaultRecordBatch`` of
kafka-clients.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np

from onceward.errors import ConfigurationError, RecordTooLarge
from onceward.ids import ProducerIdentity
from onceward.kafka.records.checksum import ContentChecksum
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec, check_level, compress
from onceward.kafka.records.layout import Rows
from onceward.kafka.records.varint import Int64s, ascending, one_after_the_other

HEADER_BYTES = 61
MAX_SEQUENCE = (1 << 31) - 1

# Base offset, length, partition leader epoch, magic, CRC-32C
_OUTER = struct.Struct(">qiibI")
# attributes … record count: what the CRC covers, with the records
_INNER = struct.Struct(">hiqqqhii")
# Base offset and the length itself are not counted in the length
_LENGTH_LESS = 12
_MAGIC = 2
_TRANSACTIONAL = 0x10
_LARGEST_BATCH = (1 << 31) - 1

# Rows encoded at a time: enough to pay for the calls, few enough for the cache.
_BLOCK_ROWS = 16 * 1024
_BLOCK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """One future record batch, complete but for producer id, epoch and base sequence. Uncompressed
    ``records`` are a view of a block that neighbouring fragments share (about 8 MiB, or one
    fragment when that is larger): its memory is free when the last of them is."""

    # bytes | memoryview | pa.Buffer: the records section as it goes on the wire
    records: Any
    count: int
    codec: Codec
    base_timestamp_ms: int
    max_timestamp_ms: int
    checksum: ContentChecksum

    @property
    def size(self) -> int:
        """Return bytes on the wire, header included."""
        return HEADER_BYTES + len(self.records)


def encode_fragments(
    columns: RecordColumns,
    *,
    codec: Codec,
    batch_bytes: int,
    now_ms: int,
    record_bytes: int | None = None,
    compression_level: int | None = None,
) -> list[Fragment]:
    """Return ``columns`` as record batches of at most ``batch_bytes`` each, header included, in
    input order.

    Sizes are judged before compression, and never below the truth. A record that alone exceeds
    ``batch_bytes`` gets a batch of its own; raises RecordTooLarge when that, compressed, exceeds
    ``record_bytes`` (default: ``batch_bytes``). A batch that compression would enlarge travels
    uncompressed. Raises InvalidColumn for timestamps and headers that no Kafka record can have.
    """
    if len(columns) == 0:
        return []
    options = _Options(codec, compression_level, batch_bytes, record_bytes or batch_bytes, now_ms)
    return [fragment for _, fragment in _encoded(columns, [len(columns)], options)]


def encode_runs(
    columns: RecordColumns,
    ends: Sequence[int],
    *,
    codec: Codec,
    batch_bytes: int,
    now_ms: int,
    record_bytes: int | None = None,
    compression_level: int | None = None,
) -> list[list[Fragment]]:
    """What :func:`encode_fragments` makes of each run of rows, which goes from the last one's end
    to its own. Every run has at least one row, and the last one ends with the rows. Much cheaper
    than one call a run when there are many runs with few rows each."""
    fragments: list[list[Fragment]] = [[] for _ in ends]
    run = 0
    options = _Options(codec, compression_level, batch_bytes, record_bytes or batch_bytes, now_ms)
    for start, fragment in _encoded(columns, list(ends), options):
        while start >= ends[run]:
            run += 1
        fragments[run].append(fragment)
    return fragments


def stamp(
    fragment: Fragment, identity: ProducerIdentity, base_sequence: int, *, transactional: bool
) -> list[bytes | Any]:
    """Return the record batch as two buffers: its header, and ``fragment.records``, not copied.
    ``base_sequence`` is the first record's (-1 with producer id -1, without idempotence). The
    broker assigns base offset and partition leader epoch; they are outside the CRC."""
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
    return [
        _OUTER.pack(0, fragment.size - _LENGTH_LESS, -1, _MAGIC, crc) + inner,
        fragment.records,
    ]


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence ``count`` records after ``sequence``; 2**31 - 1 is followed by 0
    (``DefaultRecordBatch.incrementSequence`` of kafka-clients)."""
    return (sequence + count) % (MAX_SEQUENCE + 1)


@dataclass(frozen=True, slots=True)
class _Options:
    codec: Codec
    level: int | None
    batch_bytes: int
    record_bytes: int
    now_ms: int

    def __post_init__(self) -> None:
        check_level(self.codec, self.level)
        if not HEADER_BYTES < self.batch_bytes <= _LARGEST_BATCH:
            raise ConfigurationError(
                f"batch.size={self.batch_bytes} is no usable size",
                next_step=f"choose {HEADER_BYTES + 1} to {_LARGEST_BATCH} bytes",
            )


def _encoded(
    columns: RecordColumns, borders: list[int], options: _Options
) -> Iterator[tuple[int, Fragment]]:
    """Return fragments with their first row; none crosses ``borders``, which end with the rows."""
    if not borders:
        return
    rows = Rows.of(columns, options.now_ms)
    # Byte positions of the rows if all records lay one after the other.
    positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.size_bounds())])
    cuts = _cuts(positions, borders, options.batch_bytes - HEADER_BYTES)
    for block in _blocks(positions, cuts):
        size = int(positions[block[-1]] - positions[block[0]])
        # only a single record can be; Arrow could not hold it
        if size > _LARGEST_BATCH - HEADER_BYTES:
            raise _too_large(size, options.record_bytes)
        yield from _encode_block(rows, block, options)


def _cuts(positions: Int64s, borders: list[int], room: int) -> list[int]:
    """Return row numbers that part the rows into batches of at most ``room`` bytes or one row."""
    cuts = [0]
    for border in borders:
        while cuts[-1] < border:
            fitting = int(np.searchsorted(positions, positions[cuts[-1]] + room, side="right")) - 1
            cuts.append(min(max(fitting, cuts[-1] + 1), border))
    return cuts


def _blocks(positions: Int64s, cuts: list[int]) -> Iterator[list[int]]:
    """Return the cuts in groups to encode together; each begins with the last cut before it."""
    first = 0
    for i in range(1, len(cuts)):
        start, end = cuts[first], cuts[min(i + 1, len(cuts) - 1)]
        fits = end - start <= _BLOCK_ROWS and positions[end] - positions[start] <= _BLOCK_BYTES
        if i == len(cuts) - 1 or not fits:
            yield cuts[first : i + 1]
            first = i


def _encode_block(
    rows: Rows, cuts: list[int], options: _Options
) -> Iterator[tuple[int, Fragment]]:
    start, end = cuts[0], cuts[-1]
    counts = np.diff(cuts)
    deltas = one_after_the_other([ascending(count) for count in counts.tolist()])
    bases = (
        np.zeros(1, np.int64)
        if rows.timestamp_ms is None
        else np.repeat(rows.timestamp_ms[cuts[:-1]], counts)
    )
    data, offsets = rows.encode(start, end, bases, deltas)
    view = memoryview(data)
    ends = offsets[np.subtract(cuts, start)].tolist()
    for (a, b), (low, high) in zip(
        itertools.pairwise(cuts), itertools.pairwise(ends), strict=True
    ):
        yield a, _fragment(rows, view[low:high], a, b, options)


def _fragment(rows: Rows, plain: memoryview, start: int, end: int, options: _Options) -> Fragment:
    codec, records = _compressed(plain, options)
    # several are cut to size
    if end - start == 1 and HEADER_BYTES + len(records) > options.record_bytes:
        raise _too_large(HEADER_BYTES + len(records), options.record_bytes)
    times = rows.timestamp_ms
    return Fragment(
        records=records,
        count=end - start,
        codec=codec,
        base_timestamp_ms=rows.base_ms if times is None else int(times[start]),
        max_timestamp_ms=rows.base_ms if times is None else int(times[start:end].max()),
        checksum=rows.checksum(start, end),
    )


def _compressed(plain: memoryview, options: _Options) -> tuple[Codec, Any]:
    if options.codec is not Codec.NONE:
        compressed = compress(options.codec, plain, options.level)
        if len(compressed) < len(plain):
            return options.codec, compressed
    return Codec.NONE, plain


def _too_large(size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"one record takes {size} bytes and may have {limit} (max.request.size)",
        next_step="raise max.request.size (options= of the sink) and the topic's "
        "max.message.bytes, or make the record smaller",
        details={"record_bytes": size, "limit_bytes": limit},
    )
