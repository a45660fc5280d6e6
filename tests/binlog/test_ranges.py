"""Events to ranges and parts, without a server: what is in no part is lost, and what is in two comes twice."""

from __future__ import annotations

import base64
import struct
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from made_events import GOLDEN_FILES, NOW, dialect_of, format_description, made
from made_tables import INT, NAME, NULL_INT, TABLE_MAP, WRITE, number, row, rows, table_map, text

from onceward.binlog.changes import CHANGES, Decoder
from onceward.binlog.event import Event
from onceward.binlog.framing import events_of_file
from onceward.binlog.gtids import Gtids
from onceward.binlog.kinds import FORMAT_DESCRIPTION, GTID, IGNORABLE_FLAG, PREVIOUS_GTIDS, QUERY, XID
from onceward.errors import ChangeUnreadable, SourceReplaced
from onceward.sources.mysql.cuts import Cutter, Range
from onceward.sources.mysql.parts import framed
from onceward.sources.mysql.position import Position
from onceward.sources.mysql.settings import Settings

SOURCE = uuid.UUID(int=7)
READABLE = [path for path in GOLDEN_FILES if "minimal" not in path.name]
MAP = table_map([INT, NAME, NULL_INT], db="shop", key=[0])


class Log:
    """A server's binlog: transactions ``SOURCE:1``, ``SOURCE:2``, … of rows of ``shop.t``."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.transactions = 0
        self._number = 6
        self.next_file()

    def add(self, kind: int, body: bytes, flags: int = 0) -> int:
        return self._added(made(kind, body, self.position, flags=flags), kind, flags)

    def next_file(self, before: int = 0) -> None:
        """:param before: so many transactions are in the set at its beginning."""
        self._number += 1
        self.file, self.position = f"binlog.{self._number:06d}", 4
        self._added(format_description(4), FORMAT_DESCRIPTION, 0)
        ranges = SOURCE.bytes + struct.pack("<QQQ", 1, 1, before + 1) if before else b""
        self.add(PREVIOUS_GTIDS, struct.pack("<Q", bool(before)) + ranges)

    def begins(self) -> int:
        self.transactions += 1
        return self.add(GTID, b"\0" + SOURCE.bytes + self.transactions.to_bytes(8, "little"))

    def says(self, text: str) -> int:
        return self.add(QUERY, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode())

    def writes(self, *numbers: int) -> None:
        self.add(TABLE_MAP, MAP)
        for each in numbers:
            self.add(WRITE, rows(3, row(number(each), text(b"a"), None)))

    def transaction(self, *numbers: int, end: str = "") -> None:
        self.begins()
        self.says("BEGIN")
        self.writes(*numbers)
        self.says(end) if end else self.add(XID, bytes(8))

    def cut(self, part_bytes: int = 1, gtids: str | None = None, **only: object) -> Range:
        start = Position("mysql", "a server", 0, "binlog.000007", 4, None, gtids)
        return range_of(self.events, replace(start, born=only.pop("born", None)), part_bytes, **only)

    def keys(self, found: Range) -> list[str]:
        """Of the changes in a range's parts."""
        return [change["key"] for change in decoded(self.events, found)]

    def _added(self, data: bytes, kind: int, flags: int) -> int:
        begins = self.position
        self.events.append(Event(data, 0, len(data) - 4, kind, flags, NOW, 1, self.file, begins))
        self.position += len(data)
        return begins


def keys(*numbers: int) -> list[str]:
    return [f'{{"id":{each}}}' for each in numbers]


def range_of(events: list[Event], start: Position, part_bytes: int, **only: object) -> Range:
    cutter = Cutter(Settings({}, (("*", "*"),), part_bytes=part_bytes), start, **only)
    cutter.feed(events)
    return cutter.range()


def decoded(events: list[Event], found: Range) -> list[dict[str, object]]:
    """What tasks read of a range."""
    changes = []
    for part in found.parts:
        held = [event for event in events if event.file == part["file"] and part["from"] <= event.position < part["to"]]
        changes += of(held, found.end.dialect, part)
    return changes


