"""Values that a column of an Iceberg table would change or refuse, and Spark's type of it does not
tell. Driver only.

To Spark a ``uuid`` is a text and a ``fixed[n]`` is bytes. Iceberg makes a UUID of any text that
Java takes for one (``1-2-3-4-5``), and it comes back as another text.

A column has to take the values of a frame as they are. Spark's own rules let values change also
where they are strict (``storeAssignmentPolicy``): large numbers lose digits on their way to a
floating type, binary becomes text, and a time of day another one with or without a zone.

A table's metadata, asked by :mod:`iceberg_table`, are JSON (Iceberg's *Table Metadata*).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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

from onceward.spark.batch.carried import unless
from onceward.spark.types import column_named

_STAGED_AS = "wap.id"
_PUBLISHED_AS = "published-wap-id"
_PUBLISHED_FROM = "source-snapshot-id"


_REQUIRED = "required "
_PROMOTIONS = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


def parse_fields(schema: str) -> dict[str, str]:
    """Return the type of each field, nested ones included, by its id.

    :param schema: as ``SchemaParser`` writes it.
    """
    return dict(_fields(json.loads(schema)))


def _fields(of: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(of, dict):
        return
    inside = [
        (of[f"{part}-id"], of[part], False) for part in ("element", "key", "value") if part in of
    ]
    inside += [
        (field["id"], field["type"], field["required"] and "initial-default" not in field)
        for field in of.get("fields", [])
    ]
    for number, kind, is_required in inside:
        name = str(kind["type"] if isinstance(kind, dict) else kind)
        yield str(number), _REQUIRED + name if is_required else name
        # What is inside of something optional is missing together with it.
        yield from (
            (one, kind_text if is_required else kind_text.removeprefix(_REQUIRED))
            for one, kind_text in _fields(kind)
        )


def unreadable(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return why a table with fields ``now`` cannot read files of ``then``; empty if it can."""
    if not then.keys() & now.keys():
        return ["it has none of the fields of then"]
    changed = [
        f"field {number} was {then[number]}, and is {kind}"
        for number, kind in now.items()
        if number in then and not _reads(kind, then[number])
    ]
    missing = [
        f"field {number} is {kind}"
        for number, kind in now.items()
        if _is_required(kind) and number not in then
    ]
    return changed + missing


def _reads(now: str, then: str) -> bool:
    """See *Schema Evolution* in Iceberg's specification."""
    if _is_required(now) and not _is_required(then):
        return False
    old, new = then.removeprefix(_REQUIRED), now.removeprefix(_REQUIRED)
    if (narrow := _DECIMAL.fullmatch(old)) and (wide := _DECIMAL.fullmatch(new)):
        return int(wide[1]) >= int(narrow[1]) and wide[2] == narrow[2]
    return old == new or (old, new) in _PROMOTIONS


def _is_required(kind: str) -> bool:
    return kind.startswith(_REQUIRED)


