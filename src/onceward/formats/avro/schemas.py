"""Avro schemas as JSON, and what is put around them. Pure.

Used by :mod:`onceward.formats.avro.plan`, in the driver. The rules of names are those of the Avro
specification 1.12 ("Names"): a type without a namespace is in that of the type around it, and in
none at the top.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from onceward.errors import UnsupportedSchema
from onceward.formats.registry.answers import RegisteredSchema

MAGIC = b"\x00"
PREFIX_BYTES = 5
"""Of Confluent's frame (its *wire format*, which Apicurio's ``ccompat`` API shares): one byte 0,
the schema's id as four bytes, most significant first; the Avro body follows.
"""
GUID_PREFIX_BYTES = 17
"""Of Confluent's other frame: one byte 1, and the schema's GUID."""
VALUE = "value"
FIRST, SECOND = "first", "second"
"""Two doubles, which are sixteen bytes: the mark."""
PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))

_CLASS = "avro.java.string"
_FRAME = "frame"
_FEW_FIELDS = 12
# None of i, k and s in them, which Spark, as Java, takes for the same as letters beyond ASCII.
_BESIDE = ("onceward_frame", "onceward_one", "onceward_two")
# In no namespace, like the top of any schema: so the types inside keep the names that they have by
# themselves.
_OURS = ("onceward_framed", "onceward_prefix")
_MARK = [{"name": FIRST, "type": "double"}, {"name": SECOND, "type": "double"}]


def is_bytes(text: str) -> bool:
    """Return whether a schema is bytes alone, whatever they stand for."""
    schema = parse_json(text)
    while isinstance(schema, dict):
        schema = schema.get("type")
    return bool(schema == "bytes")


def why_not_plain_avro(schema: RegisteredSchema, text: str, modes: frozenset[str]) -> str | None:
    """Return why a record of a schema may be another thing than its Avro behind the frame; None:
    it is that.

    :param text: of ``schema``, self-contained. :param modes: of the rules that count.
    """
    if rule := schema.rule_in(modes):
        return f"its rule {rule} is for Confluent's serializers, and is not carried out here"
    if not is_bytes(text):
        return None
    return (
        "it is bytes alone, which Confluent's serializers in Java write without Avro's length, "
        "and others with it: a record does not say which"
    )


def prefix(schema_id: int) -> bytes:
    """Return the five bytes with which a record of schema ``schema_id`` begins."""
    return MAGIC + schema_id.to_bytes(4, "big")


def schema_id(record: bytes) -> int | None:
    """Return the id that ``record``, or its first five bytes, names; None: it is not framed."""
    if len(record) < PREFIX_BYTES or record[:1] != MAGIC:
        return None
    return int.from_bytes(record[1:PREFIX_BYTES], "big")


def around_writer(text: str) -> str:
    """Return the schema of ``prefix + body + mark``, where ``body`` was written with ``text``.

    Whatever the top of ``text`` is, a record of three fields is written as its fields, one behind
    the other.
    """
    record, fixed = _names(text)
    return _record(
        record, _frame(_FRAME, fixed), {"name": VALUE, "type": parse_json(text)}, *_MARK
    )


def around_reader(text: str, writer: str) -> str:
    """Return the schema as which a record of :func:`around_writer` of ``writer`` is read: the
    value, then its end."""
    # Named like the writer's: Avro matches records, and fixed types, by name.
    record, _ = _names(writer)
    return _record(record, {"name": VALUE, "type": parse_json(text)}, *_MARK)


def adjacent_fields(reader: str, writers: Iterable[str]) -> AdjacentFields | None:
    """Choose names for fields of ours beside those of ``reader`` and ``writers``; None: they
    cannot be there.

    Spark makes a new row for a record within a record, and one row for all records at the top:
    where all are records, our fields cost a third less beside theirs than around them. They are
    for ``reader`` as :func:`texts_as_bytes` has it: where its fields are put together once more
    anyway, and are few.
    """
    schemas = [parse_json(text) for text in (reader, *writers)]
    fields = [field["name"].casefold() for field in _fields(schemas[0])]
    if (
        not all(map(_fields, schemas))
        or len(fields) > _FEW_FIELDS
        or len(set(fields)) < len(fields)
    ):
        return None
    # Spark does not tell A from a
    there = json.dumps(schemas, ensure_ascii=False).casefold()
    frame, first, second = _BESIDE
    while any(name in there for name in (frame, first, second)):
        frame, first, second = f"{frame}_", f"{first}_", f"{second}_"
    return AdjacentFields(frame, first, second)


@dataclass(frozen=True, slots=True)
class AdjacentFields:
    """Names of our fields, and of the frame's type, in a record of somebody else's."""

    frame: str
    first: str
    second: str

    def writer(self, text: str) -> str:
        """Extend ``text``, a record, by our fields, as :func:`around_writer` does around it."""
        return self._with([_frame(self.frame, self.frame)], parse_json(text))

    def reader(self, text: str) -> str:
        """Return the schema as which a record of :meth:`writer` is read: the fields of ``text``,
        then its end."""
        return self._with([], parse_json(text))

    def _with(self, before: list[dict[str, Any]], record: dict[str, Any]) -> str:
        # The record keeps its name, its namespace and its aliases, so what is in it means what it
        # meant.
        mark = [{"name": name, "type": "double"} for name in (self.first, self.second)]
        return json.dumps(record | {"fields": [*before, *record["fields"], *mark]})


def texts_as_bytes(reader: str) -> tuple[str, frozenset[str]]:
    """Replace the texts among the fields of ``reader`` by bytes, and return these fields' names,
    too.

    What is written is the same. But for each text Avro's library looks up as what class of Java it
    shall come, in a map that all threads share, which costs a quarter of the time of reading a
    record of a few texts. Records of many fields stay as they are: making them texts again takes
    code, and a method of more than 8,000 bytes is interpreted.
    """
    schema = parse_json(reader)
    few = len(_fields(schema)) <= _FEW_FIELDS
    names = frozenset(field["name"] for field in _fields(schema) if few and _is_text(field))
    return json.dumps(_with_bytes(schema, names)), names


def same_with_bytes(writer: str, names: frozenset[str]) -> str:
    """Replace the texts among the fields ``names`` of ``writer`` by bytes."""
    return json.dumps(_with_bytes(parse_json(writer), names))


def _fields(schema: Any) -> list[dict[str, Any]]:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return []
    return [field for field in schema.get("fields", ()) if isinstance(field, dict)]


def _is_text(field: dict[str, Any]) -> bool:
    """Return whether it is a text, or a text or null. A default is the same for bytes as long as
    it is ASCII."""
    default = field.get("default")
    if isinstance(default, str) and not default.isascii():
        return False
    kind = field.get("type")
    return kind == "string" or (
        isinstance(kind, list) and len(kind) == 2 and set(map(str, kind)) == {"null", "string"}
    )


def _with_bytes(schema: Any, names: frozenset[str]) -> Any:
    if not (fields := _fields(schema)):
        return schema
    made = [
        field | {"type": _as_bytes(field["type"])}
        if field["name"] in names and _is_text(field)
        else field
        for field in fields
    ]
    return schema | {"fields": made}


def _as_bytes(kind: str | list[str]) -> Any:
    if isinstance(kind, list):
        return [_as_bytes(member) for member in kind]
    return "bytes" if kind == "string" else kind


def without_times(text: str) -> str:
    """Return ``text`` with the numbers of ``time-millis`` and ``time-micros`` as they are. Spark's
    columns had them so until it learnt of TIME, which it refuses unless
    ``spark.sql.timeType.enabled`` is set.
    """
    return json.dumps(change_types(parse_json(text), _without_time)) if "time-m" in text else text


def _without_time(schema: dict[str, Any]) -> Any:
    is_time = schema.get("logicalType") in ("time-millis", "time-micros")
    return {n: v for n, v in schema.items() if n != "logicalType"} if is_time else schema


def without_java_texts(text: str) -> str:
    """Return ``text`` with texts, and maps' keys, that are of no class of Java's.

    Schemas of Java programs say of which class a text shall be. Of a ``String`` the bytes that are
    no UTF-8 are others by the time that anybody can look at them.
    """
    return json.dumps(change_types(parse_json(text), _without_class)) if _CLASS in text else text


def _without_class(schema: dict[str, Any]) -> Any:
    rest = {name: value for name, value in schema.items() if name != _CLASS}
    return rest["type"] if rest == {"type": "string"} else rest


def change_types(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return ``schema`` with each type in it that is an object as ``change`` makes it."""
    if isinstance(schema, list):
        return [change_types(member, change) for member in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: change_types(value, change) if name in ("type", "items", "values") else value
        for name, value in schema.items()
    }
    if found.get("type") in ("record", "error"):
        found["fields"] = [
            one | {"type": change_types(one["type"], change)} for one in found["fields"]
        ]
    return change(found)


def parse_json(text: str) -> Any:
    """Parse ``text`` as JSON; a bare word is a primitive type, as registries have it without
    quotes at times.
    """
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnsupportedSchema(
            f"an Avro schema is no JSON ({error}): {text[:200]!r}",
            next_step="give the text of an Avro schema, as the registry has it",
        ) from None


def _frame(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": {"type": "fixed", "name": kind, "size": PREFIX_BYTES}}


def _names(writer: str) -> list[str]:
    """Choose names for our types that nothing in ``writer`` has."""
    names = list(_OURS)
    while any(name in writer for name in names):
        names = [f"{name}_" for name in names]
    return names


def _record(name: str, *fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})
