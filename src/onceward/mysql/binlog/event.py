"""Binlog events: the event itself, the type codes, and the types that a reader may skip. Pure.

A replica obeys one rule, and so does :func:`unsupported_reason`: an event of an unknown type that
the server did not mark as ignorable ends the replication. Skipping it could lose a change
silently.

Source: MySQL, ``libs/mysql/binlog/event/binlog_event.h`` (``Log_event_type``,
``Log_event_header``); MariaDB, ``sql/log_event.h`` and *Replication protocol*, "2. Event header".

Errors of everything that reads binlogs: damaged bytes, and changes that cannot be passed on.
Pure.

Code that has an event at hand uses :func:`damaged_event` and :func:`unreadable_event`. Code below
it, which sees a table map or rows, uses :func:`damaged_data` and :func:`unreadable_change`; the
decoder adds the event's place by :func:`add_event`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from onceward.errors import BinlogCorrupted, ChangeUnreadable, OncewardError

HEADER_BYTES = 19

_ANEW = "start from a new checkpoint and with a new pipeline_id"
START_ANEW = (
    f"{_ANEW}, with a snapshot, into an empty target (of rows that were deleted meanwhile nothing "
    "would come)"
)
START_ANEW_WITHOUT_GTIDS = (
    f'{_ANEW}, with starting="latest", and bring the target up to date by hand, for a server '
    "without gtid_mode=ON there is no snapshot; with gtid_mode=ON a query finds its place again "
    "by itself"
)


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
SECOND_VERSION = 30
"""From this type on they have a length and extra bytes in front of their columns."""

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
        "SET PERSIST binlog_row_value_options = '' on the server; sessions that are open keep "
        "theirs",
    ),
    "incident": (
        "the server's own note that events may be missing here",
        f"read the server's error log; then {START_ANEW}",
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


ON_DAMAGE = (
    "the query reads it again by itself; if that fails at the same place, run mysqlbinlog "
    f"--verify-binlog-checksum on the file, and read from another server, or {START_ANEW}"
)


def event_id(event: BinlogEvent) -> str:
    """Return an event's name in errors and ``pass_over``: ``file:position#inner``."""
    return f"{event.file}:{event.position}" + (f"#{event.inner}" if event.inner else "")


def row_id(event: BinlogEvent, row: int) -> str:
    """Return a row's name, by its number in the event, as in the column ``row``."""
    return f"{event_id(event)}/{row}"


@dataclass(frozen=True)
class Skippable:
    """The events and rows of ``pass_over``, by name: the user lets the reader skip them if they
    cannot be read. What can be read is read all the same.
    """

    names: frozenset[str] = frozenset()

    def has_event(self, event: BinlogEvent) -> bool:
        """Check whether the event as a whole may be skipped."""
        return bool(self.names) and event_id(event) in self.names

    def has_row(self, event: BinlogEvent, row: int) -> bool:
        """Check whether one row may be skipped; of an update, the row before or the one after."""
        return bool(self.names) and row_id(event, row) in self.names


NOTHING_SKIPPABLE = Skippable()


def add_skip_hint(next_step: str, names: Sequence[str], loss: str) -> str:
    """Return ``next_step`` and how to go on by ``pass_over``.

    :param loss: what is lost by it.
    """
    text = ", ".join(f'"{name}"' for name in names)
    return (
        f"{next_step}; once the tables are known to agree, go on without {loss} by "
        f"pass_over=[{text}]"
    )


def damaged_event(event: BinlogEvent, what: str) -> BinlogCorrupted:
    """Return the error of an event that no server writes, although its checksum may be right."""
    at = event_id(event)
    return BinlogCorrupted(
        f"at {at} of the binlog there is {what}", next_step=ON_DAMAGE, details={"at": at}
    )


def unreadable_event(
    event: BinlogEvent,
    reason: str,
    what: str,
    next_step: str,
    *,
    gtid: str | None = None,
    loss: str = "this one event",
) -> ChangeUnreadable:
    """Return the error of an event that cannot be passed on.

    :param reason: one word, as listed in the documentation, for ``details``.
    :param what: follows "there is".
    :param next_step: what has to be done first; how to skip the event then is added.
    :param loss: what is lost by that.
    """
    at = event_id(event)
    details: dict[str, Any] = {"reason": reason, "at": at, **({"gtid": gtid} if gtid else {})}
    in_transaction = f" (transaction {gtid})" if gtid else ""
    return ChangeUnreadable(
        f"at {at} of the binlog{in_transaction} there is {what}",
        next_step=add_skip_hint(next_step, [at], loss),
        details=details,
    )


AnyError = TypeVar("AnyError", bound=OncewardError)

SET_GTIDS = (
    "set enforce_gtid_consistency=ON, then gtid_mode=ON, step by step on all servers that "
    "replicate with it (MySQL's manual, Enabling GTID Transactions Online)"
)
SET_FULL_METADATA = (
    "SET PERSIST binlog_row_metadata = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same "
    "line in its configuration), then start from a position after that: what was written before "
    "has no names of columns"
)
SET_FULL_IMAGE = (
    "SET PERSIST binlog_row_image = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same "
    "line in its configuration), take care that no session sets it otherwise, and start from a "
    "position after that"
)


DROP_SYSTEM_VERSIONING = (
    "ALTER TABLE … DROP SYSTEM VERSIONING, or leave the table out of tables=; then start from a "
    "position after that: what is deleted stays in the table as history, and no change tells it "
    "from what is there"
)


class InvalidCell(Exception):
    """A value of a row does not fit its column's type. Never leaves this package: the caller that
    knows the row's event raises ``error`` with its place.
    """

    def __init__(self, row: int, error: OncewardError) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


def damaged_data(what: str) -> BinlogCorrupted:
    """Return the error of bytes that no server writes."""
    return BinlogCorrupted(what, next_step=ON_DAMAGE)


def unreadable_change(reason: str, what: str, next_step: str) -> ChangeUnreadable:
    """Return the error of something that a server may write, and that is no change of a row.

    :param next_step: what has to be done first; how to skip the place then is added with the
        place.
    """
    return ChangeUnreadable(what, next_step=next_step, details={"reason": reason})


def add_event(
    error: AnyError,
    event: BinlogEvent,
    gtid: str | None,
    *,
    rows: Sequence[str] = (),
    loss: str = "this one event",
) -> AnyError:
    """Return ``error`` with the place of ``event`` at the beginning of its message.

    :param rows: the names of all rows that it is true of, where it is of rows.
    :param loss: else, what is lost by going on without the event.
    """
    at = rows[0] if rows else event_id(event)
    transaction = f" (transaction {gtid})" if gtid else ""
    next_step = error.next_step
    if isinstance(error, ChangeUnreadable):
        loss = f"{len(rows)} rows" if len(rows) > 1 else "this one row" if rows else loss
        next_step = add_skip_hint(next_step, rows or [at], loss)
    return type(error)(
        f"at {at} of the binlog{transaction}: {error.message}",
        next_step=next_step,
        details={**error.details, "at": at, **({"gtid": gtid} if gtid else {})},
    )
