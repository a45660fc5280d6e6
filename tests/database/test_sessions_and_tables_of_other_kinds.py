"""Settings of a database, a role or a URL, and kinds of tables, under which rows could change or
vanish in silence.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from database_place import Place

import onceward as ow
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    OncewardError,
    RowRefused,
    ServerMisconfigured,
)
from onceward.sql.postgresql import staging
from onceward_testing.sink_contract import Process, batch
from support.tasks_here import ArrowFrame, forget_all

HOSTILE = {
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "TimeZone": "America/New_York",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "default_transaction_isolation": "serializable",
    "statement_timeout": "20s",
    "transaction_timeout": "20s",
}


@pytest.fixture
def hostile(either: Place) -> Iterator[Place]:
    """The role's own settings; the connections of workers are of before."""
    forget_all(staging.sessions)
    for name, value in HOSTILE.items():
        either.sql(f"ALTER ROLE postgres SET {name} = '{value}'")
    yield either
    either.sql("ALTER ROLE postgres RESET ALL")


def test_a_roles_settings_change_no_value(hostile: Place) -> None:
    hostile.sql(
        "CREATE TABLE {s}.t (text text, raw bytea, number bigint, day date, span interval, at "
        "timestamptz)"
    )
    moment = dt.datetime(2026, 7, 1, 1, 2, 3, tzinfo=dt.timezone.utc)
    frame = pa.table(
        {
            "text": pa.array(["Üé€", None, "NULL", ""], pa.string()),
            "raw": pa.array([b"\x00\xff\\", None, b"", b"'"], pa.binary()),
            "number": pa.array([1, None, 2, 3], pa.int64()),
            "day": pa.array([dt.date(2026, 2, 1), None, None, None], pa.date32()),
            "span": pa.array(["-1 02:03:04", None, None, None], pa.string()),
            "at": pa.array([moment, None, None, None], pa.timestamp("us", "UTC")),
        }
    )
    hostile.write("t", frame)
    hostile.sql("ALTER ROLE postgres RESET ALL")
    found = hostile.sql(
        "SELECT text, raw, number, day, span::text, at FROM {s}.t ORDER BY number NULLS LAST"
    )
    assert found == [
        ("Üé€", b"\x00\xff\\", 1, dt.date(2026, 2, 1), "-1 days +02:03:04", moment),
        ("NULL", b"", 2, None, None, None),
        ("", b"'", 3, None, None, None),
        (None, None, None, None, None, None),
    ]


