"""Which schemas JSON is read by, and as what Spark reads it: without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from onceward.formats.debezium.decoding import _EnvelopeTypes
from onceward.formats.debezium.types import PLACEHOLDER
from onceward.formats.json.types import JSON


def one(kind: DataType, name: str = "f") -> StructType:
    return StructType([StructField(name, kind)])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ByteType(), "f is tinyint: Spark reads 200 as -56"),
        (DecimalType(10, 2), "f is decimal(10,2): Spark rounds"),
        (BinaryType(), "unbase64"),
        (CharType(3), "f is char(3)"),
        (StringType("UTF8_LCASE"), "f is string collate"),
        (ArrayType(ByteType()), "f[] is tinyint"),
        (MapType(StringType(), one(ByteType(), "g")), "f{}.g is tinyint"),
        (MapType(IntegerType(), StringType()), "keys of f are no STRING"),
        (StructType([]), "f has no fields"),
        (
            StructType([StructField("a", StringType()), StructField("A", StringType())]),
            "f has two fields 'a'",
        ),
    ],
)
def test_a_type_that_would_not_be_exact_is_refused(kind: DataType, said: str):
    assert said in (JSON.why_not(one(kind)) or "")


def test_what_from_json_reads_leniently_is_read_as_what_it_is():
    inside = StructType(
        [StructField("at", TimestampType(), nullable=False), StructField("d", DoubleType())]
    )
    kind = StructType(
        [
            StructField("m", MapType(StringType(), ArrayType(inside))),
            StructField("s", StringType()),
        ]
    )
    assert JSON.why_not(kind) is None
    instead = StructType([StructField("at", VariantType()), StructField("d", DoubleType())])
    assert JSON.read_as(kind) == StructType(
        [
            StructField("m", MapType(StringType(), ArrayType(instead))),
            StructField("s", VariantType()),
        ]
    )


@pytest.mark.parametrize(
    ("wrapped", "field", "said"),
    [(False, "op", "wrapped=True"), (True, "payload", "wrapped=False"), (False, "after", "")],
)
def test_an_envelope_in_another_form_is_answered_with_the_setting(
    wrapped: bool, field: str, said: str
):
    """The converter's own default wraps it: all records of a healthy topic would be letters."""
    no_column: Any = None
    table = one(IntegerType())
    types = _EnvelopeTypes(table, PLACEHOLDER, no_column, wrapped=wrapped, decimals=False)
    assert said in types.hint(field)
    assert bool(types.hint(field)) is bool(said)
    assert JSON.hint(field) == ""


@pytest.mark.parametrize(("wrapped", "field"), [(False, "after"), (True, "payload")])
def test_which_decimals_are_read_is_said_where_one_does_not_fit(wrapped: bool, field: str):
    no_column: Any = None
    table = one(DecimalType(9, 2))
    types = _EnvelopeTypes(table, PLACEHOLDER, no_column, wrapped=wrapped, decimals=True)
    assert "a DECIMAL with an exponent" in types.hint(field)
