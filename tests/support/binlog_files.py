"""Whole binlog files, as a server keeps them on its disk."""

from __future__ import annotations

from collections.abc import Iterator

from onceward.mysql.binlog.event import FORMAT_DESCRIPTION, HEADER_BYTES, BinlogEvent, Dialect
from onceward.mysql.binlog.framing import FIRST_POSITION, EventReader

_MAGIC = b"\xfebin"
_IN_USE = 1
"""In a format description's flags, while its file is written; the checksum is of the event
without.
"""


def events_of_file(
    data: bytes | bytearray, dialect: Dialect, file: str = "binlog.000001"
) -> Iterator[BinlogEvent]:
    """Yield the events of a file.

    :raises BinlogCorrupted: it is none, or it ends inside an event.
    """
    reader = EventReader(dialect, file, FIRST_POSITION, block_bytes=32)
    if bytes(data[:4]) != _MAGIC:
        raise reader._damage(f"no binlog: it begins with {bytes(data[:4])!r}")
    if data[8:9] == bytes([FORMAT_DESCRIPTION]) and len(data) > 21 and data[21] & _IN_USE:
        data = data[:21] + bytes([data[21] & ~_IN_USE]) + data[22:]
    while (at := reader.position) < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < HEADER_BYTES or at + size > len(data):
            raise reader._damage(f"an event of {size} bytes where {len(data) - at} are left")
        yield reader.check_event(data, at, at + size)
        if reader.position != at + size:
            raise reader._damage("an event that no file holds")
