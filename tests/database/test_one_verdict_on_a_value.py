"""One verdict on a value, whoever writes it: tasks, the driver (of small batches), or tasks that
prepare (``xa``).
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from database_place import Place
from test_prepared_transactions import Prepared

from onceward.errors import RowRefused

US = pa.timestamp("us")
MOMENT = pa.timestamp("us", "UTC")


def at(number: int, kind: pa.DataType) -> pa.Array:
    return pa.array([number], pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)


def text(data: bytes) -> pa.Array:
    """A text whose bytes nobody has looked at, as Spark's cast of a binary makes them."""
    return pa.Array.from_buffers(pa.string(), 1, pa.array([data], pa.binary()).buffers())


DIGITS = f"{'9' * 20}.{'9' * 18}"
YEAR_10000_US = 253_402_300_800_000_000
FIRST_OF_1_BC_US = -62_167_219_200_000_000
LEAST_US, MOST_US = -210_866_803_200_000_000, 2**63 - 1

ODD: dict[str, tuple[pa.Array, str, str | None]] = {
    "the year 10000": (at(YEAR_10000_US, MOMENT), "timestamptz", "10000-01-01 00:00:00+00"),
    "the year "
    "10000 without a zone": (at(YEAR_10000_US + 1, US), "timestamp",
    "10000-01-01 00:00:00.000001"),
    "1 BC": (at(FIRST_OF_1_BC_US + 1, MOMENT), "timestamptz", "0001-01-01 00:00:00.000001+00 BC"),
    "a microsecond before 1970": (at(-1, US), "timestamp", "1969-12-31 23:59:59.999999"),
    "the first moment": (at(LEAST_US, US), "timestamp", "4714-11-24 00:00:00 BC"),
    "the last moment": (at(MOST_US, MOMENT), "timestamptz", "294247-01-10 04:00:54.775807+00"),
    "before the first moment": (at(LEAST_US - 1, US), "timestamp", None),
    "what PostgreSQL calls infinity": (at(-(2**63) + 1, US), "timestamp", None),
    "a day of the year 12921": (at(4_000_000, pa.date32()), "date", "12921-08-18"),
    "the first day": (at(-2_440_588, pa.date32()), "date", "4714-11-24 BC"),
    "a day before the first": (at(-2_440_589, pa.date32()), "date", None),
    "the largest number of a day": (at(2**31 - 1, pa.date32()), "date", None),
    "a day as a timestamp": (at(4_000_000, pa.date32()), "timestamp", "12921-08-18 00:00:00"),
    "NaN": (pa.array([math.nan]), "double precision", "NaN"),
    "minus infinity": (pa.array([-math.inf], pa.float32()), "real", "-Infinity"),
    "minus zero": (pa.array([-0.0]), "double precision", "-0"),
    "the smallest double": (pa.array([5e-324]), "double precision", "5e-324"),
    "38 digits": (pa.array([DIGITS]).cast(pa.decimal128(38, 18)), "numeric(38,18)", DIGITS),
    "a byte": (pa.array([-128], pa.int8()), "smallint", "-128"),
    "spaces at the end": (pa.array(["a  "]), "varchar(3)", "a  "),
    "spaces beyond the end": (pa.array(["a   "]), "varchar(3)", None),
    "a text with code 0": (pa.array(["a\0b"]), "text", None),
    "a text that is none": (text(b"a\xffb"), "text", None),
    "half a pair of surrogates": (text(b"\xed\xa0\x80"), "text", None),
    "code 0 in a document": (pa.array(['"\\u0000"']), "jsonb", None),
    "a name that is there twice": (pa.array(['{"b":1,"a":1,"a":2}']), "jsonb", '{"a": 2, "b": 1}'),
    "a document as a text": (pa.array(['{"a":1,"a":2}']), "json", '{"a":1,"a":2}'),
    "bytes with code 0": (pa.array([b"\0"], pa.binary()), "bytea", "\\x00"),
    "a backslash": (pa.array(["\\x41\\N"]), "text", "\\x41\\N"),
    "an empty text": (pa.array([""]), "text", ""),
    "the word null": (pa.array(["NULL"]), "text", "NULL"),
    "a time of day": (pa.array(["9:30"]), "time", "09:30:00"),
    "a time of nanoseconds": (pa.array(["10:00:00.123456000"]), "time", "10:00:00.123456"),
    "the end of a day": (pa.array(["24:00:00"]), "time", "24:00:00"),
    "a time with a zone": (pa.array(["10:00:00+05:00"]), "time", None),
    "a time with a date": (pa.array(["2024-05-01 10:00:00"]), "time", None),
    "a time that would be rounded": (pa.array(["23:59:59.9999999"]), "time", None),
    "a second 60": (pa.array(["10:00:60"]), "time", None),
    "the server's clock": (pa.array(["now"]), "time", None),
    "no time": (pa.array([None], pa.string()), "time", "None"),
    "a span": (pa.array(["-1 00:00:01"]), "interval", "-1 days +00:00:01"),
}  # fmt: skip
"""By its name: the value, the table's type, and what is there afterwards; None: it is refused."""


