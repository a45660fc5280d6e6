"""``ow.mysql_changes`` goes on on another server: a replica that real replication has made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from changes_place import ChangesPlace, brief, purge, row, source_of

from onceward.errors import (
    BinlogPurged,
    ServerMisconfigured,
    ServerUnreachable,
    SourceDataLost,
    SourceReplaced,
)
from onceward.mysql.source.connection import Server
from onceward_testing import LocalMySQL
from support.mysql_client import sql_at

SETTINGS: dict[str, dict[str, str]] = {
    "mysql": {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "binlog-row-metadata": "FULL"},
    "mariadb": {
        "binlog-format": "ROW",
        "binlog-row-metadata": "FULL",
        "log-slave-updates": "",
        "slave-connections-needed-for-purge": "0",
    },
}

pytestmark = pytest.mark.slow


class Pair:
    """A server, and its replica."""

    def __init__(self, old: LocalMySQL, new: LocalMySQL) -> None:
        self.old, self.new = old, new

    def follow(self) -> None:
        said = urlsplit(self.old.url)
        how = (
            "MASTER_AUTO_POSITION = 1"
            if self.old.kind == "mysql"
            else "MASTER_SSL = 0, MASTER_USE_GTID = slave_pos"
        )
        self.on_new(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {self.old.port}, "
            f"MASTER_USER = 'onceward', "
            f"MASTER_PASSWORD = '{said.password}', MASTER_CONNECT_RETRY = 1, {how}",
            "START SLAVE",
        )

    def forget(self) -> None:
        """What a server's first start wrote into its binlog, which would come before the other's
        in its domain.
        """
        self.on_new("RESET MASTER")

    def caught_up(self) -> None:
        """All of the old server is on the new one."""
        if self.old.kind == "mysql":
            (done,) = sql_at(self.old.url, "SELECT @@GLOBAL.gtid_executed")[0]
            assert sql_at(self.new.url, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 60)", done) == [
                (0,)
            ]
        else:
            (done,) = sql_at(self.old.url, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
            assert sql_at(self.new.url, "SELECT MASTER_GTID_WAIT(%s, 60)", done) == [(0,)]

    def promoted(self, place: ChangesPlace) -> None:
        """The query's address leads to the new server."""
        place.url = self.new.url

    def on_new(self, *statements: str) -> None:
        for statement in statements:
            sql_at(self.new.url, statement)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(
                LocalMySQL(
                    request.param,
                    {"server-id": number, "log-bin": "binlog", **SETTINGS[request.param]},
                )
            )
            for number in "12"
        )
        made = Pair(old, new)
        if request.param == "mariadb":
            made.forget()
        made.follow()
        made.caught_up()
        yield made


@pytest.fixture
def place(pair: Pair) -> ChangesPlace:
    found = ChangesPlace(pair.old)
    pair.caught_up()
    return found


def test_it_goes_on_where_it_was(pair: Pair, place: ChangesPlace):
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    before = place.batch()
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
    pair.caught_up()
    pair.promoted(place)
    place.sql("INSERT INTO {s}.t VALUES (3, 'c')")
    after = place.restarted().all()
    assert brief(after) == [("c", "t", None, row(2, "b")), ("c", "t", None, row(3, "c"))]
    assert before[0]["position"] < after[0]["position"] < after[1]["position"]
    assert place.position["era"] == 1
    assert place.batch() == []
    place.url = pair.old.url  # and back: what is read stays read
    follow_back(pair)
    assert place.restarted().all() == []
    place.sql("INSERT INTO {s}.t VALUES (4, 'd')")
    assert brief(place.all()) == [("c", "t", None, row(4, "d"))]
    assert place.position["era"] == 2


def test_a_range_that_was_planned_on_the_old_server(pair: Pair, place: ChangesPlace):
    start = place.begin().position
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')", "INSERT INTO {s}.t VALUES (2, 'b')")
    end = place.advanced()
    wanted = place.rows(start, end)
    place.sql("INSERT INTO {s}.t VALUES (3, 'of the next batch')")
    pair.caught_up()
    pair.promoted(place)
    found = place.restarted().rows(start, end)
    assert brief(found) == brief(wanted)
    assert [one["gtid"] for one in found] == [one["gtid"] for one in wanted]
    place.position = end
    following = place.all()
    assert brief(following) == [("c", "t", None, row(3, "of the next batch"))]
    assert found[-1]["position"] < following[0]["position"]


