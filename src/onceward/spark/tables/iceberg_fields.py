"""What files of an Iceberg table were written for, and whether it can read them still. Driver
only.

``CREATE OR REPLACE TABLE`` leaves the table its id, and a column of the same name the number by
which files know it; its type may be another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

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
            (one, said if is_required else said.removeprefix(_REQUIRED))
            for one, said in _fields(kind)
        )


def unreadable(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return why a table with the fields ``now`` cannot read files that were written for ``then``;
    empty if it can.
    """
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
