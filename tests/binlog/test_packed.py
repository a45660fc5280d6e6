"""Compressed events, golden and made by hand: the events in them, or an error, and never more
memory than is due.
"""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from made_events import FILE, GOLDEN, dialect_of, event_of, made

from onceward.errors import BinlogCorrupted, ChangeUnreadable
from onceward.mysql.binlog.compression import decompress
from onceward.mysql.binlog.event import (
    QUERY,
    QUERY_COMPRESSED,
    ROWS_QUERY,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    XID,
)
from support.binlog_files import events_of_file
from support.errors import raises


def packed_number(number):
    if number < 251:
        return bytes([number])
    return b"\xfe" + number.to_bytes(8, "little")


def field(kind, value):
    written = packed_number(value)
    return packed_number(kind) + packed_number(len(written)) + written


def payload(inner, *, compression=0, size=None, packed=None, more=b""):
    raw = b"".join(inner)
    packed = (
        packed
        if packed is not None
        else bytes(pa.compress(raw, "zstd", asbytes=True))
        if compression == 0
        else raw
    )
    fields = (
        field(2, compression)
        + field(3, len(raw) if size is None else size)
        + more
        + field(1, len(packed))
    )
    return event_of(TRANSACTION_PAYLOAD, fields + b"\0" + packed)


def inner(kind, body):
    return made(kind, body, checksum=False)


def test_golden_transactions_come_out_whole():
    events = list(
        events_of_file((GOLDEN / "mysql-8.0.33-compressed.binlog").read_bytes(), "mysql")
    )
    packed = [event for event in events if event.kind == TRANSACTION_PAYLOAD]
    assert len(packed) == 5
    for event in packed:
        found = list(decompress(event))
        assert [one.inner for one in found] == list(range(1, len(found) + 1))
        assert {(one.file, one.position) for one in found} == {(event.file, event.position)}
        assert found[0].kind == QUERY
        assert bytes(found[0].body).endswith(b"\0BEGIN")
        assert found[-1].kind == XID
    kinds = [one.kind for event in packed for one in decompress(event)]
    assert kinds.count(30) + kinds.count(31) + kinds.count(32) == 23
    assert kinds.count(ROWS_QUERY) == 1


def test_golden_rows_of_mariadb_are_as_long_as_they_say():
    path = GOLDEN / "mariadb-11.4.5-compressed.binlog"
    events = list(events_of_file(path.read_bytes(), dialect_of(path)))
    found = [(event, one) for event in events for one in decompress(event)]
    assert [(event.kind, one.kind) for event, one in found if event.kind != one.kind] == [
        (167, 24)
    ] * 2
    for event, one in found:
        assert one.position == event.position
        assert event.kind == one.kind or one.stop - one.start > event.stop - event.start
        assert one.buffer[one.start + 4] == one.kind


@pytest.mark.parametrize("compression", [0, 255])
@pytest.mark.parametrize(
    "sizes", [[0], [100] * 30, [1 << 20], [3_000_000, 5, 1_048_557, 1_048_558], [19] * 30_000]
)
def test_events_of_any_size_come_out_of_blocks(sizes, compression):
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    event = payload([inner(TABLE_MAP, body) for body in bodies], compression=compression)
    assert [bytes(one.body) for one in decompress(event)] == bodies


def test_fields_of_newer_servers_are_passed_over():
    event = payload([inner(XID, bytes(8))], more=field(9, 1 << 40))
    assert [(one.kind, one.inner, one.file) for one in decompress(event)] == [(XID, 1, FILE)]


def test_an_unknown_compression_is_a_stop():
    with raises(ChangeUnreadable, reason="unknown_event"):
        list(decompress(payload([inner(XID, bytes(8))], compression=7)))


