"""Which type of a writer's schema is read as which of a reader's, by Avro's own rules (1.12,
"Schema Resolution"), and how Avro's Java library comes to read them so. Pure.

Called by :func:`onceward.formats.avro.decode` for each schema, in the driver. The library looks
for the aliases of a record's fields by its full name alone, and in a union for a record of the
same fields before one of an alias. So it gets neither: in what it is given, a type and what it is
read as have one name, and so have their fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from onceward.formats.avro.types import NAMED, AvroField, Type, parse_types

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NUMBERS = ("int", *_PROMOTIONS["int"])
_MOMENTS = ("date", "time-", "timestamp-", "local-timestamp-")
_SCALED = frozenset(("decimal", "big-decimal"))
"""Numbers that nobody can tell from the bytes alone."""
_SPARKS = "spark.sql.catalyst.type"
"""Spark's own word for what a number is."""
_INSIDE = {"array": "items", "map": "values"}


def why_values_would_change(writer: str, reader: str) -> str | None:
    """Return where a value would come out as another one; None: nowhere.

    Avro's Java library resolves by the shape of types, and passes over what they stand for:
    milliseconds would be read as microseconds, 1.23 as 12.3 where the scale is another one, and a
    Refund as an Order that has no other fields. The specification wants records to have the same
    name without its namespace, or the reader's to have an alias (Avro 1.12, "Schema Resolution").
    A number that stands for nothing on one side is no contradiction; bytes, or a text, are none
    that a decimal could be read from.
    """
    theirs, ours = parse_types(writer), parse_types(reader)
    return _difference(theirs, ours, "the value", set())


def why_some_are_lost(writer: str, reader: str) -> str | None:
    """Return which types of a writer's unions have a match in the reader's that the library cannot
    be told of; None: none. What else is in these unions is read.
    """
    return _OneName(parse_types(writer), parse_types(reader), writer + reader).lost


def with_one_name(writer: str, reader: str) -> tuple[str, str]:
    """Return both schemas, in which whatever is read as each other has one name, and no aliases.

    They may not be recursive.
    """
    found = _OneName(parse_types(writer), parse_types(reader), writer + reader)
    return json.dumps(found.writer), json.dumps(found.reader)


