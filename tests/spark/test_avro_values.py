"""What comes out of ``ow.avro.decode`` is what went in, whatever Avro can say, also when the
schemas differ.

Records are written by tests/support/avro_codec.py, which knows the specification and nothing of Java.
"""

from __future__ import annotations

import datetime
import decimal
import json
import struct
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row

import onceward as ow
from onceward.engine import decoding
from support.avro_codec import unfold, write
from support.memory_registry import MemoryRegistry

UTC = datetime.timezone.utc
UNIQUE = uuid.UUID("12345678-1234-5678-1234-567812345678")


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t} for n, t in fields],
        **more,
    }


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def framed(number: int, schema: Any, value: Any) -> bytearray:
    return bytearray(b"\x00" + struct.pack(">I", number) + write(unfold(schema), value))


def frame_of(spark: Any, *values: Any) -> DataFrame:
    return spark.createDataFrame(
        [(n, value) for n, value in enumerate(values)], "n int, value binary"
    )


def read(spark: Any, writer: Any, value: Any, reader: Any = None) -> Any:
    """``value``, written by ``writer`` and decoded as ``reader``."""
    registry = MemoryRegistry()
    registry.add("s", writer, 7)
    frame = frame_of(spark, framed(7, writer, value))
    chosen = None if reader is None else json.dumps(reader)
    found = ow.avro.decode(frame, registry=registry, subject="s", reader_schema=chosen).collect()
    assert [row.n for row in found] == [0]
    return found[0].value


EVERYTHING = [
    ("a boolean", "boolean", True, True),
    ("an int", "int", -(2**31), -(2**31)),
    ("a long", "long", 2**63 - 1, 2**63 - 1),
    ("a float", "float", 1.5, 1.5),
    ("a double", "double", -1e300, -1e300),
    ("bytes", "bytes", b"\xff\x00", bytearray(b"\xff\x00")),
    ("a string", "string", "Zoë €😀", "Zoë €😀"),
    ("an empty string", "string", "", ""),
    ("a null", ["null", "string"], (0, None), None),
    ("no null", ["null", "string"], (1, "x"), "x"),
    ("an enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, 1, "B"),
    ("a fixed", {"type": "fixed", "name": "F", "size": 3}, b"abc", bytearray(b"abc")),
    ("an array", {"type": "array", "items": ["null", "string"]}, [(1, "a"), (0, None)],
    ["a", None]),
    ("an empty array", {"type": "array", "items": "long"}, [], []),
    ("a map", {"type": "map", "values": "int"}, {"é": 1, "b": 2}, {"é": 1, "b": 2}),
    ("a union", ["int", "string"], (1, "x"), Row(member0=None, member1="x")),
    ("a union with null", ["null", "int", "string"], (1, 5), Row(member0=5, member1=None)),
    ("int or long", ["int", "long"], (1, 2**40), 2**40),
    ("a record", record(("a", "int"), ("b", record(("c", "string"), name="S"))),
    {"a": 1, "b": {"c": "x"}},
     Row(a=1, b=Row(c="x"))),
    ("arrays of "
     "maps of records", {"type": "array", "items": {"type": "map",
     "values": record(("a", "string"))}},
     [{"k": {"a": "x"}}], [{"k": Row(a="x")}]),
    ("a decimal", logical("bytes", "decimal", precision=9, scale=2), b"\xff\x85",
    decimal.Decimal("-1.23")),
    ("a fixed decimal", {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal",
    "precision": 9, "scale": 3},
     b"\x00\x00\x04\xd2", decimal.Decimal("1.234")),
    ("a date", logical("int", "date"), 19_000, datetime.date(2022, 1, 8)),
    ("time-millis", logical("int", "time-millis"), 3_600_001, 3_600_001),
    ("time-micros", logical("long", "time-micros"), 3_600_000_001, 3_600_000_001),
    ("timestamp-millis", logical("long", "timestamp-millis"), 1_700_000_000_123,
     datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
    ("timestamp-micros", logical("long", "timestamp-micros"), 1_700_000_000_123_456,
     datetime.datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)),
    ("local-timestamp-millis", logical("long", "local-timestamp-millis"), 1_700_000_000_123,
     datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000)),
    ("local-timestamp-micros", logical("long", "local-timestamp-micros"), 1_700_000_000_123_456,
     datetime.datetime(2023, 11, 14, 22, 13, 20, 123_456)),
    ("a uuid", logical("string", "uuid"), str(UNIQUE), str(UNIQUE)),
    ("a duration", {"type": "fixed", "name": "T", "size": 12, "logicalType": "duration"},
    b"\x01" * 12,
     bytearray(b"\x01" * 12)),
]  # fmt: skip