def test_a_role_that_quotes_all_names_is_refused_by_name(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (value text)")
    place.sql("ALTER ROLE postgres SET quote_all_identifiers = on")
    try:
        with pytest.raises(ConfigurationError, match="quote_all_identifiers = on") as refused:
            place.write("t", pa.table({"value": ["x"]}))
    finally:
        place.sql("ALTER ROLE postgres RESET ALL")
    assert "ALTER ROLE … SET quote_all_identifiers = off" in refused.value.next_step
    place.sql("ALTER ROLE postgres SET quote_all_identifiers = off")
    place.write("t", pa.table({"value": ["x"]}))
    place.sql("ALTER ROLE postgres RESET ALL")
    assert place.sql("SELECT value FROM {s}.t") == [("x",)]


def keyed(*rows: tuple[Any, ...], names: str = "id value n op") -> pa.Table:
    columns = names.split()
    kinds = {"n": pa.int64(), "value": pa.string()}
    return pa.table(
        {
            name: pa.array([row[at] for row in rows], kinds.get(name))
            for at, name in enumerate(columns)
        }
    )


CHANGES = {"mode": "changes", "key": "id", "order_by": "n"}


@pytest.mark.parametrize(
    "kind",
    [
        "citext", "text COLLATE {s}.any_case", "varchar(9) COLLATE {s}.any_case", "interval",
        "jsonb",
    ],
)  # fmt: skip
def test_keys_with_an_equality_of_their_own_are_refused(place: Place, kind: str) -> None:
    """A delete of 'B' would leave 'b'; '30 days' would replace '1 month'."""
    place.sql(
        "CREATE COLLATION {s}.any_case (provider = icu, locale = 'und-u-ks-level2', deterministic "
        "= false)"
    )
    if kind == "citext":
        try:
            place.sql("CREATE EXTENSION IF NOT EXISTS citext")
        except Exception as error:  # noqa: BLE001 — the embedded server may lack it
            pytest.skip(str(error))
    place.sql(f"CREATE TABLE {{s}}.t (id {kind} PRIMARY KEY, value text)")
    errors = (InvalidColumn, ServerMisconfigured)
    with pytest.raises(errors, match=r"values that differ are the same|no unique index"):
        place.write("t", keyed(("b", "x", 1, "c")), **CHANGES)


@pytest.mark.parametrize("small", [False, True], ids=["by tasks", "by the driver"])
@pytest.mark.parametrize("mode", ["changes", "upsert"])
@pytest.mark.parametrize(("old", "new"), [("2", "2\t1"), ("v", "v ")], ids=["tab", "space"])
def test_a_text_comes_before_one_that_begins_with_it(
    anywhere: Place, small: bool, mode: str, old: str, new: str
) -> None:
    """To most collations of MySQL's, binary ones among them, spaces follow each text."""
    anywhere.small = small
    anywhere.sql("CREATE TABLE {s}.t (id int PRIMARY KEY, mail varchar(9) UNIQUE, at text)")
    rows = {"id": pa.array([1, 1], pa.int32()), "mail": ["old", "new"], "at": [old, new]}
    if mode == "changes":
        rows["op"] = ["c", "u"]
    anywhere.write("t", pa.table(rows), mode=mode, key="id", order_by="at")
    assert anywhere.sql("SELECT id, mail FROM {s}.t") == [(1, "new")]


@pytest.mark.parametrize("small", [False, True], ids=["by tasks", "by the driver"])
def test_texts_are_ordered_by_their_bytes_whatever_the_databases_language(
    place: Place, small: bool
) -> None:
    """Ids that grow byte by byte: to en-US a small letter is before its capital, and before Z."""
    name = f"shop_{place.schema}"
    place.sql(f"CREATE DATABASE {name} LOCALE_PROVIDER icu ICU_LOCALE 'en-US' TEMPLATE template0")
    shop = Place(SimpleNamespace(url=place.url.rpartition("/")[0] + f"/{name}"))  # type: ignore[arg-type]
    place.small = small
    rows: dict[str, Any] = {
        "id": pa.array([1, 1], pa.int32()),
        "op": ["c", "u"],
        "mail": ["old", "new"],
        "at": ["2QZZZ", "2Qaaa"],
    }
    try:
        shop.sql("CREATE TABLE {s}.t (id int PRIMARY KEY, mail text UNIQUE)")
        shop.write("t", pa.table(rows), mode="changes", key="id", order_by="at")
        assert shop.sql("SELECT * FROM {s}.t") == [(1, "new")]
        shop.write("t", pa.table({"id": pa.array([2], pa.int32()), "mail": ["two"]}))
        # values change places, by way of a third one
        moved = {
            "id": pa.array([1, 2, 1], pa.int32()),
            "op": ["u"] * 3,
            "mail": ["between", "new", "two"],
            "at": ["2QZZZ", "2Qaaa", "2Qaab"],
        }
        shop.write("t", pa.table(moved), mode="changes", key="id", order_by="at")
        assert shop.sql("SELECT * FROM {s}.t ORDER BY id") == [(1, "two"), (2, "new")]
    finally:
        shop.close()
        forget_all(staging.sessions)
        place.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("name", ["ledger", " ledger", '"ledger"', "onceward_x", ' "onceward_x"'])
def test_rows_cannot_name_the_sinks_own_tables_however_they_spell_them(
    either: Place, name: str
) -> None:
    either.sql("CREATE TABLE {s}.t (pipeline text)")
    either.write("t", pa.table({"pipeline": ["p"]}))
    either.sql("CREATE TABLE {s}.onceward_x (LIKE {s}.ledger)")
    forged = pa.table(
        {
            "pipeline": ["victim"],
            "owner": pa.array([99], pa.int64()),
            "sequence": pa.array([5], pa.int64()),
            "state": ["x"],
            "table": [f"{either.schema}.{name}"],
        }
    )
    with pytest.raises(ContradictoryOptions, match="the sink's own"):
        either.write(None, forged)
    assert either.sql("SELECT count(*) FROM {s}.ledger") == [(1,)]


def test_one_table_in_two_spellings_or_two_frames_has_no_order(either: Place) -> None:
    either.sql("CREATE TABLE {s}.k (id bigint PRIMARY KEY, n bigint)")
    two = keyed((1, 7, f"{either.schema}.k"), (1, 5, f'{either.schema}."k"'), names="id n table")
    with pytest.raises(RowRefused, match="in two parts"):
        either.write(None, two, mode="upsert", key="id", order_by="n")
    parts = [keyed((1, number), names="id n") for number in (7, 5)]
    with pytest.raises(RowRefused, match="in two parts"):
        either.write("k", *parts, mode="upsert", key="id", order_by="n")
    assert either.sql("TABLE {s}.k") == []


def test_tables_that_a_crash_empties_are_refused(place: Place) -> None:
    place.sql("CREATE UNLOGGED TABLE {s}.t (x bigint)")
    with pytest.raises(ConfigurationError, match="not logged"):
        place.write("t", pa.table({"x": [1]}))
    place.sql("CREATE TABLE {s}.u (x bigint)")
    place.write("u", pa.table({"x": [1]}))
    place.sql("ALTER TABLE {s}.ledger SET UNLOGGED")
    with pytest.raises(ConfigurationError, match=r"ledger.*not logged"):
        place.write("u", pa.table({"x": [2]}))
    with pytest.raises(ConfigurationError, match="not a usable name"):
        ow.DatabaseSink(
            url=place.postgres.url, table="t", pipeline_id="p", ledger_table="pg_temp.l"
        )


def test_a_partition_on_another_server_is_refused(place: Place) -> None:
    """It has a transaction of its own."""
    wrapper = f"elsewhere_{place.schema}"
    place.sql(f"CREATE FOREIGN DATA WRAPPER {wrapper}")
    place.sql(f"CREATE SERVER {wrapper} FOREIGN DATA WRAPPER {wrapper}")
    place.sql("CREATE TABLE {s}.t (x bigint) PARTITION BY LIST (x)")
    place.sql("CREATE TABLE {s}.here PARTITION OF {s}.t FOR VALUES IN (1)")
    place.write("t", pa.table({"x": [1]}))
    place.sql(
        f"CREATE FOREIGN TABLE {{s}}.there PARTITION OF {{s}}.t FOR VALUES IN (2) SERVER {wrapper}"
    )
    with pytest.raises(ConfigurationError, match="lies elsewhere"):
        place.write("t", pa.table({"x": [1]}))
    place.sql(f"DROP FOREIGN DATA WRAPPER {wrapper} CASCADE")


TRIGGER = (
    "CREATE FUNCTION {s}.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
    "CREATE TRIGGER keep BEFORE %s ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.keep()"
)


def test_what_a_table_does_not_carry_out_is_noticed(either: Place) -> None:
    either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, value text)")
    either.sql("INSERT INTO {s}.t VALUES (1, 'x')")
    either.sql(TRIGGER % "DELETE")
    with pytest.raises(RowRefused, match=r"1 rows of table .* are still there"):
        either.write("t", keyed((1, None, 1, "d")), **CHANGES)
    either.sql(
        "DROP TABLE {s}.t; DROP FUNCTION {s}.keep; CREATE TABLE {s}.t (id bigint PRIMARY KEY, "
        "value text)"
    )
    either.sql("INSERT INTO {s}.t VALUES (1, 'old'), (9, 'x')")
    either.sql(TRIGGER % "UPDATE")
    with pytest.raises(RowRefused, match=r"of 1 rows .* took 0"):
        either.write("t", keyed((1, "new", 1, "u"), (9, None, 2, "d")), **CHANGES)
    either.sql(
        "DROP TABLE {s}.t; DROP FUNCTION {s}.keep; CREATE TABLE {s}.t (id bigint PRIMARY KEY)"
    )
    either.write("t", keyed((1, 1), names="id n"), mode="upsert", key="id", order_by="n")
    either.write("t", keyed((1, 2), names="id n"), mode="upsert", key="id", order_by="n")
    either.sql(TRIGGER % "INSERT")
    with pytest.raises(RowRefused, match=r"of 2 rows .* took 0"):
        either.write(
            "t", keyed((1, 3), (2, 3), names="id n"), mode="upsert", key="id", order_by="n"
        )
    either.sql("CREATE TABLE {s}.r (x bigint)")
    either.sql("CREATE RULE away AS ON INSERT TO {s}.r DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match="INSTEAD"):
        either.write("r", pa.table({"x": [1]}))


def test_a_table_that_others_inherit_from_has_no_key(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, n bigint)")
    place.sql("CREATE TABLE {s}.child () INHERITS ({s}.t)")
    with pytest.raises(ServerMisconfigured, match="inherit"):
        place.write("t", keyed((1, 1), names="id n"), mode="upsert", key="id", order_by="n")


def listed(values: pa.Array) -> pa.Table:
    return pa.table(
        {"many": pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)}
    )


