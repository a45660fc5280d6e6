"""Bytes that are read from front to back, with MySQL's packed numbers. No length is believed that the bytes do not
have.

Called by :mod:`table_map`. Source: MySQL ``mysys/pack.cc`` (``net_field_length_ll``).
"""

from __future__ import annotations

from onceward.binlog.refusals import damaged

_WIDTHS = {252: 2, 253: 3, 254: 8}


class PackedBytes:
    """:param what: it is, for the error."""

    def __init__(self, data: bytes, what: str, start: int = 0) -> None:
        self._data = data
        self._what = what
        self._at = start

    @property
    def left(self) -> int:
        """How many bytes are behind what was read."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next ``count``."""
        end = self._at + count
        if end > len(self._data):
            raise self._short()
        found = self._data[self._at : end]
        self._at = end
        return found

    def byte(self) -> int:
        """The next one."""
        if self._at >= len(self._data):
            raise self._short()
        found = self._data[self._at]
        self._at += 1
        return found

    def packed_number(self) -> int:
        """One byte up to 250, or 2, 3 or 8 behind one that says so."""
        first = self.byte()
        if first < 251:
            return first
        if first not in _WIDTHS:
            raise damaged(f"{self._what} has a number that begins with {first}, which none does")
        return int.from_bytes(self.take(_WIDTHS[first]), "little")

    def at_most(self, count: int) -> int:
        """``count`` things, each of which takes a byte or more."""
        if count > self.left:
            raise self._short()
        return count

    def _short(self) -> Exception:
        return damaged(f"{self._what} ends before what it says it has")