class _OneName:
    """Names for the types of two schemas, and for their fields.

    A type that is read as others in other places is another type in each. Where several of a
    writer's are read as one, the first of them has its name, and the last part of the others'
    names is the same. In a union the library goes by that next, of records that have what the
    reader's needs. What else there is in a union is lost: as another record it would be read
    wrong.

    :param text: what no name of ours is in.
    """

    def __init__(self, writer: Type, reader: Type, text: str) -> None:
        self.lost: str | None = None
        self._stem = "onceward_type"
        while self._stem in text:
            self._stem += "_"
        self._names: dict[tuple[Type, tuple[Type, ...]], str] = {}
        self._count = 0
        self._definitions: set[tuple[str, str]] = set()
        self._pairs: dict[tuple[Type, Type], list[AvroField | None]] = {}
        together = _distinct(_members(writer))
        self.reader = self._reader(reader, together)
        self.writer = self._writer(writer, reader, together)

    def _reader(self, reader: Type, writers: tuple[Type, ...]) -> Any:
        """Return ``reader``, as which ``writers`` are read, as JSON."""
        each = [self._reader_member(one, reader, writers) for one in _members(reader)]
        return each if reader.kind == "union" else each[0]

    def _reader_member(self, one: Type, reader: Type, writers: tuple[Type, ...]) -> Any:
        together = _sources(one, reader, writers)
        if one.inside:
            items = self._reader(one.inside[0], _items(together))
            return one.source | {_INSIDE[one.kind]: items}
        if one.kind not in NAMED:
            return "long" if one.kind == "int" and _is_wide(reader) else one.source
        name = self._name(one, together)
        if not self._is_new("reader", name):
            return name
        fields = [
            _without(field.source, "aliases")
            | {"type": self._reader(field.type, self._read_as(one, n, together))}
            for n, field in enumerate(one.fields)
        ]
        return _with_name(one, name, fields)

    def _writer(self, writer: Type, reader: Type | None, writers: tuple[Type, ...]) -> Any:
        """Return ``writer``, of which and of others (``writers``) it is that ``reader`` is read,
        as JSON; None: nothing is."""
        by_place = reader is not None and _same_places(writer, reader)
        each = [
            self._nothing(one, reader)
            if reader and not by_place and self._is_lost(one, reader, writers)
            else self._number(one, writer, reader)
            if reader and one.kind in _NUMBERS
            else self._writer_member(one, reader, writers)
            for one in _members(writer)
        ]
        return each if writer.kind == "union" else each[0]

    def _number(self, one: Type, writer: Type, reader: Type) -> Any:
        if one.kind == "long" and _is_wide(reader):
            # No long is an int, and what this reader has for an int is a long
            return self._nothing(one, reader)
        return "long" if one.kind == "int" and _is_read_wide(writer, reader) else one.source

    def _writer_member(self, one: Type, reader: Type | None, writers: tuple[Type, ...]) -> Any:
        match = None if reader is None else _match(one, reader)
        together = () if reader is None or match is None else _sources(match, reader, writers)
        if one.inside:
            inner = None if match is None else match.inside[0]
            items = self._writer(one.inside[0], inner, _items(together))
            return one.source | {_INSIDE[one.kind]: items}
        if one.kind not in NAMED:
            return one.source
        name = self._name(match or one, together)
        if match is not None and (place := together.index(one)):
            name = f"{self._stem}{place}.{name.rpartition('.')[2]}"
        if not self._is_new("writer", name):
            return name
        sources = [] if match is None else self._theirs(one, match)
        places = {id(field): n for n, field in enumerate(sources) if field is not None}
        fields = []
        for number, field in enumerate(one.fields):
            n = places.get(id(field))
            if match is None or n is None:
                alone = self._writer(field.type, None, ())
                fields.append({"name": f"{self._stem}{number}", "type": alone})
                continue
            ours = match.fields[n]
            kind = self._writer(field.type, ours.type, self._read_as(match, n, together))
            fields.append({"name": ours.names[0], "type": kind})
        return _with_name(one, name, fields)

    def _read_as(self, reader: Type, number: int, writers: tuple[Type, ...]) -> tuple[Type, ...]:
        """Return what is read as field ``number`` of ``reader``."""
        each = [self._theirs(writer, reader)[number] for writer in writers]
        return _distinct(one for field in each if field for one in _members(field.type))

    def _theirs(self, writer: Type, reader: Type) -> list[AvroField | None]:
        if (writer, reader) not in self._pairs:
            self._pairs[writer, reader] = _field_sources(writer, reader)
        return self._pairs[writer, reader]

    # what the library cannot be told

    def _nothing(self, one: Type, reader: Type) -> dict[str, Any]:
        """Return what ``reader`` has no match for, as JSON."""
        if self.lost is None and (match := _match(one, reader)) is not None:
            because = (
                "its fields do not fit"
                if one.kind == "record"
                else f"of several {one.kind} types for one of a union, Java's library reads one"
            )
            self.lost = f"{one.name} is not read as {match.name}: {because}"
        self._count += 1
        name = f"{self._stem}.none{self._count}"
        return {"type": "enum", "name": name, "symbols": ["none"]}

    def _is_lost(self, one: Type, reader: Type, writers: tuple[Type, ...]) -> bool:
        """Return whether ``one`` has a match in a union that its name does not settle."""
        match = _match(one, reader) if reader.kind == "union" and one.kind in NAMED else None
        together = () if match is None else _sources(match, reader, writers)
        if match is None or together.index(one) == 0:
            return False
        return one.kind != "record" or any(
            (not ours.has_default)
            if theirs is None
            else self._fails(theirs.type, ours.type, self._read_as(match, n, together))
            for n, (theirs, ours) in enumerate(
                zip(self._theirs(one, match), match.fields, strict=True)
            )
        )

    def _fails(self, writer: Type, reader: Type, writers: tuple[Type, ...]) -> bool:
        """Return whether the library sees, without a look inside, that it is not read so."""
        if writer.kind == "union" or reader.kind == "union":
            matches = _matches(writer, reader)
            if writer.kind in NAMED:
                matches = [one for one in matches if _same_name(writer, one)]
            lost = writer.kind != "union" and self._is_lost(writer, reader, writers)
            return lost or not (matches or writer.kind == "union")
        if writer.kind != reader.kind:
            return reader.kind not in _PROMOTIONS.get(writer.kind, ())
        if writer.kind == "record":
            both = zip(self._theirs(writer, reader), reader.fields, strict=True)
            return any(theirs is None and not ours.has_default for theirs, ours in both)
        named = writer.kind in NAMED and not _same_name(writer, reader)
        return named or writer.size != reader.size

    def _name(self, found: Type, writers: tuple[Type, ...]) -> str:
        return self._names.setdefault((found, writers), f"{self._stem}.t{len(self._names)}")

    def _is_new(self, side: str, name: str) -> bool:
        is_new = (side, name) not in self._definitions
        self._definitions.add((side, name))
        return is_new


