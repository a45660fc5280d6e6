"""I13: a batch's rows in tables of a database, read by another client."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from database_place import Place

from onceward.errors import (
    ContradictoryOptions,
    Fenced,
    InvalidColumn,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
    TableMissing,
)
from onceward.ids import TaskAttempt
from onceward.sql.postgresql import staging
from onceward.sql.postgresql.dialect import connection_words
from onceward_testing import LocalPostgres
from onceward_testing.sink_contract import Process, batch
from support.tasks_here import ArrowFrame, forget_all

UTC = dt.timezone.utc
MOMENT = dt.datetime(2026, 11, 22, 1, 2, 3, 456_789)

TYPES: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("flag", pa.bool_(), "boolean", [True, False, None]),
    ("tiny", pa.int8(), "smallint", [-128, 127, None]),
    ("tiny_wide", pa.int8(), "bigint", [-128, 127, None]),
    ("small", pa.int16(), "smallint", [-32_768, 32_767, None]),
    ("small_real", pa.int16(), "real", [-32_768, 32_767, None]),
    ("whole", pa.int32(), "integer", [-(2**31), 2**31 - 1, None]),
    ("whole_wide", pa.int32(), "bigint", [-(2**31), 2**31 - 1, None]),
    ("whole_double", pa.int32(), "double precision", [5, -7, None]),
    ("large", pa.int64(), "bigint", [-(2**63), 2**63 - 1, None]),
    ("large_numeric", pa.int64(), "numeric(19)", [-(2**63), 2**63 - 1, None]),
    ("single", pa.float32(), "real", [1.5, float("inf"), None]),
    ("single_wide", pa.float32(), "double precision", [1.5, float("-inf"), None]),
    ("double", pa.float64(), "double precision", [0.1, 5e-324, None]),
    (
        "price",
        pa.decimal128(10, 2),
        "numeric(10,2)",
        [Decimal("-12345678.90"), Decimal("0.01"), None],
    ),
    (
        "wide_price",
        pa.decimal128(38, 18),
        "numeric",
        [Decimal("12345678901234567890.123456789012345678"), None, None],
    ),
    ("count_price", pa.decimal128(9, 0), "integer", [Decimal(999_999_999), None, Decimal(-1)]),
    ("name", pa.string(), "text", ["", "Übermaß 😀 \\N \t\n\"'", None]),
    ("short_name", pa.string(), "varchar(5)", ["Maße ", "", None]),
    ("raw", pa.binary(), "bytea", [b"", bytes(range(256)), None]),
    ("day", pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    ("day_time", pa.date32(), "timestamp", [dt.date(2026, 1, 2), None, None]),
    ("moment", pa.timestamp("us", "UTC"), "timestamptz", [MOMENT.replace(tzinfo=UTC), None, None]),
    ("local", pa.timestamp("us"), "timestamp", [MOMENT, dt.datetime(1, 1, 1), None]),
    ("document", pa.string(), "jsonb", ['{"a": [1, null]}', "null", None]),
    ("text_document", pa.string(), "json", ['{"b": 1,  "a": 2}', None, None]),
    ("id", pa.string(), "uuid", ["3b6c0de1-0000-4000-8000-000000000001", None, None]),
    ("address", pa.string(), "inet", ["127.0.0.1/8", None, None]),
    ("at", pa.string(), "time", ["01:02:03.456789", None, None]),
    ("mood", pa.string(), "{s}.mood", ["glad", "sad", None]),
    ("amount", pa.decimal128(12, 2), "{s}.money_amount", [Decimal("1.10"), None, None]),
]
LISTS: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("numbers", pa.list_(pa.int64()), "bigint[]", [[1, 2], [], None]),
    ("names", pa.list_(pa.string()), "text[]", [["a", None], ["{}"], None]),
]


def expected(kind: str, value: Any) -> Any:
    """As psycopg gives it back."""
    if value is None:
        return None
    if kind in ("jsonb", "json"):
        return json.loads(value)
    if kind == "uuid":
        return uuid.UUID(value)
    if kind == "inet":
        return ipaddress.ip_interface(value)
    if kind == "time":
        return dt.time.fromisoformat(value)
    if kind == "timestamp" and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    return value


@pytest.mark.parametrize("lists", [False, True], ids=["", "with lists"])
def test_every_type_comes_back_as_it_was(either: Place, lists: bool) -> None:
    columns = TYPES + (LISTS if lists else [])
    either.sql("CREATE TYPE {s}.mood AS ENUM ('glad', 'sad')")
    either.sql("CREATE DOMAIN {s}.money_amount AS numeric(12,2) CHECK (value > 0)")
    listed = ", ".join(f'"{name}" {kind}' for name, _, kind, _ in columns)
    either.sql(f"CREATE TABLE {{s}}.t (number integer PRIMARY KEY, {listed})")
    table = pa.table(
        {
            "number": pa.array([0, 1, 2], pa.int32()),
            **{name: pa.array(values, kind) for name, kind, _, values in columns},
        }
    )
    assert either.write("t", table).records == 3
    found = either.sql("SELECT * FROM {s}.t ORDER BY number")
    for place, (name, _, kind, values) in enumerate(columns, start=1):
        assert [row[place] for row in found] == [expected(kind, value) for value in values], name
    assert either.staging() == []


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (
            pa.int64(),
            "double precision",
        ),  # the widths agree: a binary COPY would store 2.5e-323 for 5
        (pa.float64(), "bigint"),
        (pa.string(), "bigint"),
        (pa.int64(), "integer"),
        (pa.int64(), "numeric(10)"),
        (pa.float64(), "real"),
        (pa.float64(), "numeric"),  # fifteen digits of seventeen
        (pa.decimal128(10, 4), "numeric(10,2)"),  # would be rounded
        (pa.decimal128(10, 2), "numeric(9,2)"),
        (pa.decimal128(10, 0), "integer"),
        (pa.timestamp("us", "UTC"), "timestamp"),  # depends on the session's time zone
        (pa.timestamp("us"), "timestamptz"),
        (pa.timestamp("us"), "timestamp(3)"),  # would be rounded
        (pa.date32(), "timestamptz"),
        (pa.string(), "time(3)"),
        (pa.string(), "char(3)"),  # would be padded
        (pa.string(), "timetz"),  # depends on the session's time zone
        (pa.binary(), "text"),
        (pa.list_(pa.int32()), "bigint[]"),
        (pa.int32(), "integer[]"),
        (pa.bool_(), "integer"),
    ],
    ids=str,
)
def test_a_column_that_cannot_hold_every_value_is_named(
    place: Place, kind: pa.DataType, theirs: str
) -> None:
    place.sql(f"CREATE TABLE {{s}}.t (x {theirs})")
    with pytest.raises(InvalidColumn, match=r"'x'.*does not fit"):
        place.write("t", pa.table({"x": pa.array([None], kind)}))
    assert place.sql("SELECT count(*) FROM {s}.t") == [(0,)]


@pytest.mark.parametrize(
    ("columns", "frame", "named"),
    [
        ("x text", {"y": ["a"]}, "no column 'y'"),
        ("x text", {"X": ["a"]}, r"rename it to 'x'"),
        ("x text, y text NOT NULL", {"x": ["a"]}, "no column 'y', which"),
        (
            "x text, y text GENERATED ALWAYS AS (x || x) STORED",
            {"x": ["a"], "y": ["b"]},
            "'y'.*is generated",
        ),
        (
            "x text, y integer GENERATED ALWAYS AS IDENTITY",
            {"x": ["a"], "y": [1]},
            "'y'.*is generated",
        ),
    ],
)
@pytest.mark.fault("database-column-unfit")
def test_columns_that_do_not_meet_are_named(
    place: Place, columns: str, frame: dict[str, Any], named: str
) -> None:
    place.sql(f"CREATE TABLE {{s}}.t ({columns})")
    with pytest.raises(InvalidColumn, match=named):
        place.write("t", pa.table(frame))


def test_defaults_and_identities_are_the_servers(either: Place) -> None:
    either.sql(
        "CREATE TABLE {s}.t (n integer GENERATED ALWAYS AS IDENTITY, x text, y text NOT NULL "
        "DEFAULT 'd')"
    )
    either.write("t", pa.table({"x": ["a"]}))
    assert either.sql("SELECT * FROM {s}.t") == [(1, "a", "d")]


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (
            "varchar(3)",
            "abc ",
            "'x' has 4 characters",
        ),  # an assignment cuts spaces, and says nothing
        ("varchar(3)", "abcd", "'x' has 4 characters"),
        ("uuid", "no uuid", "invalid input syntax for type uuid"),
        ("jsonb", "{", "invalid input syntax for type json"),
        ("text CHECK (x <> 'no')", "no", "violates check constraint"),
        ("text", "a\0b", "character of code 0"),
    ],
)
@pytest.mark.fault("database-column-unfit")
def test_a_value_that_does_not_fit_stops_by_name(
    either: Place, kind: str, value: str, named: str
) -> None:
    either.sql(f"CREATE TABLE {{s}}.t (x {kind})")
    with pytest.raises(RowRefused, match=named):
        either.write(
            "t", pa.table({"x": ["ok" if "varchar" in kind else None, value]}), attempts=3
        )
    assert either.sql("SELECT count(*) FROM {s}.t") == [(0,)]
    assert either.staging() == []


def test_a_trigger_that_leaves_rows_out_is_not_believed(either: Place) -> None:
    either.sql("CREATE TABLE {s}.t (x text)")
    either.sql(
        "CREATE FUNCTION {s}.drop_it() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.x = 'b' THEN RETURN NULL; END IF; RETURN new; END $$"
    )
    either.sql(
        "CREATE TRIGGER t BEFORE INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.drop_it()"
    )
    with pytest.raises(RowRefused, match=r"of 2 rows .* took 1: a trigger"):
        either.write("t", pa.table({"x": ["a", "b"]}))
    assert either.sql("SELECT * FROM {s}.t") == []


# staging


@pytest.mark.fault("database-task-twice")
def test_a_task_that_ran_twice_counts_once(anywhere: Place) -> None:
    anywhere.sql("CREATE TABLE {s}.t (x bigint)")
    frame = ArrowFrame(pa.table({"x": list(range(10))}), again=[0, 1, 0])
    assert anywhere.write("t", frame).records == 10
    assert sorted(anywhere.sql("SELECT * FROM {s}.t")) == [(n,) for n in range(10)]


@pytest.mark.fault("database-staging-emptied")
def test_what_a_crash_of_the_server_empties_is_noticed(
    place: Place, before_the_move: Callable[[Callable[[], object]], None]
) -> None:
    """Staging tables are not logged."""
    place.sql("CREATE TABLE {s}.t (x bigint)")

    def empty() -> None:
        (name,) = place.staging()
        place.sql(f"TRUNCATE {{s}}.{name}")

    before_the_move(empty)
    with pytest.raises(SendFailed, match="of 3 staged rows 0 are left"):
        place.write("t", pa.table({"x": [1, 2, 3]}))
    assert place.sql("SELECT * FROM {s}.t") == []
    before_the_move(empty)
    place.write("t", pa.table({"x": [1, 2, 3]}), attempts=2)
    assert sorted(place.sql("SELECT * FROM {s}.t")) == [(1,), (2,), (3,)]
    assert place.staging() == []


@pytest.mark.fault("database-two-owners")
def test_an_older_copy_makes_no_staging_table_any_more(anywhere: Place) -> None:
    anywhere.sql("CREATE TABLE {s}.t (x bigint)")
    zombie = Process(anywhere).open()  # type: ignore[arg-type]
    zombie.begin()
    Process(anywhere).open()  # type: ignore[arg-type]
    with pytest.raises(Fenced):
        zombie.attempt._run.create_staging("onceward_staging_late", {"x": "bigint"})  # type: ignore[attr-defined]
    assert anywhere.staging() == []


@pytest.mark.fault("database-staging-left")
def test_what_a_crash_left_is_dropped_by_the_next_start_and_nothing_else(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint)")
    dead = Process(place).open()  # type: ignore[arg-type]
    dead.write(ArrowFrame(pa.table({"x": [1]})))
    (left,) = place.staging()
    other = "onceward_staging_0123456789abcdef_1_1_0"
    place.sql(f"CREATE TABLE {{s}}.{other} ()")
    Process(place).open()  # type: ignore[arg-type]
    assert place.staging() == [other]
    with pytest.raises(SendFailed, match=left):
        late_task(dead, left)


@pytest.mark.fault("database-two-owners")
def test_an_older_copy_drops_nothing_of_its_heirs(
    anywhere: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the chain, and stands still before it drops what is left."""
    anywhere.sql("CREATE TABLE {s}.t (x bigint)")
    zombie, heir = anywhere.target("t"), Process(anywhere)  # type: ignore[arg-type]
    drop = zombie.run.drop_what_is_left

    def and_stand_still() -> None:
        heir.open().stage(ArrowFrame(pa.table({"x": [1]})))
        heir.attempt._run.chain.abort()  # type: ignore[attr-defined]
        drop()

    monkeypatch.setattr(zombie.run, "drop_what_is_left", and_stand_still)
    with pytest.raises(Fenced):
        zombie.open(batch(0))
    heir.stage_what_is_written()
    heir.attempt.commit()
    assert anywhere.sql("SELECT * FROM {s}.t") == [(1,)]


