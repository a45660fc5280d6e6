"""Compressed transactions of MySQL, and compressed rows and statements of MariaDB:
:func:`decompress`. Pure.

Memory is never allocated by a length in the data: decompression yields blocks, and a length that
turns out to be wrong is an error.

Source: MySQL, ``libs/mysql/binlog/event/codecs/binary.cpp`` and ``compression/``; MariaDB,
``sql/log_event.cc`` (``binlog_buf_compress``), ``sql/log_event_server.cc``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pyarrow as pa

from onceward.mysql.binlog.event import (
    COMPRESSED_ROWS_EVENTS,
    HEADER_BYTES,
    QUERY,
    QUERY_COMPRESSED,
    SECOND_VERSION,
    TRANSACTION_PAYLOAD,
    BinlogEvent,
    damaged_event,
    unreadable_event,
)
from onceward.mysql.binlog.fields import EventFields
from onceward.mysql.binlog.framing import MOST_BYTES

COMPRESSED_EVENTS = frozenset({TRANSACTION_PAYLOAD, QUERY_COMPRESSED, *COMPRESSED_ROWS_EVENTS})

_HEADER = struct.Struct("<IBIIIH")
# fields of a payload
_END, _SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 1, 2, 3
_ZSTD, _NONE = 0, 255
_BLOCK_BYTES = 1 << 20
# Rows events with two bitmaps of columns
_UPDATES = frozenset({24, 31})


def decompress(event: BinlogEvent) -> Iterator[BinlogEvent]:
    """Yield the events that ``event`` contains, or itself if it is not compressed. Those of a
    payload have their number in ``inner``, and are made one by one: a block is in memory, not the
    transaction.

    :raises BinlogCorrupted: its lengths are wrong.
    :raises ChangeUnreadable: the compression method is unknown.
    """
    if event.kind == TRANSACTION_PAYLOAD:
        yield from _payload_events(event)
    elif event.kind == QUERY_COMPRESSED:
        yield _inflate(event, QUERY, _statement_start(event))
    elif event.kind in COMPRESSED_ROWS_EVENTS:
        kind = COMPRESSED_ROWS_EVENTS[event.kind]
        yield _inflate(event, kind, _rows_start(event, kind))
    else:
        yield event


def _payload_events(event: BinlogEvent) -> Iterator[BinlogEvent]:
    fields = EventFields(event)
    values: dict[int, int] = {}
    while (kind := fields.lenenc_int()) != _END:
        length = fields.lenenc_int()
        value = EventFields(event, fields.take(length))
        if kind in (_SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE):
            values[kind] = value.lenenc_int()
    # ``uncompressed_size`` is for information only, and need not be the last field: newer servers
    # may add others, each with its length.
    if values.get(_SIZE) != fields.remaining:
        raise damaged_event(event, f"a payload of {values.get(_SIZE)} bytes in {fields.remaining}")
    compression = values.get(_COMPRESSION)
    if compression not in (_ZSTD, _NONE):
        raise unreadable_event(
            event, "unknown_event", "a transaction compressed in a way that is not known "
                                    f"({compression})",
            "set binlog_transaction_compression=OFF on the server, or look for a newer Onceward",
            loss="the whole transaction, of which nothing can be read",
        )  # fmt: skip
    blocks = (
        _zstd(event, fields.take_rest(), values.get(_UNCOMPRESSED_SIZE))
        if compression == _ZSTD
        else [fields.take_rest()]
    )
    yield from _split_events(event, iter(blocks))


def _zstd(event: BinlogEvent, data: memoryview, size: int | None) -> Iterator[bytes]:
    """Yield decompressed blocks; a single one if it is small."""
    came = 0
    try:
        if size is not None and size <= _BLOCK_BYTES:
            yield pa.decompress(data, decompressed_size=size, codec="zstd", asbytes=True)
            return
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            while block := stream.read(_BLOCK_BYTES):
                came += len(block)
                if size is not None and came > size:
                    break
                yield block
    except (OSError, pa.ArrowException) as error:
        raise damaged_event(event, f"a payload that cannot be decompressed: {error}") from error
    if size is not None and came != size:
        raise damaged_event(
            event, f"a payload that is not decompressed to the {size} bytes that it says"
        )


def _split_events(
    outer: BinlogEvent, blocks: Iterator[bytes | memoryview]
) -> Iterator[BinlogEvent]:
    """Split blocks, which end anywhere, into whole events."""
    number = have = 0
    # Of the next event, as far as that can be told
    need = HEADER_BYTES
    # what has come of it
    rest: list[bytes | memoryview] = []
    for block in blocks:
        rest.append(block)
        have += len(block)
        if have < need:
            continue
        buffer, at = (bytes(block) if len(rest) == 1 else b"".join(rest)), 0
        while (need := _size_at(outer, number + 1, buffer, at)) <= len(buffer) - at:
            number += 1
            yield _inner_event(outer, number, buffer, at, need)
            at += need
        rest = [buffer[at:]]
        have = len(buffer) - at
    if have:
        raise damaged_event(outer, f"a payload whose event {number + 1} ends after {have} bytes")


def _size_at(outer: BinlogEvent, number: int, buffer: bytes, at: int) -> int:
    """Return the size of the event at ``at``; of its header, if that is not complete."""
    if len(buffer) - at < HEADER_BYTES:
        return HEADER_BYTES
    size = int.from_bytes(buffer[at + 9 : at + 13], "little")
    if not HEADER_BYTES <= size <= MOST_BYTES:
        raise damaged_event(outer, f"a payload whose event {number} has {size} bytes")
    return size


def _inner_event(
    outer: BinlogEvent, number: int, buffer: bytes, at: int, size: int
) -> BinlogEvent:
    # An inner event has no checksum, and no position: a payload is one event of the file. Together
    # they may be larger than any one event could be.
    timestamp, kind, server_id, _, _, flags = _HEADER.unpack_from(buffer, at)
    if kind == TRANSACTION_PAYLOAD:
        raise damaged_event(outer, "a payload in a payload")
    header = kind, flags, timestamp, server_id
    return BinlogEvent(buffer, at, at + size, *header, outer.file, outer.position, number)


def _statement_start(event: BinlogEvent) -> int:
    """Return the offset of a QUERY's text in its body."""
    fields = EventFields(event)
    fields.take(8)
    database = fields.fixed_int(1)
    fields.take(2)
    fields.take(fields.fixed_int(2) + database + 1)
    return fields.at


