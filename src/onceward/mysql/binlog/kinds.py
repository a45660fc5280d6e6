"""Which kinds of events there are, by their type codes, and which a reader may pass over. Pure.

A replica obeys one rule, and so does whoever calls :func:`must_not_pass`: an event that it does
not know, and that the server did not mark as ignorable, ends the replication. Skipping it could
lose a change without a word.

Source: MySQL, ``libs/mysql/binlog/event/binlog_event.h`` (``Log_event_type``); MariaDB,
``sql/log_event.h``.
"""

from __future__ import annotations

from typing import Literal

Dialect = Literal["mysql", "mariadb"]

QUERY, STOP, ROTATE, INTVAR, LOAD, CREATE_FILE, APPEND_BLOCK, EXEC_LOAD, DELETE_FILE, NEW_LOAD = (
    2,
    3,
    4,
    5,
    6,
    8,
    9,
    10,
    11,
    12,
)
RAND, USER_VAR, FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY, TABLE_MAP = (
    13,
    14,
    15,
    16,
    17,
    18,
    19,
)
INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = 26, 27, 28, 29
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE = (
    33,
    34,
    35,
    36,
    37,
    38,
)
PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 39, 40, 41, 42
"""MySQL's; MariaDB has most of them, too."""

ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, QUERY_COMPRESSED = (
    range(160, 166)
)
"""MariaDB's own."""

IGNORABLE_FLAG = 0x80
"""In an event's header: who does not know its kind may pass it over
(``LOG_EVENT_IGNORABLE_F``).
"""

ARTIFICIAL_FLAG = 0x20
"""In an event's header: it is in no binlog, the server made it up (``LOG_EVENT_ARTIFICIAL_F``)."""

Change = Literal["insert", "update", "delete"]

ROWS: dict[int, Change] = {
    23: "insert",
    24: "update",
    25: "delete",
    30: "insert",
    31: "update",
    32: "delete",
}
"""Rows events: of version 1, which MariaDB writes, and of version 2."""

COMPRESSED_ROWS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""MariaDB's with ``log_bin_compress``, and what they are unpacked."""

TRANSACTION_STARTS = frozenset({GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID})
"""The first event of every transaction is one of these; nothing but rotations and the like stands
outside of one.
"""

_LOADS = frozenset({LOAD, CREATE_FILE, EXEC_LOAD, NEW_LOAD, EXECUTE_LOAD_QUERY})
"""LOAD DATA as a statement: the rows it wrote are not there."""

_STOPS = {
    **dict.fromkeys(_LOADS, "statement"),
    XA_PREPARE: "xa",
    PARTIAL_UPDATE_ROWS: "partial_json",
    INCIDENT: "incident",
}

_FILES = frozenset({BEGIN_LOAD_QUERY, APPEND_BLOCK, DELETE_FILE})
"""The file of such a statement in pieces. What is done with it is said behind them."""

_BOTH = frozenset(
    {
        QUERY,
        STOP,
        ROTATE,
        INTVAR,
        RAND,
        USER_VAR,
        FORMAT_DESCRIPTION,
        XID,
        TABLE_MAP,
        HEARTBEAT,
        *ROWS,
        *_FILES,
    }
)
"""INTVAR, RAND and USER_VAR say what the QUERY behind them rests on, which is judged by its text;
CREATE EVENT has some as well.
"""

_PASSED: dict[Dialect, frozenset[int]] = {
    "mysql": _BOTH | {
        IGNORABLE, ROWS_QUERY, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT,
        VIEW_CHANGE,
        TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED,
    },
    "mariadb": _BOTH | {
        ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION,
        QUERY_COMPRESSED, *COMPRESSED_ROWS,
    },
}  # fmt: skip

WHY = {
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
"""For each reason that :func:`must_not_pass` gives: what is there, and what the user should do."""


def must_not_pass(
    kind: int, flags: int, dialect: Dialect, body: bytes | memoryview = b""
) -> str | None:
    """Why a reader has to stop at such an event, as ``ChangeUnreadable.details["reason"]``; None
    if it need not.

    A QUERY passes here: what it says is for :mod:`statements`.

    :param body: behind the header. Without it an XA transaction of one phase, which is decided,
        stops as well.
    """
    if kind in _PASSED[dialect]:
        return None
    if (
        kind == XA_PREPARE and len(body) > 0 and body[0]
    ):  # XA COMMIT … ONE PHASE is logged as one, and is a commit
        return None
    found = _STOPS.get(kind)
    return found or (None if flags & IGNORABLE_FLAG else "unknown_event")
