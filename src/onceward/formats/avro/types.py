"""The types of an Avro schema, linked by their names, and which of them Spark cannot read. Pure.
Called by :func:`onceward.formats.avro.decode` for each schema, in the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onceward.formats.avro.schemas import PRIMITIVES, parse_json

NAMED = frozenset(("record", "enum", "fixed"))

_PRECISIONS = ("millis", "micros", "nanos")
_LOGICAL = {
    "decimal": ("bytes", "fixed"),
    "big-decimal": ("bytes",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    **{f"{kind}timestamp-{precision}": ("long",) for kind in ("", "local-")
       for precision in _PRECISIONS},
}  # fmt: skip
"""Logical types, and the types that can have them (Avro 1.12, "Logical Types")."""


@dataclass(eq=False)
class Type:
    """One type; a name that is used again is the same object, so that a recursive schema has
    circles.
    """

    kind: str
    name: str = ""
    logical: str = ""
    scale: int = 0
    size: int = 0
    aliases: tuple[str, ...] = ()
    """Names that a reader's type also goes by."""
    fields: list[AvroField] = field(default_factory=list)
    inside: list[Type] = field(default_factory=list)
    """Members of a union; items of an array, values of a map."""
    source: Any = None
    """Where it is defined."""
    takes_no_bytes: bool = False


@dataclass(frozen=True)
class AvroField:
    """Of a record."""

    names: tuple[str, ...]
    """Its own, and then its aliases."""
    type: Type
    has_default: bool = False
    source: Any = field(default=None, compare=False)


def parse_types(text: str) -> Type:
    """Parse a schema, and link the names in it to their types. What else is wrong with it, Avro's
    own library says.

    :raises UnsupportedSchema: it is no JSON.
    """
    return _link(parse_json(text), "", {})


def why_spark_cannot_read(text: str) -> str | None:
    """Return what is in the way of reading records of a schema; None: nothing.

    Two kinds of schemas are refused that Avro allows. A record that is a part of itself has no
    column, and a damaged one could be nested until the stack of an executor ends. Items of no
    bytes (an array of nulls) can be as many as a record says, millions of millions, in a few
    bytes.
    """
    return _unreadable(parse_types(text), (), set())


def why_names_collide(reader: str) -> str | None:
    """Return which fields of one record Spark takes for the same, whose names it compares without
    their case; None: there are none.
    """
    return _find_collision(parse_types(reader), "the value", set())


def without_unfit_defaults(text: str) -> str:
    """Return a valid schema without the defaults of fields that Avro's Java library would make no
    value of, or another one than is written there: of ``"type": "int", "default": null``, say.

    Libraries of before Avro 1.9 wrote any, and registries kept them. They mean nothing for records
    that have the field; for others there is no value then. As part of a schema that records are
    read by, Avro's library refuses them for all.
    """
    schema = parse_json(text)
    fitting: set[int] = set()
    unfit = []
    for one in _fields_in(schema):
        if not one.has_default or _default_fits(one, fitting):
            fitting.add(id(one.source))
        else:
            unfit.append(one.source)
    for source in unfit:
        del source["default"]
    return json.dumps(schema) if unfit else text


def with_nulls_first(reader: str) -> str:
    """Return a valid reader's schema in which Avro's Java library takes a default that is null for
    null, in ``[array, "null"]``, say.

    It takes the first of a union that could be meant, by a rough rule (:func:`_is_taken`), and
    makes ``[]`` of it, or a record of that one's own defaults. For what is read "null" may stand
    anywhere in a reader's union; but where enums are told by their places it stays, see
    :func:`onceward.formats.avro.resolution.with_one_name`.
    """
    schema, is_changed = parse_json(reader), False
    for one in _fields_in(schema):
        kinds = [member.kind for member in one.type.inside if one.type.kind == "union"]
        if "null" in kinds and one.has_default and one.source["default"] is None:
            before = kinds[: kinds.index("null")]
            if kinds == ["enum", "null"] or {"array", "map", "record"} & {*before}:
                one.type.source.insert(0, one.type.source.pop(len(before)))
                is_changed = True
    return json.dumps(schema) if is_changed else reader


def _fields_in(schema: Any) -> list[AvroField]:
    """Return the fields of all records, each behind those of its own type."""
    visited, found = set[Type](), list[AvroField]()

    def visit(one: Type) -> None:
        if one not in visited:
            visited.add(one)
            for inner in (*one.inside, *(each.type for each in one.fields)):
                visit(inner)
            found.extend(one.fields)

    visit(_link(schema, "", {}))
    return found


def _default_fits(one: AvroField, fitting: set[int]) -> bool:
    """Check one.

    :param fitting: the fields, by the id of their source, whose own defaults do: each is looked at
        once, however often its type is used again.
    """
    default = one.source["default"]
    # "NaN", say, for which JSON has no number: Avro's parser has made one of it, where the field
    # itself is of such a type, or has refused the schema.
    is_number = _is_text(default) and one.type.kind in ("float", "double")
    return is_number or _fits(default, one.type, fitting)