def late_task(dead: Process, table: str) -> None:
    """Of an executor that was stopped all the while."""
    run = dead.attempt._run  # type: ignore[attr-defined]
    with run.chain.session() as connection:
        words = connection_words(connection)
    writer = staging.OpenStagingWriter(words, run.schema, table)(TaskAttempt(0, 0, 7))
    writer.write(pa.record_batch({"x": pa.array([1])}))
    writer.pre_commit()


def test_a_worker_keeps_its_connection_and_replaces_one_that_broke(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint)")
    place.write("t", pa.table({"x": [1, 2]}))
    (kept,) = staging.sessions.cached.values()
    place.write("t", pa.table({"x": [3, 4]}))
    assert list(staging.sessions.cached.values()) == [kept]
    place.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
        "'onceward'"
    )
    place.write("t", pa.table({"x": [5, 6]}))
    assert list(staging.sessions.cached.values()) != [kept]
    assert sorted(place.sql("SELECT * FROM {s}.t")) == [(n,) for n in range(1, 7)]


@dataclass
class _ElsewhereFrame(ArrowFrame):
    """Its tasks run where the driver's password file is not."""

    file: Path = Path()

    def part(self, number: int) -> Iterator[pa.RecordBatch]:
        self.file.unlink(missing_ok=True)
        forget_all(staging.sessions)
        yield from super().part(number)


