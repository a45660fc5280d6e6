"""A snapshot in chunks of keys, read while four others write, and the stream around it: nothing
twice, nothing lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pymysql
import pytest
from snapshot_play import SnapshotPlay, assert_chained, assert_the_same_again, writers

from onceward.errors import BinlogPurged, ChangeUnreadable, ServerMisconfigured, ServerUnreachable
from onceward.mysql.binlog.column_types import ColumnKind
from onceward.mysql.snapshot import chunks
from onceward.mysql.snapshot.catalogue import TableDescription, describe_table
from onceward.mysql.snapshot.chunks import ConsistentView, read_chunk
from onceward.mysql.snapshot.keys import KeyColumn, is_behind, range_condition
from onceward.mysql.snapshot.result_set import fetch_columns
from onceward.mysql.snapshot.state import (
    advance_snapshot,
    begin_snapshot,
    check_same_key,
    parse_key,
    rows_per_chunk,
)
from onceward.mysql.source.connection import connect
from onceward.mysql.source.position_search import starting_position
from onceward_testing import LocalMySQL

Played = Callable[..., SnapshotPlay]

TABLES = {
    "numbers": "a int, b bigint unsigned, v int, w varchar(40), PRIMARY KEY (a, b)",
    "names": "name varchar(30) COLLATE utf8mb4_general_ci, n decimal(6,2), v int, w text, PRIMARY "
    "KEY (name, n)",
    "moments": "at datetime(3), v int, w varchar(40) CHARACTER SET latin1, raw varbinary(9), "
    "PRIMARY KEY (raw, at)",
}
BIG = 1 << 63
LETTERS = ("a", "A", "ä", "b", "B ", "ß", "ss", "z", "Z", "é", "e", "10", "9", "_", "")


COLUMNS = {"numbers": ("a", "b"), "names": ("name", "n"), "moments": ("at", "raw")}


TYPES: dict[str, tuple[str, list[str]]] = {
    "ti": ("tinyint", ["-128", "127"]),
    "tu": ("tinyint unsigned", ["255", "0"]),
    "mi": ("mediumint", ["-8388608", "8388607"]),
    "mu": ("mediumint unsigned", ["16777215"]),
    "z": ("int(8) zerofill", ["42", "0"]),
    "bi": ("bigint", [str(-(1 << 63)), str((1 << 63) - 1)]),
    "bu": ("bigint unsigned", [str((1 << 64) - 1), "0"]),
    "f": (
        "float",
        ["0.1", "-0.0", "16777217", "1.401298464324817e-45", "3.4028234663852886e38", "1e10"],
    ),
    "d": (
        "double",
        [
            "0.1",
            "-0.0",
            "1.7976931348623157e308",
            "5e-324",
            "123456789012345680000",
            "1e15",
            "1e16",
        ],
    ),
    "d3": ("double(12,3)", ["12345.678", "-0.5"]),
    "n": ("decimal(10,4)", ["-12.3400", "0", "0.0001"]),
    "nz": ("decimal(8,2) zerofill", ["1.5", "0"]),
    "nn": (
        "decimal(65,30)",
        [f"'{'1234567' * 5}.{'123456' * 5}'", "0", "'0.000000000000000000000000000001'", "'-0.1'"],
    ),
    "b1": ("bit(1)", ["b'1'", "b'0'"]),
    "b12": ("bit(12)", ["b'101010101010'", "0"]),
    "b64": ("bit(64)", [f"b'1{'0' * 62}1'", "0"]),
    "y": ("year", ["2024", "0", "1901"]),
    "dt": ("date", ["'2024-01-31'", "'0000-00-00'", "'0001-01-01'", "'2024-00-00'"]),
    "t": ("time", ["'-838:59:59'", "'00:00:00'", "'00:00:01'"]),
    "t3": ("time(3)", ["'12:34:56.789'", "'-00:00:00.001'"]),
    "dm": ("datetime", ["'2024-01-31 10:00:00'", "'0000-00-00 00:00:00'"]),
    "d6": (
        "datetime(6)",
        ["'2024-01-31 10:00:00.000001'", "'2024-00-00 00:00:00'", "'9999-12-31 23:59:59.999999'"],
    ),
    "ts": (
        "timestamp NULL",
        ["'2024-01-31 10:00:00'", "'0000-00-00 00:00:00'", "'2038-01-19 03:14:07'"],
    ),
    "t2": ("timestamp(2) NULL", ["'2024-01-31 10:00:00.12'"]),
    "c": ("char(10)", ["'ab  '", "''"]),
    "vc": ("varchar(300)", ["'tab\\t nl\\n q\\\" b\\\\ \\0 😀'", "''", "'trailing  '"]),
    "l1": ("varchar(30) CHARACTER SET latin1", ["'äöü€'", "''"]),
    "gb": ("varchar(30) CHARACTER SET gbk", ["'中文'"]),
    "sj": ("varchar(30) CHARACTER SET sjis", ["'日本'"]),
    "u16": ("varchar(30) CHARACTER SET utf16", ["'ü😀'"]),
    "cy": ("varchar(30) CHARACTER SET cp1251", ["'Привет'"]),
    "mt": ("mediumtext", ["REPEAT('x', 70000)", "''"]),
    "bn": ("binary(8)", ["'ab\\0'", "''"]),
    "vb": ("varbinary(20)", ["X'00FF10'", "''"]),
    "bl": ("blob", ["X'DEADBEEF'", "''"]),
    "e": ("enum('x','it''s','a,b')", ["'it''s'", "''", "'a,b'"]),
    "eb": ("enum('x','y') CHARACTER SET binary", ["'y'"]),
    "sb": ("set('x','y') CHARACTER SET binary", ["'x,y'"]),
    "s": ("set('x','q','it''s')", ["'x,it''s'", "''", "'x,q,it''s'"]),
    "j": (
        "json",
        [
            """'{"b": [1, 2.50, 1e300, null, true, "ä\\\\n"], "a": {"x": -0.0}, "n": 12345678901234567890}'""",
            "'[]'",
            """'"text"'""",
            "'null'",
            "'1.0'",
            "'1e-7'",
        ],
    ),
    "g": ("geometry", ["ST_GeomFromText('LINESTRING(0 0,1 1,2 2.5)')"]),
    "p": ("point", ["ST_GeomFromText('POINT(1 -2)')"]),
    "sg": ("int GENERATED ALWAYS AS (ti + 1) STORED", []),
    "vg": ("int GENERATED ALWAYS AS (ti + 2) VIRTUAL", []),
    "after": ("varchar(9) CHARACTER SET latin1 DEFAULT 'ä'", []),
}
MARIADBS: dict[str, tuple[str, list[str]]] = {
    "ip4": ("inet4", ["'203.0.113.2'"]),
    "ip6": ("inet6", ["'2001:db8::ff00:42:8329'"]),
    "uu": ("uuid", ["'123e4567-e89b-12d3-a456-426655440000'"]),
    "cc": ("varchar(100) COMPRESSED", ["REPEAT('äb', 40)", "''"]),
    "bc": ("blob COMPRESSED", ["REPEAT('ab', 400)", "''"]),
    "ce": ("enum('ä','ö') CHARACTER SET latin1", ["'ö'"]),
    "hidden": ("int INVISIBLE DEFAULT 5", ["6"]),
}


def key_values(table: str, chosen: random.Random) -> tuple[str, str]:
    if table == "numbers":
        return str(chosen.randrange(-9, 9)), str(chosen.choice((0, BIG)) + chosen.randrange(20))
    if table == "names":
        return f"'{chosen.choice(LETTERS)}{chosen.choice(LETTERS)}'", str(
            chosen.randrange(-20, 20) / 4
        )
    return (
        f"'2024-01-{chosen.randrange(1, 9):02} 10:00:00.{chosen.randrange(3)}'",
        f"X'{chosen.randrange(256):02x}'",
    )


def condition(table: str, values: tuple[str, str]) -> str:
    return " AND ".join(
        f"{name} = {value}" for name, value in zip(COLUMNS[table], values, strict=True)
    )


def transaction(chosen: random.Random) -> list[str]:
    """Some statements on some rows: made, changed, moved to another key, gone."""
    statements = []
    for _ in range(chosen.choice((1, 1, 2, 5))):
        table = chosen.choice(list(TABLES))
        names, values = COLUMNS[table], key_values(table, chosen)
        kind, v = chosen.random(), chosen.randrange(1 << 30)
        if kind < 0.35:
            rows = ", ".join(
                f"({', '.join(key_values(table, chosen))}, {v + n}, 'ä{v}\"\\\\')"
                for n in range(chosen.choice((1, 3)))
            )
            statements.append(
                f"INSERT INTO {table} ({', '.join(names)}, v, w) VALUES {rows} ON DUPLICATE KEY "
                f"UPDATE v = {v}"
            )
        elif kind < 0.6:
            statements.append(f"DELETE FROM {table} WHERE {condition(table, values)}")
        elif kind < 0.8:
            new = ", ".join(
                f"{name} = {value}"
                for name, value in zip(names, key_values(table, chosen), strict=True)
            )
            statements.append(
                f"UPDATE {table} SET {new}, v = {v} WHERE {condition(table, values)}"
            )
        elif kind < 0.9:
            starting_position, value = names[0], values[0]
            statements.append(f"UPDATE {table} SET v = {v} WHERE {starting_position} = {value}")
        elif table == "numbers":
            # Each row moves to the key of the one before it: deletions and creations of the same
            # keys in one event.
            statements.append(
                f"UPDATE numbers SET a = a + 1 WHERE b = {values[1]} ORDER BY a DESC"
            )
        else:
            statements.append(
                f"REPLACE INTO {table} ({', '.join(names)}, v) VALUES ({', '.join(values)}, {v})"
            )
    return statements


@pytest.fixture(
    params=["binlog_mysql", pytest.param("binlog_mariadb", marks=pytest.mark.once_more)]
)
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    server: LocalMySQL = request.getfixturevalue(request.param)
    made: list[SnapshotPlay] = []

    def play(**settings: int) -> SnapshotPlay:
        made.append(SnapshotPlay(server, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield play
    for each in made:
        each.close()


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


def filled(play: SnapshotPlay, seed: int = 7, count: int = 200) -> SnapshotPlay:
    chosen = random.Random(seed)
    for table, columns in TABLES.items():
        play.sql(f"CREATE TABLE {{s}}.{table} ({columns})")
        rows = ", ".join(
            f"({', '.join(key_values(table, chosen))}, {n}, 'first')" for n in range(count)
        )
        play.sql(
            f"INSERT IGNORE INTO {{s}}.{table} ({', '.join(COLUMNS[table])}, v, w) VALUES {rows}"
        )
    return play


@pytest.mark.parametrize("rows", [40, 200])
def test_changes_of_each_key_are_a_chain(played: Played, rows: int) -> None:
    play = filled(played(rows=rows))
    with writers(play, transaction):
        play.begin()
        while play.position.snapshot is not None:
            play.batch()
        play.batch()
        assert assert_the_same_again(play, every=3) >= 2
    play.batch()
    assert_chained(play, list(TABLES))
    assert {change["op"] for change in play.changes} == {"r", "c", "u", "d"}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
def test_chunks_of_one_row_are_a_chain_as_well(played: Played, rows: int) -> None:
    play = filled(played(rows=rows, chunks=20), count=15)
    with writers(play, transaction, pause=0.5):
        play.begin()
        while play.position.snapshot is not None:
            play.batch()
        assert_the_same_again(play, every=9)
    play.batch()
    assert_chained(play, list(TABLES))


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_snapshot_while_much_is_written(played: Played) -> None:
    for seed in range(3):
        play = filled(played(rows=25), seed)
        with writers(play, transaction, pause=0.003):
            play.begin()
            while play.position.snapshot is not None:
                play.batch()
            assert_the_same_again(play, every=4)
        play.batch()
        assert_chained(play, list(TABLES))


def test_what_happens_before_a_chunk_is_read_is_undone(played: Played) -> None:
    """All is changed, moved and deleted between the end of the batch and its tasks, in another
    binlog already.
    """
    play = played(rows=4, chunks=2)
    play.sql(
        "CREATE TABLE {s}.t (id int PRIMARY KEY, v int)",
        "INSERT INTO {s}.t VALUES (1,1), (2,2), (3,3), (4,4), (5,5), (6,6), (7,7), (8,8), (9,9)",
    )
    play.begin()
    play.batch(
        before_reading=lambda: play.sql(
            "UPDATE {s}.t SET id = id + 100 WHERE id < 4",
            "DELETE FROM {s}.t WHERE id > 5",
            "FLUSH BINARY LOGS",
            "UPDATE {s}.t SET v = -v",
            "INSERT INTO {s}.t VALUES (2, 22), (7, 77)",
        )
    )
    assert [change["after"] for change in play.changes] == [
        f'{{"id":{n},"v":{n}}}' for n in range(1, 9)
    ]
    play.all()
    assert_the_same_again(play)
    assert_chained(play, ["t"])


@pytest.mark.parametrize("statement", ["TRUNCATE TABLE {s}.t", "DROP TABLE {s}.t"])
def test_of_a_table_that_is_emptied_the_touched_rows_come(played: Played, statement: str) -> None:
    """What nobody touched between is gone, and the stream will say so."""
    play = played(rows=10)
    play.sql(
        "CREATE TABLE {s}.t (id int PRIMARY KEY, v int)",
        "INSERT INTO {s}.t VALUES (1, 1), (2, 2), (3, 3)",
    )
    play.begin()
    again = "CREATE TABLE IF NOT EXISTS {s}.t (id int PRIMARY KEY, v int)"
    play.batch(
        before_reading=lambda: play.sql(
            "UPDATE {s}.t SET v = 20 WHERE id = 2",
            statement,
            again,
            "INSERT INTO {s}.t VALUES (3, 30)",
        )
    )
    assert [change["after"] for change in play.changes] == ['{"id":2,"v":2}']


def test_a_table_that_is_gone_is_the_streams_to_tell_of(played: Played) -> None:
    play = played(rows=1, chunks=1)
    for table in "abc":
        play.sql(
            f"CREATE TABLE {{s}}.{table} (id int PRIMARY KEY, v int)",
            f"INSERT INTO {{s}}.{table} VALUES (1, 1)",
        )
    play.begin()
    play.batch(before_reading=lambda: play.sql("DROP TABLE {s}.a", "DROP TABLE {s}.b"))
    state = advance_snapshot(play.server, play.position.snapshot, caught_up=True, rows=1)
    assert state is not None
    assert {tuple(chunk["table"]) for chunk in state["chunks"]} == {(play.schema, "c")}


def test_columns_that_come_and_go_meanwhile(played: Played) -> None:
    """A row is as its next change will say that it was."""
    play = played(rows=10)
    play.sql(
        "CREATE TABLE {s}.t (id int PRIMARY KEY, v int)",
        "INSERT INTO {s}.t VALUES (1, 1), (2, 2), (3, 3)",
    )
    play.begin()
    play.batch(
        before_reading=lambda: play.sql(
            "UPDATE {s}.t SET v = 10 WHERE id = 1",
            "ALTER TABLE {s}.t ADD COLUMN w int DEFAULT 7, DROP COLUMN v",
        )
    )
    found = {change["key"]: change["after"] for change in play.changes}
    assert found == {
        '{"id":1}': '{"id":1,"v":1}',
        '{"id":2}': '{"id":2,"w":7}',
        '{"id":3}': '{"id":3,"w":7}',
    }


def test_another_primary_key_ends_the_snapshot(played: Played) -> None:
    play = played(rows=1, chunks=1)
    play.sql(
        "CREATE TABLE {s}.t (id int PRIMARY KEY, v int)",
        "INSERT INTO {s}.t VALUES (1, 1), (2, 2), (3, 3)",
    )
    play.begin().batch()
    play.sql("ALTER TABLE {s}.t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)")
    with pytest.raises(ChangeUnreadable, match="primary key"):
        play.batch()
    with pytest.raises(ChangeUnreadable, match="primary key"):
        assert_the_same_again(play)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("id int", "no primary key"),
        ("id text, PRIMARY KEY (id(5))", "the beginning of a column"),
        ("id double PRIMARY KEY", "the type double"),
        ("id enum('a','b') PRIMARY KEY", "the type enum"),
        ("id bit(5) PRIMARY KEY", "the type bit"),
        ("id int PRIMARY KEY | ENGINE = MyISAM", "engine is MyISAM"),
    ],
)
def test_a_table_that_cannot_be_snapshot_is_named(
    played: Played, columns: str, named: str
) -> None:
    play = played()
    columns, _, options = columns.partition(" | ")
    play.sql(f"CREATE TABLE {{s}}.t ({columns}) {options}")
    with pytest.raises(ServerMisconfigured, match=named) as raised:
        play.begin()
    assert f"{play.schema}.t" in str(raised.value)


@pytest.mark.parametrize(
    "collation",
    [
        "utf8mb4_general_ci",
        "utf8mb4_bin",
        "utf8mb4_unicode_ci",
        "utf8mb4_0900_ai_ci",
        "latin1_swedish_ci",
        "latin1_bin",
    ],
)
def test_texts_are_in_the_order_of_the_server(played: Played, collation: str) -> None:
    """Places between texts, and the keys on either side of them: as the index has them."""
    play = played(rows=7, chunks=100)
    if play.server.dialect == "mariadb" and "0900" in collation:
        pytest.skip("MariaDB has no such collation")
    charset = collation.partition("_")[0]
    play.sql(
        f"CREATE TABLE {{s}}.t (k varchar(9) CHARACTER SET {charset} COLLATE {collation}, n time, "
        f"PRIMARY KEY (k, n))"
    )
    chosen = random.Random(3)
    for _ in range(3):
        rows = (
            f"('{chosen.choice(LETTERS)}{chosen.choice(LETTERS)}', "
            f"'{chosen.choice('- ')}10:00:01')"
            for _ in range(90)
        )
        play.sql(f"INSERT IGNORE INTO {{s}}.t VALUES {', '.join(rows)}")
    play.begin()
    state = advance_snapshot(
        play.server, play.position.snapshot, caught_up=True, chunks=100, rows=7
    )
    assert state is not None
    (described_key,) = {str(chunk["key"]) for chunk in state["chunks"]}
    key = parse_key(state["chunks"][0]["key"])
    found = play.sql("SELECT k, CAST(n AS CHAR) FROM {s}.t ORDER BY k, n")
    columns = [pa.array([row[place] for row in found], pa.string()) for place in range(2)]
    for number, chunk in enumerate(state["chunks"][:-1], start=1):
        expected = [place >= 7 * number for place in range(len(found))]
        assert is_behind(key, chunk["up_to"], columns, play.server.query).tolist() == expected, (
            chunk,
            described_key,
        )
    play.all()
    assert_chained(play, ["t"])


def test_chunks_are_looked_up_in_the_index(played: Played) -> None:
    play = played()
    play.sql(
        "CREATE TABLE {s}.t (a int, b varchar(9), c date, v int, KEY (v), PRIMARY KEY (a, b, c))"
    )
    rows = ", ".join(
        f"({n // 100}, 'k{n // 10 % 10}', '2024-01-{n % 10 + 1:02}', 1)" for n in range(1000)
    )
    play.sql(f"INSERT INTO {{s}}.t VALUES {rows}", "ANALYZE TABLE {s}.t")
    key = describe_table(play.server.query, play.server.dialect, play.schema, "t").key
    condition = range_condition(
        key, ["4", b"k4".hex(), "2024-01-03"], ["4", b"k8".hex(), "2024-01-07"]
    )
    (plan,) = play.sql(f"EXPLAIN SELECT * FROM {{s}}.t FORCE INDEX (PRIMARY) WHERE {condition}")
    assert "range" in plan
    assert "PRIMARY" in plan
    assert any(str(cell).isdigit() and 20 < int(cell) < 200 for cell in plan)


def test_a_binlog_that_is_purged_meanwhile_is_named(played: Played) -> None:
    play = played()
    play.sql("CREATE TABLE {s}.t (id int PRIMARY KEY, v int)", "INSERT INTO {s}.t VALUES (1, 1)")

    def purge() -> None:
        if play.server.dialect == "mariadb":
            play.sql("SET GLOBAL slave_connections_needed_for_purge = 0")
        play.sql("UPDATE {s}.t SET v = 2", "FLUSH BINARY LOGS")
        wait_until(
            lambda: (
                play.sql(f"PURGE BINARY LOGS TO '{play.server.end().file}'") == [] and is_gone()
            )
        )

    def is_gone() -> bool:
        """MariaDB keeps a binlog until its tables' own log is that far."""
        return play.position.file not in play.server.binlogs()

    with pytest.raises(BinlogPurged):
        play.begin().batch(before_reading=purge)


