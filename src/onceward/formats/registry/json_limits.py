"""JSON from a server that is not trusted: read within limits, or refused in a few words. Bytes in,
values out, no I/O.

Called by :mod:`answers` and :mod:`references`, in the driver.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

DEEPEST = 100
"""Levels of brackets. Python's reader gives up at some 1,000, Jackson (in Spark and in registries)
at 1,000.
"""
MOST_BRACKETS = 400_000
"""Of lists and objects: each takes some hundred bytes of memory, and two of the text."""


class NotFit(Exception):
    """What is wrong with an answer or a text, in a few words."""


def parse_json(text: str | bytes, *, deepest: int = DEEPEST) -> Any:
    """Return the value of ``text``, which takes a few times its size in memory.

    :raises NotFit: it is no JSON in UTF-8, its brackets are nested deeper than ``deepest``, or
        there are too many.
    """
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise NotFit("not UTF-8") from None
    if decoded.count("[") + decoded.count("{") > MOST_BRACKETS:
        raise NotFit(f"JSON of more than {MOST_BRACKETS:,} lists and objects")
    try:
        value = json.loads(decoded, parse_constant=_no_number)
    except RecursionError:
        raise NotFit(f"JSON nested deeper than {deepest} levels") from None
    except ValueError as error:
        raise NotFit(f"no JSON ({error})" if decoded.strip() else "empty") from None
    _must_be_flat(value, deepest)
    return value


def _must_be_flat(value: Any, deepest: int) -> None:
    level = [value] if isinstance(value, (list, dict)) else []
    for _ in range(deepest + 1):
        if not level:
            return
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for part in inside for inner in part if isinstance(inner, (list, dict))]
    raise NotFit(f"JSON nested deeper than {deepest} levels")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
