"""What only MySQL and MariaDB do with a batch's rows, and must not: looked at by another
client.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from database_place import Place

from onceward.engine.target import Write
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
    TableMissing,
)
from onceward.ids import TaskAttempt
from onceward.sql.ledger.mysql import MySQLSession
from onceward.sql.mysql import dialect, staging
from onceward.sql.sink import attempt
from onceward_testing.sink_contract import Process, batch
from support.mysql_client import transact_at, transaction_at
from support.tasks_here import ArrowFrame, forget_all

UTC = dt.timezone.utc
MOMENT = dt.datetime(2026, 11, 22, 1, 2, 3, 456_789)

TYPES: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("flag", pa.bool_(), "boolean", [True, False, None]),
    ("tiny", pa.int8(), "tinyint", [-128, 127, None]),
    ("tiny_wide", pa.int8(), "bigint", [-128, 127, None]),
    ("small", pa.int16(), "smallint", [-32_768, 32_767, None]),
    ("medium", pa.int16(), "mediumint", [-32_768, 32_767, None]),
    ("whole", pa.int32(), "int", [-(2**31), 2**31 - 1, None]),
    ("whole_double", pa.int32(), "double", [5, -7, None]),
    ("large", pa.int64(), "bigint", [-(2**63), 2**63 - 1, None]),
    ("large_unsigned", pa.int64(), "bigint unsigned", [0, 2**63 - 1, None]),
    ("large_decimal", pa.int64(), "decimal(19)", [-(2**63), 2**63 - 1, None]),
    ("double", pa.float64(), "double", [0.1, 5e-324, -1.7976931348623157e308]),
    ("single_wide", pa.float32(), "double", [1.5, 16_777_216.0, None]),
    (
        "price",
        pa.decimal128(10, 2),
        "decimal(10,2)",
        [Decimal("-12345678.90"), Decimal("0.01"), None],
    ),
    (
        "tiny_price",
        pa.decimal128(38, 18),
        "decimal(40,20)",
        [Decimal("1E-18"), Decimal("-12345678901234567890"), None],
    ),
    ("count_price", pa.decimal128(9, 0), "int", [Decimal(999_999_999), None, Decimal(-1)]),
    ("name", pa.string(), "text", ["", "Übermaß 😀 \\N \t\r\n\"'\0 \\", None]),
    ("null_name", pa.string(), "text", ["NULL", "\\N", "N"]),
    ("short_name", pa.string(), "varchar(5)", ["Maße ", "", None]),
    ("raw", pa.binary(), "longblob", [b"", bytes(range(256)), None]),
    ("short_raw", pa.binary(), "varbinary(5)", [b"\\\0\t\n ", b"", None]),
    ("day", pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    ("day_time", pa.date32(), "datetime", [dt.date(2026, 1, 2), None, None]),
    (
        "moment",
        pa.timestamp("us", "UTC"),
        "timestamp(6) NULL",
        [MOMENT.replace(tzinfo=UTC), None, None],
    ),
    ("local", pa.timestamp("us"), "datetime(6)", [MOMENT, dt.datetime(1, 1, 1), None]),
    ("mood", pa.string(), "enum('glad','so, ''so''','1')", ["glad", "so, 'so'", "1"]),
    ("SIZE", pa.string(), "enum('Small','c:\\\\t','A\\nb')", ["Small", "c:\\t", "A\nb"]),
]


def expected(kind: str, value: Any) -> Any:
    """As PyMySQL gives it back."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if kind == "datetime" and isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)
    return value


def test_every_type_comes_back_as_it_was(my_either: Place) -> None:
    listed = ", ".join(f"`{name}` {kind}" for name, _, kind, _ in TYPES)
    my_either.sql(
        f"CREATE TABLE {{s}}.t (number integer PRIMARY KEY, {listed}, document json) CHARACTER "
        f"SET utf8mb4"
    )
    table = pa.table(
        {
            "number": pa.array([0, 1, 2], pa.int32()),
            **{name: pa.array(values, kind) for name, kind, _, values in TYPES},
            "document": pa.array(['{"a": [1, null, "\\u00e9"]}', "null", None], pa.string()),
        }
    )
    assert my_either.write("t", table).records == 3
    found = my_either.sql("SELECT * FROM {s}.t ORDER BY number")
    for place, (name, _, kind, values) in enumerate(TYPES, start=1):
        assert [row[place] for row in found] == [expected(kind, value) for value in values], name
    documents = [row[-1] for row in found]
    assert [text and json.loads(text) for text in documents] == [{"a": [1, None, "é"]}, None, None]
    assert my_either.staging() == []


def test_floats_come_back_as_they_were(my_either: Place) -> None:
    my_either.sql("CREATE TABLE {s}.t (x float)")
    values = [0.1, 16_777_217.0, 1.401298464324817e-45, 3.4028234663852886e38, -7.038531e-26]
    my_either.write("t", pa.table({"x": pa.array(values, pa.float32())}))
    found = (
        {value for (value,) in my_either.sql("SELECT CAST(x AS DOUBLE) FROM {s}.t")}
        if _casts(my_either)
        else {value for (value,) in my_either.sql("SELECT x + 0e0 FROM {s}.t")}
    )
    assert found == set(pa.array(values, pa.float32()).cast(pa.float64()).to_pylist())


