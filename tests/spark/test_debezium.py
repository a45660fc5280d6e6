"""Changes become Debezium's records, and its records become columns: nothing is rounded, guessed
or left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from streaming_pipeline import Pipeline

import onceward as ow
from onceward.errors import (
    ChangeUnreadable,
    ConfigurationError,
    InvalidColumn,
    InvalidRecord,
    OncewardError,
    UnsupportedSchema,
)
from onceward.formats.debezium.decoding import SOURCE
from onceward.spark.batch.causes import thrown_by
from onceward.spark.batch.failures import known_failure
from support.memory_registry import MemoryRegistry

CHANGES = """op string, db string, table string, key string, before string, after string, ts_ms bigint, position string,
    gtid string, file string, pos bigint, row int, server_id bigint"""
TEXTS = {
    "id": 18446744073709551615, "flag": True, "small": -3, "n": 7, "big": -(2**63), "f": 0.5,
    "d": -1.25e-3,
    "total": Decimal("12.30"), "name": 'A"dá\n😀', "span": "-838:59:59", "raw": "AP8=",
    "day": "2024-02-29",
    "at": "2024-02-29 12:30:00.5", "local": "0001-01-01 00:00:00", "doc": {"a": [1, None]},
    "na.me`": None,
    "shape": {"srid": 4326, "wkb": "AP8="},
}  # fmt: skip
SCHEMA = """id DECIMAL(20) NOT NULL, flag BOOLEAN, small SMALLINT, n INT, big BIGINT, f FLOAT, d DOUBLE,
    total DECIMAL(10,2), name STRING, span STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, doc VARIANT,
    `na.me``` STRING, shape STRUCT<srid: INT, wkb: BINARY>"""


def variant_text(row: dict[str, Any] | None) -> str | None:
    """As the source writes it: a decimal is a number, with all of its digits."""
    if row is None:
        return None
    parts = (
        f"{json.dumps(k)}:{format(v, 'f') if isinstance(v, Decimal) else json.dumps(v)}"
        for k, v in row.items()
    )
    return "{" + ",".join(parts) + "}"


def change(
    op: str | None,
    number: int,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    **more: Any,
) -> tuple:
    row = after or before
    one = {
        "op": op, "db": "shop", "table": "orders",
        "key": variant_text({"id": row.get("id")}) if row else None,
        "before": variant_text(before), "after": variant_text(after),
        "ts_ms": 1_700_000_000_000 + number,
        "position": f"000000-{number:010d}", "gtid": None, "file": "binlog.000003",
        "pos": 4 + number, "row": 0,
        "server_id": 1, **more,
    }  # fmt: skip
    return tuple(one.values())


def frame(spark: Any, *changes: tuple) -> DataFrame:
    return spark.createDataFrame(list(changes), CHANGES)


def stopped(run: Callable[[], object]) -> OncewardError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 — Spark's, of which ours is read
        run()
    error = known_failure(thrown_by(caught.value))
    assert error is not None, caught.value
    return error


@pytest.mark.lengthy("ci")
def test_changes_travel_through_kafka_and_back(pipeline: Pipeline):
    """Encoded, written in order, read by Debezium's rules: the same changes, and a tombstone
    behind the delete.
    """
    a, b = {"id": 1, "name": 'ä"\n'}, {"id": 1, "name": None}
    changes = frame(
        pipeline.spark,
        change("d", 3, b, None, gtid='0-1-"7"'), change("u", 2, a, b),
        change("r", 0, None, {"id": 2, "name": "x"}),
        change("c", 1, None, a), change("t", 4, None, None, key=None),
        change("c", 5, None, a, table="or$ders"),
    )  # fmt: skip
    topic, other = pipeline.topic(1), f"{pipeline.name}.shop.or_ders"
    records = ow.debezium.encode(changes, prefix=pipeline.name)
    assert {row.topic for row in records.collect()} == {f"{pipeline.name}.shop.orders", other}
    sink = pipeline.sink(topic=topic, order_by="position", order_within="topic")

    def write(batch: DataFrame, batch_id: int) -> None:
        with sink.batch(batch, batch_id) as running:
            running.write(records.where(F.col("topic") != other).drop("topic"))

    pipeline.feed(1)
    pipeline.run(lambda rows: rows.select("key", "value"), sink=write)
    written = [(m.key(), m.value() and json.loads(m.value())) for m in pipeline.visible(topic)]
    assert [key for key, _ in written] == [b'{"id":2}', *[b'{"id":1}'] * 4, None]
    assert [value and value["op"] for _, value in written] == ["r", "c", "u", "d", None, "t"]
    assert [value["source"]["snapshot"] for _, value in written if value] == [
        "true",
        *["false"] * 4,
    ]
    assert written[3][1] == {
        "before": b, "after": None, "op": "d", "ts_ms": 1_700_000_000_003, "transaction": None,
        "source": {
            "version": "onceward", "connector": "mysql", "name": pipeline.name,
            "ts_ms": 1_700_000_000_003,
            "snapshot": "false", "db": "shop", "table": "orders", "server_id": 1,
            "gtid": '0-1-"7"',
            "file": "binlog.000003", "pos": 7, "row": 0,
        },
    }  # fmt: skip
    again = pipeline.spark.read.format("kafka").option(
        "kafka.bootstrap.servers", pipeline.bootstrap
    )
    read = ow.debezium.decode(
        again.option("subscribe", topic).load(), schema="id INT NOT NULL, name STRING"
    )
    found = [
        (
            row.op,
            row.before and row.before.asDict(),
            row.after and row.after.asDict(),
            row.source.pos,
            row.ts_ms,
        )
        for row in read.orderBy("offset").collect()
    ]
    begin = 1_700_000_000_000
    assert found == [
        ("r", None, {"id": 2, "name": "x"}, 4, begin), ("c", None, a, 5, begin + 1),
        ("u", a, b, 6, begin + 2),
        ("d", b, None, 7, begin + 3), ("t", None, None, 8, begin + 4),
    ]  # fmt: skip


def test_rows_have_the_tables_types(spark: Any):
    """Of each type the value itself, whatever the session's zone."""
    nothing = {name: None if name != "id" else 2 for name in TEXTS}
    others = change("c", 9, None, {"x": 1}, table="others")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        changes = frame(spark, change("c", 1, None, TEXTS), change("d", 2, nothing, None), others)
        rows = ow.debezium.rows(changes, table="shop.orders", schema=SCHEMA)
        one, two = (
            rows.withColumn("at", F.col("at").cast("double"))
            .withColumn("doc", F.to_json("doc"))
            .collect()
        )
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    expected = {
        **TEXTS, "id": Decimal(2**64 - 1), "raw": b"\x00\xff", "day": date(2024, 2, 29),
        "doc": '{"a":[1,null]}',
        "shape": (4326, b"\x00\xff"),
        "at": datetime(2024, 2, 29, 12, 30, 0, 500_000, timezone.utc).timestamp(),
        "local": datetime(1, 1, 1),
    }  # fmt: skip
    assert one.asDict() == {"op": "c", **expected, "position": "000000-0000000001"}
    assert two.asDict() == {"op": "d", **nothing, "position": "000000-0000000002"}


