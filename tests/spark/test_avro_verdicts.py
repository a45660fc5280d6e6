"""I22: each record is read, or refused by name, whatever the query does after the decoding."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

import onceward as ow
from onceward.engine import decoding
from onceward.errors import InvalidRecord, NewSchemaId, OncewardError
from onceward.spark.batch.causes import thrown_by
from onceward.spark.batch.failures import known_failure
from support.avro_codec import Malformed, read, varint, write
from support.memory_registry import MemoryRegistry

INNER = {"type": "record", "name": "Inner", "fields": [{"name": "s", "type": "string"}]}
PERSON = {
    "type": "record",
    "name": "Person",
    "namespace": "com.example",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "mail", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "notes", "type": {"type": "map", "values": "string"}, "default": {}},
        {"name": "more", "type": ["null", INNER], "default": None},
        {
            "name": "rows",
            "type": {"type": "array", "items": {"type": "map", "values": ["int", "string"]}},
            "default": [],
        },
        {
            "name": "kind",
            "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
            "default": "A",
        },
        {"name": "price", "type": "double", "default": 0},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}, "default": "abcd"},
    ],
}
ADA = {
    "id": 7, "name": "Ada", "mail": (1, "ada@example.com"), "tags": ["a", "é"],
    "notes": {"k": "v"},
    "more": (1, {"s": "x"}), "rows": [{"r": (1, "y"), "q": (0, 3)}], "kind": 1, "price": 1.5,
    "hash": b"1234",
}  # fmt: skip


def framed(number: int, body: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", number) + body


def bad_texts() -> list[bytes]:
    """Records that are right but for one text, in each place that a text can have."""
    # the begin of a character of four bytes, which Java would replace by one of three
    wrong = b"\xf0\x9f\x98"
    changes: list[dict[str, Any]] = [
        {"name": wrong}, {"mail": (1, wrong)}, {"tags": ["a", wrong]}, {"notes": {"k": wrong}},
        {"more": (1, {"s": wrong})}, {"rows": [{"r": (1, wrong)}]}, {"tags": [b"\xc3", b"\xa9"]},
    ]  # fmt: skip
    bodies = [write(PERSON, ADA | change) for change in changes]
    keys = (
        write(PERSON, ADA).replace(varint(1) + b"k", varint(1) + b"\xff"),
        write(PERSON, ADA).replace(varint(1) + b"q", varint(1) + b"\xff"),
    )
    return [framed(1, body) for body in (*bodies, *keys)]


BODY = write(PERSON, ADA)
POISON: dict[str, list[bytes]] = {
    "BadFraming": [
        b"",
        b"\x00",
        b"\x00\x00\x00\x00",
        b"\x01" + framed(1, BODY)[1:],
        b'{"json": true}',
    ],
    "UnknownSchemaId": [framed(404, BODY), framed(2**32 - 1, BODY), framed(0, BODY)],
    "DoesNotFit": [
        framed(1, BODY[:-1]),
        framed(1, BODY + b"\x00"),
        framed(1, b""),
        framed(1, BODY * 2),
        *bad_texts(),
    ],
}


@pytest.fixture
def registry() -> MemoryRegistry:
    found = MemoryRegistry()
    found.add("people", PERSON, 1)
    return found


def kafka_like(spark: Any, values: list[bytes | None]) -> DataFrame:
    rows = [
        (b"k", None if v is None else bytearray(v), "people", n % 3, n)
        for n, v in enumerate(values)
    ]
    return spark.createDataFrame(
        rows, "key binary, value binary, topic string, partition int, offset bigint"
    )


def step_of(frame: DataFrame, registry: MemoryRegistry) -> tuple[DataFrame, Any]:
    """``frame`` decoded, and the step, which knows both sides of the verdict."""
    decoded = ow.avro.decode(frame, registry=registry, subject="people", unknown_id_wait_s=0)
    return decoded, next(reversed(decoding._registered.values()))


def failure(action: Callable[[], Any]) -> OncewardError:
    """What a job that fails says, as the sinks hear of it."""
    with pytest.raises(Exception) as failed:  # noqa: PT011 — Spark's own, of several kinds
        action()
    found = known_failure(thrown_by(failed.value))
    assert found is not None, failed.value
    return found


@pytest.mark.parametrize("around", [False, True], ids=["ours beside its fields", "ours around it"])
def test_good_and_dead_are_all_of_the_input(spark: Any, around: bool):
    """Random changes of a record, and random bytes: an independent decoder and Spark agree on
    each.
    """
    registry = MemoryRegistry()
    if around:
        registry.add(
            "people", ["null", PERSON], 2
        )  # no record: so no field of ours is among a record's own
    registry.add("people", PERSON, 1)
    seed = random.randrange(2**32)
    chance, values = (
        random.Random(seed),
        [None, framed(1, BODY), *(v for vs in POISON.values() for v in vs)],
    )
    for _ in range(3000):
        body = bytearray(BODY)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(body))
            change = chance.randrange(4)
            if change == 0:
                body[at] = chance.randrange(256)
            elif change == 1:
                del body[at : at + chance.randint(1, 4)]
            elif change == 2:
                body[at:at] = chance.randbytes(chance.randint(1, 4))
            else:
                body[at] ^= 1 << chance.randrange(8)
            body = body or bytearray(b"\x00")
        values.append(framed(1, bytes(body)))
    values += [chance.randbytes(chance.randint(0, 30)) for _ in range(200)]
    values += [framed(1, chance.randbytes(chance.randint(0, 60))) for _ in range(500)]
    frame = kafka_like(spark, values)
    _, step = step_of(frame, registry)
    good = {
        row.offset: row.value for row in step.plan.good(frame).select("offset", "value").collect()
    }
    dead = step.dead_letters(frame).collect()
    assert sorted([*good, *(row.source_offset for row in dead)]) == list(range(len(values))), seed
    assert all(bytes(row.value) == values[row.source_offset] for row in dead), seed
    for offset, value in enumerate(values):
        wanted = is_right(value)
        assert (offset in good) == wanted, (seed, offset, value)
        if wanted and value is not None:
            told = read(PERSON, value[5:])
            assert (good[offset].id, good[offset].name) == (told["id"], told["name"]), (
                seed,
                value,
            )
            assert [set(row) for row in good[offset].rows] == [set(row) for row in told["rows"]], (
                seed,
                value,
            )
    assert 100 < len(good) < 3000, (seed, len(good))


def is_right(value: bytes | None) -> bool:
    if value is None:
        return True
    try:
        read(PERSON, value[5:])
    except Malformed:
        return False
    return value[:5] == framed(1, b"")


@pytest.mark.parametrize("kind", sorted(POISON))
def test_poison_has_a_class_and_a_reason(spark: Any, registry: MemoryRegistry, kind: str):
    frame = kafka_like(spark, [framed(1, BODY), *POISON[kind]])
    _, step = step_of(frame, registry)
    dead = step.dead_letters(frame).orderBy("source_offset").collect()
    assert [row.source_offset for row in dead] == list(range(1, len(POISON[kind]) + 1))
    assert {row.error_class for row in dead} == {kind}
    assert all(row.error_message for row in dead)
    assert {(bytes(row.key), row.source_topic, row.headers) for row in dead} == {
        (b"k", "people", None)
    }


@pytest.mark.parametrize(("column", "other"), [("value", "key"), ("key", "value")])
def test_a_record_whose_schema_is_in_a_header_is_none_of_the_id_that_it_begins_with(
    spark: Any, registry: MemoryRegistry, column: str, other: str
):
    """As Confluent's HeaderSchemaIdSerializer writes it: the body alone."""
    mine, others = (
        [("a", bytearray()), (f"__{name}_schema_id", bytearray(b"\1"))] for name in (column, other)
    )
    one, guid = framed(1, BODY), b"\x01" + bytes(16) + BODY
    rows = [(one, mine), (one, others), (one, []), (one, None), (framed(9, b"\xff"), mine),
            (guid, None), (None, mine)]  # fmt: skip
    frame = spark.createDataFrame(
        [(n, value and bytearray(value), headers) for n, (value, headers) in enumerate(rows)],
        f"offset int, {column} binary, headers array<struct<key: string, value: binary>>",
    )
    decoded = ow.avro.decode(
        frame, registry=registry, column=column, subject="people", unknown_id_wait_s=0
    )
    step = next(reversed(decoding._registered.values()))
    found = {
        row.offset: row.error_message
        for row in step.plan.bad(frame).where("error_class = 'BadFraming'").collect()
    }
    assert sorted(found) == [0, 4, 5]
    assert f"__{column}_schema_id" in found[0] == found[4]
    assert "GUID" in found[5]
    assert sorted(row.offset for row in step.plan.good(frame).collect()) == [1, 2, 3, 6]
    assert isinstance(failure(decoded.where("offset IN (0, 1)").collect), InvalidRecord)


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("fields", [1, 13], ids=["few fields", "many fields"])
def test_a_text_of_javas_is_looked_at_as_it_came(spark: Any, fields: int):
    """Schemas of Java programs say "avro.java.string" of a text, and Avro's library would replace
    what is no UTF-8 in it."""
    text = {"type": "string", "avro.java.string": "String"}
    kinds = [
        text,
        ["null", text],
        {"type": "array", "items": text},
        {"type": "map", "values": "long", "avro.java.string": "String"},
        {"type": "map", "values": text, "avro.java.string": "String"},
    ]
    wrong = [b"a\xffb", (1, b"a\xffb"), [b"\xff"], {"aXb": 1}, {"k": b"\xff"}]
    right = ["é", (1, "é"), ["é"], {"é": 1}, {"é": "é"}]
    registry, values = MemoryRegistry(), []
    for place, (bad, good) in enumerate(zip(wrong, right, strict=True)):
        named = [("f", kinds[place]), *((f"n{n}", "null") for n in range(1, fields))]
        each = [{"name": name, "type": kind} for name, kind in named]
        schema = {"type": "record", "name": "R", "fields": each}
        registry.add(f"s{place}", schema, place + 1)
        nulls = {f"n{n}": None for n in range(1, fields)}
        bodies = [write(schema, {"f": value} | nulls) for value in (good, bad)]
        values = [framed(place + 1, body.replace(b"aXb", b"a\xffb")) for body in bodies]
        frame = kafka_like(spark, values)
        ow.avro.decode(frame, registry=registry, subject=f"s{place}")
        step = next(reversed(decoding._registered.values()))
        found = step.plan.good(frame).collect()
        wanted = good[1] if isinstance(good, tuple) else good
        assert [(row.offset, row.value.f) for row in found] == [(0, wanted)], place
        (letter,) = step.dead_letters(frame).collect()
        assert "not UTF-8" in letter.error_message, place