def test_a_password_of_the_drivers_file_goes_to_the_tasks(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint)")
    url = urlsplit(place.url)
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:*:{url.password}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    place.url = place.url.replace(f":{url.password}@", "@")
    place.write("t", _ElsewhereFrame(pa.table({"x": [1, 2]}), file=file))
    assert sorted(place.sql("SELECT * FROM {s}.t")) == [(1,), (2,)]


# upsert and changes


def ids(*rows: tuple[Any, ...], names: str = "id value n") -> pa.Table:
    columns = names.split()
    kinds = {
        "id": pa.int32(),
        "value": pa.string(),
        "n": pa.int64(),
        "op": pa.string(),
        "table": pa.string(),
    }
    return pa.table(
        {name: pa.array([row[at] for row in rows], kinds[name]) for at, name in enumerate(columns)}
    )


def test_upsert_adds_or_replaces_and_leaves_other_columns(either_anywhere: Place) -> None:
    either_anywhere.sql(
        "CREATE TABLE {s}.t (id bigint PRIMARY KEY, value text, kept varchar(9) DEFAULT 'k')"
    )
    either_anywhere.sql("INSERT INTO {s}.t VALUES (1, 'old', 'mine'), (9, 'nine', 'mine')")
    either_anywhere.write(
        "t", ids((1, "new", 1), (2, "two", 1)), mode="upsert", key="id", order_by="n"
    )
    assert either_anywhere.sql("SELECT * FROM {s}.t ORDER BY id") == [
        (1, "new", "mine"),
        (2, "two", "k"),
        (9, "nine", "mine"),
    ]


