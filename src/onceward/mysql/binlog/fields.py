"""Readers of binary fields, which read from front to back and never beyond the end, whatever a
length in the bytes says. Pure.

:class:`EventFields` reads an event's body, :class:`MetadataFields` a table map or the header of a
    rows event; both once in a transaction or for a table. Rows are read in :mod:`rows`, column by
    column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from onceward.errors import BinlogCorrupted
from onceward.mysql.binlog.event import BinlogEvent, damaged_data, damaged_event

_INTEGER_WIDTHS = {252: 2, 253: 3, 254: 8}


Data = TypeVar("Data", bytes, memoryview)


class FieldReader(ABC, Generic[Data]):
    """Base of both readers: reads ``data`` from ``at`` on, and returns slices of it."""

    def __init__(self, data: Data, at: int = 0) -> None:
        self._data: Data = data
        self.at = at

    @property
    def remaining(self) -> int:
        """Number of bytes that were not read yet."""
        return len(self._data) - self.at

    def take(self, count: int) -> Data:
        """Return the next ``count`` bytes.

        :raises BinlogCorrupted: there are not so many; so do all other methods.
        """
        start = self.at
        if not 0 <= count <= len(self._data) - start:
            raise self._too_short()
        self.at = start + count
        return self._data[start : self.at]

    def take_rest(self) -> Data:
        """Return all remaining bytes."""
        return self.take(self.remaining)

    def fixed_int(self, count: int) -> int:
        """Read an unsigned little-endian integer of ``count`` bytes (``int<n>``)."""
        return int.from_bytes(self.take(count), "little")

    def lenenc_int(self) -> int:
        """Read a length-encoded integer (``int<lenenc>``) of one, three, four or nine bytes.

        Source: MySQL, *Protocol Basics*; ``mysys/pack.cc`` (``net_field_length_ll``).
        """
        first = self.take(1)[0]
        if first < 251:
            return first
        if first not in _INTEGER_WIDTHS:
            raise self._bad_prefix(first)
        return self.fixed_int(_INTEGER_WIDTHS[first])

    @abstractmethod
    def _too_short(self) -> BinlogCorrupted:
        """Return the error of a length beyond the end."""

    @abstractmethod
    def _bad_prefix(self, first: int) -> BinlogCorrupted:
        """Return the error of a length-encoded integer with an undefined first byte."""


class EventFields(FieldReader[memoryview]):
    """Fields of an event's body.

    :param event: is named in errors. :param data: a part of the body; without it, the whole body.
    """

    def __init__(self, event: BinlogEvent, data: bytes | memoryview | None = None) -> None:
        super().__init__(event.body if data is None else memoryview(data))
        self._event = event

    def _too_short(self) -> BinlogCorrupted:
        return damaged_event(
            self._event, f"an event (kind {self._event.kind}) that ends inside of a field"
        )

    def _bad_prefix(self, first: int) -> BinlogCorrupted:
        return damaged_event(self._event, f"a length that begins with {first}")

    def varlen_int(self) -> int:
        """Read a variable-length integer of one to nine bytes: the trailing ones of the first byte
        say how many follow.

        Source: MySQL, ``libs/mysql/serialization/readme.md``, variable-length integers.
        """
        first = self.take(1)[0]
        # how many ones it ends with
        more = (~first & (first + 1)).bit_length() - 1
        high = self.fixed_int(more)
        return high << (7 - more) | first >> (more + 1) if more < 8 else high

    def signed_varlen_int(self) -> int:
        """Read a variable-length integer with its sign in the lowest bit."""
        found = self.varlen_int()
        return ~(found >> 1) if found & 1 else found >> 1


class MetadataFields(FieldReader[bytes]):
    """Fields of a table map, or of the header of a rows event.

    :param what: the name of the data in errors.
    """

    def __init__(self, data: bytes, what: str, start: int = 0) -> None:
        super().__init__(data, start)
        self._what = what

    def take_byte(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def check_count(self, count: int) -> int:
        """Return ``count``, the number of items that follow, each of a byte or more."""
        if count > self.remaining:
            raise self._too_short()
        return count

    def _too_short(self) -> BinlogCorrupted:
        return damaged_data(f"{self._what} ends before what it says it has")

    def _bad_prefix(self, first: int) -> BinlogCorrupted:
        return damaged_data(f"{self._what} has a number that begins with {first}, which none does")
