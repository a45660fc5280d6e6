"""Frames, schemas with ours around them, what is refused, and how a registry is asked now and
then: without Spark.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import patience
from onceward.durable import RUN_FOLDER
from onceward.errors import (
    InvalidRecord,
    NewSchemaId,
    RegistryRefused,
    RegistryReplaced,
    RegistryUnreachable,
    SchemaUnknown,
    UnencodableValue,
    UnsupportedSchema,
)
from onceward.formats.avro import memory
from onceward.formats.avro.decoding import _migrated
from onceward.formats.avro.memory import memory_for
from onceward.formats.avro.resolution import (
    why_some_are_lost,
    why_values_would_change,
    with_one_name,
)
from onceward.formats.avro.schemas import (
    adjacent_fields,
    around_reader,
    around_writer,
    parse_json,
    prefix,
    same_with_bytes,
    schema_id,
    texts_as_bytes,
    without_times,
)
from onceward.formats.avro.step import RegistryMonitor
from onceward.formats.avro.types import (
    why_names_collide,
    why_spark_cannot_read,
    with_nulls_first,
    without_unfit_defaults,
)
from onceward.formats.avro.values import widen
from onceward.formats.registry import conversation, http
from onceward.formats.registry.answers import SchemaRule
from onceward.formats.registry.client import SchemaRegistry
from onceward.formats.validation import conjunction
from onceward.spark.batch.causes import Thrown
from onceward.spark.batch.failures import RAISED, known_failure
from onceward.spark.tables.avro_java import with_valid_namespaces
from support.avro_codec import read, unfold, write
from support.errors import raises
from support.memory_registry import MemoryRegistry


@given(st.integers(0, 2**32 - 1), st.binary())
def test_a_frame_tells_its_id(number: int, body: bytes):
    assert schema_id(prefix(number) + body) == number
    assert schema_id(b"\x01" + prefix(number)[1:] + body) is None
    assert schema_id(prefix(number)[:4]) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("string", "x"),
        ('"long"', 7),
        (["null", "string"], (1, "x")),
        ({"type": "record", "name": "R", "fields": [{"name": "end", "type": "int"},
        {"name": "value", "type": "int"}]},
         {"end": 1, "value": 2}),
    ],
)  # fmt: skip
def test_a_record_with_ours_around_it_is_its_bytes_between_ours(schema: Any, value: Any):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    written = b"\x00\x00\x00\x00\x01" + write(parse_json(text), value) + b"\x01" * 16
    found = read(json.loads(around_writer(text)), written)
    assert found["frame"] == b"\x00\x00\x00\x00\x01"
    assert found["value"] == value


def test_names_of_ours_are_in_nobodys_way():
    """The record inside is in no namespace, as it was, and no type of ours has a name that a
    user's type has.
    """
    schema = {
        "type": "record",
        "name": "onceward_framed",
        "fields": [{"name": "a", "type": "int"}],
    }
    writer, reader = (
        around_writer(json.dumps(schema)),
        around_reader('"string"', json.dumps(schema)),
    )
    assert json.loads(writer)["name"] == json.loads(reader)["name"] == "onceward_framed_"
    assert "namespace" not in json.loads(writer)


def test_fields_of_ours_beside_those_of_a_record_change_nothing_of_it():
    """The names of its fields, its types and itself mean what they meant; ours are the bytes
    before and behind it.
    """
    inner = {"type": "fixed", "name": "Onceward_FRAME", "size": 1}
    schema = record() | {"namespace": "com.x", "aliases": ["Old"]}
    schema["fields"] = [
        {"name": "onceward_ONE", "type": "int"},
        {"name": "f", "type": inner, "aliases": ["g"]},
    ]
    text = json.dumps(schema)
    beside = adjacent_fields(text, [text])
    assert beside is not None
    writer, reader = json.loads(beside.writer(text)), json.loads(beside.reader(text))
    names = [field["name"] for field in writer["fields"]]
    assert names == ["onceward_frame_", "onceward_ONE", "f", "onceward_one_", "onceward_two_"]
    assert (
        writer | {"fields": writer["fields"][1:-2]}
        == reader | {"fields": reader["fields"][:-2]}
        == schema
    )
    written = (
        b"\x00\x00\x00\x00\x01"
        + write(schema, {"onceward_ONE": 7, "f": b"x"})
        + bytes(8)
        + b"\x01" * 8
    )
    found = read(writer, written)
    assert (found["onceward_frame_"], found["onceward_ONE"], found["f"]) == (
        b"\x00\x00\x00\x00\x01",
        7,
        b"x",
    )
    assert (found["onceward_one_"], found["onceward_two_"]) == (
        0,
        struct.unpack("<d", b"\x01" * 8)[0],
    )


def test_where_fields_of_ours_cannot_be_beside_others():
    one, union = json.dumps(record("int")), json.dumps(["null", record("int")])
    many = json.dumps(record(*["int"] * 13))
    twice = json.dumps(
        record() | {"fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}
    )
    assert adjacent_fields(one, [one, many])
    assert not any(
        (
            adjacent_fields(one, [one, union]),
            adjacent_fields(one, ["string"]),
            adjacent_fields(union, [one]),
        )
    )
    assert not any((adjacent_fields(many, [one]), adjacent_fields(twice, [one])))


def record(*types: Any, name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)],
    }


def test_times_are_the_numbers_that_they_are_written_as():
    time, moment = (
        {"type": "int", "logicalType": "time-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
    )
    default = {"logicalType": "time-micros"}
    fields = [
        {"name": "a", "type": ["null", time], "default": None}, {"name": "b", "type": moment},
        {"name": "c", "type": {"type": "array", "items": time}},
        {"name": "d", "type": {"type": "map", "values": "string"}, "default": default},
    ]  # fmt: skip
    found = json.loads(
        without_times(json.dumps({"type": "record", "name": "R", "fields": fields}))
    )["fields"]
    assert [field["type"] for field in found] == [
        ["null", {"type": "int"}], moment, {"type": "array", "items": {"type": "int"}},
        fields[3]["type"],
    ]  # fmt: skip
    assert found[3]["default"] == default
    assert without_times("string") == "string"


def test_decimals_that_could_be_cut_down_are_widened_and_nothing_else_is():
    """To what the bytes hold (Avro 1.12, "Decimal"), and not beyond: a decimal that is none stays
    none.
    """

    def of(kind: Any, precision: Any, **more: Any) -> dict[str, Any]:
        return {"type": kind, "logicalType": "decimal", "precision": precision, **more}

    def fixed(size: int, precision: int) -> dict[str, Any]:
        return of("fixed", precision, name=f"F{size}", size=size)

    wider = [(of("bytes", 18, scale=18), 38), (fixed(9, 1), 21), (fixed(15, 18), 35),
        (fixed(16, 18), 38),
             (fixed(2**26, 18), 38)]  # fmt: skip
    as_they_are = [of("bytes", 19), of("bytes", 0), of("bytes", 4, scale=5), of("bytes", "4"),
        of("string", 4),
                   fixed(8, 18), {"type": "bytes", "precision": 4}, "bytes", "X"]  # fmt: skip
    for around in (lambda one: one, lambda one: ["null", one],
        lambda one: {"type": "array", "items": one},
                   lambda one: {"type": "map", "values": [one]},
                   lambda one: record("int", record(one, name="S")),
                   lambda one: {"type": one}):  # fmt: skip
        assert [widen(around(one)) for one, _ in wider] == [
            around(one | {"precision": n}) for one, n in wider
        ]
        assert [widen(around(one)) for one in as_they_are] == [around(one) for one in as_they_are]


@pytest.mark.parametrize(
    "schema",
    [
        record(["null", "R"]),
        record({"type": "array", "items": "R"}),
        record(record({"type": "map", "values": "com.x.R"}, name="S")) | {"namespace": "com.x"},
        # By a name that is in no namespace, from within one.
        record(
            [
                "null",
                {
                    "type": "record",
                    "name": "y.B",
                    "fields": [{"name": "back", "type": ["null", "R"]}],
                },
            ]
        ),
        {"type": "array", "items": "null"},
        record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        record({"type": "array", "items": record("null", name="S")}),
    ],
)
def test_what_spark_cannot_read_is_refused(schema: Any):
    assert why_spark_cannot_read(json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        record(record("int", name="S"), "S", {"type": "array", "items": "S"}),
        {"type": "map", "values": "null"},
    ],
)
def test_a_name_that_is_used_again_is_no_circle(schema: Any):
    assert why_spark_cannot_read(json.dumps(schema)) is None


def test_fields_that_differ_in_case_alone_are_one_to_spark():
    twice = record() | {"fields": [{"name": "id", "type": "int"}, {"name": "ID", "type": "int"}]}
    for schema in (
        twice,
        ["null", twice],
        record({"type": "array", "items": twice | {"name": "S"}}),
    ):
        assert "id and ID" in str(why_names_collide(json.dumps(schema)))
    assert why_names_collide(json.dumps(record(record("int", name="S"), "S"))) is None


@pytest.mark.parametrize(
    ("kind", "fitting", "unfit"),
    [
        ("null", [None], [0]),
        ("boolean", [True], [1, "true", None]),
        ("int", [0, -(2**31)], [None, 2**31, 1.0, True, "0"]),
        ("long", [2**63 - 1], [2**63]),
        ("double", [1, 1.5, "1.5", "NaN"], [True, None]),
        ({"type": "float"}, ["-Infinity"], [[]]),
        (["null", "double"], [None, 0.5], ["NaN"]),
        (record("double", name="S"), [{"f0": 1}], [{"f0": "NaN"}]),
        (
            record(name="S") | {"fields": [{"name": "f", "type": "double", "default": "NaN"}]},
            [{}, {"f": 1}],
            [{"f": "NaN"}],
        ),
        ("bytes", ["\u00ff"], [0]),
        (["null", "int"], [None, 1], ["", False]),
        (["int", "double"], [1], [1.5, None]),
        (["int", "long"], [5], [5_000_000_000]),
        ([{"type": "array", "items": "int"}, "string"], [[1]], ["x", None]),
        (["string", {"type": "array", "items": "int"}], ["x", [1]], [["x"]]),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, ["A"], ["B", 1, None, []]),
        ({"type": "array", "items": "int"}, [[], [1]], [[""], {}]),
        ({"type": "map", "values": "int"}, [{}, {"a": 1}], [{"a": None}, []]),
        (record("int", name="S"), [{"f0": 1}], [{}, {"f0": ""}, None]),
    ],
)
def test_a_default_that_is_none_of_its_type_counts_as_none(
    kind: Any, fitting: list[Any], unfit: list[Any]
):
    for default in fitting:
        text = json.dumps(record({"type": "array", "items": with_default(kind, default)}))
        assert without_unfit_defaults(text) == text
    for default in unfit:
        field = with_default(kind, default)
        without = [{"name": "f", "type": kind}]
        found = json.loads(without_unfit_defaults(json.dumps(record(field))))
        assert found == record(field | {"fields": without})


def with_default(kind: Any, default: Any) -> dict[str, Any]:
    return record(name="D") | {"fields": [{"name": "f", "type": kind, "default": default}]}


@pytest.mark.parametrize(
    "others",
    [
        [{"type": "array", "items": "int"}],
        [{"type": "map", "values": "int"}],
        [record(name="S")],
        ["string", record("int", name="S"), {"type": "fixed", "name": "F", "size": 1}],
        [{"type": "enum", "name": "E", "symbols": ["A"]}],
    ],
)
def test_a_default_that_is_null_is_null_also_behind_what_takes_any_default(others: list[Any]):
    """Java's library takes the first of a union by a rough rule, and makes [] of null."""
    text = json.dumps(record(with_default([*others, "null"], None)))
    wanted = record(with_default(["null", *others], None))
    assert json.loads(without_unfit_defaults(with_nulls_first(text))) == wanted
    for kind, default in (
        (["null", *others], None),
        ([*others, "null"], "A"),
        ([*("string", "null"), *others], None),
    ):
        other = json.dumps(record(with_default(kind, default)))
        assert with_nulls_first(other) == other
    alone = json.dumps(record([*others, "null"]))
    assert with_nulls_first(alone) == alone


