"""A schema registry in memory, with the interface that decode and encode need: for tests of what
Spark makes of schemas. How a real one is asked has tests of its own.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable
from typing import Any

from onceward.errors import OncewardError, RegistryReplaced, SchemaUnknown, UnsupportedSchema
from onceward.formats.registry.answers import RegisteredSchema, SchemaRule, Version

_numbers = itertools.count(1)


class MemoryRegistry:
    """``schemas`` by id; ``subjects``, the ids of their versions; ``asked`` counts questions;
    ``away`` answers them.
    """

    def __init__(self) -> None:
        self.url = f"memory://{next(_numbers)}"
        self.schemas: dict[int, RegisteredSchema] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked = 0
        self.away: OncewardError | None = None
        self._lock = threading.Lock()

    def add(
        self, subject: str, schema: Any, number: int, kind: Any = "AVRO", *rules: SchemaRule
    ) -> int:
        text = schema if isinstance(schema, str) and kind != "AVRO" else json.dumps(schema)
        self.schemas[number] = RegisteredSchema(number, kind, text, (), rules)
        self.subjects.setdefault(subject, []).append(number)
        return number

    def schema(self, schema_id: int) -> RegisteredSchema:
        with self._lock:
            self.asked += 1
        if self.away is not None:
            raise self.away
        if schema_id not in self.schemas:
            raise SchemaUnknown(f"no schema id {schema_id}")
        return self.schemas[schema_id]

    def resolved_text(self, schema_id: int) -> str:
        found = self.schema(schema_id)
        if found.schema_type != "AVRO":
            raise UnsupportedSchema(f"schema id {schema_id} is {found.schema_type}")
        return found.text

    def versions(self, subject: str) -> list[Version]:
        if self.away is not None:
            raise self.away
        if subject not in self.subjects:
            raise SchemaUnknown(f"no subject {subject}")
        return [
            Version(subject, n, self.schema(i)) for n, i in enumerate(self.subjects[subject], 1)
        ]

    def latest(self, subject: str) -> Version:
        return self.versions(subject)[-1]

    def version(self, subject: str, number: int) -> Version:
        found = self.versions(subject)
        if not 0 < number <= len(found):
            raise SchemaUnknown(f"no version {number} of {subject}")
        return found[number - 1]

    def lookup(self, subject: str, schema_text: str) -> int:
        for version in self.versions(subject):
            if json.loads(version.text) == json.loads(schema_text):
                return version.id
        raise SchemaUnknown(f"not registered under {subject}")

    def register(self, subject: str, schema_text: str) -> int:
        try:
            return self.lookup(subject, schema_text)
        except SchemaUnknown:
            return self.add(subject, json.loads(schema_text), max(self.schemas, default=0) + 1)

    def check_unchanged(self, known: Iterable[int]) -> None:
        for number in known:
            if self.away is not None:
                raise self.away
            if number not in self.schemas:
                raise RegistryReplaced(f"schema id {number} is gone")

    def __repr__(self) -> str:
        return f"MemoryRegistry({self.url!r})"
