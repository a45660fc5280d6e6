"""What a source of one's own returns: rows that fit are kept as they are, the others are refused
by name.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy
import pandas
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as t

from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.ranges import checksum
from onceward.errors import InvalidColumn, InvalidRow, SourceContractViolated
from support.errors import raises

UTC = timezone.utc
NESTED = t.StructType().add("street", t.StringType(), False).add("at", t.TimestampType())
SCHEMA = t.StructType().add("id", t.LongType(), False).add("name", t.StringType())


def one(kind: t.DataType, nullable: bool = True) -> Fitting:
    return Fitting(t.StructType().add("x", kind, nullable))


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "a"), (2, None)],
        [[1, "a"], [2, None]],
        [{"name": "a", "id": 1}, {"id": 2, "name": None}],
        [Row(name="a", id=1), Row(name=None, id=2)],
        ((n, name) for n, name in [(1, "a"), (2, None)]),
        pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int32())}),
        pa.record_batch({"id": [1, 2], "name": pa.array(["a", None]).dictionary_encode()}),
        pa.table(
            {"id": pa.array([1, 2], pa.uint8()), "name": pa.array(["a", None], pa.large_string())}
        ),
    ],
)
def test_rows_come_in_many_shapes_and_are_the_same(rows: Any):
    fitting = Fitting(SCHEMA)
    table = fitting.table(rows, 10)
    assert table.schema.equals(fitting.arrow)
    assert table.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert checksum(table) == checksum(fitting.table([(1, "a"), (2, None)], 10))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (t.ByteType(), 127, 127),
        (t.IntegerType(), numpy.int16(7), 7),
        (t.DoubleType(), 3, 3.0),
        (t.DoubleType(), float("inf"), float("inf")),
        (t.FloatType(), 0.1, numpy.float32(0.1)),
        (t.FloatType(), -(1 << 24), -16777216.0),
        (t.FloatType(), 20_000_000, 20000000.0),
        (t.DoubleType(), 1 << 60, float(1 << 60)),
        (t.FloatType(), float("-inf"), float("-inf")),
        (t.FloatType(), 0.0, 0.0),
        (t.TimestampNTZType(), pandas.Timestamp(2026, 1, 1), datetime(2026, 1, 1)),
        (t.DayTimeIntervalType(), pandas.Timedelta(1, "us"), timedelta(microseconds=1)),
        (t.DecimalType(5, 2), Decimal("1.5"), Decimal("1.50")),
        (t.DecimalType(5, 2), 7, Decimal("7.00")),
        (t.BinaryType(), bytearray(b"\x00"), b"\x00"),
        (t.DateType(), date(1, 1, 1), date(1, 1, 1)),
        (t.TimestampNTZType(), datetime(1969, 1, 1), datetime(1969, 1, 1)),
        (t.ArrayType(t.LongType()), (1, None), [1, None]),
        (t.MapType(t.StringType(), t.LongType()), {"a": 1}, [("a", 1)]),
        (NESTED, ("Elm", None), {"street": "Elm", "at": None}),
        (t.NullType(), None, None),
    ],
)
def test_values_that_fit_are_kept(kind: t.DataType, value: object, kept: object):
    assert one(kind).table([(value,)], 1).column("x").to_pylist() == [kept]


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (t.LongType(), "1", "no whole number"),
        (t.LongType(), True, "no whole number"),
        (t.LongType(), 1.0, "no whole number"),
        (t.LongType(), 1 << 63, "no room in 64 bits"),
        (t.ByteType(), 128, "no room in 8 bits"),
        (t.DoubleType(), (1 << 53) + 1, "exactly"),
        (t.DoubleType(), "1.5", "no number"),
        (t.FloatType(), 1e39, "no room in 32 bits"),
        (t.FloatType(), 1e-50, "no room in 32 bits"),
        (t.FloatType(), (1 << 24) + 1, "32 bits cannot hold exactly"),
        (t.ArrayType(t.FloatType()), [1.0, -1e39], r"column x\[1\] .* no room"),
        (t.StringType(), 1, "no str"),
        (t.StringType(), b"a", "no str"),
        (t.StringType(), "\ud800", "does not fit"),
        (t.BooleanType(), 1, "no bool"),
        (t.DecimalType(5, 2), Decimal("1.234"), "does not fit"),
        (t.DecimalType(5, 2), Decimal(1000), "does not fit"),
        (t.DecimalType(5, 2), Decimal("nan"), "cannot hold"),
        (t.DecimalType(5, 2), 1.5, "no Decimal"),
        (t.DateType(), datetime(2026, 1, 1, 5), "no date"),
        (t.TimestampType(), datetime(2026, 1, 1), "without a time zone"),
        (t.TimestampNTZType(), datetime(2026, 1, 1, tzinfo=UTC), "with a time zone"),
        (t.TimestampType(), pandas.Timestamp(1, tz="UTC"), "no nanoseconds"),
        (t.TimestampNTZType(), pandas.Timestamp(1), "no nanoseconds"),
        (t.TimestampNTZType(), pandas.NaT, "NaT .*no datetime"),
        (t.DayTimeIntervalType(), pandas.Timedelta(1), "no nanoseconds"),
        (t.DayTimeIntervalType(), 1, "no timedelta"),
        (t.ArrayType(t.LongType(), False), [1, None], r"column x\[1\] .*is null"),
        (t.ArrayType(t.LongType()), "12", "no list"),
        (t.MapType(t.StringType(), t.LongType()), {1: 1}, "no str"),
        (t.MapType(t.StringType(), t.LongType(), False), {"a": None}, "is null"),
        (t.MapType(t.FloatType(), t.LongType()), {0.1: 1, 0.1 + 1e-12: 2}, "the key .* twice"),
        (t.MapType(NESTED, t.LongType()), [(("a", None), 1), (("a", None), 2)], "twice"),
        (NESTED, {"street": "Elm"}, "lacks at"),
        (NESTED, {"street": "Elm", "at": None, "city": "Ulm"}, "has city"),
        (NESTED, {"street": None, "at": None}, r"column x\.street"),
        (NESTED, ("Elm",), "1 values for 2"),
        (t.NullType(), 0, "VOID"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(kind: t.DataType, value: object, why: str):
    with pytest.raises(InvalidRow, match=why) as refused:
        one(kind).table([(None,), (value,)], 2)
    assert "row 1 of what read() returned" in str(refused.value)
    assert refused.value.details["row"] == 1


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"id": 1}], "lacks name"),
        ([{"id": 1, "name": "a", "more": 1}], "has more"),
        ([(1,)], "1 values for 2 columns"),
        ([(1, "a", 2)], "3 values for 2 columns"),
        ([(None, "a")], "column id in row 0.*NOT NULL"),
        (["ab"], "neither a dict nor a tuple"),
        ([7], "neither a dict nor a tuple"),
        (pa.table({"id": [1]}), "the columns id, and the schema has id, name"),
        (pa.table({"id": [1], "name": [1]}), "column name is int64"),
        (pa.table({"id": ["1"], "name": ["a"]}), "column id is string"),
        (pa.table({"id": [1.0], "name": ["a"]}), "column id is double"),
        (pa.table({"id": [1, None], "name": ["a", "b"]}), "column id in row 1.*NOT NULL"),
        (
            pa.table({"id": pa.array([1 << 63], pa.uint64()), "name": ["a"]}),
            "column id does not fit",
        ),
        (
            pa.table({"id": [1], "name": pa.array([b"\xff"], pa.binary()).view(pa.string())}),
            "column name does not fit",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(rows: Any, why: str):
    with pytest.raises(InvalidRow, match=why):
        Fitting(SCHEMA).table(rows, 10)


def test_arrow_columns_lose_nothing():
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("ms", "Europe/Berlin"))
    assert (
        one(t.TimestampType()).table(pa.table({"x": times}), 1).column("x").to_pylist()
        == times.to_pylist()
    )
    with raises(InvalidRow, column="x"):
        one(t.TimestampType()).table(pa.table({"x": pa.array([1], pa.timestamp("ns", "UTC"))}), 1)
    with raises(InvalidRow, column="x"):
        one(t.FloatType()).table(pa.table({"x": pa.array([0.1], pa.float64())}), 1)
    with raises(InvalidRow, column="x.at"):
        one(NESTED).table(pa.table({"x": pa.array([{"street": "a", "at": "noon"}])}), 1)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (t.ArrayType(t.DoubleType()), pa.array([[1, 2]]), [1.0, 2.0]),
        (t.ArrayType(t.DecimalType(5, 2)), pa.array([[1]]), [Decimal("1.00")]),
        (t.StructType().add("at", t.DoubleType()), pa.array([{"at": 1}]), {"at": 1.0}),
        (
            t.ArrayType(t.DateType()),
            pa.array([[date(2026, 1, 1)]], pa.list_(pa.date64())),
            [date(2026, 1, 1)],
        ),
    ],
)
def test_what_is_nested_in_arrow_and_fits_is_taken(
    kind: t.DataType, values: pa.Array, expected: Any
):
    assert one(kind).table(pa.table({"x": values}), 1).column("x").to_pylist() == [expected]


_NANOSECONDS = pa.timestamp("ns")


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        (
            t.ArrayType(t.FloatType()),
            pa.array([[0.5]]),
            r"column x\[\] is double, and .* wants float",
        ),
        (
            t.ArrayType(t.FloatType()),
            pa.array([[0.5]], pa.list_(pa.float64(), 1)),
            r"column x\[\] is double",
        ),
        (
            t.MapType(t.StringType(), t.FloatType()),
            pa.array([[("a", 0.5)]], pa.map_(pa.string(), pa.float64())),
            r"column x\[\] is double",
        ),
        (
            t.ArrayType(t.TimestampNTZType()),
            pa.array([[1]], pa.list_(_NANOSECONDS)),
            "column x does not fit .* would lose data",
        ),
        (
            t.StructType().add("at", t.ArrayType(t.TimestampNTZType())),
            pa.array([{"at": [1]}], pa.struct({"at": pa.large_list(_NANOSECONDS)})),
            "column x does not fit .* would lose data",
        ),
        (
            t.ArrayType(t.DayTimeIntervalType()),
            pa.array([[1]], pa.list_(pa.duration("ns"))),
            "column x does not fit .* would lose data",
        ),
        (
            t.MapType(t.StringType(), t.LongType()),
            pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
            "column x in row 0 .* has the key 'a' twice",
        ),
        (t.ArrayType(t.LongType()), pa.array(["a"]), "and no list"),
        (
            t.ArrayType(t.DateType()),
            pa.array([[3_000_000]], pa.list_(pa.date32())),
            r"column x does not fit list<.*date32.*>: date value out of range",
        ),
        (
            t.ArrayType(t.TimestampType()),
            pa.array([[3 * 10**17]], pa.list_(pa.timestamp("us", "UTC"))),
            "column x does not fit list<.*timestamp.*>: date value out of range",
        ),
    ],
)
def test_what_is_nested_in_arrow_loses_nothing_either(
    kind: t.DataType, values: pa.Array, why: str
):
    with pytest.raises(InvalidRow, match=why):
        one(kind).table(pa.table({"x": values}), 1)


def test_what_is_nested_in_arrow_and_fits_is_kept():
    kind = t.StructType().add("at", t.MapType(t.StringType(), t.ArrayType(t.TimestampNTZType())))
    moment = datetime(2026, 1, 1, 0, 0, 0, 1)
    for times in (pa.list_(_NANOSECONDS), pa.large_list(pa.timestamp("s"))):
        source = pa.struct({"at": pa.map_(pa.string(), times)})
        first = moment if times.value_type == _NANOSECONDS else datetime(2026, 1, 1)
        values = pa.array([{"at": [("a", [first, None]), ("b", None)]}, None], source)
        assert one(kind).table(pa.table({"x": values}), 2).column("x").to_pylist() == [
            {"at": [("a", [first, None]), ("b", None)]},
            None,
        ]
    numbers = pa.array([[1, None]], pa.list_view(pa.int8()))
    assert one(t.ArrayType(t.LongType())).table(pa.table({"x": numbers}), 1)["x"].to_pylist() == [
        [1, None]
    ]


@pytest.mark.parametrize("rows", ["ab", b"ab", {"id": 1}, None, 7])
def test_what_is_no_rows_at_all_breaks_the_contract(rows: Any):
    with pytest.raises(SourceContractViolated, match=f"returned {type(rows).__name__} for rows"):
        Fitting(SCHEMA).table(rows, 10)


def test_a_source_without_an_end_is_not_read_to_its_end():
    def rows() -> Any:
        number = 0
        while True:
            number += 1
            yield number, "again"

    assert (
        Fitting(SCHEMA).table(rows(), 10).num_rows == 11
    )  # one too many, which the caller refuses


@pytest.mark.parametrize(
    "schema",
    [
        t.StructType(),
        t.StructType().add("a", t.CalendarIntervalType()),
        SCHEMA.__class__([*SCHEMA.fields, SCHEMA.fields[0]]),
    ],
)
def test_schemas_that_a_source_cannot_have(schema: t.StructType):
    with pytest.raises(InvalidColumn):
        Fitting(schema)


@pytest.mark.parametrize(
    "kind", [t.TimestampType(), NESTED, t.DayTimeIntervalType(), t.ArrayType(t.DateType())]
)
def test_a_checksum_tells_values_and_not_how_they_are_kept(kind: t.DataType):
    day, moment = date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[type, list[Any]] = {
        t.TimestampType: [moment, moment + timedelta(microseconds=1)],
        t.StructType: [("a", moment), ("a", moment + timedelta(microseconds=1))],
        t.DayTimeIntervalType: [timedelta(1), timedelta(1, microseconds=1)],
        t.ArrayType: [[day], [day + timedelta(1)]],
    }
    first, second = values[type(kind)]
    fitting = one(kind)
    whole = fitting.table([(first,), (second,)], 2)
    pieces = pa.concat_tables([fitting.table([(first,)], 1), fitting.table([(second,)], 1)])
    assert checksum(whole) == checksum(pieces)
    assert checksum(fitting.table([(first,)], 1)) != checksum(fitting.table([(second,)], 1))
    assert checksum(whole) != checksum(fitting.table([(second,), (first,)], 2))


def test_a_checksum_stays_what_it_was():
    """It stands in checkpoints of earlier versions."""
    table = Fitting(SCHEMA).table([(1, "a"), (2, None)], 2)
    assert checksum(table) == "a51876f012b5675b83ab8fc8c651a3a7"
    days = [(date(1, 1, 1),), (None,), (date(1969, 12, 31),), (date(9999, 12, 31),)]
    assert checksum(one(t.DateType()).table(days, 4)) == "f7550fd749e49ce3915743f0860fa264"


@pytest.mark.parametrize(
    ("kind", "source", "value"),
    [
        (t.DateType(), pa.date32(), 3_000_000),
        (t.DateType(), pa.date32(), -3_000_000),
        (t.TimestampType(), pa.timestamp("us", "UTC"), 3 * 10**17),
    ],
)
def test_arrow_columns_have_years_that_python_has_not(
    kind: t.DataType, source: pa.DataType, value: int
):
    tables = [
        one(kind).table(pa.table({"x": pa.array([each], source)}), 1)
        for each in (value, value + 1)
    ]
    assert tables[0].column("x").chunk(0).equals(pa.array([value], source))
    assert checksum(tables[0]) != checksum(tables[1])
