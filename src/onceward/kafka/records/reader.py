"""Reader of record batches, one record at a time: for the ledger, dead letters and checks, not for
bulk.

Everything the bytes claim is checked before it is believed: a length never allocates more than the
data at hand (or, for compressed records, the caller's limit) can fill. Source: KIP-98,
``DefaultRecordBatch``, ``DefaultRecord``, ``ControlRecordType`` of kafka-clients. Called by
``kafka.wire.reads.key_reader`` (driver) and by tests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NoReturn

import crc32c

from onceward.kafka.records.compression import Codec, CorruptRecords, decompress

DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024

# Base offset, length, partition leader epoch, magic
_PREFIX = struct.Struct(">qiib")
# CRC, attributes, last offset delta, times, producer, base sequence, count
_REST = struct.Struct(">IhiqqqhiI")
_HEADER_BYTES = 61
_LENGTH_LESS = 12
_CRC_FROM = 21
_MAGIC_AT = 16
# Seven varints and bytes that no record is without
_SMALLEST_RECORD = 7
_SMALLEST_HEADER = 2
_CONTROL_KEY = struct.Struct(">hh")


class TimestampType(IntEnum):
    """Setter of the timestamps: the producer, or the broker when it appended."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The two transaction markers."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a consumer sees it. ``headers`` values may be None."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class RecordBatch:
    """One batch's header, and its records decoded when first asked for (which may raise
    CorruptRecords). ``count`` is below ``last_offset - base_offset + 1`` where compaction removed
    records, 0 where it kept the header."""

    base_offset: int
    last_offset: int
    partition_leader_epoch: int
    codec: Codec
    timestamp_type: TimestampType
    is_transactional: bool
    is_control: bool
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    size: int
    payload: memoryview = field(repr=False)
    limit_bytes: int = field(repr=False)

    @cached_property
    def records(self) -> list[Record]:
        """Return the records in offset order. Markers are records too; see ``control_type``."""
        plain = decompress(self.codec, self.payload, self.limit_bytes)
        if self.count * _SMALLEST_RECORD > len(plain):
            raise _corrupt(
                self.base_offset, f"it claims {self.count} records in {len(plain)} bytes"
            )
        cursor = _Cursor(self, plain)
        records = []
        previous = self.base_offset - 1
        for _ in range(self.count):
            record = cursor.record()
            if not previous < record.offset <= self.last_offset:
                raise _corrupt(self.base_offset, f"offset {record.offset} is out of order")
            previous = record.offset
            records.append(record)
        if cursor.at != len(plain):
            raise _corrupt(self.base_offset, "bytes are left after its last record")
        return records

    @property
    def control_type(self) -> int | None:
        """A control batch's marker (``ControlType``, or another number); None for data, and where
        the log cleaner has removed the marker: of a producer's last batch it keeps the header
        (``BatchRetention.RETAIN_EMPTY``)."""
        if not self.is_control or self.count == 0:
            return None
        key = self.records[0].key if self.records else None
        if key is None or len(key) < _CONTROL_KEY.size:
            raise _corrupt(self.base_offset, "its control record has no type")
        kind: int = _CONTROL_KEY.unpack_from(key)[1]
        return ControlType(kind) if kind in (ControlType.ABORT, ControlType.COMMIT) else kind


