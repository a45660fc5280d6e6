"""I23: each text is read as Python's own JSON reads it, or refused by name, whatever follows."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from datetime import date, datetime, timezone
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from streaming_pipeline import Pipeline

import onceward as ow
from onceward.engine import decoding
from onceward.errors import ConfigurationError, InvalidRecord, OncewardError
from onceward.mysql.source.source import SCHEMA as CHANGES
from onceward.spark.batch.causes import thrown_by
from onceward.spark.batch.failures import known_failure
from support.errors import raises
from support.verify_process import verify_at

SCHEMA = """id BIGINT NOT NULL, h SMALLINT, i INT, ok BOOLEAN, f FLOAT, d DOUBLE, s STRING, day DATE, at TIMESTAMP,
    local TIMESTAMP_NTZ, tags ARRAY<STRING>, notes MAP<STRING, STRING>, nums MAP<STRING, DOUBLE>,
    o STRUCT<x: INT NOT NULL, y: ARRAY<INT>, z: STRUCT<s: STRING>>, list ARRAY<STRUCT<t: STRING, n: BIGINT>>"""
SMALL = "id BIGINT NOT NULL, s STRING, tags ARRAY<STRING>"
ADA = {
    "id": 7, "h": -3, "i": 2**31 - 1, "ok": True, "f": 0.5, "d": -1.25e-3, "s": 'A"dá\n😀',
    "day": "2024-02-29",
    "at": "2024-02-29T12:30:00.5+02:00", "local": "1969-01-01 00:00:00", "tags": ["a", None, ""],
    "notes": {"k": "v"},
    "nums": {"": 1, "e": 2.5}, "o": {"x": 1, "y": [1, None], "z": {"s": "deep"}},
    "list": [{"t": "u", "n": 1}, None, {}],
    "unknown": [{"deep": {"deeper": "x"}}, 1e5],
}  # fmt: skip
TEXT = json.dumps(ADA)
CLOCK = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
# Python would read +02:60, as +03:00, and up to +23:59; Java's offsets end at 18 hours
ZONED = CLOCK + r"(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)"

POISON: list[bytes] = [
    b"", b" \n", b"null", b"7", b'"x"', b"[]", b'[{"id":1}]', b"{}", b'{"id":null}',
    b"\xef\xbb\xbf" + b'{"id":1}',
    b'{"id":1', b'{"id":1,', b'{"id":1} x', b'{"id":1}{"id":2}', b'{"id":1},{"id":2}',
    b'{"id":1}]', b'{"id":1}]}',
    b'{"id":1}],"x":[{"id":2}', b'{"id":1},"x":{"id":2}', b'{"id":1}\x00', b'{"id":1}//',
    b'{"id":1,"u":tru}',
    b"{'id':1}", b"{id:1}", b'{"id":01}', b'{"id":+1}', b'/**/{"id":1}', b'{"id":1,}',
    b'{"id":1,"u":NaN}',
    b'{"id":"1"}', b'{"id":1.0}', b'{"id":1e0}', b'{"id":9223372036854775808}', b'{"id":true}',
    b'{"id":[1]}',
    b'{"id":1,"h":40000}', b'{"id":1,"i":2147483648}', b'{"id":1,"i":""}', b'{"id":1,"ok":"true"}',
    b'{"id":1,"ok":1}',
    b'{"id":1,"d":NaN}', b'{"id":1,"d":"NaN"}', b'{"id":1,"d":"1.5"}', b'{"id":1,"d":1e400}',
    b'{"id":1,"f":1e39}',
    b'{"id":1,"d":Infinity}', b'{"id":1,"nums":{"a":-1e999}}', b'{"id":1,"s":5}',
    b'{"id":1,"s":1.10}',
    b'{"id":1,"s":true}', b'{"id":1,"s":{"a":1}}', b'{"id":1,"s":["a"]}',
    b'{"id":1,"tags":["a",1]}',
    b'{"id":1,"tags":"a"}', b'{"id":1,"tags":{}}', b'{"id":1,"notes":{"k":1}}',
    b'{"id":1,"notes":[]}',
    b'{"id":1,"notes":{"k":"a","k":"b"}}', b'{"id":1,"o":{}}', b'{"id":1,"o":{"x":null}}',
    b'{"id":1,"o":[]}',
    b'{"id":1,"o":{"x":1,"y":[1,"2"]}}', b'{"id":1,"o":{"x":1,"z":{"s":0}}}',
    b'{"id":1,"list":[{"t":2}]}',
    b'{"id":1,"list":[{"n":"2"}]}', b'{"id":1,"list":[3]}', b'{"id":1,"day":"2024-02-30"}',
    b'{"id":1,"day":"2024"}',
    b'{"id":1,"day":19000}', b'{"id":1,"day":"2024-02-29\\n"}', b'{"id":1,"at":"2024-02-29 '
                                                                b'12:00:00"}',
    b'{"id":1,"at":"2024-02-29T25:00:00Z"}', b'{"id":1,"at":"2024-02-29T12:00:00+18:01"}', b'{"id":1,"at":1700000000}',
    b'{"id":1,"local":"2024-02-29 12:00:00Z"}',
    b'{"id":1,"s":"\xff"}', b'{"id":1,"u":"\xf0\x9f\x98"}', b'{"id":1,"s":"\\ud800"}',
    b'{"id":1,"u":"\\uDC00\\ud800"}',
    b'{"id":1,"notes":{"\\ud83d":""}}', b'{"id":1,"s":"\\\\\\ud83d\\\\ude00"}',
    b'{"id":1,"s":"\\x"}',
    b'{"id":1,"s":"a\nb"}', b'{"id":1,"u":' + b"[" * 1500 + b"]" * 1500 + b"}",
    b'{"id":1,"id":"x"}',
]  # fmt: skip
FINE: list[bytes] = [
    TEXT.encode(), json.dumps(ADA, ensure_ascii=False, indent=2).encode(), b' \r\n\t{"id":1}\n',
    b'{"id":-0}',
    b'{"id":1,"i":null,"o":null,"tags":null,"notes":null,"day":null,"s":null}',
    b'{"id":1,"ID":"x","":[]}',
    b'{"id":1,"id":2}', b'{"id":1,"s":"5"}', b'{"id":1,"s":"\\ud83d\\ude00\\u0000\\/"}',
    b'{"id":1,"d":5,"nums":{}}',
    b'{"id":1,"s":"\\\\ud800"}', b'{"id":1,"d":1e-400}', b'{"id":1,"bad":2,"onceward_decoded":{}}',
    b'{"id":1,"list":[]}', b'{"id":1,"at":"2024-02-29T12:00:00-18:00"}',
    b'{"id":1,"s":-3,"s":"a"}', b'{"id":1,"day":5,"day":"2024-02-29"}',
    b'{"id":1,"day":{},"at":[1],"day":"2024-02-29","at":null}',
]  # fmt: skip


def kafka_like(spark: Any, values: list[bytes | None]) -> DataFrame:
    rows = [
        (b"k", None if v is None else bytearray(v), "people", n % 3, n)
        for n, v in enumerate(values)
    ]
    return spark.createDataFrame(
        rows, "key binary, value binary, topic string, partition int, offset bigint"
    )


def step_of(frame: DataFrame, schema: str = SCHEMA) -> tuple[DataFrame, Any]:
    """``frame`` decoded, and the step, which knows both sides of the verdict."""
    decoded = ow.json.decode(frame, schema=schema)
    return decoded, next(reversed(decoding._registered.values()))


class Unfit(Exception):
    """Python says so."""


def by_python(text: bytes) -> dict[str, Any]:
    """What an independent reader makes of it by the schema."""

    def pairs(found: list[tuple[str, Any]]) -> Any:
        return Pairs(found)

    def no(constant: str) -> Any:
        raise Unfit(constant)

    try:
        found = json.loads(text.decode(), parse_constant=no, object_pairs_hook=pairs)
        found.encode() if isinstance(found, str) else json.dumps(
            found, ensure_ascii=False
        ).encode()
    except (ValueError, RecursionError) as error:
        raise Unfit from error
    return struct(found, FIELDS, required=("id",))


class Pairs(dict[str, Any]):
    """An object, and all that was said of each of its names."""

    def __init__(self, found: list[tuple[str, Any]]) -> None:
        super().__init__(found)
        self.found = found


def whole(bits: int) -> Callable[[Any], Any]:
    return lambda v: need(type(v) is int and -(2 ** (bits - 1)) <= v < 2 ** (bits - 1), v)


def number(largest: float) -> Callable[[Any], Any]:
    def read(value: Any) -> float:
        need(type(value) in (int, float), value)
        try:
            return need(abs(float(value)) <= largest, float(value))
        except OverflowError as error:
            raise Unfit from error

    return read


def text(value: Any) -> Any:
    return need(isinstance(value, str), value)


def moment(pattern: str, read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        need(isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII), value)
        fraction = re.search(r"\.(\d+)", value)
        even = (
            value
            if fraction is None
            else value.replace(fraction[0], "." + fraction[1].ljust(6, "0"))
        )
        try:
            return read(even.replace("Z", "+00:00"))
        except ValueError as error:
            raise Unfit from error

    return parse


def need(condition: object, value: Any) -> Any:
    if not condition:
        raise Unfit(repr(value))
    return value


def items(each: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda v: [None if x is None else each(x) for x in need(isinstance(v, list), v)]


def by_key(each: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        need(isinstance(value, Pairs) and len(value.found) == len(value), value)
        return {k: None if x is None else each(x) for k, x in value.items()}

    return read


def struct(
    value: Any, fields: dict[str, Callable[[Any], Any]], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    need(isinstance(value, Pairs), value)
    # Also what is said of a name before it is said anew, but of texts, days and times (the page
    # on JSON)
    for name, x in value.found:
        if name in fields and x is not None and name not in LAST_COUNTS:
            fields[name](x)
    found = {
        name: None if value.get(name) is None else read(value[name])
        for name, read in fields.items()
    }
    need(all(found[name] is not None for name in required), value)
    return found


LAST_COUNTS = ("s", "t", "day", "at", "local")
INNER = {"x": whole(32), "y": items(whole(32)), "z": lambda v: struct(v, {"s": text})}
FIELDS: dict[str, Callable[[Any], Any]] = {
    "id": whole(64), "h": whole(16), "i": whole(32), "ok": lambda v: need(type(v) is bool, v),
    "f": number(3.4028235677973362e38), "d": number(1.7976931348623157e308), "s": text,
    "day": moment(r"\d{4}-\d\d-\d\d", date.fromisoformat),
    "at": moment(ZONED, datetime.fromisoformat),
    "local": moment(CLOCK, datetime.fromisoformat),
    "tags": items(text), "notes": by_key(text), "nums": by_key(number(1.7976931348623157e308)),
    "o": lambda v: struct(v, INNER, ("x",)),
    "list": items(lambda v: struct(v, {"t": text, "n": whole(64)})),
}  # fmt: skip


def same(name: str, ours: Any, wanted: Any) -> bool:
    if name == "f" and wanted is not None:
        return math.isclose(ours, wanted, rel_tol=1e-6, abs_tol=1e-44)
    if name == "at" and wanted is not None:
        return datetime.fromtimestamp(ours.timestamp(), timezone.utc) == wanted
    return bool(ours == wanted)


def changed(chance: random.Random) -> bytes:
    """A record that is right, with a few bytes or values that are others."""
    body = bytearray(TEXT.encode())
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(body))
        change = chance.randrange(6)
        if change == 0:
            body[at] = chance.randrange(256)
        elif change == 1:
            del body[at : at + chance.randint(1, 6)]
        elif change == 2:
            body[at:at] = chance.choice(
                [b"1", b".", b"e9", b'"', b"null", b"{", b"]", b",", b" ", b"-", b"\\"]
            )
        elif change == 3:
            del body[at:]
        elif change == 4:
            body += chance.choice([b"x", b"}", b"]", b" ", TEXT.encode(), b",", b"\x00"])
        else:
            some = {
                **ADA,
                chance.choice(sorted(ADA)): chance.choice(
                    [*ADA.values(), None, 1e30, "7", {"x": "1"}]
                ),
            }
            body = bytearray(json.dumps(some).encode())
        body = body or bytearray(b"{")
    return bytes(body)


@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_good_and_dead_are_all_of_the_input(spark: Any, ansi: str):
    """Random changes of a record: Python's reader and Spark agree on each, and on every value."""
    seed = random.randrange(2**32)
    chance, values = random.Random(seed), [None, *FINE, *POISON]
    values += [changed(chance) for _ in range(2500)]
    values += [chance.randbytes(chance.randint(0, 30)) for _ in range(100)]
    frame = kafka_like(spark, values)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        _, step = step_of(frame)
        good = {
            row.offset: row.value
            for row in step.plan.good(frame).select("offset", "value").collect()
        }
        dead = step.dead_letters(frame).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert sorted([*good, *(row.source_offset for row in dead)]) == list(range(len(values))), seed
    assert all(
        bytes(row.value) == values[row.source_offset] and row.error_message for row in dead
    ), seed
    assert {row.error_class for row in dead} == {"DoesNotFit"}
    for offset, value in enumerate(values):
        if value is None:
            assert good[offset] is None
            continue
        try:
            wanted = by_python(value)
        except Unfit:
            assert offset not in good, (seed, value)
            continue
        assert offset in good, (seed, value)
        ours = good[offset].asDict(recursive=True)
        assert [name for name in wanted if not same(name, ours[name], wanted[name])] == [], (
            seed,
            value,
            ours,
        )
    assert set(range(len(FINE) + 1)) <= set(good)
    assert not set(range(len(FINE) + 1, len(FINE) + 1 + len(POISON))) & set(good)
    assert 100 < len(good) < 2400, (seed, len(good))


