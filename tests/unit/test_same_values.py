"""Which columns can take a frame's values as they are."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from onceward.spark.tables.iceberg_values import misfit

WIDER = [
    "byte short", "byte integer", "short long", "integer long", "short float", "byte double",
    "integer double",
    "float double", "decimal(10,2) decimal(11,2)", "decimal(10,2) decimal(12,4)",
    "byte decimal(3,0)",
    "integer decimal(12,2)", "long decimal(20,0)", "void string", "void decimal(2,0)", "date date",
]  # fmt: skip
OTHERS = [
    "long integer", "long float", "long double", "integer float", "double float",
    "long decimal(18,0)",
    "integer "
    "decimal(11,2)", "float decimal(38,0)", "decimal(10,2) decimal(10,1)",
    "decimal(10,2) decimal(10,3)",
    "decimal(5,0) long", "decimal(3,1) double", "string binary", "binary string", "integer string",
    "boolean string",
    "date timestamp",
    "date string", "timestamp date", "timestamp "
                                     "timestamp_ntz", "timestamp_ntz timestamp",
                                     "timestamp string",
    "integer void",
]  # fmt: skip


def schema(of: Any, name: str = "c") -> StructType:
    return StructType.fromJson({"fields": [field(name, of)]})


def field(name: str, of: Any) -> dict[str, Any]:
    return {"name": name, "type": of, "nullable": True, "metadata": {}}


def struct(**fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [field(*one) for one in fields.items()]}


def array(of: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": of, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


@pytest.mark.parametrize("pair", WIDER)
def test_every_value_is_a_value_of_the_wider_type(pair: str):
    given, wanted = map(schema, pair.split())
    assert not misfit(given, wanted)
    assert not misfit(wanted, wanted)


@pytest.mark.parametrize("pair", OTHERS)
def test_what_might_be_changed_does_not_fit(pair: str):
    given, wanted = map(schema, pair.split())
    found = misfit(given, wanted)
    assert (
        found == f"column c is {given[0].dataType.simpleString()} in the frame, and "
        f"{wanted[0].dataType.simpleString()}"
    )


@pytest.mark.parametrize(
    ("given", "wanted", "column"),
    [
        (array("long"), array("double"), "c.element"),
        (mapping("binary", "long"), mapping("string", "long"), "c.key"),
        (
            mapping("string", array("timestamp")),
            mapping("string", array("string")),
            "c.value.element",
        ),
        (struct(A=struct(b="long")), struct(a=struct(b="integer")), "c.a.b"),
        (array("long"), "string", "c"),
    ],
)
def test_what_is_inside_is_named(given: Any, wanted: Any, column: str):
    assert misfit(schema(given), schema(wanted)).startswith(f"column {column} is ")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (array("integer"), array("double")),
        (mapping("integer", "float"), mapping("long", "double")),
        (struct(a="integer", b="string"), struct(B="string", a="long")),
        (struct(c="integer", C="string"), struct(C="string", c="integer")),
    ],
)
def test_inside_it_is_the_same(given: Any, wanted: Any):
    assert not misfit(schema(given), schema(wanted))


def test_columns_that_are_not_there_are_not_asked_for():
    assert not misfit(schema("integer"), schema("string", "other"))