@pytest.mark.parametrize(
    ("kind", "number"),
    [(pa.date32(), -(2**31)), (pa.date32(), 2**31 - 1), (pa.timestamp("us"), -(2**63) + 1)],
    ids=str,
)
def test_a_moment_that_the_server_has_not_is_refused(
    place: Place, kind: pa.DataType, number: int
) -> None:
    """Its COPY would make infinity of it, or another day; and the worker's session is given up."""
    place.sql(f"CREATE TABLE {{s}}.t (x {'date' if pa.types.is_date(kind) else 'timestamp'})")
    whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
    moments = pa.array([number], whole).cast(kind)
    with pytest.raises(OncewardError, match="4713 BC"):
        place.write("t", pa.table({"x": moments}))
    place.sql(
        "ALTER TABLE {s}.t ADD COLUMN many "
        + ("date[]" if pa.types.is_date(kind) else "timestamp[]")
    )
    with pytest.raises(OncewardError, match="4713 BC"):
        place.write("t", listed(moments))
    assert place.staging() == []


def test_a_copy_that_fails_leaves_no_session_in_the_middle_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sql("CREATE TABLE {s}.t (x text)")
    monkeypatch.setattr(
        staging, "storable", lambda rows: rows
    )  # nobody looks at the values but the server
    with pytest.raises(RowRefused, match="0x00"):
        place.write("t", pa.table({"x": ["a\0"]}))
    assert staging.sessions.cached == {}
    assert place.staging() == []


