"""Two conditions on decoded values, made from their types: texts are UTF-8, and numbers are whole.

Used by :mod:`onceward.formats.avro.plan`, in the driver; evaluated by Spark's tasks. Neither
Avro's decoder nor Spark's ``from_avro`` looks at texts: bytes that are no UTF-8 would go through,
and be written by the sink.

Decimals that Spark would cut down to 64 bits are read as wider ones, checked, and made narrow
again. Where the reader's schema has a decimal of up to 18 digits, Spark's ``AvroDeserializer``
(4.0, ``createDecimal``) takes the low 64 bits of the number, however long it is: 2^64 + 5 comes
out as 5. A writer whose decimals are wider writes such numbers, and the reader's precision is no
part of what Avro compares. Of a decimal with more digits Spark takes the whole number, or none.

So are ints: Avro's ``BinaryDecoder.readInt`` takes the low 32 bits of a number that takes up to
five bytes, and not every serializer looks whether a number fits (fastavro's ``schemaless_writer``
does not). They are read as longs (:mod:`onceward.formats.avro.resolution`), and treated alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, cast

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from onceward.formats.avro.schemas import change_types
from onceward.formats.validation import conjunction
from onceward.spark.types import contains_type

# One byte of ASCII: halves of a character on its two sides never become a whole one
_SEPARATOR = ","


def texts_are_valid(
    value: Column, kind: DataType, as_bytes: frozenset[str] = frozenset()
) -> Column | None:
    """Return a condition that is false where a text in ``value`` is no UTF-8, else true or null;
    None: it has no texts.

    :param as_bytes: fields of a struct that are texts, too, though they are binary.
    """
    if isinstance(kind, StringType):
        return F.is_valid_utf8(value)
    if isinstance(kind, StructType):
        return all_hold(
            F.is_valid_utf8(value.getField(field.name).cast("string"))
            if field.name in as_bytes
            else texts_are_valid(value.getField(field.name), field.dataType)
            for field in kind.fields
        )
    if isinstance(kind, ArrayType):
        return _elements_are_valid(value, kind.elementType)
    if isinstance(kind, MapType):
        keys = _elements_are_valid(F.map_keys(value), kind.keyType)
        return all_hold((keys, _elements_are_valid(F.map_values(value), kind.valueType)))
    return None


def _elements_are_valid(array: Column, kind: DataType) -> Column | None:
    if isinstance(kind, StringType):
        # One look at all of them; forall() would be interpreted, element by element.
        return F.is_valid_utf8(F.array_join(array, _SEPARATOR))
    # a map's keys are texts
    if not contains_type(kind, StringType, MapType):
        return None
    return F.forall(array, lambda element: or_true(texts_are_valid(element, kind)))


def all_hold(conditions: Iterable[Column | None]) -> Column | None:
    """Return one condition that is false where one of ``conditions`` is, else true; None of
    none."""
    return conjunction([or_true(condition) for condition in conditions if condition is not None])


_DIGITS_OF_64_BITS = 18
_BYTES = 8
# Of Spark's decimals, and of sixteen bytes
_MOST_DIGITS = 38
_MOST_BYTES = 16
_FEW = 4

# As which numbers are read that may have to be others, and what is wrong where they cannot be
_WRONG = {
    LongType: "an int in it has more than 32 bits",
    DecimalType: "a decimal in it has more digits than the reader's schema",
}
_NUMBERS = tuple(_WRONG)


def widen(schema: Any) -> Any:
    """Give every decimal that could be cut down as many digits as can be, in a reader's schema as
    JSON."""
    return change_types(
        schema,
        lambda one: one | {"precision": _most_digits(one)} if _could_be_cut(one) else one,
    )


def _could_be_cut(schema: dict[str, Any]) -> bool:
    kind, size, precision, scale = (
        schema.get(name) for name in ("type", "size", "precision", "scale")
    )
    long_enough = kind == "bytes" or (kind == "fixed" and isinstance(size, int) and size > _BYTES)
    if not long_enough or schema.get("logicalType") != "decimal" or type(precision) is not int:
        return False
    # Where Avro takes it for no decimal (more decimal places than digits), it shall stay none.
    return 0 < precision <= _DIGITS_OF_64_BITS and (
        scale is None or (type(scale) is int and 0 <= scale <= precision)
    )


def _most_digits(schema: dict[str, Any]) -> int:
    """Return the most digits: of a fixed type no more than its bytes hold, or Avro would take it
    for no decimal."""
    size = schema["size"] if schema["type"] == "fixed" else _MOST_BYTES
    return min(_MOST_DIGITS, len(str(1 << (8 * min(size, _MOST_BYTES) - 1))) - 1)


def narrow_enough(value: Column, read: DataType, target: DataType) -> Column | None:
    """Return a condition that is false where a number in ``value``, of type ``read``, does not
    fit into ``target``.

    None: the types are the same. Fields of ``read`` behind those of ``target`` may be anything.
    """
    conditions = list(_conditions(value, read, target))
    if len(conditions) > _FEW and not contains_type(read, MapType):
        # What does not fit is null then, and so it stays. Spark compiles casts and comparisons of
        # structs to methods of their own; with a condition for each of many fields one method
        # would be interpreted: see narrow().
        return value.eqNullSafe(value.try_cast(_narrow(read, target)).try_cast(read))
    return conjunction(conditions)


def _conditions(value: Column, read: DataType, target: DataType) -> Iterator[Column]:
    if not differ(read, target):
        return
    if isinstance(read, StructType) and isinstance(target, StructType):
        for theirs, ours in zip(read.fields, target.fields, strict=False):
            yield from _conditions(value.getField(theirs.name), theirs.dataType, ours.dataType)
    elif isinstance(read, ArrayType) and isinstance(target, ArrayType):
        yield from _conditions_of_each(value, read.elementType, target.elementType)
    elif isinstance(read, MapType) and isinstance(target, MapType):
        yield from _conditions_of_each(F.map_values(value), read.valueType, target.valueType)
    else:
        yield or_true(value.between(*_bounds(target)))


def _conditions_of_each(array: Column, read: DataType, target: DataType) -> Iterator[Column]:
    if not differ(read, target):
        return
    if isinstance(read, _NUMBERS):
        # Of all of them at once; forall() would be interpreted, element by element.
        least, most = _bounds(target)
        yield or_true((F.array_min(array) >= least) & (F.array_max(array) <= most))
    elif isinstance(read, StructType) and isinstance(target, StructType):
        for theirs, ours in zip(read.fields, target.fields, strict=True):
            yield from _conditions_of_each(
                array.getField(theirs.name), theirs.dataType, ours.dataType
            )
    else:
        # There are some: of types that differ
        yield or_true(
            F.forall(array, lambda one: cast(Column, conjunction(_conditions(one, read, target))))
        )


def _bounds(kind: DataType) -> tuple[Column, Column]:
    if isinstance(kind, DecimalType):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        return F.lit(-most), F.lit(most)
    # As longs, so that nothing is cast for the comparison
    return F.lit(-(2**31)).cast("long"), F.lit(2**31 - 1).cast("long")


def or_true(condition: Column | None) -> Column:
    """Return ``condition``, which is there, or true where it is null."""
    assert condition is not None  # noqa: S101 — asked for a type that has what it looks at
    return F.coalesce(condition, F.lit(True))


def _narrow(read: DataType, target: DataType) -> DataType:
    """Return ``read`` with the numbers of ``target``."""
    if isinstance(read, StructType) and isinstance(target, StructType):
        both = zip(read.fields, target.fields, strict=False)
        fields = [
            StructField(theirs.name, _narrow(theirs.dataType, ours.dataType))
            for theirs, ours in both
        ]
        return StructType([*fields, *read.fields[len(fields) :]])
    if isinstance(read, ArrayType) and isinstance(target, ArrayType):
        return ArrayType(_narrow(read.elementType, target.elementType))
    return target if isinstance(read, _NUMBERS) else read


def why_not_narrow(read: DataType, target: DataType) -> str:
    """Return what is wrong with a value that is not :func:`narrow_enough`."""
    found = set(_differing(read, target))
    return " or ".join(text for kind, text in _WRONG.items() if kind in found)


def narrow(value: Column, read: DataType, target: DataType) -> Column:
    """Cast ``value``, of type ``read``, to ``target``, where it is :func:`narrow_enough`.

    By one cast, which Spark compiles field by field; a struct put together of its fields would be
    one method, and one of more than 8,000 bytes is interpreted.
    """
    return value.try_cast(target) if differ(read, target) else value


def differ(read: DataType, target: DataType) -> bool:
    """Return whether a number in ``read`` is of another type in ``target``."""
    return any(_differing(read, target))


def _differing(read: DataType, target: DataType) -> Iterator[type[DataType]]:
    """Yield as what the numbers are read that are of other types in ``target``."""
    if isinstance(read, StructType) and isinstance(target, StructType):
        for theirs, ours in zip(read.fields, target.fields, strict=False):
            yield from _differing(theirs.dataType, ours.dataType)
    elif isinstance(read, ArrayType) and isinstance(target, ArrayType):
        yield from _differing(read.elementType, target.elementType)
    elif isinstance(read, MapType) and isinstance(target, MapType):
        yield from _differing(read.valueType, target.valueType)
    elif isinstance(read, _NUMBERS) and read != target:
        yield type(read)