def test_the_last_of_a_key_stays(either_anywhere: Place) -> None:
    either_anywhere.sql("CREATE TABLE {s}.t (id integer PRIMARY KEY, value text, n bigint)")
    rows = [(k, f"{k}-{n}", n) for n in (3, 7, 5) for k in range(4)]
    either_anywhere.write("t", ids(*rows), mode="upsert", key=["id"], order_by=["n"])
    assert either_anywhere.sql("SELECT * FROM {s}.t ORDER BY id") == [
        (k, f"{k}-7", 7) for k in range(4)
    ]


@pytest.mark.parametrize(
    ("rows", "order_by", "named"),
    [
        ([(1, "a", 1), (1, "b", 2)], None, "pass order_by="),
        ([(1, "a", 2), (1, "b", 2), (2, "c", 1)], "n", "must tell rows of one key apart"),
        ([(None, "a", 1)], "n", "have no key: null in id"),
    ],
)
def test_which_row_stays_is_never_chance(
    either_anywhere: Place, rows: Any, order_by: str | None, named: str
) -> None:
    either_anywhere.sql("CREATE TABLE {s}.t (id integer PRIMARY KEY, value text, n bigint)")
    with pytest.raises(RowRefused, match=named):
        either_anywhere.write("t", ids(*rows), mode="upsert", key="id", order_by=order_by)
    assert either_anywhere.sql("SELECT * FROM {s}.t") == []


