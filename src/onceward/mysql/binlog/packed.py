"""Events in events: compressed transactions of MySQL, compressed rows and statements of MariaDB.
Pure.

Nothing is allocated because a length says so: what is decompressed comes in blocks, and a length
that it does not turn out to have is an error.

What is not obvious:

* The events of a payload have no checksums, and no positions: a payload is one event of the file.
  Together they may be larger than any one event could be.
* Its ``uncompressed_size`` is only there to inform, and it need not be the last field: others may
  follow in newer servers, each with its length.

Source: MySQL, ``libs/mysql/binlog/event/codecs/binary.cpp`` and ``compression/``; MariaDB,
``sql/log_event.cc`` (``binlog_buf_compress``), ``sql/log_event_server.cc``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pyarrow as pa

from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.framing import MOST_BYTES
from onceward.mysql.binlog.kinds import (
    COMPRESSED_ROWS,
    QUERY,
    QUERY_COMPRESSED,
    TRANSACTION_PAYLOAD,
)
from onceward.mysql.binlog.lengths import Fields
from onceward.mysql.binlog.stops import damaged, unreadable

PACKED = frozenset({TRANSACTION_PAYLOAD, QUERY_COMPRESSED, *COMPRESSED_ROWS})

_HEADER = struct.Struct("<IBIIIH")
_END, _SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 1, 2, 3  # fields of a payload
_ZSTD, _NONE = 0, 255
_BLOCK_BYTES = 1 << 20
_UPDATES = frozenset({24, 31})  # rows events with two bitmaps of columns
_WITH_EXTRA = (
    30  # rows events from that kind on have a length and extra bytes in front of their columns
)


def unpacked(event: Event) -> Iterator[Event]:
    """The events that ``event`` stands for, which may be itself. Of a payload each with its number
    in ``inner``, made as they are asked for: a block in memory, and not the transaction.

    :raises BinlogDamaged: it is not what its lengths say. :raises ChangeUnreadable: it is
        compressed in an unknown way.
    """
    if event.kind == TRANSACTION_PAYLOAD:
        yield from _payload(event)
    elif event.kind == QUERY_COMPRESSED:
        yield _inflated(event, QUERY, _statement_start(event))
    elif event.kind in COMPRESSED_ROWS:
        kind = COMPRESSED_ROWS[event.kind]
        yield _inflated(event, kind, _rows_start(event, kind))
    else:
        yield event


def _payload(event: Event) -> Iterator[Event]:
    fields = Fields(event)
    said: dict[int, int] = {}
    while (kind := fields.packed()) != _END:
        length = fields.packed()
        value = Fields(event, fields.take(length))
        if kind in (_SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE):
            said[kind] = value.packed()
    if said.get(_SIZE) != fields.left:
        raise damaged(event, f"a payload of {said.get(_SIZE)} bytes in {fields.left}")
    compression = said.get(_COMPRESSION)
    if compression not in (_ZSTD, _NONE):
        raise unreadable(
            event, "unknown_event", f"a transaction compressed in a way that is not known "
                                    f"({compression})",
            "set binlog_transaction_compression=OFF on the server, or look for a newer Onceward",
            left_out="the whole transaction, of which nothing can be read",
        )  # fmt: skip
    blocks = (
        _zstd(event, fields.rest(), said.get(_UNCOMPRESSED_SIZE))
        if compression == _ZSTD
        else [fields.rest()]
    )
    yield from _inner_events(event, iter(blocks))


def _zstd(event: Event, packed: memoryview, size: int | None) -> Iterator[bytes]:
    """In blocks; all at once where that is one."""
    came = 0
    try:
        if size is not None and size <= _BLOCK_BYTES:
            yield pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True)
            return
        with pa.CompressedInputStream(pa.py_buffer(packed), "zstd") as stream:
            while block := stream.read(_BLOCK_BYTES):
                came += len(block)
                if size is not None and came > size:
                    break
                yield block
    except (OSError, pa.ArrowException) as error:
        raise damaged(event, f"a payload that cannot be decompressed: {error}") from error
    if size is not None and came != size:
        raise damaged(
            event, f"a payload that is not decompressed to the {size} bytes that it says"
        )


def _inner_events(outer: Event, blocks: Iterator[bytes | memoryview]) -> Iterator[Event]:
    """Whole events out of blocks that end anywhere."""
    number = have = 0
    needed = HEADER_BYTES  # of the next event, as far as that can be told
    rest: list[bytes | memoryview] = []  # what has come of it
    for block in blocks:
        rest.append(block)
        have += len(block)
        if have < needed:
            continue
        buffer, at = (bytes(block) if len(rest) == 1 else b"".join(rest)), 0
        while (needed := _size_at(outer, number + 1, buffer, at)) <= len(buffer) - at:
            number += 1
            yield _inner_event(outer, number, buffer, at, needed)
            at += needed
        rest = [buffer[at:]]
        have = len(buffer) - at
    if have:
        raise damaged(outer, f"a payload whose event {number + 1} ends after {have} bytes")


def _size_at(outer: Event, number: int, buffer: bytes, at: int) -> int:
    """Of the event that begins there; of its header, where that has not come."""
    if len(buffer) - at < HEADER_BYTES:
        return HEADER_BYTES
    size = int.from_bytes(buffer[at + 9 : at + 13], "little")
    if not HEADER_BYTES <= size <= MOST_BYTES:
        raise damaged(outer, f"a payload whose event {number} has {size} bytes")
    return size


def _inner_event(outer: Event, number: int, buffer: bytes, at: int, size: int) -> Event:
    timestamp, kind, server_id, _, _, flags = _HEADER.unpack_from(buffer, at)
    if kind == TRANSACTION_PAYLOAD:
        raise damaged(outer, "a payload in a payload")
    return Event(
        buffer,
        at,
        at + size,
        kind,
        flags,
        timestamp,
        server_id,
        outer.file,
        outer.position,
        number,
    )


def _statement_start(event: Event) -> int:
    """Where in its body a QUERY's text begins."""
    fields = Fields(event)
    fields.take(8)
    database = fields.number(1)
    fields.take(2)
    fields.take(fields.number(2) + database + 1)
    return fields.at


