"""Rows of one batch for parents and their children; and what a policy of a table hides."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from database_place import Place

from onceward.errors import ConfigurationError, RowRefused

CHANGES = {"mode": "changes", "key": "id", "order_by": "n"}


def family(place: Place, *tables: tuple[str, str]) -> None:
    """Tables, each with one that it refers to."""
    for name, parent in tables:
        place.sql(f"CREATE TABLE {{s}}.{name} (id bigint PRIMARY KEY, parent bigint)")
        if parent:
            place.sql(
                f"ALTER TABLE {{s}}.{name} ADD FOREIGN KEY (parent) REFERENCES {{s}}.{parent} (id)"
            )


def rows(place: Place, *told: tuple[Any, ...]) -> pa.Table:
    """``(table, id, parent)``, or with ``op`` behind it."""
    columns = list(zip(*told, strict=True))
    named = {
        "table": pa.array([f"{place.schema}.{name}" for name in columns[0]]),
        "id": pa.array(columns[1], pa.int64()),
        "parent": pa.array(columns[2], pa.int64()),
    }
    if len(columns) > 3:
        named |= {"op": pa.array(columns[3]), "n": pa.array(range(len(told)), pa.int64())}
    return pa.table(named)


def ids(place: Place, table: str) -> list[tuple[Any, ...]]:
    return sorted(place.sql(f"SELECT id, parent FROM {{s}}.{table}"))  # noqa: S608


@pytest.mark.parametrize(
    "names", [("orders", "linesof", "parts"), ("z", "m", "a"), ("a", "m", "z")], ids=str
)
def test_parents_are_written_before_their_children(
    either_anywhere: Place, names: tuple[str, str, str]
) -> None:
    first, second, third = names
    family(either_anywhere, (first, ""), (second, first), (third, second))
    told = [(third, 3, 2), (first, 1, None), (second, 2, 1), (third, 4, 2)]
    for order in (told, [told[2], told[0], told[3], told[1]]):
        either_anywhere.write(None, rows(either_anywhere, *order))
        assert [ids(either_anywhere, name) for name in names] == [
            [(1, None)],
            [(2, 1)],
            [(3, 2), (4, 2)],
        ]
        for name in reversed(names):
            either_anywhere.sql(f"DELETE FROM {{s}}.{name}")  # noqa: S608


def test_frames_for_parents_may_come_after_those_for_their_children(place: Place) -> None:
    family(place, ("p", ""), ("c", "p"))
    target = place.target(None)
    from onceward.engine.micro_batch import MicroBatches
    from onceward.engine.policy import SinkPolicy
    from onceward.engine.target import Write
    from onceward_testing.sink_contract import batch
    from support.tasks_here import ArrowFrame

    child, parent = (
        rows(place, told).drop_columns("table") for told in (("c", 2, 1), ("p", 1, None))
    )
    writes = [
        Write(ArrowFrame(child), f"{place.schema}.c"),
        Write(ArrowFrame(parent), f"{place.schema}.p"),
    ]  # type: ignore[arg-type]
    MicroBatches(target, SinkPolicy(place.pipeline, batch_attempts=1)).process(writes, batch(0))
    assert ids(place, "c") == [(2, 1)]


def test_children_are_deleted_before_their_parents(either_anywhere: Place) -> None:
    place = either_anywhere
    family(place, ("a", ""), ("b", "a"))
    place.write(
        None,
        rows(place, ("a", 1, None, "c"), ("a", 2, None, "c"), ("b", 3, 1, "c"), ("b", 4, 2, "c")),
        **CHANGES,
    )
    # in the source's order: a child is deleted, its parent too, another one comes with its parent
    place.write(
        None,
        rows(
            place, ("b", 3, None, "d"), ("a", 1, None, "d"), ("a", 5, None, "c"), ("b", 6, 5, "c")
        ),
        **CHANGES,
    )
    assert (ids(place, "a"), ids(place, "b")) == ([(2, None), (5, None)], [(4, 2), (6, 5)])
    # a child gets another parent, and its old one is deleted
    place.write(None, rows(place, ("b", 4, 5, "u"), ("a", 2, None, "d")), **CHANGES)
    assert (ids(place, "a"), ids(place, "b")) == ([(5, None)], [(4, 5), (6, 5)])
    # what was wrong at its source is wrong here
    with pytest.raises(RowRefused, match="foreign key"):
        place.write(None, rows(place, ("a", 5, None, "d")), **CHANGES)


def test_a_value_of_a_deleted_row_may_be_taken_by_a_new_one(either_anywhere: Place) -> None:
    place = either_anywhere
    family(place, ("a", ""), ("b", "a"))
    place.sql("CREATE UNIQUE INDEX once ON {s}.b (parent)")
    place.write(None, rows(place, ("a", 1, None, "c"), ("b", 3, 1, "c")), **CHANGES)
    place.write(
        None, rows(place, ("b", 3, None, "d"), ("b", 4, 1, "c"), ("a", 1, None, "u")), **CHANGES
    )
    assert ids(place, "b") == [(4, 1)]


@pytest.mark.parametrize("kind", [{}, CHANGES], ids=["append", "changes"])
def test_a_circle_is_written_if_a_key_is_deferrable(either: Place, kind: dict[str, Any]) -> None:
    family(either, ("a", ""), ("b", "a"))
    either.sql("ALTER TABLE {s}.a ADD CONSTRAINT back FOREIGN KEY (parent) REFERENCES {s}.b (id)")
    told: list[tuple[Any, ...]] = [("a", 1, 2), ("b", 2, 1)]
    if kind:
        told = [(*one, "c") for one in told]
    with pytest.raises(RowRefused, match=r"ALTER TABLE … ALTER CONSTRAINT … DEFERRABLE"):
        either.write(None, rows(either, *told), **kind)
    either.sql("ALTER TABLE {s}.a ALTER CONSTRAINT back DEFERRABLE")
    either.write(None, rows(either, *told), **kind)
    assert (ids(either, "a"), ids(either, "b")) == ([(1, 2)], [(2, 1)])


# policies


@pytest.fixture
def writer(either: Place) -> str:
    """A role that row-level security is for; the pipeline's login."""
    name = f"w_{either.schema[-10:]}"
    either.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'w'")
    either.sql(f"GRANT ALL ON SCHEMA {{s}} TO {name}")
    either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, tenant text)")
    either.sql("INSERT INTO {s}.t VALUES (1, 'a'), (2, 'b')")
    either.sql(f"GRANT ALL ON {{s}}.t TO {name}")
    either.sql("ALTER TABLE {s}.t ENABLE ROW LEVEL SECURITY")
    either.sql("CREATE POLICY own ON {s}.t USING (tenant = 'a')")
    said = urlsplit(either.server.url)
    either.url = f"postgresql://{name}:w@{said.hostname}:{said.port}/postgres"
    return name