def _casts(place: Place) -> bool:
    return "MariaDB" in place.sql("SELECT version()")[0][0]


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (pa.string(), "bigint"),
        (pa.int64(), "int"),
        (pa.int64(), "int unsigned"),
        (pa.int64(), "double"),
        (pa.int64(), "decimal(10)"),
        (pa.int32(), "float"),
        (pa.float64(), "float"),
        (pa.float64(), "double(10,2)"),  # would be rounded
        (pa.float64(), "decimal(10,2)"),
        (pa.decimal128(10, 4), "decimal(10,2)"),
        (pa.decimal128(10, 0), "int"),
        (pa.timestamp("us", "UTC"), "datetime(6)"),  # has no time zone
        (pa.timestamp("us", "UTC"), "timestamp(3)"),  # would be rounded
        (pa.timestamp("us"), "timestamp(6)"),
        (pa.timestamp("us"), "datetime"),
        (pa.date32(), "timestamp"),
        (pa.string(), "char(3)"),  # would lose its spaces
        (pa.string(), "time"),
        (pa.string(), "set('a','b')"),
        (pa.string(), "varbinary(9)"),
        (pa.binary(), "binary(3)"),  # would be padded
        (pa.binary(), "text"),
        (pa.bool_(), "bit(1)"),
    ],
    ids=str,
)
@pytest.mark.fault("database-column-unfit")
def test_a_column_that_cannot_hold_every_value_is_named(
    mysql_place: Place, kind: pa.DataType, theirs: str
) -> None:
    mysql_place.sql(f"CREATE TABLE {{s}}.t (x {theirs} NULL)")
    with pytest.raises(InvalidColumn, match=r"'x'.*does not fit"):
        mysql_place.write("t", pa.table({"x": pa.array([None], kind)}))
    assert mysql_place.sql("SELECT count(*) FROM {s}.t") == [(0,)]


@pytest.mark.parametrize(
    ("kind", "named"),
    [(pa.list_(pa.int32()), "array<int>"), (pa.decimal128(38, 31), r"decimal\(38,31\)")],
    ids=str,
)
def test_a_type_that_no_table_has_is_named(
    mysql_place: Place, kind: pa.DataType, named: str
) -> None:
    mysql_place.sql("CREATE TABLE {s}.t (x json)")
    with pytest.raises(InvalidColumn, match=named):
        mysql_place.write("t", pa.table({"x": pa.array([None], kind)}))


@pytest.mark.parametrize(
    ("columns", "frame", "named"),
    [
        ("x int", {"y": [1]}, "no column 'y'"),
        ("x int, y int NOT NULL", {"x": pa.array([1], pa.int32())}, "no column 'y', which"),
        ("x int, y int AS (x + 1) STORED", {"y": pa.array([1], pa.int32())}, "'y'.*is generated"),
        ("x int, y int AS (x + 1) VIRTUAL", {"y": pa.array([1], pa.int32())}, "'y'.*is generated"),
    ],
)
def test_columns_that_do_not_meet_are_named(
    my_place: Place, columns: str, frame: Any, named: str
) -> None:
    my_place.sql(f"CREATE TABLE {{s}}.t ({columns})")
    with pytest.raises(InvalidColumn, match=named):
        my_place.write("t", pa.table(frame))


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("x varchar(3)", "abc ", "'x' has 4 characters"),  # is cut, with a note
        ("x varchar(3)", "abcd", "'x' has 4 characters"),
        ("x tinytext", "a" * 256, "'x' has 256 bytes"),  # would become an empty one
        ("x tinytext", "ü" * 128, "'x' has 256 bytes"),
        ("x text", "a" * 65_537, "'x' has 65537 bytes"),  # would become one letter
        ("x json", "{", "[Ii]nvalid JSON|CONSTRAINT"),
        ("x varchar(9) NOT NULL", None, "cannot be null"),
        ("x enum('a','b')", "1", "none of its labels"),  # would become 'a'
        ("x enum('a','b')", "A", "none of its labels"),  # would become 'a'
        ("x enum('a','b')", "", "none of its labels"),
        ("x enum('a','Small')", "small", "none of its labels: 'a', 'Small'"),
        (
            "x varchar(9) CHARACTER SET latin1",
            "😀",
            "set latin1 has not|Cannot convert",
        ),  # would become ?
        ("x varchar(9) CHARACTER SET utf8", "😀", "set utf8mb3 has not|Cannot convert"),
        ("x varchar(9) UNIQUE", "ok", "Duplicate entry"),  # LOCAL leaves it out
    ],
)
@pytest.mark.fault("database-column-unfit")
def test_a_text_that_does_not_fit_stops_by_name(
    my_either: Place, column: str, value: str | None, named: str
) -> None:
    my_either.sql(f"CREATE TABLE {{s}}.t ({column}) CHARACTER SET utf8mb4")
    known = "{}" if "json" in column else "a" if "enum" in column else "ok"
    with pytest.raises(RowRefused, match=named):
        my_either.write("t", pa.table({"x": pa.array([known, value], pa.string())}), attempts=3)
    assert my_either.sql("SELECT count(*) FROM {s}.t") == [(0,)]
    assert my_either.staging() == []


