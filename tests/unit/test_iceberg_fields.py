"""Whether a table reads what was written for an earlier state of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceward.spark.tables.iceberg_table import _limit_waits
from onceward.spark.tables.iceberg_values import parse_fields, unreadable


def field(number: int, kind: Any, required: bool = False, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": f"f{number}", "required": required, "type": kind, **more}


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def test_fields_inside_of_others_have_numbers_too():
    entries = {
        "type": "map",
        "key-id": 5,
        "key": "string",
        "value-id": 6,
        "value": "int",
        "value-required": True,
    }
    items = {
        "type": "list",
        "element-id": 7,
        "element": {"type": "struct", "fields": [field(8, "date", True)]},
    }
    struct = {"type": "struct", "fields": [field(3, "decimal(9,2)", True), field(4, entries)]}
    assert parse_fields(schema(field(1, "long", True), field(2, struct, True), field(9, items))) == {
        "1": "required long", "2": "required struct", "3": "required "
                                                           "decimal(9,2)", "4": "map",
                                                           "5": "string",
        "6": "int", "9": "list", "7": "struct", "8": "date",
    }  # fmt: skip
    assert parse_fields(schema(field(1, "int", True, **{"initial-default": 5}))) == {"1": "int"}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("int", "int"),
        ("int", "long"),
        ("float", "double"),
        ("decimal(9,2)", "decimal(12, 2)"),
        ("required int", "long"),
        ("required int", "required int"),
    ],
)
def test_what_iceberg_promotes_is_read(then: str, now: str):
    assert unreadable({"1": then, "2": "date"}, {"1": now, "3": "string"}) == []


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("int", "string"),
        ("long", "int"),
        ("long", "timestamp"),
        ("int", "double"),
        ("decimal(9,2)", "decimal(8,2)"),
        ("decimal(9,2)", "decimal(9,3)"),
        ("struct", "list"),
        ("int", "required int"),
    ],
)
def test_another_type_is_not(then: str, now: str):
    assert unreadable({"1": then}, {"1": now}) == [f"field 1 was {then}, and is {now}"]


def test_a_column_that_has_to_be_there_is_not_in_older_files():
    assert unreadable({"1": "int"}, {"1": "int", "2": "required int"}) == [
        "field 2 is required int"
    ]


def test_a_table_with_other_columns_only():
    assert unreadable({"1": "int"}, {"2": "int"}) == ["it has none of the fields of then"]


class Conf(dict[str, str]):
    """Settings, as Spark's ``SQLConf``."""

    contains = dict.__contains__
    setConfString = dict.__setitem__  # noqa: N815 — Spark's name


def test_a_limit_in_the_address_of_a_jdbc_catalog_is_the_users_own():
    catalog = "spark.sql.catalog.one"
    conf = Conf({f"{catalog}.uri": "jdbc:mysql://host/db?connectTimeout=5"})
    _limit_waits(dict(conf), conf)
    limits = {name: value for name, value in conf.items() if ".jdbc." in name}
    assert limits == {f"{catalog}.jdbc.socketTimeout": "60000"}


def test_a_rest_catalog_has_a_time_limit_and_the_users_own_first():
    catalog, limit = "spark.sql.catalog", "rest.client.socket-timeout-ms"
    conf = Conf({f"{catalog}.one.type": "REST", f"{catalog}.two.type": "hadoop"})
    conf[f"{catalog}.three.catalog-impl"] = "org.apache.iceberg.rest.RESTCatalog"
    conf[f"{catalog}.four.type"], conf[f"{catalog}.four.{limit}"] = "rest", "7"
    _limit_waits(dict(conf), conf)
    limits = {name: value for name, value in conf.items() if name.endswith(limit)}
    assert limits == {
        f"{catalog}.one.{limit}": "120000",
        f"{catalog}.three.{limit}": "120000",
        f"{catalog}.four.{limit}": "7",
    }
