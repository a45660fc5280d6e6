"""Values that a column of an Iceberg table would change or refuse, and Spark's type of it does not
tell. Driver only.

To Spark a ``uuid`` is a text and a ``fixed[n]`` is bytes. Iceberg makes a UUID of any text that
Java takes for one (``1-2-3-4-5``), and it comes back as another text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from onceward.spark.batch.carried import unless

_UUID = r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"
_FIXED = "fixed["

Unfit = Callable[[Column], Column]
"""Whether a value cannot be kept; may be null."""


def guarded(frame: DataFrame, schema: Mapping[str, Any], table: str) -> DataFrame:
    """Return ``frame``, whose job fails with :class:`~onceward.errors.RowRefused` at a value that
    the table does not keep as it is.

    :param schema: the table's, as ``SchemaParser`` writes it.
    :param table: its name.
    """
    unfit = _of_fields(frame.schema, schema)
    if not unfit:
        return frame
    columns = {name: f.col(f"`{name.replace('`', '``')}`") for name in frame.columns}
    for name, is_unfit in unfit.items():
        columns[name] = unless(
            f.coalesce(is_unfit(columns[name]), f.lit(False)),
            columns[name],
            f"a value of column {name} is none that the Iceberg table {table} keeps as it is: its "
            "uuid takes a UUID in small letters (01234567-89ab-cdef-0123-456789abcdef), and its "
            "fixed[n] takes n bytes",
            "mend such values in the query, with lower() say, or leave such rows out",
        ).alias(name)
    return frame.select(*columns.values())


def _of_fields(source: StructType, target: Mapping[str, Any]) -> dict[str, Unfit]:
    by_name = {field["name"].lower(): field["type"] for field in target["fields"]}
    by_name |= {field["name"]: field["type"] for field in target["fields"]}
    found = {
        field.name: _unfit(
            field.dataType, by_name.get(field.name, by_name.get(field.name.lower()))
        )
        for field in source
    }
    return {name: is_unfit for name, is_unfit in found.items() if is_unfit is not None}


def _unfit(source: DataType, target: Any) -> Unfit | None:
    if isinstance(source, StringType) and target == "uuid":
        return lambda value: ~value.rlike(_UUID)
    if isinstance(source, BinaryType) and str(target).startswith(_FIXED):
        size = int(target.removeprefix(_FIXED).rstrip("]"))
        return lambda value: f.length(value) != size
    kind = target.get("type") if isinstance(target, dict) else None
    if isinstance(source, StructType) and kind == "struct":
        return _any_of([_field(*one) for one in _of_fields(source, target).items()])
    if isinstance(source, ArrayType) and kind == "list":
        return _any_of(
            [_inside(lambda value: value, _unfit(source.elementType, target["element"]))]
        )
    if isinstance(source, MapType) and kind == "map":
        return _any_of(
            [
                _inside(f.map_keys, _unfit(source.keyType, target["key"])),
                _inside(f.map_values, _unfit(source.valueType, target["value"])),
            ]
        )
    return None


def _field(name: str, is_unfit: Unfit) -> Unfit:
    return lambda value: is_unfit(value.getField(name))


def _inside(values: Unfit, is_unfit: Unfit | None) -> Unfit | None:
    if is_unfit is None:
        return None
    return lambda value: f.exists(
        values(value), lambda one: f.coalesce(is_unfit(one), f.lit(False))
    )


def _any_of(each: list[Any]) -> Unfit | None:
    unfit: list[Unfit] = [one for one in each if one is not None]
    if not unfit:
        return None
    return lambda value: reduce(
        or_, [f.coalesce(is_unfit(value), f.lit(False)) for is_unfit in unfit]
    )