def test_types_that_are_used_again_and_again_are_looked_at_once():
    """Else a schema of 3 KB, of anybody in the registry, would hold up a query for days."""
    empty: Any = record("null", name="R0")
    own: Any = with_default("null", None) | {"name": "S0"}
    for number in range(1, 31):
        empty = record(empty, f"R{number - 1}", name=f"R{number}")
        fields = [
            {"name": "a", "type": own, "default": {}},
            {"name": "b", "type": f"S{number - 1}", "default": {}},
        ]
        own = {"type": "record", "name": f"S{number}", "fields": fields}
    assert why_spark_cannot_read(json.dumps(record({"type": "array", "items": empty})))
    text = json.dumps(record(with_default(own, {})))
    assert why_spark_cannot_read(text) is None
    assert without_unfit_defaults(text) == text
    broken = text.replace('"default": null', '"default": 5')
    assert '"default"' not in without_unfit_defaults(broken)
    # In text order no type is deep, however long the chain
    chain: list[Any] = [record("null", name="T0")]
    chain += [record(f"T{number - 1}", name=f"T{number}") for number in range(1, 2_000)]
    assert why_spark_cannot_read(json.dumps([*chain, {"type": "array", "items": "T1999"}]))


def test_enums_that_are_told_by_their_places_keep_these():
    enums = [{"type": "enum", "name": name, "symbols": ["A"]} for name in ("E", "F")]
    text = json.dumps(record(with_default([*enums, "null"], None)))
    assert with_nulls_first(text) == text
    assert '"default"' not in without_unfit_defaults(text)