UNFIT = [
    ({"id": 1, "n": 2, "new": 3}, "schema= has no column new"),
    ({"n": 2}, "the row has no column id"),
    ({"id": None, "n": 2}, "column id is not int NOT NULL"),
    ({"id": 2**31, "n": 2}, "column id is not int"),
    ({"id": 1.0, "n": 2}, "column id is not int"),
    ({"id": 1, "n": Decimal("0.123")}, "column n is not decimal(4,2)"),
    ({"id": 1, "n": Decimal("100.00")}, "column n is not decimal(4,2)"),
    (
        {"id": 1, "n": Decimal("0.1000000000000000000000000000000000000001")},
        "column n is not decimal(4,2)",
    ),
    ({"id": 1, "n": "AfQ="}, "column n is not decimal(4,2)"),
]


def test_a_column_that_came_later_is_null_before(spark: Any):
    """Rows from before and after an ALTER TABLE lie in one batch: by one schema both must be
    read.
    """
    changes = frame(
        spark,
        change("c", 1, None, {"id": 1}),
        change("u", 2, {"id": 1}, {"id": 1, "n": Decimal("0.50")}),
    )
    typed = ow.debezium.rows(
        changes, table="shop.orders", schema="id INT NOT NULL, n DECIMAL(4,2)"
    )
    assert [tuple(row)[:3] for row in typed.orderBy("position").collect()] == [
        ("c", 1, None),
        ("u", 1, Decimal("0.50")),
    ]


