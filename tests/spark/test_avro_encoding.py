"""``ow.avro.encode`` writes what its schema says, or refuses by name; what both functions refuse
when called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

import onceward as ow
from onceward.errors import (
    ConfigurationError,
    InvalidColumn,
    OncewardError,
    SchemaUnknown,
    UnencodableValue,
    UnsupportedQuery,
    UnsupportedSchema,
)
from onceward.formats.avro.schemas import schema_id
from onceward.formats.registry.answers import SchemaRule
from onceward.spark.batch.causes import thrown_by
from onceward.spark.batch.failures import known_failure
from support.avro_codec import read, unfold
from support.memory_registry import MemoryRegistry

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "com.example",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
FIELDS = {
    "name": "'Ada'", "id": "7L", "kind": "'B'", "note": "CAST(NULL "
                                                        "AS STRING)", "tags": "array('x', 'é')",
    "placed": "timestamp_millis(1700000000123)",
}  # fmt: skip
REGISTERED = 33
LOGICAL = {"timestamp": "timestamp-micros", "timestamp_ntz": "local-timestamp-micros"}


def record(field: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "t", "type": field}]}


@pytest.fixture
def registry() -> MemoryRegistry:
    found = MemoryRegistry()
    found.add("orders", ORDER, REGISTERED)
    return found


def orders(spark: Any, **changed: str | None) -> DataFrame:
    fields = {name: sql for name, sql in (FIELDS | changed).items() if sql is not None}
    # From rows, so that nothing is known when the plan is made.
    made = ", ".join(f"IF(id < 0, NULL, {sql}) AS {name}" for name, sql in fields.items())
    return spark.range(1).selectExpr("id AS key", f"struct({made}) AS value")


def test_what_is_encoded_is_what_the_schema_says(spark: Any, registry: MemoryRegistry):
    frame = orders(spark).union(orders(spark).select("key", F.lit(None)))
    full, none = ow.avro.encode(frame, registry=registry, subject="orders").collect()
    assert none.value is None
    assert schema_id(bytes(full.value)) == REGISTERED
    assert read(ORDER, bytes(full.value[5:])) == {
        "id": 7, "name": "Ada", "note": (0, None), "kind": 1, "tags": ["x", "é"],
        "placed": 1_700_000_000_123,
    }  # fmt: skip


@pytest.mark.parametrize("text", [False, True], ids=["registered", "given"])
def test_a_namespace_that_java_does_not_take_is_written(
    spark: Any, registry: MemoryRegistry, text: bool
):
    there = ORDER | {"namespace": "my-server.shop"}
    registry.add("shop", there, 34)
    records = ow.avro.encode(
        orders(spark),
        registry=registry,
        subject="shop",
        schema=json.dumps(there) if text else None,
    )
    (row,) = records.collect()
    assert schema_id(bytes(row.value)) == 34
    assert read(ORDER, bytes(row.value[5:]))["name"] == "Ada"


def test_a_session_that_writes_dates_by_another_calendar_is_refused(
    spark: Any, registry: MemoryRegistry
):
    spark.conf.set(name := "spark.sql.avro.datetimeRebaseModeInWrite", "LEGACY")
    try:
        with pytest.raises(ConfigurationError, match=f"{name} to CORRECTED"):
            ow.avro.encode(orders(spark), registry=registry, subject="orders")
    finally:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "CAST(NULL AS STRING)"}, "name is null"),
        ({"id": "CAST(NULL AS LONG)"}, "id is null"),
        ({"tags": "array('a', CAST(NULL AS STRING))"}, "is null"),
        ({"kind": "'Q'"}, '"Q"'),
        ({"name": "CAST(X'C328' AS STRING)"}, "not UTF-8"),
        ({"tags": "array(CAST(X'FF' AS STRING))"}, "not UTF-8"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    spark: Any, registry: MemoryRegistry, changed: dict[str, str], said: str
):
    encoded = ow.avro.encode(orders(spark, **changed), registry=registry, subject="orders")
    with pytest.raises(Exception) as failed:  # noqa: PT011 — Spark's own, of several kinds
        encoded.collect()
    error = known_failure(thrown_by(failed.value))
    assert isinstance(error, UnencodableValue), failed.value
    assert said in error.message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"note": None}, "value.note is missing"),
        ({"more": "1"}, "value.more is not in the schema"),
        ({"id": "7"}, "INT"),
        ({"tags": "'x'"}, "tags"),
    ],
)
def test_a_column_of_another_type_is_refused_at_once(
    spark: Any, registry: MemoryRegistry, changed: dict[str, str | None], said: str
):
    with pytest.raises(InvalidColumn) as refused:
        ow.avro.encode(orders(spark, **changed), registry=registry, subject="orders")
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("around", ["{}", "array({})", "map('k', {})"])
def test_a_timestamp_is_no_number(spark: Any, registry: MemoryRegistry, kind: str, around: str):
    """Spark would write milliseconds into it, and cut the rest off."""
    moment = around.format(f"CAST('2026-01-02 03:04:05.123456' AS {kind})")
    frame = spark.sql(f"SELECT struct({moment} AS t) AS value")
    plain: Any = {
        "{}": ["null", "long"],
        "array({})": {"type": "array", "items": "long"},
        "map('k', {})": {"type": "map", "values": ["null", "long"]},
    }[around]
    told = json.dumps(plain).replace(
        '"long"', json.dumps({"type": "long", "logicalType": LOGICAL[kind]})
    )
    for number, field in enumerate((plain, json.loads(told)), 1):
        registry.add(f"t{number}", record(field), number)
    with pytest.raises(InvalidColumn, match="is a timestamp, and in the schema a long"):
        ow.avro.encode(frame, registry=registry, subject="t1")
    assert ow.avro.encode(frame, registry=registry, subject="t2").first().value is not None


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        ("DATE'2024-01-31'", {"type": "int", "logicalType": "time-millis"}, "value.t is date"),
        ("INTERVAL '1' DAY", {"type": "long", "logicalType": "timestamp-micros"}, "interval day"),
        ("INTERVAL '1' MONTH", {"type": "int", "logicalType": "date"}, "interval month"),
        ("array(INTERVAL '1' MONTH)", {"type": "array", "items": {"type": "int",
        "logicalType": "time-millis"}}, "value.t[] is interval month"),
    ],
)  # fmt: skip
def test_a_day_or_an_interval_is_no_other_number(
    spark: Any, registry: MemoryRegistry, value: str, field: Any, said: str
):
    """Spark would write a day's number as milliseconds of a day."""
    frame = spark.sql(f"SELECT struct({value} AS t) AS value")
    registry.add("t1", record(field), 1)
    with pytest.raises(InvalidColumn, match=re.escape(said)):
        ow.avro.encode(frame, registry=registry, subject="t1")
    plain = json.loads(re.sub(r', "logicalType": "[^"]*"', "", json.dumps(field)))
    registry.add("t2", record(plain), 2)
    assert ow.avro.encode(frame, registry=registry, subject="t2").first().value is not None


