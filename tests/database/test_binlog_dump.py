"""The binlogs of real servers, as they send them: every event once, from any place on, and what is
wrong by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
from changes_place import purge
from database_place import standing_still
from snapshot_play import settings_for

from onceward.errors import (
    AccessDenied,
    BinlogCorrupted,
    BinlogPurged,
    ServerMisconfigured,
    ServerUnreachable,
    SourceReplaced,
)  # fmt: skip
from onceward.mysql.binlog.event import GTID, ROWS_EVENTS, TABLE_MAP, BinlogEvent
from onceward.mysql.snapshot.result_set import fetch_columns
from onceward.mysql.source import connection as connecting
from onceward.mysql.source.connection import Server, open_dump
from onceward.mysql.source.dump import Dump
from onceward.mysql.source.settings import Coordinates
from onceward_testing import LocalMySQL
from support.binlog_files import events_of_file
from support.mysql_client import sql_at

MARIADB = pytest.param("binlog_mariadb", marks=pytest.mark.once_more)
FAR = 1 << 32


class Binlogs:
    """A server's, with a table whose changes fill them."""

    def __init__(self, server: LocalMySQL) -> None:
        self.server = server
        self.kind = server.kind
        self.sql(
            "DROP TABLE IF EXISTS filled",
            "CREATE TABLE filled (id int PRIMARY KEY AUTO_INCREMENT, v longblob)",
        )

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        return [sql_at(self.server.url, statement) for statement in statements][-1]

    def end(self) -> tuple[str, int]:
        file, position = self.sql("SHOW MASTER STATUS")[0][:2]
        return str(file), int(position)

    def filled(self, transactions: int = 5) -> None:
        for number in range(transactions):
            self.sql(f"INSERT INTO filled (v) VALUES ('{number}'), (repeat('v', {number * 50}))")  # noqa: S608

    def connected(self, user: str | None = None) -> Any:
        said = urlsplit(self.server.url)
        return pymysql.connect(
            host=said.hostname, port=said.port or 0, user=user or said.username, ssl_disabled=True,
            password=said.password or "" if user is None else "",
        )  # fmt: skip

    def dumped(
        self, at: tuple[str, int], until: tuple[str, int] | tuple[()] = (), **said: Any
    ) -> list[BinlogEvent]:
        with Dump(self.connected(said.pop("user", None)), self.kind, *at, **said) as dump:
            return [
                event for event in chain.from_iterable(dump.blocks(*until)) if not event.artificial
            ]

    def read(self, at: tuple[str, int], **login: str) -> None:
        """Through what knows what a refusal means."""
        settings = settings_for(self.server.url, "test.*")
        with closing(Server(settings)) as server:
            identity = server.identity
        settings = replace(settings, connect_args={**settings.connect_args, **login})
        with open_dump(settings, identity, Coordinates(*at)) as dump:
            list(dump.blocks())

    def in_files(self, at: tuple[str, int], count: int) -> list[BinlogEvent]:
        """So many from there on: the server may have written more since."""
        files = sorted(
            str(name) for (name, *_) in self.sql("SHOW BINARY LOGS") if str(name) >= at[0]
        )
        folder = self.server.folder / "data"
        events = [
            one
            for file in files
            for one in events_of_file((folder / file).read_bytes(), self.kind, file)
        ]
        return [event for event in events if (event.file, event.position) >= at][:count]


@pytest.fixture(params=["binlog_mysql", MARIADB], ids=["MySQL", "MariaDB"])
def binlogs(request: pytest.FixtureRequest) -> Binlogs:
    return Binlogs(request.getfixturevalue(request.param))


@pytest.fixture
def at_once(binlogs: Binlogs) -> Iterator[Callable[[str], None]]:
    """Settings of the whole server, as they were before in the end."""
    undo: list[str] = []

    def put(setting: str) -> None:
        name = setting.partition(" ")[0]
        ((was,),) = binlogs.sql(f"SELECT @@GLOBAL.{name}")
        undo.append(f"SET GLOBAL {name} = {was!r}")
        binlogs.sql(f"SET GLOBAL {setting}")

    yield put
    for statement in reversed(undo):
        binlogs.sql(statement)


def facts(events: list[BinlogEvent]) -> list[tuple[Any, ...]]:
    return [
        (event.kind, event.file, event.position, event.timestamp, bytes(event.body))
        for event in events
    ]


