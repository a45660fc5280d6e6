"""Record batches as bytes: the header's fields, the offset that the broker writes into it,
transaction markers.

Source: ``DefaultRecordBatch``, ``DefaultRecord``, ``EndTransactionMarker`` and
``ControlRecordType`` of kafka-clients. Shares no code with Onceward: what it encodes wrongly must
not be read back just as wrongly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import crc32c

from support.varints import varint

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last delta, first and last time,
producer, epoch, sequence, count.
"""
HEADER_BYTES = 61
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1
_BASE = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_COVERED = struct.Struct(">hiqqqhii")
_COVERED_FROM = 21
_FRONT = struct.Struct(">qiibI")

Payload = tuple[bytes | None, bytes | None]


def placed(head: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The header as the leader stores it: neither field is covered by the CRC."""
    return _BASE.pack(base_offset) + head[8:12] + _EPOCH.pack(leader_epoch) + head[16:]


def whole(data: bytes) -> bool:
    """Does the CRC fit? A leader looks at it before it appends (``LogValidator``,
    CORRUPT_MESSAGE).
    """
    return (
        len(data) >= HEADER_BYTES
        and crc32c.crc32c(data[_COVERED_FROM:]) == HEADER.unpack_from(data)[4]
    )


def marker(
    base_offset: int,
    leader_epoch: int,
    time_ms: int,
    producer_id: int,
    epoch: int,
    kind: int,
    coordinator_epoch: int,
) -> bytes:
    """A control batch with its one record (``MemoryRecords.withEndTransactionMarker``)."""
    key = struct.pack(">hh", 0, kind)
    value = struct.pack(">hi", 0, coordinator_epoch)
    record = b"\0\0\0" + varint(len(key)) + key + varint(len(value)) + value + b"\0"
    body = varint(len(record)) + record
    covered = (
        _COVERED.pack(TRANSACTIONAL | CONTROL, 0, time_ms, time_ms, producer_id, epoch, -1, 1)
        + body
    )
    front = _FRONT.pack(
        base_offset, HEADER_BYTES - 12 + len(body), leader_epoch, 2, crc32c.crc32c(covered)
    )
    return front + covered


def records(head: bytes, body: bytes) -> Iterator[tuple[int, bytes, Payload]]:
    """Per record of an uncompressed batch: its offset delta, all its bytes, and key with value."""
    if HEADER.unpack(head)[5] & 7:
        raise ValueError("the model does not look into compressed batches")
    at = 0
    for _ in range(HEADER.unpack(head)[12]):
        start = at
        length, at = _read_varint(body, at)
        end = at + length
        _, at = _read_varint(body, at + 1)  # attributes, time
        delta, at = _read_varint(body, at)
        key, at = _read_bytes(body, at)
        value, at = _read_bytes(body, at)
        yield delta, body[start:end], (key, value)
        at = end


def lacks_a_key(head: bytes, body: bytes) -> bool:
    """Has one of the records no key? What is no records at all is not judged: the simulation's
    payloads are not.
    """
    if HEADER.unpack(head)[5] & 7:
        return False
    try:
        return any(key is None for _, _, (key, _) in records(head, body))
    except (IndexError, ValueError):
        return False


def rewritten(head: bytes, kept: list[bytes]) -> tuple[bytes, bytes]:
    """The batch with only ``kept`` of its records, as compaction leaves it: the same offsets, and
    a CRC that fits.
    """
    (
        base,
        _,
        leader_epoch,
        magic,
        _,
        attributes,
        last,
        first_ms,
        last_ms,
        producer,
        epoch,
        sequence,
        _,
    ) = HEADER.unpack(head)
    body = b"".join(kept)
    covered = _COVERED.pack(
        attributes, last, first_ms, last_ms, producer, epoch, sequence, len(kept)
    )
    crc = crc32c.crc32c(body, crc32c.crc32c(covered))
    return _FRONT.pack(
        base, HEADER_BYTES - 12 + len(body), leader_epoch, magic, crc
    ) + covered, body


def _read_varint(data: Any, at: int) -> tuple[int, int]:
    unsigned = shift = 0
    while True:
        byte = data[at]
        at += 1
        unsigned |= (byte & 0x7F) << shift
        if byte < 0x80:
            return unsigned >> 1 ^ -(unsigned & 1), at
        shift += 7


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)