def of(events: list[Event], dialect: str, part: dict[str, object]) -> list[dict[str, object]]:
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
    found = range_of(events, Position(dialect, "a server", 0, "binlog.000001", 4, None, None), part_bytes)
    before = [event for event in events if event.position < found.end.pos]
    assert decoded(events, found) == of(before, dialect, {})


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
    assert [(change["op"], change["table"]) for change in decoded(log.events, found)] == [("t", "t")]


def test_what_was_rolled_back_is_a_stop():
    """Of a transaction that has changed a table without transactions, too, which stays changed."""
    log = Log()
    log.transaction(1)
    log.transaction(2, end="ROLLBACK")
    found = log.cut()
    assert log.keys(found) == keys(1)
    assert isinstance(found.stop, ChangeUnreadable)
    assert found.stop.details["reason"] == "statement"


def test_half_a_transaction_at_the_end_of_a_file_never_was():
    """The server died in it."""
    log = Log()
    log.transaction(1)
    log.begins()
    log.says("BEGIN")
    log.writes(2, 3)
    log.transactions -= 1
    log.next_file(before=1)
    log.transaction(4)
    found = log.cut()
    assert (found.stop, found.changes) == (None, 2)
    assert log.keys(found) == keys(1, 4)


def test_half_a_transaction_at_the_end_of_all_is_not_there_yet():
    log = Log()
    log.transaction(1)
    behind = log.position
    log.begins()
    log.says("BEGIN")
    log.writes(2, 3)
    found = log.cut()
    assert (found.end.pos, found.end.gtids, found.changes) == (behind, f"{SOURCE}:1", 1)
    assert log.keys(found) == keys(1)


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
@pytest.mark.parametrize("read", [1, 2, 3])
def test_a_transaction_that_was_read_elsewhere_is_in_no_part(read, part_bytes):
    """On a server to which the query came from another one, where it stood in another order."""
    log = Log()
    for each in (1, 2, 3):
        log.transaction(each, each + 10)
    found = log.cut(part_bytes, gtids=f"{SOURCE}:{read}")
    assert found.end.gtids == f"{SOURCE}:1-3"
    assert log.keys(found) == keys(*(one for each in (1, 2, 3) if each != read for one in (each, each + 10)))


def test_a_range_of_another_server_has_its_own_transactions_and_no_others():
    log = Log()
    for each in (1, 2, 3):
        log.transaction(each)
    found = log.cut(only=Gtids.parse("mysql", f"{SOURCE}:1:3"))
    assert log.keys(found) == keys(1, 3)


def test_transactions_that_are_in_no_binlog_are_a_stop():
    """As gtid_purged, when it is set, makes them."""
    log = Log()
    log.transaction(1)
    log.next_file(before=3)
    log.transaction(9)
    found = log.cut()
    assert log.keys(found) == keys(1)
    assert found.stop.details["reason"] == "incident"


def test_binlogs_that_were_begun_anew_are_others():
    log = Log()
    log.transaction(1)
    assert log.cut(born=NOW).stop is None
    found = log.cut(born=NOW - 1)
    assert isinstance(found.stop, SourceReplaced)
    assert found.parts == []


def test_an_unknown_event_is_a_stop_unless_the_server_calls_it_ignorable():
    log = Log()
    log.transaction(1)
    log.add(99, b"?", flags=IGNORABLE_FLAG)
    place = log.add(99, b"?")
    log.transaction(2)
    found = log.cut()
    assert log.keys(found) == keys(1)
    assert found.end.pos == place
    assert (found.stop.details["reason"], found.stop.details["at"]) == ("unknown_event", f"binlog.000007:{place}")


def test_positions_are_texts_that_grow_with_the_binlog():
    """Of places of any number of digits, in payloads and out of them, over a million files and a failover."""
    places = [
        (era, file, pos, inner, row)
        for era in (0, 9, 10) for file in (7, 999_999, 1_000_000) for pos in (4, 999, 1000, 1 << 40)
        for inner in (0, 9, 10) for row in (0, 9, 10)
    ]  # fmt: skip
    found = []
    for era in (0, 9, 10):
        changes = [
            {"op": "c", "file": f"binlog.{file:06d}", "pos": pos, "inner": inner, "row": row}
            for each, file, pos, inner, row in places
            if each == era
        ]
        found += framed(pa.Table.from_pylist(changes, CHANGES), era)["position"].to_pylist()
    assert found == sorted(set(found))
    assert len(found) == len(places)