DELETES = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "tenant": pa.array([None, None], pa.string()),
        "op": ["d", "d"],
        "n": pa.array([1, 2], pa.int64()),
    }
)


@pytest.mark.parametrize("then", ["policy", "role"])
def test_a_delete_of_a_row_that_a_policy_hides_is_no_success(
    either: Place, writer: str, then: str
) -> None:
    with pytest.raises(ConfigurationError, match="row-level security") as found:
        either.write("t", DELETES, **CHANGES)
    assert either.sql("SELECT count(*) FROM {s}.t") == [(2,)]
    if then == "policy":
        assert "CREATE POLICY … USING (true)" in found.value.next_step
        either.sql(f"CREATE POLICY all_of_it ON {{s}}.t TO {writer} USING (true)")
    else:
        assert "ALTER ROLE … BYPASSRLS" in found.value.next_step
        either.sql(f"ALTER ROLE {writer} BYPASSRLS")
    either.write("t", DELETES, **CHANGES)
    assert either.sql("SELECT count(*) FROM {s}.t") == [(0,)]


def test_a_policy_that_comes_in_mid_run_is_seen(either: Place, writer: str) -> None:
    either.sql(f"CREATE POLICY all_of_it ON {{s}}.t TO {writer} USING (true)")
    either.write("t", DELETES.slice(0, 1), **CHANGES)
    either.sql("CREATE POLICY but ON {s}.t AS RESTRICTIVE USING (tenant = 'a')")
    with pytest.raises(ConfigurationError, match="row-level security"):
        either.write("t", DELETES.slice(1), **CHANGES)
    assert either.sql("SELECT id FROM {s}.t") == [(2,)]


def test_a_row_that_a_policy_hides_is_not_replaced_without_a_word(
    either: Place, writer: str
) -> None:
    news = pa.table({"id": pa.array([2], pa.int64()), "tenant": ["a"]})
    with pytest.raises(Exception, match="row-level security"):
        either.write("t", news, mode="upsert", key="id")
    either.write("t", news.set_column(0, "id", pa.array([3], pa.int64())), mode="upsert", key="id")
    assert sorted(either.sql("SELECT * FROM {s}.t")) == [(1, "a"), (2, "b"), (3, "a")]


def test_another_client_sees_what_was_hidden(either: Place, writer: str) -> None:
    with psycopg.connect(either.url) as connection:
        assert connection.execute(f"SELECT id FROM {either.schema}.t").fetchall() == [(1,)]  # noqa: S608