def _is_wide(reader: Type) -> bool:
    """Return whether the int of ``reader`` is read as a long.

    They are the same bytes; but the library cuts an int down to 32 bits, whatever its bytes say.
    Beside other numbers of a union it stays: each is told by its type. So does what Spark makes a
    date or an interval of.
    """
    first, *others = [one for one in _members(reader) if one.kind in _NUMBERS] or [reader]
    if others or first.kind != "int" or first.logical == "date":
        return False
    return first.source == "int" or _SPARKS not in first.source


def _is_read_wide(writer: Type, reader: Type) -> bool:
    """Return whether an int of ``writer`` is read as a long, or as what a long may be read as."""
    if any(one.kind == "int" for one in _members(reader)):
        return _is_wide(reader)
    # Of several the library takes the first for an int, and for a long a long before all others
    numbers = [one.kind for one in _members(reader) if one.kind in _NUMBERS]
    same = numbers[:1] == ["long"] or "long" not in numbers
    return same and all(one.kind != "long" for one in _members(writer))


def _distinct(types: Iterable[Type]) -> tuple[Type, ...]:
    return tuple(dict.fromkeys(types))


def _items(arrays: Iterable[Type]) -> tuple[Type, ...]:
    return _distinct(one for array in arrays for one in _members(array.inside[0]))