MEMBERS = "struct(IF(id < 0, NULL, {}) AS member0, IF(id < 0, NULL, {}) AS member1)"


@pytest.mark.parametrize("around", ["{}", "array({})", "map('k', {})", "struct({} AS t)"])
def test_of_a_union_one_member_is_written_or_none(
    spark: Any, registry: MemoryRegistry, around: str
):
    """Of two Spark would write the first, and drop the other without a word."""
    union: Any = ["null", "int", "string"]
    field: Any = {
        "{}": union,
        "array({})": {"type": "array", "items": union},
        "map('k', {})": {"type": "map", "values": union},
        "struct({} AS t)": record(union) | {"name": "In"},
    }[around]
    registry.add("t", record(field), 1)

    def encoded(first: str, second: str) -> Any:
        value = around.format(MEMBERS.format(first, second))
        frame = spark.range(1).selectExpr(f"struct({value} AS t) AS value")
        (row,) = ow.avro.encode(frame, registry=registry, subject="t").collect()
        found = read(unfold(record(field)), bytes(row.value[5:]))["t"]
        return found if around == "{}" else next(iter(found.values())) if isinstance(
            found, dict) else found[0]  # fmt: skip

    assert encoded("5", "CAST(NULL AS STRING)") == (1, 5)
    assert encoded("CAST(NULL AS INT)", "'x'") == (2, "x")
    assert encoded("CAST(NULL AS INT)", "CAST(NULL AS STRING)") == (0, None)
    with pytest.raises(Exception) as failed:  # noqa: PT011 — Spark's own, of several kinds
        encoded("5", "'x'")
    error = known_failure(thrown_by(failed.value))
    assert isinstance(error, UnencodableValue), failed.value
    assert "more than one member of a union" in error.message


