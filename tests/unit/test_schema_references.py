"""Schemas that use others become one. What Avro's own parser makes of them, `tests/spark` asks
it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from onceward.errors import UnsupportedSchema
from onceward.formats.registry import references as module
from onceward.formats.registry.answers import RegisteredSchema, SchemaReference, Version
from onceward.formats.registry.references import self_contained


class Subjects:
    """Stands for the registry: versions of subjects, in the order of their registration."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int], Version] = {}
        self.asked: list[tuple[str, int]] = []

    def add(
        self, subject: str, schema: Any, *uses: str, version: int = 1, kind: Any = "AVRO"
    ) -> RegisteredSchema:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        refers = tuple(
            SchemaReference(use, use.partition(":")[0], int(use.partition(":")[2] or 1))
            for use in uses
        )
        made = RegisteredSchema(len(self.versions) + 1, kind, text, refers)
        self.versions[subject, version] = Version(subject, version, made)
        return made

    def __call__(self, subject: str, version: int) -> Version:
        self.asked.append((subject, version))
        return self.versions[subject, version]


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    typed = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": name, **more, "fields": typed}


def refused(schema: RegisteredSchema, subjects: Callable[[str, int], Version]) -> str:
    with pytest.raises(UnsupportedSchema) as error:
        self_contained(schema, subjects)
    assert error.value.details["id"] == schema.id
    return error.value.message


def test_without_references_it_is_the_registered_text():
    subjects = Subjects()
    text = ' {"type" : "record",\n"name":"x.A", "fields":[{"name":"b","type":"x.Unknown"}]} '
    assert self_contained(subjects.add("a", text), subjects) == text
    assert subjects.asked == []


def test_a_type_is_defined_where_it_is_first_used_and_named_from_then_on():
    subjects = Subjects()
    subjects.add(
        "x.Street", {"type": "enum", "name": "Street", "namespace": "x", "symbols": ["A"]}
    )
    subjects.add(
        "x.Addr", record("Addr", "Street", ["null", "x.Street"], namespace="x"), "x.Street"
    )
    main = subjects.add(
        "m", record("y.M", "x.Addr", {"type": "array", "items": "x.Addr"}, "x.Street"), "x.Addr"
    )
    street = {"type": "enum", "name": "Street", "namespace": "x", "symbols": ["A"]}
    assert json.loads(self_contained(main, subjects)) == record(
        "y.M",
        record("Addr", street, ["null", "x.Street"], namespace="x"),
        {"type": "array", "items": "x.Addr"},
        "x.Street",
    )


def test_a_type_within_another_may_be_used_before_it():
    subjects = Subjects()
    inner = {"type": "fixed", "name": "Inner", "size": 4}
    subjects.add("o", record("x.Outer", inner, "Inner"))
    main = subjects.add("m", record("x.M", "Inner", "Outer", "x.Inner"), "o")
    assert json.loads(self_contained(main, subjects)) == record(
        "x.M",
        {"type": "fixed", "name": "Inner", "namespace": "x", "size": 4},
        record("Outer", "x.Inner", "x.Inner", namespace="x"),
        "x.Inner",
    )


def test_recursion_within_a_type_stays():
    subjects = Subjects()
    subjects.add("n", record("x.Node", ["null", "Node"]))
    main = subjects.add("m", record("M", {"type": "map", "values": "x.Node"}), "n")
    assert json.loads(self_contained(main, subjects)) == record(
        "M", {"type": "map", "values": record("Node", ["null", "x.Node"], namespace="x")}
    )


def test_a_diamond_is_no_circle_and_each_version_is_asked_for_once():
    subjects = Subjects()
    subjects.add("d", record("x.D", "int"))
    subjects.add("b", record("x.B", "D"), "d")
    subjects.add("c", record("x.C", "D"), "d")
    main = subjects.add("m", record("x.M", "B", "C"), "b", "c")
    assert (
        json.loads(self_contained(main, subjects))["fields"][1]["type"]["fields"][0]["type"]
        == "x.D"
    )
    assert sorted(subjects.asked) == [("b", 1), ("c", 1), ("d", 1)]


def test_circles_are_refused_by_name():
    subjects = Subjects()
    subjects.add("a", record("x.A", "x.B"), "b")
    subjects.add("b", record("x.B", "x.A"), "a")
    said = refused(subjects.add("m", record("x.M", "x.A"), "a"), subjects)
    assert "a version 1 → b version 1 → a version 1" in said