def test_many_conditions_are_no_deep_one():
    """Spark's visitors recurse: 500 conditions one within the other are more than a thread's stack
    holds.
    """

    class Condition:
        def __init__(self, depth: int = 0) -> None:
            self.depth = depth

        def __and__(self, other: Condition) -> Condition:
            return Condition(1 + max(self.depth, other.depth))

    for number in (1, 2, 3, 500, 3_000):
        together: Any = conjunction([Condition() for _ in range(number)])  # type: ignore[misc]
        assert together.depth == (number - 1).bit_length()
    assert conjunction([]) is None


def test_of_ids_that_a_registry_does_not_have_the_newest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
):
    """Whoever may write to a topic can make up as many as he likes."""
    monkeypatch.setattr(memory, "MOST_MISSING", 5)
    monkeypatch.setattr(memory, "MOST_ASKED_AGAIN", 3)
    registry = MemoryRegistry()
    remembered = memory.memory_for(registry)
    for number in range(1, 21):
        remembered.ask(registry, [number], wait_s=0)
    assert {*remembered.missing()} == {16, 17, 18, 19, 20}
    asked = registry.asked
    remembered.schemas(registry, [])
    assert registry.asked == asked + 3
    for number in (16, 20):
        registry.add("s", record("int"), number)
    remembered.schemas(registry, [])
    remembered.schemas(registry, [])
    assert {*remembered.missing()} == {17, 18, 19}, "each of them is asked for in its turn"


def test_what_another_process_has_found_out_is_taken_over_and_asked_again():
    registry = MemoryRegistry()
    registry.add("s", record("int"), 7)
    remembered = memory.SchemaMemory()
    remembered.ask(registry, [7], wait_s=0)
    remembered.recall([9, 8, 7], {})
    assert (remembered.ids(), remembered.missing()) == ([7], [9, 8])
    registry.add("s", record("int"), 8)
    known = remembered.schemas(registry, [])
    assert (set(known.texts), known.missing) == ({7, 8}, {9})


def test_a_registry_that_was_set_up_anew_is_noticed_by_the_next_process():
    registry, anew = MemoryRegistry(), MemoryRegistry()
    registry.add("s", record("int"), 7)
    before, after = memory.SchemaMemory(), memory.SchemaMemory()
    before.ask(registry, [7], wait_s=0)
    anew.add("s", record("string"), 7)
    after.recall([], before.fingerprints())
    with pytest.raises(RegistryReplaced):
        after.schemas(anew, [])
    assert after.schemas(registry, []).texts


def test_what_is_no_json_is_no_schema():
    with raises(UnsupportedSchema):
        parse_json("{not json")


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 12}
MILLS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}


def fields(*each: tuple[str, ...]) -> dict[str, Any]:
    """A record of them; of each its name, its type, and its aliases."""
    return record() | {
        "fields": [
            {"name": name, "type": kind, "aliases": list(aliases), "default": 0}
            for name, kind, *aliases in each
        ]
    }


