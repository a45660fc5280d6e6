"""What files of a Delta table need not care about when the table changes, and what they do."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.lake.delta import changed, column_texts, rules
from onceward.spark.tables.delta_table import DeltaTransaction, Shape

MAPPED = "delta.columnMapping.physicalName"


def field(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def shape(*fields: Any, by: tuple[str, ...] = (), **settings: str) -> Shape:
    return Shape("id", {one["name"]: one for one in fields}, list(by), settings)


A = field("a", "integer")


@pytest.mark.parametrize(
    ("then", "now", "fits"),
    [
        (shape(A), shape(A, field("b", "string")), True),
        (shape(A), shape(field("a", "long", comment="hello")), True),
        (shape(A), shape(field("b", "integer", **{MAPPED: "a"})), True),
        (shape(A, by=("a",)), shape(field("b", "integer", **{MAPPED: "a"}), by=("b",)), True),
        (shape(A), shape(field("a", "integer", **{MAPPED: "col-1"})), False),
        (shape(field("a", "integer", **{MAPPED: "col-1"})), shape(A), False),
        (shape(A), shape(field("b", "integer")), False),
        (shape(A), shape(A, by=("a",)), False),
        (shape(A), shape(field("a", "short")), False),
        (shape(A), shape(field("a", "string")), False),
        (shape(A), shape(field("a", "decimal(12,2)")), True),
        (shape(A), shape(field("a", "decimal(11,2)")), False),
        (shape(field("a", "decimal(5,2)")), shape(field("a", "decimal(10,4)")), True),
        (shape(field("a", "decimal(5,2)")), shape(field("a", "decimal(6,4)")), False),
        (shape(field("a", "float")), shape(field("a", "double")), True),
        (shape(field("a", "long")), shape(field("a", "double")), False),
        (shape(field("s", struct(A))), shape(field("s", struct(field("b", "date"), A))), True),
        (shape(field("s", struct(A))), shape(field("s", struct(field("a", "long")))), True),
        (shape(field("s", struct(A))), shape(field("s", struct(field("b", "integer")))), False),
        (shape(field("s", struct(A))), shape(field("s", "string")), False),
        (shape(field("d", "date")), shape(field("d", "timestamp_ntz")), True),
        (shape(field("d", "timestamp_ntz")), shape(field("d", "date")), False),
        (shape(field("s", array("integer"))), shape(field("s", array("long"))), True),
        (shape(field("s", array(struct(A)))), shape(field("s", array(struct()))), False),
        (shape(field("s", array(A["type"]))), shape(field("s", struct(A))), False),
    ],
)
def test_what_files_care_about(then: Shape, now: Shape, fits: bool):
    before = {"columns": column_texts(then), "partition_by": list(then.partition_by)}
    assert (changed(before, now) == "") is fits


def test_rules_by_the_names_that_stay():
    """A column may be renamed; what its rule says is the same."""
    inner = field("b", "integer", nullable=False)
    before = shape(
        field("s", struct(inner)),
        **{"delta.constraints.small": "s.b < 5", "delta.appendOnly": "true"},
    )
    assert rules(before) == {
        "CHECK (s.b < 5)": "DROP CONSTRAINT `small`",
        "NOT NULL s.b": "ALTER COLUMN `s`.`b` DROP NOT NULL",
    }
    renamed = shape(
        field("t", struct(field("c", "integer", nullable=False, **{MAPPED: "b"})), **{MAPPED: "s"})
    )
    odd = shape(
        field("order date", "date", nullable=False), **{"delta.constraints.max-1": "a > `1"}
    )
    assert rules(odd) == {
        "CHECK (a > `1)": "DROP CONSTRAINT `max-1`",
        "NOT NULL order date": "ALTER COLUMN `order date` DROP NOT NULL",
    }
    assert rules(renamed) == {"NOT NULL s.b": "ALTER COLUMN `t`.`c` DROP NOT NULL"}


@pytest.mark.parametrize(
    ("more", "features"),
    [
        ({}, set()),
        ({"writerFeatures": ["catalogManaged", "appendOnly"]}, {"catalogManaged", "appendOnly"}),
    ],
)
def test_the_features_of_a_table_are_those_of_its_protocol(more: Any, features: set[str]):
    text = json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **more}})
    protocol = SimpleNamespace(json=lambda: text)
    java: Any = SimpleNamespace(protocol=lambda: protocol)
    table: Any = SimpleNamespace(_jvm=None, _answered=None)
    assert DeltaTransaction(table, java).features == features