def test_keys_that_are_the_same_to_the_table_are_the_same(either: Place) -> None:
    """Spelled in another way."""
    either.sql("CREATE TABLE {s}.t (value uuid PRIMARY KEY, n bigint)")
    one = "3b6c0de1-0000-4000-8000-00000000000a"
    frame = ids((1, one, 1), (1, one.upper(), 2)).drop_columns(["id"])
    either.write("t", frame, mode="upsert", key="value", order_by="n")
    assert [n for _, n in either.sql("SELECT * FROM {s}.t")] == [2]


def test_changes_are_applied_in_order_per_key(either_anywhere: Place) -> None:
    either_anywhere.sql("CREATE TABLE {s}.t (id integer PRIMARY KEY, value varchar(20) UNIQUE)")
    either_anywhere.sql("INSERT INTO {s}.t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    changes = [
        (1, "uno", 1, "u"),
        (2, None, 2, "d"),
        (3, None, 3, "delete"),
        (3, "two", 4, "c"),  # what the deleted row had
        (4, "four", 5, "insert"),
        (4, None, 6, "d"),
        (5, "five", 7, "r"),
        (6, None, 8, "d"),
    ]
    settings = {"mode": "changes", "key": "id", "order_by": "n"}
    either_anywhere.write("t", ids(*changes, names="id value n op"), **settings)
    assert either_anywhere.sql("SELECT * FROM {s}.t ORDER BY id") == [
        (1, "uno"),
        (3, "two"),
        (5, "five"),
    ]
    with pytest.raises(RowRefused, match="value in column 'op'"):
        either_anywhere.write("t", ids((1, "x", 1, "truncate"), names="id value n op"), **settings)
    with pytest.raises(RowRefused, match="value in column 'op'"):
        either_anywhere.write("t", ids((1, "x", 1, None), names="id value n op"), **settings)


