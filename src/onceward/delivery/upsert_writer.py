"""The interface between :class:`onceward.UpsertSink` and its writers, ``redis_writer`` and
``opensearch_writer``, and how both write a value of a row, as text or as JSON: the table in
docs/how-to/upsert.md.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

from onceward import patience
from onceward.delivery.upserts import Upsert

T = TypeVar("T")


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
    key = text(value)
    return base64.b64encode(key).decode() if isinstance(key, bytes) else key


class UpsertWriter(ABC):
    """Called in the driver with what is to be written, as often as it takes; keeps no rows."""

    reserved: ClassVar[frozenset[str]]
    """Names of columns that no row may have."""
    key_bytes: ClassVar[int | None] = None
    """What a key may have at most, in UTF-8."""
    answer_s: ClassVar[float] = 120.0
    """How long a server may take for a whole answer, beside what is sent to it."""
    slowest_bytes_s: ClassVar[int] = 50_000
    """What a line carries in a second at least."""

    @abstractmethod
    def __call__(self, upserts: Iterable[Upsert]) -> None:
        """Write upserts.

        :raises DeliveryRefused: keys that cannot be written, ever; the others are written.

        :raises Exception: the server does not answer, or not now; some may be written.
        """

    def check(self) -> None:  # noqa: B027 — most places are what they are called
        """Look, before a batch is decided, whether the place is one to which a key can be written
        for ever.

        :raises ConfigurationError: it is not.
        :raises Exception: it cannot be asked now.
        """

    def _in_time(self, ask: Callable[[], T], sent_bytes: int = 0) -> T:
        """Return what a server answers. The time limit of its client is one for each piece, and a
        proxy that sends a byte now and then keeps to that for hours.

        :raises TimeoutError: there is no whole answer in time. The connection is left to it.
        """
        seconds = self.answer_s + sent_bytes // self.slowest_bytes_s
        late = TimeoutError(f"no whole answer within {seconds:g} s")
        return patience.in_time(ask, seconds, "onceward-upserts", late=late, abandon=self._abandon)

    @abstractmethod
    def _abandon(self) -> None:
        """Forget connections without a word to them; the next call opens others."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections; the next call opens them again."""
