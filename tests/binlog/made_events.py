"""Events as servers write them, made by hand, alone, in packets and in files; and the golden
binlogs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from onceward.mysql.binlog.event import (
    ARTIFICIAL_FLAG,
    FORMAT_DESCRIPTION,
    QUERY,
    ROTATE,
    BinlogEvent,
    Dialect,
)
from onceward.mysql.binlog.framing import EventReader

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_FILES = sorted(GOLDEN.glob("*.binlog"))
FILE = "binlog.000007"
NOW = 1_795_000_000


def dialect_of(file: Path) -> Dialect:
    return "mariadb" if file.name.startswith("mariadb") else "mysql"


def made(
    kind: int,
    body: bytes,
    position: int | None = None,
    *,
    flags: int = 0,
    checksum: bool = True,
    server_id: int = 1,
) -> bytes:
    """One event. :param position: where it begins; None: it says 0 as its end."""
    size = 19 + len(body) + 4 * checksum
    end = 0 if position is None else (position + size) & 0xFFFFFFFF
    event = struct.pack("<IBIIIH", NOW, kind, server_id, size, end, flags) + body
    return event + zlib.crc32(event).to_bytes(4, "little") if checksum else event


def rotation(file: str = FILE, position: int = 4, *, checksum: bool = True) -> bytes:
    """As a server makes it up for a dump."""
    return made(
        ROTATE,
        position.to_bytes(8, "little") + file.encode(),
        flags=ARTIFICIAL_FLAG,
        checksum=checksum,
    )


def format_description(position: int | None = 4, *, checksums: bool = True) -> bytes:
    body = struct.pack("<H50sIB", 4, b"8.0.33", NOW, 19) + bytes(41) + bytes([checksums])
    return made(FORMAT_DESCRIPTION, body, position)


def packet(payload: bytes, number: int = 1) -> bytes:
    """In as many packets as it takes, the last one shorter than a whole one."""
    pieces = [payload[at : at + 0xFFFFFF] for at in range(0, len(payload) + 1, 0xFFFFFF)]
    return b"".join(
        len(piece).to_bytes(3, "little") + bytes([(number + at) % 256]) + piece
        for at, piece in enumerate(pieces)
    )


def packets(events: Iterable[bytes]) -> bytes:
    return b"".join(packet(b"\0" + event, number) for number, event in enumerate(events, 1))


def whole(*bodies: tuple[int, bytes]) -> tuple[list[bytes], int]:
    """A rotation, a format description, and events with these kinds and bodies; and where the last
    one ends.
    """
    events = [rotation(), format_description()]
    position = 4 + len(events[1])
    for kind, body in bodies:
        events.append(made(kind, body, position))
        position += len(events[-1])
    return events, position


def read(
    sent: bytes, reader: EventReader, pieces: int = 1 << 20, until: tuple[str, int] | None = None
) -> list[BinlogEvent]:
    """What a reader makes of all that was sent, coming in ``pieces`` of at most so many bytes."""
    found = reader.events(0, until)
    at = 0
    while at < len(sent) and reader.end is None and (reader.file, reader.position) != until:
        space = reader.space()
        came = min(len(space), pieces, len(sent) - at)
        space[:came] = sent[at : at + came]
        at += came
        found += reader.events(came, until)
    return found


def event_of(kind: int, body: bytes, *, server_id: int = 1, flags: int = 0) -> BinlogEvent:
    """One by itself, as a reader would hand it out."""
    data = made(kind, body, 4, flags=flags, server_id=server_id)
    return BinlogEvent(data, 0, len(data) - 4, kind, flags, NOW, server_id, FILE, 4)


def query(text: str | bytes, database: str = "shop", *, variables: bytes = b"") -> BinlogEvent:
    """A QUERY event. :param variables: its status variables."""
    raw = text if isinstance(text, bytes) else text.encode()
    head = struct.pack("<IIBHH", 1, 0, len(database.encode()), 0, len(variables))
    return event_of(QUERY, head + variables + database.encode() + b"\0" + raw)