def test_staging_is_found_however_the_ledger_is_spelled(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint)")
    dead = Process(place).open()  # type: ignore[arg-type]
    dead.write(ArrowFrame(pa.table({"x": [1]})))
    assert len(place.staging()) == 1
    settings = {"pipeline_id": place.pipeline, "table": f"{place.schema}.t"}
    url = f"{place.postgres.url}?options=-csearch_path%3D{place.schema}"
    sink = ow.DatabaseSink(url=url, ledger_table="ledger", **settings)
    heir = sink._new_target(sink.settings.policy)
    heir.open(batch(0))
    heir.close()
    assert place.staging() == []


def test_an_address_with_a_second_at_sign_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigurationError) as refused:
        ow.DatabaseSink(url="postgresql://shop:sec@ret@127.0.0.1:1/db", table="t", pipeline_id="p")
    assert "ret" not in str(refused.value).replace("return", "")


def test_what_a_table_defers_to_the_commit_is_checked_before_it(either: Place) -> None:
    either.sql("CREATE TABLE {s}.owner (id bigint PRIMARY KEY)")
    either.sql("CREATE TABLE {s}.t (id bigint REFERENCES {s}.owner DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(RowRefused, match="violates foreign key constraint"):
        either.write("t", pa.table({"id": pa.array([1], pa.int64())}), attempts=3)


def test_a_value_that_one_key_gives_up_another_may_take_later(either: Place) -> None:
    either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, value text UNIQUE)")
    either.sql("INSERT INTO {s}.t VALUES (2, 'x')")
    either.write("t", keyed((2, "y", 1, "u"), (1, "x", 2, "c")), **CHANGES)
    assert sorted(either.sql("TABLE {s}.t")) == [(1, "x"), (2, "y")]


def test_a_frame_that_has_nothing_to_write_and_a_key_that_is_not_written_are_refused(
    place: Place,
) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint)")
    with pytest.raises(InvalidColumn, match="no column for table"):
        place.write(None, pa.table({"table": [f"{place.schema}.t"]}))
    with pytest.raises(ContradictoryOptions, match="key="):
        place.sink("t", mode="changes", key=["id", "op"], order_by="n")


@pytest.mark.parametrize("xa", [False, True])
def test_a_partition_may_be_made_late_and_a_check_of_a_triggers_own_is_a_refusal(
    place: Place, xa: bool
) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint) PARTITION BY LIST (x)")
    place.sql("CREATE TABLE {s}.one PARTITION OF {s}.t FOR VALUES IN (1)")
    rows = pa.table({"x": [2]})
    with pytest.raises(ServerMisconfigured, match="no partition") as late:
        place.write("t", rows, xa=xa)
    assert "CREATE TABLE … PARTITION OF" in late.value.next_step
    place.sql("CREATE TABLE {s}.two PARTITION OF {s}.t FOR VALUES IN (2)")
    place.write("t", rows, xa=xa)
    assert place.sql("SELECT x FROM {s}.t") == [(2,)]
    place.sql(
        "CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'not that' USING ERRCODE = 'check_violation'; END$$"
    )
    place.sql(
        "CREATE TRIGGER no BEFORE INSERT ON {s}.one FOR EACH ROW EXECUTE FUNCTION {s}.refuse()"
    )
    with pytest.raises(RowRefused, match="not that"):
        place.write("t", pa.table({"x": [1]}), xa=xa)