def failure(action: Callable[[], Any]) -> OncewardError:
    """What a job that fails says, as the sinks hear of it."""
    with pytest.raises(Exception) as failed:  # noqa: PT011 — Spark's own, of several kinds
        action()
    found = known_failure(thrown_by(failed.value))
    assert found is not None, failed.value
    return found


HOW_IT_IS_USED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": lambda frame: frame.groupBy().count(),
    "filter on a field": lambda frame: frame.where("value.id > 1 AND value.s IS NOT NULL").select(
        "value.id"
    ),
    "filter on another column": lambda frame: frame.where("partition >= 0").select("offset"),
    "filter on the value": lambda frame: frame.where("value IS NOT NULL"),
    "join": lambda frame: frame.join(
        frame.sparkSession.range(5), F.col("value.id") == F.col("id")
    ).select("topic"),
    "explode": lambda frame: frame.select(F.explode("value.tags")),
}


@pytest.mark.parametrize("use", sorted(HOW_IT_IS_USED))
def test_poison_stops_whatever_the_query_looks_at(spark: Any, use: str):
    decoded, _ = step_of(kafka_like(spark, [TEXT.encode(), b'{"id":1,"s":5}']), SMALL)
    error = failure(HOW_IT_IS_USED[use](decoded).collect)
    assert isinstance(error, InvalidRecord)
    assert {name: error.details[name] for name in ("class", "topic", "partition", "offset")} == {
        "class": "DoesNotFit", "topic": "people", "partition": 1, "offset": 1,
    }  # fmt: skip
    assert "field 's'" in error.message


