"""Bytes that are read from front to back, none beyond their end, whatever a length in them says:
:class:`Lengths`, and :class:`Fields` of an event's body. Pure; for what comes once in a
transaction, or once for a table. Rows have ways of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from onceward.errors import BinlogDamaged
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.stops import damaged

_WIDTHS = {252: 2, 253: 3, 254: 8}


Data = TypeVar("Data", bytes, memoryview)


class Lengths(ABC, Generic[Data]):
    """Reads ``data`` from ``at`` on. What it gives are slices of it."""

    def __init__(self, data: Data, at: int = 0) -> None:
        self._data: Data = data
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes are behind what was read."""
        return len(self._data) - self.at

    def take(self, count: int) -> Data:
        """The next ``count``.

        :raises BinlogDamaged: there are not so many; here and in all others.
        """
        start = self.at
        if not 0 <= count <= len(self._data) - start:
            raise self._short()
        self.at = start + count
        return self._data[start : self.at]

    def rest(self) -> Data:
        return self.take(self.left)

    def number(self, count: int) -> int:
        """Unsigned, little-endian, of that many bytes."""
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        """In one, three, four or nine bytes.

        Source: MySQL, *Protocol Basics*, length-encoded integers; ``mysys/pack.cc``
        (``net_field_length_ll``).
        """
        first = self.take(1)[0]
        if first < 251:
            return first
        if first not in _WIDTHS:
            raise self._odd(first)
        return self.number(_WIDTHS[first])

    @abstractmethod
    def _short(self) -> BinlogDamaged:
        """There are not as many bytes as a length says."""

    @abstractmethod
    def _odd(self, first: int) -> BinlogDamaged:
        """No length begins with ``first``."""


class Fields(Lengths[memoryview]):
    """
    :param event: it is named in errors. :param data: a part of it; without, its body.
    """

    def __init__(self, event: Event, data: bytes | memoryview | None = None) -> None:
        super().__init__(event.body if data is None else memoryview(data))
        self._event = event

    def _short(self) -> BinlogDamaged:
        return damaged(
            self._event, f"an event (kind {self._event.kind}) that ends inside of a field"
        )

    def _odd(self, first: int) -> BinlogDamaged:
        return damaged(self._event, f"a length that begins with {first}")

    def serial(self) -> int:
        """In one to nine bytes, of which the first says how many by the ones at its end.

        Source: MySQL, ``libs/mysql/serialization/readme.md``, variable-length integers.
        """
        first = self.take(1)[0]
        more = (~first & (first + 1)).bit_length() - 1  # how many ones it ends with
        high = self.number(more)
        return high << (7 - more) | first >> (more + 1) if more < 8 else high

    def signed_serial(self) -> int:
        """The same, with the sign in the lowest bit."""
        found = self.serial()
        return ~(found >> 1) if found & 1 else found >> 1
