"""What stands inside of Spark's types. Pure."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def contains_type(kind: DataType, *kinds: type[DataType]) -> bool:
    """Return whether ``kind`` is one of ``kinds``, or has one inside."""
    if isinstance(kind, kinds):
        return True
    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, MapType):
        inside = [kind.keyType, kind.valueType]
    return any(contains_type(one, *kinds) for one in inside)
