"""Is every text in a decoded value UTF-8? A condition on a column, made from its type.

Used by :mod:`onceward.formats.avro.plan`, in the driver; evaluated by Spark's tasks. Neither
Avro's decoder nor Spark's ``from_avro`` looks: bytes that are no UTF-8 would go through as a text,
and be written by the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

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
        return _all(
            F.is_valid_utf8(value.getField(field.name).cast("string"))
            if field.name in as_bytes
            else texts_are_valid(value.getField(field.name), field.dataType)
            for field in kind.fields
        )
    if isinstance(kind, ArrayType):
        return _elements_are_valid(value, kind.elementType)
    if isinstance(kind, MapType):
        keys = _elements_are_valid(F.map_keys(value), kind.keyType)
        return _all((keys, _elements_are_valid(F.map_values(value), kind.valueType)))
    return None


def _elements_are_valid(array: Column, kind: DataType) -> Column | None:
    if isinstance(kind, StringType):
        # One look at all of them; forall() would be interpreted, element by element.
        return F.is_valid_utf8(F.array_join(array, _SEPARATOR))
    # a map's keys are texts
    if not contains_type(kind, StringType, MapType):
        return None
    return F.forall(array, lambda element: _or_null(texts_are_valid(element, kind)))


def _or_null(condition: Column | None) -> Column:
    assert condition is not None  # noqa: S101 — asked for a type with texts
    return F.coalesce(condition, F.lit(True))


def _all(conditions: Iterable[Column | None]) -> Column | None:
    return conjunction([_or_null(condition) for condition in conditions if condition is not None])


def conjunction(conditions: Sequence[Column]) -> Column | None:
    """Return one condition that is true where all of ``conditions`` are; None of none.

    As a balanced tree: a chain of 500 is 500 deep, and Spark's visitors of expressions recurse.
    """
    level = list(conditions)
    while len(level) > 1:
        pairs = [left & right for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0] if level else None