@pytest.mark.parametrize(
    ("columns", "key", "named"),
    [
        ("id integer NOT NULL, value text", "id", "no unique index"),
        ("id integer UNIQUE, value text", "id", "'id'.*may be null"),
        ("id integer, value text, PRIMARY KEY (id, value)", "id", "no unique index"),
        ("id integer PRIMARY KEY DEFERRABLE, value text", "id", "no unique index"),
    ],
)
def test_a_key_that_the_table_has_not_is_named_before_anybody_is_fenced(
    place: Place, columns: str, key: str, named: str
) -> None:
    place.sql(f"CREATE TABLE {{s}}.t ({columns})")
    target = place.target("t", mode="upsert", key=key)
    with pytest.raises(ServerMisconfigured, match=named):
        target.open(batch(0))
    assert target.peek() is None
    assert place.sql("SELECT to_regclass(%s)", f"{place.schema}.ledger") == [(None,)]


def test_a_table_that_is_missing_or_none_is_named_before_anybody_is_fenced(place: Place) -> None:
    place.sql("CREATE VIEW {s}.v AS SELECT 1 AS x")
    for name, what in (("nowhere", "does not exist"), ("v", "is no table")):
        with pytest.raises(TableMissing, match=what):
            place.target(name).open(batch(0))
    assert place.sql("SELECT to_regclass(%s)", f"{place.schema}.ledger") == [(None,)]


# several tables


def test_rows_name_their_tables_and_all_become_true_at_once(either_anywhere: Place) -> None:
    for name in ("a", "b"):
        either_anywhere.sql(f"CREATE TABLE {{s}}.{name} (id integer, value text)")
    rows = ids(
        *[(n, f"{n}", f"{either_anywhere.schema}.{'ab'[n % 2]}") for n in range(10)],
        names="id value table",
    )
    record = either_anywhere.write(None, rows)
    assert {name.split(".")[1]: output.records for name, output in record.outputs.items()} == {
        "a": 5,
        "b": 5,
    }
    assert sorted(either_anywhere.sql("SELECT id FROM {s}.b")) == [(n,) for n in range(1, 10, 2)]
    bad = ids(
        (1, "x", f"{either_anywhere.schema}.a"),
        (2, "y", f"{either_anywhere.schema}.c"),
        names="id value table",
    )
    with pytest.raises(TableMissing, match=r"\.c does not exist"):
        either_anywhere.write(None, bad)
    assert len(either_anywhere.sql("SELECT * FROM {s}.a")) == 5
    with pytest.raises(InvalidColumn, match="'table' is null or empty in 1 rows"):
        either_anywhere.write(None, ids((1, "x", None), names="id value table"))


@pytest.mark.parametrize(
    "name", ["ledger", "ledger_batches", "onceward_ledger", '"onceward_staging_x"']
)
def test_rows_do_not_reach_the_ledger(place: Place, name: str) -> None:
    place.sql("CREATE TABLE {s}.t (id integer, value text)")
    place.write("t", ids((1, "x"), names="id value"))
    place.sql("CREATE TABLE {s}.onceward_ledger (id integer, value text)")
    place.sql("CREATE TABLE {s}.onceward_staging_x (id integer, value text)")
    with pytest.raises((ContradictoryOptions, InvalidColumn)):
        place.write(None, ids((1, "x", f"{place.schema}.{name}"), names="id value table"))


