"""Where batches end and parts begin, over golden binlogs and events made by hand. No server."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from made_events import GOLDEN, GOLDEN_FILES, dialect_of

from onceward.errors import (
    BinlogCorrupted,
    ChangeUnreadable,
    ConfigurationError,
    SourceContractViolated,
    SourceReplaced,
)
from onceward.mysql.binlog.event import (
    APPEND_BLOCK,
    BEGIN_LOAD_QUERY,
    EXECUTE_LOAD_QUERY,
    FORMAT_DESCRIPTION,
    GTID,
    GTID_LIST,
    GTID_TAGGED,
    INCIDENT,
    MARIADB_GTID,
    PARTIAL_UPDATE_ROWS,
    PREVIOUS_GTIDS,
    QUERY,
    QUERY_COMPRESSED,
    ROWS_EVENTS,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    XA_PREPARE,
    XID,
    BinlogEvent,
)
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.source import position_search
from onceward.mysql.source.ranges import PlannedRange, RangePlanner
from onceward.mysql.source.settings import (
    ChangesSettings,
    Coordinates,
    Position,
    binlog_number,
    make_settings,
)
from onceward.mysql.source.transactions import TransactionWalk
from support.binlog_files import events_of_file
from support.errors import raises

FILE = "binlog.000001"
CET = timezone(timedelta(hours=1))
SERVER = "11111111-1111-1111-1111-111111111111"


def settings(**said: Any) -> ChangesSettings:
    part_bytes = said.pop("part_bytes", 1 << 22)
    usual = {
        "url": "mysql://reader:hidden@host",
        "tables": "*.*",
        "starting": "latest",
        "max_bytes_per_batch": 1 << 30,
        "heartbeat_seconds": 60.0,
        "pass_over": (),
        "values": "text",
    }
    return replace(make_settings(**{**usual, **said}), part_bytes=part_bytes)


def start(dialect: Any = "mysql", **said: Any) -> Position:
    return replace(Position(dialect, "a server", 0, FILE, 4, None, None), **said)


def cut(
    events: Iterable[BinlogEvent],
    begin: Position,
    with_settings: ChangesSettings | None = None,
    **said: Any,
) -> PlannedRange:
    cutter = RangePlanner(with_settings or settings(), begin, **said)
    cutter.feed(list(events))
    return cutter.range()


def golden(name: str) -> list[BinlogEvent]:
    return list(
        events_of_file((GOLDEN / f"{name}.binlog").read_bytes(), dialect_of(GOLDEN / name), FILE)
    )


class Log:
    """A binlog of MySQL's, made by hand."""

    def __init__(self, file: str = FILE) -> None:
        self.file, self.at, self.events = file, 4, list[BinlogEvent]()
        self.put(FORMAT_DESCRIPTION, b"")

    def put(self, kind: int, body: bytes, *, server: int = 1, **said: Any) -> Log:
        size = 19 + len(body) + 4
        header = struct.pack("<IBIIIH", 1_700_000_000, kind, server, size, 0, 0)
        data = header + body
        self.events.append(
            BinlogEvent(
                data, 0, len(data), kind, 0, 1_700_000_000, server, self.file, self.at, **said
            )
        )
        self.at += size
        return self

    def gtid(self, number: int) -> Log:
        return self.put(GTID, b"\0" + b"\x11" * 16 + number.to_bytes(8, "little"))

    def query(self, text: str) -> Log:
        return self.put(QUERY, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode())

    def row(self, table: str = "t", kind: int = 30) -> Log:
        number = (7).to_bytes(6, "little")
        name = bytes([len(table)]) + table.encode() + b"\0"
        self.put(TABLE_MAP, number + b"\0\0" + b"\x04shop\0" + name + b"\x01\x03\x00\x00")
        return self.put(kind, number + b"\1\0\2\0\1\xff\0\1\0\0\0")

    def transaction(self, number: int, rows: int = 1, table: str = "t") -> Log:
        self.gtid(number).query("BEGIN")
        for _ in range(rows):
            self.row(table)
        return self.put(XID, bytes(8))


class MariaLog(Log):
    """One of MariaDB's."""

    def before(self, *gtids: str) -> MariaLog:
        """What the server says at the beginning of a file."""
        numbers = [[int(number) for number in gtid.split("-")] for gtid in gtids]
        self.put(
            GTID_LIST,
            struct.pack("<I", len(gtids)) + b"".join(struct.pack("<IIQ", *one) for one in numbers),
        )
        return self

    def transactions(self, *gtids: str) -> MariaLog:
        for gtid in gtids:
            domain, server, number = (int(each) for each in gtid.split("-"))
            self.put(
                MARIADB_GTID, struct.pack("<QIB", number, domain, 2) + bytes(6), server=server
            )
            self.row()
            self.put(XID, bytes(8))
        return self