def store(place: Place, rows: pa.Table, writer: str) -> None:
    place.small = writer == "the driver"
    if writer != "tasks that prepare":
        place.write("t", rows)
        return
    prepared = Prepared(place)
    prepared.write(rows, number=place._batch)
    prepared.targets[0].close()


def stored(place: Place, rows: pa.Table, writer: str, as_text: str) -> str | None:
    """None: it is refused."""
    refused = ""
    try:
        store(place, rows, writer)
    except RowRefused as error:
        refused = error.next_step
    if refused:
        assert "such rows" in refused or "shorten the value" in refused
        store(place, rows.slice(0, 0), writer)  # as it says
        return None
    ((found,),) = place.sql(f"SELECT {as_text} FROM {{s}}.t")  # noqa: S608
    return str(found)


WRITERS = ["tasks", "the driver", "tasks that prepare"]


def judged_otherwise(
    place: Place, odd: dict[str, tuple[pa.Array, str, str | None]], writer: str, as_text: str
) -> Any:
    wrong: dict[str, Any] = {}
    for name, (values, kind, expected) in odd.items():
        for left in ("t", "ledger", "ledger_batches"):
            place.sql(f"DROP TABLE IF EXISTS {{s}}.{left}")
        place.sql(f"CREATE TABLE {{s}}.t (x {kind})")
        place._batch = 0
        found = stored(place, pa.table({"x": values}), writer, as_text)
        if found != expected:
            wrong[name] = found
    return wrong


@pytest.mark.parametrize("writer", WRITERS)
def test_every_odd_value_is_judged_alike_in_postgresql(place: Place, writer: str) -> None:
    assert judged_otherwise(place, ODD, writer, "x::text") == {}


