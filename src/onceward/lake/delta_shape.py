"""Can what was written for a Delta table once be read as a part of it now? Driver only.

A table may change while a batch waits to be published: much of that changes nothing for files that
are there already (new columns, comments, other names where columns are mapped, wider types), and
Delta reads those as it reads its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from onceward.spark.tables.delta_table import Shape

_IN_FILES = "delta.columnMapping.physicalName"
_WIDER = {
    "byte": {"short", "integer", "long", "double"},
    "short": {"integer", "long", "double"},
    "integer": {"long", "double"},
    "float": {"double"},
}
"""What ``ALTER COLUMN … TYPE`` takes, and Delta's readers read, beside decimals."""
_DIGITS = {"byte": (10, 0), "short": (10, 0), "integer": (10, 0), "long": (20, 0)}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def told(shape: Shape) -> dict[str, str]:
    """Return each column's type and its place in the files, as text."""
    return {
        name: json.dumps(
            [column["type"], {k: v for k, v in column["metadata"].items() if "columnMapping" in k}]
        )
        for name, column in shape.columns.items()
    }


def changed(then: Mapping[str, Any], shape: Shape) -> str:
    """Return what is not as it was, as far as files care, if anything.

    :param then: with ``"columns"``, as :func:`told`, and ``"partition_by"``.
    """
    columns = {name: json.loads(column) for name, column in then["columns"].items()}
    were = {
        metadata.get(_IN_FILES, name): (name, kind) for name, (kind, metadata) in columns.items()
    }
    are = {_place(column): column["type"] for column in shape.columns.values()}
    places = [columns[name][1].get(_IN_FILES, name) for name in then["partition_by"]]
    if places != [_place(shape.columns[name]) for name in shape.partition_by]:
        return "its partitions"
    misfits = [
        name
        for place, (name, kind) in were.items()
        if place not in are or not _reads(are[place], kind)
    ]
    return f"its columns {', '.join(misfits)}" if misfits else ""


def _place(field: Mapping[str, Any]) -> str:
    """Return the column's name in the files."""
    return str(field["metadata"].get(_IN_FILES, field["name"]))


def _reads(now: Any, then: Any) -> bool:
    """Return whether a column of type ``now`` has the values that were written as ``then``."""
    if isinstance(now, str) or isinstance(then, str):
        return now == then or (
            isinstance(now, str) and isinstance(then, str) and _is_wider(now, then)
        )
    if now["type"] != then["type"]:
        return False
    if now["type"] == "struct":
        fields = {_place(field): field["type"] for field in now["fields"]}
        return all(
            _place(field) in fields and _reads(fields[_place(field)], field["type"])
            for field in then["fields"]
        )
    parts = {"array": ["elementType"], "map": ["keyType", "valueType"]}.get(now["type"])
    return now == then if parts is None else all(_reads(now[part], then[part]) for part in parts)


def _is_wider(now: str, then: str) -> bool:
    if now in _WIDER.get(then, ()):
        return True
    digits, fewer = _digits(now), _DIGITS.get(then) or _digits(then)
    if digits is None or fewer is None:
        return False
    return digits[1] >= fewer[1] and digits[0] - digits[1] >= fewer[0] - fewer[1]


def _digits(kind: str) -> tuple[int, int] | None:
    """Return the digits of a decimal: in all, and behind the point."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def rules(shape: Shape) -> dict[str, str]:
    """Return what each row has to keep, and how ``ALTER TABLE`` drops that. The same rule is the
    same text for ever."""
    prefix = "delta.constraints."
    checks = {
        f"CHECK ({text})": f"DROP CONSTRAINT {name.removeprefix(prefix)}"
        for name, text in shape.settings.items()
        if name.startswith(prefix)
    }
    return checks | {
        f"NOT NULL {'.'.join(places)}": f"ALTER COLUMN {'.'.join(names)} DROP NOT NULL"
        for places, names in _without_nulls(list(shape.columns.values()))
    }


def _without_nulls(fields: list[Any]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield columns without nulls: in the files, and in the table."""
    for field in fields:
        place, name, kind = _place(field), str(field["name"]), field["type"]
        if not field["nullable"]:
            yield (place,), (name,)
        inner = kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []
        for places, names in _without_nulls(inner):
            yield (place, *places), (name, *names)
