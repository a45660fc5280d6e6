"""Changes of one table that can be made one after the other only: each was made at its source in
that order, and the batch's end keeps every constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from database_place import MySQLPlace, Place

from onceward.engine import driver_rows
from onceward.errors import RowRefused
from onceward.sql.ledger import database
from onceward.sql.mysql.dialect import MySQLDialect
from onceward_testing import LocalMySQL

CHANGES = {"mode": "changes", "key": "id", "order_by": "n"}
NAME = "v varchar(20) UNIQUE"
TREE = "v bigint, FOREIGN KEY (v) REFERENCES {table} (id)"


def changes(*told: tuple[str, int, Any]) -> pa.Table:
    ops, ids, values = zip(*told, strict=True)
    kind = pa.string() if any(isinstance(value, str) for value in values) else pa.int64()
    return pa.table(
        {
            "op": pa.array(ops),
            "id": pa.array(ids, pa.int64()),
            "v": pa.array(values, kind),
            "n": pa.array(range(len(told)), pa.int64()),
        }
    )


def filled(place: Place, second: str, before: Sequence[tuple[int, Any]]) -> None:
    for name in ("source", "t"):
        column = second.replace("{table}", f"{place.schema}.{name}")
        place.sql(f"CREATE TABLE {{s}}.{name} (id bigint PRIMARY KEY, {column})")
        for row in before:
            place.sql(f"INSERT INTO {{s}}.{name} VALUES (%s, %s)", *row)  # noqa: S608


def play(place: Place, told: Sequence[tuple[str, int, Any]]) -> None:
    """Make the changes at the source, one by one."""
    for op, key, value in told:
        if op == "d":
            place.sql("DELETE FROM {s}.source WHERE id = %s", key)
        elif op == "c":
            place.sql("INSERT INTO {s}.source VALUES (%s, %s)", key, value)
        else:
            place.sql("UPDATE {s}.source SET v = %s WHERE id = %s", value, key)


@pytest.mark.parametrize(
    ("second", "before", "told"),
    [
        pytest.param(
            NAME, [(1, "z"), (2, "a")], [("u", 2, "b"), ("u", 1, "a")], id="a name moves down"
        ),
        pytest.param(
            NAME, [(1, "a"), (2, "z")], [("u", 1, "b"), ("u", 2, "a")], id="a name moves up"
        ),
        pytest.param(
            NAME,
            [(1, "a"), (2, "z")],
            [("u", 1, "b"), ("u", 2, "a"), ("u", 1, "c")],
            id="its first owner changes again",
        ),
        pytest.param(
            NAME,
            [(1, "a"), (2, "b")],
            [("u", 1, "-"), ("u", 2, "a"), ("u", 1, "b")],
            id="two names change places",
        ),
        pytest.param(
            NAME,
            [(1, "a")],
            [("u", 1, "b"), ("c", 2, "a"), ("u", 1, "c")],
            id="a new row takes the name",
        ),
        pytest.param(
            NAME,
            [(1, "a"), (2, "b")],
            [("d", 1, None), ("u", 2, "a"), ("c", 1, "b"), ("u", 2, "c"), ("u", 1, "a")],
            id="a row is deleted and comes back under a name that was taken",
        ),
        pytest.param(TREE, [(1, None)], [("c", 5, None), ("u", 1, 5)], id="a new root"),
        pytest.param(
            TREE, [(1, None), (2, 1), (3, 2)],
            [("d", 3, None), ("d", 2, None), ("d", 1, None)],
            id="a tree is cut from its leaves",
        ),
        pytest.param(
            TREE,
            [(1, None)],
            [("c", 9, None), ("c", 3, 9), ("u", 9, 1)],
            id="a new root that changes again",
        ),
    ],
)  # fmt: skip
def test_what_the_source_could_do_in_its_order_is_done(
    either_anywhere: Place, second: str, before: Any, told: Any
) -> None:
    place = either_anywhere
    filled(place, second, before)
    play(place, told)
    place.write("t", changes(*told), **CHANGES)
    assert sorted(place.sql("SELECT * FROM {s}.t")) == sorted(
        place.sql("SELECT * FROM {s}.source")
    )


def test_changes_of_two_tables_are_made_in_one_order(either_anywhere: Place) -> None:
    """A parent gives its name to another one before it goes, and children change parents."""
    place = either_anywhere
    place.sql("CREATE TABLE {s}.a (id bigint PRIMARY KEY, v varchar(20) UNIQUE)")
    place.sql(
        "CREATE TABLE {s}.b (id bigint PRIMARY KEY, v varchar(20), "
        "FOREIGN KEY (v) REFERENCES {s}.a (v))"
    )
    told = [("a", "c", 1, "x"), ("b", "c", 7, "x"), ("b", "d", 7, "x"), ("a", "u", 1, "y"),
            ("a", "c", 2, "x"), ("b", "c", 7, "y"), ("b", "c", 8, "x"), ("b", "u", 7, "x"),
            ("a", "u", 1, "z"), ("a", "c", 3, "y"), ("a", "d", 1, "z"), ("b", "u", 8, "y")]  # fmt: skip
    for half in (told[:5], told[5:]):
        table = changes(*(each[1:] for each in half))
        names = pa.array([f"{place.schema}.{each[0]}" for each in half])
        place.write(None, table.append_column("table", names), **CHANGES)
    assert sorted(place.sql("SELECT * FROM {s}.a")) == [(2, "x"), (3, "y")]
    assert sorted(place.sql("SELECT * FROM {s}.b")) == [(7, "x"), (8, "y")]


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("small", [False, True], ids=["by tasks", "by the driver"])
def test_a_server_that_wants_a_key_of_every_table(
    mariadb_place: Place, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """As Galera and Group Replication do, and MySQL with sql_require_primary_key."""
    monkeypatch.setattr(driver_rows.DriverTurn, "takes", lambda turn, running: small)
    with LocalMySQL("mariadb", {"innodb_force_primary_key": "ON"}) as server:
        place = MySQLPlace(server)
        filled(place, NAME, [(1, "a"), (2, "b")])
        place.write("t", changes(("u", 1, "-"), ("u", 2, "a"), ("u", 1, "b")), **CHANGES)
        assert sorted(place.sql("SELECT * FROM {s}.t")) == [(1, "b"), (2, "a")]
        place.close()


def test_a_large_batch_has_longer_for_what_goes_ahead_of_it(
    my_either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes and more for a statement over all of its rows."""
    limits = []
    for name in ("bring", "fill_table"):
        method = getattr(MySQLDialect, name)

        def timed(it: Any, connection: Any, *more: Any, method: Any = method) -> None:
            limits.append(connection.patience._limit)
            method(it, connection, *more)

        monkeypatch.setattr(MySQLDialect, name, timed)
    filled(my_either, NAME, [(1, "a"), (2, "b")])
    my_either.write("t", changes(("u", 1, "-"), ("u", 2, "a"), ("u", 1, "b")), **CHANGES)
    assert set(limits) == {database.seconds_for(3)}


