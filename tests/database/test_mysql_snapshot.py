"""A snapshot in chunks of keys, read while four others write, and the stream around it: nothing twice, nothing lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from snapshot_play import SnapshotPlay, assert_chained, assert_the_same_again, writers

from onceward.testing import LocalMySQL

TABLES = {
    "numbers": "a int, b bigint unsigned, v int, w varchar(40), PRIMARY KEY (a, b)",
    "names": "name varchar(30) COLLATE utf8mb4_general_ci, n decimal(6,2), v int, w text, PRIMARY KEY (name, n)",
    "moments": "at datetime(3), v int, w varchar(40) CHARACTER SET latin1, raw varbinary(9), PRIMARY KEY (raw, at)",
}
BIG = 1 << 63
LETTERS = ("a", "A", "ä", "b", "B ", "ß", "ss", "z", "Z", "é", "e", "10", "9", "_", "")


COLUMNS = {"numbers": ("a", "b"), "names": ("name", "n"), "moments": ("at", "raw")}


def key_values(table: str, chosen: random.Random) -> tuple[str, str]:
    if table == "numbers":
        return str(chosen.randrange(-9, 9)), str(chosen.choice((0, BIG)) + chosen.randrange(20))
    if table == "names":
        return f"'{chosen.choice(LETTERS)}{chosen.choice(LETTERS)}'", str(chosen.randrange(-20, 20) / 4)
    return f"'2024-01-{chosen.randrange(1, 9):02} 10:00:00.{chosen.randrange(3)}'", f"X'{chosen.randrange(256):02x}'"


def condition(table: str, values: tuple[str, str]) -> str:
    return " AND ".join(f"{name} = {value}" for name, value in zip(COLUMNS[table], values, strict=True))


def transaction(chosen: random.Random) -> list[str]:
    """Some statements on some rows: made, changed, moved to another key, gone."""
    statements = []
    for _ in range(chosen.choice((1, 1, 2, 5))):
        table = chosen.choice(list(TABLES))
        names, values = COLUMNS[table], key_values(table, chosen)
        kind, v = chosen.random(), chosen.randrange(1 << 30)
        if kind < 0.35:
            rows = ", ".join(
                f"({', '.join(key_values(table, chosen))}, {v + n}, 'ä{v}\"\\\\')" for n in range(chosen.choice((1, 3)))
            )
            statements.append(
                f"INSERT INTO {table} ({', '.join(names)}, v, w) VALUES {rows} ON DUPLICATE KEY UPDATE v = {v}"
            )
        elif kind < 0.6:
            statements.append(f"DELETE FROM {table} WHERE {condition(table, values)}")
        elif kind < 0.8:
            new = ", ".join(f"{name} = {value}" for name, value in zip(names, key_values(table, chosen), strict=True))
            statements.append(f"UPDATE {table} SET {new}, v = {v} WHERE {condition(table, values)}")
        elif kind < 0.9:
            first, value = names[0], values[0]
            statements.append(f"UPDATE {table} SET v = {v} WHERE {first} = {value}")
        elif table == "numbers":
            # Each row moves to the key of the one before it: deletions and creations of the same keys in one event.
            statements.append(f"UPDATE numbers SET a = a + 1 WHERE b = {values[1]} ORDER BY a DESC")
        else:
            statements.append(f"REPLACE INTO {table} ({', '.join(names)}, v) VALUES ({', '.join(values)}, {v})")
    return statements


@pytest.fixture(params=["binlog_mysql", pytest.param("binlog_mariadb", marks=pytest.mark.once_more)])
def played(request: pytest.FixtureRequest) -> Iterator[Callable[..., SnapshotPlay]]:
    server: LocalMySQL = request.getfixturevalue(request.param)
    made: list[SnapshotPlay] = []

    def play(**settings: int) -> SnapshotPlay:
        made.append(SnapshotPlay(server, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield play
    for each in made:
        each.close()


def filled(play: SnapshotPlay) -> SnapshotPlay:
    chosen = random.Random(7)
    for table, columns in TABLES.items():
        play.sql(f"CREATE TABLE {{s}}.{table} ({columns})")
        rows = ", ".join(f"({', '.join(key_values(table, chosen))}, {n}, 'first')" for n in range(200))
        play.sql(f"INSERT IGNORE INTO {{s}}.{table} ({', '.join(COLUMNS[table])}, v, w) VALUES {rows}")
    return play


@pytest.mark.parametrize("rows", [40, 200])
def test_changes_of_each_key_are_a_chain(played: Callable[..., SnapshotPlay], rows: int) -> None:
    play = filled(played(rows=rows))
    with writers(play, transaction):
        play.begin()
        while play.position.snapshot is not None:
            play.batch()
        play.batch()
        assert assert_the_same_again(play) >= 3
    play.batch()
    assert_chained(play, list(TABLES))
    assert {change["op"] for change in play.changes} == {"r", "c", "u", "d"}