def test_every_type_of_avro(spark: Any):
    """All of them in one record, so that none reads into the next."""
    schema, values = together((schema, value) for _, schema, value, _ in EVERYTHING)
    found = read(spark, schema, values)
    for n, (what, _, _, wanted) in enumerate(EVERYTHING):
        assert comparable(found[n]) == comparable(wanted), what


@pytest.mark.parametrize("what", ["a string", "a null", "an array", "a union", "a fixed"])
def test_what_is_no_record(spark: Any, what: str):
    schema, value, wanted = next(rest for name, *rest in EVERYTHING if name == what)
    assert comparable(read(spark, schema, value)) == comparable(wanted)


def together(cases: Iterable[tuple[Any, Any]]) -> tuple[Any, dict[str, Any]]:
    """One record of all of them."""
    each = list(cases)
    schema = record(
        *((f"f{n}", named(n, schema)) for n, (schema, _) in enumerate(each)),
        name="All",
        namespace="com.x",
    )
    return schema, {f"f{n}": value for n, (_, value) in enumerate(each)}


def named(number: int, schema: Any) -> Any:
    """With names of its own: a name may be defined once."""
    return json.loads(
        json.dumps(schema).replace('"name": "', f'"name": "N{number}_'), object_hook=_own_fields
    )


def _own_fields(found: dict[str, Any]) -> dict[str, Any]:
    """Fields keep theirs, and so do the aliases of types."""
    for field in found.get("fields", ()):
        field["name"] = field["name"].partition("_")[2]
    if "name" in found and "type" in found and found["type"] == "record":
        found["aliases"] = [
            found["name"].partition("_")[0] + "_" + alias for alias in found.get("aliases", ())
        ]
    return found


def comparable(value: Any) -> Any:
    """PySpark gives an instant as a local time without a zone."""
    return value.astimezone(UTC) if isinstance(value, datetime.datetime) else value


