"""Names of transactions, made when a change needs one: in a stream of small transactions that is once a change. Pure."""

from __future__ import annotations

import functools
import uuid

from onceward.binlog.event import HEADER_BYTES, Event
from onceward.binlog.kinds import ANONYMOUS_GTID, GTID, MARIADB_GTID

_SOURCE_START = HEADER_BYTES + 1
_SOURCE_BYTES = 16


def gtid_text(named: Event | str | None) -> str | None:
    """:param named: the first event of a transaction, or its name."""
    if named is None or type(named) is str:
        return named
    assert isinstance(named, Event)  # noqa: S101  it is no text
    buffer, start = named.buffer, named.start
    if named.kind == GTID:
        number = start + _SOURCE_START + _SOURCE_BYTES
        source = _source(bytes(buffer[start + _SOURCE_START : number]))
        return f"{source}:{int.from_bytes(buffer[number : number + 8], 'little')}"
    if named.kind == MARIADB_GTID:
        at = start + HEADER_BYTES
        domain = int.from_bytes(buffer[at + 8 : at + 12], "little")
        return f"{domain}-{named.server_id}-{int.from_bytes(buffer[at : at + 8], 'little')}"
    if named.kind == ANONYMOUS_GTID:
        return None
    return None


@functools.lru_cache(256)
def _source(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))
