"""What is lost by going on without a rows event that cannot be read: :func:`rows_of`, for errors.
Pure; called by :mod:`changes` and by who looks at events first.
"""

from __future__ import annotations

from onceward.errors import OncewardError
from onceward.mysql.binlog import kinds
from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.packed_bytes import PackedBytes
from onceward.mysql.binlog.rows import counted
from onceward.mysql.binlog.table_map import ID_BYTES, TableMap

_SECOND_VERSION = 30


def rows_of(event: Event, map: bytes) -> str:
    """How many rows of which table. :param map: the body of its table map."""
    name = ".".join(TableMap.named(map))
    try:
        count = _count(event, map)
    except (OncewardError, IndexError):
        return f"all rows of {name} in this one event"  # of a type whose length nobody knows
    return f"{count} row{'s' * (count != 1)} of {name}, all of this one event"


def _count(event: Event, map: bytes) -> int:
    columns = TableMap.shape(map)
    data = PackedBytes(
        bytes(event.buffer[event.start + HEADER_BYTES : event.stop]), "a rows event", ID_BYTES + 2
    )
    if event.kind >= _SECOND_VERSION:
        data.take(int.from_bytes(data.take(2), "little") - 2)
    many = data.packed()
    partial = event.kind == kinds.PARTIAL_UPDATE_ROWS
    images = []
    for _ in range(2 if partial or kinds.ROWS[event.kind] == "update" else 1):
        bits = int.from_bytes(data.take((many + 7) // 8), "little")
        images.append([column for place, column in enumerate(columns) if bits >> place & 1])
    return counted(images, data.take(data.left), partial_json=partial)
