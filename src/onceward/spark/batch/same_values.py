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
    given: DataType
    wanted: DataType

    def __str__(self) -> str:
        return (
            f"column {self.column} is {self.given.simpleString()} in the frame, and "
            f"{self.wanted.simpleString()}"
        )


def misfit(given: StructType, wanted: StructType, inside: str = "") -> Misfit | None:
    """Return the first column of ``given`` whose values do not all fit the column of that name in
    ``wanted``; missing columns are not checked.
    """
    columns = {field.name.lower(): field for field in wanted} | {
        field.name: field for field in wanted
    }
    for field in given:
        column = columns.get(field.name) or columns.get(field.name.lower())
        if column and (
            found := _select_types(field.dataType, column.dataType, inside + column.name)
        ):
            return found
    return None


def _select_types(given: DataType, wanted: DataType, name: str) -> Misfit | None:
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return misfit(given, wanted, f"{name}.")
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return _select_types(given.elementType, wanted.elementType, f"{name}.element")
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        of_keys = _select_types(given.keyType, wanted.keyType, f"{name}.key")
        return of_keys or _select_types(given.valueType, wanted.valueType, f"{name}.value")
    return None if _takes_all(wanted, given) else Misfit(name, given, wanted)


def _takes_all(wanted: DataType, given: DataType) -> bool:
    if isinstance(wanted, DecimalType):
        if isinstance(given, DecimalType):
            digits, scale = given.precision - given.scale, given.scale
        else:
            digits, scale = _DIGITS.get(type(given), wanted.precision + 1), 0
        return isinstance(given, NullType) or (
            wanted.precision - wanted.scale >= digits and wanted.scale >= scale
        )
    return (
        given == wanted
        or isinstance(given, NullType)
        or type(given) in _EXACT_IN.get(type(wanted), [])
    )