@pytest.mark.parametrize(
    ("setting", "schema"),
    [
        ("spark.sql.legacy.json.allowEmptyString.enabled", "n INT"),
        ("spark.sql.variant.allowDuplicateKeys", "l ARRAY<VARIANT>"),
    ],
)
def test_a_session_that_reads_records_as_others_is_refused(
    spark: Any, request: pytest.FixtureRequest, setting: str, schema: str
):
    frame = spark.createDataFrame([(b"{}",)], "value BINARY")
    changes = spark.createDataFrame([], CHANGES)
    spark.conf.set(setting, "true")
    request.addfinalizer(partial(spark.conf.unset, setting))
    with raises(ConfigurationError, f"{setting}=true"):
        ow.json.decode(frame, schema=schema)
    with raises(ConfigurationError, f"{setting}=true"):
        ow.debezium.rows(changes, table="shop.t", schema=schema)
    spark.conf.set(setting, "false")
    ow.json.decode(frame, schema=schema)
    ow.debezium.rows(changes, table="shop.t", schema=schema)


def test_a_record_is_read_once(spark: Any):
    """A filter and a projection of the user's do not make Spark evaluate ``from_json`` for
    each.
    """
    decoded, step = step_of(kafka_like(spark, [TEXT.encode()]), SMALL)
    for rows in (decoded, step.plan.good(kafka_like(spark, [TEXT.encode()]))):
        used = rows.where("value.id > 0 AND value.s LIKE '%d%'").select(
            "value.id", F.upper("value.s"), "value"
        )
        plan = used._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json(") == 1 + (rows is decoded), (
            plan
        )  # the other one says why a record is bad
        assert decoded._jdf.queryExecution().analyzed().deterministic()