def test_a_snapshot_that_was_planned_on_the_old_server(pair: Pair, place: ChangesPlace):
    place.sql("INSERT INTO {s}.t VALUES (1, 'a'), (2, 'b')")
    start = place.begin(starting="initial").position
    end = place.advanced()
    wanted = place.rows(start, end)
    assert brief(wanted) == [("r", "t", None, row(1, "a")), ("r", "t", None, row(2, "b"))]
    place.sql("UPDATE {s}.t SET v = 'c' WHERE id = 2")
    pair.caught_up()
    pair.promoted(place)
    assert brief(place.restarted().rows(start, end)) == brief(wanted)
    place.position = end
    assert brief(place.all()) == [("u", "t", row(2, "b"), row(2, "c"))]


def test_a_range_over_the_change(pair: Pair, place: ChangesPlace):
    start = place.begin().position
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    pair.caught_up()
    pair.promoted(place)
    end = place.restarted().advanced()
    assert (start["era"], end["era"]) == (0, 1)
    assert (
        brief(place.rows(start, end))
        == brief(place.rows(start, end, place.source()))
        == [("c", "t", None, row(1, "a"))]
    )


def test_a_transaction_that_the_new_server_lacks(pair: Pair, place: ChangesPlace):
    """A replica may only have to catch up: that passes. A server that replicates no other will
    never have it.
    """
    place.begin()
    pair.on_new("STOP SLAVE")
    try:
        place.sql("INSERT INTO {s}.t VALUES (1, 'lost')")
        (gtid,) = {one["gtid"] for one in place.batch()}
        pair.promoted(place)
        with pytest.raises(ServerUnreachable, match="lacks transactions") as late:
            place.restarted().advanced()
        assert late.value.details["missing"] == gtid
        pair.on_new("RESET SLAVE ALL")
        with pytest.raises(SourceReplaced, match="lacks transactions") as replaced:
            place.restarted().advanced()
        assert replaced.value.details["missing"] == gtid
        pair.follow()
    finally:
        pair.on_new("START SLAVE")
    pair.caught_up()  # it was only late
    assert place.restarted().all() == []


def test_the_new_server_has_purged_what_was_not_read(pair: Pair, place: ChangesPlace):
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    pair.caught_up()
    pair.on_new("FLUSH BINARY LOGS")
    purge(pair.new.url)
    pair.promoted(place)
    with pytest.raises(BinlogPurged) as purged:
        place.restarted().advanced()
    assert "pass_over" in purged.value.next_step


def test_a_transaction_of_its_own_before_what_was_read(pair: Pair, place: ChangesPlace):
    """It stands where those before it and behind it were read: it comes, and they do not come
    again.
    """
    place.begin()
    pair.on_new(f"INSERT INTO {place.schema}.t VALUES (100, 'its own')")
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    pair.caught_up()
    assert brief(place.batch()) == [("c", "t", None, row(1, "a"))]
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
    pair.caught_up()
    pair.promoted(place)
    assert brief(place.restarted().all()) == [
        ("c", "t", None, row(100, "its own")),
        ("c", "t", None, row(2, "b")),
    ]


def test_without_gtids_there_is_no_place(pair: Pair, place: ChangesPlace):
    place.begin()
    place.position = {**place.position, "gtids": None}
    pair.promoted(place)
    with pytest.raises(SourceReplaced, match="without GTIDs"):
        place.restarted().advanced()