@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda file: file.stem)
def test_every_limit_cuts_golden_binlogs_at_the_same_events(file: Any):
    """Batch by batch and all at once: the same parts, whatever their sizes."""
    events = list(events_of_file(file.read_bytes(), dialect_of(file), FILE))
    begin = start(dialect_of(file))
    whole = cut(events, begin)
    covered = [event.position for event in events if is_covered(event.position, whole)]
    for limit in (1, 2, 7):
        at, found, changes = begin, list[int](), 0
        while True:
            rest = [event for event in events if event.position >= at.pos]
            piece = cut(rest, at, settings(part_bytes=300), max_changes=limit)
            if piece.end.place == at.place or not piece.changes:
                assert str(piece.error) == str(whole.error)
                break
            found += [event.position for event in rest if is_covered(event.position, piece)]
            changes += piece.changes
            assert cut(rest, at, upto=piece.end.place).end == piece.end
            at = piece.end
        assert changes == whole.changes
        assert at.gtids == whole.end.gtids or at.place != whole.end.place
        assert set(wanted(events, found)) == set(wanted(events, covered))


def is_covered(position: int, found: PlannedRange) -> bool:
    return any(part["from"] <= position < part["to"] for part in found.parts)


def wanted(events: list[BinlogEvent], positions: list[int]) -> list[int]:
    """Those of rows."""
    rows = {
        event.position
        for event in events
        if event.kind in ROWS_EVENTS or event.kind == TRANSACTION_PAYLOAD
    }
    return sorted(rows & set(positions))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mysql-8.0.33-xa", "xa"),
        ("mysql-8.0.33-partial-json", "partial_json"),
        ("mysql-8.0.33-statement", "statement"),
        ("mariadb-11.4.5-statement", "statement"),
    ],
)
def test_golden_stops(name: str, reason: str):
    events = golden(name)
    begin = start("mariadb" if "mariadb" in name else "mysql")
    stop = cut(events, begin).error
    passed = list[str]()
    while isinstance(stop, ChangeUnreadable):
        assert stop.details["reason"] in (reason, "ddl")
        assert stop.details["at"] not in passed
        passed.append(stop.details["at"])
        stop = cut(events, begin, settings(pass_over=passed)).error
    assert stop is None
    assert passed


def test_stops_of_tables_that_are_not_read_are_none():
    for name in ("mysql-8.0.33-partial-json",):
        assert cut(golden(name), start(), settings(tables="other.*")).error is None


def test_a_half_transaction_at_the_end_is_waited_for():
    log = Log().transaction(1)
    end = log.at
    log.gtid(2).query("BEGIN").row()
    found = cut(log.events, start())
    assert (found.end.pos, found.changes, len(found.parts)) == (end, 1, 1)
    assert found.parts[0]["to"] == end
    assert found.error is None


def test_a_half_transaction_that_the_next_file_gives_up():
    """Its server died; what it had not finished never was, also where parts had begun in it."""
    log = Log().transaction(1)
    end = log.at
    log.gtid(2).query("BEGIN").row().row().row()
    following = Log("binlog.000002").transaction(3)
    found = cut([*log.events, *following.events], start(gtids=""), settings(part_bytes=100))
    assert found.changes == 2
    assert found.end.gtids == f"{SERVER}:1:3"
    assert [part["to"] for part in found.parts if part["file"] == FILE] == [end]
    assert found.end.file == "binlog.000002"
    assert found.parts[-1]["to"] == following.at


def test_transactions_that_were_read_before_are_in_no_part():
    log = Log()
    starts = {}
    for number in range(1, 6):
        starts[number] = log.at
        log.transaction(number)
    found = cut(log.events, start(gtids=f"{SERVER}:2:4"))
    assert found.changes == 3
    assert found.end.gtids == f"{SERVER}:1-5"
    read = {number for number, at in starts.items() if is_covered(at, found)}
    assert read == {1, 3, 5}


def test_a_range_of_another_server_by_its_transactions():
    log = Log()
    starts = {}
    for number in range(1, 6):
        starts[number] = log.at
        log.transaction(number)
    only = Gtids.parse("mysql", f"{SERVER}:1-2:4")
    found = cut(log.events, start(gtids=f"{SERVER}:1"), only=only)
    assert {number for number, at in starts.items() if is_covered(at, found)} == {2, 4}
    assert found.end.gtids == f"{SERVER}:1-2:4"


def test_numbers_out_of_order_are_new_transactions_on_the_server_that_was_read():
    """gtid_strict_mode is off by default: a write of a replica's own, and a counter that was
    reset.
    """
    log = (
        MariaLog()
        .before("0-1-99")
        .transactions("0-1-100", "0-2-101", "0-1-101", "0-1-102", "0-1-5")
    )
    found = cut(log.events, start("mariadb", gtids="0-1-99"))
    assert (found.changes, found.error, found.end.gtids) == (5, None, "0-2-101,0-1-5")
    assert found.end.unordered
    in_order = cut(log.events[:-4], start("mariadb", gtids="0-1-99"))
    assert (in_order.changes, in_order.end.gtids, in_order.end.unordered) == (
        4,
        "0-2-101,0-1-102",
        False,
    )
    again = cut(log.events[:-4], in_order.end)  # the position says it, and nothing else does
    assert again.end.gtids == in_order.end.gtids


def test_behind_a_failover_what_was_read_is_passed_over_once_and_what_was_not_is_read():
    log = MariaLog().before("0-1-99").transactions("0-1-100", "0-2-101", "0-1-101")
    read = start("mariadb", gtids="0-1-101,1-1-7", skips="0-1-101,1-1-7")
    first = cut(log.events, read)
    assert (first.changes, first.end.gtids, first.end.skips) == (
        1,
        "0-1-101,0-2-101,1-1-7",
        "1-1-7",
    )
    log.transactions("0-1-101", "1-1-6", "1-1-7", "1-1-7")
    rest = [event for event in log.events if event.position >= first.end.pos]
    second = cut(rest, Position.from_json(first.end.to_json()))
    assert (second.changes, second.end.skips) == (2, None)