def test_any_json_in_a_field(spark: Any):
    """VARIANT keeps a value of whatever kind; the columns' names may be odd."""
    values = [
        b'{"a.b": {"x": [1.10, "y"]}, "`c`": "z"}',
        b'{"a.b": 1}',
        b'{"a.b": null, "`c`": "z"}',
        b'{"`c`": "z"}',
    ]
    frame = kafka_like(spark, values).withColumnRenamed("value", "the.value")
    rows = ow.json.decode(frame, schema="`a.b` VARIANT, ```c``` STRING", column="the.value")
    found = rows.select(F.to_json("`the.value`").alias("json")).collect()
    assert [json.loads(row.json) for row in found] == [
        {"a.b": {"x": [1.1, "y"]}, "`c`": "z"}, {"a.b": 1}, {"a.b": None, "`c`": "z"},
        {"`c`": "z"},
    ]  # fmt: skip


@pytest.mark.fault("json-poison")
def test_records_of_every_kind_end_in_one_of_two_topics(pipeline: Pipeline):
    """What is bad is a dead letter of its batch, and nothing is unaccounted for."""
    dead = pipeline.topic(1)
    fine, poison = [*FINE[:4], b'{"id":9}'], [*POISON[:40], b"\xff", b'{"id":1,"s":5}']
    poison = [
        text for text in poison if not re.search(rb'"(h|i|ok)"', text)
    ]  # which the smaller schema does not have
    pipeline.feed([(b"k%d" % n, value) for n, value in enumerate([*fine, None, *poison])])
    rows = ow.json.decode(pipeline.frame(), schema=SMALL, on_error="dead_letter")
    written = rows.select("key", F.to_json("value").alias("value"), *ow.lineage())
    pipeline.run(
        frame=written,
        transform=lambda f: f,
        sink=pipeline.sink(dead_letter_topic=dead, lineage=True),
    )
    letters = pipeline.visible(dead)
    assert sorted(m.value() for m in letters) == sorted(poison)
    assert {dict(m.headers())["onceward.error.class"] for m in letters} == {b"DoesNotFit"}
    values = [m.value() for m in pipeline.visible()]
    assert sorted(json.loads(v)["id"] for v in values if v is not None) == sorted(
        by_python(t)["id"] for t in fine
    )
    assert values.count(None) == 1
    answer = verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--conserves", "exactly"
    )
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer


