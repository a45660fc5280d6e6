"""Typed errors through Spark, which turns what a Python worker raises into text. Pure: text in, error out, and back.

Written where Spark runs Python away from the driver's own process (the reader of a resettable source), and into plans
that may refuse a row (:mod:`onceward.spark.row_guard`); read by :mod:`onceward.spark.failures` and ``write_errors``.
JSON only: what a process says is never unpickled.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from onceward.errors import OncewardError, from_json, to_json

# Base64, because a Java stack trace indents lines, cuts at none, and may quote; it has no character that JSON would
# escape.
_CARRIED = re.compile(r"\[onceward:([A-Za-z0-9+/=]+)\]")


class Carried(Exception):
    """What Spark is shown of an error of ours: its text, and behind it the error itself."""

    def __init__(self, error: OncewardError) -> None:
        encoded = base64.b64encode(zlib.compress(to_json(error).encode())).decode()
        super().__init__(f"{type(error).__name__}: {error} [onceward:{encoded}]")


@contextmanager
def carrying() -> Iterator[None]:
    """Inside, errors of ours are raised so that they can be told from Spark's text. The traceback of a cause stays."""
    try:
        yield
    except OncewardError as error:
        raise Carried(error) from error.__cause__


def carried_in(text: str) -> OncewardError | None:
    """The error that was raised inside :func:`carrying`; None if ``text`` has none, or not a whole one."""
    return next(filter(None, map(_decoded, _CARRIED.findall(text))), None)


def _decoded(encoded: str) -> OncewardError | None:
    try:
        return from_json(zlib.decompress(base64.b64decode(encoded)).decode())
    except (ValueError, zlib.error):
        return None