def test_a_schema_beyond_our_limits_is_refused_by_name():
    subjects = Subjects()
    subjects.add("big", record("x.A", "int"))
    big = subjects.versions["big", 1]
    unfit = dataclasses.replace(big.schema, unfit="of 5 bytes, above the limit of 4")
    subjects.versions["big", 1] = dataclasses.replace(big, schema=unfit)
    for schema, said in (
        (unfit, "schema 1 is of 5 bytes, above the limit of 4"),
        (
            subjects.add("m", record("x.M", "x.A"), "big"),
            "schema 2 refers to big version 1, which is of 5 bytes, above the limit of 4",
        ),
        (dataclasses.replace(unfit, schema_type="XML"), "schema 1 is XML, not AVRO"),
    ):
        assert said in refused(schema, subjects)


def test_depth_and_number_have_limits(monkeypatch: pytest.MonkeyPatch):
    subjects = Subjects()
    subjects.add("s0", record("x.T0", "int"))
    for number in range(1, 30):
        subjects.add(f"s{number}", record(f"x.T{number}", f"x.T{number - 1}"), f"s{number - 1}")
    assert "T0" in self_contained(subjects.add("fit", record("x.M", "x.T19"), "s19"), subjects)
    assert "deeper than 20" in refused(
        subjects.add("deep", record("x.M", "x.T29"), "s29"), subjects
    )
    monkeypatch.setattr(module, "MOST_SCHEMAS", 5)
    assert "more than 5 schemas" in refused(
        subjects.add("many", record("x.M", "x.T9"), "s9"), subjects
    )
    monkeypatch.setattr(module, "MOST_BYTES", 300)
    assert "more than 300 bytes" in refused(
        subjects.add("large", record("x.M", "x.T4"), "s4"), subjects
    )


def test_what_is_nested_too_deep_together_is_refused():
    subjects = Subjects()
    deep: Any = "int"
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    subjects.add("a", record("x.A", deep))
    nested: Any = "x.A"
    for _ in range(60):
        nested = {"type": "array", "items": nested}
    assert "nested deeper" in refused(subjects.add("m", record("x.M", nested), "a"), subjects)


def test_one_name_has_one_meaning():
    subjects = Subjects()
    subjects.add("d", record("x.D", "int"))
    subjects.add("d", record("x.D", "long"), version=2)
    subjects.add("b", record("x.B", "D"), "d:1")
    subjects.add("c", record("x.C", "D"), "d:2")
    assert "two different types" in refused(
        subjects.add("m", record("x.M", "B", "C"), "b", "c"), subjects
    )
    again = subjects.add("again", record("x.M", record("D", "int"), "x.D"), "d:1")
    assert "defines x.D itself" in refused(again, subjects)


def test_a_name_without_a_namespace_is_one():
    subjects = Subjects()
    subjects.add("a", record("A", "int"))
    subjects.add("b", record("B", "A"), "a")
    main = subjects.add("m", record("x.M", "A", "B"), "a", "b")
    made = json.loads(self_contained(main, subjects))["fields"]
    assert made[0]["type"] == {**record("A", "int"), "namespace": ""}
    assert made[1]["type"] == {**record("B", "A"), "namespace": ""}


def test_a_name_that_may_be_one_of_two_is_refused():
    subjects = Subjects()
    subjects.add("a", record("A", "int"))
    subjects.add("xa", record("x.A", "long"))
    said = refused(subjects.add("m", record("x.M", "A"), "a", "xa"), subjects)
    assert "may mean x.A or A by the name A" in said
    assert "y.M" in self_contained(
        subjects.add("n", record("y.M", "A", "x.A"), "a", "xa"), subjects
    )


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_what_is_no_avro_is_refused(kind: str):
    subjects = Subjects()
    assert kind in refused(subjects.add("j", "{}", kind=kind), subjects)
    assert kind in refused(subjects.add("m", record("x.M", "x.J"), "j"), subjects)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": {"type": ["x.A", {"type": "x.A"}]}}, {"type": ["x.A"]}, 7, None, [], {},
        {"type": "record"},
        {"type": "record", "name": 7, "fields": [1]}, {"type": "record", "name": "", "fields": {}},
        {"type": "enum", "name": ["x"]}, {"type": "array"}, {"items": {"values": {"type": None}}},
        {"type": "record", "name": "x.M", "fields": [{"name": "a"}, {"type": {"type": 1}}]},
    ],
)  # fmt: skip
def test_what_avro_would_not_take_is_left_to_it(odd: Any):
    subjects = Subjects()
    subjects.add("a", record("x.A", "int"))
    subjects.add("odd", odd, "a")
    main = subjects.add("m", odd, "a")
    assert "x.B" in json.loads(self_contained(subjects.add("n", ["x.B", "x.A"], "odd"), subjects))
    json.loads(self_contained(main, subjects))