@pytest.mark.parametrize(
    ("column", "kind", "value", "named"),
    [
        ("x bigint unsigned", pa.int64(), -1, "Out of range"),
        ("x double", pa.float64(), float("nan"), "infinity or NaN"),
        ("x float", pa.float32(), float("-inf"), "infinity or NaN"),
        (
            "x timestamp(6) NULL",
            pa.timestamp("us", "UTC"),
            dt.datetime(2039, 1, 1, tzinfo=UTC),
            "Incorrect datetime",
        ),
        (
            "x timestamp(6) NULL",
            pa.timestamp("us", "UTC"),
            dt.datetime(1970, 1, 1, tzinfo=UTC),
            "Incorrect datetime",
        ),
        (
            "x int NOT NULL AUTO_INCREMENT PRIMARY KEY",
            pa.int32(),
            None,
            "null in column 'x'",
        ),  # would be counted on
        (
            "x timestamp(6) NOT NULL",
            pa.timestamp("us", "UTC"),
            None,
            "null in column 'x'",
        ),  # may become this moment
    ],
)
def test_a_value_that_does_not_fit_stops_by_name(
    my_either: Place, column: str, kind: pa.DataType, value: Any, named: str
) -> None:
    my_either.sql(f"CREATE TABLE {{s}}.t ({column})")
    with pytest.raises(RowRefused, match=named):
        my_either.write("t", pa.table({"x": pa.array([value], kind)}), attempts=3)
    assert my_either.sql("SELECT count(*) FROM {s}.t") == [(0,)]


@pytest.mark.parametrize(
    ("theirs", "most"), [("tinyblob", 255), ("blob", 65_535), ("varbinary(3)", 3)]
)
def test_bytes_that_are_too_many_stop_by_name(my_either: Place, theirs: str, most: int) -> None:
    """A copy from one kind of blob to another keeps but the last digits of the length."""
    my_either.sql(f"CREATE TABLE {{s}}.t (x {theirs})")
    with pytest.raises(RowRefused, match=f"'x' has {most + 1} bytes"):
        my_either.write("t", pa.table({"x": pa.array([b"x" * (most + 1)], pa.binary())}))
    my_either.write("t", pa.table({"x": pa.array([b"x" * most], pa.binary())}))
    assert my_either.sql("SELECT OCTET_LENGTH(x) FROM {s}.t") == [(most,)]


def test_moments_at_the_ends_of_the_servers_time(my_either: Place) -> None:
    my_either.sql("CREATE TABLE {s}.t (x timestamp(6) NULL)")
    ends = [
        dt.datetime(1970, 1, 1, 0, 0, 1),
        dt.datetime(2038, 1, 19, 3, 14, 7),
        dt.datetime(2026, 3, 29, 1, 30),
    ]
    my_either.write("t", pa.table({"x": pa.array(ends, pa.timestamp("us", "UTC"))}))
    assert {x for (x,) in my_either.sql("SELECT x FROM {s}.t")} == set(ends)


@pytest.mark.parametrize("number", [-(2**31), 2**31 - 1])
def test_a_day_that_the_server_has_not_is_refused(mysql_place: Place, number: int) -> None:
    mysql_place.sql("CREATE TABLE {s}.t (x date)")
    with pytest.raises(RowRefused, match="the year 1 or after the year 9999"):
        mysql_place.write("t", pa.table({"x": pa.array([number], pa.int32()).cast(pa.date32())}))


def test_bytes_that_are_no_text_are_refused(my_either: Place) -> None:
    my_either.sql("CREATE TABLE {s}.t (x text) CHARACTER SET utf8mb4")
    odd = pa.array([b"ok", b"\xff\xfe"], pa.binary()).view(pa.string())
    with pytest.raises(RowRefused, match=r"Incorrect string value|Invalid utf8mb4"):
        my_either.write("t", pa.table({"x": odd}))
    assert my_either.sql("SELECT count(*) FROM {s}.t") == [(0,)]


def test_a_zero_stays_a_zero_where_numbers_are_counted(my_either: Place) -> None:
    """Else the server takes it for "the next one"."""
    my_either.sql("CREATE TABLE {s}.t (x int NOT NULL AUTO_INCREMENT PRIMARY KEY, y int)")
    my_either.write(
        "t", pa.table({"x": pa.array([7, 0], pa.int32()), "y": pa.array([1, 2], pa.int32())})
    )
    my_either.write("t", pa.table({"y": pa.array([3], pa.int32())}))
    assert sorted(my_either.sql("SELECT x, y FROM {s}.t")) == [(0, 2), (7, 1), (8, 3)]


@pytest.mark.parametrize("small", [False, True], ids=["by tasks", "by the driver"])
@pytest.mark.parametrize("default", ["0000-00-00", "2024-00-00"])
def test_a_default_that_no_calendar_has_is_put_or_named(
    my_place: Place, small: bool, default: str
) -> None:
    """MySQL puts it in a strict session, too, and MariaDB never will."""
    my_place.small = small
    transact_at(
        my_place.server.url,
        ("SET sql_mode = ''",),
        (f"CREATE TABLE {my_place.schema}.t (id bigint, day date NOT NULL DEFAULT '{default}')",),
    )
    rows = pa.table({"id": [1]})
    if my_place.server.url.startswith("mariadb"):
        with pytest.raises(RowRefused, match="Incorrect default value") as refused:
            my_place.write("t", rows)
        assert "SET DEFAULT" in refused.value.next_step
        my_place.sql("ALTER TABLE {s}.t ALTER COLUMN day SET DEFAULT '2024-01-31'")  # as it says
        my_place.write("t", rows)
        default = "2024-01-31"
    else:
        my_place.write("t", rows)
    assert my_place.sql("SELECT id, CAST(day AS char) FROM {s}.t") == [(1, default)]


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
def test_a_table_without_transactions_is_refused(my_place: Place, engine: str) -> None:
    my_place.sql(f"CREATE TABLE {{s}}.t (x bigint) ENGINE = {engine}")
    with pytest.raises(ConfigurationError, match=f"engine {engine}"):
        my_place.target("t").open(batch(0))
    assert my_place.sql(
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = '{s}'"
    ) == [(1,)]