@pytest.mark.parametrize(("row", "said"), UNFIT)
def test_a_row_of_another_shape_is_named(spark: Any, row: dict[str, Any], said: str):
    changes = frame(spark, change("c", 6, None, row))
    typed = ow.debezium.rows(
        changes, table="shop.orders", schema="id INT NOT NULL, n DECIMAL(4,2)"
    )
    error = stopped(lambda: typed.select("op").collect())
    assert isinstance(error, ChangeUnreadable)
    assert f"shop.orders at binlog.000003:10: {said}" in str(error)
    assert error.details == {"reason": "schema", "at": "binlog.000003:10", "gtid": None}
    assert "schema=" in error.next_step


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("DATE", "0000-00-00", 19_000),
        ("DATE", 2**40, "1970-01-01"),
        ("TIMESTAMP", "0000-00-00 00:00:00", "2024-02-29T12:00:00Z"),
        ("TIMESTAMP_NTZ", 1_700_000_000_000, "2024-02-29 12:00:00.123456"),
        ("BINARY", "AP8", ""),
        ("BINARY", "!!!!", "////"),
        ("STRING", 1.5, ""),
        ("BOOLEAN", 1, False),
        ("SMALLINT", 40_000, -40),
        ("DECIMAL(38,38)", Decimal(1), Decimal("0.00000000000000000000000000000000000001")),
        ("DECIMAL(5)", Decimal("1.5"), Decimal("-99999.0")),
    ],
)
def test_a_value_that_does_not_fit_stops(spark: Any, kind: str, bad: Any, good: Any):
    def read(value: Any) -> list[Any]:
        changes = frame(spark, change("d", 6, {"id": 1, "v": value}, None))
        return ow.debezium.rows(changes, table="shop.orders", schema=f"id INT, v {kind}").collect()

    assert read(good)[0].v is not None
    assert f"column v is not {kind.lower().replace('(5)', '(5,0)')}" in str(
        stopped(lambda: read(bad))
    )


def test_a_truncate_stops_and_what_is_said_helps(spark: Any):
    changes = frame(
        spark,
        change("c", 1, None, {"id": 1}),
        change("t", 2, None, None, key=None),
        change("c", 3, None, {"id": 3}),
    )
    error = stopped(ow.debezium.rows(changes, table="shop.orders", schema="id INT").collect)
    assert isinstance(error, ChangeUnreadable)
    assert error.details["reason"] == "truncate"
    [position] = [text for text in error.next_step.split('"') if text.startswith("000000-")]
    rows = ow.debezium.rows(changes, table="shop.orders", schema="id INT", emptied_at=position)
    assert [(row.op, row.id) for row in rows.collect()] == [("c", 3)]
    for text in ("", "binlog.000003:1234", f" {position}"):
        with pytest.raises(ConfigurationError, match="is no position"):
            ow.debezium.rows(changes, table="shop.orders", schema="id INT", emptied_at=text)


def read_from(spark: Any, tables: list[str], *changes: tuple) -> DataFrame:
    """As a source gives it that was told these tables."""
    return frame(spark, *changes).withMetadata("table", {"onceward.tables": tables})