def test_a_server_that_dies_and_comes_back(pair: Pair, place: ChangesPlace):
    """With a reader in the middle: it says so, and goes on in the file that the server begins."""
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    end = place.advanced()
    parts = place.running.partitions(place.position, end)
    pair.old.kill()
    try:
        for ask in (
            place.advanced,
            lambda: place.running.read_partition(parts[0]),
            place.source().start,
        ):
            with pytest.raises(ServerUnreachable):
                ask()
    finally:
        pair.old.start()
    assert brief(place.batch()) == [("c", "t", None, row(1, "a"))]
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
    assert brief(place.batch()) == [("c", "t", None, row(2, "b"))]
    assert place.position["era"] == 0


def follow_back(pair: Pair) -> None:
    """The old server replicates what was written on the new one."""
    if pair.old.kind == "mysql":
        (done,) = sql_at(pair.new.url, "SELECT @@GLOBAL.gtid_executed")[0]
    else:
        (done,) = sql_at(pair.new.url, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
    back = Pair(pair.new, pair.old)
    back.follow()
    deadline = time.monotonic() + 60
    while any(missing(pair, done)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    back.on_new("STOP SLAVE")


def missing(pair: Pair, done: str) -> Any:
    if pair.old.kind == "mysql":
        return sql_at(pair.old.url, "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", done)[0]
    (here,) = sql_at(pair.old.url, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
    return (here != done,)


def test_a_mariadb_with_its_own_defaults_and_a_write_of_the_replicas_own():
    """gtid_strict_mode is off: 0-2-101 stands before 0-1-101, and both are read, there and behind
    a failover.
    """
    with LocalMySQL("mariadb", binlog=True) as old, LocalMySQL("mariadb", replica_of=old) as new:
        here = ChangesPlace(old)
        new.wait_for(old)
        there = ChangesPlace.__new__(ChangesPlace)
        vars(there).update(vars(here))
        there.url = new.url
        for each in (here, there):
            each.begin()
        sql_at(new.url, "CREATE DATABASE a_write_of_its_own")
        here.sql("INSERT INTO {s}.t VALUES (1, 'a')", "INSERT INTO {s}.t VALUES (2, 'b')")
        new.wait_for(old)
        both = [("c", "t", None, row(1, "a")), ("c", "t", None, row(2, "b"))]
        assert brief(there.restarted().all()) == both
        assert brief(here.all()) == both
        here.sql("INSERT INTO {s}.t VALUES (3, 'c')")
        new.wait_for(old)
        here.url = new.url
        assert brief(here.restarted().all()) == [("c", "t", None, row(3, "c"))]
        # A counter that goes back on the server that is read: new transactions all the same.
        sql_at(
            new.url,
            f"SET STATEMENT gtid_seq_no = 2 FOR INSERT INTO {here.schema}.t VALUES (4, 'd')",
        )
        sql_at(
            new.url,
            f"SET STATEMENT gtid_seq_no = 1 FOR INSERT INTO {here.schema}.t VALUES (5, 'e')",
        )
        assert brief(here.restarted().all()) == [
            ("c", "t", None, row(4, "d")),
            ("c", "t", None, row(5, "e")),
        ]
        here.url = old.url
        with pytest.raises(SourceReplaced, match=r"lacks|cannot be told"):
            here.restarted().advanced()


def with_variables(more: dict[str, str]) -> Any:
    """No plugin for groups is at hand: a server says that it is a member."""
    asked = Server.variables
    return lambda server, *names: {
        **asked(server, *names),
        **{name: value for name, value in more.items() if name in names},
    }


def starts_with(server: LocalMySQL, settings: dict[str, str | None]) -> None:
    """Start it again, with other settings."""
    server.stop()
    for name, value in settings.items():
        server._settings.pop(name, None)
        if value is not None:
            server._settings[name] = value
    server.start()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_binlogs_of_another_name_follow_in_the_same_index(kind: Any):
    """With a range that lies over the border, a snapshot on the way, and GTIDs off."""
    gtids = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"} if kind == "mysql" else {}
    with LocalMySQL(kind, gtids, binlog=True) as server:
        place = ChangesPlace(server).begin()
        place.sql(
            "INSERT INTO {s}.t VALUES (1, 'a')",
            *["FLUSH BINARY LOGS"] * 3,
            "INSERT INTO {s}.t VALUES (2, 'b')",
        )
        first = place.batch()
        place.sql("INSERT INTO {s}.t VALUES (3, 'c')")
        starts_with(server, {"log-bin": "other", "log-bin-index": "binlog.index"})
        place.sql("INSERT INTO {s}.t VALUES (4, 'd')")
        then = place.restarted().all()
        assert brief(then) == [("c", "t", None, row(3, "c")), ("c", "t", None, row(4, "d"))]
        assert place.position["file"] == "other.000001"
        positions = [one["position"] for one in first + then]
        assert positions == sorted(positions)
        if kind == "mysql":
            starts_with(server, {"log-bin": "third", "log-bin-index": None})
            with pytest.raises(BinlogPurged, match='starting="latest"'):
                place.restarted().advanced()


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.once_more)])
def test_a_server_that_writes_no_binlog_for_a_while_has_lost_changes(
    kind: Any, monkeypatch: pytest.MonkeyPatch
):
    """Which leaves no trace: who starts the query again goes on behind them."""
    with LocalMySQL(kind, binlog=True) as server:
        place = ChangesPlace(server).begin()
        place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
        assert len(place.batch()) == 1
        starts_with(server, {"log-bin": None, "skip-log-bin": ""})
        place.sql("INSERT INTO {s}.t VALUES (2, 'lost')")
        with pytest.raises(ServerMisconfigured, match="log_bin is OFF"):
            place.source().start()
        with pytest.raises(SourceDataLost, match="log_bin is OFF") as lost:
            place.restarted().advanced()
        assert str(place.position["pos"]) in lost.value.message
        starts_with(server, {"log-bin": "binlog", "skip-log-bin": None})
        place.sql("INSERT INTO {s}.t VALUES (3, 'b')")
        assert brief(place.restarted().all()) == [("c", "t", None, row(3, "b"))]
        with LocalMySQL(kind, {"skip-log-bin": ""}) as other:
            place.url = other.url
            with pytest.raises(SourceDataLost):
                place.restarted().advanced()
            with monkeypatch.context() as group:
                group.setattr(Server, "variables", with_variables({"wsrep_on": "ON"}))
                with pytest.raises(ServerMisconfigured):
                    place.restarted().advanced()
            place.sql("SET GLOBAL read_only = ON")
            with pytest.raises(ServerMisconfigured):
                place.restarted().advanced()