@pytest.mark.lengthy("chaos")
def test_a_table_that_keeps_its_history_is_a_table(mariadb_place: Place) -> None:
    mariadb_place.sql(
        "CREATE TABLE {s}.t (id bigint PRIMARY KEY, n bigint) WITH SYSTEM VERSIONING"
    )
    for n in (1, 2):
        mariadb_place.write("t", keyed((7, n), names="id n"), **UPSERT)
    assert mariadb_place.sql("SELECT * FROM {s}.t") == [(7, 2)]
    found = mariadb_place.sql("SELECT n FROM {s}.t FOR SYSTEM_TIME ALL ORDER BY n")
    assert found == [(1,), (2,)]


def test_numbers_that_a_table_has_no_more_of_are_named(my_place: Place) -> None:
    my_place.sql(
        "CREATE TABLE {s}.t (id tinyint AUTO_INCREMENT PRIMARY KEY, value int) "
        "AUTO_INCREMENT = 126"
    )
    with pytest.raises((ServerMisconfigured, SendFailed)) as refused:
        my_place.write("t", pa.table({"value": pa.array([1, 2, 3], pa.int32())}))
    assert "column 'id'" in refused.value.message or "AUTO_INCREMENT" in refused.value.next_step
    my_place.sql("ALTER TABLE {s}.t MODIFY id int AUTO_INCREMENT")
    my_place.write("t", pa.table({"value": pa.array([1, 2, 3], pa.int32())}))
    assert my_place.sql("SELECT count(*) FROM {s}.t") == [(3,)]


@pytest.mark.parametrize("charset", ["latin1", "utf8mb4"])
def test_a_text_is_as_long_as_its_column_takes_whatever_a_packet_holds(
    mariadb_place: Place, charset: str
) -> None:
    """MariaDB's max_allowed_packet is 16 MiB, by which it cuts what it casts to bytes."""
    ((most,),) = mariadb_place.sql("SELECT @@max_allowed_packet")
    mariadb_place.sql(f"CREATE TABLE {{s}}.t (x longtext CHARACTER SET {charset})")
    mariadb_place.write("t", pa.table({"x": ["x" * (most + 1)]}))
    assert mariadb_place.sql("SELECT length(x) FROM {s}.t") == [(most + 1,)]


def test_what_is_no_table_or_the_sinks_own_is_refused(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (id int)")
    my_place.sql("CREATE VIEW {s}.v AS SELECT * FROM {s}.t")
    for name in ("nowhere", "v", "a b", "T"):
        with pytest.raises(TableMissing):
            my_place.target(name).open(batch(0))
    frame = pa.table({"id": pa.array([1], pa.int32())})
    my_place.write("t", frame)
    my_place.sql("CREATE TABLE {s}.onceward_staging_x (id int)")
    for name in ("ledger", "`ledger`", "onceward_staging_x"):
        with pytest.raises(ContradictoryOptions, match="the sink's own"):
            my_place.write(name, frame)


def test_names_are_quoted(my_either: Place) -> None:
    odd = "a `b`; -- %s é"
    quoted = "`" + odd.replace("`", "``") + "`"
    my_either.sql(f"CREATE TABLE {{s}}.{quoted} ({quoted} varchar(9) PRIMARY KEY, n bigint)")
    for number in (1, 2):
        frame = pa.table({odd: ["x"], "n": pa.array([number], pa.int64())})
        settings = {} if number == 1 else {"mode": "upsert", "key": odd, "order_by": "n"}
        my_either.write(quoted, frame, **settings)
    assert my_either.sql(f"SELECT * FROM {{s}}.{quoted}") == [("x", 2)]  # noqa: S608


def test_names_of_tables_are_the_same_if_their_bytes_are(my_either: Place) -> None:
    """To a collation 'a' and 'a ' may be one; the second one is none."""
    my_either.sql("CREATE TABLE {s}.a (id int)")
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "table": [f"{my_either.schema}.a", f"{my_either.schema}.a "],
        }
    )
    record = my_either.write(None, rows)
    assert sorted(output.records for output in record.outputs.values()) == [1, 1]
    assert sorted(my_either.sql("SELECT id FROM {s}.a")) == [(1,), (2,)]
    my_either.sql("ALTER TABLE {s}.a ADD PRIMARY KEY (id)")
    with pytest.raises(RowRefused, match="in two parts"):
        my_either.write(None, rows, mode="upsert", key="id")


# staging


@pytest.mark.fault("database-staging-emptied")
def test_staged_rows_are_counted(
    my_place: Place, before_the_move: Callable[[Callable[[], object]], None]
) -> None:
    my_place.sql("CREATE TABLE {s}.t (x bigint)")

    def empty() -> None:
        (name,) = my_place.staging()
        my_place.sql(f"DELETE FROM {{s}}.{name} LIMIT 2")  # noqa: S608

    before_the_move(empty)
    with pytest.raises(SendFailed, match="of 3 staged rows 1 are left"):
        my_place.write("t", pa.table({"x": [1, 2, 3]}))
    assert my_place.sql("SELECT * FROM {s}.t") == []
    before_the_move(empty)
    my_place.write("t", pa.table({"x": [1, 2, 3]}), attempts=2)
    assert sorted(my_place.sql("SELECT * FROM {s}.t")) == [(1,), (2,), (3,)]
    assert my_place.staging() == []