def test_types_inside_of_a_union_are_compared_too(spark: Any, registry: MemoryRegistry):
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"]}]}  # fmt: skip
    registry.add("t", record(["null", "long", inner]), 1)
    frame = spark.sql(
        "SELECT struct(struct(current_timestamp() AS member0, struct(1L AS a) AS member1) AS t) "
        "AS value"
    )
    with pytest.raises(InvalidColumn) as refused:
        ow.avro.encode(frame, registry=registry, subject="t")
    assert "value.t.member0 is a timestamp" in refused.value.message
    assert "value.t.member1.b is missing" in refused.value.message


def test_schemas_are_registered_by_those_who_ask_for_it(spark: Any, registry: MemoryRegistry):
    schema = json.dumps(ORDER | {"name": "Other"})
    with pytest.raises(SchemaUnknown, match="not registered"):
        ow.avro.encode(orders(spark), registry=registry, subject="orders", schema=schema)
    made = ow.avro.encode(
        orders(spark),
        registry=registry,
        subject="orders",
        schema=schema,
        auto_register_schemas=True,
    )
    assert schema_id(bytes(made.first().value)) == REGISTERED + 1
    assert registry.subjects["orders"] == [REGISTERED, REGISTERED + 1]
    again = ow.avro.encode(orders(spark), registry=registry, subject="orders", schema=schema)
    assert schema_id(bytes(again.first().value)) == REGISTERED + 1
    first = ow.avro.encode(orders(spark), registry=registry, subject="orders", schema=1)
    assert schema_id(bytes(first.first().value)) == REGISTERED
    by_spark = ow.avro.encode(
        orders(spark), registry=registry, subject="4-new", auto_register_schemas=True
    )
    back = ow.avro.decode(by_spark, registry=registry, subject="4-new")
    assert back.first().value.asDict()["tags"] == ["x", "é"]


def ruled(registry: Any, mode: str) -> str:
    registry.add("ruled", "string", 2, "AVRO", SchemaRule("pii", "ENCRYPT", mode))
    return "ruled"


def to_be_registered(frame: DataFrame, registry: Any, value: str) -> DataFrame:
    registry.subjects["new"] = []
    return ow.avro.encode(
        frame.selectExpr(f"{value} AS value"), registry=registry, subject="new",
        auto_register_schemas=True,
    )  # fmt: skip