def test_names_are_quoted(either: Place) -> None:
    odd = 'a "b"; -- %s é'
    quoted = '"' + odd.replace('"', '""') + '"'
    either.sql(
        f"CREATE TABLE {{s}}.{quoted} ({quoted} text PRIMARY KEY, n bigint)".replace("%", "%")
    )
    frame = pa.table({odd: ["x"], "n": pa.array([1], pa.int64())})
    either.write(quoted, frame)
    either.write(
        quoted,
        pa.table({odd: ["x"], "n": pa.array([2], pa.int64())}),
        mode="upsert",
        key=odd,
        order_by="n",
    )
    assert either.sql(f"TABLE {{s}}.{quoted}") == [("x", 2)]


# a table that changes


@pytest.mark.fault("database-table-changes")
def test_a_table_that_changes_after_the_look_is_looked_at_again(
    place: Place, before_the_move: Callable[[Callable[[], object]], None]
) -> None:
    place.sql("CREATE TABLE {s}.t (x numeric(10,4))")
    before_the_move(lambda: place.sql("ALTER TABLE {s}.t ALTER x TYPE numeric(10,2)"))
    with pytest.raises(InvalidColumn, match="'x' does not fit"):
        place.write("t", pa.table({"x": pa.array([Decimal("1.2345")], pa.decimal128(10, 4))}))
    assert place.sql("SELECT * FROM {s}.t") == []


def test_a_delete_takes_no_other_rows_of_the_batch_along(anywhere: Place) -> None:
    """In the stream's order row 2 has left its parent before that is deleted. If it has not,
    somebody has to say so.
    """
    cascade = "REFERENCES {s}.t(id) ON DELETE CASCADE"
    anywhere.sql(
        f"CREATE TABLE {{s}}.t (id bigint PRIMARY KEY, parent bigint, FOREIGN KEY (parent) "
        f"{cascade})"
    )
    anywhere.sql(
        f"CREATE TABLE {{s}}.items (item bigint, node bigint, FOREIGN KEY (node) {cascade})"
    )
    anywhere.sql("INSERT INTO {s}.t VALUES (1, NULL), (3, NULL)")
    anywhere.sql("INSERT INTO {s}.t VALUES (2, 1)")
    anywhere.sql("INSERT INTO {s}.items VALUES (10, 2)")
    rows = pa.table({"id": [2, 1], "parent": [3, None], "n": [1, 2], "op": ["u", "d"]})
    anywhere.write("t", rows, mode="changes", key="id", order_by="n")
    assert sorted(anywhere.sql("SELECT id, parent FROM {s}.t")) == [(2, 3), (3, None)]
    rows = pa.table({"id": [2, 3], "parent": [3, None], "n": [1, 2], "op": ["u", "d"]})
    with pytest.raises(RowRefused, match="CASCADE"):
        anywhere.write("t", rows, mode="changes", key="id", order_by="n")
    assert anywhere.sql("SELECT item FROM {s}.items") == [(10,)]


def test_what_stands_beside_the_key_of_a_delete_need_not_fit(either_anywhere: Place) -> None:
    place = either_anywhere
    kind = "time" if isinstance(place.server, LocalPostgres) else "varchar(8)"
    place.sql(f"CREATE TABLE {{s}}.t (id bigint PRIMARY KEY, a varchar(3), b {kind})")
    changes = {
        "op": ["c", "c", "d"],
        "id": [1, 2, 1],
        "a": ["abc", "abc", "longer"],
        "b": ["10:00:00", "10:00:00", "yesterday"],
        "n": [1, 2, 3],
    }
    table = pa.table(changes)
    place.write("t", table.slice(0, 2), mode="changes", key="id", order_by="n")
    place.write("t", table.slice(2), mode="changes", key="id", order_by="n")
    assert place.sql("SELECT id, a FROM {s}.t") == [(2, "abc")]
    for name in "ab":
        kept = pa.table({"op": ["u"], "id": [2], name: [changes[name][2]], "n": [4]})
        with pytest.raises(RowRefused):
            place.write("t", kept, mode="changes", key="id", order_by="n")