@pytest.mark.parametrize(
    ("theirs", "value"),
    [
        ("tinyint", 999),
        ("varchar(2) CHARACTER SET utf8mb4", 1234567),
        ("bigint NOT NULL DEFAULT 7", None),
    ],
)
@pytest.mark.fault("database-load-warns")
def test_what_a_load_only_warns_of_is_refused(
    my_place: Place, monkeypatch: pytest.MonkeyPatch, theirs: str, value: int | None
) -> None:
    """LOCAL makes 127 of 999, and 0 of a null: here because somebody has changed the staging
    table.
    """
    my_place.sql("CREATE TABLE {s}.t (x bigint)")
    process = Process(my_place).open()  # type: ignore[arg-type]
    begun: Any = process.begin()
    create = begun._run.create_staging

    def changed(name: str, staged: Any) -> Any:
        opening = create(name, staged)
        my_place.sql(f"ALTER TABLE {{s}}.{name} MODIFY x {theirs}")
        return opening

    monkeypatch.setattr(begun._run, "create_staging", changed)
    frame = ArrowFrame(pa.table({"x": pa.array([value], pa.int64())}))
    with pytest.raises(RowRefused, match="something else than it was given"):
        begun.write(Write(frame, f"{my_place.schema}.t"), batch(0))  # type: ignore[arg-type]
    begun.abort()
    assert my_place.staging() == []


@pytest.mark.fault("database-load-warns")
def test_a_row_that_a_load_leaves_out_is_noticed(my_place: Place) -> None:
    """LOCAL skips a row whose key is there."""
    my_place.sql("CREATE TABLE {s}.t (x bigint)")
    process = Process(my_place).open()  # type: ignore[arg-type]
    run = process.begin()._run  # type: ignore[attr-defined]
    opening = run.create_staging("onceward_staging_here", {"x": "bigint"})
    for expected_error in (None, RowRefused):
        writer = opening(TaskAttempt(0, 0, 7))
        writer.write(pa.record_batch({"x": pa.array([1, 2])}))
        if expected_error is None:
            writer.pre_commit()
        else:
            with pytest.raises(expected_error, match="Duplicate entry"):
                writer.pre_commit()
    run.drop_later(["onceward_staging_here"])
    run.drop_staging()


@pytest.mark.fault("database-staging-left")
def test_what_a_crash_left_is_dropped_by_the_next_start_and_nothing_else(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (x bigint)")
    dead = Process(my_place).open()  # type: ignore[arg-type]
    dead.write(ArrowFrame(pa.table({"x": [1]})))
    (left,) = my_place.staging()
    opening = staging.OpenStagingWriter(
        dead.attempt._dialect._parameters,  # type: ignore[attr-defined]
        f"`{my_place.schema}`.`{left}`",
    )
    other = "onceward_staging_0123456789abcdef_1_1_0"
    my_place.sql(f"CREATE TABLE {{s}}.{other} (x int)")
    Process(my_place).open()  # type: ignore[arg-type]
    assert my_place.staging() == [other]
    late = opening(TaskAttempt(0, 0, 7))  # of an executor that was stopped all the while
    late.write(pa.record_batch({"x": pa.array([1])}))
    with pytest.raises(SendFailed, match=left):
        late.pre_commit()


@pytest.mark.fault("database-staging-left")
def test_staging_of_a_decided_batch_goes_with_it_or_with_the_next_start(my_place: Place) -> None:
    """A DROP ends a transaction, so it comes after the decision; a crash may come first."""
    my_place.sql("CREATE TABLE {s}.t (x bigint)")
    dead = Process(my_place).open()  # type: ignore[arg-type]
    dead.stage(ArrowFrame(pa.table({"x": [1]})))
    dead.attempt._run.chain.commit()  # type: ignore[attr-defined]
    assert len(my_place.staging()) == 1
    assert my_place.sql("SELECT x FROM {s}.t") == [(1,)]
    Process(my_place).open()  # type: ignore[arg-type]
    assert my_place.staging() == []


def test_nothing_is_true_before_the_decision(my_place: Place) -> None:
    """No statement of the transaction ends it."""
    my_place.sql("CREATE TABLE {s}.t (x bigint)")
    for my_place.small in (False, True):
        process = Process(my_place).open()  # type: ignore[arg-type]
        process.stage(ArrowFrame(pa.table({"x": [1]})))
        assert my_place.sql("SELECT count(*) FROM {s}.t") == [(0,)]
        assert my_place.sql("SELECT sequence FROM {s}.ledger") == [(-1,)]
        process.attempt.abort()


def test_a_worker_keeps_its_connection_and_replaces_one_that_broke(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (x bigint)")
    my_place.write("t", pa.table({"x": [1, 2]}))
    (kept,) = staging.sessions.cached.values()
    my_place.write("t", pa.table({"x": [3, 4]}))
    assert list(staging.sessions.cached.values()) == [kept]
    my_place.sql(f"KILL {kept.connection.thread_id()}")
    my_place.write("t", pa.table({"x": [5, 6]}))
    assert list(staging.sessions.cached.values()) != [kept]
    assert sorted(my_place.sql("SELECT * FROM {s}.t")) == [(n,) for n in range(1, 7)]


@pytest.fixture
def without_local(my_place: Place) -> Iterator[Place]:
    my_place.sql("SET GLOBAL local_infile = 0")
    yield my_place
    my_place.sql("SET GLOBAL local_infile = 1")


def test_a_server_that_takes_no_loads_is_refused_before_anybody_is_fenced(
    without_local: Place,
) -> None:
    without_local.sql("CREATE TABLE {s}.t (x bigint)")
    with pytest.raises(ConfigurationError, match="SET GLOBAL local_infile = ON"):
        without_local.target("t").open(batch(0))
    assert without_local.sql(
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = '{s}'"
    ) == [(1,)]


HOSTILE = {
    "sql_mode": "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT'",
    "time_zone": "'-05:00'",
    "completion_type": "1",
    "foreign_key_checks": "0",
    "sql_notes": "0",
    "sql_select_limit": "1",
    "max_error_count": "0",
    "innodb_lock_wait_timeout": "1",
    "tx_isolation": "'SERIALIZABLE'",
}


@pytest.fixture
def hostile(my_either: Place) -> Iterator[Place]:
    """The server's own settings; the connections of workers are of before."""
    forget_all(staging.sessions)
    changed = []
    for name, value in HOSTILE.items():
        name = "transaction_isolation" if name == "tx_isolation" else name
        if (name != "foreign_key_checks" and name != "sql_notes") or _casts(my_either):
            my_either.sql(f"SET GLOBAL {name} = {value}")
            changed.append(name)
    yield my_either
    for name in changed:
        my_either.sql(f"SET GLOBAL {name} = DEFAULT")


def test_a_servers_settings_change_no_value(hostile: Place) -> None:
    hostile.sql(
        "CREATE TABLE {s}.t (number bigint PRIMARY KEY, text text, raw blob, at timestamp(6) "
        "NULL, v varchar(3))"
    )
    moment = dt.datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)
    frame = pa.table(
        {
            "number": pa.array([1, 2, 3], pa.int64()),
            "text": pa.array(["Üé€\\'\"", None, "NULL"], pa.string()),
            "raw": pa.array([b"\x00\xff\\", None, b"'"], pa.binary()),
            "at": pa.array([moment, None, None], pa.timestamp("us", "UTC")),
        }
    )
    hostile.write("t", frame)
    found = hostile.sql("SELECT number, text, raw, at FROM {s}.t ORDER BY number LIMIT 9")
    assert found == [
        (1, "Üé€\\'\"", b"\x00\xff\\", moment.replace(tzinfo=None)),
        (2, None, None, None),
        (3, "NULL", b"'", None),
    ]
    with pytest.raises(RowRefused):
        hostile.write("t", pa.table({"number": pa.array([1], pa.int64())}))


# upsert and changes


def keyed(*rows: tuple[Any, ...], names: str = "id value n op") -> pa.Table:
    columns = names.split()
    kinds = {"n": pa.int64(), "value": pa.string()}
    return pa.table(
        {
            name: pa.array([row[at] for row in rows], kinds.get(name))
            for at, name in enumerate(columns)
        }
    )


CHANGES: dict[str, Any] = {"mode": "changes", "key": "id", "order_by": "n"}
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id", "order_by": "n"}


@pytest.mark.fault("database-other-unique-key")
def test_a_value_of_another_unique_index_replaces_no_other_row(my_either: Place) -> None:
    """ON DUPLICATE KEY UPDATE takes any unique index for the key, and would change row 1 here."""
    my_either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, value varchar(9) UNIQUE)")
    my_either.sql("INSERT INTO {s}.t VALUES (1, 'x')")
    with pytest.raises(RowRefused, match="Duplicate entry 'x'"):
        my_either.write("t", keyed((2, "x", 1), names="id value n"), **UPSERT)
    assert my_either.sql("SELECT * FROM {s}.t") == [(1, "x")]
    my_either.write("t", keyed((2, "x", 2, "c"), (1, None, 1, "d")), **CHANGES)
    assert my_either.sql("SELECT * FROM {s}.t") == [(2, "x")]


