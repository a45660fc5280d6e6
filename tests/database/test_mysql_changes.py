"""I24: ``ow.mysql_changes`` without Spark: ranges, batches and parts over real binlogs."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pymysql
import pytest
from changes_place import ChangesPlace, brief, purge, row, source_of

from onceward.errors import (
    BinlogPurged,
    ChangeUnreadable,
    ConfigurationError,
    ServerMisconfigured,
    ServerUnreachable,
    SourceReplaced,
)
from onceward.mysql.source import position_search, requirements
from onceward.mysql.source.connection import Server
from onceward.mysql.source.grants import grant_target
from onceward_testing import LocalMySQL
from support.mysql_client import sql_at, transaction_at

MARIADB = pytest.param("binlog_mariadb", marks=pytest.mark.once_more)


@pytest.fixture(params=["binlog_mysql", MARIADB], ids=["MySQL", "MariaDB"])
def server(request: pytest.FixtureRequest) -> LocalMySQL:
    found: LocalMySQL = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def place(server: LocalMySQL) -> ChangesPlace:
    return ChangesPlace(server)


def test_changes_of_several_tables_over_a_rotation(place: ChangesPlace):
    place.sql("CREATE TABLE {s}.keyless (a int)")
    place.begin()
    place.sql(
        "INSERT INTO {s}.t VALUES (1, 'a'), (2, NULL)",
        "INSERT INTO {s}.keyless VALUES (7)",
        "UPDATE {s}.t SET v = 'c' WHERE id = 2",
        "FLUSH BINARY LOGS",
        "UPDATE {s}.t SET id = 3 WHERE id = 2",
        "DELETE FROM {s}.t WHERE id = 1",
    )
    rows = place.batch()
    assert brief(rows) == [
        ("c", "t", None, row(1, "a")),
        ("c", "t", None, row(2, None)),
        ("c", "keyless", None, '{"a":7}'),
        ("u", "t", row(2, None), row(2, "c")),
        ("d", "t", row(2, "c"), None),
        ("c", "t", None, row(3, "c")),
        ("d", "t", row(1, "a"), None),
    ]
    assert [one["key"] for one in rows] == [
        '{"id":1}',
        '{"id":2}',
        None,
        '{"id":2}',
        '{"id":2}',
        '{"id":3}',
        '{"id":1}',
    ]
    positions = [one["position"] for one in rows]
    assert len(set(positions)) == len(rows)
    assert len({len(position) for position in positions}) == 1
    assert {one["server_id"] for one in rows} == {1}
    assert len({one["gtid"] for one in rows}) == 5
    assert place.batch() == []


def test_small_parts_begin_inside_transactions(place: ChangesPlace):
    place.sql("CREATE TABLE {s}.u (id int PRIMARY KEY, v varchar(400))")
    place.begin(part_bytes=600)
    for first in (0, 100):
        with_both = [
            f"INSERT INTO {{s}}.{name} VALUES ({number}, 'x')"
            for number in range(first, first + 20)
            for name in "tu"
        ]
        in_one_transaction(place, with_both)
    end = place.advanced()
    parts = place.running.partitions(place.position, end)
    assert any("maps" in part for part in parts), "no part begins inside a transaction"
    rows = place.batch()
    assert [(one["table"], one["key"]) for one in rows] == [
        (name, f'{{"id":{number}}}')
        for first in (0, 100)
        for number in range(first, first + 20)
        for name in "tu"
    ]
    assert len({one["gtid"] for one in rows}) == 2


def test_a_batch_ends_where_a_transaction_does(place: ChangesPlace):
    place.begin(max_bytes_per_batch=1000)
    for number in range(8):
        in_one_transaction(
            place, [f"INSERT INTO {{s}}.t VALUES ({number}{digit}, 'x')" for digit in range(3)]
        )
    sizes = []
    while rows := place.batch():
        sizes.append(len(rows))
    assert sum(sizes) == 24
    assert len(sizes) > 2
    assert all(size % 3 == 0 for size in sizes)


def test_a_snapshot_goes_on_where_the_stream_never_catches_up(place: ChangesPlace):
    place.sql("INSERT INTO {s}.t VALUES (1, 'there')")
    place.begin(starting="initial", max_bytes_per_batch=1000)
    for number in range(2, 32):
        in_one_transaction(
            place, [f"INSERT INTO {{s}}.t VALUES ({number}{digit}, 'x')" for digit in range(3)]
        )
    rows: list[dict[str, Any]] = []
    while not any(one["op"] == "r" for one in rows):
        end = place.advanced()
        rows += place.rows(place.position, end)
        place.position = end
    behind = sql_at(place.url, "SHOW MASTER STATUS")[0]
    assert place.position["pos"] < int(behind[1]), "INVALID: it has caught up"
    rows += place.all()
    assert sorted(int(one["key"].split(":")[1].rstrip("}")) for one in rows) == sorted(
        [1, *(number * 10 + digit for number in range(2, 32) for digit in range(3))]
    )
    assert {one["op"] for one in rows} == {"r", "c"}


def test_an_open_transaction_is_waited_for(place: ChangesPlace):
    place.begin()
    with transaction_at(place.url, f"INSERT INTO {place.schema}.t VALUES (1, 'open')"):
        place.sql("INSERT INTO {s}.t VALUES (2, 'done')")
        assert brief(place.batch()) == [("c", "t", None, row(2, "done"))]
    assert place.batch() == []


def test_other_tables_move_the_position_only_now_and_then(place: ChangesPlace):
    """Once behind a start, then by the heartbeat."""
    place.sql("CREATE TABLE {s}.other (id int PRIMARY KEY)")
    place.begin(tables=f"{place.schema}.t", heartbeat_seconds=60)
    assert place.advanced() == place.position
    place.sql("INSERT INTO {s}.other VALUES (1)", "FLUSH BINARY LOGS")
    moved_without_rows(place)
    place.sql("INSERT INTO {s}.other VALUES (2)")
    assert place.advanced() == place.position
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')", "INSERT INTO {s}.other VALUES (3)")
    assert brief(place.batch()) == [("c", "t", None, row(1, "a"))]
    place.restarted(heartbeat_seconds=0.01)
    place.sql("INSERT INTO {s}.other VALUES (4)")
    moved_without_rows(place)
    place.sql("INSERT INTO {s}.other VALUES (5)")
    assert place.advanced() == place.position
    time.sleep(0.02)
    moved_without_rows(place)


def moved_without_rows(place: ChangesPlace) -> None:
    after = place.advanced()
    assert (after["file"], after["pos"]) > (place.position["file"], place.position["pos"])
    assert place.rows(place.position, after) == []
    place.position = after


# Where a query begins


def test_a_snapshot_and_what_follows(place: ChangesPlace):
    place.sql("CREATE TABLE {s}.u (id int PRIMARY KEY)", "INSERT INTO {s}.u VALUES (7)")
    place.sql("INSERT INTO {s}.t VALUES (1, 'a'), (2, 'b')")
    place.begin(starting="initial")
    place.sql("UPDATE {s}.t SET v = 'c' WHERE id = 2", "INSERT INTO {s}.t VALUES (3, 'd')")
    first = place.batch()
    place.sql("UPDATE {s}.t SET v = 'e' WHERE id = 3", "DELETE FROM {s}.u")
    assert sorted(brief(first), key=str) == sorted(
        [
            ("r", "t", None, row(1, "a")),
            ("r", "t", None, row(2, "c")),
            ("r", "t", None, row(3, "d")),
            ("r", "u", None, '{"id":7}'),
        ],
        key=str,
    )
    assert brief(place.restarted().all()) == [
        ("u", "t", row(3, "d"), row(3, "e")),
        ("d", "u", '{"id":7}', None),
    ]
    assert place.position["snapshot"] is None


def test_starts(place: ChangesPlace):
    beginning = place.begin().position
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    between = place.begin().position
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')", "FLUSH BINARY LOGS")
    gtid = place.begin().position["gtids"]
    place.sql("INSERT INTO {s}.t VALUES (3, 'c')")
    first, second, third = (
        ("c", "t", None, row(number, value)) for number, value in ((1, "a"), (2, "b"), (3, "c"))
    )

    def read(starting: Any) -> list[Any]:
        return brief(place.begin(starting=starting).all())

    assert read("latest") == []
    assert read("earliest")[-3:] == [first, second, third]
    assert read({"file": beginning["file"], "position": beginning["pos"]}) == [
        first,
        second,
        third,
    ]
    assert read({"file": between["file"], "position": between["pos"]}) == [second, third]
    assert read({"gtid": gtid}) == [third]
    assert read({"gtid": between["gtids"]}) == [second, third]
    assert read({"timestamp": 0})[-3:] == [first, second, third]
    assert read({"timestamp": datetime.now(timezone.utc) + timedelta(hours=1)}) == []
    assert place.begin(starting={"gtid": gtid}).position["era"] == 0


def test_a_start_by_time_reads_the_binlog_before_one_of_the_same_second(place: ChangesPlace):
    """A binlog says in whole seconds when it was begun."""
    place.sql("INSERT INTO {s}.t VALUES (1, 'before')", "FLUSH BINARY LOGS")
    time.sleep(1.1)
    for number in range(2, 7):
        start = datetime.now(timezone.utc)
        place.sql(f"INSERT INTO {{s}}.t VALUES ({number}, 'then')", "FLUSH BINARY LOGS")
        if datetime.now(timezone.utc).replace(microsecond=0) == start.replace(microsecond=0):
            break
    rows = brief(place.begin(starting={"timestamp": start}).all())
    assert rows[-1:] == [("c", "t", None, row(number, "then"))]


def test_a_start_inside_a_transaction_is_refused(place: ChangesPlace):
    at = place.begin().position
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    after = place.begin().position
    with pytest.raises(
        ConfigurationError,
        match=f"the nearest place between two transactions is .*:{after['pos']}",
    ):
        place.begin(starting={"file": at["file"], "position": at["pos"] + 1})
    with pytest.raises(ConfigurationError, match=r"binlog\.009999"):
        place.begin(starting={"file": "binlog.009999", "position": 4})


# What the binlog may lack


def test_purged_binlogs_are_named(place: ChangesPlace):
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    purge(place.url)
    with pytest.raises(BinlogPurged):
        place.restarted().advanced()


def test_what_was_read_and_removed_is_not_missed(place: ChangesPlace):
    """FLUSH and PURGE of binlogs that were read to their ends, while the query stands still."""
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    assert len(place.batch()) == 1
    place.sql("FLUSH BINARY LOGS")
    purge(place.url)
    assert place.restarted().all() == []
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
    before = place.position
    assert brief(place.all()) == [("c", "t", None, row(2, "b"))]
    assert place.position["era"] == 0
    place.sql("FLUSH BINARY LOGS", "INSERT INTO {s}.t VALUES (3, 'c')", "FLUSH BINARY LOGS")
    purge(place.url)
    with pytest.raises(BinlogPurged, match="removed"):
        place.restarted().advanced()
    place.position = {**before, "gtids": None}
    with pytest.raises(BinlogPurged, match="1236"):
        place.advanced()


def test_purged_between_planning_and_reading(place: ChangesPlace):
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    end = place.advanced()
    parts = place.running.partitions(place.position, end)
    purge(place.url)
    with pytest.raises(BinlogPurged):
        place.running.read_partition(parts[0])


@pytest.mark.parametrize("wait_s", [0.0, 10.0])
def test_a_transaction_is_read_before_the_server_has_committed_it(
    binlog_mysql: LocalMySQL, monkeypatch: pytest.MonkeyPatch, wait_s: float
):
    """It is sent as soon as it is in the binlog; semi-synchronous replication waits behind that,
    as group commit does here.
    """
    monkeypatch.setattr(position_search, "_COMMIT_SECONDS", wait_s)
    place = ChangesPlace(binlog_mysql).begin()
    delay = "SET GLOBAL sync_binlog = {}, GLOBAL binlog_group_commit_sync_delay = {}"
    before = sql_at(place.url, "SELECT @@sync_binlog, @@binlog_group_commit_sync_delay")[0]
    sql_at(place.url, delay.format(0, 1_000_000))
    writes = threading.Thread(
        target=lambda: [place.sql(f"INSERT INTO {{s}}.t VALUES ({n}, 'a')") for n in range(3)]
    )
    writes.start()
    found: list[dict[str, Any]] = []
    ends = time.monotonic() + 60
    try:
        while len(found) < 3 and time.monotonic() < ends:
            found += place.batch()
            time.sleep(0.02)
    finally:
        writes.join()
        sql_at(place.url, delay.format(*before))
    assert [each["after"] for each in found] == [row(n, "a") for n in range(3)]


@pytest.mark.parametrize("refilled", [False, True])
def test_reset_binlogs_are_noticed(place: ChangesPlace, refilled: bool):
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    assert len(place.batch()) == 1
    time.sleep(1.1)  # a file says in whole seconds when it was begun
    place.sql("RESET MASTER")
    if refilled:
        for number in range(2, 30):
            place.sql(f"INSERT INTO {{s}}.t VALUES ({number}, 'a')")
    with pytest.raises(SourceReplaced):
        place.restarted().advanced()


def test_a_file_begun_anew_is_noticed_by_itself(place: ChangesPlace):
    """Without GTIDs, by when it was begun."""
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    place.position = {**place.position, "born": place.position["born"] - 1, "gtids": ""}
    with pytest.raises(SourceReplaced, match="begun"):
        place.advanced()


# What cannot be passed on


def test_ddl_on_the_way(place: ChangesPlace):
    place.begin()
    place.sql(
        "INSERT INTO {s}.t VALUES (1, 'a')",
        "ALTER TABLE {s}.t ADD COLUMN w int DEFAULT 5",
        "INSERT INTO {s}.t VALUES (2, 'b', 6)",
        "ALTER TABLE {s}.t DROP COLUMN v",
        "INSERT INTO {s}.t VALUES (3, 7)",
        "CREATE TABLE {s}.later (id int PRIMARY KEY)",
        "INSERT INTO {s}.later VALUES (1)",
        "CREATE USER IF NOT EXISTS somebody IDENTIFIED BY 'x'",
        "DROP USER somebody",
    )
    assert brief(place.batch()) == [
        ("c", "t", None, row(1, "a")),
        ("c", "t", None, '{"id":2,"v":"b","w":6}'),
        ("c", "t", None, '{"id":3,"w":7}'),
        ("c", "later", None, '{"id":1}'),
    ]


def test_tables_emptied_and_made_of_others(place: ChangesPlace):
    assert brief(emptied_and_copied(place.begin())) == EMPTIED_AND_COPIED


def test_what_was_undone_does_not_come(place: ChangesPlace):
    place.sql("CREATE TABLE {s}.plain (id int PRIMARY KEY) ENGINE = MyISAM")
    place.begin()
    assert undone(place) == [("t", '{"id":2}'), ("plain", '{"id":4}'), ("plain", '{"id":6}')]


def test_what_was_undone_beside_a_temporary_table_does_not_come(binlog_mariadb: LocalMySQL):
    """MariaDB writes such a transaction with its rows and its ROLLBACK. Tables without
    transactions keep theirs.
    """
    place = ChangesPlace(binlog_mariadb)
    for engine in ("MyISAM", "Aria"):
        place.sql(f"CREATE TABLE {{s}}.{engine} (id int PRIMARY KEY) ENGINE = {engine}")
    place.begin()
    into_t, drops = "INSERT INTO {s}.t VALUES ", "DROP TEMPORARY TABLE IF EXISTS {s}.none"
    kept = ["INSERT INTO {s}.MyISAM VALUES (1)", "INSERT INTO {s}.Aria VALUES (1)"]
    in_one_transaction(place, ["BEGIN", f"{into_t} (1, 'a')", *kept, drops, "ROLLBACK"])
    in_one_transaction(
        place,
        [
            "BEGIN", f"{into_t} (2, 'b')", "SAVEPOINT s", f"{into_t} (3, 'c')", drops,
            "ROLLBACK TO S", f"{into_t} (4, 'd')", "COMMIT",
        ],
    )  # fmt: skip
    found = [(one["table"], one["key"]) for one in place.batch()]
    one, two, four = '{"id":1}', '{"id":2}', '{"id":4}'
    assert found == [("MyISAM", one), ("Aria", one), ("t", two), ("t", four)]


EMPTIED_AND_COPIED = [
    ("c", "t", None, row(1, "a")),
    ("c", "copy", None, row(1, "a")),
    ("t", "t", None, None),
    ("c", "t", None, row(1, "b")),
]


def has_gtids_of_mysql(place: ChangesPlace) -> bool:
    """Under which the server refuses some statements; before 8.0.21 also CREATE TABLE … SELECT."""
    return place.server.kind == "mysql" and place.position["gtids"] is not None


def emptied_and_copied(place: ChangesPlace) -> list[dict[str, Any]]:
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    if has_gtids_of_mysql(place):
        place.sql("CREATE TABLE {s}.copy LIKE {s}.t", "INSERT INTO {s}.copy SELECT * FROM {s}.t")
    else:
        place.sql("CREATE TABLE {s}.copy SELECT * FROM {s}.t")
    place.sql("TRUNCATE {s}.t", "INSERT INTO {s}.t VALUES (1, 'b')")
    return place.batch()


def undone(place: ChangesPlace) -> list[tuple[str, str]]:
    """Tables and keys of what comes. A table without transactions keeps its rows."""
    into_t = "INSERT INTO {s}.t VALUES "
    in_one_transaction(place, ["BEGIN", f"{into_t} (1, 'a')", "ROLLBACK"])
    in_one_transaction(
        place,
        [
            "BEGIN",
            f"{into_t} (2, 'b')",
            "SAVEPOINT s",
            f"{into_t} (3, 'c')",
            "ROLLBACK TO s",
            "COMMIT",
        ],
    )
    place.sql("INSERT INTO {s}.plain VALUES (4)")
    both = [] if has_gtids_of_mysql(place) else [f"{into_t} (5, 'e')"]
    in_one_transaction(place, ["BEGIN", *both, "INSERT INTO {s}.plain VALUES (6)", "ROLLBACK"])
    return [(one["table"], one["key"]) for one in place.batch()]


def test_what_comes_before_a_stop_goes_through(place: ChangesPlace):
    place.begin()
    place.sql(
        "INSERT INTO {s}.t VALUES (1, 'a')",
        "DROP TABLE {s}.t",
        "CREATE TABLE {s}.t (id int PRIMARY KEY)",
    )
    place.sql("INSERT INTO {s}.t VALUES (2)")
    assert brief(place.batch()) == [("c", "t", None, row(1, "a"))]
    at = stopped(place, "ddl")
    place.restarted(pass_over=[at])
    assert brief(place.batch()) == [("c", "t", None, '{"id":2}')]


def test_a_table_that_was_never_there_may_be_dropped(place: ChangesPlace):
    """Both servers write the statement. A table that had rows when the query began was there."""
    place.sql("CREATE TABLE {s}.old (id int PRIMARY KEY)", "INSERT INTO {s}.old VALUES (1)")
    place.begin()
    place.sql("DROP TABLE IF EXISTS {s}.x, {s}.y", "CREATE TABLE {s}.x (id int PRIMARY KEY)")
    place.restarted().sql("DROP TABLE {s}.x")
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')", "DROP TABLE IF EXISTS {s}.y, {s}.old")
    assert brief(place.batch()) == [("c", "t", None, row(1, "a"))]
    stopped(place, "ddl")


def test_a_statement_in_the_place_of_rows(place: ChangesPlace):
    place.begin()
    in_one_transaction(
        place,
        [
            "SET SESSION binlog_format = STATEMENT",
            "BEGIN",
            "INSERT INTO {s}.t VALUES (1, 'a')",
            "COMMIT",
        ],
    )
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
    at = stopped(place, "statement")
    assert brief(place.restarted(pass_over=[at]).batch()) == [("c", "t", None, row(2, "b"))]


# What a server must have set


def test_without_gtids(mysql: LocalMySQL):
    """All but a failover."""
    place = ChangesPlace(mysql)
    place.sql("SET GLOBAL binlog_row_metadata = FULL")
    try:
        place.begin()
        place.sql("INSERT INTO {s}.t VALUES (0, '-')", "FLUSH BINARY LOGS", "DELETE FROM {s}.t")
        assert [(one["op"], one["gtid"]) for one in place.batch()] == [("c", None), ("d", None)]
        assert place.position["gtids"] is None
        assert brief(emptied_and_copied(place)) == EMPTIED_AND_COPIED
        place.sql(
            "CREATE TABLE {s}.plain (id int PRIMARY KEY) ENGINE = MyISAM", "DELETE FROM {s}.t"
        )
        assert len(place.batch()) == 1
        assert undone(place) == [("t", '{"id":2}'), ("plain", '{"id":4}'), ("plain", '{"id":6}')]
    finally:
        place.sql("SET GLOBAL binlog_row_metadata = MINIMAL")


def test_a_server_that_is_not_fit(place: ChangesPlace):
    place.sql("SET GLOBAL binlog_row_metadata = MINIMAL", "SET GLOBAL binlog_row_image = NOBLOB")
    try:
        with pytest.raises(ServerMisconfigured) as unfit:
            place.begin()
    finally:
        place.sql("SET GLOBAL binlog_row_metadata = FULL", "SET GLOBAL binlog_row_image = FULL")
    assert unfit.value.details["unfit"] == ["binlog_row_image", "binlog_row_metadata"]
    said = "PERSIST" if place.server.kind == "mysql" else "GLOBAL"
    assert f"SET {said} binlog_row_metadata = 'FULL'" in unfit.value.next_step


def test_a_server_without_a_number_sends_no_binlog(place: ChangesPlace):
    if place.server.kind == "mariadb":
        pytest.skip("a MariaDB makes a 1 of it")
    ((number,),) = place.sql("SELECT @@GLOBAL.server_id")
    place.sql("SET GLOBAL server_id = 0")
    try:
        with pytest.raises(ServerMisconfigured, match="server_id is 0") as unfit:
            place.begin()
        assert unfit.value.details["unfit"] == ["server_id"]
    finally:
        place.sql(f"SET GLOBAL server_id = {number}")
    place.begin()


def test_a_table_that_is_added_to_a_running_query_comes_whole(place: ChangesPlace):
    place.sql(
        "CREATE TABLE {s}.items (id int PRIMARY KEY, v varchar(9))",
        "CREATE TABLE {s}.others (id int PRIMARY KEY)",
        "INSERT INTO {s}.t VALUES (1, 'a')",
        "INSERT INTO {s}.items VALUES (1, 'old'), (2, 'old')",
    )
    place.begin(starting="initial", tables=f"{place.schema}.t")
    assert brief(place.all()) == [("r", "t", None, row(1, "a"))]
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')", "UPDATE {s}.items SET v = 'new' WHERE id = 2")
    end = place.advanced()
    place.restarted(tables=[f"{place.schema}.t", f"{place.schema}.items"])
    # A batch that was logged before has what it had
    assert brief(place.rows(place.position, end)) == [("c", "t", None, row(2, "b"))]
    place.position = end
    assert place.batch() == []
    place.sql("INSERT INTO {s}.items VALUES (3, 'c')", "INSERT INTO {s}.others VALUES (1)")
    found = brief(place.all())
    assert sorted(found) == [("r", "items", None, row(n, v)) for n, v in
                             ((1, "old"), (2, "new"), (3, "c"))]  # fmt: skip
    place.sql("DELETE FROM {s}.items WHERE id = 1")
    assert brief(place.all()) == [("d", "items", row(1, "old"), None)]


def test_rows_that_were_prepared_before_their_table_was_added_are_not_lost(place: ChangesPlace):
    """No snapshot sees them, and their decision names no table."""
    place.sql("CREATE TABLE {s}.items (id int PRIMARY KEY)")
    place.begin(starting="initial", tables=f"{place.schema}.t")
    name = f"'{place.schema}'"
    written = f"INSERT INTO {place.schema}.items VALUES (1)"
    with pytest.raises(pymysql.err.OperationalError, match="PREPARED"):
        in_one_transaction(
            place, [f"XA START {name}", written, f"XA END {name}", f"XA PREPARE {name}"]
        )
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    place.all()
    place.restarted(tables=f"{place.schema}.*")
    place.batch()
    place.all()
    place.sql(f"XA COMMIT {name}")
    place.all_until_stop(ChangeUnreadable, "prepared")


def test_a_table_that_is_added_has_to_be_there(place: ChangesPlace):
    """Or its rows would never come: from then on it counts as read."""
    place.begin(starting="initial", tables=f"{place.schema}.t")
    with pytest.raises(ServerMisconfigured, match="no such table is seen"):
        place.restarted(tables=[f"{place.schema}.t", f"{place.schema}.itms"]).advanced()
    place.sql("CREATE TABLE {s}.itms (id int PRIMARY KEY)", "INSERT INTO {s}.itms VALUES (1)")
    place.batch()
    assert brief(place.all()) == [("r", "itms", None, '{"id":1}')]


def test_what_a_wider_name_has_read_is_not_added(place: ChangesPlace):
    """Nothing of it has to be there, and what is known of prepared transactions holds."""
    place.begin(starting="initial")
    place.position = {**place.position, "prepared": {"of other tables": False}}
    place.restarted(tables=[f"{place.schema}.t", f"{place.schema}.made_later"])
    assert place.batch() == []
    assert place.position["prepared"] == {"of other tables": False}
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    assert brief(place.all()) == [("r", "t", None, row(1, "a"))]


def test_a_table_that_is_taken_out_comes_no_more(place: ChangesPlace):
    place.sql(
        "CREATE TABLE {s}.u (id int PRIMARY KEY)",
        "INSERT INTO {s}.u VALUES (7)",
        "INSERT INTO {s}.t VALUES (1, 'a')",
    )
    place.begin(starting="initial").restarted(tables=f"{place.schema}.t")
    assert place.batch() == []
    place.sql("INSERT INTO {s}.u VALUES (8)")
    assert brief(place.all()) == [("r", "t", None, row(1, "a"))]


def test_tables_of_a_sink_are_not_the_users(place: ChangesPlace):
    """A pipeline that reads a database, and writes to it, would read its own ledger and staging
    tables, and stop where these are dropped.
    """
    place.begin()
    ours = "{s}.onceward_staging_0123456789abcdef_1_1_0"
    place.sql(
        f"CREATE TABLE {ours} (id int)",
        f"INSERT INTO {ours} VALUES (1)",
        "INSERT INTO {s}.t VALUES (1, 'a')",
        f"DROP TABLE {ours}",
    )
    assert brief(place.all()) == [("c", "t", None, row(1, "a"))]


def test_a_session_may_stand_idle_in_a_transaction(place: ChangesPlace):
    """As a snapshot's view does while the binlog is read in another one."""
    names = ["wait_timeout"]
    names += ["idle_transaction_timeout"] if place.server.kind == "mariadb" else []
    before = [place.sql(f"SELECT @@GLOBAL.{name}")[0][0] for name in names]
    place.sql(*(f"SET GLOBAL {name} = 1" for name in names))
    try:
        with closing(Server(place.source()._settings)) as server:
            server.query("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            time.sleep(2.5)
            assert server.query("SELECT 1") == [(1,)]
    finally:
        for name, seconds in zip(names, before, strict=True):
            place.sql(f"SET GLOBAL {name} = {seconds}")


def test_a_replica_of_another_name_is_one(place: ChangesPlace):
    """Of several primaries each has a name, which the plain question leaves out on MariaDB."""
    is_mysql = place.server.kind == "mysql"
    with closing(Server(place.source()._settings)) as server:
        assert not server.is_replica()
        said = "MASTER_HOST = '127.0.0.1', MASTER_PORT = 1"
        place.sql(
            f"CHANGE MASTER TO {said} FOR CHANNEL 'named'"
            if is_mysql
            else f"CHANGE MASTER 'named' TO {said}"
        )
        try:
            assert server.is_replica()
        finally:
            place.sql(
                "RESET SLAVE ALL FOR CHANNEL 'named'" if is_mysql else "RESET SLAVE 'named' ALL"
            )


def test_a_login_without_rights(place: ChangesPlace):
    user = f"u{place.schema[-10:]}"
    place.sql(
        f"CREATE USER {user} IDENTIFIED BY 'secret_of_user'", f"GRANT SELECT ON {{s}}.* TO {user}"
    )
    url = place.url.replace("onceward:", f"{user}:").replace(
        place.url.split(":")[2].split("@")[0], "secret_of_user"
    )

    def refusal() -> ServerMisconfigured:
        with pytest.raises(ServerMisconfigured) as unfit:
            source_of(url, tables=f"{place.schema}.t").start()
        assert "secret_of_user" not in str(unfit.value)
        return unfit.value

    assert refusal().details["unfit"] == ["REPLICATION CLIENT"]
    place.sql(f"GRANT REPLICATION CLIENT ON *.* TO {user}")
    assert refusal().details["unfit"] == ["REPLICATION SLAVE"]
    place.sql(f"GRANT REPLICATION SLAVE ON *.* TO {user}", f"REVOKE SELECT ON {{s}}.* FROM {user}")
    if place.server.kind == "mariadb":
        assert "SLAVE MONITOR" in refusal().next_step
        place.sql(f"GRANT REPLICA MONITOR ON *.* TO {user}")
    assert refusal().details["unfit"] == [f"{place.schema}.t"]
    place.sql(f"GRANT SELECT ON {{s}}.t TO {user}")
    assert (
        source_of(url, tables=f"{place.schema}.t").start()["server"]
        == place.begin().position["server"]
    )


def test_a_table_that_is_not_there(place: ChangesPlace):
    with pytest.raises(ServerMisconfigured, match="no such table"):
        place.begin(tables=[f"{place.schema}.t", f"{place.schema}.missing"])
    for pattern in (
        f"{place.schema}.missing*",
        f"{place.schema}*.t_*",
    ):  # it can match nothing, and would say nothing
        with pytest.raises(ServerMisconfigured, match="no such table") as unfit:
            place.begin(tables=[f"{place.schema}.t", pattern])
        assert unfit.value.details["unfit"] == [pattern]
    place.sql("CREATE TABLE {s}.missing_no_more (id int PRIMARY KEY)")
    place.begin(tables=[f"{place.schema}.t", f"{place.schema}.missing*"])


def test_what_a_foreign_key_changes(place: ChangesPlace):
    place.sql(
        "CREATE TABLE {s}.child (id int, FOREIGN KEY (id) REFERENCES {s}.t (id) ON DELETE CASCADE)"
    )
    with pytest.raises(ServerMisconfigured, match="no binlog") as unfit:
        place.begin()
    allowed = f"cascade:{place.schema}.child"
    assert f'pass_over=["{allowed}"]' in unfit.value.next_step
    place.sql("SET GLOBAL sql_quote_show_create = OFF")
    try:
        with pytest.raises(ServerMisconfigured, match="no binlog"):
            place.begin()
    finally:
        place.sql("SET GLOBAL sql_quote_show_create = ON")
    place.begin(pass_over=[allowed])


def test_a_foreign_key_that_comes_later_stops_at_its_place(place: ChangesPlace):
    """Whatever has become of it since: what it changed between then and now is in no binlog."""
    place.sql("CREATE TABLE {s}.child (id int PRIMARY KEY, p int)")
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')", "INSERT INTO {s}.child VALUES (10, 1)")
    place.sql(
        "ALTER TABLE {s}.child ADD CONSTRAINT k FOREIGN KEY (p) REFERENCES {s}.t (id) ON DELETE "
        "CASCADE",
        "DELETE FROM {s}.t WHERE id = 1",
        "ALTER TABLE {s}.child DROP FOREIGN KEY k",
    )
    assert [one["table"] for one in place.batch()] == ["t", "child"]
    at = stopped(place, "cascade")
    assert brief(place.restarted(pass_over=[at]).all()) == [("d", "t", row(1, "a"), None)]
    place.sql(
        "CREATE TABLE {s}.grandchild (id int, FOREIGN KEY (id) REFERENCES {s}.t (id) ON UPDATE "
        "SET NULL)"
    )
    stopped(place, "cascade")
    place.restarted(pass_over=[at, f"cascade:{place.schema}.grandchild"])
    place.sql("INSERT INTO {s}.t VALUES (2, 'b')")
    assert brief(place.all()) == [("c", "t", None, row(2, "b"))]


def test_what_is_not_fit_behind_a_definition_stops_before_it(place: ChangesPlace):
    """The foreign key is in no binlog: the look behind the next definition sees it."""
    place.sql("CREATE TABLE {s}.child (id int PRIMARY KEY, p int)")
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    in_one_transaction(
        place,
        ["SET SESSION sql_log_bin = 0",
         "ALTER TABLE {s}.child ADD CONSTRAINT k FOREIGN KEY (p) REFERENCES {s}.t (id) ON DELETE "
         "CASCADE"],
    )  # fmt: skip
    place.sql("ALTER TABLE {s}.t ADD COLUMN w int", "INSERT INTO {s}.t VALUES (2, 'b', 3)")
    assert brief(place.all_until_stop(ServerMisconfigured, "foreign key k")) == [
        ("c", "t", None, row(1, "a"))
    ]
    place.sql("ALTER TABLE {s}.child DROP FOREIGN KEY k")
    assert brief(place.all()) == [("c", "t", None, '{"id":2,"v":"b","w":3}')]


def test_a_lost_session_means_another_look(place: ChangesPlace):
    place.begin()
    session = place.running._session
    assert session is not None
    place.sql("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        place.sql(f"KILL {session.connection.thread_id()}")
        place.all_until_stop(ServerMisconfigured, "binlog_row_image")
    finally:
        place.sql("SET GLOBAL binlog_row_image = FULL")
    assert place.all() == []


def test_a_server_is_looked_at_every_now_and_then(
    place: ChangesPlace, monkeypatch: pytest.MonkeyPatch
):
    """What changes without a word in the binlog, and without a new session."""
    monkeypatch.setattr(requirements, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(requirements, "_PAUSES", 0)
    place.begin()
    place.sql("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        place.all_until_stop(ServerMisconfigured, "binlog_row_image")
    finally:
        place.sql("SET GLOBAL binlog_row_image = FULL")
    assert place.all() == []


def login(place: ChangesPlace, *grants: str) -> str:
    """The address with another login, which may read the binlog, and what ``grants`` say."""
    user = f"u{place.schema[-10:]}"
    place.sql(f"CREATE USER {user} IDENTIFIED BY 'a_password'")
    place.sql(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}")
    if place.server.kind == "mariadb":
        place.sql(f"GRANT REPLICA MONITOR ON *.* TO {user}")
    place.sql(*(f"GRANT SELECT ON {one} TO {user}" for one in grants))
    return place.url.replace("onceward:", f"{user}:").replace(
        place.url.split(":")[2].split("@")[0], "a_password"
    )


def test_tables_that_are_not_seen_are_named(place: ChangesPlace):
    """A right for some of the tables that fit a pattern: the others would be in no snapshot."""
    place.sql("CREATE TABLE {s}.hidden (id int PRIMARY KEY)", "INSERT INTO {s}.hidden VALUES (1)")
    url, root, user = login(place, "{s}.t"), place.url, f"u{place.schema[-10:]}"
    for pattern in (f"{place.schema}.*", f"{place.schema[:-1]}*.t"):
        with pytest.raises(ServerMisconfigured, match="not granted on all of it") as unfit:
            source_of(url, tables=pattern, starting="initial").start()
        fix = unfit.value.next_step.partition(" TO the login")[0]
        sql_at(root, f"{fix} TO {user}")
        source_of(url, tables=pattern, starting="initial").start()
        sql_at(root, f"REVOKE ALL, GRANT OPTION FROM {user}")
        url = login_again(place, user)
    sql_at(root, f"GRANT SELECT ON {place.schema}.t TO {user}")
    assert (
        source_of(url, tables=f"{place.schema}.t", starting="initial").start()["snapshot"]
        is not None
    )


@pytest.mark.parametrize("entry", ["{s}_b", r"{s}\_b", r"{s}\_b%"])
def test_a_database_that_a_grant_of_its_own_hides_is_named(place: ChangesPlace, entry: str):
    """Of the grants that fit a database the most exact one alone holds."""
    for database in "ab":
        place.sql(
            f"CREATE DATABASE {{s}}_{database}",
            f"CREATE TABLE {{s}}_{database}.t (id int PRIMARY KEY)",
        )
    pattern, user, root = f"{place.schema}_*.t", f"u{place.schema[-10:]}", place.url
    url = login(place, grant_target(f"{place.schema}_*", "t"))
    wildcards = place.schema.replace("_", r"\_")
    sql_at(root, f"GRANT EXECUTE ON `{entry.replace('{s}', wildcards)}`.* TO {user}")

    def snapshot() -> Any:
        return source_of(url, tables=pattern, starting="initial").start()["snapshot"]["left"]

    # MySQL takes the one without an escape for the less exact one
    if place.server.kind == "mariadb" or r"\_b" in entry:
        with pytest.raises(ServerMisconfigured, match=f"SELECT on {place.schema}_b.t is") as unfit:
            snapshot()
        for fix in re.findall(r"GRANT SELECT ON \S+ TO", unfit.value.next_step):
            sql_at(root, f"{fix} {user}")
        # The right that was there holds on
        assert "SELECT, EXECUTE ON" in str(sql_at(root, f"SHOW GRANTS FOR {user}"))
    assert snapshot() == [[f"{place.schema}_{database}", "t"] for database in "ab"]


def test_what_a_right_for_some_names_covers_is_not_all_of_a_pattern(place: ChangesPlace):
    """Names that are longer, shorter or of other signs are in no list either."""
    tables = f"{place.schema}*.t"
    for some in ("{s}", "{s}_", "{s}_%", "{s}%a", "{s}%onceward%"):
        name = some.replace("{s}", place.schema.replace("_", r"\_"))
        url, user = login(place, f"`{name}`.*"), f"u{place.schema[-10:]}"
        with pytest.raises(ServerMisconfigured) as unfit:
            source_of(url, tables=tables, starting="initial").start()
        assert f"SELECT on {tables}" in unfit.value.details["unfit"], some
        place.sql(f"DROP USER {user}")


def test_a_query_that_did_not_see_a_table_is_told_of_its_rows(place: ChangesPlace):
    """Behind the GRANT alone they would never come."""
    place.sql("CREATE TABLE {s}.hidden (id int PRIMARY KEY)", "INSERT INTO {s}.hidden VALUES (1)")
    user, root = f"u{place.schema[-10:]}", place.url
    place.url = login(place, "{s}.*")
    place.begin(starting="initial").all()
    sql_at(root, f"REVOKE SELECT ON {place.schema}.* FROM {user}")
    with pytest.raises(
        ServerMisconfigured, match="is in no snapshot of it: if there may be one, start from a new"
    ):
        place.restarted().advanced()
    sql_at(root, f"GRANT SELECT ON {place.schema}.* TO {user}")
    assert place.restarted().all() == []


def login_again(place: ChangesPlace, user: str) -> str:
    place.sql(f"DROP USER {user}")
    return login(place, "{s}.t")


def test_changes_of_a_table_that_may_not_be_seen_are_named(place: ChangesPlace):
    """The right is gone since it was looked at, or was never there for this one."""
    user = f"u{place.schema[-10:]}"
    place.sql("CREATE TABLE {s}.more (id int PRIMARY KEY)")
    place.url, root = login(place, "{s}.*"), place.url
    place.begin()
    place.running._server_check.tables = frozenset({(place.schema, "t")})
    sql_at(root, f"INSERT INTO {place.schema}.t VALUES (1, 'a')")
    sql_at(root, f"REVOKE SELECT ON {place.schema}.* FROM {user}")
    sql_at(root, f"GRANT SELECT ON {place.schema}.t TO {user}")
    sql_at(root, f"INSERT INTO {place.schema}.more VALUES (1)")
    assert brief(place.all_until_stop(ServerMisconfigured, f"SELECT on {place.schema}.")) == [
        ("c", "t", None, row(1, "a"))
    ]
    sql_at(root, f"GRANT SELECT ON {place.schema}.* TO {user}")
    assert brief(place.all()) == [("c", "more", None, '{"id":1}')]


def test_a_wrong_password_is_in_no_error(place: ChangesPlace):
    wrong = place.url.replace(place.url.split(":")[2].split("@")[0], "wrong_password")
    source = source_of(wrong, tables="a.b")
    with pytest.raises(Exception, match="Access denied") as refused:
        source.start()
    assert "wrong_password" not in f"{refused.value!r} {source!r} {source._settings!r}"


def test_an_address_that_leads_to_another_server(place: ChangesPlace):
    place.begin()
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    end = place.advanced()
    (part,) = place.running.partitions(place.position, end)
    with pytest.raises(ServerUnreachable, match="led to the server"):
        place.running.read_partition({**part, "server": "another"})
    with pytest.raises(ServerUnreachable, match="begun"):
        place.running.read_partition({**part, "born": 1})


def test_another_primary_key_stops_the_query(place: ChangesPlace):
    """A copy by the old key would write rows over each other."""
    place.begin()
    place.sql(
        "INSERT INTO {s}.t VALUES (1, 'a')",
        "ALTER TABLE {s}.t DROP PRIMARY KEY, MODIFY v varchar(40) NOT NULL, ADD PRIMARY KEY (id, v)",
        "INSERT INTO {s}.t VALUES (1, 'b')",
    )
    assert brief(place.all_until_stop(ChangeUnreadable, "another primary key")) == [
        ("c", "t", None, row(1, "a"))
    ]
    with pytest.raises(ChangeUnreadable) as stop:
        place.advanced()
    assert stop.value.details["reason"] == "ddl"
    (offered,) = re.findall(r'pass_over=\["(.+?)"\]', stop.value.next_step)
    place.restarted(pass_over=[offered])
    assert [one["key"] for one in place.all()] == ['{"id":1,"v":"b"}']


def test_statements_on_other_tables_pass_unless_they_reach_one_that_is_read(place: ChangesPlace):
    place.sql(
        "CREATE DATABASE {s}_far",
        "CREATE TABLE {s}_far.a (id int PRIMARY KEY)",
        "CREATE TABLE {s}_far.b (id int PRIMARY KEY)",
        "CREATE VIEW {s}_far.v AS SELECT id, v FROM {s}.t",
        "CREATE TRIGGER {s}_far.g AFTER INSERT ON {s}_far.b FOR EACH ROW INSERT INTO {s}.t VALUES "
        "(NEW.id, 'by b')",
    )
    place.begin()
    as_statements = "SET SESSION binlog_format = STATEMENT"
    in_one_transaction(
        place,
        [as_statements, "INSERT INTO {s}_far.a VALUES (1)", "DELETE FROM {s}_far.a WHERE id > 0"],
    )
    place.sql("INSERT INTO {s}.t VALUES (1, 'a')")
    assert brief(place.all()) == [("c", "t", None, row(1, "a"))]
    passed = list[str]()
    for reaching in (
        "INSERT INTO {s}_far.v VALUES (2, 'by v')",
        "INSERT INTO {s}_far.b VALUES (3)",
    ):
        in_one_transaction(place, [as_statements, reaching])
        passed.append(stopped(place, "statement"))
        place.restarted(pass_over=passed)
    place.sql("INSERT INTO {s}.t VALUES (4, 'd')")
    assert brief(place.all()) == [("c", "t", None, row(4, "d"))]


def test_an_xa_transaction_of_other_tables_is_passed_over(place: ChangesPlace):
    place.sql("CREATE DATABASE {s}_far", "CREATE TABLE {s}_far.a (id int PRIMARY KEY)")
    place.begin()
    for end in ("COMMIT", "ROLLBACK"):
        name = f"'{place.schema}{end}'"
        written = "INSERT INTO {s}_far.a VALUES (1)"
        in_one_transaction(
            place,
            [
                f"XA START {name}",
                written,
                f"XA END {name}",
                f"XA PREPARE {name}",
                f"XA {end} {name}",
            ],
        )
        place.sql(
            "DELETE FROM {s}_far.a", "DELETE FROM {s}.t", "INSERT INTO {s}.t VALUES (1, 'a')"
        )
        assert brief(place.restarted().all())[-1] == ("c", "t", None, row(1, "a"))


def test_a_table_with_system_versions_is_refused_and_read_once_it_has_none(
    binlog_mariadb: LocalMySQL,
):
    """What is deleted stays in it as history: there is no change that says so."""
    place = ChangesPlace(binlog_mariadb)
    place.sql("CREATE TABLE {s}.v (id int PRIMARY KEY) WITH SYSTEM VERSIONING")
    with pytest.raises(ServerMisconfigured, match="SYSTEM VERSIONING") as unfit:
        place.begin()
    place.sql(unfit.value.next_step.split(", or")[0])
    place.begin().sql("INSERT INTO {s}.v VALUES (1), (2)", "DELETE FROM {s}.v WHERE id = 1")
    assert [(one["op"], one["key"]) for one in place.all()] == [
        ("c", '{"id":1}'), ("c", '{"id":2}'), ("d", '{"id":1}'),
    ]  # fmt: skip
    place.sql("CREATE TABLE {s}.w (id int PRIMARY KEY) WITH SYSTEM VERSIONING", "DROP TABLE {s}.w")
    stopped(place, "system_versioned")


def test_what_mariadb_hides_in_a_table_is_in_no_row(binlog_mariadb: LocalMySQL):
    """The hashes of a UNIQUE key over long texts, behind the last column."""
    place = ChangesPlace(binlog_mariadb)
    place.sql("CREATE TABLE {s}.h (id int PRIMARY KEY, b text, c blob, UNIQUE (b), UNIQUE (c))")
    place.sql("CREATE TABLE {s}.keyless (b text NOT NULL, UNIQUE (b))")
    place.sql("INSERT INTO {s}.h VALUES (1, 'a', NULL)")
    place.begin(starting="initial", tables=f"{place.schema}.h")
    place.all()
    place.sql("UPDATE {s}.h SET b = 'b'", "ALTER TABLE {s}.h ADD d int", "DELETE FROM {s}.h")
    assert brief(place.all()) == [
        ("u", "h", '{"id":1,"b":"a","c":null}', '{"id":1,"b":"b","c":null}'),
        ("d", "h", '{"id":1,"b":"b","c":null,"d":null}', None),
    ]
    place.begin(starting="latest", tables=f"{place.schema}.keyless")
    place.sql("INSERT INTO {s}.keyless VALUES ('a')")
    assert [(one["key"], one["after"]) for one in place.all()] == [(None, '{"b":"a"}')]
    place.sql("CREATE TABLE {s}.mine (id int PRIMARY KEY, DB_ROW_HASH_7 bigint unsigned)")
    with pytest.raises(ServerMisconfigured, match="with a column DB_ROW_HASH_7"):
        place.begin(tables=f"{place.schema}.mine")


def test_an_errors_advice_followed_to_the_letter_loses_the_row_that_it_names(place: ChangesPlace):
    """A zero date among a hundred, which Debezium's form has no place for."""
    place.sql("CREATE TABLE {s}.orders (id int PRIMARY KEY, d date)")
    place.begin(values="debezium")
    days = ", ".join(f"({n}, '{'0000-00-00' if n == 7 else '2024-01-31'}')" for n in range(100))
    in_one_transaction(
        place,
        [
            "SET sql_mode = ''",
            f"INSERT INTO {{s}}.orders VALUES {days}",
            "INSERT INTO {s}.t VALUES (1, 'a')",
        ],
    )
    with pytest.raises(ChangeUnreadable) as stop:
        place.batch()
    place.sql("UPDATE {s}.orders SET d = '2024-01-31' WHERE id = 7")
    names = list[str]()
    for _ in range(
        2
    ):  # the row that was bad, and the change that made it good, which says what it was before
        at = str(stop.value.details["at"])
        assert f'this one row by pass_over=["{at}"]' in stop.value.next_step
        names.append(at)
        place.restarted(pass_over=names)
        if len(names) == 1:
            with pytest.raises(ChangeUnreadable) as stop:
                place.all()
    keys = [(one["table"], one["key"]) for one in place.all()]
    assert keys == [("orders", f'{{"id":{n}}}') for n in range(100) if n != 7] + [
        ("t", '{"id":1}')
    ]


def test_a_row_that_stops_a_snapshot_is_named_by_its_key(place: ChangesPlace):
    """The chunk has it as it was before it was corrected."""
    place.sql("CREATE TABLE {s}.orders (id int, k varchar(9), d date, PRIMARY KEY (k, id))")
    zero = "INSERT INTO {s}.orders VALUES (1, 'a', '2024-01-31'), (2, 'b', '0000-00-00')"
    in_one_transaction(place, ["SET sql_mode = ''", zero])
    place.begin(values="debezium", starting="initial", tables=f"{place.schema}.orders")
    end = place.advanced()
    with pytest.raises(ChangeUnreadable, match="with k = b, id = 2: column 'd'") as stop:
        place.rows(place.position, end)
    assert "stops once more, at the correction" in stop.value.next_step
    place.sql("UPDATE {s}.orders SET d = '2024-01-30' WHERE id = 2")
    with pytest.raises(ChangeUnreadable, match=r"pass_over=\[\"") as stop:
        place.rows(place.position, end)
    place.restarted(pass_over=[stop.value.details["at"]])
    assert [one["after"] for one in place.rows(place.position, end)] == [
        '{"id":1,"k":"a","d":19753}', '{"id":2,"k":"b","d":19752}',
    ]  # fmt: skip
    place.position = end
    assert place.all() == []


def in_one_transaction(place: ChangesPlace, statements: list[str]) -> None:
    """In one session, and in one transaction unless they say otherwise."""
    said = place.running._settings.connect_args
    with pymysql.connect(**said) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.replace("{s}", place.schema))
        connection.commit()


def stopped(place: ChangesPlace, reason: str) -> str:
    with pytest.raises(ChangeUnreadable) as stop:
        place.advanced()
    assert stop.value.details["reason"] == reason
    at = str(stop.value.details["at"])
    assert f'pass_over=["{at}"]' in stop.value.next_step
    return at


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("version", ["8.0.12", "8.0.33"])
def test_numbers_behind_a_year_keep_their_signs(version: str):
    """MySQL 8.0.12 writes no sign of a YEAR, 8.0.33 does."""
    with LocalMySQL(version=version, binlog=True) as server:
        place = ChangesPlace(server)
        place.sql(
            "CREATE TABLE {s}.y (y year, id int PRIMARY KEY, n int, u int unsigned, t tinyint, "
            "b bigint unsigned)"
        )
        place.begin(starting="latest", tables=f"{place.schema}.y")
        place.sql("INSERT INTO {s}.y VALUES (2024, -7, -5, 4000000000, -1, 18446744073709551615)")
        (streamed,) = place.all()
        (copied,) = place.begin(starting="initial", tables=f"{place.schema}.y").all()
    assert streamed["key"] == copied["key"] == '{"id":-7}'
    assert streamed["after"] == copied["after"]
    assert '"n":-5,"u":4000000000,"t":-1,"b":18446744073709551615' in streamed["after"]