EVOLUTIONS = [
    ("a field is new", record(("a", "int")), {"a": 1},
     record(fields=[{"name": "a", "type": "int"},
     {"name": "b", "type": "string", "default": "x"}]),
     Row(a=1, b="x")),
    ("a field is gone", record(("a", "int"), ("b", "string"), ("c", "long")),
    {"a": 1, "b": "x", "c": 2},
     record(("a", "int"), ("c", "long")), Row(a=1, c=2)),
    ("a field has another name", record(("a", "int")), {"a": 1},
     {"type": "record", "name": "R", "fields": [{"name": "b", "aliases": ["a"], "type": "int"}]},
     Row(b=1)),
    ("a record has another name", record(("a", "int"), name="Old"), {"a": 1},
     record(("a", "int"), name="New", aliases=["Old"]), Row(a=1)),
    ("fields change places", record(("a", "int"), ("b", "string")), {"a": 1, "b": "x"},
     record(("b", "string"), ("a", "int")), Row(b="x", a=1)),
    ("int to long", "int", 5, "long", 5),
    ("int to double", "int", 5, "double", 5.0),
    ("long to float", "long", 5, "float", 5.0),
    ("float to double", "float", 1.5, "double", 1.5),
    ("string to bytes", "string", "é", "bytes", bytearray("é".encode())),
    ("bytes to string", "bytes", "é".encode(), "string", "é"),
    ("may be null now", "string", "x", ["null", "string"], "x"),
    ("may not be null any more", ["null", "string"], (1, "x"), "string", "x"),
    ("an unknown symbol has a default", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, 1,
     {"type": "enum", "name": "E", "symbols": ["A", "Z"], "default": "Z"}, "Z"),
    ("a wider decimal", logical("bytes", "decimal", precision=5, scale=2), b"\x7b",
     logical("bytes", "decimal", precision=20, scale=2), decimal.Decimal("1.23")),
    ("a number becomes a moment", "long", 1_700_000_000_123, logical("long", "timestamp-millis"),
     datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
]  # fmt: skip


def test_every_evolution(spark: Any):
    """All of them in one record that was written by one schema and is read as another."""
    writer, values = together((writer, value) for _, writer, value, _, _ in EVOLUTIONS)
    reader, _ = together((reader, None) for _, _, _, reader, _ in EVOLUTIONS)
    found = read(spark, writer, values, reader)
    for n, (what, _, _, _, wanted) in enumerate(EVOLUTIONS):
        assert comparable(found[n]) == comparable(wanted), what


def one_field(name: str, kind: Any = "int", *aliases: str, default: Any = -1) -> dict[str, Any]:
    return {"name": name, "type": kind, "aliases": list(aliases), "default": default}


def old(name: str) -> dict[str, Any]:
    return record(("a", "int"), name=name)


def new(name: str, *aliases: str) -> dict[str, Any]:
    """What :func:`old` wrote has another name here."""
    return record(fields=[one_field("b", "int", "a")], name=name, aliases=list(aliases))


def enum(name: str, *aliases: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": ["A", "B"], "aliases": list(aliases)}


def fixed(name: str, *aliases: str) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": 2, "aliases": list(aliases)}


NAMES = [
    ("another namespace", old("com.a.P"), {"a": 7}, new("com.b.P"), Row(b=7)),
    ("a namespace, now", old("P"), {"a": 7}, new("com.b.P"), Row(b=7)),
    ("no namespace any more", old("com.a.P"), {"a": 7}, new("P"), Row(b=7)),
    ("a short alias", old("com.a.Refund"), {"a": 7}, new("com.b.Order", "Refund"), Row(b=7)),
    ("a full alias", old("com.a.Refund"), {"a": 7}, new("com.b.Order", "com.a.Refund"),
     Row(b=7)),
    ("within a record", record(("x", old("Q")), name="com.a.P"), {"x": {"a": 7}},
     record(("x", new("Q")), name="com.b.P"), Row(x=Row(b=7))),
    ("in an array in a map", {"type": "map", "values": {"type": "array", "items": old("a.Q")}},
     {"k": [{"a": 7}]}, {"type": "map", "values": {"type": "array", "items": new("b.S", "Q")}},
     {"k": [Row(b=7)]}),
    ("of a union, by an alias", record(("x", [old("Refund")]), name="com.a.T"),
     {"x": (0, {"a": 7})},
     record(("x", ["null", old("Order"), record(("a", "int"), name="Pay", aliases=["Refund"])]),
            name="com.b.T"),
     Row(x=Row(member0=None, member1=Row(a=7)))),
    ("two of a union that are one now", ["null", old("com.a.P"), old("com.b.P")], (2, {"a": 7}),
     ["string", new("com.c.P"), "null"], Row(member0=None, member1=Row(b=7))),
    ("two of a union that are one of two now", ["null", old("v1.P"), old("v2.P"), old("Q")],
     (1, {"a": 7}), ["null", old("v2.P"), old("Q")], Row(member0=Row(a=7), member1=None)),
    ("the other one", ["null", old("v1.P"), old("v2.P"), old("Q")],
     (2, {"a": 7}), ["null", old("v2.P"), old("Q")], Row(member0=Row(a=7), member1=None)),
    ("what is beside them", ["null", old("v1.P"), old("v2.P"), old("Q")],
     (3, {"a": 7}), ["null", old("v2.P"), old("Q")], Row(member0=None, member1=Row(a=7))),
    ("the enum of its full name", ["null", enum("v1.E"), enum("v2.E")], (2, 1),
     ["null", enum("v2.E")], "B"),
    ("enums of two records' unions",
     [record(("e", ["null", enum("v1.E")]), name="v1.P"),
      record(("e", ["null", enum("v2.E")]), name="v2.P")], (1, {"e": (1, 1)}),
     record(("e", ["null", enum("E")]), name="P"), Row(e="B")),
    ("a full alias before a short name", ["null", enum("v1.E"), enum("v2.E")], (2, 1),
     [enum("E"), enum("v3.F", "v2.E"), "null"], Row(member0=None, member1="B")),
    ("the fixed of a full alias", ["null", fixed("v1.E"), fixed("v2.E")], (2, b"xy"),
     ["null", fixed("v3.E", "v2.E")], bytearray(b"xy")),
    ("one that is two now", record(("x", old("a.P")), ("y", "a.P")), {"x": {"a": 7}, "y": {"a": 8}},
     record(("x", new("b.P")), ("y", new("b.Q", "P"))), Row(x=Row(b=7), y=Row(b=8))),
    ("one that is used again", record(("x", old("a.P")), ("y", "a.P"), ("z", old("c.Z"))),
     {"x": {"a": 7}, "y": {"a": 8}, "z": {"a": 9}},
     record(fields=[one_field("gone", new("c.Z"), default={"b": 6}),
                    one_field("y", new("b.P"), default={"b": 5}),
                    one_field("x", "b.P", default={"b": 5})]),
     Row(gone=Row(b=6), y=Row(b=8), x=Row(b=7))),
    ("an enum", record(("e", enum("com.a.E")), ("f", ["null", enum("com.a.F")])),
     {"e": 1, "f": (1, 1)},
     record(("e", enum("com.b.X", "E")), ("f", ["null", enum("com.b.Y", "E", "F")])),
     Row(e="B", f="B")),
    ("a fixed", record(("e", fixed("com.a.E")), ("f", ["null", fixed("com.a.F")])),
     {"e": b"xy", "f": (1, b"z.")},
     record(("e", fixed("com.b.X", "E")), ("f", ["null", fixed("com.b.Y", "F")])),
     Row(e=bytearray(b"xy"), f=bytearray(b"z."))),
    ("a field that has both names", record(("a", "int"), ("b", "int")), {"a": 7, "b": 8},
     record(fields=[one_field("b", "int", "a")]), Row(b=8)),
    ("of a namespace that Java does not take", old("my-server.shop.P"), {"a": 7},
     new("com.b.P"), Row(b=7)),
    ("as one of such a namespace", old("com.a.P"), {"a": 7}, new("com.acme.Outer$.P"), Row(b=7)),
    ("a new field of an old name", old("R"), {"a": 7},
     record(fields=[one_field("b", "int", "a"), one_field("a")]), Row(b=7, a=-1)),
]  # fmt: skip


@pytest.mark.lengthy("chaos")
def test_names_match_as_the_specification_says(spark: Any):
    """Java's library looks for the aliases of fields by the full name of their record, and in a
    union for a record of the same fields before one of an alias."""
    for what, writer, value, reader, wanted in NAMES:
        assert read(spark, writer, value, reader) == wanted, what


@pytest.mark.parametrize("space", ["my-server.shop.orders", "com.acme.Outer$"])
def test_a_namespace_that_java_does_not_take_is_no_hindrance(spark: Any, space: str):
    """As Debezium has it of a prefix with a hyphen. Before 1.12 Avro did not look."""
    before = ["null", record(("id", "int"), name="Value")]
    envelope = record(("before", before), ("after", ["null", "Value"]), ("op", "string"))
    envelope |= {"name": "Envelope", "namespace": space}
    value = {"before": (0, None), "after": (1, {"id": 5}), "op": "c"}
    assert read(spark, envelope, value) == Row(before=None, after=Row(id=5), op="c")


def test_what_a_union_loses_is_named(spark: Any):
    """Of the enums of one union Java's library reads one as the reader's; and a record that is
    not what it is named is none of the same fields."""
    writer, reader = ["null", enum("v1.E"), enum("v2.E")], ["null", enum("v2.E")]
    with pytest.raises(Exception, match=r"v1\.E is not read as v2\.E"):
        read(spark, writer, (1, 1), reader)
    assert read(spark, writer, (0, None), reader) is None
    writer = [old("v1.P"), record(("c", "int"), name="v2.P")]
    reader = [old("P"), record(fields=[one_field("b")], name="Q")]
    with pytest.raises(Exception, match=r"v2\.P is not read as P"):
        read(spark, writer, (1, {"c": 7}), reader)


@pytest.mark.parametrize("around", [False, True], ids=["ours beside its fields", "ours around it"])
def test_a_record_of_a_few_texts_is_read_by_each_of_its_schemas(spark: Any, around: bool):
    """Fields of ours are among its own then, unless one of the schemas is no record."""
    reader = record(
        ("onceward_ONE", "string"), ("n", "long"), name="New", namespace="com.x", aliases=["Old"]
    )
    reader["fields"] += [
        {"name": "b", "aliases": ["a"], "type": ["null", "string"], "default": None}
    ]
    reader["fields"] += [{"name": "first", "type": "double", "default": 2.5}]
    old = record(
        ("n", "int"), ("a", "string"), ("gone", "double"), ("onceward_ONE", "string"), name="Old"
    )
    old |= {"namespace": "com.x"}
    another = record(
        ("onceward_frame", "bytes"), ("onceward_ONE", "string"), ("n", "long"), name="Another"
    )
    reader["aliases"] += ["Another"]
    union: Any = ["null", reader]
    written: list[tuple[Any, Any, Row]] = [
        (old, {"n": 1, "a": "x", "gone": 0.5, "onceward_ONE": "é"},
        Row(onceward_ONE="é", n=1, b="x", first=2.5)),
        (another, {"onceward_frame": b"..", "onceward_ONE": "", "n": 2},
        Row(onceward_ONE="", n=2, b=None, first=2.5)),
        (reader, {"onceward_ONE": "z", "n": 3, "b": (1, "y"), "first": 1.5},
         Row(onceward_ONE="z", n=3, b="y", first=1.5)),
    ]  # fmt: skip
    if around:
        value = {"onceward_ONE": "u", "n": 4, "b": (0, None), "first": 0.0}
        written.append((union, (1, value), Row(onceward_ONE="u", n=4, b=None, first=0.0)))
    registry = MemoryRegistry()
    for number, (writer, _, _) in enumerate(written, 1):
        registry.add("s", writer, number)
    frame = frame_of(
        spark, *(framed(n, writer, value) for n, (writer, value, _) in enumerate(written, 1)), None
    )
    found = ow.avro.decode(
        frame, registry=registry, subject="s", reader_schema=json.dumps(reader)
    ).collect()
    assert [row.value for row in sorted(found)] == [*(wanted for _, _, wanted in written), None]


def test_a_default_of_another_type_is_in_the_way_of_no_record_that_has_the_field(spark: Any):
    """Registries have such schemas from before Avro 1.9, and ``from_avro`` reads their records."""
    schema = record(("id", "int"), ("n", "int"))
    schema["fields"][1]["default"] = None
    registry = MemoryRegistry()
    registry.add("s", record(("id", "int")), 1)
    registry.add("s", schema, 2)
    has, lacks = framed(2, schema, {"id": 1, "n": 5}), framed(1, record(("id", "int")), {"id": 1})
    read = ow.avro.decode(frame_of(spark, has), registry=registry, subject="s")
    assert [row.value for row in read.collect()] == [Row(id=1, n=5)]
    again = ow.avro.encode(read, registry=registry, subject="s")
    assert [row.value for row in again.collect()] == [has]
    with pytest.raises(Exception, match=r"DoesNotFit.*the reader.s schema does not take .*: n"):
        ow.avro.decode(frame_of(spark, lacks), registry=registry, subject="s").collect()


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_a_day_is_what_its_number_says(spark: Any, mode: str):
    """Whatever calendar the session has for files of other programs."""
    writer = record(("d", logical("int", "date")), ("t", logical("long", "timestamp-micros")))
    moment = datetime.datetime(1422, 6, 3, tzinfo=UTC)
    micros = -200_000 * 86_400 * 10**6
    spark.conf.set("spark.sql.avro.datetimeRebaseModeInRead", mode)
    try:
        found = read(spark, writer, {"d": -200_000, "t": micros})
    finally:
        spark.conf.unset("spark.sql.avro.datetimeRebaseModeInRead")
    assert (found.d, comparable(found.t)) == (moment.date(), moment)


WIDE = record(
    ("s", "string"),
    ("d", ["null", logical("bytes", "decimal", precision=38, scale=2)]),
    (
        "list",
        {"type": "array", "items": ["null", logical("bytes", "decimal", precision=38, scale=2)]},
    ),
    (
        "map",
        {
            "type": "map",
            "values": record(("x", logical("bytes", "decimal", precision=38, scale=2)), name="X"),
        },
    ),
    (
        "lists",
        {
            "type": "array",
            "items": {"type": "array", "items": logical("bytes", "decimal", precision=38)},
        },
    ),
    (
        "fixed",
        {
            "type": "fixed",
            "name": "F",
            "size": 9,
            "logicalType": "decimal",
            "precision": 18,
            "scale": 2,
        },
    ),
)


def wide(
    d: int = 1, item: int = 1, value: int = 1, inner: int = 1, fixed: int = 1
) -> dict[str, Any]:
    def content(number: int, size: int = 16) -> bytes:
        return number.to_bytes(size, "big", signed=True)

    items = [(1, content(item)), (0, None)]
    return {"s": "é", "d": (1, content(d)), "list": items, "map": {"k": {"x": content(value)}},
            "lists": [[], [content(0), content(inner)]], "fixed": content(fixed, 9)}  # fmt: skip


def without(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"fields": [field for field in schema["fields"] if field["name"] != name]}


@pytest.mark.parametrize(
    "at_the_top",
    [WIDE, ["null", WIDE], without("map", WIDE), without("s", without("map", WIDE))],
    ids=["record", "union", "no map", "no map, no text"],
)
def test_a_decimal_with_more_digits_than_the_reader_has(spark: Any, at_the_top: Any):
    """Spark takes the low 64 bits of it: of 2^64 + 5 it makes 0.05."""
    reader = json.loads(json.dumps(at_the_top).replace('"precision": 38', '"precision": 18'))
    in_union = isinstance(at_the_top, list)
    names = {field["name"] for field in (WIDE if in_union else at_the_top)["fields"]}
    most, cent = 10**18 - 1, decimal.Decimal(1).scaleb(-2)
    places = ["d", "item", "inner", "fixed", *(["value"] if "map" in names else [])]
    values = [wide(most, -most, most, -most, most), wide(), wide(item=-most)] + [
        wide(**{where: number}) for where in places for number in (2**64 + 5, -(10**18), 10**18)
    ]
    registry = MemoryRegistry()
    registry.add("s", at_the_top, 7)
    frame = frame_of(
        spark,
        *(framed(7, at_the_top, (1, value) if in_union else value) for value in values),
        None,
    )
    ow.avro.decode(frame, registry=registry, subject="s", reader_schema=json.dumps(reader))
    plan = next(reversed(decoding._registered.values())).plan
    good = sorted(plan.good(frame).collect())
    assert [row.n for row in good] == [0, 1, 2, len(values)]
    assert good[-1].value is None
    wanted = {"s": "é", "d": most * cent, "list": [-most * cent, None],
        "map": {"k": Row(x=most * cent)},
              "lists": [[], [0, -most]], "fixed": most * cent}  # fmt: skip
    assert good[0].value.asDict() == {
        name: value for name, value in wanted.items() if name in names
    }
    bad = plan.bad(frame).collect()
    assert sorted(row.n for row in bad) == list(range(3, len(values)))
    assert all("more digits" in row.error_message for row in bad)


@pytest.mark.lengthy("chaos")
def test_a_record_of_many_decimals(spark: Any):
    """Each in its turn, with and without fields of ours beside its own, and one that all are right
    in.
    """
    for texts in (0, 1, 13):
        schema = record(
            *((f"d{n}", logical("bytes", "decimal", precision=n + 8, scale=n)) for n in range(11)),
            *((f"t{n}", "string") for n in range(texts)),
        )
        right = {f"d{n}": (10 ** (n + 8) - 1).to_bytes(9, "big") for n in range(11)} | {
            f"t{n}": "x" for n in range(texts)
        }
        wrong = [right | {f"d{n}": (2**64 + 5).to_bytes(9, "big")} for n in range(11)]
        registry = MemoryRegistry()
        registry.add("s", schema, 7)
        frame = frame_of(spark, *(framed(7, schema, value) for value in (right, *wrong)))
        ow.avro.decode(frame, registry=registry, subject="s")
        plan = next(reversed(decoding._registered.values())).plan
        (good,) = plan.good(frame).collect()
        most = [decimal.Decimal((0, (9,) * (n + 8), -n)) for n in range(11)]
        assert (good.n, list(good.value)) == (0, most + ["x"] * texts)
        assert sorted(row.n for row in plan.bad(frame).collect()) == list(range(1, 12))


INTS = record(
    ("plain", "int"),
    ("maybe", ["null", "int"]),
    ("union", ["int", "string"]),
    ("list", {"type": "array", "items": ["null", "int"]}),
    ("lists", {"type": "array", "items": {"type": "array", "items": "int"}}),
    ("map", {"type": "map", "values": record(("x", "int"), name="X")}),
    ("time", logical("int", "time-millis")),
)


def ints(
    plain: int = 1,
    maybe: int = 2,
    union: int = 3,
    item: int = 4,
    inner: int = 5,
    value: int = 6,
    time: int = 7,
) -> dict[str, Any]:
    return {"plain": plain, "maybe": (1, maybe), "union": (0, union), "list": [(1, item), (0, None)],
            "lists": [[], [0, inner]], "map": {"k": {"x": value}}, "time": time}  # fmt: skip


@pytest.mark.parametrize("texts", [0, 1, 13])
@pytest.mark.parametrize("map_too", [False, True], ids=["no map", "a map"])
def test_an_int_of_more_than_32_bits_is_invalid(spark: Any, texts: int, map_too: bool):
    """Some serializers write them, and Java's library keeps the low bits: of 5,000,000,000 it
    makes 705,032,704."""
    schema = INTS if map_too else without("map", INTS)
    extra = {f"t{n}": "é" for n in range(texts)}
    texts_too = [*schema["fields"], *({"name": n, "type": "string"} for n in extra)]
    schema = schema | {"fields": texts_too}
    names = {field["name"] for field in schema["fields"]}
    most, least = 2**31 - 1, -(2**31)
    right = [ints(), ints(*[most] * 7), ints(*[least] * 7)]
    places = ["plain", "maybe", "union", "item", "inner", "time", *(["value"] if map_too else [])]
    beyond = (2**31, least - 1, 5_000_000_000, 2**33, 2**34, 2**63 - 1)
    wrong = [ints(**{place: number}) for place in places for number in beyond]
    registry = MemoryRegistry()
    registry.add("s", schema, 7)
    frame = frame_of(
        spark, *(framed(7, schema, value | extra) for value in (*right, *wrong)), None
    )
    decoded = ow.avro.decode(frame, registry=registry, subject="s")
    plan = next(reversed(decoding._registered.values())).plan
    good = sorted(plan.good(frame).collect())
    assert [row.n for row in good] == [0, 1, 2, len(right) + len(wrong)]
    for row, number in zip(good[1:], (most, least), strict=False):
        wanted = {"plain": number, "maybe": number, "union": Row(member0=number, member1=None),
            "list": [number, None], "lists": [[], [0, number]], "map": {"k": Row(x=number)},
                  "time": number, **extra}  # fmt: skip
        assert row.value.asDict() == {name: wanted[name] for name in row.value.asDict()}
        assert set(row.value.asDict()) == names
    kinds = decoded.schema["value"].dataType.simpleString()
    assert "bigint" not in kinds, kinds
    bad = plan.bad(frame).collect()
    assert sorted(row.n for row in bad) == list(range(len(right), len(right) + len(wrong)))
    assert all("an int in it has more than 32 bits" in row.error_message for row in bad)


AS_OTHERS = [
    ("a long is no int", "long", 5, "int", None),
    ("nor is one of a union", ["null", "long"], (1, 5), ["null", "int"], None),
    ("what is beside it", ["null", "long"], (0, None), ["null", "int"], "null"),
    ("an int beside a long", ["int", "long"], (0, 5), ["null", "int"], 5),
    ("a long beside an int", ["int", "long"], (1, 5), ["null", "int"], None),
    ("as a long", "int", 5_000_000_000, "long", 5_000_000_000),
    ("as a double", "int", 5_000_000_000, "double", 5e9),
    ("as a double, not a float", "int", 5, ["double", "float", "long", "null"],
     Row(member0=5.0, member1=None, member2=None)),
    ("as a long, not a float", "int", 5, ["long", "double"], Row(member0=5, member1=None)),
    ("beside others", ["int", "double"], (0, 5), ["int", "double"], Row(member0=5, member1=None)),
    ("a long beside others", "long", 5, ["int", "double"], Row(member0=None, member1=5.0)),
    ("a date as an int", logical("int", "date"), 19_000, "int", 19_000),
    ("an int as a date", "int", 19_000, logical("int", "date"), datetime.date(2022, 1, 8)),
    ("a default", record(("a", "int")), {"a": 1}, record(fields=[one_field("b")]), Row(b=-1)),
    ("what nobody reads", record(("a", "int"), ("b", ["int", "long"])), {"a": 1, "b": (1, 2**40)},
     record(("a", "int")), Row(a=1)),
]  # fmt: skip


@pytest.mark.lengthy("chaos")
def test_ints_as_other_numbers(spark: Any):
    """All of them as Avro has it, though the library is told that ints are longs."""
    for what, writer, value, reader, wanted in AS_OTHERS:
        if wanted is None:
            with pytest.raises(Exception, match="cannot be read"):
                read(spark, writer, value, reader)
            continue
        chosen = read(spark, writer, value, reader)
        assert comparable(chosen) == (None if wanted == "null" else wanted), what


def test_an_interval_of_sparks_stays_one(spark: Any):
    """It is an int, of which Spark's own word says what it is."""
    schema = {"type": "int", "spark.sql.catalyst.type": "interval year to month"}
    registry = MemoryRegistry()
    registry.add("s", schema, 7)
    frame = frame_of(spark, framed(7, schema, 14))
    decoded = ow.avro.decode(frame, registry=registry, subject="s")
    assert decoded.selectExpr("CAST(value AS STRING)").first()[0] == "INTERVAL '1-2' YEAR TO MONTH"