def test_what_the_source_could_not_do_is_refused_and_nothing_is_written(
    either_anywhere: Place,
) -> None:
    place = either_anywhere
    filled(place, NAME, [(1, "a"), (2, "b")])
    with pytest.raises(RowRefused) as refused:
        place.write("t", changes(("u", 2, "c"), ("u", 2, "a"), ("c", 3, "d")), **CHANGES)
    assert "'a'" in refused.value.message or "(a)" in refused.value.message
    assert sorted(place.sql("SELECT * FROM {s}.t")) == [(1, "a"), (2, "b")]


def test_without_an_order_the_error_says_to_give_one(anywhere: Place) -> None:
    place = anywhere
    filled(place, NAME, [(1, "a"), (2, "b")])
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["b", "a"]})
    with pytest.raises(RowRefused) as refused:
        place.write("t", rows, mode="upsert", key="id")
    assert "pass order_by=" in (refused.value.next_step or "")
    told = changes(("u", 1, "-"), ("u", 2, "a"), ("u", 1, "b")).drop_columns("op")
    place.write("t", told, mode="upsert", key="id", order_by="n")
    assert sorted(place.sql("SELECT * FROM {s}.t")) == [(1, "b"), (2, "a")]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mode": "upsert", "key": "id"},
        {"mode": "upsert", "key": "id", "order_by": "n"},
        CHANGES,
    ],
    ids=["append", "upsert", "upsert in order", "changes"],
)
def test_a_batch_without_rows_is_a_batch_like_any_other(
    either_anywhere: Place, settings: dict[str, Any]
) -> None:
    """As a filter leaves it, or Spark's own at the end of a window."""
    place = either_anywhere
    place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v varchar(9))")
    rows = changes(("c", 1, "a"))
    if settings.get("mode") != "changes":
        rows = rows.drop_columns("op")
    if "order_by" not in settings:
        rows = rows.drop_columns("n")
    for batch in (rows.slice(0, 0), rows, rows.slice(0, 0)):
        place.write("t", batch, **settings)
    assert place.sql("SELECT * FROM {s}.t") == [(1, "a")]