def test_a_key_beside_a_number_that_the_server_counts(my_either: Place) -> None:
    my_either.sql(
        "CREATE TABLE {s}.t (number int AUTO_INCREMENT PRIMARY KEY, id varchar(9) NOT NULL "
        "UNIQUE, n bigint)"
    )
    my_either.write("t", keyed(("a", 1), ("b", 1), names="id n"), **UPSERT)
    my_either.write("t", keyed(("b", 2), ("c", 2), names="id n"), **UPSERT)
    assert my_either.sql("SELECT id, n FROM {s}.t ORDER BY number") == [
        ("a", 1),
        ("b", 2),
        ("c", 2),
    ]


@pytest.mark.parametrize(
    ("collation", "same"),
    [
        ("utf8mb4_general_ci", ["a", "A", "a ", "á"]),
        ("utf8mb4_bin", ["a", "a "]),
        ("utf8mb4_unicode_ci", ["ß", "ss"]),
        ("latin1_swedish_ci", ["a", "A", "a "]),
    ],
)
@pytest.mark.fault("database-keys-alike")
def test_keys_that_are_the_same_to_the_table_are_the_same(
    my_either: Place, collation: str, same: list[str]
) -> None:
    """'a' and 'A' are one row in most collations; the last of them counts, and a delete of one
    deletes the other.
    """
    my_either.sql(
        f"CREATE TABLE {{s}}.t (id varchar(9) CHARACTER SET {collation.split('_')[0]} COLLATE "
        f"{collation} PRIMARY KEY, "
        "n bigint)"
    )
    rows = [(key, number) for number, key in enumerate(same)]
    my_either.write("t", keyed(*rows, ("z", 9), names="id n"), **UPSERT)
    assert my_either.sql("SELECT n FROM {s}.t ORDER BY n") == [(len(same) - 1,), (9,)]
    my_either.write("t", keyed((same[0], 10), names="id n"), **UPSERT)
    assert my_either.sql("SELECT n FROM {s}.t ORDER BY n") == [(9,), (10,)]
    my_either.write("t", keyed((same[-1], 11, "d"), names="id n op"), **CHANGES)
    assert my_either.sql("SELECT n FROM {s}.t") == [(9,)]
    with pytest.raises(RowRefused, match="pass order_by="):
        my_either.write(
            "t", keyed((same[0], 1), (same[1], 2), names="id n"), mode="upsert", key="id"
        )


