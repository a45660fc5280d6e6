"""Table maps and rows events made by hand, from what is to be in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceward.mysql.binlog.event import BinlogEvent

TABLE_MAP, WRITE, UPDATE, DELETE = 19, 30, 31, 32


def packed(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    return (
        b"\xfc" + number.to_bytes(2, "little")
        if number < 1 << 16
        else b"\xfd" + number.to_bytes(3, "little")
    )


def text(value: bytes) -> bytes:
    return packed(len(value)) + value


@dataclass(frozen=True)
class Made:
    """A column: its type's number, its metadata, and what is said of it besides."""

    name: str
    type: int
    metadata: bytes = b""
    nullable: bool = False
    unsigned: bool = False
    collation: int = 255
    labels: tuple[bytes, ...] = ()


NUMERIC, CHARACTER = {1, 2, 3, 4, 5, 8, 9, 246}, {15, 140, 141, 252}


def is_string(column: Made) -> bool:
    return column.type in CHARACTER or (
        column.type == 254 and column.metadata[0] not in (247, 248)
    )


def table_map(
    columns: Sequence[Made],
    *,
    number: int = 77,
    db: str = "d",
    table: str = "t",
    key: Sequence[int] = (),
    names: bool = True,
) -> bytes:
    """The body of the event."""
    count = len(columns)
    nullable = sum(1 << place for place, column in enumerate(columns) if column.nullable)
    numeric = [column for column in columns if column.type in NUMERIC]
    signs = sum(
        1 << (-(place + 1) % 8 + place // 8 * 8)
        for place, column in enumerate(numeric)
        if column.unsigned
    )
    enums = [c for c in columns if c.type == 254 and c.metadata[0] == 247]
    sets = [c for c in columns if c.type == 254 and c.metadata[0] == 248]
    fields = {1: signs.to_bytes((len(numeric) + 7) // 8, "little")} if numeric else {}
    fields[3] = b"".join(packed(column.collation) for column in columns if is_string(column))
    if names:
        fields[4] = b"".join(text(column.name.encode()) for column in columns)
    for field, labelled in ((5, sets), (6, enums)):
        fields[field] = b"".join(
            packed(len(c.labels)) + b"".join(map(text, c.labels)) for c in labelled
        )
    fields[8] = b"".join(map(packed, key))
    fields[11] = b"".join(packed(column.collation) for column in columns if column.labels)
    return b"".join([
        number.to_bytes(6, "little"), b"\1\0", text(db.encode()), b"\0", text(table.encode()),
        b"\0", packed(count),
        bytes(column.type for column in columns),
        text(b"".join(column.metadata for column in columns)),
        nullable.to_bytes((count + 7) // 8, "little"),
        *(bytes([kind]) + text(value) for kind, value in fields.items() if value),
    ])  # fmt: skip


def row(*cells: bytes | None) -> bytes:
    """Its bitmap of nulls and its cells."""
    nulls = sum(1 << place for place, cell in enumerate(cells) if cell is None)
    return nulls.to_bytes((len(cells) + 7) // 8, "little") + b"".join(
        cell or b"" for cell in cells
    )


def rows(
    columns: int,
    *data: bytes,
    kind: int = WRITE,
    number: int = 77,
    extra: bytes = b"",
    flags: int = 1,
) -> bytes:
    """The body of the event."""
    all_columns = ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little") * (
        2 if kind in (24, UPDATE) else 1
    )
    head = (len(extra) + 2).to_bytes(2, "little") + extra if kind >= 30 else b""
    return (
        number.to_bytes(6, "little")
        + flags.to_bytes(2, "little")
        + head
        + packed(columns)
        + all_columns
        + b"".join(data)
    )


def event(kind: int, body: bytes, position: int = 4) -> BinlogEvent:
    data = bytes(19) + body
    return BinlogEvent(data, 0, len(data), kind, 0, 1_700_000_000, 1, "binlog.000001", position)


INT, NULL_INT = Made("id", 3), Made("v", 3, nullable=True)
NAME = Made("name", 15, b"\x28\0", nullable=True)


def number(value: int, width: int = 4) -> bytes:
    return value.to_bytes(width, "little", signed=value < 0)