BROKEN = {
    "too long": payload([inner(XID, bytes(8))], size=26),
    "too short": payload([inner(XID, bytes(8))], size=28),
    "too short by far": payload([inner(XID, bytes(8))], size=1 << 62),
    "not compressed": payload([inner(XID, bytes(8))], packed=b"none"),
    "cut": payload([inner(XID, bytes(8))[:-1]]),
    "no header": payload([b"x"]),
    "in itself": payload([inner(TRANSACTION_PAYLOAD, b"\0")]),
    "an event of no size": payload([struct.pack("<IBIIIH", 0, 2, 1, 0, 0, 0)]),
    "an event of 4 GiB": payload([struct.pack("<IBIIIH", 0, 2, 1, 0xFFFFFFFF, 0, 0)]),
    "no fields": event_of(TRANSACTION_PAYLOAD, b""),
    "no end": event_of(TRANSACTION_PAYLOAD, field(1, 3)),
    "another size": event_of(TRANSACTION_PAYLOAD, field(2, 255) + field(1, 3) + b"\0ab"),
}


@pytest.mark.parametrize("event", BROKEN.values(), ids=BROKEN.keys())
def test_payloads_that_cannot_be_are_damage(event):
    tracemalloc.start()
    try:
        with pytest.raises(BinlogCorrupted):
            list(decompress(event))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_large_transaction_is_never_whole_in_memory():
    event = payload([inner(TABLE_MAP, bytes(80_000))] * 1000)
    pa_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        assert sum(1 for _ in decompress(event)) == 1000
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
        assert pa.total_allocated_bytes() - pa_before < 8_000_000
    finally:
        tracemalloc.stop()


def zipped(data, size=None, how=0x80):
    length = (len(data) if size is None else size).to_bytes(4, "big")
    return bytes([how | 4]) + length + zlib.compress(data)


QUERY_HEAD = struct.pack("<IIBHH", 1, 2, 4, 0, 3) + b"\1\2\3" + b"shop\0"
ROWS_HEAD = bytes(8) + struct.pack("<H", 4) + b"\0\0" + b"\x0a" + b"\xff\x03"


def test_mariadbs_statements_and_rows_are_inflated():
    (found,) = decompress(event_of(QUERY_COMPRESSED, QUERY_HEAD + zipped(b"BEGIN")))
    assert (found.kind, bytes(found.body)) == (QUERY, QUERY_HEAD + b"BEGIN")
    for kind, head in (
        (166, bytes(8) + b"\x03\x07"),
        (167, bytes(8) + b"\x03\x07\x07"),
        (168, bytes(8) + b"\x03\x07"),
    ):
        (found,) = decompress(event_of(kind, head + zipped(bytes(500))))
        assert (found.kind, bytes(found.body)) == (kind - 143, head + bytes(500))
    for kind, head in ((169, ROWS_HEAD), (170, ROWS_HEAD + b"\xff\x03"), (171, ROWS_HEAD)):
        (found,) = decompress(event_of(kind, head + zipped(bytes(500))))
        assert (found.kind, bytes(found.body)) == (kind - 139, head + bytes(500))


@pytest.mark.parametrize(
    "body",
    [
        QUERY_HEAD + zipped(b"BEGIN", size=4), QUERY_HEAD + zipped(b"BEGIN", size=6),
        QUERY_HEAD + b"\x81\x05none",
        QUERY_HEAD + zipped(bytes(99_000_000), size=99), QUERY_HEAD + zipped(b"BEGIN") + b"x",
        QUERY_HEAD, b"",
        QUERY_HEAD + zipped(b"BEGIN", size=0xFFFFFFFF), QUERY_HEAD + zipped(b"BEGIN")[:-2],
    ],
)  # fmt: skip
def test_what_is_not_inflated_to_its_size_is_damage(body):
    tracemalloc.start()
    try:
        with pytest.raises(BinlogCorrupted):
            list(decompress(event_of(QUERY_COMPRESSED, body)))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("how", [0x90, 0x00, 0xF0])
def test_an_unknown_way_of_deflating_is_a_stop(how):
    with pytest.raises(ChangeUnreadable):
        list(decompress(event_of(QUERY_COMPRESSED, QUERY_HEAD + zipped(b"BEGIN", how=how))))
