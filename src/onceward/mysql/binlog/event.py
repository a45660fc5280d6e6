"""Binlog events: the event itself, the type codes, and the types that a reader may skip. Pure.

A replica obeys one rule, and so does :func:`unsupported_reason`: an event of an unknown type that
the server did not mark as ignorable ends the replication. Skipping it could lose a change
silently.

Source: MySQL, ``libs/mysql/binlog/event/binlog_event.h`` (``Log_event_type``,
``Log_event_header``); MariaDB, ``sql/log_event.h`` and *Replication protocol*, "2. Event header".
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

HEADER_BYTES = 19


class BinlogEvent(NamedTuple):
    """An event: ``buffer[start:stop]``, with its header of 19 bytes and without its checksum."""

    buffer: bytes | bytearray
    """Not written to again once an event of it has been returned: slices of it may be kept."""
    start: int
    stop: int
    kind: int
    """The type code."""
    flags: int
    timestamp: int
    """Seconds since 1970, on the server that wrote it first."""
    server_id: int
    file: str
    """The binlog file, on the server that sent it."""
    position: int
    """Offset of its first byte, counted by sizes: the header's own field has 32 bits. An event
    inside a transaction payload has the payload's offset.
    """
    inner: int = 0
    """Number of the event in its transaction payload, from 1; 0 outside of one."""
    artificial: bool = False
    """Not in the binlog: made for this dump (a rotation at its beginning, a heartbeat)."""

    @property
    def body(self) -> memoryview:
        """The bytes behind the header."""
        return memoryview(self.buffer)[self.start + HEADER_BYTES : self.stop]


Dialect = Literal["mysql", "mariadb"]

QUERY, STOP, ROTATE, INTVAR, LOAD = range(2, 7)
CREATE_FILE, APPEND_BLOCK, EXEC_LOAD, DELETE_FILE, NEW_LOAD, RAND = range(8, 14)
USER_VAR, FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY, TABLE_MAP = range(14, 20)
INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = range(26, 30)
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE = range(33, 38)
XA_PREPARE, PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = range(38, 43)
"""MySQL's types, most of which MariaDB has, too."""

ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION = range(160, 165)
QUERY_COMPRESSED = 165
"""MariaDB's own types."""

IGNORABLE_FLAG = 0x80
"""``LOG_EVENT_IGNORABLE_F`` of a header: a reader that does not know the type may skip the event.
"""

ARTIFICIAL_FLAG = 0x20
"""``LOG_EVENT_ARTIFICIAL_F`` of a header: the event is in no binlog file."""

RowChange = Literal["insert", "update", "delete"]

_INSERT, _UPDATE, _DELETE = get_args(RowChange)
ROWS_EVENTS: dict[int, RowChange] = {
    23: _INSERT, 24: _UPDATE, 25: _DELETE, 30: _INSERT, 31: _UPDATE, 32: _DELETE,
}  # fmt: skip
"""Rows events: of version 1, which MariaDB writes, and of version 2."""

COMPRESSED_ROWS_EVENTS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""MariaDB's with ``log_bin_compress``, and the types that they are decompressed to."""

TRANSACTION_STARTS = frozenset({GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID})
"""Types of the first event of a transaction; outside of one there are only rotations and the like.
"""

_LOAD_DATA = frozenset({LOAD, CREATE_FILE, EXEC_LOAD, NEW_LOAD, EXECUTE_LOAD_QUERY})
"""LOAD DATA as a statement: the rows that it wrote are not in the binlog."""

_REASONS = {
    **dict.fromkeys(_LOAD_DATA, "statement"),
    XA_PREPARE: "xa",
    PARTIAL_UPDATE_ROWS: "partial_json",
    INCIDENT: "incident",
}

_LOAD_FILES = frozenset({BEGIN_LOAD_QUERY, APPEND_BLOCK, DELETE_FILE})
"""The file of such a statement in blocks; the event that executes it follows them."""

_COMMON = frozenset({
    QUERY, STOP, ROTATE, INTVAR, RAND, USER_VAR, FORMAT_DESCRIPTION, XID, TABLE_MAP, HEARTBEAT,
    *ROWS_EVENTS, *_LOAD_FILES,
})  # fmt: skip
"""INTVAR, RAND and USER_VAR hold values for the QUERY behind them, which is classified by its
text; CREATE EVENT has some as well.
"""

_SUPPORTED: dict[Dialect, frozenset[int]] = {
    "mysql": _COMMON | {
        IGNORABLE, ROWS_QUERY, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT,
        VIEW_CHANGE, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED,
    },
    "mariadb": _COMMON | {
        ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION,
        QUERY_COMPRESSED, *COMPRESSED_ROWS_EVENTS,
    },
}  # fmt: skip

UNSUPPORTED = {
    "unknown_event": (
        "an event of kind {kind}, which this version does not know, and which the server does not "
        "call ignorable",
        "look for a newer Onceward",
    ),
    "statement": (
        "LOAD DATA as a statement (kind {kind}), without the rows that it wrote",
        "set binlog_format=ROW for every session on the server",
    ),
    "xa": (
        "the rows of an XA transaction that is prepared, and not decided",
        "see to it that nobody writes to the wanted tables in XA transactions of two phases",
    ),
    "partial_json": (
        "updates that say of a JSON value only what is new in it",
        "SET GLOBAL binlog_row_value_options = '' on the server; sessions that are open keep "
        "theirs",
    ),
    "incident": (
        "the server's own note that events may be missing here",
        "read the server's error log; then start from a new checkpoint, with a snapshot",
    ),
}
"""By the reason that :func:`unsupported_reason` gives: what is there, and the next step."""


def unsupported_reason(
    kind: int, flags: int, dialect: Dialect, body: bytes | memoryview = b""
) -> str | None:
    """Return why a reader has to stop at such an event, as ``ChangeUnreadable.details["reason"]``;
    None if it may go on.

    A QUERY is supported here: its statement is classified in :mod:`statements`.

    :param body: behind the header. Without it an XA transaction of one phase, which is committed,
        is unsupported, too.
    """
    if kind in _SUPPORTED[dialect]:
        return None
    # XA COMMIT … ONE PHASE is logged as one, and is a commit.
    if kind == XA_PREPARE and len(body) > 0 and body[0]:
        return None
    found = _REASONS.get(kind)
    return found or (None if flags & IGNORABLE_FLAG else "unknown_event")
