"""Packets to events: every event once, at its place, or an error that names the place."""

from __future__ import annotations

import random

import pytest
from made_events import (
    FILE,
    GOLDEN_FILES,
    dialect_of,
    format_description,
    made,
    packet,
    packets,
    read,
    rotation,
    whole,
)

from onceward.errors import BinlogCorrupted
from onceward.mysql.binlog.event import (
    FORMAT_DESCRIPTION,
    GTID_LIST,
    HEARTBEAT,
    QUERY,
    ROTATE,
    START_ENCRYPTION,
    XID,
)
from onceward.mysql.binlog.framing import (
    DumpRefused,
    EndOfBinlog,
    EventReader,
    file_number,
)
from support.binlog_files import events_of_file

EOF_PACKET = packet(b"\xfe\0\0\0\0")
FULL = 0xFFFFFF


def reader(position=4, *, dialect="mysql", file=FILE, **options):
    return EventReader(dialect, file, position, **options)


def facts(events):
    return [
        (event.kind, event.file, event.position, bytes(event.body), event.artificial)
        for event in events
    ]


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_a_file_and_a_dump_of_it_are_the_same_events(path):
    data, dialect = path.read_bytes(), dialect_of(path)
    in_file = list(events_of_file(data, dialect, FILE))
    raw = [data[event.position : event.position + len(event.body) + 23] for event in in_file]
    one = reader(dialect=dialect)
    dumped = read(packets([rotation(), *raw]) + EOF_PACKET, one)
    assert facts(dumped[1:]) == facts(in_file)
    assert dumped[0].artificial
    assert dumped[0].kind == ROTATE
    assert isinstance(one.end, EndOfBinlog)
    assert (one.file, one.position) == (FILE, len(data))


@pytest.mark.parametrize(
    ("pieces", "block_bytes"), [(1, 64), (7, 100), (97, 1024), (1024, 97), (5000, 3000)]
)
def test_it_does_not_matter_in_which_pieces_bytes_come(pieces, block_bytes):
    chosen = random.Random(pieces)
    events, end = whole(
        *((QUERY, chosen.randbytes(chosen.choice([13, 80, 300, 2000]))) for _ in range(40))
    )
    one = reader(block_bytes=block_bytes)
    found = read(packets(events) + EOF_PACKET, one, pieces)
    assert facts(found) == facts(read(packets(events), reader()))
    assert len(found) == len(events)
    assert one.position == end


def test_what_was_handed_out_is_never_written_over():
    events, _ = whole(*((QUERY, bytes([number]) * 300) for number in range(200)))
    found = read(packets(events), reader(block_bytes=1024), 700)
    assert [bytes(event.body) for event in found[2:]] == [
        bytes([number]) * 300 for number in range(200)
    ]


@pytest.mark.parametrize("size", [FULL - 2, FULL - 1, FULL, 2 * FULL - 1])
def test_events_of_several_packets_are_joined(size):
    # What the second packet begins with looks like a packet of its own.
    body = bytearray(size - 23)
    inner = packet(b"\0" + made(XID, bytes(8), 4))
    body[FULL - 20 : FULL - 20 + 2 * len(inner)] = (inner * 2)[: max(0, len(body) - FULL + 20)]
    events, end = whole((QUERY, bytes(body)), (XID, bytes(8)))
    one = reader()
    found = read(packets(events) + EOF_PACKET, one, 3_000_000)
    assert [(event.kind, len(event.body)) for event in found[2:]] == [(QUERY, size - 23), (XID, 8)]
    assert found[2].body == body
    assert one.position == end


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_positions_go_beyond_four_gib(dialect):
    start = (1 << 32) - 100
    events = [rotation(FILE, start), format_description(None)]
    for _ in range(5):
        events.append(made(QUERY, bytes(30), start))
        start += len(events[-1])
    one = reader((1 << 32) - 100, dialect=dialect)
    found = read(packets(events), one)
    assert one.end is None
    assert [event.position - (1 << 32) for event in found[2:]] == [-100, -47, 6, 59, 112]
    assert one.position == start > 1 << 32


def test_the_next_file_begins_where_the_server_says():
    first, end = whole((XID, bytes(8)))
    first.append(made(ROTATE, (4).to_bytes(8, "little") + b"binlog.000008", end))
    more = [
        rotation("binlog.000008"),
        format_description(),
        made(XID, bytes(8), 4 + len(format_description())),
    ]
    one = reader()
    found = read(packets([*first, *more]), one)
    assert [(event.kind, event.file, event.artificial) for event in found[-4:]] == [
        (ROTATE, FILE, False), (ROTATE, "binlog.000008", True),
        (FORMAT_DESCRIPTION, "binlog.000008", False),
        (XID, "binlog.000008", False),
    ]  # fmt: skip


def test_files_without_checksums_are_read_and_one_behind_another():
    first = [rotation(checksum=False), format_description(checksums=False)]
    first.append(made(XID, bytes(8), 4 + len(first[1]), checksum=False))
    more = [rotation("binlog.000008", checksum=False), format_description()]
    more.append(made(XID, bytes(8), 4 + len(more[1])))
    found = read(packets([*first, *more]), one := reader())
    assert one.end is None
    assert [len(event.body) for event in found if event.kind == XID] == [8, 8]


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_a_description_is_changed_and_not_its_checksum(dialect):
    described = bytearray(format_description(None, checksums=False))
    described[0] ^= 1
    sent = packets(
        [rotation(position=900), bytes(described), made(XID, bytes(8), 900, checksum=False)]
    )
    assert len(read(sent, reader(900, dialect=dialect))) == 3