@pytest.mark.parametrize(
    ("read", "first", "fits"),
    [
        ("0-1-2", "0-1-3", True),
        ("0-1-2", "0-1-6", False),
        ("0-1-2,0-2-5", "0-1-6", True),
        ("0-1-2,0-2-5", "0-2-7", False),
        ("0-1-2", "0-2-3", True),
        ("0-1-2", "0-2-9", False),
        ("0-1-2", "1-1-9", True),
        ("..0-1-2", "0-1-3", True),
        ("..0-1-2", "0-1-4", False),
    ],
)
def test_behind_a_failover_a_server_whose_binlogs_begin_later_is_refused(
    read: str, first: str, fits: bool
):
    """It was made of a dump, and says nowhere of which moment."""
    found = cut(
        MariaLog().before().transactions(first).events, start("mariadb", gtids=read, skips=read)
    )
    assert found.changes == fits
    assert isinstance(found.error, SourceReplaced) is not fits


def test_behind_a_failover_numbers_out_of_order_are_refused():
    log = MariaLog().before("0-1-99").transactions("0-1-100", "0-1-104", "0-1-102")
    found = cut(log.events, start("mariadb", gtids="0-1-110", skips="0-1-110"))
    assert isinstance(found.error, SourceReplaced)
    assert "gtid_strict_mode" in found.error.message
    assert found.changes == 0


def test_a_position_of_version_1_is_whole_from_the_next_file_on():
    """It has the last transaction of a domain, whoever else wrote in there."""
    old = {**start("mariadb", gtids="0-2-50").to_json(), "mysql": 1}
    for name in ("skips", "unordered", "prepared"):
        del old[name]
    begin = Position.from_json(old)
    assert begin.gtids == "..0-2-50"
    log = MariaLog().transactions("0-2-51")
    assert cut(log.events, begin).end.gtids == "..0-2-51"
    following = MariaLog("binlog.000002").before("0-1-40", "0-2-51").transactions("0-2-52")
    found = cut([*log.events, *following.events], begin)
    assert (found.error, found.changes, found.end.gtids) == (None, 2, "0-1-40,0-2-52")
    assert (
        Position.from_json({**old, "dialect": "mysql", "gtids": f"{SERVER}:1-5"}).gtids
        == f"{SERVER}:1-5"
    )


@pytest.mark.parametrize(
    ("statement", "stops"),
    [
        ("DROP TABLE IF EXISTS `never`,`never_2`", False),
        ("DROP TABLE IF EXISTS `never`,`t`", True),
        ("DROP TABLE IF EXISTS `there`", True),
        ("DROP TABLE `created`", False),
        ("CREATE OR REPLACE TABLE never (id int)", False),
        ("CREATE OR REPLACE TABLE created LIKE t", False),
        ("CREATE OR REPLACE TABLE there (id int)", True),
        ("CREATE OR REPLACE TABLE t (id int)", True),
        ("CREATE OR REPLACE TABLE never SELECT 1 AS id", True),
        ("RENAME TABLE IF EXISTS never TO never_2", True),
        ("RENAME TABLE never TO created, t TO x", True),
        ("RENAME TABLE other.never TO never_2", True),
        ("ALTER TABLE never EXCHANGE PARTITION p WITH TABLE never_2", True),
    ],
)
def test_a_table_of_which_nothing_came_may_be_dropped(statement: str, stops: bool):
    """Servers write DROP TABLE IF EXISTS whether the table was there or not, and MariaDB's CREATE
    OR REPLACE TABLE is one and a CREATE.
    """
    log = Log().gtid(1).query("CREATE TABLE created (id int)").transaction(2)
    log.gtid(3).query(statement).transaction(4, table="u")
    mine = settings(tables="shop.*")
    found = cut(log.events, start(known=[["shop", "there"]]), mine)
    assert isinstance(found.error, ChangeUnreadable) is stops
    came = ["t", "there"] if stops else ["t", "there", "u"]
    assert found.end.known == [["shop", name] for name in came]
    assert Position.from_json(found.end.to_json()) == found.end
    before_it_was_kept = cut(log.events, start(), mine)
    assert isinstance(before_it_was_kept.error, ChangeUnreadable)
    assert before_it_was_kept.end.known is None


@pytest.mark.parametrize(
    ("definition", "allowed", "reason"),
    [
        ("(id int)", (), None),
        ("SELECT 1 AS id", (), "statement"),
        ("(id int) WITH SYSTEM VERSIONING", (), "system_versioned"),
        ("(id int REFERENCES p (id) ON DELETE CASCADE)", (), "cascade"),
        ("(id int REFERENCES p (id) ON DELETE CASCADE)", ("cascade:shop.fresh",), None),
    ],
)
def test_what_replaces_nothing_is_taken_as_a_plain_create(
    definition: str, allowed: tuple[str, ...], reason: str | None
):
    """And the server is looked at again for it."""
    begin = start(known=[["shop", "there"]])
    found = []
    for verb in ("CREATE", "CREATE OR REPLACE"):
        log = Log().gtid(1).query(f"{verb} TABLE fresh {definition}").transaction(2)
        mine = settings(tables="shop.*", pass_over=allowed)
        planner = RangePlanner(mine, begin, checked_tables=[("shop", "t")])
        planner.feed(log.events)
        error = planner.error
        found.append((planner.range().changes, planner.unchecked_tables, error and error.message))
        assert (error.details["reason"] if error is not None else None) == reason
    assert found[0] == found[1]
    assert found[0][1] == (set() if reason else {("shop", "fresh")})