def test_binlogs_of_another_name_in_another_index_are_found_by_gtids():
    with LocalMySQL(binlog=True) as server:
        place = ChangesPlace(server).begin()
        place.sql(
            "INSERT INTO {s}.t VALUES (1, 'a')",
            *["FLUSH BINARY LOGS"] * 4,
            "INSERT INTO {s}.t VALUES (2, 'b')",
        )
        first = place.batch()
        starts_with(server, {"log-bin": "other"})
        place.sql("INSERT INTO {s}.t VALUES (3, 'c')")
        then = place.restarted().all()
        assert brief(then) == [("c", "t", None, row(3, "c"))]
        assert first[-1]["position"] < then[0]["position"]
        place.sql("INSERT INTO {s}.t VALUES (4, 'not read')")
        starts_with(server, {"log-bin": "third"})
        with pytest.raises(BinlogPurged, match="has removed binlogs"):
            place.restarted().advanced()


def test_gtids_that_are_used_again_are_not_taken_for_read():
    """RESET MASTER, and then as many transactions as before: they have the names of those that
    were read.
    """
    with LocalMySQL(binlog=True) as server:
        place = ChangesPlace(server).begin()
        place.sql(*["FLUSH BINARY LOGS"] * 4, "INSERT INTO {s}.t VALUES (1, 'a')")
        assert len(place.batch()) == 1
        place.sql(
            "RESET MASTER",
            *[f"INSERT INTO {{s}}.t VALUES ({number}, 'b')" for number in range(2, 9)],
        )
        with pytest.raises(SourceReplaced, match="reset"):
            place.restarted().advanced()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("starting", ["latest", "initial", "earliest"])