@pytest.mark.parametrize(
    ("writer", "reader", "changes"),
    [
        (MILLIS, MICROS, True),
        (record(MILLIS), record(["null", MICROS]), True),
        (record({"type": "array", "items": MILLIS}), record({"type": "array", "items": MICROS}),
        True),
        (["null", {"type": "map", "values": CENTS}], {"type": "map", "values": MILLS}, True),
        ({"type": "int", "logicalType": "date"}, MILLIS, True),
        (CENTS, MILLS, True),
        (CENTS, CENTS | {"precision": 20}, False),
        (MILLIS, {"type": "long", "logicalType": "local-timestamp-millis"}, True),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, MICROS, True),
        ({"type": "int", "logicalType": "time-millis"},
         {"type": "long", "logicalType": "time-micros"}, True),
        ({"type": "int", "logicalType": "date"}, "double", False),
        (MILLIS, [{"type": "int", "logicalType": "date"}, "double"], False),
        # A decimal is no text, and no other bytes.
        ("string", CENTS, True),
        (CENTS, "string", True),
        ("bytes", CENTS, True),
        (CENTS, "bytes", True),
        (["null", "string"], ["null", CENTS], True),
        (record({"type": "array", "items": CENTS}), record({"type": "array", "items": "string"}),
         True),
        (CENTS, {"type": "bytes", "logicalType": "big-decimal"}, True),
        (FIXED | {"logicalType": "decimal", "precision": 9}, FIXED, True),
        (FIXED, FIXED | {"logicalType": "duration"}, False),
        ("string", "bytes", False),
        ({"type": "string", "logicalType": "uuid"}, "string", False),
        # Of which Avro takes none for a decimal.
        ({"type": "string", "logicalType": "decimal", "precision": 4}, "string", False),
        (CENTS | {"precision": 1}, "bytes", False),
        (FIXED | {"logicalType": "decimal", "precision": 99}, FIXED, False),
        (MILLIS, "long", False),
        ("long", MILLIS, False),
        (record(MILLIS, "int"), {"type": "record", "name": "R", "fields": [{"name": "f1",
        "type": "int"}]}, False),
        (record("int", MILLIS),
         {"type": "record", "name": "R", "fields": [{"name": "new", "aliases": ["f1"],
         "type": MICROS}]}, True),
        # Of names: the last part of a record's, or an alias of the reader's (Avro 1.12, "Schema
        # Resolution").
        (record("int", name="Refund"), record("int", name="Order"), True),
        (record("int", name="Refund"), record("int", name="Order") | {"aliases": ["Refund"]},
        False),
        (record("int", name="a.Order"), record("int", name="b.Order"), False),
        (record("int", name="a.Refund"), record("int", name="a.Order") | {"aliases": ["Refund"]},
        False),
        # each record is refused by itself
        (record("int", name="Refund"), record("int", "int", name="Order"), False),
        (record("int", name="Refund"), ["null", record("int", name="Order")], True),
        (["null", record("int", name="Refund")], record("int", name="Order"), True),
        ([record("int", name="A"), record("int", name="B")],
        [record("int", name="B"), record("int", name="A")], False),
        (record(record("int", name="Refund")), record(record("int", name="Order")), True),
        ({"type": "map", "values": record("int", name="A")},
        {"type": "map", "values": record("int", name="B")}, True),
        # A name that is in no namespace is found from within one, as Avro's parser finds it.
        (record(record(CENTS, name="Amount"), record("Amount", name="y.W")),
         record(record(MILLS, name="Amount"), record("Amount", name="y.W")), True),
        (record({"type": MILLIS}), record(MICROS), True),
        # Two fields that one alias names.
        (record("int"), fields(("a", "int", "f0"), ("b", "int", "f0")), True),
        (record("int"), fields(("a", "int", "f0"), ("f0", "int")), False),
        # Two records of a union that are one of two.
        ([record("int", name="a.A"), record("int", name="b.A")],
         [record("int", name="c.A"), record("int", name="c.B")], False),
        ([record("int", name="a.A"), record("int", name="b.A")],
         ["null", record("int", name="c.A")], False),
    ],
)  # fmt: skip
def test_a_value_that_would_be_another_one_is_noticed(writer: Any, reader: Any, changes: bool):
    why = why_values_would_change(json.dumps(writer), json.dumps(reader))
    assert (why is not None) == changes


