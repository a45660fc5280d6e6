"""Fields of an event's body, one after the other, none beyond its end: :class:`Fields`. Pure; for what comes once in a
transaction. Rows have ways of their own."""

from __future__ import annotations

from onceward.binlog.event import Event
from onceward.binlog.stops import damaged

_WIDTHS = {252: 2, 253: 3, 254: 8}


class Fields:
    """Reads from the front.

    :param event: it is named in errors. :param data: a part of it; without, its body.
    """

    def __init__(self, event: Event, data: bytes | memoryview | None = None) -> None:
        self._event = event
        self._data = event.body if data is None else memoryview(data)
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, count: int) -> memoryview:
        """
        :raises BinlogDamaged: there are not so many; here and in all others.
        """
        start = self.at
        if not 0 <= count <= len(self._data) - start:
            raise damaged(self._event, f"an event (kind {self._event.kind}) that ends inside of a field")
        self.at = start + count
        return self._data[start : self.at]

    def rest(self) -> memoryview:
        return self.take(self.left)

    def number(self, count: int) -> int:
        """Unsigned, little-endian, of that many bytes."""
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        """In one, three, four or nine bytes.

        Source: MySQL, *Protocol Basics*, length-encoded integers.
        """
        first = self.take(1)[0]
        if first < 251:
            return first
        if first not in _WIDTHS:
            raise damaged(self._event, f"a length that begins with {first}")
        return self.number(_WIDTHS[first])

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