def test_a_dump_from_any_event_to_any_other_is_what_the_files_have(binlogs: Binlogs):
    start = binlogs.end()
    binlogs.filled()
    binlogs.sql("FLUSH BINARY LOGS")
    binlogs.filled(2)
    whole = facts(binlogs.dumped(start))
    assert whole == facts(binlogs.in_files(start, len(whole)))
    assert sum(event[0] in ROWS_EVENTS for event in whole) == 7
    places = [(event[1], event[2]) for event in whole]
    for at in (1, 3, len(places) // 2):
        assert facts(binlogs.dumped(places[at]))[: len(whole) - at] == whole[at:]
        assert facts(binlogs.dumped(start, places[at])) == whole[:at]
        assert facts(binlogs.dumped(places[at], places[-2])) == whole[at:-2]
    assert binlogs.dumped(start, start) == []
    with Dump(binlogs.connected(), binlogs.kind, *start) as dump:
        pieces = [
            list(chain.from_iterable(dump.blocks(*place))) for place in [*places[1::4], places[-1]]
        ]
    assert (
        facts([event for piece in pieces for event in piece if not event.artificial]) == whole[:-1]
    )


def test_events_of_many_packets_come_whole(binlogs: Binlogs, at_once: Callable[[str], None]):
    at_once("max_allowed_packet = 67108864")
    start = binlogs.end()
    binlogs.sql("INSERT INTO filled (v) VALUES (repeat('\0', 17000000))")
    events = binlogs.dumped(start)
    assert facts(events) == facts(binlogs.in_files(start, len(events)))
    assert max(len(event.body) for event in events) > 17_000_000


def test_two_dumps_at_once_do_not_end_each_other(binlogs: Binlogs):
    start = binlogs.end()
    binlogs.filled(30)
    with (
        Dump(binlogs.connected(), binlogs.kind, *start, block_bytes=256) as one,
        Dump(binlogs.connected(), binlogs.kind, *start, block_bytes=256) as two,
    ):
        first, second = chain.from_iterable(one.blocks()), chain.from_iterable(two.blocks())
        pairs = list(zip(first, second, strict=True))
    assert facts([event for event, _ in pairs]) == facts([event for _, event in pairs])
    assert sum(event.kind in ROWS_EVENTS for event, _ in pairs) == 30


def test_files_with_and_without_checksums_follow_each_other(
    binlogs: Binlogs, at_once: Callable[[str], None]
):
    start = binlogs.end()
    at_once("binlog_checksum = 'NONE'")
    binlogs.filled(2)
    bare = binlogs.end()
    at_once("binlog_checksum = 'CRC32'")
    binlogs.filled(2)
    whole = facts(binlogs.dumped(start))
    assert whole == facts(binlogs.in_files(start, len(whole)))
    places = [(event[1], event[2]) for event in whole]
    at = next(
        number for number, place in enumerate(places) if place[0] == bare[0] and place[1] > 4
    )
    assert facts(binlogs.dumped(places[at + 3], places[-1])) == whole[at + 3 : -1]


def test_a_place_inside_of_an_event_is_damage(binlogs: Binlogs):
    start = binlogs.end()
    binlogs.filled()
    place = next(event for event in binlogs.dumped(start) if event.kind == TABLE_MAP).position
    with pytest.raises(BinlogCorrupted):
        binlogs.read((start[0], place + 7))
    with pytest.raises(BinlogCorrupted, match=f"where one is to begin at {start[0]}:{place + 7}"):
        binlogs.dumped(start, (start[0], place + 7))


def test_what_is_gone_is_called_so(binlogs: Binlogs):
    start = binlogs.end()
    binlogs.sql("FLUSH BINARY LOGS")
    file, end = binlogs.end()
    with pytest.raises(BinlogCorrupted, match="was read up to"):
        binlogs.dumped(start, (file, end + 1))
    with pytest.raises(SourceReplaced, match=r"1236, .*shorter"):
        binlogs.read((file, end + 1000))
    purge(binlogs.server.url)
    with pytest.raises(BinlogPurged, match=r"1236, .*binlog_expire_logs_seconds"):
        binlogs.read(start)
    binlogs.filled(1)
    assert (
        sum(event.kind in ROWS_EVENTS for event in binlogs.dumped((file, end))) == 1
    )  # a purged set of GTIDs does not matter


def test_who_has_no_right_is_told_which(binlogs: Binlogs):
    binlogs.sql("CREATE USER IF NOT EXISTS anybody")
    with pytest.raises(AccessDenied, match="GRANT REPLICATION SLAVE"):
        binlogs.read(binlogs.end(), user="anybody", password="")


def test_an_end_in_the_middle_is_a_server_that_cannot_be_reached(binlogs: Binlogs):
    start = binlogs.end()
    connection = binlogs.connected()
    binlogs.sql("INSERT INTO filled (v) VALUES " + ", ".join(["(repeat(0x78, 100000))"] * 100))  # noqa: S608
    with Dump(connection, binlogs.kind, *start, block_bytes=1000) as dump:
        events = chain.from_iterable(dump.blocks())
        assert not next(event for event in events if event.kind == TABLE_MAP).artificial
        binlogs.sql(f"KILL {connection.thread_id()}")
        with pytest.raises(ServerUnreachable, match=f"{start[0]}:"):
            list(events)
    with pytest.raises(ServerUnreachable, match="closed"), Dump(connection, binlogs.kind, *start):
        pass


def test_no_answer_is_waited_for_without_an_end(binlogs: Binlogs, monkeypatch: pytest.MonkeyPatch):
    """To a question, and for the rows of a snapshot."""
    monkeypatch.setattr(connecting, "ANSWER_SECONDS", 1.0)
    settings = settings_for(binlogs.server.url, "test.*")
    assert binlogs.server.pid is not None
    with closing(Server(settings)) as asked, closing(Server(settings)) as selected:
        rows = fetch_columns(selected.connection, "SELECT 1 UNION ALL SELECT SLEEP(4)")
        with (
            pytest.raises(ServerUnreachable, match="timed out"),
            connecting.driver_errors("the server"),
        ):
            list(rows)
        with (
            standing_still(binlogs.server.pid),
            pytest.raises(ServerUnreachable, match="timed out"),
        ):
            asked.query("SELECT 1")


def test_a_server_that_says_nothing_cannot_be_reached(binlogs: Binlogs):
    connection, start = binlogs.connected(), binlogs.end()
    assert binlogs.server.pid is not None
    with (
        standing_still(binlogs.server.pid),
        pytest.raises(ServerUnreachable),
        Dump(connection, binlogs.kind, *start, seconds=0.3),
    ):
        pass


def test_positions_beyond_four_gib_are_read_or_refused(binlogs: Binlogs):
    """A transaction stands once more in a file, 4 GiB behind itself, as in one that has grown so
    large.
    """
    binlogs.sql("FLUSH BINARY LOGS")
    start = binlogs.end()
    binlogs.filled(3)
    binlogs.sql("FLUSH BINARY LOGS")
    if binlogs.kind == "mariadb":
        with pytest.raises(ServerMisconfigured, match="4 GiB"):
            binlogs.dumped((start[0], FAR + 4))
        return
    near = [
        event for event in binlogs.dumped(start, (binlogs.end()[0], 4)) if event.file == start[0]
    ]
    path = binlogs.server.folder / "data" / start[0]
    first = next(event.position for event in near if event.kind == GTID)
    data = path.read_bytes()
    try:
        with path.open("r+b") as file:
            file.seek(FAR + first)
            file.write(data[first:])
        far = binlogs.dumped((start[0], FAR + first), (binlogs.end()[0], 4))
    finally:
        binlogs.sql(f"PURGE BINARY LOGS TO '{binlogs.end()[0]}'")
    behind = [event._replace(position=event.position - FAR) for event in far]
    assert facts(behind) == facts([event for event in near if event.position >= first])


def test_a_server_without_gtids_is_read_within_four_gib(
    binlogs: Binlogs, at_once: Callable[[str], None]
):
    if binlogs.kind == "mariadb":
        pytest.skip("MariaDB always has them")
    at_once("gtid_mode = 'ON_PERMISSIVE'")
    for checksum in ("NONE", "CRC32"):
        at_once(f"binlog_checksum = '{checksum}'")
        start = binlogs.end()
        binlogs.filled(2)
        assert sum(event.kind in ROWS_EVENTS for event in binlogs.dumped(start)) == 2
    with pytest.raises(ServerMisconfigured, match="gtid_mode=ON"):
        binlogs.dumped((start[0], FAR))


def test_a_sink_that_stands_still_for_longer_than_the_server_would_is_waited_for(
    binlogs: Binlogs, at_once: Callable[[str], None]
) -> None:
    """The server's default is a minute: a batch that takes longer would end the dump each time."""
    at_once("net_write_timeout = 1")
    at = binlogs.end()
    for _ in range(4):
        binlogs.sql("INSERT INTO filled (v) VALUES " + ", ".join(["(repeat(0x78, 100000))"] * 100))  # noqa: S608
    until = binlogs.end()
    with Dump(binlogs.connected(), binlogs.kind, *at) as dump:
        events = chain.from_iterable(dump.blocks(*until))
        found = [next(events)]
        time.sleep(4)  # which is longer than what its buffers hold
        found += events
    assert sum(len(event.body) for event in found) > 40_000_000
