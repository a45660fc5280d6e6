"""What stands inside of Spark's types. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def types_inside(kind: DataType) -> Iterator[DataType]:
    """Yield ``kind``, and each type inside of it."""
    yield kind
    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, MapType):
        inside = [kind.keyType, kind.valueType]
    for one in inside:
        yield from types_inside(one)


def contains_type(kind: DataType, *kinds: type[DataType]) -> bool:
    """Return whether ``kind`` is one of ``kinds``, or has one inside."""
    return any(isinstance(one, kinds) for one in types_inside(kind))


def map_key_types(kind: DataType) -> list[DataType]:
    """Return the types of the keys of all maps inside of ``kind``."""
    return [one.keyType for one in types_inside(kind) if isinstance(one, MapType)]


def field_names(kind: DataType) -> list[str]:
    """Return the names of the fields of all structs inside of ``kind``."""
    structs = [one for one in types_inside(kind) if isinstance(one, StructType)]
    return [name for one in structs for name in one.names]
