"""Events to ranges and parts, without a server: what is in no part is lost, and what is in two
comes twice.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pytest
from made_events import FILE, GOLDEN_FILES, NOW, dialect_of, format_description, made
from made_tables import (
    INT,
    NAME,
    NULL_INT,
    TABLE_MAP,
    WRITE,
    Made,
    number,
    row,
    rows,
    table_map,
    text,
)

from onceward.errors import ServerUnreachable
from onceward.mysql.binlog.blocks import CHANGES
from onceward.mysql.binlog.column_types import ColumnKind
from onceward.mysql.binlog.decoder import PIECE_BYTES, Decoder
from onceward.mysql.binlog.event import (
    ANONYMOUS_GTID,
    FORMAT_DESCRIPTION,
    GTID,
    IGNORABLE_FLAG,
    QUERY,
    TRANSACTION_PAYLOAD,
    XA_PREPARE,
    XID,
    BinlogEvent,
)
from onceward.mysql.snapshot import chunks
from onceward.mysql.snapshot.keys import KeyColumn
from onceward.mysql.source import partitions
from onceward.mysql.source.partitions import to_frame
from onceward.mysql.source.ranges import PlannedRange, RangePlanner
from onceward.mysql.source.settings import ChangesSettings, Coordinates, Position
from support.binlog_files import events_of_file
from support.errors import raises

SOURCE = uuid.UUID(int=7)
READABLE = [path for path in GOLDEN_FILES if "minimal" not in path.name]
MAP = table_map([INT, NAME, NULL_INT], db="shop", key=[0])


class Log:
    """A binlog of MySQL's: transactions ``SOURCE:1``, ``SOURCE:2``, … of rows of ``shop.t``."""

    def __init__(self, file: str = FILE) -> None:
        self.file = file
        self.events: list[BinlogEvent] = []
        self.position = 4
        self.transactions = 0
        self.add(FORMAT_DESCRIPTION, format_description(4)[19:-4])

    def add(self, kind: int, body: bytes, flags: int = 0) -> int:
        data, begins = made(kind, body, self.position, flags=flags), self.position
        self.events.append(
            BinlogEvent(data, 0, len(data) - 4, kind, flags, NOW, 1, self.file, begins)
        )
        self.position += len(data)
        return begins

    def begins(self) -> int:
        self.transactions += 1
        return self.add(GTID, b"\0" + SOURCE.bytes + self.transactions.to_bytes(8, "little"))

    def says(self, text: str) -> int:
        return self.add(QUERY, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode())

    def transaction(self, *numbers: int) -> None:
        self.begins()
        self.says("BEGIN")
        self.add(TABLE_MAP, MAP)
        for place, each in enumerate(numbers, 1):
            ends = int(place == len(numbers))
            self.add(WRITE, rows(3, row(number(each), text(b"a"), None), flags=ends))
        self.add(XID, bytes(8))

    @contextmanager
    def dump(self, place: Coordinates, most: int = 1 << 30) -> Iterator[SimpleNamespace]:
        """As a server sends it from there on, an event at a time; after ``most`` it says that
        there is no more.
        """
        sent = [
            event
            for event in self.events
            if (event.file, event.position) >= (place.file, place.pos)
        ][:most]
        reader = SimpleNamespace(dialect="mysql", file=place.file, position=place.pos)

        def blocks(*_: object) -> Iterator[list[BinlogEvent]]:
            for event in sent:
                reader.file, reader.position = (
                    event.file,
                    event.position + event.stop - event.start + 4,
                )
                yield [event]

        yield SimpleNamespace(reader=reader, blocks=blocks)

    def cut(self) -> PlannedRange:
        return range_of(self.events, Position("mysql", "a server", 0, FILE, 4, None, None), 1)

    def keys(self, found: PlannedRange) -> list[str]:
        """Of the changes in a range's parts."""
        return [change["key"] for change in decoded(self.events, found)]


def keys(*numbers: int) -> list[str]:
    return [f'{{"id":{each}}}' for each in numbers]


def range_of(events: list[BinlogEvent], start: Position, part_bytes: int) -> PlannedRange:
    cutter = RangePlanner(ChangesSettings({}, (("*", "*"),), part_bytes=part_bytes), start)
    cutter.feed(events)
    return cutter.range()


def decoded(events: list[BinlogEvent], found: PlannedRange) -> list[dict[str, object]]:
    """What tasks read of a range."""
    changes = []
    for part in found.parts:
        held = [
            event
            for event in events
            if event.file == part["file"] and part["from"] <= event.position < part["to"]
        ]
        changes += of(held, found.end.dialect, part)
    return changes


def of(
    events: list[BinlogEvent], dialect: str, part: dict[str, object]
) -> list[dict[str, object]]:
    maps = [base64.b64decode(one) for one in part.get("maps", ())]
    decoder = Decoder(dialect, lambda *_: True, maps=maps, gtid=part.get("gtid"))
    for event in events:
        decoder.feed(event)
    return decoder.flush().to_pylist()