def changing_rows_of_fresh(how: str) -> tuple[Log, str]:
    """A log in which a table is made, and something unread is done with it; its place."""
    log = Log().gtid(1).query("CREATE TABLE fresh (id int)").gtid(2)
    text = b"INSERT INTO fresh VALUES (1)"
    if how == "LOAD DATA":
        log = loaded("fresh")
        (event,) = (each for each in log.events if each.kind == EXECUTE_LOAD_QUERY)
        return log, f"{FILE}:{event.position}"
    at = f"{FILE}:{log.at}"
    if how == "payload":
        log.put(TRANSACTION_PAYLOAD, b"\2\1\7\1\1\3\0abc")
    elif how == "compressed":
        head = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0"
        log.put(QUERY_COMPRESSED, head + b"\x91" + bytes([len(text)]) + text)
    elif how == "incident":
        log.put(INCIDENT, b"\1\0\0").query("CREATE TABLE other.t (id int)")
    elif how == "unknown":
        log.put(77, b"").query("CREATE TABLE other.t (id int)")
    else:
        log.query(how)
    return log, at


@pytest.mark.parametrize(
    "how",
    [
        "INSERT INTO fresh VALUES (1),(2)", "CREATE TABLE fresh SELECT 1 AS id",
        "IMPORT TABLE FROM 'fresh.sdi'", "RENAME TABLE elsewhere TO fresh", "LOAD DATA",
        "CREATE TABLE fresh WITH SYSTEM VERSIONING SELECT 1 AS id",
        "payload", "compressed", "incident", "unknown",
    ],
)  # fmt: skip
def test_a_table_that_may_have_got_rows_unread_may_not_be_dropped(how: str):
    """What is passed over by its name may have put rows into it, as a person has copied since."""
    log, at = changing_rows_of_fresh(how)
    known = start(known=[["shop", "there"]])
    first = cut(log.events, known, settings(tables="shop.*")).error
    assert isinstance(first, ChangeUnreadable)
    assert first.details["at"] == at
    passes = settings(tables="shop.*", pass_over=[at])
    assert cut(log.events, known, passes).error is None
    log.gtid(3)
    dropped_at = f"{FILE}:{log.at}"
    log.query("DROP TABLE IF EXISTS fresh").transaction(4, table="u")
    second = cut(log.events, known, passes)
    assert isinstance(second.error, ChangeUnreadable)
    assert (second.error.details["reason"], second.error.details["at"]) == ("ddl", dropped_at)
    assert second.end.known is None


@pytest.mark.parametrize("reason", ["xa", "cascade", "partial_json", "rollback", "twice"])
def test_what_is_passed_over_with_rows_that_were_seen_leaves_others_known(reason: str):
    log = Log()
    if reason == "xa":
        prepared(log, 1, "t")
    elif reason == "partial_json":
        log.gtid(1).query("BEGIN").row(kind=PARTIAL_UPDATE_ROWS).put(XID, bytes(8))
    elif reason == "rollback":
        log.gtid(1).query("BEGIN").row().query("ROLLBACK TO a").put(XID, bytes(8))
    elif reason == "twice":
        log.gtid(1).query("BEGIN").query("SAVEPOINT a").row().query("SAVEPOINT a").row()
        log.query("ROLLBACK TO a").put(XID, bytes(8))
    else:
        log.gtid(1).query("CREATE TABLE t (a int REFERENCES p (a) ON DELETE CASCADE)")
    log.gtid(2).query("DROP TABLE fresh").transaction(3)
    known, named = start(known=[["shop", "there"]]), list[str]()
    for _ in range(2):
        found = cut(log.events, known, settings(tables="shop.*", pass_over=named))
        named += [found.error.details["at"]] if found.error is not None else []
    assert found.error is None
    assert found.end.known == [["shop", "t"], ["shop", "there"]]


@pytest.mark.parametrize(
    "verb", ["DROP DATABASE", "DROP SCHEMA IF EXISTS", "CREATE OR REPLACE SCHEMA"]
)
def test_a_database_of_which_nothing_came_may_be_dropped(verb: str):
    mine = settings(tables="*.orders")
    for known, database, stops in (
        ([["shop", "orders"]], "scratch", False),
        ([["shop", "orders"]], "shop", True),
        ([], "shop", False),
        (None, "scratch", True),
    ):
        log = Log().gtid(1).query(f"{verb} `{database}`").transaction(2, table="u")
        found = cut(log.events, start(known=known), mine)
        assert isinstance(found.error, ChangeUnreadable) is stops
        assert found.end.known == known
    came = Log().transaction(1, table="orders").gtid(2).query(f"{verb} shop")
    assert isinstance(cut(came.events, start(known=[]), mine).error, ChangeUnreadable)