def test_a_table_is_named_as_the_server_compares_names(spark: Any):
    """Of a server with lower_case_table_names=1, which writes shop.orders, whatever the user
    writes.
    """
    one = change("c", 1, None, {"id": 1})
    found = ow.debezium.rows(
        read_from(spark, ["Shop.Orders", "a.b"], one), table="Shop.Orders", schema="id INT"
    )
    assert [row.id for row in found.collect()] == [1]
    for tables in (["shop.*"], ["shop.orders", "Shop.Orders"]):
        both = read_from(spark, tables, one, change("c", 2, None, {"id": 2}, table="Orders"))
        error = stopped(ow.debezium.rows(both, table="shop.orders", schema="id INT").collect)
        assert "upper and lower case" in error.message
        assert isinstance(error, ChangeUnreadable)
        assert error.details["reason"] == "name"
        assert 'pass table="shop.Orders"' in error.next_step
        kept = both.where("concat(db, '.', `table`) = 'shop.orders'")
        assert "concat(db, '.', `table`) = 'shop.orders'" in error.next_step
        assert [
            row.id
            for row in ow.debezium.rows(kept, table="shop.orders", schema="id INT").collect()
        ] == [1]


@pytest.mark.parametrize("table", ["shop.oders", "shop.orders2", "shops.orders"])
def test_a_table_that_the_source_does_not_read_is_refused(spark: Any, table: str):
    changes = read_from(spark, ["shop.orders", "stock.*"])
    with pytest.raises(
        ConfigurationError,
        match=r"none of the tables that the source reads: shop.orders, stock.\*",
    ):
        ow.debezium.rows(changes, table=table, schema="id INT")
    with pytest.raises(ConfigurationError, match="none of the tables"):
        ow.debezium.structs(changes, table=table, schema="id INT", key="id", prefix="p")


@pytest.mark.parametrize(
    "one",
    [
        change("x", 1, None, {"id": 1}), change("c", 1, None, None),
        change("d", 1, None, {"id": 1}),
        change("u", 1, None, {"id": 1}), change(None, 1, None, {"id": 1}),
        change("c", 1, None, {"id": 1}, table=None),
    ],
)  # fmt: skip
def test_a_change_that_is_none_becomes_no_tombstone(spark: Any, one: tuple):
    error = stopped(ow.debezium.encode(frame(spark, one), prefix="p").collect)
    assert isinstance(error, ChangeUnreadable)
    assert error.details["reason"] == "op"


@pytest.mark.lengthy("chaos")
def test_structs_go_through_avro_and_back(spark: Any):
    """Under the subjects that serializers use, by a schema that Spark makes; the tombstone has a
    key alone.
    """
    registry = MemoryRegistry()
    a, b = (
        {"id": 7, "total": Decimal("1.10"), "day": "2024-02-29"},
        {"id": 7, "total": None, "day": None},
    )
    changes = frame(
        spark, change("c", 1, None, a), change("u", 2, a, b), change("d", 3, b, None),
        change("t", 4, None, None, key=None), change("c", 5, None, {"no": 1}, table="others"),
    )  # fmt: skip
    schema = "id BIGINT NOT NULL, total DECIMAL(10,2), day DATE"
    records = ow.debezium.structs(
        changes, table="shop.orders", schema=schema, key="id", prefix="p"
    )
    assert records.select("value.*").schema.names == ow.debezium.envelope(schema).names
    topic, more = "p.shop.orders", {"registry": registry, "auto_register_schemas": True}
    keyed = ow.avro.encode(records, subject=f"{topic}-key", column="key", **more)
    framed = ow.avro.encode(keyed, subject=f"{topic}-value", **more)
    assert [(row.topic, row.value is None) for row in framed.orderBy("position").collect()] == [
        (topic, False), (topic, False), (topic, False), (topic, True), (topic, False),
    ]  # fmt: skip
    read = ow.debezium.decode(
        framed, registry=registry, subject=f"{topic}-value", tombstones="delete"
    )
    keys = ow.avro.decode(read, registry=registry, subject=f"{topic}-key", column="key")
    da, db = {**a, "day": date(2024, 2, 29)}, b
    found = [row.asDict(recursive=True) for row in keys.orderBy("position").collect()]
    assert [(row["key"] and row["key"]["id"], row["op"], row["before"],
        row["after"]) for row in found] == [
        (7, "c", None, da), (7, "u", da, db), (7, "d", db, None), (7, "d", None, None),
        (None, "t", None, None),
    ]  # fmt: skip
    assert (found[1]["source"]["pos"], found[1]["source"]["table"]) == (6, "orders")
    with pytest.raises(UnsupportedSchema, match="is not Debezium's envelope"):
        ow.debezium.decode(framed, registry=registry, subject=f"{topic}-key")