@pytest.mark.parametrize("part_bytes", [1, 700])
@pytest.mark.parametrize("path", READABLE, ids=lambda path: path.stem)
def test_the_parts_of_a_golden_binlog_have_all_its_changes_once(path, part_bytes):
    dialect = dialect_of(path)
    events = list(events_of_file(path.read_bytes(), dialect))
    found = range_of(
        events, Position(dialect, "a server", 0, "binlog.000001", 4, None, None), part_bytes
    )
    before = [event for event in events if event.position < found.end.pos]
    assert decoded(events, found) == of(before, dialect, {})


def test_a_position_has_the_tables_that_are_known_unless_they_are_many():
    at = Position("mysql", "a server", 0, FILE, 4, None, None)
    for count, known in ((0, []), (200, [["shop", f"t{each:03}"] for each in range(200)])):
        tables = [("shop", f"t{each:03}") for each in reversed(range(count))]
        assert at.with_known(tables).known == known
    assert at.with_known([("shop", f"t{each}") for each in range(201)]).known is None
    assert at.with_known(None).known is None


def test_a_part_inside_a_transaction_has_the_tables_of_its_statement_alone():
    """Each statement says its tables anew: one transaction may be over thousands of them."""
    log = Log()
    log.begins()
    log.says("BEGIN")
    for table in range(20):
        for each in (0, 1):
            map = table_map([INT], db="shop", table=f"t{table}", number=table, key=[0])
            log.add(TABLE_MAP, map)
            log.add(WRITE, rows(1, row(number(each)), number=table, flags=0))
            log.add(WRITE, rows(1, row(number(each + 2)), number=table))
    log.add(XID, bytes(8))
    found = log.cut()
    assert log.keys(found) == keys(0, 2, 1, 3) * 20
    assert len(found.parts) > 40
    assert max(len(part.get("maps", ())) for part in found.parts) == 1


def test_a_part_may_begin_between_the_rows_of_a_statement():
    log = Log()
    log.transaction(*range(20))
    found = log.cut()
    assert len(found.parts) > 10
    assert log.keys(found) == keys(*range(20))
    assert {change["gtid"] for change in decoded(log.events, found)} == {f"{SOURCE}:1"}


def test_a_truncate_is_a_change_by_itself():
    log = Log()
    log.begins()
    log.says("TRUNCATE TABLE t")
    found = log.cut()
    assert found.changes == 1
    assert [(change["op"], change["table"]) for change in decoded(log.events, found)] == [
        ("t", "t")
    ]


def test_what_was_emptied_has_the_name_that_its_rows_have(monkeypatch):
    """Where lower_case_table_names is 1, table maps have small letters, and statements what was
    written.
    """
    log = Log()
    log.begins()
    log.says("TRUNCATE TABLE Shop.T")
    log.transaction(1)
    settings = ChangesSettings({}, (("Shop", "T"),))
    cutter = RangePlanner(
        settings.for_server(1), Position("mysql", "a server", 0, FILE, 4, None, None)
    )
    cutter.feed(log.events)
    (part,) = cutter.range().parts
    monkeypatch.setattr(partitions, "open_dump", lambda settings, server, place: log.dump(place))
    found = partitions.join_pieces(
        partitions.read_partition(settings, {**part, "server": "a server", "era": 0, "names": 1})
    ).to_pylist()
    assert [(change["op"], change["db"], change["table"]) for change in found] == [
        ("t", "shop", "t"),
        ("c", "shop", "t"),
    ]


def test_a_part_is_read_in_pieces_however_much_becomes_of_it(monkeypatch):
    """A transaction that is compressed is one event, and a row of nulls a few bytes: neither is
    all in memory.
    """
    columns = 400
    map = table_map(
        [INT, *(Made(f"column_{n}", 3, nullable=True) for n in range(columns))], db="shop", key=[0]
    )
    nulls = [rows(columns + 1, *[row(number(n), *[None] * columns)] * 100) for n in range(100)]
    inner = [(TABLE_MAP, map), *((WRITE, each) for each in nulls)]
    events = b"".join(
        struct.pack("<IBIIIH", NOW, kind, 1, 19 + len(body), 0, 0) + body for kind, body in inner
    )
    packed = pa.compress(events, "zstd", asbytes=True)
    assert len(packed) < 20_000
    log = Log()
    log.begins()
    log.add(
        TRANSACTION_PAYLOAD, b"\1\4\xfd" + len(packed).to_bytes(3, "little") + b"\2\1\0\0" + packed
    )
    (part,) = log.cut().parts
    monkeypatch.setattr(partitions, "open_dump", lambda settings, server, place: log.dump(place))
    settings = ChangesSettings({}, (("*", "*"),))
    sizes = [
        piece.nbytes
        for piece in partitions.read_partition(
            settings, {**part, "server": "a server", "era": 0, "names": 1}
        )
    ]
    assert len(sizes) > 3
    assert sum(sizes) > 100 * 100 * columns * 10
    assert max(sizes) < 2 * PIECE_BYTES