def enum(name: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": ["A"]}


@pytest.mark.parametrize(
    ("writer", "reader", "lost"),
    [
        (["null", enum("a.E"), enum("b.E")], ["null", enum("a.E")], "b.E"),
        (["null", enum("a.E"), enum("b.E")], ["null", enum("b.E")], "a.E"),
        (["null", enum("a.E"), enum("b.E")], ["null", enum("c.E") | {"aliases": ["b.E"]}], "a.E"),
        ([enum("a.E"), enum("b.E")], enum("E"), None),
        (["null", enum("a.E")], ["null", enum("b.E")], None),
        # Of two unions, which are the same, type by type, or are not.
        ([record(["null", enum("a.E")], name="a.R"), record(["null", enum("b.E")], name="b.R")],
         record(["null", enum("E")], name="R"), None),
        ([record(["null", enum("a.E")], name="a.R"), record([enum("b.E"), "null"], name="b.R")],
         record(["null", enum("E")], name="R"), "b.E"),
        # A record that does not have what is needed: Java would take it for another one.
        ([record("int", name="a.A"), record(name="b.A")],
         [record("int", name="A"), record(name="B")], "b.A"),
        ([record("int", name="a.A"), record("string", name="b.A")],
         [record("int", name="A"), record(name="B")], "b.A"),
        ([record(record(), name="a.A"), record(record("int", name="a.I"), name="b.A")],
         [record(record("int", name="I"), name="A"), record(name="B")], None),
        ([record("int", name="a.A"), record("int", name="b.A")],
         [record("long", name="A"), record(name="B")], None),
    ],
)  # fmt: skip
def test_what_a_union_loses_is_named(writer: Any, reader: Any, lost: str | None):
    why = why_some_are_lost(json.dumps(writer), json.dumps(reader))
    assert (why is None) if lost is None else (why or "").startswith(f"{lost} is not read as")


def test_what_is_read_as_each_other_has_one_name():
    """And no aliases: Java's library would go by them otherwise than the specification says."""
    inner = record("int", name="com.a.S")
    writer = record("int", inner, "com.a.S", "string", name="com.a.P")
    reader = fields(("new", "int", "f0"), ("f1", "long")) | {"name": "P", "namespace": "com.b"}
    reader["fields"][1]["type"] = record("long", name="S") | {"aliases": ["Old"]}
    written, found = (
        json.loads(text) for text in with_one_name(json.dumps(writer), json.dumps(reader))
    )
    assert written["name"] == found["name"] != "P"
    assert [field["name"] for field in found["fields"]] == ["new", "f1"]
    assert [field["name"] for field in written["fields"][:2]] == ["new", "f1"]
    assert written["fields"][1]["type"]["name"] == found["fields"][1]["type"]["name"]
    assert "aliases" not in json.dumps(found)
    assert "com." not in json.dumps([written, found])
    value = {"new": 7, "f1": {"f0": 8}}
    names = [field["name"] for field in written["fields"][2:]]
    body = write(unfold(writer), {"f0": 7, "f1": {"f0": 8}, "f2": {"f0": 9}, "f3": "x"})
    values = read(unfold(written), body)
    assert {name: values[name] for name in value} == value
    assert not {"new", "f1", "f2", "f3"} & set(names)


def raised(**said: Any) -> list[Thrown]:
    text = f"[USER_RAISED_EXCEPTION] {RAISED}{json.dumps(said)} SQLSTATE: P0001"
    return [Thrown("org.apache.spark.SparkRuntimeException", text, "USER_RAISED_EXCEPTION")]


def test_what_a_plan_raises_is_heard():
    poison = known_failure(
        raised(
            raised="poison",
            tag="t",
            id=7,
            **{"class": "DoesNotFit"},
            message='a "quote"',
            topic="a",
            partition=1,
            offset=2,
        )
    )
    assert isinstance(poison, InvalidRecord)
    assert (
        'offset 2 of partition 1 of topic a cannot be read (DoesNotFit): a "quote"'
        in poison.message
    )
    assert poison.details["id"] == 7
    nowhere = known_failure(
        raised(raised="poison", tag="t", id=7, **{"class": "BadFraming"}, message="short")
    )
    assert str(nowhere).startswith("a record cannot be read (BadFraming): short.")
    unseen = known_failure(raised(raised="unseen", tag="t", id=9))
    assert isinstance(unseen, NewSchemaId)
    assert unseen.details == {"tag": "t", "ids": [9]}
    assert isinstance(
        known_failure(raised(raised="unfit", id=9, message="not UTF-8")), UnencodableValue
    )
    cut_off = raised(raised="unfit", id=9, message="not UTF-8")[0]
    assert known_failure([replace(cut_off, message=cut_off.message[:-30])]) is None


def test_what_avro_says_of_a_value_is_heard():
    traced = "org.apache.avro.path.TracingNullPointException"
    null = known_failure(
        [
            Thrown(
                "java.lang.NullPointerException",
                "null value for (non-nullable) string at com.x.R.name",
                "",
                traced,
            )
        ]
    )
    assert isinstance(null, UnencodableValue)
    assert "com.x.R.name is null" in null.message
    condition = "AVRO_CANNOT_WRITE_NULL_FIELD"  # Spark's own, since 4.2
    of_spark = (
        f"[{condition}] Cannot write null value for field `id` defined as non-null Avro "
        f'data type "long".\nTo allow'
    )
    null = known_failure([Thrown("org.apache.spark.SparkRuntimeException", of_spark, condition)])
    assert isinstance(null, UnencodableValue)
    assert "id is null, and its schema has a long there" in null.message
    said = (
        "Cannot convert SQL field 'kind' to Avro field 'kind' because \"Q\" cannot be written "
        "since it's not "
    )
    symbol = known_failure(
        [
            Thrown(
                "org.apache.spark.sql.avro.IncompatibleSchemaException",
                said + 'defined in enum "A", "B"',
            )
        ]
    )
    assert isinstance(symbol, UnencodableValue)
    assert '"Q"' in symbol.message


SESSION: Any = None


@pytest.fixture
def registry() -> MemoryRegistry:
    found = MemoryRegistry()
    found.add("s", "string", 1)
    found.add("s", "long", 2)
    return found


def test_an_id_that_is_missing_is_asked_for_again_at_each_definition(registry: MemoryRegistry):
    known = memory_for(registry)
    known.ask(registry, [2, 3, 2**31], 0)
    assert {*known.missing()} == {3, 2**31}
    registry.add("late", "int", 3)
    schemas = known.schemas(registry, [1])
    assert sorted(schemas.texts) == [1, 2, 3]
    assert schemas.missing == {2**31}
    assert memory_for(registry) is known


def test_a_registry_that_comes_late_is_waited_for(registry: MemoryRegistry):
    known, asked = memory_for(registry), registry.schema

    def late(schema_id: int) -> Any:
        if registry.asked > 2 and schema_id not in registry.schemas:
            registry.add("s", "int", schema_id)
        return asked(schema_id)

    registry.schema = late  # type: ignore[method-assign]
    known.ask(registry, [9], 60)
    assert known.missing() == []


class LaggingRegistry(MemoryRegistry):
    """It lacks ids the first times that they are asked for: a copy that is behind."""

    def __init__(self) -> None:
        super().__init__()
        self.lacks = 0

    def schema(self, schema_id: int) -> Any:
        if self.lacks > 0:
            self.lacks -= 1
            raise SchemaUnknown(f"no schema id {schema_id}")
        return super().schema(schema_id)


@pytest.mark.parametrize("ids", [[1], []], ids=["of the subject", "met before"])
def test_at_a_definition_an_id_that_was_there_is_waited_for(ids: list[int]):
    """Else its records would be invalid for as long as the query runs."""
    registry = LaggingRegistry()
    registry.add("s", "string", 1)
    memory = memory_for(registry)
    if not ids:
        memory.ask(registry, [1], 0)
    registry.lacks = 2
    found = memory.schemas(registry, ids, 60)
    assert (set(found.texts), found.missing) == ({1}, frozenset())


def test_a_stop_ends_the_questions_for_all_ids(registry: MemoryRegistry):
    def wait(_schema_id: int) -> Any:
        patience.pause(3)

    def is_told() -> None:
        raise KeyError("told to stop")

    registry.schema = wait  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="told to stop"), patience.asking(is_told):
        memory_for(registry).ask(registry, range(1, 21), 0)


def test_behind_a_question_that_failed_no_other_begins(registry: MemoryRegistry):
    """Each may take a minute, and all that have begun are waited for."""
    together, asked = threading.Barrier(8), []

    def fail(schema_id: int) -> Any:
        asked.append(schema_id)
        together.wait(10)
        raise RegistryUnreachable("away")

    registry.schema = fail  # type: ignore[method-assign]
    with pytest.raises(RegistryUnreachable):
        memory_for(registry).ask(registry, range(1, 17), 0)
    assert sorted(asked) == [*range(1, 9)]