def test_a_row_is_the_same_whichever_way_it_comes(played: Played) -> None:
    play = played()
    mariadb = play.server.dialect == "mariadb"
    types = {**TYPES, **(MARIADBS if mariadb else {})}
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in types.items())
    play.sql(
        f"CREATE TABLE {{s}}.t (id int AUTO_INCREMENT PRIMARY KEY, {columns}) CHARACTER SET "
        f"utf8mb4"
    )
    play.begin().all()
    for place in range(max(len(values) for _, values in types.values())):
        said = {name: values[place] for name, (_, values) in types.items() if place < len(values)}
        names = ", ".join(f"`{name}`" for name in said)
        play.sql(f"INSERT INTO {{s}}.t ({names}) VALUES ({', '.join(said.values())})")
    play.batch()
    assert [change["op"] for change in play.changes] == ["c"] * len(play.changes)
    assert {change["key"]: change["after"] for change in play.changes} == play.rows_now("t")


def test_rows_of_any_length_are_read(played: Played) -> None:
    """Of one packet, of several, and of none; and a refusal in the middle."""
    play = played()
    if play.server.dialect == "mariadb":
        pytest.skip("the protocol is the same")
    connection = connect(play.settings).connection
    with connection:
        lengths = (1, 300, 1 << 24, (1 << 24) - 8, (1 << 25) - 2, 70_000)
        texts = " UNION ALL ".join(f"SELECT REPEAT('x', {length}), NULL" for length in lengths)
        for block_bytes in (64, 1 << 20):
            found = [
                len(text)
                for columns in fetch_columns(connection, texts, block_bytes)
                for text in columns[0].to_pylist()
            ]
            assert tuple(found) == lengths
        assert list(fetch_columns(connection, "SELECT 1 FROM dual WHERE 1 = 0")) == []
        with pytest.raises(pymysql.err.OperationalError, match="more than 1 row"):
            list(fetch_columns(connection, "SELECT (SELECT 1 UNION SELECT 2)"))