def _rows_start(event: Event, kind: int) -> int:
    """Where in its body a rows event's rows begin."""
    fields = Fields(event)
    fields.take(8)
    if kind >= _WITH_EXTRA:
        extra = fields.number(2)
        if extra < 2:
            raise damaged(event, f"a rows event with {extra} extra bytes")
        fields.take(extra - 2)
    columns = fields.packed()
    fields.take((columns + 7) // 8 * (2 if kind in _UPDATES else 1))
    return fields.at


def _inflated(event: Event, kind: int, start: int) -> Event:
    """The same event with what follows ``start`` in its body decompressed."""
    fields = Fields(event)
    head = fields.take(start)
    how = fields.number(1)
    if not how & 0x80 or how & 0x70 or not 1 <= how & 7 <= 4:
        raise unreadable(
            event, "unknown_event", f"an event compressed in a way that is not known ({how:#04x})",
            "SET GLOBAL log_bin_compress = 0 on the server, or look for a newer Onceward",
        )  # fmt: skip
    size = int.from_bytes(fields.take(how & 7), "big")
    if size > MOST_BYTES:
        raise damaged(event, f"an event of {size} bytes")
    unzip = zlib.decompressobj()
    try:
        data = unzip.decompress(fields.rest(), size + 1)  # grows as it comes, up to that
    except zlib.error as error:
        raise damaged(event, f"an event that cannot be decompressed: {error}") from error
    if len(data) != size or not unzip.eof or unzip.unused_data:
        raise damaged(event, f"an event that is not decompressed to the {size} bytes that it says")
    header = bytearray(memoryview(event.buffer)[event.start : event.start + HEADER_BYTES])
    header[4] = kind
    buffer = b"".join((header, head, data))
    return event._replace(buffer=buffer, start=0, stop=len(buffer), kind=kind)
