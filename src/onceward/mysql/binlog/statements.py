"""QUERY events: :func:`classify` says what a statement does to the selected tables; with the XIDs
of XA transactions. Pure.

Rows are in rows events, and statements beside them ought to be DDL. A statement that changes rows
without a rows event must not be skipped: a TRUNCATE is passed on, anything else is an error with a
reason. So is an unknown statement: skipping one by mistake loses rows for good, and an error in
vain costs a look at it.

Source: MySQL, ``libs/mysql/binlog/event/statement_events.h`` (layout and status variables of
``Query_event``), ``sql/binlog.cc``, ``control_events.h`` (``XA_prepare_event``), ``sql/xa.cc``
(``serialize_xid``); MariaDB, ``sql/log_event.h``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from onceward.mysql.binlog.charsets import UTF8, charset_by_collation, decoder_for
from onceward.mysql.binlog.event import EXECUTE_LOAD_QUERY, HEADER_BYTES, BinlogEvent
from onceward.mysql.binlog.fields import EventFields
from onceward.mysql.binlog.sql_effects import (
    NO_EFFECT,
    Effect,
    NoEffect,
    StatementClassifier,
    Unsupported,
    unknown_statement,
)
from onceward.mysql.binlog.sql_tables import (
    OtherTables,
    TokenReader,
    UnknownStatement,
    tokenize,
)

_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 0x4, 0x100000  # of sql_mode
_SQL_MODE, _CHARSET = 1, 4  # status variables
_WIDTHS = {0: 4, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3}
# How many texts, each behind its length
_TEXTS = {5: 1, 6: 1, 11: 2}
# In the body, behind the numbers at its front: variables, database, a zero, then the text
_TEXT_AT = 13
_OF_LOADS = 13
"""Additional bytes of LOAD DATA: its file, the file's place in the text, duplicates."""
_BYTES_APART = UTF8 | {"binary"}
"""In these no byte of a character is ASCII: none that is no text hides a quote, or the end of a
comment. Names in them are UTF-8."""
_HARMLESS, _SHORT = frozenset({b"BEGIN", b"COMMIT"}), len("ROLLBACK")


@dataclass(frozen=True)
class Statement:
    """The content of a QUERY event."""

    database: str
    """The session's, empty if it had none."""
    texts: tuple[str, ...]
    """The statement, in each way that its bytes can be read; none if they cannot be."""
    ansi_quotes: bool = False
    backslashes: bool = True


def classify(
    event: BinlogEvent,
    selects: Callable[[str, str], bool],
    selects_database: Callable[[str], bool] = lambda _: True,
    *,
    lower_case_names: bool = False,
) -> Effect:
    """Return what a QUERY event does to the selected tables. A compressed one has to be
    decompressed before.

    :param selects: says whether that table of that database is read.
    :param selects_database: says whether any table of it is read. Without it, every DROP DATABASE
        is unsupported.
    :param lower_case_names: ``lower_case_table_names`` is not 0: names are passed and returned in
        lower case.
    :raises BinlogCorrupted: it ends inside of a field.
    """
    if short_statement(event) in _HARMLESS:
        # Most are: without looking closer
        return NO_EFFECT
    statement, effects = parse_statement(event), []
    for text in statement.texts:
        tokens = tokenize(
            text, ansi_quotes=statement.ansi_quotes, backslashes=statement.backslashes
        )
        try:
            reader = TokenReader(tokens, statement.database, lower_case_names)
            effects.append(StatementClassifier(reader, selects, selects_database).classify())
        except UnknownStatement:
            effects.append(unknown_statement())
    if not effects:
        return unknown_statement("a statement in a character set that is not known")
    no_effects = [effect for effect in effects if isinstance(effect, NoEffect)]
    if len(no_effects) == len(effects):
        return max(no_effects, key=lambda effect: effect.defines is not None)
    others = [effect for effect in effects if isinstance(effect, OtherTables)]
    if len(others) == len(effects):
        return OtherTables.of(
            (name for one in others for name in one.tables),
            (name for one in others for name in one.reads),
        )
    first = effects[0]
    if all(effect == first for effect in effects):
        return first
    if isinstance(first, Unsupported):
        # Any of the names may be meant: none of them may have been there
        names: list[tuple[str, str]] = []
        for one in effects:
            if isinstance(one, Unsupported) and one.if_there and one.otherwise == first.otherwise:
                names += one.if_there
            elif not isinstance(one, NoEffect):
                return replace(first, if_there=())
        return replace(first, if_there=tuple(names))
    return unknown_statement(
        "a statement whose character set is not sure, and which may be on a table that is read"
    )