@pytest.mark.parametrize(
    ("spoilt", "is_one"),
    [("value.op", True), ("'x' AS op", False), ("CAST('m' AS STRING) AS op", True)],
)
def test_an_envelope_in_avro_has_an_op_that_is_known(spark: Any, spoilt: str, is_one: bool):
    registry = MemoryRegistry()
    changes = frame(spark, change("d", 1, {"id": 7}, None))
    records = ow.debezium.structs(
        changes, table="shop.orders", schema="id BIGINT", key="id", prefix="p"
    ).where("value IS NOT NULL")
    fields = ["value.before", "value.after", "value.source", spoilt, "value.ts_ms"]
    records = records.selectExpr(f"struct({', '.join(fields)}) AS value")
    subject = "orders-value"
    framed = ow.avro.encode(
        records, registry=registry, subject=subject, auto_register_schemas=True
    )
    read = ow.debezium.decode(
        framed, registry=registry, subject=subject, checkpoint=None, refresh_s=0
    ).select("op")
    if is_one:
        assert len(read.collect()) == 1
    else:
        assert "its op is none of Debezium's" in str(stopped(read.collect))


# ── what Debezium has written ──

EVENT = {
    "before": {"id": 1}, "after": {"id": 1, "day": 19_782, "at": "2024-02-29T12:30:00Z",
    "total": "12.30", "new": 1},
    "source": {"version": "3.0.0.Final", "connector": "mysql", "name": "p", "ts_ms": 5,
    "snapshot": "last",
               "db": "shop",
               "sequence": None, "ts_us": 5000, "table": "orders", "server_id": 223344,
               "gtid": None,
               "file": "mysql-bin.000003", "pos": 484, "row": 0, "thread": 7, "query": None},
    "op": "u", "ts_ms": 1_486_500_577_691, "ts_us": 1_486_500_577_691_547, "transaction": None,
}  # fmt: skip
TABLE = "id INT NOT NULL, day DATE, at TIMESTAMP, total DECIMAL(10,2)"


def records(spark: Any, *values: dict[str, Any] | bytes | None) -> DataFrame:
    texts = [json.dumps(v).encode() if isinstance(v, dict) else v for v in values]
    rows = [(b"k", text and bytearray(text), "t", 0, number) for number, text in enumerate(texts)]
    return spark.createDataFrame(
        rows, "key binary, value binary, topic string, partition int, offset bigint"
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_envelopes_are_read_with_and_without_their_schema(spark: Any, wrapped: bool):
    value = (
        {"schema": {"type": "struct", "name": "p.Envelope"}, "payload": EVENT}
        if wrapped
        else EVENT
    )
    given = records(spark, value, None)
    rows = ow.debezium.decode(given, schema=TABLE, wrapped=wrapped, decimals="string").collect()
    [row] = [each.asDict(recursive=True) for each in rows]
    at = row["after"].pop("at")
    assert at.timestamp() == datetime(2024, 2, 29, 12, 30, tzinfo=timezone.utc).timestamp()
    assert row == {
        "key": b"k", "topic": "t", "partition": 0, "offset": 0, "op": "u",
        "ts_ms": 1_486_500_577_691,
        "before": {"id": 1, "day": None, "at": None, "total": None},
        "after": {"id": 1, "day": date(2024, 2, 29), "total": Decimal("12.30")},
        "source": {name: EVENT["source"][name] for name in SOURCE.names},
    }  # fmt: skip
    kept = ow.debezium.decode(
        given, schema=TABLE, wrapped=wrapped, decimals="string", tombstones="delete"
    ).collect()
    assert [(row.op, row.key, row.after is None) for row in kept] == [
        ("u", b"k", False),
        ("d", b"k", True),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"schema": {}, "payload": EVENT}, {**EVENT, "op": None}, {**EVENT, "after": {"id": "1"}},
        {"id": 1}, {**EVENT, "op": "x"}, {**EVENT, "op": ""}, {**EVENT, "after": None},
        {"op": "u", "id": 1, "total": "6"},
        {**EVENT, "after": {**EVENT["after"], "total": "MTIz"}}, {**EVENT, "after": {}}, b"{",
        b"\x00\x00\x00\x00\x01x",
    ],
)  # fmt: skip
def test_what_is_no_envelope_stops_by_name(spark: Any, bad: dict[str, Any] | bytes):
    error = stopped(
        ow.debezium.decode(records(spark, bad), schema=TABLE, decimals="string")
        .select("op")
        .collect
    )
    assert isinstance(error, InvalidRecord)
    assert error.details["offset"] == 0


