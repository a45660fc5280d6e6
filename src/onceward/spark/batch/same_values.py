"""Whether a column can take the values of a frame as they are. Driver only.

Spark's own rules let values change also where they are strict (``storeAssignmentPolicy``): large
numbers lose digits on their way to a floating type, binary becomes text, and a time of day another
one where a zone is left out or put in.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

_WHOLE: list[type[DataType]] = [ByteType, ShortType, IntegerType, LongType]
_DIGITS = dict(zip(_WHOLE, (3, 5, 10, 20), strict=True))
_EXACT_IN: dict[type[DataType], list[type[DataType]]] = {
    FloatType: [ByteType, ShortType],
    DoubleType: [ByteType, ShortType, IntegerType, FloatType],
    # however it is compared
    StringType: [StringType],
    **{wider: _WHOLE[:place] for place, wider in enumerate(_WHOLE)},
}


class Misfit(NamedTuple):
    """A column, or what is inside one."""

    column: str
    source: DataType
    target: DataType

    def __str__(self) -> str:
        return (
            f"column {self.column} is {self.source.simpleString()} in the frame, and "
            f"{self.target.simpleString()}"
        )


def misfit(source: StructType, target: StructType, inside: str = "") -> Misfit | None:
    """Return the first column of ``source`` whose values do not all fit the column of that name in
    ``target``; missing columns are not checked.
    """
    columns = {field.name.lower(): field for field in target} | {
        field.name: field for field in target
    }
    for field in source:
        column = columns.get(field.name) or columns.get(field.name.lower())
        if column and (
            found := _select_types(field.dataType, column.dataType, inside + column.name)
        ):
            return found
    return None


def _select_types(source: DataType, target: DataType, name: str) -> Misfit | None:
    if isinstance(source, StructType) and isinstance(target, StructType):
        return misfit(source, target, f"{name}.")
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        return _select_types(source.elementType, target.elementType, f"{name}.element")
    if isinstance(source, MapType) and isinstance(target, MapType):
        of_keys = _select_types(source.keyType, target.keyType, f"{name}.key")
        return of_keys or _select_types(source.valueType, target.valueType, f"{name}.value")
    return None if _takes_all(target, source) else Misfit(name, source, target)


def _takes_all(target: DataType, source: DataType) -> bool:
    if isinstance(target, DecimalType):
        if isinstance(source, DecimalType):
            digits, scale = source.precision - source.scale, source.scale
        else:
            digits, scale = _DIGITS.get(type(source), target.precision + 1), 0
        return isinstance(source, NullType) or (
            target.precision - target.scale >= digits and target.scale >= scale
        )
    return (
        source == target
        or isinstance(source, NullType)
        or type(source) in _EXACT_IN.get(type(target), [])
    )
