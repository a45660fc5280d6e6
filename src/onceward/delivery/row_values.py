"""How a value of a row is written, as text or as JSON: what docs/how-to/upsert.md has in its
table. Values only.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from decimal import Decimal
from typing import Any


def text(value: Any) -> str | bytes:
    """Convert a value for a field of a hash in Redis."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, dict)):
        return as_json(value)
    return str(value)


def as_json(value: Any) -> str:
    """Convert a value to JSON on one line, without spaces."""
    return json.dumps(_within(value), ensure_ascii=False, separators=(",", ":"))


def _within(value: Any) -> Any:
    """Convert a nested value to what JSON has.

    Bytes become Base64, as in Spark's ``to_json``, and all else its text. JSON's numbers are read
    as doubles by many, in which a decimal is another one.
    """
    if isinstance(value, dict):
        return {name: _within(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_within(part) for part in value]
    if (
        value is None
        or isinstance(value, (bool, int))
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    said = text(value)
    return base64.b64encode(said).decode() if isinstance(said, bytes) else said