def test_heartbeats_take_no_room():
    events, end = whole((XID, bytes(8)))
    heart = made(HEARTBEAT, FILE.encode(), 77)
    found = read(packets([*events, heart, made(XID, bytes(8), end)]), one := reader())
    assert one.end is None
    assert [event.artificial for event in found] == [True, False, False, True, False]


def test_how_an_encrypted_file_begins_takes_room_there_and_nowhere_else():
    """MariaDB repeats it for a dump from inside a file, with 0 as its end."""
    begins = START_ENCRYPTION, bytes(17)
    events, end = whole(begins, (GTID_LIST, bytes(4)))
    from_its_begin = read(packets(events), one := reader(dialect="mariadb"))
    assert [event.artificial for event in from_its_begin] == [True, False, False, False]
    assert one.position == end
    sent = [rotation(position=end), format_description(None), made(*begins), made(XID, bytes(8))]
    from_inside = read(packets(sent), one := reader(end, dialect="mariadb"))
    assert [event.artificial for event in from_inside] == [True, True, True, False]
    assert from_inside[-1].position == end
    assert one.position == end + len(sent[-1])


def test_mariadb_leaves_positions_out_and_mysql_does_not():
    events, _ = whole()
    sent = packets([*events, made(XID, bytes(8))])
    assert len(read(sent, reader(dialect="mariadb"))) == 3
    one = reader()
    assert len(read(sent, one)) == 2
    assert "ends at 0" in str(one.end)


def test_an_end_is_kept_to_and_what_follows_comes_later():
    events, end = whole(*((XID, bytes(8)) for _ in range(9)))
    places = [event.position for event in read(packets(events), reader())]
    one = reader()
    first = read(packets(events), one, until=(FILE, places[5]))
    assert [event.position for event in first] == places[:5]
    assert one.end is None
    assert [event.position for event in one.events(0, (FILE, places[8]))] == places[5:8]
    assert [event.position for event in one.events(0)] == places[8:]
    assert one.position == end


@pytest.mark.parametrize("until", [(FILE, 200), ("binlog.000006", 4), ("binlog.000006", 1 << 40)])
def test_an_end_where_no_event_begins_is_damage(until):
    events, _ = whole(*((XID, bytes(8)) for _ in range(9)))
    one = reader()
    read(packets(events), one, until=until)
    assert isinstance(one.end, BinlogCorrupted)
    assert f"{until[0]}:{until[1]}" in str(one.end)


def test_a_servers_error_comes_behind_its_events():
    events, _ = whole((XID, bytes(8)))
    one = reader()
    found = read(
        packets(events) + packet(b"\xff" + (1236).to_bytes(2, "little") + b"#HY000gone"), one
    )
    assert len(found) == 3
    assert isinstance(one.end, DumpRefused)
    assert (one.end.code, one.end.text) == (1236, "gone")


def _without(events, at):
    return events[:at] + events[at + 1 :]


def _flipped(events, at, bit):
    event = bytearray(events[at])
    event[bit // 8] ^= 1 << bit % 8
    return [*events[:at], bytes(event), *events[at + 1 :]]


def test_a_missing_event_is_noticed_at_its_place():
    events, _ = whole(*((XID, bytes(8)) for _ in range(5)))
    one = reader()
    found = read(packets(_without(events, 4)), one)
    assert isinstance(one.end, BinlogCorrupted)
    assert one.end.details["at"] == f"{FILE}:{one.position}"
    assert [event.kind for event in found[2:]] == [XID, XID]


def test_every_flipped_bit_is_noticed():
    events, _ = whole(*((QUERY, random.Random(at).randbytes(40)) for at in range(3)))
    want = facts(read(packets(events), reader()))
    for at in range(1, 4):
        for bit in {*range(19 * 8), *range(0, len(events[at]) * 8, 5)}:
            one = reader()
            found = facts(read(packets(_flipped(events, at, bit)), one))
            assert isinstance(one.end, BinlogCorrupted), (at, bit)
            assert found == want[:at]


def test_a_dump_that_begins_elsewhere_is_refused():
    one = reader(700)
    assert read(packets([rotation(position=4)]), one) == []
    assert isinstance(one.end, BinlogCorrupted)


@pytest.mark.parametrize("size", [0, 18, 19, 22, 24, (1 << 30) + (1 << 21), 0xFFFFFFFF])
def test_a_size_that_cannot_be_is_refused_before_it_is_believed(size):
    events, end = whole()
    event = bytearray(made(XID, bytes(8), end))
    event[9:13] = size.to_bytes(4, "little")
    one = reader(block_bytes=4096)
    read(packets([*events, bytes(event)]) + packet(bytes(30)) * 50, one)
    assert isinstance(one.end, BinlogCorrupted)
    assert len(one.space()) <= 8192


@pytest.mark.parametrize("cut", [3, 20, 60, -1])
def test_a_file_that_ends_inside_an_event_is_damage(cut):
    data = GOLDEN_FILES[0].read_bytes()
    with pytest.raises(BinlogCorrupted):
        list(events_of_file(data[:cut], "mariadb"))


def test_a_file_in_use_is_one():
    described = bytearray(format_description())
    described[17] |= 1
    assert [event.kind for event in events_of_file(b"\xfebin" + bytes(described), "mysql")] == [
        FORMAT_DESCRIPTION
    ]


def test_binlogs_are_in_the_order_of_their_numbers():
    assert file_number("a.b.000999") < file_number("a.b.1000000")
    assert file_number("binlog") == file_number("binlog.index") == -1