def test_ids_that_are_missing_are_asked_for_again_in_turn(registry: MemoryRegistry):
    memory = memory_for(registry)
    memory.ask(registry, [3, 4, 5, 6], 0)
    for number in (3, 6):
        registry.add("late", "int", number)
    asked = registry.asked
    memory.ask_again(registry, 3)
    assert (registry.asked, memory.ids(), memory.missing()) == (asked + 3, [3], [6, 4, 5])
    memory.ask_again(registry, 3)
    assert memory.ids() == [3, 6]


def test_a_schema_that_cannot_be_read_is_known_as_that(registry: MemoryRegistry):
    registry.add("s", '{"type": "object"}', 5, kind="JSON")
    schemas = memory_for(registry).schemas(registry, [5])
    assert list(schemas.unreadable) == [5]
    assert not schemas.texts


def test_an_id_of_any_schema_that_cannot_be_read_is_known_as_that(
    monkeypatch: pytest.MonkeyPatch,
):
    """A record may name whatever a registry has, also of others: one beyond our limits, one of a
    type that is not known, one whose reference was deleted for good.
    """
    text, large = json.dumps(record("int")), json.dumps({"title": "x" * 1_200_000})
    gone = {"name": "n.Gone", "subject": "gone", "version": 1}
    has: dict[str, dict[str, Any]] = {
        "1": {"schema": text},
        "5": {"schema": json.dumps(record("n.Gone")), "references": [gone]},
        "6": {"schema": large, "schemaType": "JSON"},
        "7": {"schema": large},
        "8": {"schema": "[" * 101 + "]" * 101},
        "9": {"schema": "<a/>", "schemaType": "XML"},
    }

    def send(_address: Any, _tls: Any, _method: str, path: str, **_more: Any) -> http.Answer:
        known = has.get(path.removeprefix("/schemas/ids/"))
        unknown = {"error_code": 40401, "message": "Subject 'gone' not found."}
        body = json.dumps(unknown if known is None else known).encode()
        return http.Answer(404 if known is None else 200, {}, body)

    monkeypatch.setattr(conversation, "send", send)
    registry = SchemaRegistry("http://registry", timeout_s=1)
    schemas = memory.SchemaMemory().schemas(registry, [1, 5, 6, 7, 8, 9], 0)
    assert schemas.texts == {1: text}
    assert "version 1 of subject 'gone'" in schemas.unreadable[5]
    assert {n: why for n, why in schemas.unreadable.items() if n > 5} == {
        6: "schema 6 is JSON, not AVRO",
        7: "schema 7 is of 1,200,013 bytes, above the limit of 1,048,576",
        8: "schema 8 is JSON nested deeper than 100 levels",
        9: "schema 9 is XML, not AVRO",
    }


def test_bytes_that_others_frame_in_another_way_are_not_read(registry: MemoryRegistry):
    """Confluent's serializers in Java put no length before them, those in Python do."""
    alone = ["bytes", {"type": "bytes"}, CENTS]
    within = [["null", "bytes"], {"type": "array", "items": "bytes"}]
    for number, schema in enumerate([*alone, *within], 5):
        registry.add("s", schema, number)
    schemas = memory_for(registry).schemas(registry, range(5, 10))
    assert sorted(schemas.unreadable) == [5, 6, 7]
    assert sorted(schemas.texts) == [8, 9]


def test_rules_that_are_not_carried_out_make_records_unreadable(registry: MemoryRegistry):
    for number, mode in enumerate(("READ", "WRITEREAD", "WRITE", "OFTEN"), 5):
        registry.add("s", "string", number, "AVRO", SchemaRule("pii", "ENCRYPT", mode))
    registry.add("s", "string", 9, "AVRO", SchemaRule("checked", "CEL", "READ", changes=False))
    schemas = memory_for(registry).schemas(registry, [5, 6, 7, 8, 9])
    assert sorted(schemas.unreadable) == [5, 6, 8]
    assert "pii (ENCRYPT, READ)" in schemas.unreadable[5]


@pytest.mark.parametrize(
    ("mode", "reader", "migrated"),
    [
        ("UPDOWN", 1, [23, 24]),
        ("DOWNGRADE", 2, [23, 24]),
        ("UPGRADE", 2, []),
        ("UPGRADE", 3, [21, 22]),
        ("DOWNGRADE", 3, []),
        ("UPDOWN", None, [21, 22]),
    ],
)
def test_records_between_which_and_the_reader_a_rule_is_are_not_read(
    registry: MemoryRegistry, mode: str, reader: int | None, migrated: list[int]
):
    for number in (21, 22, 23, 24):
        rule = [SchemaRule("split", "JSONATA", mode)] if number == 23 else []
        registry.add("v", ["null", "string"], number, "AVRO", *rule)
    assert sorted(_migrated(registry.versions("v"), reader)) == migrated


