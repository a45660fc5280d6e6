"""JSON from a server that is not trusted: read within limits, or refused in a few words. Bytes in, values out, no I/O.

Called by :mod:`answers` and :mod:`references`, in the driver.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

DEEPEST = 100
"""Levels of brackets. Python's reader gives up at some 1,000, Jackson (in Spark and in registries) at 1,000."""

# A string that does not end goes to the end of the text: without that, each quote in it would begin the search anew.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


class NotFit(Exception):
    """What is wrong with an answer or a text, in a few words."""


def parsed(text: str | bytes, *, deepest: int = DEEPEST) -> Any:
    """The value of ``text``.

    :raises NotFit: it is no JSON in UTF-8, or its brackets are nested deeper than ``deepest``.
    """
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise NotFit("not UTF-8") from None
    _must_be_flat(decoded, deepest)
    try:
        return json.loads(decoded, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise NotFit(f"no JSON ({error})" if decoded.strip() else "empty") from None


def _must_be_flat(text: str, deepest: int) -> None:
    depth = 0
    for found in _TOKEN.finditer(text):
        first = found[0][0]
        if first in "[{":
            depth += 1
            if depth > deepest:
                raise NotFit(f"JSON nested deeper than {deepest} levels")
        elif first in "]}":
            depth -= 1


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