HOW_IT_IS_USED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": lambda frame: frame.groupBy().count(),
    "other columns": lambda frame: frame.select("key"),
    "filter on another column": lambda frame: frame.where("partition >= 0").select("offset"),
    "filter on a field": lambda frame: frame.where(
        "value.id > 0 AND value.name IS NOT NULL"
    ).select("value.id"),
    "filter on the value": lambda frame: frame.where("value IS NOT NULL"),
    "window": lambda frame: frame.groupBy(
        F.window(F.timestamp_seconds("offset"), "10 seconds")
    ).count(),
    "join": lambda frame: frame.join(
        frame.sparkSession.range(5), F.col("value.id") == F.col("id")
    ).select("topic"),
    "union": lambda frame: frame.select("offset").union(frame.sparkSession.range(3)),
    "distinct": lambda frame: frame.select("topic").distinct(),
    "explode": lambda frame: frame.select(F.explode("value.tags")),
}


@pytest.mark.parametrize("use", sorted(HOW_IT_IS_USED))
def test_poison_stops_whatever_the_query_looks_at(spark: Any, registry: MemoryRegistry, use: str):
    decoded, _ = step_of(kafka_like(spark, [framed(1, BODY), framed(1, BODY[:-1])]), registry)
    error = failure(HOW_IT_IS_USED[use](decoded).collect)
    assert isinstance(error, InvalidRecord)
    assert {name: error.details[name] for name in ("class", "topic", "partition", "offset",
        "id")} == {
        "class": "DoesNotFit", "topic": "people", "partition": 1, "offset": 1, "id": 1,
    }  # fmt: skip
    assert "offset 1 of partition 1 of topic people" in error.message
    assert 'on_error="dead_letter"' in error.next_step