def with_total(spark: Any, *totals: str) -> DataFrame:
    """Records whose ``total`` is written just so."""
    text = '{"op": "c", "after": {"id": 1, "total": %s}}'
    return records(spark, *((text % total).encode() for total in totals))


@pytest.mark.parametrize(
    ("kind", "totals"),
    [
        (
            "DECIMAL(20,2)",
            {
                "12.34": "12.34", "9999999.99": "9999999.99", "1.0E7": "10000000",
                "-1.23456789E7": "-12345678.9", "1e2": "100", "1.0E-2": "0.01", "0E-10": "0",
                '"1.23E+3"': "1230", '"12345678901234.5E-1"': "1234567890123.45",
                '"-0E-10"': "0", "123456789012345678.91": "123456789012345678.91",
                "123456789012345E3": "123456789012345000", "null": None,
            },
        ),
        ("DECIMAL(30,10)", {'"0E-10"': "0", "0E-10": "0", "1.0E-4": "0.0001"}),
        ("DECIMAL(38,38)", {'"1E-38"': "1E-38", "0E3": "0"}),
        ("DECIMAL(38)", {"1E37": "1E37", '"1.5E1"': "15"}),
    ],
)  # fmt: skip
def test_a_decimal_may_be_written_with_an_exponent(
    spark: Any, kind: str, totals: dict[str, str | None]
):
    """As Java writes a double of 10,000,000 and more (``decimal.handling.mode=double``), and
    Debezium of before 1.9 wrote zeros."""
    schema = f"id INT NOT NULL, total {kind}"
    rows = ow.debezium.decode(with_total(spark, *totals), schema=schema, decimals="string")
    found = [row.after.total for row in rows.sort("offset").collect()]
    assert found == [None if total is None else Decimal(total) for total in totals.values()]


@pytest.mark.parametrize(
    "beside",
    ["3f1e2340-71ca-11e1-9e33-c80aa9429562", "1234567890123456e", "." * 40, "AAAA1E999AAAA"],
)
def test_what_looks_like_a_number_in_a_text_is_none(spark: Any, beside: str):
    """As every fourth UUID does, and so a MySQL's GTIDs, in each record of that server."""
    for number in ("1.0E7", '"1.0E7"'):
        source = with_total(spark, f'{number}, "other": "{beside}", "list": ["{beside}"]')
        rows = ow.debezium.decode(
            source, schema="id INT NOT NULL, total DECIMAL(20,2)", decimals="string"
        )
        (row,) = rows.collect()
        assert row.after.total == Decimal(10_000_000)


def test_a_decimal_in_quotes_is_read_beside_any_number(spark: Any):
    source = with_total(spark, '"0E-10", "d": 1.2345678901234567E-9')
    rows = ow.debezium.decode(
        source, schema="id INT NOT NULL, total DECIMAL(20,2), d DOUBLE", decimals="string"
    )
    (row,) = rows.collect()
    assert row.after.total == 0
    assert row.after.d == 1.2345678901234567e-9


@pytest.mark.lengthy("chaos")
def test_a_decimal_with_an_exponent_is_never_another_number(spark: Any):
    """It is rounded to no type, and to no double on the way: which number of a record was read as
    this double is not known."""
    totals = (
        "1.005E0", '"1.005E0"', "1E19", '"1E19"', "1E99", '"1E999"', "1e400", '"E2"', '"1E"',
        '"1.E2"', "1.000000000000000000001E7", "1E-400", '"1.0E2 "', '"1E2d"', '"1234567890123456E-2"',
        "0.0000000000000001E16",
        "1000000000000000000000000.0000000000000000E-20", "1234567890123456E-2",
        "0.5000000000000000000000000000000000000001", '1.0E7, "d": 1.2345678901234567E-9',
        '1.0E7,"d":-1.2345678901234567E-9', '1.0E7,"d":[-1e-400]', '0E0,"d":\t-1E-400',
    )  # fmt: skip
    source = with_total(spark, *totals)
    for offset, total in enumerate(totals):
        rows = ow.debezium.decode(
            source.where(f"offset = {offset}"),
            schema="id INT NOT NULL, total DECIMAL(20,2)",
            decimals="string",
        )
        assert isinstance(stopped(rows.collect), InvalidRecord), total