def loaded(table: str) -> Log:
    """LOAD DATA as a statement: its file in pieces, then what is done with it."""
    text = f"LOAD DATA INFILE 'x' INTO TABLE `{table}` LINES TERMINATED BY '\\n' (`id`)".encode()
    log = Log().gtid(1).query("BEGIN")
    log.put(BEGIN_LOAD_QUERY, bytes(4) + b"1\n").put(APPEND_BLOCK, bytes(4) + b"2\n")
    log.put(
        EXECUTE_LOAD_QUERY, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + bytes(13) + b"shop\0" + text
    )
    return log.put(XID, bytes(8)).transaction(2)


def test_load_data_as_a_statement_stops_where_its_table_is_read():
    mine = settings(tables="shop.t")
    assert cut(loaded("other").events, start(), mine).changes == 1
    stop = cut(loaded("t").events, start(), mine).error
    assert isinstance(stop, ChangeUnreadable)
    assert stop.details["reason"] == "statement"


def test_a_statement_on_a_view_or_a_table_with_triggers_stops():
    """Whoever changes it may change a table that is read; in the server's own databases there are
    none.
    """
    mine, asked = settings(tables="shop.t"), list[tuple[str, str]]()

    def reaches_others(database: str, table: str) -> bool:
        asked.append((database, table))
        return table == "v"

    log = (
        Log()
        .gtid(1)
        .query("BEGIN")
        .query("INSERT INTO mysql.heartbeat VALUES (1)")
        .query("DELETE FROM other.t")
    )
    log.query("INSERT INTO other.v VALUES (1)").put(XID, bytes(8))
    stop = cut(log.events, start(), mine, reaches_others=reaches_others).error
    assert isinstance(stop, ChangeUnreadable)
    assert "other.v" in stop.message
    assert asked == [("other", "t"), ("other", "v")]
    reading = Log().gtid(1).query("INSERT INTO other.t SELECT 1 FROM other.v, shop.t")
    assert cut(reading.events, start(), mine).error is None
    stop_of_reading = cut(reading.events, start(), mine, is_view=reaches_others).error
    assert isinstance(stop_of_reading, ChangeUnreadable)
    assert "other.v" in stop_of_reading.message
    assert (
        cut(log.events, start(), settings(tables="shop.t", pass_over=[stop.details["at"]])).error
        is None
    )


def prepared(log: Log, number: int, table: str, xid: bytes = b"x") -> Log:
    """An XA transaction of two phases."""
    name = f"X'{xid.hex()}',X'',1"
    log.gtid(number).query(f"XA START {name}").row(table).query(f"XA END {name}")
    return log.put(XA_PREPARE, b"\0" + struct.pack("<III", 1, len(xid), 0) + xid)


@pytest.mark.parametrize("decision", ["COMMIT", "ROLLBACK"])
def test_the_decision_on_an_xa_transaction_of_other_tables_passes(decision: str):
    """Its name alone is in there, maybe in a later batch, and behind a restart."""
    log = prepared(Log(), 1, "other").transaction(2)
    mine = settings(tables="shop.t")
    first = cut(log.events, start(), mine)
    assert (first.changes, first.error, first.end.prepared) == (1, None, {"1:78:": False})
    log.gtid(3).query(f"XA {decision} X'78',X'',1").transaction(4)
    rest = [event for event in log.events if event.position >= first.end.pos]
    found = cut(rest, Position.from_json(first.end.to_json()), mine)
    assert (found.changes, found.error, found.end.prepared) == (1, None, None)
    unknown = cut(rest, start(), mine)
    assert isinstance(unknown.error, ChangeUnreadable)
    assert unknown.error.details["reason"] == "xa"


def test_an_xa_transaction_of_wanted_rows_stops_where_it_is_prepared_and_where_it_is_decided():
    log = (
        prepared(prepared(Log(), 1, "other", b"a"), 2, "t", b"b")
        .gtid(3)
        .query("XA COMMIT X'61',X'',1")
    )
    log.gtid(4).query("XA ROLLBACK X'62',X'',1").transaction(5)
    places, passed = [], list[str]()
    while (
        stop := cut(log.events, start(), settings(tables="shop.t", pass_over=passed)).error
    ) is not None:
        assert stop.details["reason"] == "xa"
        passed.append(stop.details["at"])
        places.append(
            next(event.kind for event in log.events if passed[-1] == f"{FILE}:{event.position}")
        )
    assert places == [XA_PREPARE, QUERY]


def test_a_start_knows_the_xa_transactions_that_are_open_where_it_begins():
    """It is found by reading its file from the beginning."""
    log = prepared(prepared(Log(), 1, "other", b"a"), 2, "t", b"b")
    walk = TransactionWalk(start(), selects=settings(tables="shop.t").selects)
    walk.feed(log.events)
    assert walk.position().prepared == {"1:61:": False, "1:62:": True}


def test_a_part_inside_a_transaction_is_told_what_its_rows_are_of():
    log = Log().transaction(1, rows=6)
    found = cut(log.events, start(), settings(part_bytes=120))
    assert len(found.parts) > 2
    assert {part["gtid"] for part in found.parts[1:]} == {f"{SERVER}:1"}
    has_maps = [part["from"] for part in found.parts if "maps" in part]
    assert has_maps == [part["from"] for part in found.parts if part["from"] in rows_at(log)]
    joined = [found.parts[0]["from"], *[part["to"] for part in found.parts]]
    assert [part["from"] for part in found.parts] == joined[:-1]


