"""One Avro schema out of several: named types that live in other subjects are put where they are
first used.

Called by :mod:`client`, in the driver. Which version of which subject a name means, the schema
itself says (*Schema Registry Fundamentals*, "Schema references"); every one of them comes from the
registry by ``version_of``, and an address in a schema is never gone to. Names and namespaces are
Avro's (*Apache Avro 1.12 Specification*, "Names").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from onceward.errors import UnsupportedSchema
from onceward.formats.registry.answers import (
    RegisteredSchema,
    SchemaReference,
    Version,
    subject_context,
)
from onceward.formats.registry.http import DEEPEST, NotFit, parse_json

MOST_SCHEMAS = 200
DEEPEST_REFERENCE = 20
MOST_BYTES = 8_388_608
"""Of all schemas together, and of the one that is made of them."""

_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def self_contained(
    schema: RegisteredSchema, version_of: Callable[[str, int], Version], context: str = ""
) -> str:
    """Return the text of ``schema`` with its references inlined; its own text as it is where it
    has none.

    :param context: the one that it is registered in; "" is the default one.
    :raises UnsupportedSchema: it is no Avro, or beyond our limits; its references go in circles,
        are too many or too deep, or give a name two meanings.
    """
    if schema.schema_type != "AVRO":
        raise UnsupportedSchema(
            f"schema {schema.id} is {schema.schema_type}, not AVRO",
            next_step="read this topic by another format, or correct the schema's type in the "
            "registry",
            details={"id": schema.id, "schema_type": schema.schema_type},
        )
    if schema.unfit:
        raise _unfit(schema.id, f"is {schema.unfit}", _SMALLER)
    if not schema.references:
        return schema.text
    gathering = _Gathering(schema, version_of)
    gathering.gather(schema, (), context)
    text = json.dumps(
        _Inlining(schema.id, gathering.types).inline(parse_json(schema.text)), ensure_ascii=False
    )
    if len(text.encode()) > MOST_BYTES:
        raise _unfit(schema.id, f"is larger than {MOST_BYTES:,} bytes with what it refers to")
    try:
        parse_json(text)
    except NotFit as wrong:
        raise _unfit(schema.id, f"becomes {wrong} with what it refers to") from None
    return text


class _Gathering:
    """All named types that a schema can mean, from the schemas that it refers to, and so on."""

    def __init__(
        self, schema: RegisteredSchema, version_of: Callable[[str, int], Version]
    ) -> None:
        self._id = schema.id
        self._version_of = version_of
        self._visited: set[tuple[str, int]] = set()
        self._bytes = len(schema.text)
        self.types: dict[str, dict[str, Any]] = {}

    def gather(
        self, schema: RegisteredSchema, way: tuple[SchemaReference, ...], context: str
    ) -> None:
        """Collect schemas, depth first. ``way``: the references that led here; ``context``: where
        they have led."""
        if len(way) > DEEPEST_REFERENCE:
            raise _unfit(
                self._id, f"has references deeper than {DEEPEST_REFERENCE} levels ({_spell(way)})"
            )
        for named in schema.references:
            reference = replace(named, subject=_qualified(named.subject, context))
            place = (reference.subject, reference.version)
            if place in {(before.subject, before.version) for before in way}:
                raise _unfit(
                    self._id, f"has references that go in circles ({_spell((*way, reference))})"
                )
            if place in self._visited:
                continue
            self._visited.add(place)
            if len(self._visited) > MOST_SCHEMAS:
                raise _unfit(self._id, f"refers to more than {MOST_SCHEMAS} schemas")
            found = self._version_of(*place).schema
            if found.schema_type != "AVRO":
                raise _unfit(
                    self._id, f"refers to {_spell((reference,))}, which is {found.schema_type}"
                )
            if found.unfit:
                what = f"refers to {_spell((reference,))}, which is {found.unfit}"
                raise _unfit(self._id, what, _SMALLER)
            self._bytes += len(found.text)
            if self._bytes > MOST_BYTES:
                raise _unfit(self._id, f"refers to more than {MOST_BYTES:,} bytes of schemas")
            self.gather(found, (*way, reference), subject_context(reference.subject))
            for name, definition in _definitions(parse_json(found.text), ""):
                if self.types.setdefault(name, definition) != definition:
                    raise _unfit(self._id, f"refers to two different types of the name {name}")


class _Inlining:
    """Writes one schema, with each foreign type defined where it is first met, as Avro wants."""

    def __init__(self, schema_id: int, types: dict[str, dict[str, Any]]) -> None:
        self._id = schema_id
        self._types = types
        self._defined: set[str] = set()

    def inline(self, schema: Any) -> Any:
        own = dict(_definitions(schema, ""))
        if twice := sorted(set(own) & set(self._types)):
            raise _unfit(self._id, f"defines {twice[0]} itself, and refers to it, too")
        self._own = own
        return self._rewrite(schema, "", 0)

    def _rewrite(self, schema: Any, space: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise _unfit(
                self._id, f"is nested deeper than {DEEPEST} levels with what it refers to"
            )
        if isinstance(schema, str):
            return self._resolve(schema, space, depth)
        if isinstance(schema, list):
            return [self._rewrite(branch, space, depth + 1) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in _NAMED and isinstance(kind, str):
            return self._definition(schema, space, depth)
        written = dict(schema)
        if isinstance(kind, str) and kind not in ("array", "map"):
            # {"type": "x.A"} is x.A to Avro's parser, and nothing else of the object counts.
            # Behind "type" it takes no definition.
            meant = self._resolve(kind, space, depth)
            return meant if isinstance(meant, dict) else {**schema, "type": meant}
        for name in ("items", "values"):
            if name in written:
                written[name] = self._rewrite(written[name], space, depth + 1)
        return written

    def _definition(self, schema: dict[str, Any], space: str, depth: int) -> Any:
        name = _full_name(schema, space)
        if name is None:
            return schema
        if name in self._types and name in self._defined:
            # A type within a type, whose turn came before
            return self._spell(name, space)
        self._defined.add(name)
        inner = name.rpartition(".")[0]
        written = dict(schema)
        if isinstance(schema.get("fields"), list):
            written["fields"] = [
                {**field, "type": self._rewrite(field.get("type"), inner, depth + 1)}
                if isinstance(field, dict)
                else field
                for field in schema["fields"]
            ]
        return written

    def _resolve(self, name: str, space: str, depth: int) -> Any:
        """Return the name itself, or the definition of a type that is met for the first time."""
        if name in _PRIMITIVE:
            return name
        full = self._find(name, space)
        if full is None or full not in self._types:
            return name
        if full in self._defined:
            return self._spell(full, space)
        namespace, _, short = full.rpartition(".")
        # By its own two names, whatever the namespace around it.
        return self._definition(
            {**self._types[full], "name": short, "namespace": namespace}, "", depth
        )

    def _find(self, name: str, space: str) -> str | None:
        """Look as Avro's parser does, around and else without; what is defined changes, so one
        only.
        """
        full = name if "." in name or not space else f"{space}.{name}"
        found = [
            candidate
            for candidate in dict.fromkeys((full, name))
            if candidate in self._types or candidate in self._own
        ]
        if len(found) > 1:
            raise self._ambiguous(*found)
        return found[0] if found else None

    def _spell(self, full: str, space: str) -> str:
        around = f"{space}.{full}"
        if "." not in full and space and (around in self._types or around in self._own):
            raise self._ambiguous(around, full)
        return full

    def _ambiguous(self, one: str, other: str) -> UnsupportedSchema:
        return _unfit(self._id, f"may mean {one} or {other} by the name {other}")


def _definitions(schema: Any, space: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each named type in ``schema`` with its full name; those within others come first."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _definitions(branch, space)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind in _NAMED and isinstance(kind, str):
        name = _full_name(schema, space)
        if name is not None:
            fields = schema.get("fields")
            for field in fields if isinstance(fields, list) else []:
                if isinstance(field, dict):
                    yield from _definitions(field.get("type"), name.rpartition(".")[0])
            yield name, schema
        return
    for part in ("items", "values", "type"):
        yield from _definitions(schema.get(part), space)


def _full_name(schema: dict[str, Any], space: str) -> str | None:
    name, own = schema.get("name"), schema.get("namespace")
    if not isinstance(name, str) or not name:
        return None
    if "." in name:
        return name
    space = own if isinstance(own, str) else space
    return f"{space}.{name}" if space else name


def _qualified(subject: str, context: str) -> str:
    """Return a subject that a schema of this context names, as seen from outside of it. Source:
    Confluent's ``QualifiedSubject.qualifySubjectWithParent``, which takes ``:.:orders`` for a
    subject without a context as well."""
    is_there = bool(context) and not subject_context(subject)
    return f":{context}:{subject}" if is_there else subject


def _spell(way: tuple[SchemaReference, ...]) -> str:
    return " → ".join(f"{reference.subject} version {reference.version}" for reference in way)


_WHOLE = "register it anew with references that can be followed, or as one schema without any"
_SMALLER = (
    "register a smaller, flatter one for its records, or pass a larger max_schema_bytes= to "
    "SchemaRegistry"
)


def _unfit(schema_id: int, what: str, next_step: str = _WHOLE) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"schema {schema_id} {what}", next_step=next_step, details={"id": schema_id}
    )
