"""Names of transactions, made when a change needs one: in a stream of small transactions that is
once a change, and so the two usual kinds have a short way here. Pure; the others, and all else
that such an event says, are in :mod:`gtids`.
"""

from __future__ import annotations

import functools
import uuid

from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.gtids import gtid_of
from onceward.mysql.binlog.kinds import ANONYMOUS_GTID, GTID, MARIADB_GTID

_SOURCE, _NUMBER = HEADER_BYTES + 1, HEADER_BYTES + 17
_SHORTEST = HEADER_BYTES + 25


def gtid_text(named: Event | str | None) -> str | None:
    """:param named: the first event of a transaction, or its name.

    :raises BinlogDamaged: it is no such event. :raises ChangeUnreadable: a newer server wrote it.
    """
    if named is None or isinstance(named, str):
        return named
    if named.kind == ANONYMOUS_GTID:
        return None
    buffer, start = named.buffer, named.start
    if named.kind == GTID and named.stop - start >= _SHORTEST:
        number = int.from_bytes(buffer[start + _NUMBER : start + _NUMBER + 8], "little")
        return f"{_source(bytes(buffer[start + _SOURCE : start + _NUMBER]))}:{number}"
    if named.kind == MARIADB_GTID and named.stop - start >= HEADER_BYTES + 13:
        at = start + HEADER_BYTES
        domain = int.from_bytes(buffer[at + 8 : at + 12], "little")
        return f"{domain}-{named.server_id}-{int.from_bytes(buffer[at : at + 8], 'little')}"
    found = gtid_of(named)
    return found.text if found else None


@functools.lru_cache(256)
def _source(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))