def test_a_number_in_a_variant_is_never_infinite(spark: Any):
    """Spark reads what is too large for a double as one that is infinite."""
    zeros = "0" * 310
    infinite = ["1e309", "-1E+400", "[[1e999]]", '{"a":{"b":-1e309}}', f"1{zeros}", f"1{zeros}.0",
        f"0.1{zeros}e999",
                "1.7976931348623159e308", "1e0000309", "1" * 250 + "e70",
                '["Infinity\\"",1e309]']  # fmt: skip
    finite = ['["Infinity",1e300]', r'{"a\"Infinity":{"-Infinity":1e300}}',
        r'{"k\\\\":"1e309","Infinity":1e300}',
              "1e308", "1e-400", '"1e309"', '{"Infinity":"1e309"}', '["\\"Infinity",1e300]',
              f"0.{zeros}", "null",
              "1.7976931348623157e308", '"a\\\\"', f'"{zeros}"',
              '["' + r"\"" * 100_000 + "1" * 1_000_000 + '",1e308]']  # fmt: skip
    for schema, around in (
        ("v VARIANT", "%s"),
        ("v ARRAY<STRUCT<m: MAP<STRING, VARIANT>>>", '[null,{"m":{"k":%s}}]'),
    ):
        values: list[bytes | None] = [
            f'{{"v":{around % text}}}'.encode() for text in (*finite, *infinite)
        ]
        _, step = step_of(kafka_like(spark, values), schema)
        good = step.plan.good(kafka_like(spark, values)).select("offset").collect()
        assert sorted(row.offset for row in good) == list(range(len(finite))), schema
        bad = step.plan.bad(kafka_like(spark, values)).collect()
        assert {row.error_message for row in bad} == {"a number in it is too large"}
    _, step = step_of(kafka_like(spark, [b'{"n":1e309,"v":1}']), "v VARIANT")
    assert step.plan.good(kafka_like(spark, [b'{"n":1e309,"v":1}'])).count() == 1


def test_a_text_may_be_as_long_as_a_record(spark: Any):
    """Jackson's limit is 20,000,000 characters, and beyond it a text was called no JSON. One
    record at a time: each is in the JVM's memory several times.
    """
    schema, long = "s STRING", 20_000_001
    text = F.concat(F.lit('{"s":"'), F.repeat(F.lit("x"), F.col("id").cast("int")), F.lit('"}'))
    frame = spark.range(long, long + 1, 1, 1).select(
        F.lit("people").alias("topic"), text.cast("binary").alias("value")
    )
    _, step = step_of(frame, schema)
    assert step.plan.good(frame).selectExpr("length(value.s)").first()[0] == long
    assert step.plan.bad(frame).count() == 0


def test_why_a_record_is_no_json(spark: Any):
    texts = [b'{"id":1', b'{"id":1} x', b'{"id":1}{"id":2}', b'{"%s":1}' % (b"n" * 60_000)]
    frame = kafka_like(spark, list(texts))
    _, step = step_of(frame, SMALL)
    bad = step.plan.bad(frame).collect()
    assert [row.error_message for row in bad] == [
        "it is no JSON, goes on behind the object, or is beyond the parser's limits"
    ] * len(texts)