def test_a_flattened_record_is_told_how_it_is_read(spark: Any):
    flattened = records(spark, {"op": "u", "id": 1, "total": "6"})
    error = stopped(
        ow.debezium.decode(flattened, schema=TABLE, decimals="string").select("op").collect
    )
    assert "its op is none of Debezium's" in str(error)
    assert "is read by ow.json.decode" in str(error)


PLACEHOLDER = "__debezium_unavailable_value"
PLACEHOLDER_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
NOT_THERE = {
    "body": ("STRING", PLACEHOLDER),
    "hexed": ("STRING", PLACEHOLDER.encode().hex()),
    "raw": ("BINARY", base64.b64encode(PLACEHOLDER.encode()).decode()),
    "words": ("ARRAY<STRING>", [PLACEHOLDER]),
    "raws": ("ARRAY<BINARY>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
    "uuids": ("ARRAY<STRING>", [PLACEHOLDER_UUID]),
    "numbers": ("ARRAY<INT>", list(PLACEHOLDER.encode())),
    "longs": ("ARRAY<BIGINT>", list(PLACEHOLDER.encode())),
    "pairs": ("MAP<STRING, STRING>", {PLACEHOLDER: PLACEHOLDER}),
    "store": ("STRING", json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))),
    "doc": ("VARIANT", PLACEHOLDER),
    "docs": ("VARIANT", {PLACEHOLDER: PLACEHOLDER}),
}
"""As Debezium writes a TOASTed column that an update of PostgreSQL left as it was."""
TOASTED = "id INT NOT NULL, " + ", ".join(
    f"{name} {kind}" for name, (kind, _) in NOT_THERE.items()
)
THERE = {"id": 1, "body": "a", "hexed": f"{PLACEHOLDER}!", "raw": "AP8=", "words": ["a", None],
    "raws": ["AP8="], "uuids": [], "numbers": [95, None], "longs": None, "pairs": {"a": None},
    "store": "{}", "doc": f"{PLACEHOLDER}!", "docs": [PLACEHOLDER, 1]}  # fmt: skip


@pytest.mark.parametrize("name", NOT_THERE)
def test_a_value_that_debezium_did_not_get_is_none(spark: Any, name: str):
    """A sink would write it over the value that is there."""
    after = {**THERE, name: NOT_THERE[name][1]}
    spoilt = records(spark, {**EVENT, "after": after})
    error = stopped(ow.debezium.decode(spoilt, schema=TOASTED).select("op").collect)
    assert isinstance(error, InvalidRecord)
    assert f"column '{name}' of after has Debezium's placeholder" in str(error)
    assert "REPLICA IDENTITY FULL" in str(error)
    assert len(ow.debezium.decode(spoilt, schema="id INT").collect()) == 1


@pytest.mark.lengthy("chaos")
def test_values_that_look_like_the_placeholder_are_read(spark: Any):
    """And what is in before, which no sink writes; and another placeholder's."""
    before = {name: value for name, (_, value) in NOT_THERE.items()}
    given = records(spark, {**EVENT, "before": before, "after": THERE})
    [row] = ow.debezium.decode(given, schema=TOASTED).collect()
    assert (row.after.words, row.before.body) == (["a", None], PLACEHOLDER)
    given = records(spark, {**EVENT, "after": {"id": 1, "body": "?"}})
    error = stopped(
        ow.debezium.decode(given, schema="id INT, body STRING", placeholder="?").collect
    )
    assert "column 'body' of after has Debezium's placeholder ?" in str(error)


