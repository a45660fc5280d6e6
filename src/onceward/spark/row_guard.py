"""Rows that a sink refuses, noticed where they are computed: a condition in the frame's own plan. Driver only.

There is no second reading of the rows, and none in Python. What Spark says of the failed job is turned back into the
refusal by whoever runs the job. No value of a row is in it.
"""

from __future__ import annotations

import json
import re

from pyspark.sql import Column
from pyspark.sql import functions as f

from onceward.errors import RowRefused

_MARK = "onceward refuses a row: "
_REFUSAL = re.compile(re.escape(_MARK) + r'(\[".*"\])')


def unless(condition: Column, value: Column, message: str, next_step: str) -> Column:
    """``value``, but where ``condition`` is true the job fails."""
    return f.when(condition, f.raise_error(f.lit(_MARK + json.dumps([message, next_step])))).otherwise(value)


def refusal(said: str) -> RowRefused | None:
    """What :func:`unless` meant, of what Spark says of a failure; None: it is another one."""
    found = _REFUSAL.search(said)
    if found is None:
        return None
    message, next_step = json.loads(found[1])
    return RowRefused(message, next_step=next_step)