CHUNK = {
    "table": ["shop", "t"],
    "key": [KeyColumn("id", "int", ColumnKind.INTEGER).to_json()],
    "after": None,
    "up_to": None,
    "ts_ms": 0,
}


def touched(log: Log, dumps: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that a snapshot finds changed between the beginning of a log and its end, in one
    dump or several.
    """
    begin = Position("mysql", "a server", 0, FILE, 4, None, None)
    high = Coordinates(log.events[-1].file, log.position)

    monkeypatch.setattr(
        chunks, "open_dump", lambda settings, server, place: log.dump(place, next(dumps))
    )
    settings = ChangesSettings({}, (("*", "*"),))
    return list(chunks._rows_at_first_change(lambda _: [], CHUNK, begin, high, settings))


@pytest.mark.parametrize(
    "dumps", [[100], [1] * 100, [0, 5, 0, 1, 0, 100]], ids=["whole", "cut", "late"]
)
def test_a_snapshot_reads_on_where_a_dump_ends_too_early(dumps, monkeypatch):
    log = Log()
    log.transaction(*range(5))
    log.transaction(7)
    assert touched(log, iter(dumps), monkeypatch) == keys(0, 1, 2, 3, 4, 7)


def test_a_snapshot_does_not_wait_forever_for_what_is_not_sent(monkeypatch):
    monkeypatch.setattr(chunks, "_SECONDS", 0.1)
    log = Log()
    log.transaction(1)
    with raises(ServerUnreachable) as late:
        touched(log, iter([3, *[0] * 1000]), monkeypatch)
    assert late.value.details["at"] == f"{FILE}:{log.events[3].position}"


def test_a_part_ends_with_its_file():
    """A file that is shorter than a part, and the next one: both are read."""
    log, following = Log(), Log("binlog.000008")
    log.transaction(1)
    following.transactions = 1
    following.transaction(2)
    log.events += following.events
    found = range_of(log.events, Position("mysql", "a server", 0, FILE, 4, None, None), 1 << 20)
    assert [part["file"] for part in found.parts] == [FILE, "binlog.000008"]
    assert log.keys(found) == keys(1, 2)


@pytest.mark.parametrize(
    ("kind", "said", "reason"),
    [(QUERY, "ROLLBACK TO `a`", "statement"), (XA_PREPARE, "", "xa")],
    ids=["undone", "xa"],
)
def test_rows_that_are_undone_to_nowhere_or_undecided_are_a_stop(kind, said, reason):
    log = Log()
    log.transaction(1)
    place = log.position
    log.transaction(2)
    del log.events[-1]
    log.says(said) if said else log.add(kind, b"\0" + bytes(12))
    found = log.cut()
    assert log.keys(found) == keys(1)
    assert (found.end.pos, found.error.details.get("reason")) == (place, reason)


def test_behind_a_transaction_without_a_name_no_set_has_all():
    """gtid_mode is not ON: on another server nobody could say whether it was read."""
    log = Log()
    log.transaction(1)
    named = Position("mysql", "a server", 0, FILE, 4, None, "")
    assert range_of(log.events, named, 1).end.gtids == f"{SOURCE}:1"
    log.add(ANONYMOUS_GTID, bytes(25))
    log.says("CREATE TABLE x (a int)")
    assert range_of(log.events, named, 1).end.gtids is None


def test_an_unknown_event_is_a_stop_unless_the_server_calls_it_ignorable():
    log = Log()
    log.transaction(1)
    log.add(99, b"?", flags=IGNORABLE_FLAG)
    place = log.add(99, b"?")
    log.transaction(2)
    found = log.cut()
    assert log.keys(found) == keys(1)
    assert found.end.pos == place
    assert (found.error.details["reason"], found.error.details["at"]) == (
        "unknown_event",
        f"{FILE}:{place}",
    )


def test_positions_are_texts_that_grow_with_the_binlog():
    """Of places of any number of digits, in payloads and out of them, over a million files and a
    failover.
    """
    places = [
        (era, file, pos, inner, row)
        for era in (0, 9, 10) for file in (7, 999_999, 1_000_000) for pos in (4, 999, 1000,
        1 << 40)
        for inner in (0, 9, 10) for row in (0, 9, 10)
    ]  # fmt: skip
    found = []
    for era in (0, 9, 10):
        changes = [
            {"op": "c", "file": f"binlog.{file:06d}", "pos": pos, "inner": inner, "row": row}
            for each, file, pos, inner, row in places
            if each == era
        ]
        found += to_frame(pa.Table.from_pylist(changes, CHANGES), era)["position"].to_pylist()
    assert found == sorted(set(found))
    assert len(found) == len(places)