def _fits(value: Any, kind: Type, fitting: set[int]) -> bool:
    """Check a default as ``Schema.isValidDefault`` does (Avro 1.12), of an enum its symbol, too.
    Of a union the member has to fit that the library takes."""
    if kind.kind == "union":
        taken = next((one for one in kind.inside if _is_taken(value, one)), None)
        return taken is not None and _fits(value, taken, fitting)
    if kind.kind == "enum":
        return value in kind.source["symbols"]
    if kind.kind == "array":
        items = kind.inside[0]
        return isinstance(value, list) and all(_fits(one, items, fitting) for one in value)
    if kind.kind not in ("map", "record"):
        return _PLAIN.get(kind.kind, _is_text)(value)
    if not isinstance(value, dict):
        return False
    if kind.kind == "map":
        return all(_fits(one, kind.inside[0], fitting) for one in value.values())
    return all(
        _fits(value[one.names[0]], one.type, fitting)
        if one.names[0] in value
        else one.has_default and id(one.source) in fitting
        for one in kind.fields
    )


def _is_taken(value: Any, kind: Type) -> bool:
    """Check as ``ResolvingGrammarGenerator.isCompatible`` does (Avro 1.12)."""
    name = "double" if kind.kind in ("int", "long") else kind.kind
    is_any = name in ("enum", "array", "map", "record")
    return is_any or _PLAIN.get(name, _is_text)(value)


def _is_whole(bits: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_PLAIN: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": _is_whole(32),
    "long": _is_whole(64),
    **dict.fromkeys(("float", "double"), lambda value: type(value) in (int, float)),
}
"""Of all other types a default is a text."""


def _link(schema: Any, namespace: str, by_name: dict[str, Type]) -> Type:
    if isinstance(schema, str):
        if schema in PRIMITIVES:
            return Type(schema, source=schema, takes_no_bytes=schema == "null")
        # As Avro's parser looks for it (Schema.Names): in the namespace around, and else in none.
        return (
            by_name.get(_full(schema, namespace))
            or by_name.get(schema)
            or Type("unknown", schema, source=schema)
        )
    if isinstance(schema, list):
        inside = [_link(member, namespace, by_name) for member in schema]
        return Type("union", inside=inside, source=schema)
    if not isinstance(schema, dict):
        return Type("unknown", source=schema)
    kind = schema.get("type")
    if kind in ("record", "error", "enum", "fixed"):
        return _link_named(schema, str(kind), namespace, by_name)
    if kind in ("array", "map"):
        items = schema.get("items" if kind == "array" else "values")
        return Type(kind, inside=[_link(items, namespace, by_name)], source=schema)
    found = _link(kind, namespace, by_name)
    # {"type": {"type": "long", "logicalType": …}} means what is inside, where Avro takes it at
    # all.
    is_primitive = found.kind in PRIMITIVES and isinstance(kind, str)
    return _as_logical(found, schema) if is_primitive else found


def _link_named(
    schema: dict[str, Any], kind: str, namespace: str, by_name: dict[str, Type]
) -> Type:
    own = schema.get("namespace")
    name = _full(str(schema.get("name")), own if isinstance(own, str) else namespace)
    space = name.rpartition(".")[0]
    aliases = tuple(map(str, schema.get("aliases") or ()))
    found = Type("record" if kind == "error" else kind, name, aliases=aliases, source=schema)
    by_name[name] = found
    if kind == "fixed":
        found.size = schema["size"] if isinstance(schema.get("size"), int) else 0
        found.takes_no_bytes = found.size == 0
        return _as_logical(found, schema)
    for one in schema.get("fields", ()) if kind in ("record", "error") else ():
        inner = _link(one.get("type"), space, by_name)
        names = (str(one.get("name")), *map(str, one.get("aliases", ())))
        found.fields.append(AvroField(names, inner, "default" in one, one))
    # Of one within itself, not yet: it never ends
    found.takes_no_bytes = found.kind == "record" and all(
        one.type.takes_no_bytes for one in found.fields
    )
    return found


def _as_logical(found: Type, schema: dict[str, Any]) -> Type:
    found.source = schema
    found.scale = schema["scale"] if isinstance(schema.get("scale"), int) else 0
    logical = str(schema.get("logicalType", ""))
    # As Avro has it: what does not fit its type stands for nothing.
    if found.kind in _LOGICAL.get(logical, ()) and (
        logical != "decimal" or _is_decimal(found, schema.get("precision"))
    ):
        found.logical = logical
    return found


def _is_decimal(found: Type, precision: Any) -> bool:
    if type(precision) is not int or not 0 <= found.scale <= precision:
        return False
    most = precision if found.kind == "bytes" else len(str(1 << max(0, 8 * found.size - 1))) - 1
    return 0 < precision <= most


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _unreadable(found: Type, around: tuple[Type, ...], visited: set[Type]) -> str | None:
    if found in around:
        return f"it is recursive: {found.name} contains itself, and a column of Spark cannot"
    if found in visited:
        return None
    visited.add(found)
    if found.kind == "array" and found.inside[0].takes_no_bytes:
        return (
            "it has an array of items that take no bytes, so that a few bytes could stand for any "
            "number of them"
        )
    for inner in [*found.inside, *(one.type for one in found.fields)]:
        if (why := _unreadable(inner, (*around, found), visited)) is not None:
            return why
    return None


def _find_collision(found: Type, where: str, visited: set[Type]) -> str | None:
    if found in visited:
        return None
    visited.add(found)
    there: dict[str, str] = {}
    for one in found.fields:
        name = one.names[0]
        if (other := there.setdefault(name.lower(), name)) != name:
            return (
                f"fields {other} and {name} of {where} are one to Spark unless "
                "spark.sql.caseSensitive is true"
            )
    place = where if found.kind == "union" else f"{where}[]"
    inner = [(one, place) for one in found.inside]
    for kind, place in [*inner, *((one.type, f"{where}.{one.names[0]}") for one in found.fields)]:
        if (why := _find_collision(kind, place, visited)) is not None:
            return why
    return None