def test_stretches_without_wanted_tables_are_in_no_part():
    log = Log()
    for number in range(1, 20):
        log.transaction(number, table="other")
    at = log.at
    log.transaction(20)
    found = cut(log.events, start(), settings(tables="shop.t", part_bytes=1000))
    assert [(part["from"], part["to"]) for part in found.parts] == [(at, log.at)]
    assert found.changes == 1


@pytest.mark.parametrize("end", ["BEGIN", "COMMIT", "ROLLBACK"])
def test_a_statement_that_ends_like_a_transaction_is_a_stop(end: str):
    log = (
        Log()
        .gtid(1)
        .query("BEGIN")
        .query(f"CALL p() -- \0{end}")
        .put(XID, bytes(8))
        .transaction(2)
    )
    stop = cut(log.events, start()).error
    assert isinstance(stop, ChangeUnreadable)
    assert stop.details["reason"] == "statement"


@pytest.mark.parametrize("part_bytes", [1, 1 << 22], ids=["small parts", "one part"])
@pytest.mark.parametrize("passed", [False, True], ids=["", "named"])
def test_rows_that_are_rolled_back_are_in_no_part(passed: bool, part_bytes: int):
    log = Log().transaction(1).gtid(2).query("BEGIN").row().row()
    named = [f"{FILE}:{log.at}"] if passed else []
    log.query("ROLLBACK").transaction(3).gtid(4).query("BEGIN").query("ROLLBACK").transaction(5)
    found = cut(log.events, start(), settings(pass_over=named, part_bytes=part_bytes))
    assert (found.changes, found.error, found.end.pos) == (3, None, log.at)
    assert rows_in(log, found) == rows_at(log)[:1] + rows_at(log)[3:]


def rows_at(log: Log) -> list[int]:
    return [event.position for event in log.events if event.kind == 30]


def rows_in(log: Log, found: PlannedRange) -> list[int]:
    """Places of the rows that tasks read."""
    return [
        place
        for part in found.parts
        for place in rows_at(log)
        if part["from"] <= place < part["to"]
    ]


@pytest.mark.parametrize("part_bytes", [1, 1 << 22], ids=["small parts", "one part"])
def test_rows_behind_a_savepoint_that_is_gone_back_to_are_in_no_part(part_bytes: int):
    log = Log().transaction(1).gtid(2).query("BEGIN").row().query("SAVEPOINT `a`").row()
    log.query("SAVEPOINT `b ``c`").row("other").query("ROLLBACK TO `B ``C`").row()
    log.query("ROLLBACK TO `A`").row().query("SAVEPOINT `c`").query("ROLLBACK TO c").row("other")
    log.put(XID, bytes(8)).transaction(3)
    found = cut(log.events, start(), settings(tables="shop.t", part_bytes=part_bytes))
    assert (found.changes, found.error) == (4, None)
    kept = rows_at(log)
    assert [place for place in rows_in(log, found) if place not in (kept[3], kept[6])] == [
        kept[0], kept[1], kept[5], kept[7]
    ]  # fmt: skip


def test_a_savepoint_of_a_function_may_have_the_name_of_another():
    """Only where rows are between the two does it matter which is meant."""
    log = Log().gtid(1).query("BEGIN").row().query("SAVEPOINT `a`").query("SAVEPOINT `a`").row()
    begun = [*log.events]
    log.query("ROLLBACK TO `a`").put(XID, bytes(8))
    assert rows_in(log, cut(log.events, start())) == rows_at(log)[:1]
    twice = Log()
    twice.events, twice.at = begun, begun[-1].position + len(begun[-1].buffer)
    twice.query("SAVEPOINT `a`").row()
    at = f"{FILE}:{twice.at}"
    twice.query("ROLLBACK TO `a`").put(XID, bytes(8))
    stop = cut(twice.events, start()).error
    assert isinstance(stop, ChangeUnreadable)
    assert "set twice" in stop.message
    assert f'pass_over=["{at}"]' in str(stop)
    passed = cut(twice.events, start(), settings(pass_over=[at]))
    assert rows_in(twice, passed) == rows_at(twice)[:2]


@pytest.mark.parametrize("text", ["ROLLBACK TO `a`", "ROLLBACK WORK"])
def test_what_is_undone_to_a_place_that_is_not_known(text: str):
    """It is a stop where rows came before it, which can be passed over as the error says."""
    log = Log().transaction(1).gtid(2).query("BEGIN").query(text).put(XID, bytes(8))
    found = cut(log.events, start())
    assert (found.changes, found.error) == (1, None), "no rows of wanted tables"
    log.gtid(3).query("BEGIN").row()
    at = f"{FILE}:{log.at}"
    log.query(text).put(XID, bytes(8)).transaction(4)
    stop = cut(log.events, start()).error
    assert isinstance(stop, ChangeUnreadable)
    assert stop.details["reason"] == "statement"
    assert f'pass_over=["{at}"]' in str(stop)
    passed = cut(log.events, start(), settings(pass_over=[at]))
    assert (passed.changes, passed.error) == (3, None)


