"""One event of a binlog, where it lies in the bytes that were received. The value that everything
here hands on. Pure.

Source: MySQL, ``libbinlogevents`` (``Log_event_header``); MariaDB's *Replication protocol*, "2.
Event header".
"""

from __future__ import annotations

from typing import NamedTuple

HEADER_BYTES = 19


class Event(NamedTuple):
    """``buffer[start:stop]`` is the event with its header of 19 bytes and without its checksum."""

    buffer: bytes | bytearray
    """Never written to again once an event of it has been handed out: slices of it may be kept."""
    start: int
    stop: int
    kind: int
    """Its type code, see :mod:`kinds`."""
    flags: int
    timestamp: int
    """Seconds since 1970, by the server that wrote it first."""
    server_id: int
    file: str
    """The binlog it is in, on the server that sent it."""
    position: int
    """Its first byte there, counted by sizes: the header's own field has 32 bits. What is inside a
    transaction payload has the payload's.
    """
    inner: int = 0
    """Which event of its transaction payload it is, from 1; 0 outside of one."""
    made_up: bool = False
    """Not in the binlog: the server made it for this dump (a rotation at the beginning, a
    heartbeat).
    """

    @property
    def body(self) -> memoryview:
        """Behind the header."""
        return memoryview(self.buffer)[self.start + HEADER_BYTES : self.stop]