class RegistryWithRights:
    """Answers over HTTP. ``owners``: of each id, who may read its subject."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 403) -> None:
        self.owners, self.status = {1: "orders", 2: "payments"}, status
        self.schemas: dict[int, dict[str, Any]] = {}
        monkeypatch.setattr(conversation, "send", self.send)

    def send(
        self, _address: Any, _tls: Any, _method: str, path: str, *, headers: Any, **_more: Any
    ) -> http.Answer:
        login = base64.b64decode(headers["Authorization"].split()[1]).decode().split(":")[0]
        number = int(path.rpartition("/")[2]) if path.startswith("/schemas") else 0
        if number and self.owners.get(number) in (login, "all"):
            schema = self.schemas.get(number, {"schema": json.dumps(record("int"))})
            return http.Answer(200, {}, json.dumps(schema).encode())
        status = self.status if number in self.owners or not number else 404
        code = {403: 40301, 404: 40403}[status]
        answer = json.dumps({"error_code": code, "message": "not for you"})
        return http.Answer(status, {}, answer.encode())

    def by(self, login: str) -> SchemaRegistry:
        options = {"basic.auth.user.info": f"{login}:secret"}
        return SchemaRegistry("http://rights", options=options, timeout_s=1)


@pytest.mark.parametrize("status", [403, 404], ids=["Confluent's", "Karapace's"])
def test_what_a_query_has_met_is_asked_for_by_no_query_of_another_subject(
    status: int, monkeypatch: pytest.MonkeyPatch
):
    """Each has a login of its own, and rights are by subject."""
    monkeypatch.setattr(memory, "_memories", {})
    has = RegistryWithRights(monkeypatch, status)
    for login, number in (("orders", 1), ("payments", 2), ("orders", 1)):
        registry = has.by(login)
        found = memory_for(registry, login).schemas(registry, [number])
        assert (set(found.texts), found.missing) == ({number}, frozenset())


def test_an_id_that_the_login_may_not_read_keeps_no_query_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
):
    """Met by a login that could, or missing then and of another team now. A record that has it
    says so.
    """
    has = RegistryWithRights(monkeypatch)
    registry, remembered = has.by("orders"), memory.SchemaMemory()
    remembered.recall([3, 4], {2: "of another login"})
    has.owners[3] = "others"
    gone = {"name": "n.Theirs", "subject": "theirs", "version": 1}
    has.owners[5] = "all"
    has.schemas[5] = {"schema": json.dumps(record("n.Theirs")), "references": [gone]}
    found = remembered.schemas(registry, [1], others=[2, 5])
    assert (set(found.texts), found.unreadable, found.missing) == ({1}, {}, {4})
    for number in (2, 3):
        with pytest.raises(RegistryRefused):
            remembered.ask(registry, [number], 0)
    assert remembered.missing() == [3, 4], "the one that is refused is asked for in its turn, too"
    remembered.ask_again(registry, 1)
    assert remembered.missing() == [4, 3]
    with pytest.raises(RegistryRefused):
        remembered.schemas(registry, [1, 2])


class Checkpoints:
    """Files beside checkpoints, and processes that read them, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders: dict[str, dict[str, str]] = {}
        monkeypatch.setattr(memory, "CheckpointFiles", self._files)
        self._patch = monkeypatch
        self.new_process()

    def _files(self, _session: object, folder: str) -> Any:
        files = self.folders.setdefault(folder, {})
        return SimpleNamespace(read=lambda: dict(files), write=files.__setitem__)

    def new_process(self) -> None:
        self._patch.setattr(memory, "_used", set())

    def start(self, registry: MemoryRegistry, subject: str | None, met: list[int]) -> list[int]:
        """Define a query and write what it met; return the ids that earlier ones had."""
        remembered = memory.SchemaMemory()
        file = memory.id_file(SESSION, "/cp", registry, subject)
        assert file is not None
        others = file.recall(remembered)
        remembered.schemas(registry, met, others=others)
        file.write(remembered)
        return others


IDS = "/cp/onceward/@schema-ids"