class Metadata:
    """One state of a table.

    :param text: its metadata, as ``TableMetadataParser`` writes them.
    """

    def __init__(self, text: str) -> None:
        self._document: dict[str, Any] = json.loads(text)
        self._snapshots: dict[int, dict[str, Any]] = {
            int(snapshot["snapshot-id"]): snapshot
            for snapshot in self._document.get("snapshots") or []
        }

    def staged(self, prefix: str) -> dict[str, int]:
        """Return the staged snapshots, which were never part of the table, by the name they were
        written under.

        What somebody has rolled back is none of them: it was current once, and can be current
        again. Nor is what a branch or a tag has.
        """
        ever_current = {
            int(entry["snapshot-id"]) for entry in self._document.get("snapshot-log") or []
        }
        on_refs = {int(ref["snapshot-id"]) for ref in (self._document.get("refs") or {}).values()}
        # The log is cut when snapshots expire. What others build on was current, or on a branch.
        built_on = {snapshot.get("parent-snapshot-id") for snapshot in self._snapshots.values()}
        published_as = {self._summary(one).get(_PUBLISHED_AS) for one in self._snapshots}
        published_from = {self._summary(one).get(_PUBLISHED_FROM) for one in self._snapshots}
        return {
            written_as: one
            for one in self._snapshots.keys() - ever_current - on_refs - built_on
            if (written_as := self._summary(one).get(_STAGED_AS, "")).startswith(prefix)
            and written_as
            and written_as not in published_as
            and str(one) not in published_from
        }

    def lack(self, snapshots: Sequence[int]) -> list[int]:
        """Return those of ``snapshots`` that the table has neither itself nor published."""
        main = list(self._ancestors(self._document.get("current-snapshot-id")))
        published_as = {self._summary(one).get(_PUBLISHED_AS) for one in main}
        published_from = {self._summary(one).get(_PUBLISHED_FROM) for one in main}
        return [
            one
            for one in snapshots
            if one not in main
            and str(one) not in published_from
            and (
                one not in self._snapshots
                or self._summary(one).get(_STAGED_AS, "") not in published_as
            )
        ]

    def _ancestors(self, snapshot: int | None) -> Iterator[int]:
        """Yield a snapshot and its ancestors, as far back as they are known."""
        while snapshot in self._snapshots:
            yield snapshot
            snapshot = self._snapshots[snapshot].get("parent-snapshot-id")

    def _summary(self, snapshot: int) -> dict[str, str]:
        summary: dict[str, str] = self._snapshots[snapshot].get("summary") or {}
        return summary


_WHOLE: list[type[DataType]] = [ByteType, ShortType, IntegerType, LongType]
_DIGITS = dict(zip(_WHOLE, (3, 5, 10, 20), strict=True))
_EXACT_IN: dict[type[DataType], list[type[DataType]]] = {
    FloatType: [ByteType, ShortType],
    DoubleType: [ByteType, ShortType, IntegerType, FloatType],
    # however it is compared
    StringType: [StringType],
    **{wider: _WHOLE[:place] for place, wider in enumerate(_WHOLE)},
}


def misfit(source: StructType, target: StructType, inside: str = "") -> str:
    """Describe the first column of ``source``, or what is inside of it, whose values do not all
    fit the column of that name in ``target``; missing columns are not checked.
    """
    columns = {field.name.lower(): field for field in target} | {
        field.name: field for field in target
    }
    for field in source:
        column = columns.get(field.name) or columns.get(field.name.lower())
        if column is None:
            continue
        if found := _select_types(field.dataType, column.dataType, inside + column.name):
            return found
    return ""


def _select_types(source: DataType, target: DataType, name: str) -> str:
    if isinstance(source, StructType) and isinstance(target, StructType):
        return misfit(source, target, f"{name}.")
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        return _select_types(source.elementType, target.elementType, f"{name}.element")
    if isinstance(source, MapType) and isinstance(target, MapType):
        of_keys = _select_types(source.keyType, target.keyType, f"{name}.key")
        return of_keys or _select_types(source.valueType, target.valueType, f"{name}.value")
    if _takes_all(target, source):
        return ""
    return f"column {name} is {source.simpleString()} in the frame, and {target.simpleString()}"


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
    unfit = _unfit_fields(frame.schema, schema)
    if not unfit:
        return frame
    columns = {name: column_named(name) for name in frame.columns}
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


def _unfit_fields(source: StructType, target: Mapping[str, Any]) -> dict[str, Unfit]:
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
        return _first_unfit([_field(*one) for one in _unfit_fields(source, target).items()])
    if isinstance(source, ArrayType) and kind == "list":
        return _first_unfit(
            [_inside(lambda value: value, _unfit(source.elementType, target["element"]))]
        )
    if isinstance(source, MapType) and kind == "map":
        return _first_unfit(
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


def _first_unfit(each: list[Any]) -> Unfit | None:
    unfit: list[Unfit] = [one for one in each if one is not None]
    if not unfit:
        return None
    return lambda value: reduce(
        or_, [f.coalesce(is_unfit(value), f.lit(False)) for is_unfit in unfit]
    )