def _with_name(found: Type, name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    again: dict[str, Any] = _without(found.source, "aliases", "namespace") | {"name": name}
    return again | {"fields": fields} if found.kind == "record" else again


def _without(source: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name not in names}


# what is read as what


def _members(found: Type) -> list[Type]:
    return found.inside if found.kind == "union" else [found]


def _matches(writer: Type, reader: Type) -> list[Type]:
    """Return those of a reader's types as which ``writer`` may be read."""
    alike = [one for one in _members(reader) if one.kind == writer.kind]
    if alike:
        return _by_name(writer, alike) or alike
    kinds = _PROMOTIONS.get(writer.kind, ())
    return [one for one in _members(reader) if one.kind in kinds]


def _match(writer: Type, reader: Type) -> Type | None:
    """Return the one of a reader's types of the same kind that ``writer`` is read as: of types
    with names the first that has its name."""
    alike = [one for one in _members(reader) if one.kind == writer.kind]
    found = _by_name(writer, alike) if writer.kind in NAMED else alike
    return found[0] if found else None


def _by_name(writer: Type, readers: list[Type]) -> list[Type]:
    """Return those that match: of its full name, or else of an alias that is it, or else of a name
    or alias with the same last part. Of an alias that several have Java takes the last's."""
    return (
        [one for one in readers if one.name == writer.name]
        or [one for one in reversed(readers) if writer.name in _full_names(one)]
        or [one for one in readers if _same_name(writer, one)]
    )


def _full_names(reader: Type) -> list[str]:
    """Return its name and its aliases, each in the namespace that it means."""
    space = reader.name.rpartition(".")[0]
    aliases = [name if "." in name or not space else f"{space}.{name}" for name in reader.aliases]
    return [reader.name, *aliases]


def _sources(one: Type, reader: Type, writers: tuple[Type, ...]) -> tuple[Type, ...]:
    """Return those of ``writers`` that are read as ``one``, a type of ``reader``: the one of its
    full name, and of its full aliases, first."""
    found = [writer for writer in writers if _match(writer, reader) is one]
    full = _full_names(one)
    return tuple(
        sorted(found, key=lambda it: full.index(it.name) if it.name in full else len(full))
    )


def _same_places(writer: Type, reader: Type) -> bool:
    """Return whether two unions are the same, type by type, so that the library looks for none
    (unions of more than values are taken for others)."""
    theirs, ours = writer.inside, reader.inside
    if writer.kind != "union" or reader.kind != "union" or len(theirs) != len(ours):
        return False
    return all(
        one.kind == other.kind
        and one.kind not in ("record", *_INSIDE)
        and (one.kind not in NAMED or _match(one, reader) is other)
        for one, other in zip(theirs, ours, strict=True)
    )


def _same_name(writer: Type, reader: Type) -> bool:
    """Do two types match: by the last part of their names, or of one of the reader's aliases?"""
    return _last_part(writer.name) in {_last_part(name) for name in (reader.name, *reader.aliases)}


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _field_sources(writer: Type, reader: Type) -> list[AvroField | None]:
    """Return which field of ``writer`` each field of ``reader`` is read from; None: its default.

    A name of its own goes before its aliases; where the writer does not have it, an alias goes
    before another field's own name: the reader has a new field of an old name then.
    """
    by_name = {one.names[0]: one for one in writer.fields}
    chosen = [
        next((by_name[name] for name in ours.names if name in by_name), None)
        for ours in reader.fields
    ]
    by_alias = {
        theirs.names[0]
        for theirs, ours in zip(chosen, reader.fields, strict=True)
        if theirs is not None and theirs.names[0] != ours.names[0]
    }
    return [
        None if theirs and theirs.names[0] in by_alias & {ours.names[0]} else theirs
        for theirs, ours in zip(chosen, reader.fields, strict=True)
    ]


# what would come out as something else


def _difference(
    writer: Type, reader: Type, where: str, visited: set[tuple[Type, Type]]
) -> str | None:
    if (writer, reader) in visited:
        return None
    visited.add((writer, reader))
    if writer.kind == "union" or reader.kind == "union":
        pairs = [
            (one, match, where) for one in _members(writer) for match in _matches(one, reader)
        ]
    elif writer.kind == reader.kind == "record":
        both = list(zip(_field_sources(writer, reader), reader.fields, strict=True))
        if (why := _another_record(writer, reader, both)) is not None:
            return f"{where} {why}"
        if not _same_name(writer, reader):
            return None
        pairs = [
            (theirs.type, ours.type, f"{where}.{ours.names[0]}")
            for theirs, ours in both
            if theirs is not None
        ]
    elif writer.kind == reader.kind and writer.inside:
        pairs = [(writer.inside[0], reader.inside[0], f"{where}[]")]
    else:
        return _means_another(writer, reader, where)
    for theirs, ours, place in pairs:
        if (why := _difference(theirs, ours, place, visited)) is not None:
            return why
    return None


def _another_record(
    writer: Type, reader: Type, both: list[tuple[AvroField | None, AvroField]]
) -> str | None:
    if _same_name(writer, reader):
        names = [theirs.names[0] for theirs, _ in both if theirs is not None]
        twice = next((name for name in names if names.count(name) > 1), None)
        return f"has {twice} for more than one field, which have it as an alias" if twice else None
    # Where a field is missing that has no default, Avro refuses each such record by itself.
    if all(theirs is not None or ours.has_default for theirs, ours in both):
        return (
            f"was written as {writer.name} and would be read as {reader.name}, which has no such "
            "alias"
        )
    return None


def _means_another(writer: Type, reader: Type, where: str) -> str | None:
    if writer.kind != reader.kind and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
        return None  # which Avro refuses
    theirs, ours = writer.logical, reader.logical
    if theirs == ours == "decimal" and writer.scale != reader.scale:
        return (
            f"{where} was written with {writer.scale} decimal places and would be read with "
            f"{reader.scale}"
        )
    both_moments = theirs.startswith(_MOMENTS) and ours.startswith(_MOMENTS)
    if theirs != ours and (both_moments or _SCALED & {theirs, ours}):
        return (
            f"{where} was written as {theirs or writer.kind} and would be read as "
            f"{ours or reader.kind}"
        )
    return None