def test_a_record_is_decoded_once(spark: Any, registry: MemoryRegistry):
    """A filter and a projection of the user's do not make Spark evaluate ``from_avro`` for
    each.
    """
    decoded, step = step_of(kafka_like(spark, [framed(1, BODY)]), registry)
    for rows in (decoded, step.plan.good(kafka_like(spark, [framed(1, BODY)]))):
        used = rows.where("value.id > 0 AND value.name LIKE '%d%'").select(
            "value.id", F.upper("value.name"), "value"
        )
        plan = used._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_avro(") == 1, plan
        assert decoded._jdf.queryExecution().analyzed().deterministic()


def test_lengths_that_no_record_has_cost_no_memory(spark: Any):
    """Five bytes say that two billion follow. Avro would make room for them, and the JVM of these
    tests would end.
    """
    schemas: list[tuple[Any, bytes]] = [
        ("string", varint(2**31 - 20)),
        ("bytes", varint(2**31 - 20)),
        ({"type": "array", "items": "long"}, varint(2**31 - 20)),
        (
            {"type": "map", "values": "long"},
            varint(2**31 - 20) + varint(1) + b"a" + varint(1) + varint(1) + b"b",
        ),
    ]
    registry = MemoryRegistry()
    for n, (schema, _) in enumerate(schemas, 1):
        registry.add(
            "s", {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": schema}]}, n
        )
    frame = kafka_like(spark, [framed(n, body) for n, (_, body) in enumerate(schemas, 1)])
    fields = [
        {"name": f"f{n}", "type": ["null", schema], "default": None}
        for n, (schema, _) in enumerate(schemas, 1)
    ]
    reader = json.dumps({"type": "record", "name": "R", "fields": fields})
    ow.avro.decode(frame, registry=registry, subject="s", reader_schema=reader)
    step = next(reversed(decoding._registered.values()))
    assert step.dead_letters(frame).count() == len(schemas)


def test_an_id_that_is_new_fails_the_job_and_is_found(spark: Any, registry: MemoryRegistry):
    known = kafka_like(spark, [framed(1, BODY)])
    _, step = step_of(known, registry)
    later = kafka_like(
        spark, [framed(1, BODY), b"", None, *(framed(n, BODY) for n in (5, 6, 6, 2**32 - 1))]
    )
    framed_all = later.where("octet_length(value) > 4")
    for act in (
        step.plan.good(later).count,
        step.plan.good_or_raise(framed_all).count,
        step.dead_letters(later).count,
    ):
        error = failure(act)
        assert isinstance(error, NewSchemaId)
        assert error.details["tag"] == step.tag
    registry.add("others", PERSON, 5)
    better = step.explain(error, lambda: later)
    assert isinstance(better, NewSchemaId)
    assert better.details["ids"] == [5, 6, 2**32 - 1]
    assert len(better.details["news"]) == 3
    _, step = step_of(later, registry)
    assert [row.error_class for row in step.dead_letters(later).collect()] == [
        "BadFraming",
        *["UnknownSchemaId"] * 3,
    ]
    assert step.plan.good(later).count() == 3
    registry.add("others", PERSON, 6)  # late
    _, step = step_of(known, registry)
    assert step.plan.good(later).count() == 5


@pytest.mark.lengthy("chaos")
def test_ids_that_are_damaged_beside_a_checkpoint_are_learnt_again(
    spark: Any, registry: MemoryRegistry, tmp_path: Path
):
    known, later = (kafka_like(spark, [framed(number, BODY)]) for number in (1, 5))
    registry.add("others", PERSON, 5)

    def new_step() -> Any:
        ow.avro.decode(known, registry=registry, subject="people", checkpoint=tmp_path)
        return next(reversed(decoding._registered.values()))

    step = new_step()
    unseen = NewSchemaId("5", details={"tag": step.tag, "ids": [5]})
    assert isinstance(step.explain(unseen, lambda: later), NewSchemaId)
    (file,) = (file for file in tmp_path.rglob("*.json"))
    found = json.loads(file.read_text())
    assert (found["ids"], found["missing"], sorted(found["fingerprints"])) == (
        [1, 5],
        [],
        ["1", "5"],
    )
    for damage in (
        "",
        '{"ids": [1',
        '{"ids": [1, "x"], "missing": []}',
        "[]",
        '{"ids": [], "missing": [], "fingerprints": 7}',
    ):
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(damage)
        assert new_step().plan.good(later).count() == 1