RECURSIVE = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
REFUSED: dict[str, tuple[Callable[[DataFrame, Any], Any], type[OncewardError], str]] = {
    "no column": (lambda f, r: ow.avro.decode(f, registry=r, subject="orders", column="body"),
    InvalidColumn, "body"),
    "a column of text": (
        lambda f, r: ow.avro.decode(f.withColumn("value", F.lit("x")), registry=r, subject="s"),
        InvalidColumn, "binary",
    ),
    "no subject": (lambda f, r: ow.avro.decode(f, registry=r), ConfigurationError, "subject="),
    "a subject "
    "that is unknown": (lambda f, r: ow.avro.decode(f, registry=r, subject="none"), SchemaUnknown,
    "none"),
    "a version that is unknown": (
        lambda f, r: ow.avro.decode(f, registry=r, subject="orders", reader_schema=9),
        SchemaUnknown, "9",
    ),
    "a reader that is no schema": (
        lambda f, r: ow.avro.decode(f, registry=r, reader_schema='{"type": "nothing"}'),
        UnsupportedSchema, "reader_schema=",
    ),
    "a reader within itself": (
        lambda f, r: ow.avro.decode(f, registry=r, reader_schema=json.dumps(RECURSIVE)),
        UnsupportedSchema, "recursive",
    ),
    "bytes alone": (
        lambda f, r: r.add("b", "bytes", 1) and ow.avro.decode(f, registry=r, subject="b"),
        UnsupportedSchema, "bytes alone",
    ),
    "bytes alone, to be written": (
        lambda f, r: r.add("b", "bytes", 1) and ow.avro.encode(f, registry=r, subject="b"),
        UnsupportedSchema, "bytes alone",
    ),
    "a rule that is carried out on reading": (
        lambda f, r: ow.avro.decode(f, registry=r, subject=ruled(r, "WRITEREAD")),
        UnsupportedSchema, "pii (ENCRYPT, WRITEREAD)",
    ),
    "a rule that is carried out on writing": (
        lambda f, r: ow.avro.encode(f, registry=r, subject=ruled(r, "WRITE")),
        UnsupportedSchema, "pii (ENCRYPT, WRITE)",
    ),
    "a name that Avro does not take": (
        lambda f, r: to_be_registered(f, r, "struct(1 AS `user-agent`)"),
        InvalidColumn, "user-agent",
    ),
    "a type that Avro does not have": (
        lambda f, r: to_be_registered(f, r, "struct(map(1, 2) AS m)"), InvalidColumn, "value",
    ),
    "another way with errors": (
        lambda f, r: ow.avro.decode(f, registry=r, subject="orders", on_error="skip"),
        ConfigurationError, "on_error",
    ),
    "a negative time": (
        lambda f, r: ow.avro.decode(f, registry=r, subject="orders", refresh_s=-1),
        ConfigurationError, "refresh_s",
    ),
    "a checkpoint without a name": (
        lambda f, r: ow.avro.decode(f, registry=r, subject="orders", checkpoint=""),
        ConfigurationError, "checkpoint=",
    ),
    "dead letters without a stream": (
        lambda f, r: ow.avro.decode(f, registry=r, subject="s", on_error="dead_letter"),
        UnsupportedQuery, "stream",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_cannot_work_is_refused_when_it_is_defined(
    spark: Any, registry: MemoryRegistry, what: str
):
    act, kind, said = REFUSED[what]
    frame = spark.createDataFrame([(b"k", bytearray(b"v"))], "key binary, value binary")
    with pytest.raises(kind) as refused:
        act(frame, registry)
    assert said in refused.value.message
    assert refused.value.next_step or isinstance(refused.value, SchemaUnknown)


def test_dead_letters_are_records_as_they_came(spark: Any, registry: MemoryRegistry):
    stream = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("CAST('k' AS BINARY) AS key", "CAST('v' AS BINARY) AS value")
    )
    registry.add("keys", "string", 44)
    once = ow.avro.decode(stream, registry=registry, subject="orders", on_error="dead_letter")
    with pytest.raises(InvalidColumn, match="as they came"):
        ow.avro.decode(
            once, registry=registry, column="key", subject="keys", on_error="dead_letter"
        )
    for renamed in (
        stream.withColumnRenamed("value", "payload"),
        stream.selectExpr("key", "value AS payload", "1 AS value"),
    ):
        with pytest.raises(InvalidColumn, match="as they came"):
            ow.avro.decode(
                renamed,
                registry=registry,
                column="payload",
                subject="orders",
                on_error="dead_letter",
            )
    both = ow.avro.decode(once, registry=registry, column="key", subject="keys")
    assert both.schema["key"].dataType.simpleString() == "string"


def test_schemas_that_cannot_be_read_make_their_records_poison(
    spark: Any, registry: MemoryRegistry
):
    """Of the subject, one is no Avro, one is recursive and one has another unit; the others are
    read all the same.
    """
    from onceward.engine import decoding

    registry.add("orders", '{"type": "object"}', 34, kind="JSON")
    registry.add("orders", RECURSIVE, 35)
    micros = {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-micros"}}
    registry.add("orders", ORDER | {"fields": [*ORDER["fields"][:5], micros]}, 36)
    good = (
        ow.avro.encode(
            orders(spark), registry=registry, subject="orders", schema=json.dumps(ORDER)
        )
        .first()
        .value
    )
    values = [
        bytearray(b"\x00\x00\x00\x00" + bytes([number]) + good[5:]) for number in (33, 34, 35, 36)
    ]
    frame = spark.createDataFrame(
        [(n, value) for n, value in enumerate(values)], "offset bigint, value binary"
    )
    ow.avro.decode(frame, registry=registry, subject="orders", reader_schema=json.dumps(ORDER))
    step: Any = next(reversed(decoding._registered.values()))
    said = {row.source_offset: row.error_message for row in step.dead_letters(frame).collect()}
    assert sorted(said) == [1, 2, 3]
    assert ("JSON" in said[1], "recursive" in said[2], "timestamp-micros" in said[3]) == (
        True,
        True,
        True,
    )
    assert step.plan.good(frame).count() == 1