def test_an_op_is_what_it_says_letter_by_letter(my_either: Place) -> None:
    my_either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, value text)")
    for op in ("D", "d ", ""):
        with pytest.raises(RowRefused, match="value in column 'op'"):
            my_either.write("t", keyed((1, None, 1, op)), **CHANGES)


@pytest.mark.parametrize(
    ("columns", "key", "named"),
    [
        ("id int NOT NULL, value varchar(9)", "id", "no unique index"),
        ("id int UNIQUE, value varchar(9)", "id", "'id'.*may be null"),
        ("id int, value varchar(9), PRIMARY KEY (id, value)", "id", "no unique index"),
        ("id varchar(9) NOT NULL, UNIQUE (id(3))", "id", "no unique index"),
        ("id enum('a') PRIMARY KEY", "id", "type enum"),
        ("id double PRIMARY KEY", "id", "type double"),
    ],
)
def test_a_key_that_the_table_has_not_is_named_before_anybody_is_fenced(
    my_place: Place, columns: str, key: str, named: str
) -> None:
    my_place.sql(f"CREATE TABLE {{s}}.t ({columns})")
    error = InvalidColumn if "type" in named else ServerMisconfigured
    with pytest.raises(error, match=named):
        my_place.target("t", mode="upsert", key=key).open(batch(0))
    assert my_place.sql(
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = '{s}'"
    ) == [(1,)]


def test_rows_of_just_a_key(my_either: Place) -> None:
    my_either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY)")
    my_either.write("t", keyed((1, 1), names="id n"), **UPSERT)
    my_either.write("t", keyed((1, 2), (2, 2), names="id n"), **UPSERT)
    assert my_either.sql("SELECT * FROM {s}.t ORDER BY id") == [(1,), (2,)]


# a table that changes, and locks


@pytest.mark.fault("database-table-changes")
def test_a_table_that_changes_after_the_look_is_looked_at_again(
    my_place: Place, before_the_move: Callable[[Callable[[], object]], None]
) -> None:
    my_place.sql("CREATE TABLE {s}.t (x decimal(10,4))")
    before_the_move(lambda: my_place.sql("ALTER TABLE {s}.t MODIFY x decimal(10,2)"))
    with pytest.raises(InvalidColumn, match="'x' does not fit"):
        my_place.write("t", pa.table({"x": pa.array([Decimal("1.2345")], pa.decimal128(10, 4))}))
    assert my_place.sql("SELECT * FROM {s}.t") == []


@pytest.mark.fault("database-lock-waited-for")
def test_a_lock_that_is_waited_for_in_vain_undoes_the_whole_attempt(
    my_either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server undoes the one statement only (1205), and the ledger's row would stay changed."""
    monkeypatch.setattr(attempt, "LOCK_SECONDS", 1)
    my_either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, n bigint)")
    my_either.sql("INSERT INTO {s}.t VALUES (1, 0)")
    with (
        transaction_at(my_either.server.url, f"UPDATE {my_either.schema}.t SET n = 5"),  # noqa: S608
        pytest.raises(SendFailed, match="holds a lock"),
    ):
        my_either.write("t", keyed((1, 1), names="id n"), **UPSERT)
    assert my_either.sql("SELECT sequence FROM {s}.ledger") == [(-1,)]
    assert my_either.staging() == []
    my_either.write("t", keyed((1, 2), names="id n"), **UPSERT)
    assert my_either.sql("SELECT * FROM {s}.t") == [(1, 2)]


def test_rows_that_could_not_be_brought_leave_the_session_in_transactions(
    my_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bringing rows from the driver is outside of transactions. What comes after it in the same
    session is not.
    """

    def failing(*_: Any) -> None:
        my_place.small = False  # the next attempt is by tasks, and brings nothing
        raise SendFailed("the server did not answer", next_step="again")

    monkeypatch.setattr(dialect, "load", failing)
    my_place.small = True
    my_place.sql("CREATE TABLE {s}.first (value int)")
    my_place.sql("CREATE TABLE {s}.second (value int PRIMARY KEY)")
    my_place.sql("INSERT INTO {s}.second VALUES (99)")
    tables = [f"{my_place.schema}.{name}" for name in ("first", "second")]
    rows = pa.table({"value": pa.array([1, 99], pa.int32()), "table": tables})
    with pytest.raises(RowRefused, match="99"):
        my_place.write(None, rows, attempts=2)
    assert my_place.sql("SELECT * FROM {s}.first") == []
    assert my_place.sql("SELECT sequence FROM {s}.ledger") == [(-1,)]


def test_a_session_that_is_gone_is_named_as_the_server_does(
    my_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as what was said to it afterwards."""
    load = dialect.load

    def load_without_a_session(connection: Any, *arguments: Any) -> None:
        my_place.sql(f"KILL {connection.connection.thread_id()}")
        load(connection, *arguments)

    monkeypatch.setattr(dialect, "load", load_without_a_session)
    my_place.small = True
    my_place.sql("CREATE TABLE {s}.t (value int)")
    with pytest.raises(SendFailed, match=r"\((2006|2013|4031|1927)\)"):
        my_place.write("t", pa.table({"value": pa.array([1], pa.int32())}))


# what is sorted by a part of its bytes


@pytest.mark.parametrize("alike", [300, 900, 4_000])
def test_long_values_that_order_are_told_apart(my_either: Place, alike: int) -> None:
    my_either.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v bigint)")
    places = [number * 37 % 100 for number in range(100)]
    rows = {"id": [1] * 100, "o": [f"{'x' * alike}{place:03}" for place in places], "v": places}
    my_either.write("t", pa.table(rows), mode="upsert", key="id", order_by="o")
    assert my_either.sql("SELECT v FROM {s}.t") == [(99,)]