def test_a_query_has_a_file_of_its_own_and_reads_the_one_of_a_version_before(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = Checkpoints(monkeypatch)
    start = partial(checkpoints.start, registry)
    assert start(None, [1]) == []
    before = hashlib.sha256(f"{registry.url} ".encode()).hexdigest()[:16]
    files = checkpoints.folders[IDS]
    files[f"ids-{before}.json"] = files.pop(*files)
    assert (start("s-key", []), start("s-value", [2])) == ([1], [1])
    assert (start("s-key", []), start("s-value", []), start(None, [])) == ([1], [1, 2], [1])
    assert len(files) == 4


def moved(registry: MemoryRegistry, changed: dict[int, Any]) -> MemoryRegistry:
    other = MemoryRegistry()
    other.url = "http://new"
    for number, schema in registry.schemas.items():
        if number not in changed:
            other.schemas[number] = schema
    for number, text in changed.items():
        if text is not None:
            other.add("s", text, number)
    return other


def test_a_registry_at_another_address_is_compared_with_what_the_checkpoint_knows(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
):
    """It may count its ids anew, and records with the old ones are still to be read."""
    checkpoints = Checkpoints(monkeypatch)
    checkpoints.start(registry, "s", [1, 2, 77])
    for changed in (1, 2):
        checkpoints.new_process()
        with pytest.raises(RegistryReplaced) as met:
            checkpoints.start(moved(registry, {changed: "double"}), "s", [1])
        assert "remove the folder onceward/@schema-ids" in met.value.next_step
    # Of another subject nothing is known
    assert checkpoints.start(moved(registry, {1: "double"}), "other", [1]) == []
    # One that has them all, and one more
    checkpoints.new_process()
    assert checkpoints.start(moved(registry, {77: "int"}), "s", [1]) == [1, 2]
    checkpoints.new_process()
    with pytest.raises(RegistryReplaced):
        checkpoints.start(moved(registry, {1: "double"}), "s", [])


def test_an_old_id_that_a_registry_at_another_address_gets_later_is_compared(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = Checkpoints(monkeypatch)
    checkpoints.start(registry, "s", [1, 2])
    for ids in ([5], []):
        checkpoints.new_process()
        checkpoints.start(moved(registry, {1: None, 2: None, 5: "int"}), "s", ids)
    checkpoints.new_process()
    with pytest.raises(RegistryReplaced):
        checkpoints.start(moved(registry, {1: "double", 2: None, 5: "int"}), "s", [])


def test_a_registry_is_not_compared_with_another_one_of_its_query(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
):
    """As of two clusters, whose topics have one name. A crash leaves the file of one alone."""
    checkpoints = Checkpoints(monkeypatch)
    checkpoints.start(registry, "s", [1])
    assert checkpoints.start(moved(registry, {1: "int"}), "s", [1]) == []
    # Nor with one of another query, in the folder of a run
    checkpoints.new_process()
    monkeypatch.setenv(RUN_FOLDER, "/cp")
    for address in (registry, moved(registry, {1: "int"})):
        file = memory.id_file(SESSION, None, address, "t")
        assert file is not None
        remembered = memory.SchemaMemory()
        assert file.recall(remembered) == []
        remembered.schemas(address, [1])
        file.write(remembered)
        checkpoints.new_process()


def test_another_registry_under_the_same_url_is_noticed(registry: MemoryRegistry):
    memory_for(registry).schemas(registry, [1, 2])
    other = MemoryRegistry()
    other.url = registry.url
    other.add("s", "double", 1)
    with raises(RegistryReplaced):
        memory_for(other).schemas(other, [1])


def test_an_id_that_was_deleted_for_good_is_forgotten_at_the_next_definition(
    registry: MemoryRegistry,
):
    memory = memory_for(registry)
    assert set(memory.schemas(registry, [1, 2]).texts) == {1, 2}
    gone = registry.schemas.pop(1)
    found = memory.schemas(registry, [2])
    assert (set(found.texts), found.missing) == ({2}, {1})
    # A record that has it still is one of an unknown id, as in a new process
    memory.ask(registry, [1], wait_s=0)
    assert memory.missing() == [1]
    registry.schemas[1] = gone
    assert set(memory.schemas(registry, [2]).texts) == {1, 2}
    del registry.schemas[1]
    registry.add("s", "double", 1)
    with pytest.raises(RegistryReplaced):
        memory.schemas(registry, [2])


def test_a_registry_without_any_id_that_was_known_is_another_one(registry: MemoryRegistry):
    memory_for(registry).schemas(registry, [1, 2])
    registry.schemas.clear()
    with pytest.raises(RegistryReplaced):
        memory_for(registry).schemas(registry, [1, 2])


def test_a_registry_that_was_replaced_stops_the_batch(registry: MemoryRegistry):
    witness = RegistryMonitor(registry, [1, 2], 0)
    witness.check()
    del registry.schemas[2]
    with pytest.raises(RegistryReplaced):
        witness.check()


def test_a_monitor_asks_again_for_what_is_missing_also_where_nothing_is_known(
    registry: MemoryRegistry,
):
    memory = memory_for(registry)
    memory.ask(registry, [7], 0)
    registry.add("late", "int", 7)
    RegistryMonitor(registry, [], 0, lambda: memory.ask_again(registry, 1)).check()
    assert memory.ids() == [7]


def test_a_registry_that_is_away_stops_no_batch(registry: MemoryRegistry):
    witness = RegistryMonitor(registry, [1, 2], 0)
    registry.away = RegistryUnreachable("away")
    witness.check()
    registry.away = None
    del registry.schemas[2]
    with pytest.raises(RegistryReplaced):
        witness.check()


def test_a_registry_that_hangs_is_heard_later(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("onceward.formats.avro.step._PATIENCE_S", 0.01)
    answer = threading.Event()

    def hang(known: Any) -> None:
        assert answer.wait(60)
        raise RegistryReplaced("another one")

    registry.check_unchanged = hang  # type: ignore[method-assign]
    witness = RegistryMonitor(registry, [1], 0)
    witness.check()
    witness.check()
    answer.set()
    monkeypatch.setattr("onceward.formats.avro.step._PATIENCE_S", 60)
    with pytest.raises(RegistryReplaced):
        witness.check()


def test_all_ids_have_their_turn():
    asked: list[int] = []
    registry = MemoryRegistry()
    registry.check_unchanged = asked.extend  # type: ignore[method-assign, assignment]
    witness = RegistryMonitor(registry, list(range(120)), 0)
    for _ in range(3):
        witness.check()
    assert set(asked) == set(range(120))
    assert len(asked) == 150


def test_texts_of_a_record_are_read_as_bytes():
    """As long as they are nothing else, and have no default that would be other bytes."""
    plain = [
        {"name": "a", "type": "string", "default": "x"},
        {"name": "b", "type": ["null", "string"]},
    ]
    others = [
        {"name": "c", "type": "string", "default": "é"},
        {"name": "d", "type": ["null", "int", "string"]},
        {"name": "e", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "f", "type": "long"},
    ]  # fmt: skip
    schema = {"type": "record", "name": "R", "namespace": "x", "fields": [*plain, *others]}
    read_as, names = texts_as_bytes(json.dumps(schema))
    assert names == {"a", "b"}
    wanted = [
        {"name": "a", "type": "bytes", "default": "x"},
        {"name": "b", "type": ["null", "bytes"]},
        *others,
    ]
    assert json.loads(read_as) == schema | {"fields": wanted}
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
    }
    assert json.loads(same_with_bytes(json.dumps(writer), names))["fields"] == [
        {"name": "a", "type": "int"}, {"name": "b", "type": "bytes"},
    ]  # fmt: skip
    many = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": f"f{n}", "type": "string"} for n in range(20)],
        }
    )
    assert not texts_as_bytes(many)[1]
    assert texts_as_bytes('"string"') == ('"string"', frozenset())


@pytest.mark.parametrize(
    ("space", "valid"),
    [
        ("my-server.shop", "_my_2d_server.shop"),
        ("com.acme.Outer$", "com.acme._Outer_24_"),
        ("com.1acme", "com._1acme"),
        ("com.acme.", "com.acme._"),
        ("ünder", "__fc_nder"),
    ],
)
def test_namespaces_that_java_does_not_take_are_spelled_otherwise(space: str, valid: str):
    """Wherever a name may stand, in full or beside its namespace; the rest stays."""

    def schema(space: str) -> str:
        inner = {"type": "enum", "name": f"{space}.Kind", "symbols": ["A"]}
        fields = [
            {"name": "a", "type": ["null", {"type": "array", "items": inner}]},
            {"name": "b", "type": {"type": "map", "values": f"{space}.Kind"}},
            {"name": "c", "type": "Kind", "default": "my-server.A", "doc": "my-server.A"},
            {"name": "d", "type": {"type": "string", "namespace": "my-server"}},
        ]
        names = {"namespace": space, "aliases": ["Old", f"{space}.Older"]}
        return json.dumps({"type": "record", "name": "R", "fields": fields} | names)

    assert with_valid_namespaces(schema(space)) == schema(valid)


@pytest.mark.parametrize(
    "text",
    [
        ' {"type": "fixed", "name": "R", "namespace": "", "size": 1}', "string", '"com.x.R"',
        '{"type": "record", "name": 7, "fields": [1, {"name": "a"}], "aliases": 1}', "{", "[7]",
    ],
)  # fmt: skip
def test_other_schemas_stay_as_they_are(text: str):
    assert with_valid_namespaces(text) == text
