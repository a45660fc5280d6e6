"""Typed errors through Spark, which turns what a Python worker or a plan raises into text
(``PythonException``, ``StreamingQueryException``).

Written where Spark runs Python away from the driver's own process (the reader of a resettable
source), and into plans that may refuse a row (:func:`unless`); read by :mod:`.failures` and
:mod:`.write_errors`. JSON only: what a process says is never unpickled.

A text may quote a record, and whoever wrote that could write what we write. So each mark has a
secret of the driver's process, drawn when it starts: no record has it, and a text without it is
not looked at. It is in plans and in tasks' closures, and in no row.

And objects of the user's that go to the tasks (:func:`pickled`), for the sinks and sources that
hold them. Driver only.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as f

from onceward import surroundings
from onceward.errors import ConfigurationError, OncewardError, RowRefused, from_json, to_json

restore = cloudpickle.loads
"""Makes the object of :func:`pickled` again, in a task."""


def pickled(
    thing: Any, next_step: str, *, refusal: type[OncewardError] = ConfigurationError
) -> bytes:
    """Return ``thing`` as PySpark would send it to the tasks. :raises OncewardError: ``refusal``,
    with ``next_step``: it cannot be sent."""
    try:
        return bytes(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise refusal(
            f"{type(thing).__name__} cannot be sent to the tasks: {error}", next_step=next_step
        ) from error


def pickled_again(thing: Any, next_step: str, before: bytes | None) -> bytes:
    """Return ``thing`` as it is now, with renewed settings; or ``before``, where it has opened
    since what cannot be sent. :raises ConfigurationError: there is nothing before."""
    try:
        return pickled(thing, next_step)
    except ConfigurationError:
        if before is None:
            raise
        return before


SECRET = surroundings.random_bytes(16).hex()
"""Of this process. Only the driver's counts, which reads."""

# Base64, because a Java stack trace indents lines, cuts at none, and may quote; it has no
# character that JSON would escape. And only where an exception is named, as Python and Spark do at
# the beginning of a line: behind another name it is quoted. (The condition is missing with
# spark.sql.legacy.raiseErrorWithoutErrorClass=true.)
_NAMED = (
    r"^\s*(?:onceward\.spark\.batch\.carried\.Carried:"
    r"|(?:\[USER_RAISED_EXCEPTION\] )?RowRefused:) "
)
_CARRIED = re.compile(rf"{_NAMED}.*\[onceward:{SECRET}:([A-Za-z0-9+/=]+)\]", re.MULTILINE)


class Carried(Exception):
    """What Spark is shown of an error of ours: its text, and behind it the error itself."""

    def __init__(self, error: OncewardError, secret: str = SECRET) -> None:
        encoded = base64.b64encode(zlib.compress(to_json(error).encode())).decode()
        super().__init__(f"{type(error).__name__}: {error} [onceward:{secret}:{encoded}]")


@dataclass(frozen=True, slots=True)
class Carrier:
    """Made in the driver, pickled to where its errors are raised."""

    secret: str = field(default=SECRET, repr=False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Raise typed errors inside so that Spark's text tells them; a cause's traceback stays."""
        try:
            yield
        except OncewardError as error:
            raise Carried(error, self.secret) from error.__cause__


def carried_in(text: str) -> OncewardError | None:
    """Return the error raised as :class:`Carried`; None: no whole one of this driver's."""
    return next(filter(None, map(_decoded, _CARRIED.findall(text))), None)


def _decoded(encoded: str) -> OncewardError | None:
    try:
        return from_json(zlib.decompress(base64.b64decode(encoded)).decode())
    except (ValueError, zlib.error):
        return None


def unless(condition: Column, value: Column, message: str, next_step: str) -> Column:
    """Return ``value``; where ``condition`` is true the job fails."""
    refusal = Carried(RowRefused(message, next_step=next_step))
    return f.when(condition, f.raise_error(f.lit(str(refusal)))).otherwise(value)
