"""The binlogs beside it, as real servers wrote them, and their events."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from onceward.binlog.event import Event

GOLDEN = Path(__file__).parent / "golden"


def events_in(data: bytes, file: str = "binlog.000001") -> Iterator[Event]:
    at = 4
    while at < len(data):
        timestamp, kind, server_id, size, _, flags = struct.unpack_from("<IBIIIH", data, at)
        yield Event(data, at, at + size - 4, kind, flags, timestamp, server_id, file, at)
        at += size