@pytest.mark.parametrize("name", ["body", "raw", "words", "numbers", "pairs"])
def test_a_value_that_debezium_did_not_get_is_none_in_avro(spark: Any, name: str):
    columns = {
        "body": ("STRING", f"'{PLACEHOLDER}'"),
        "raw": ("BINARY", f"CAST('{PLACEHOLDER}' AS BINARY)"),
        "words": ("ARRAY<STRING>", f"array('{PLACEHOLDER}')"),
        "numbers": ("ARRAY<INT>", f"array({', '.join(map(str, PLACEHOLDER.encode()))})"),
        "pairs": ("MAP<STRING, STRING>", f"map('{PLACEHOLDER}', '{PLACEHOLDER}')"),
    }
    values = ", ".join(
        f"{value if name == other else f'CAST(NULL AS {kind})'} AS {other}"
        for other, (kind, value) in columns.items()
    )
    row, source = (
        f"named_struct('id', 1) AS before, struct(1 AS id, {values}) AS after",
        "'a' AS a",
    )
    events = spark.sql(
        f"SELECT struct({row}, struct({source}) AS source, 'u' AS op, 5L AS ts_ms) AS value"
    )
    registry = MemoryRegistry()
    framed = ow.avro.encode(events, registry=registry, subject="s", auto_register_schemas=True)
    read = ow.debezium.decode(framed, registry=registry, subject="s", refresh_s=0).select("op")
    error = stopped(read.collect)
    assert isinstance(error, InvalidRecord)
    assert f"column '{name}' of after has Debezium's placeholder" in str(error)


def test_an_update_of_mongodb_may_have_no_document(spark: Any):
    """With capture.mode=change_streams, or where the document is gone by then."""
    registry = MemoryRegistry()
    rows = "VALUES ('c', '{\"_id\": 1}'), ('u', NULL)"
    source = "struct('mongodb' AS connector) AS source"
    changes = spark.sql(f"SELECT * FROM {rows} AS t(op, after)").selectExpr(  # noqa: S608
        f"struct(CAST(NULL AS STRING) AS before, after, {source}, op, 5L AS ts_ms) AS value"
    )
    framed = ow.avro.encode(changes, registry=registry, subject="s", auto_register_schemas=True)
    read = ow.debezium.decode(framed, registry=registry, subject="s", refresh_s=0)
    assert sorted((row.op, row.after) for row in read.collect()) == [
        ("c", '{"_id": 1}'),
        ("u", None),
    ]


def test_what_is_no_envelope_is_a_dead_letter(pipeline: Pipeline):
    aside = pipeline.topic(1)
    pipeline.feed([(b"k", json.dumps(EVENT).encode()), (b"l", b"{}"), (b"m", None)])
    read = ow.debezium.decode(pipeline.frame(), schema="id INT", on_error="dead_letter")
    pipeline.run(
        lambda rows: rows.selectExpr("key", "op AS value"), frame=read, dead_letter_topic=aside
    )
    assert [m.value() for m in pipeline.visible()] == [b"u"]
    assert [m.key() for m in pipeline.visible(aside)] == [b"l"]


def test_values_of_another_form_are_refused(spark: Any):
    changes = ow.mysql_changes(spark, url="mysql://root:x@127.0.0.1:1/shop", tables="shop.orders")
    with pytest.raises(ConfigurationError, match="values='text'") as caught:
        ow.debezium.encode(changes, prefix="p")
    assert caught.value.next_step == "pass values='debezium' to ow.mysql_changes(…)"
    ow.debezium.rows(changes, table="shop.orders", schema="id INT")


def test_a_frame_of_another_kind_is_refused(spark: Any):
    with pytest.raises(InvalidColumn, match="'op' is none of id"):
        ow.debezium.encode(spark.range(1), prefix="p")
    with pytest.raises(InvalidColumn, match="'pos' is string"):
        ow.debezium.rows(frame(spark).withColumn("pos", F.lit("")), table="a.b", schema="id INT")
    with pytest.raises(InvalidColumn, match="'op' already"):
        ow.debezium.decode(records(spark).withColumn("op", F.lit("")), schema="id INT")