def test_a_set_of_transactions_with_more_than_was_seen():
    following = Log("binlog.000002")
    body = (1).to_bytes(8, "little") + b"\x11" * 16 + struct.pack("<QQQ", 1, 1, 9)
    following.put(PREVIOUS_GTIDS, body).transaction(9)
    events = [*Log().transaction(1).events, *following.events]
    found = cut(events, start(gtids=""))
    assert found.changes == 1
    assert isinstance(found.error, ChangeUnreadable)
    assert "gtid_purged" in found.error.message
    passed = cut(events, start(gtids=""), settings(pass_over=[found.error.details["at"]]))
    assert (passed.changes, passed.end.gtids) == (2, f"{SERVER}:1-9")


@pytest.mark.parametrize("gtids", ["", None])
def test_an_incident_that_is_passed_over_is_the_whole_of_its_transaction(gtids: str | None):
    """MySQL gives it a GTID, and begins another file, whose set has that."""
    log = Log().transaction(1).gtid(2)
    at = f"{FILE}:{log.at}"
    log.put(INCIDENT, b"\1\0\0")
    behind = Coordinates(FILE, log.at)
    following = Log("binlog.000002")
    body = (1).to_bytes(8, "little") + b"\x11" * 16 + struct.pack("<QQQ", 1, 1, 3)
    following.put(PREVIOUS_GTIDS, body).transaction(3)
    events = [*log.events, *following.events]
    begin = start(gtids=gtids)
    stop = cut(events, begin).error
    assert isinstance(stop, ChangeUnreadable)
    assert (stop.details["reason"], stop.details["at"]) == ("incident", at)
    passes = settings(pass_over=[at])
    assert cut(log.events, begin, passes).end.place == behind
    found = cut(events, begin, passes)
    assert (found.error, found.changes, found.end.gtids) == (None, 2, f"{SERVER}:1-3")
    walk = TransactionWalk(begin)
    walk.feed(events)
    assert (walk.error, walk.place) == (None, found.end.place)
    log.transaction(3)
    assert cut(log.events, begin, passes).changes == 2


@pytest.mark.parametrize("kind", [GTID_TAGGED, QUERY_COMPRESSED])
def test_a_search_for_a_position_goes_past_what_is_passed_over(
    kind: int, monkeypatch: pytest.MonkeyPatch
):
    """What a newer server wrote. The reader passes over it, and a start has to get there."""
    log = Log().transaction(1)
    if kind == QUERY_COMPRESSED:
        log.gtid(2)
    at = f"{FILE}:{log.at}"
    if kind == QUERY_COMPRESSED:
        statement = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0"
        log.put(kind, statement + b"\xa1\1x")
    else:
        log.put(kind, b"\4\x10\0").query("BEGIN").row().put(XID, bytes(8))
    end = Coordinates(FILE, log.at)
    log.transaction(3)
    monkeypatch.setattr(position_search, "follow", lambda _, at, feed: feed(log.events))

    def search(*pass_over: str) -> Coordinates:
        walk = position_search.walk_until(
            settings(pass_over=pass_over), start(), lambda event, _: event.position == end.pos
        )
        return walk.place

    with pytest.raises(ChangeUnreadable, match=rf'pass_over=\["{at}"\]'):
        search()
    assert search(at) == end


def test_an_incident_that_another_server_had_is_no_stop():
    log = Log().transaction(1).gtid(2).put(INCIDENT, b"\1\0\0").transaction(3)
    found = cut(log.events, start(gtids=f"{SERVER}:1-2"))
    assert (found.error, found.changes, found.end.gtids) == (None, 1, f"{SERVER}:1-3")


@pytest.mark.parametrize("inside", [False, True])
def test_an_incident_without_a_gtid_ends_no_transaction(inside: bool):
    """MariaDB writes it by itself."""
    log = MariaLog().before("0-1-99").transactions("0-1-100")
    if inside:
        log.put(MARIADB_GTID, struct.pack("<QIB", 101, 0, 2) + bytes(6)).row()
    at = f"{FILE}:{log.at}"
    log.put(INCIDENT, b"\1\0\0")
    if inside:
        log.put(XID, bytes(8))
    log.transactions("0-1-102")
    found = cut(log.events, start("mariadb", gtids="0-1-99"), settings(pass_over=[at]))
    assert (found.error, found.changes, found.end.gtids) == (None, 2 + inside, "0-1-102")


def test_a_transaction_without_an_end_is_damage():
    log = Log().gtid(1).query("BEGIN").row().gtid(2)
    assert isinstance(cut(log.events, start()).error, BinlogCorrupted)


def test_another_file_of_the_name():
    assert isinstance(cut(Log().transaction(1).events, start(born=1)).error, SourceReplaced)


def test_a_logged_end_that_is_none():
    log = Log().transaction(1)
    found = cut(log.events, start(), upto=Coordinates(FILE, log.at - 1))
    assert isinstance(found.error, BinlogCorrupted)


def test_positions_are_the_same_as_json():
    position = start(gtids="x", born=7, snapshot={"left": []})
    assert Position.from_json(position.to_json()) == position
    for other in ({"mysql": 3}, {"mysql": 2}, {"mysql": 1}, 7, {**position.to_json(), "more": 1}):
        with raises(SourceContractViolated):
            Position.from_json(other)
    assert [binlog_number(name) for name in ("binlog.000009", "a.b.1000000")] == [9, 1_000_000]
    assert Coordinates("binlog.999999", 5).order < Coordinates("binlog.1000000", 4).order