SCALES: dict[str, tuple[pa.Array, str, str | None]] = {
    "a plain numeric": (pa.array([Decimal("100.00")], pa.decimal128(10, 2)), "numeric", "100.00"),
    "one with a scale": (
        pa.array([Decimal("1.00")], pa.decimal128(10, 2)), "numeric(12,4)", "1.0000",
    ),
    "an array": (
        pa.array([[Decimal("0.10")]], pa.list_(pa.decimal128(10, 2))), "numeric[]", "{0.10}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_every_number_keeps_its_scale(place: Place, writer: str) -> None:
    assert judged_otherwise(place, SCALES, writer, "x::text") == {}


MY_ODD: dict[str, tuple[pa.Array, str, str | None]] = {
    "the year 10000": (pa.array([253_402_300_800_000_000]).cast(pa.timestamp("us")), "datetime(6)",
    None),
    "the last moment": (
        pa.array([253_402_300_799_999_999]).cast(pa.timestamp("us")), "datetime(6)", "9999-12-31 "
                                                                                     "23:59:59.999999",
    ),
    "1 BC": (pa.array([-62_167_219_200_000_000]).cast(pa.timestamp("us")), "datetime(6)", None),
    "a moment that timestamps have not": (
        pa.array([-1]).cast(pa.timestamp("us", "UTC")), "timestamp(6) NULL", None,
    ),
    "a day before the year 1": (pa.array([-719_163], pa.int32()).cast(pa.date32()), "date", None),
    "the first day": (pa.array([-719_162], pa.int32()).cast(pa.date32()), "date", "0001-01-01"),
    "NaN": (pa.array([float("nan")]), "double", None),
    "infinity": (pa.array([float("inf")], pa.float32()), "float", None),
    "the largest double": (pa.array([1.7976931348623157e308]), "double", "1.7976931348623157e308"),
    "a digit too many": (pa.array([2**63 - 1]), "bigint unsigned", "9223372036854775807"),
    "less than nothing": (pa.array([-1]), "bigint unsigned", None),
    "spaces beyond the end": (pa.array(["a   "]), "varchar(3) CHARACTER SET utf8mb4", None),
    "a text with code 0": (pa.array(["a\0b"]), "varchar(9) CHARACTER SET utf8mb4", "a\0b"),
    "a text that is none": (
        pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xffb"], pa.binary()).buffers()),
        "varchar(9) CHARACTER SET utf8mb4", None,
    ),
    "a character that "
    "the column has not": (pa.array(["\N{GRINNING FACE}"]), "varchar(9) CHARACTER SET utf8mb3",
    None),
    "bytes too many": (pa.array([b"1234"], pa.binary()), "varbinary(3)", None),
    "no document": (pa.array(["{"]), "json", None),
}  # fmt: skip
"""By its name: the value, the table's type, and what is there afterwards; None: it is refused."""


@pytest.mark.parametrize("writer", WRITERS[:2])
def test_every_odd_value_is_judged_alike_in_mysql(my_place: Place, writer: str) -> None:
    assert judged_otherwise(my_place, MY_ODD, writer, "CAST(x AS char)") == {}


@pytest.mark.slow  # and the other writers show the same
def test_every_odd_value_is_judged_alike_by_tasks_that_prepare_in_mariadb(
    mariadb_place: Place,
) -> None:
    assert judged_otherwise(mariadb_place, MY_ODD, WRITERS[2], "CAST(x AS char)") == {}


BEFORE, DEFERRED = "BEFORE INSERT", "AFTER INSERT DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("when", "body"),
    [
        (BEFORE, "RAISE EXCEPTION 'order % is closed', NEW.x USING ERRCODE = 'MY001'"),
        (DEFERRED, "RAISE EXCEPTION 'order % is closed', NEW.x USING ERRCODE = '45000'"),
        (BEFORE, "CASE NEW.x WHEN 0 THEN RETURN NEW; END CASE"),
    ],
    ids=["its own code", "its own code, deferred", "no case"],
)
def test_what_a_trigger_raises_is_for_good(
    place: Place, writer: str, when: str, body: str
) -> None:
    place.sql("CREATE TABLE {s}.t (x bigint)")
    place.sql(
        f"CREATE FUNCTION {{s}}.f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body}; END$$"
    )
    action, _, how = when.partition(" INSERT")
    kind = "CONSTRAINT TRIGGER" if how else "TRIGGER"
    place.sql(
        f"CREATE {kind} g {action} INSERT ON {{s}}.t{how} FOR EACH ROW EXECUTE FUNCTION {{s}}.f()"
    )
    with pytest.raises(RowRefused, match=r"order 7 is closed|case not found"):
        store(place, pa.table({"x": [7]}), writer)


CHECKED = {
    "a function of a generated column": (
        "CREATE TABLE {s}.t (x varchar(9), g geometry AS (ST_GeomFromText(x)) STORED)",
    ),
    "a trigger's own number": (
        "CREATE TABLE {s}.t (x varchar(9))",
        "CREATE TRIGGER {s}.g BEFORE INSERT ON {s}.t FOR EACH ROW SIGNAL SQLSTATE '45000' "
        "SET MYSQL_ERRNO = 50001, MESSAGE_TEXT = 'no'",
    ),
}


@pytest.mark.parametrize("writer", WRITERS[:2])
@pytest.mark.parametrize("how", CHECKED)
def test_what_the_server_computes_of_a_row_in_vain_is_for_good(
    mysql_place: Place, writer: str, how: str
) -> None:
    for statement in CHECKED[how]:
        mysql_place.sql(statement)
    with pytest.raises(RowRefused):
        store(mysql_place, pa.table({"x": ["POINT(1"]}), writer)


def test_a_foreign_key_whose_update_meets_another_row_is_for_good(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, x bigint, KEY (x))")
    my_place.sql(
        "CREATE TABLE {s}.u (id bigint PRIMARY KEY, x bigint UNIQUE, "
        "FOREIGN KEY (x) REFERENCES {s}.t (x) ON UPDATE CASCADE)"
    )
    my_place.sql("INSERT INTO {s}.t VALUES (1, 10), (2, 20)")
    my_place.sql("INSERT INTO {s}.u VALUES (1, 10), (2, 20)")
    with pytest.raises(RowRefused, match=r"[Ff]oreign key"):
        my_place.write("t", pa.table({"id": [1], "x": [20]}), mode="upsert", key="id")