def test_a_server_that_gives_no_names_cannot_be_snapshot(played: Played) -> None:
    play = played()
    if play.server.dialect == "mariadb":
        pytest.skip("MariaDB's views know their place")
    start = starting_position(play.settings, play.server)
    with pytest.raises(ServerMisconfigured, match="GTID"):
        begin_snapshot(play.server, play.settings, replace(start, gtids=None))


def test_a_view_waits_for_what_is_in_the_binlog_and_not_committed(played: Played) -> None:
    """What it is to see is named by a transaction that comes when the first wait for it is
    over.
    """
    play = played()
    if play.server.dialect == "mariadb":
        pytest.skip("MariaDB's views know their place")
    start = starting_position(play.settings, play.server)
    source, _, number = play.server.executed_gtids().rpartition(",")[2].rpartition(":")
    following = f"{source}:{int(number.rpartition('-')[2]) + 1}"
    as_of = replace(start, gtids=f"{start.gtids},{following}")
    with pytest.raises(ServerUnreachable, match="gtid_executed"):
        ConsistentView(play.server, as_of, seconds=1)
    play.sql("CREATE TABLE {s}.t (id int PRIMARY KEY)")
    assert ConsistentView(play.server, as_of).open().order > start.place.order


@pytest.mark.parametrize("held", [chunks.HELD_BYTES, 1 << 20], ids=["held", "read twice"])
def test_a_chunk_of_large_rows_comes_in_pieces_whatever_the_statistics_say(
    played: Played, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """A snapshot of documents would need all of a chunk in memory, several times over."""
    monkeypatch.setattr(chunks, "HELD_BYTES", held)
    play = played(rows=1_000)
    play.sql(
        "CREATE TABLE {s}.docs (id bigint PRIMARY KEY, body longtext NOT NULL)",
        *(f"INSERT INTO {{s}}.docs VALUES ({n}, REPEAT('x', 1 << 20))" for n in range(24)),
    )
    play.begin()
    play.batch()
    play.batch()
    [(chunk, as_of, rows)] = play.read
    pieces = [piece.nbytes for piece in read_chunk(play.settings, chunk, as_of)]
    assert rows.num_rows == 24
    assert max(pieces) < 10 << 20, pieces
    assert_chained(play, ["docs"])


@pytest.mark.parametrize("row_bytes", [1, 16 << 20, 64 << 20])
def test_a_chunk_has_as_many_rows_as_go_into_it(row_bytes: int) -> None:
    table = TableDescription(SimpleNamespace(), (), row_bytes, ())  # type: ignore[arg-type]
    assert rows_per_chunk(table) == {1: 200_000}.get(row_bytes, 1)


def test_a_sequence_is_no_table(played: Played) -> None:
    """MariaDB logs each range of its numbers as an insert into it."""
    play = played()
    if play.server.dialect != "mariadb":
        pytest.skip("MySQL has no sequences")
    play.sql(
        "CREATE SEQUENCE {s}.numbers CACHE 1",
        "CREATE TABLE {s}.t (id bigint PRIMARY KEY)",
        "CREATE TABLE {s}.next_not_cached_value (next_not_cached_value bigint PRIMARY KEY)",
    )
    play.begin()
    play.sql(*["INSERT INTO {s}.t VALUES (NEXT VALUE FOR {s}.numbers)"] * 3)
    play.sql("INSERT INTO {s}.next_not_cached_value VALUES (1)")
    play.all()
    tables = sorted(change["table"] for change in play.changes)
    assert tables == ["next_not_cached_value", *["t"] * 3]


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (("int(11)", "", ""), ("int", "", ""), True),
        (("bigint(20) unsigned", "", ""), ("bigint unsigned", "", ""), True),
        (("int(11)", "", ""), ("int unsigned", "", ""), False),
        (("int", "", ""), ("bigint", "", ""), False),
        (
            ("varchar(9)", "utf8", "utf8_general_ci"),
            ("varchar(9)", "utf8mb3", "utf8mb3_general_ci"),
            True,
        ),
        (
            ("varchar(9)", "utf8", "utf8_general_ci"),
            ("varchar(9)", "utf8mb4", "utf8mb4_general_ci"),
            False,
        ),
        (("varchar(9)", "utf8", "utf8_bin"), ("varchar(8)", "utf8", "utf8_bin"), False),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_key_is_the_same_in_the_words_of_a_newer_server(
    before: tuple[str, str, str], now: tuple[str, str, str], same: bool
) -> None:
    keys = [(KeyColumn("id", kind, ColumnKind.INTEGER, *rest),) for kind, *rest in (before, now)]
    for one, other in (keys, keys[::-1]):
        if same:
            check_same_key(one, other, "d", "t")
        else:
            with pytest.raises(ChangeUnreadable):
                check_same_key(one, other, "d", "t")