def test_what_a_replica_was_made_of_counts_as_read(kind: Any, starting: str):
    """It was made of a dump, and has in its binlogs what came since; then the address leads to the
    primary, whose binlogs begin at the beginning.
    """
    with LocalMySQL(kind, binlog=True) as primary, LocalMySQL(kind, binlog=True) as replica:
        place = ChangesPlace(primary)
        place.sql(
            "INSERT INTO {s}.t VALUES (1, 'old'), (2, 'gone')", "DELETE FROM {s}.t WHERE id = 2"
        )
        variable = "gtid_executed" if kind == "mysql" else "gtid_binlog_pos"
        ((done,),) = sql_at(primary.url, f"SELECT @@GLOBAL.{variable}")
        place.url = replica.url
        place.sql("CREATE DATABASE {s}", "CREATE TABLE {s}.t (id int PRIMARY KEY, v varchar(40))")
        place.sql("INSERT INTO {s}.t VALUES (1, 'old')", "RESET MASTER")
        place.sql(
            f"SET GLOBAL {'gtid_purged' if kind == 'mysql' else 'gtid_slave_pos'} = '{done}'"
        )
        replica.follow(primary)
        place.begin(starting=starting)
        assert [one["op"] for one in place.all()] == (["r"] if starting == "initial" else [])
        place.sql("FLUSH BINARY LOGS")
        sql_at(primary.url, f"INSERT INTO {place.schema}.t VALUES (3, 'x')")
        replica.wait_for(primary)
        assert brief(place.restarted().all()) == [("c", "t", None, row(3, "x"))]
        place.url = primary.url
        assert place.restarted().all() == []
        place.sql("INSERT INTO {s}.t VALUES (4, 'y')")
        assert brief(place.all()) == [("c", "t", None, row(4, "y"))]


def test_a_replica_that_does_not_log_what_it_applies_is_refused_in_mid_run():
    """The address leads to it while the query runs: the session is lost, and the next one sees
    another server.
    """
    silent = {"log-slave-updates": "0"}
    with (
        LocalMySQL(binlog=True) as primary,
        LocalMySQL(settings=silent, replica_of=primary) as replica,
    ):
        place = ChangesPlace(primary)
        replica.wait_for(primary)
        place.begin()
        place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
        assert len(place.batch()) == 1
        replica.wait_for(primary)
        source = place.running
        assert source._session is not None
        source._session.close()
        source._settings = replace(
            source._settings,
            connect_args=source_of(replica.url, tables="a.b")._settings.connect_args,
        )
        place.all_until_stop(ServerMisconfigured, "in no binlog of its own")
        source._settings = replace(
            source._settings,
            connect_args=source_of(primary.url, tables="a.b")._settings.connect_args,
        )
        assert source._session is not None
        source._session.close()
        assert place.all() == []
        sql_at(primary.url, f"INSERT INTO {place.schema}.t VALUES (2, 'b')")
        assert brief(place.all()) == [("c", "t", None, row(2, "b"))]


def test_a_mariadb_that_was_made_of_a_later_dump_is_refused():
    with (
        LocalMySQL("mariadb", binlog=True) as primary,
        LocalMySQL("mariadb", binlog=True) as replica,
    ):
        place = ChangesPlace(primary).begin()
        place.sql("INSERT INTO {s}.t VALUES (1, 'not read')")
        ((done,),) = sql_at(primary.url, "SELECT @@GLOBAL.gtid_binlog_pos")
        for statement in (
            f"CREATE DATABASE {place.schema}",
            f"CREATE TABLE {place.schema}.t (id int PRIMARY KEY, v varchar(40))",
            f"INSERT INTO {place.schema}.t VALUES (1, 'not read')",
            "RESET MASTER",
            f"SET GLOBAL gtid_slave_pos = '{done}'",
        ):
            sql_at(replica.url, statement)
        replica.follow(primary)
        place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
        replica.wait_for(primary)
        behind = place.position["gtids"]
        place.url = replica.url
        with pytest.raises(SourceReplaced, match="made of a dump"):
            place.restarted().advanced()
        with pytest.raises(SourceReplaced, match="made of a dump"):
            place.begin(starting={"gtid": behind})