@pytest.mark.parametrize("alike", ["x" * 4_096, "\N{GRINNING FACE}" * 1_024], ids=["x", "face"])
def test_values_too_long_to_be_sorted_are_refused(my_place: Place, alike: str) -> None:
    my_place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v bigint)")
    rows = {"id": [1, 1], "o": [f"{alike}{place}" for place in (1, 2)], "v": [1, 2]}
    with pytest.raises(RowRefused, match="column 'o' is sorted by"):
        my_place.write("t", pa.table(rows), mode="upsert", key="id", order_by="o")


def test_long_binary_keys_are_told_apart(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (id varbinary(2000) PRIMARY KEY, v varchar(9))")
    keys = pa.array([b"y" * 1_500 + end for end in (b"A", b"A", b"B")], pa.binary())
    with pytest.raises(RowRefused, match="neither before nor after"):
        my_place.write(
            "t",
            pa.table({"id": keys, "v": ["tie", "tie", "new"], "n": [2, 2, 1]}),
            mode="upsert",
            key="id",
            order_by="n",
        )
    rows = pa.table({"id": keys, "v": ["older", "newer", "new"], "n": [1, 2, 1]})
    my_place.write("t", rows, mode="upsert", key="id", order_by="n")
    assert my_place.sql("SELECT RIGHT(id, 1), v FROM {s}.t ORDER BY id") == [
        (b"A", "newer"),
        (b"B", "new"),
    ]


def test_a_server_that_sorts_by_less_changes_nothing(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v bigint)")
    places = [number * 37 % 100 for number in range(100)]
    rows = {"id": [1] * 100, "o": [f"{'x' * 70}{place:03}" for place in places], "v": places}
    my_place.sql("SET GLOBAL max_sort_length = 64")
    try:
        my_place.write("t", pa.table(rows), mode="upsert", key="id", order_by="o")
    finally:
        my_place.sql("SET GLOBAL max_sort_length = DEFAULT")
    assert my_place.sql("SELECT v FROM {s}.t") == [(99,)]


def test_a_row_that_somebody_adds_at_the_same_moment_is_not_taken_for_ours(
    my_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a delete is in the batch."""
    my_place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, a varchar(9), b varchar(9))")
    my_place.sql("INSERT INTO {s}.t VALUES (9, 'x', 'x')")
    execute = MySQLSession.execute

    def overtaken(session: MySQLSession, statement: str, parameters: Any = None, /) -> Any:
        if statement.startswith("INSERT INTO") and "LEFT JOIN" in statement:
            my_place.sql("INSERT INTO {s}.t (id, b) VALUES (1, 'theirs')")
        return execute(session, statement, parameters)

    monkeypatch.setattr(MySQLSession, "execute", overtaken)
    rows = pa.table({"id": [1, 9], "a": ["ours", None], "n": [1, 2], "op": ["c", "d"]})
    with pytest.raises(RowRefused):
        my_place.write("t", rows, mode="changes", key="id", order_by="n")
    monkeypatch.undo()
    assert my_place.sql("SELECT id FROM {s}.t ORDER BY id") == [(1,), (9,)]


def test_checks_hold_whatever_the_server_says(mariadb_place: Place) -> None:
    mariadb_place.sql("CREATE TABLE {s}.t (n int CHECK (n > 0))")
    mariadb_place.sql("SET GLOBAL check_constraint_checks = 0")
    try:
        with pytest.raises(RowRefused):
            mariadb_place.write("t", pa.table({"n": pa.array([-5], pa.int32())}))
    finally:
        mariadb_place.sql("SET GLOBAL check_constraint_checks = 1")


def test_a_full_history_partition_is_not_the_rows_fault(mariadb_place: Place) -> None:
    mariadb_place.sql(
        "CREATE TABLE {s}.t (id bigint PRIMARY KEY, v bigint) WITH SYSTEM VERSIONING "
        "PARTITION BY SYSTEM_TIME LIMIT 1 (PARTITION p0 HISTORY, PARTITION pc CURRENT)"
    )
    for value in range(3):
        mariadb_place.write(
            "t", pa.table({"id": [1, 2], "v": [value, value]}), mode="upsert", key="id"
        )
    assert mariadb_place.sql("SELECT * FROM {s}.t ORDER BY id") == [(1, 2), (2, 2)]


def test_a_delete_needs_no_more_than_its_key(my_place: Place) -> None:
    """Beside it may be nothing, also where the table's column takes no null and the server would
    put a value of its own.
    """
    my_place.sql(
        "CREATE TABLE {s}.t (id bigint PRIMARY KEY, at timestamp(6) NOT NULL, kind ENUM('a', 'b'))"
    )
    at = pa.array([10**15, 10**15, None], pa.timestamp("us", "UTC"))
    kinds = ["a", "b", "of before"]
    changes = {"op": ["c", "c", "d"], "id": [1, 2, 1], "at": at, "kind": kinds, "n": [1, 2, 3]}
    table = pa.table(changes)
    my_place.write("t", table.slice(0, 2), mode="changes", key="id", order_by="n")
    my_place.write("t", table.slice(2), mode="changes", key="id", order_by="n")
    assert my_place.sql("SELECT id FROM {s}.t") == [(2,)]
    written = pa.table({**changes, "op": ["c", "c", "u"]}).slice(2)
    with pytest.raises(RowRefused, match="null in column 'at'"):
        my_place.write("t", written, mode="changes", key="id", order_by="n")
