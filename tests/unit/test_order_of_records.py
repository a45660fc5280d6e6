"""``KafkaSink(order_by=…)``: what is taken, what is refused, and the order in which the driver
sends: without Spark.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    StringType,
    TimestampNTZType,
)

import onceward as ow
from onceward.errors import ConfigurationError, ContradictoryOptions, InvalidColumn
from onceward.kafka.sink import columns
from onceward.kafka.sink.driver_path import sort


def sink(**more: Any) -> ow.KafkaSink:
    return ow.KafkaSink(bootstrap_servers="broker:9092", topic="out", pipeline_id="p", **more)


def test_columns_are_taken_as_everywhere():
    assert sink(order_by="position").settings.order_by == ("position",)
    assert sink(order_by=["a", "b"]).settings.order_by == ("a", "b")
    assert sink().settings.order_by == ()


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({"order_by": []}, ConfigurationError, "does not name columns"),
        ({"order_by": ["a", "a"]}, ConfigurationError, "does not name columns"),
        ({"order_by": "a", "order_within": "partition"}, ConfigurationError, "key, topic"),
        ({"order_within": "topic"}, ContradictoryOptions, "no order_by"),
        (
            {"order_by": "a", "delivery": "at_least_once"},
            ContradictoryOptions,
            "would come behind",
        ),
        ({"order_by": "a", "delivery": "none"}, ContradictoryOptions, "would come behind"),
    ],
)
def test_settings_that_promise_no_order_are_refused(
    settings: dict[str, Any], kind: type[Exception], said: str
):
    with pytest.raises(kind, match=said):
        sink(**settings)


@pytest.mark.parametrize(
    "kind", [IntegerType(), StringType(), DecimalType(20, 2), DateType(), TimestampNTZType()]
)
def test_what_is_sorted_alike_everywhere_is_taken(kind: DataType):
    columns.check_order(["at"], {"value": StringType(), "at": kind})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (DoubleType(), "is double"),
        (StringType("UTF8_LCASE"), "collate"),
        (ArrayType(IntegerType()), "is array<int>"),
        (None, "the frame has value"),
    ],
)
def test_what_is_not_is_named(kind: DataType | None, said: str):
    types: dict[str, DataType] = {"value": StringType()}
    with pytest.raises(InvalidColumn, match=said) as caught:
        columns.check_order(["at"], types if kind is None else {**types, "at": kind})
    assert caught.value.details["column"] == "at"


def test_the_driver_sorts_nulls_first_and_equal_rows_as_they_came():
    first = [2, None, 1, 2, 1, None]
    second = ["b", "z", None, "a", "é", "z"]
    rows = pa.table(
        {"value": list("abcdef"), "onceward_order_0": first, "onceward_order_1": second}
    )
    assert sort(rows).to_pydict() == {"value": ["b", "f", "c", "e", "d", "a"]}


@pytest.mark.parametrize(
    "values",
    [
        pa.array([date(2024, 1, 2), date(1969, 1, 1), None]),
        pa.array([Decimal("10.1"), Decimal("-9.9"), None]),
        pa.array([b"\xff", b"\x00\x01", None]),
        pa.array(
            ["\U0001f600", "\uffff", None]
        ),  # by their bytes, as Spark does it; UTF-16 has them the other way
        pa.array([True, False, None]),
    ],
)
def test_the_driver_sorts_every_kind(values: pa.Array):
    rows = pa.table({"value": [2, 1, 0], "onceward_order_0": values})
    assert sort(rows).column("value").to_pylist() == [0, 1, 2]


def test_what_is_not_sorted_stays_as_it_is():
    rows = pa.table({"value": [2, 1]})
    assert sort(rows) is rows
