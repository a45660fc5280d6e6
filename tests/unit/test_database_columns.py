"""Does a frame fit a table? Pure decisions; what a server makes of them is in
``tests/database``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DecimalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onceward.errors import InvalidColumn, RowRefused
from onceward.sql.postgresql import catalogue
from onceward.sql.sink import columns
from onceward.sql.sink.columns import Column, Table, Written
from support.errors import raises


def table(*columns: Column, unique: tuple[frozenset[str], ...] = ()) -> Table:
    return Table("t", '"public"."t"', columns, unique)


def fit(*said: Any) -> tuple[Written, ...]:
    return columns.fit(*said, catalogue.fitting)


def staged_columns(schema: StructType) -> dict[str, str]:
    return columns.staged_columns(schema, catalogue.staged)


def fits(staged: str, theirs: str, **more: bool) -> Written:
    (written,) = fit({"x": staged}, table(Column("x", theirs, **more)), (), (), ())
    return written


@pytest.mark.parametrize(
    ("staged", "theirs"),
    [
        ("numeric(10,4)", "numeric(10,2)"),
        ("numeric(10,2)", "numeric(9,2)"),
        ("numeric(10,0)", "numeric(9)"),
        ("numeric(19,0)", "bigint"),
        ("bigint", "numeric(18)"),
        ("integer", "real"),
        ("bigint", "double precision"),
        ("double precision", "numeric"),
        ("timestamp with time zone", "timestamp(3) with time zone"),
        ("timestamp with time zone", "timestamp without time zone"),
        ("text", "time(3) without time zone"),
        ("text", "interval(2)"),
        ("text", "character(3)"),
        ("text", "time with time zone"),
        ("text", "bytea"),
        ("text[]", "character varying(3)[]"),
        ("text", "text[]"),
        ("boolean", "bit(1)"),
        ("bigint", "a type (that nobody, knows"),
    ],
)
def test_what_could_be_rounded_or_cut_does_not_fit(staged: str, theirs: str):
    with pytest.raises(InvalidColumn, match="does not fit"):
        fits(staged, theirs)


@pytest.mark.parametrize(
    ("staged", "theirs", "written"),
    [
        ("numeric(10,2)", "numeric(12,4)", Written("x")),
        ("numeric(18,0)", "bigint", Written("x")),
        ("smallint", "numeric(5)", Written("x")),
        ("text", "character varying(3)", Written("x", None, 3)),
        ("text", "citext", Written("x")),
        ("text", "jsonb", Written("x", "jsonb")),
        ("timestamp with time zone", "timestamp(6) with time zone", Written("x")),
        ("text[]", "text[]", Written("x")),
    ],
)
def test_what_holds_every_value_fits(staged: str, theirs: str, written: Written):
    assert fits(staged, theirs) == written


PLAIN = ["9:30", "10:00:00", "24:00:00.000", "10:00:00.123456", "10:00:00.123456000", None]
MADE_INTO_ONE = [
    "10:00:00+05:00", "10:00:00Z", "2024-05-01 10:00:00", "10:00:00.1234567", "10:00:60", "now",
    "allballs", "10:00 PM", "10:00:00\n", "100000",
]  # fmt: skip


def test_a_text_that_is_no_time_of_day_is_not_made_into_one():
    column = fits("text", "time without time zone")

    def look(*texts: str | None) -> None:
        rows = pa.table({"x": pa.array(texts, pa.string())})
        columns.must_stay_as_they_are(rows, [column], "t")

    look()
    look(*PLAIN)
    for text in MADE_INTO_ONE:
        with raises(RowRefused, "HH:mm:ss"):
            look("10:00:00", text, None)


def test_an_enum_is_parsed():
    assert fits("text", "public.mood", enum=True) == Written("x", "public.mood")


def test_the_types_of_a_frame():
    schema = StructType(
        [
            StructField("tiny", ByteType()),
            StructField("large", LongType()),
            StructField("price", DecimalType(10, 2)),
            StructField("at", TimestampType()),
            StructField("local", TimestampNTZType()),
            StructField("names", ArrayType(StringType())),
        ]
    )
    assert list(staged_columns(schema).values()) == [
        "smallint", "bigint", "numeric(10,2)", "timestamp "
                                               "with time zone", "timestamp without time zone",
                                               "text[]"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        MapType(StringType(), LongType()),
        StructType(),
        NullType(),
        ArrayType(ArrayType(LongType())),
    ],
    ids=str,
)
def test_types_that_no_column_holds_are_named(kind: object):
    with raises(InvalidColumn, "to_json"):
        staged_columns(StructType([StructField("x", kind)]))  # type: ignore[arg-type]


def test_names_that_are_taken_are_refused():
    two = StructType([StructField("x", LongType()), StructField("x", LongType())])
    with raises(InvalidColumn):
        staged_columns(two)
    with raises(InvalidColumn):
        staged_columns(StructType([StructField("onceward_task", LongType())]))


def test_an_ordering_column_is_written_where_the_table_has_it():
    keyed = table(Column("id", "bigint", not_null=True), unique=(frozenset(["id"]),))
    staged = {"id": "bigint", "n": "bigint", "op": "text"}
    assert fit(staged, keyed, ("op",), ("n",), ("id",)) == (Written("id"),)
    with_n = table(*keyed.columns, Column("n", "bigint"), unique=keyed.unique)
    assert fit(staged, with_n, ("op",), ("n",), ("id",)) == (Written("id"), Written("n"))


def test_columns_that_the_settings_name_have_to_be_there():
    with raises(InvalidColumn):
        fit({"id": "bigint"}, table(Column("id", "bigint")), ("op",), (), ())
