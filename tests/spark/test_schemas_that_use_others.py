"""Avro's own parser, which Spark has, is asked what several schemas mean together; ours shall mean
the same as one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from onceward.errors import UnsupportedSchema
from onceward.formats.registry.answers import RegisteredSchema, SchemaReference, Version
from onceward.formats.registry.references import self_contained

SEEDS = 300
NAMESPACES = ("", "x", "x.y", "z")


class Family:
    """Random schemas: each may use types of those before it, nested ones too, by short names or
    full ones.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.schemas: list[RegisteredSchema] = []
        self._types: list[tuple[str, int]] = []  # full name, and which schema has it
        self._count = 0
        for number in range(1, self.chance.randint(2, 6)):
            self._add(number)

    def _add(self, number: int) -> None:
        self._uses: set[int] = set()
        self._new: list[str] = []
        made = self._definition("", 0)
        text = json.dumps([made, "null"] if self.chance.random() < 0.2 else made)
        refers = tuple(SchemaReference("any", f"s{use}", 1) for use in sorted(self._uses))
        self.schemas.append(RegisteredSchema(number, "AVRO", text, refers))
        self._types += [(name, number) for name in self._new]

    def _definition(self, space: str, depth: int) -> dict[str, Any]:
        chance = self.chance
        self._count += 1
        # A name without a namespace may be one with another namespace, too.
        name = f"T{self._count % 4 if chance.random() < 0.3 else self._count}"
        how = chance.random()
        own = chance.choice(NAMESPACES)
        made: dict[str, Any] = {"type": "record", "name": name}
        if how < 0.3:
            made["namespace"], space = own, own
        elif how < 0.6 and own:
            made["name"], space = f"{own}.{name}", own
        full = f"{space}.{name}" if space else name
        if chance.random() < 0.2 and depth:
            made |= chance.choice(
                [{"type": "fixed", "size": 3}, {"type": "enum", "symbols": ["A", "B"]}]
            )
            self._new.append(full)
            return made
        self._new.append(full)
        fields = [self._field(space, depth) for _ in range(chance.randint(0, 4))]
        return {
            **made,
            "fields": [{"name": f"f{place}", "type": kind} for place, kind in enumerate(fields)],
        }

    def _field(self, space: str, depth: int) -> Any:
        kind = self.chance.random()
        if kind < 0.15 and depth < 3:
            return self._definition(space, depth + 1)
        if kind < 0.3:
            return {"type": "array", "items": self._field(space, depth)}
        if kind < 0.4:
            return {"type": "map", "values": self._field(space, depth)}
        if kind < 0.5:
            return {"type": self._named(space)}
        if kind < 0.6:
            return ["null", self._named(space)]
        if kind < 0.7:
            return {"type": "bytes", "logicalType": "decimal", "precision": 4}
        return self._named(space) if kind < 0.95 else "string"

    def _named(self, space: str) -> str:
        known = [*self._types, *((name, 0) for name in self._new)]
        if not known:
            return "int"
        full, owner = self.chance.choice(known)
        if owner:
            self._uses.add(owner)
        around, _, short = full.rpartition(".")
        return short if (around == space and self.chance.random() < 0.5) else full

    def version(self, subject: str, number: int) -> Version:
        return Version(subject, number, self.schemas[int(subject[1:]) - 1])

    def in_order(self, schema: RegisteredSchema, seen: set[int]) -> Iterator[RegisteredSchema]:
        """What it refers to, as the registry's own client hands it to the parser: each before
        those that use it.
        """
        for reference in schema.references:
            other = self.schemas[int(reference.subject[1:]) - 1]
            if other.id not in seen:
                seen.add(other.id)
                yield from self.in_order(other, seen)
                yield other


def test_one_schema_means_what_several_do(spark: Any):
    def parsed(*texts: str) -> str:
        parser = getattr(spark._jvm.org.apache.avro, "Schema$Parser")()
        return [parser.parse(text).toString() for text in texts][-1]

    compared = 0
    for seed in range(SEEDS):
        family = Family(seed)
        last = family.schemas[-1]
        try:
            together = parsed(*[schema.text for schema in family.in_order(last, set())], last.text)
        except Py4JJavaError:
            continue  # it is no good to begin with: a name twice, say
        alone = text_of(last, family)
        if alone is not None:
            compared += bool(last.references)
            assert parsed(alone) == together, (
                f"seed {seed}: {[schema.text for schema in family.schemas]}"
            )
    assert compared > SEEDS / 10


def text_of(schema: RegisteredSchema, family: Family) -> str | None:
    """None: a name may be one of two. Avro's parser then takes which is defined by then, and takes
    a type that has another one of its own name in it.
    """
    try:
        return self_contained(schema, family.version)
    except UnsupportedSchema as unfit:
        if "may mean" in unfit.message or "two different types" in unfit.message:
            return None
        raise


def test_what_it_refuses_avro_refuses_too(spark: Any):
    parser = getattr(spark._jvm.org.apache.avro, "Schema$Parser")()
    parser.parse('{"type":"record","name":"x.D","fields":[]}')
    with pytest.raises(Py4JJavaError, match="redefine"):  # later releases take the same once more
        parser.parse('{"type":"record","name":"x.D","fields":[{"name":"a","type":"int"}]}')