def read_batches(
    buf: Any, *, check_crc: bool = True, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Iterator[RecordBatch]:
    """Return the record batches in ``buf`` (anything with the buffer protocol), which they keep
    alive without copying.

    Stops silently at an incomplete last batch: brokers cut fetch responses anywhere. Raises
    CorruptRecords for everything else that is inconsistent, and for the formats before Kafka 0.11.
    ``limit_bytes`` bounds what the compressed records of one batch may expand to.
    """
    data = memoryview(buf).cast("B")
    at = 0
    while len(data) - at > _MAGIC_AT:
        base_offset, length, leader_epoch, magic = _PREFIX.unpack_from(data, at)
        if magic != 2:
            raise _corrupt(
                base_offset, f"its format is {magic}; only 2 (Kafka 0.11 and later) can be read"
            )
        if length < _HEADER_BYTES - _LENGTH_LESS:
            raise _corrupt(base_offset, f"its length is {length}, less than a header")
        size = _LENGTH_LESS + length
        if size > len(data) - at:
            return
        yield _batch(data[at : at + size], base_offset, leader_epoch, check_crc, limit_bytes)
        at += size


def _batch(
    data: memoryview, base_offset: int, leader_epoch: int, check_crc: bool, limit_bytes: int
) -> RecordBatch:
    crc, attributes, last_delta, base_ms, max_ms, producer_id, epoch, sequence, count = (
        _REST.unpack_from(data, _PREFIX.size)
    )
    if check_crc and crc32c.crc32c(data[_CRC_FROM:]) != crc:
        raise _corrupt(base_offset, "its CRC does not fit its bytes")
    if attributes & 7 > max(Codec):
        raise _corrupt(base_offset, f"its codec {attributes & 7} does not exist")
    if last_delta < 0 or count > last_delta + 1:
        raise _corrupt(base_offset, f"it claims {count} records in {last_delta + 1} offsets")
    return RecordBatch(
        base_offset=base_offset,
        last_offset=base_offset + last_delta,
        partition_leader_epoch=leader_epoch,
        codec=Codec(attributes & 7),
        timestamp_type=TimestampType(attributes >> 3 & 1),
        is_transactional=bool(attributes & 0x10),
        is_control=bool(attributes & 0x20),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
        size=len(data),
        payload=data[_HEADER_BYTES:],
        limit_bytes=limit_bytes,
    )


class _Cursor:
    """Position in the bytes of a batch's records; every step stays inside them."""

    def __init__(self, batch: RecordBatch, data: bytes) -> None:
        self.batch = batch
        self.data = data
        self.at = 0

    def record(self) -> Record:
        length = self.varint()
        end = self.at + length
        if length < 0 or end > len(self.data):
            self.corrupt("a record is longer than the batch")
        # Attributes of a record: none are defined
        self.take(1)
        timestamp_delta = self.varint()
        offset = self.batch.base_offset + self.varint()
        key = self.nullable()
        value = self.nullable()
        headers = self.headers()
        if self.at != end:
            self.corrupt("a record is not as long as it says")
        appended = self.batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        stamped = (
            self.batch.max_timestamp_ms
            if appended
            else self.batch.base_timestamp_ms + timestamp_delta
        )
        return Record(offset, stamped, key, value, headers)

    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        count = self.varint()
        if not 0 <= count * _SMALLEST_HEADER <= len(self.data) - self.at:
            self.corrupt(f"a record claims {count} headers")
        return tuple((self.header_name(), self.nullable()) for _ in range(count))

    def header_name(self) -> str:
        name = self.nullable()
        if name is None:
            self.corrupt("a header has no key")
        # Brokers take any bytes, as other clients than Java's write them: read as Java's does
        return name.decode(errors="replace")

    def nullable(self) -> bytes | None:
        length = self.varint()
        if length < -1:
            self.corrupt(f"a length is {length}")
        return None if length == -1 else self.take(length)

    def take(self, length: int) -> bytes:
        data = self.data[self.at : self.at + length]
        if len(data) != length:
            self.corrupt("a field runs past its end")
        self.at += length
        return data

    def varint(self) -> int:
        """Read one zigzag varint of at most ten bytes."""
        unsigned = 0
        for shift in range(0, 70, 7):
            if self.at >= len(self.data):
                self.corrupt("a number runs past its end")
            byte = self.data[self.at]
            self.at += 1
            unsigned |= (byte & 0x7F) << shift
            if byte < 0x80:
                return unsigned >> 1 ^ -(unsigned & 1)
        return self.corrupt("a number has more than ten bytes")

    def corrupt(self, reason: str) -> NoReturn:
        raise _corrupt(self.batch.base_offset, reason)


def _corrupt(base_offset: int, reason: str) -> CorruptRecords:
    return CorruptRecords(
        f"the record batch at offset {base_offset} is damaged: {reason}",
        next_step="read the partition again; if it stays, check the broker's log with "
        "kafka-dump-log",
        details={"base_offset": base_offset},
    )