def test_which_tables_are_read():
    mine = settings(tables=["shop.orders", "app_*.log*"])
    assert mine.selects("shop", "orders")
    assert mine.selects("app_1", "logs")
    assert not any(
        [
            mine.selects("shop", "order"),
            mine.selects("shop2", "orders"),
            mine.selects("Shop", "orders"),
        ]
    )
    assert mine.for_server(1).selects("SHOP", "Orders")
    assert not settings().selects("mysql", "user")
    assert mine.selects_database("app_2")
    assert not mine.selects_database("mysql")


def test_in_names_of_tables_only_a_star_is_any_text():
    mine = settings(tables=["shop.log[2024]", "shop.a?", "[x].*", "many.*_*\n"])
    assert mine.selects("shop", "log[2024]")
    assert not mine.selects("shop", "log2")
    assert mine.selects("shop", "a?")
    assert not mine.selects("shop", "ab")
    assert mine.selects("[x]", "two\nlines")
    assert mine.selects_database("[x]")
    assert not mine.selects_database("x")
    assert mine.selects("many", "_\n")
    assert not mine.selects("many", "a_b")
    assert mine.for_server(1).selects("SHOP", "LOG[2024]")


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "postgresql://x"},
        {"url": "mysql://"},
        {"url": "mysql://u:pass@word@h/a/b"},
        {"tables": []},
        {"tables": "orders"},
        {"tables": "mysql.user"},
        {"starting": "now"},
        {"starting": {"timestamp": "yesterday"}},
        {"starting": {"file": "binlog", "position": 4}},
        {"max_bytes_per_batch": 0},
        {"heartbeat_seconds": 0},
        {"values": "xml"},
        {"pass_over": ["everything"]},
    ],
    ids=str,
)
def test_settings_that_cannot_be(wrong: dict[str, Any]):
    with pytest.raises((ConfigurationError, SourceContractViolated)) as refused:
        settings(**wrong)
    assert "pass@word" not in str(refused.value)


@pytest.mark.parametrize(
    ("time", "microseconds"),
    [
        (datetime(2026, 1, 1, 0, 0, 0, 600, timezone.utc), 1_767_225_600_000_600),
        (datetime(2026, 1, 1, 1, 0, 0, 999_999, CET), 1_767_225_600_999_999),
        (1_767_225_600_001, 1_767_225_600_001_000),
    ],
    ids=str,
)
def test_a_start_by_time_is_as_exact_as_servers_note_it(time: object, microseconds: int):
    """A transaction of 0.7 ms is none before 0.6 ms; of the next full millisecond it was."""
    assert settings(starting={"timestamp": time}).starting == {"timestamp": microseconds}


def test_a_password_is_in_no_text():
    assert "hidden" not in repr(settings())


def test_files_of_another_base_name_are_an_era_of_their_own():
    """A server that is started with another --log-bin, and the old index, goes on counting from
    1.
    """
    old, new = Log("binlog.000007").transaction(1), Log("other.000001").transaction(2)
    begin = start(file="binlog.000007", gtids="")
    found = cut([*old.events, *new.events], begin)
    assert [(part["file"], part["era"]) for part in found.parts] == [
        ("binlog.000007", 0),
        ("other.000001", 1),
    ]
    assert (found.end.place, found.end.era) == (Coordinates("other.000001", new.at), 1)
    assert cut([*old.events, *new.events], begin, upto=found.end.place).end == found.end
    earlier = cut([*old.events, *Log("binlog.000003").transaction(2).events], begin).error
    assert isinstance(earlier, BinlogCorrupted)
    assert "not a later one" in earlier.message


def test_what_is_new_in_a_binlog_is_told_with_the_place_before_it():
    log = Log().transaction(1)
    behind = Coordinates(FILE, log.at)
    looked_at = {("shop", "t")}

    def news(**said: Any) -> tuple[Coordinates | None, set[tuple[str, str]]]:
        cutter = RangePlanner(
            said.get("settings", settings(tables="shop.*")),
            start(gtids=""),
            checked_tables=looked_at,
        )
        cutter.feed(log.events)
        assert cutter.error is None
        assert cutter.range().changes == 3
        return cutter.unchecked_at, cutter.unchecked_tables

    log.transaction(2, table="u").gtid(3).query("ALTER TABLE t ADD x int").transaction(4)
    assert news() == (behind, {("shop", "u"), ("shop", "t")})
    looked_at.add(("shop", "u"))
    assert news() == (Coordinates(FILE, log.events[-7].position), {("shop", "t")})


@pytest.mark.parametrize("passed", [(), ("cascade:shop.t",), ("cascade:shop.T",)])
@pytest.mark.parametrize("logged", [False, True])
def test_a_foreign_key_that_changes_rows_is_a_stop(passed: tuple[str, ...], logged: bool):
    log = (
        Log()
        .transaction(1)
        .gtid(2)
        .query("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p (a) ON DELETE CASCADE")
    )
    said = settings(tables="shop.*", pass_over=passed).for_server(0, cascades_are_logged=logged)
    found = cut(log.transaction(3).events, start(gtids=""), said)
    if passed == ("cascade:shop.t",) or logged:
        assert (found.error, found.changes) == (None, 2)
    else:
        assert isinstance(found.error, ChangeUnreadable)
        assert found.error.details["reason"] == "cascade"
        assert found.changes == 1