def short_statement(event: BinlogEvent) -> bytes:
    """Return the statement of a QUERY event if it is one of the words that begin and end
    transactions, or as short; else nothing. The end of an event does not tell: a table may be
    called ``xBEGIN``.
    """
    buffer, at = event.buffer, event.start + HEADER_BYTES
    if event.stop - at <= _TEXT_AT:
        return b""
    begins = (
        at + _TEXT_AT + buffer[at + 8] + int.from_bytes(buffer[at + 11 : at + 13], "little") + 1
    )
    return bytes(buffer[begins : event.stop]) if event.stop - begins <= _SHORT else b""


def parse_statement(event: BinlogEvent) -> Statement:
    """Parse a QUERY event.

    :raises BinlogCorrupted: it ends inside of a field.
    """
    fields = EventFields(event)
    fields.take(8)
    length = fields.fixed_int(1)
    fields.take(2)
    variables = fields.fixed_int(2)
    fields.take(_OF_LOADS if event.kind == EXECUTE_LOAD_QUERY else 0)
    mode, collation = _parse_variables(EventFields(event, fields.take(variables)))
    database = bytes(fields.take(length)).decode("utf-8", "replace")
    fields.take(1)
    raw = bytes(fields.take_rest())
    # Statements that the server itself writes have names in UTF-8, whatever the client's character
    # set in the event: a text that can be read in two ways is classified in both.
    charsets = ["ascii"] if raw.isascii() else [charset_by_collation(collation), "utf8mb4"]
    texts = dict.fromkeys(text for one in charsets if (text := _decode(raw, one)) is not None)
    if not texts and charsets[0] in _BYTES_APART:
        # The server takes any bytes in comments and literals, and no other place
        texts = {raw.decode("utf-8", "surrogateescape"): None}
    return Statement(
        database, tuple(texts), bool(mode & _ANSI_QUOTES), not mode & _NO_BACKSLASH_ESCAPES
    )


def _parse_variables(variables: EventFields) -> tuple[int, int]:
    """Return ``sql_mode`` and the client's collation, which are before any unknown variable."""
    mode, collation = 0, 0
    while variables.remaining:
        code = variables.fixed_int(1)
        if code == _CHARSET:
            collation = variables.fixed_int(2)
            variables.take(4)
        elif code == _SQL_MODE:
            mode = variables.fixed_int(8)
        elif code in _WIDTHS:
            variables.take(_WIDTHS[code])
        elif code in _TEXTS:
            for _ in range(_TEXTS[code]):
                variables.take(variables.fixed_int(1))
        else:
            break
    return mode, collation


def _decode(raw: bytes, charset: str) -> str | None:
    # Names in a client's eucjpms are read as ujis, which has most of it
    decode = decoder_for("ujis" if charset == "eucjpms" else charset)
    try:
        return decode and decode(raw)
    except UnicodeDecodeError:
        return None


_XA_DECISION = re.compile(
    r"\s*XA\s+(?:COMMIT|ROLLBACK)\s+X'((?:[0-9A-F]{2})*)'\s*,"
    r"\s*X'((?:[0-9A-F]{2})*)'\s*,\s*(-?\d+)\s*",
    re.ASCII | re.IGNORECASE,
)


def prepared_xid(event: BinlogEvent) -> str:
    """Return the XID of an XA_PREPARE.

    :raises BinlogCorrupted: it ends inside of a field.
    """
    fields = EventFields(event)
    # of one phase or two
    fields.take(1)
    format_id, gtrid, bqual = fields.fixed_int(4), fields.fixed_int(4), fields.fixed_int(4)
    return _xid(format_id, bytes(fields.take(gtrid)).hex(), bytes(fields.take(bqual)).hex())


def decided_xid(statement: BinlogEvent) -> str | None:
    """Return the XID that the statement of a QUERY event commits or rolls back; None for any other
    statement.

    :raises BinlogCorrupted: it ends inside of a field.
    """
    found = next(filter(None, map(_XA_DECISION.fullmatch, parse_statement(statement).texts)), None)
    return found and _xid(int(found[3]) & 0xFFFFFFFF, found[1].lower(), found[2].lower())


def _xid(format_id: int, gtrid: str, bqual: str) -> str:
    return f"{format_id}:{gtrid}:{bqual}"