def _rows_start(event: BinlogEvent, kind: int) -> int:
    """Return the offset of the rows in a rows event's body."""
    fields = EventFields(event)
    fields.take(8)
    if kind >= SECOND_VERSION:
        extra = fields.fixed_int(2)
        if extra < 2:
            raise damaged_event(event, f"a rows event with {extra} extra bytes")
        fields.take(extra - 2)
    columns = fields.lenenc_int()
    fields.take((columns + 7) // 8 * (2 if kind in _UPDATES else 1))
    return fields.at


def _inflate(event: BinlogEvent, kind: int, start: int) -> BinlogEvent:
    """Return the event with everything behind ``start`` of its body decompressed."""
    fields = EventFields(event)
    head = fields.take(start)
    how = fields.fixed_int(1)
    if not how & 0x80 or how & 0x70 or not 1 <= how & 7 <= 4:
        raise unreadable_event(
            event, "unknown_event", f"an event compressed in a way that is not known ({how:#04x})",
            "SET GLOBAL log_bin_compress = 0 on the server, and the same in its configuration "
            "file, or look for a newer Onceward",
        )  # fmt: skip
    size = int.from_bytes(fields.take(how & 7), "big")
    if size > MOST_BYTES:
        raise damaged_event(event, f"an event of {size} bytes")
    unzip = zlib.decompressobj()
    try:
        # grows as it comes, up to that
        data = unzip.decompress(fields.take_rest(), size + 1)
    except zlib.error as error:
        raise damaged_event(event, f"an event that cannot be decompressed: {error}") from error
    if len(data) != size or not unzip.eof or unzip.unused_data:
        raise damaged_event(
            event, f"an event that is not decompressed to the {size} bytes that it says"
        )
    header = bytearray(memoryview(event.buffer)[event.start : event.start + HEADER_BYTES])
    header[4] = kind
    buffer = b"".join((header, head, data))
    return event._replace(buffer=buffer, start=0, stop=len(buffer), kind=kind)
