"""What a statement in the binlog does to the wanted tables: :func:`classify` a QUERY event. Pure.

Rows are in rows events, and statements beside them ought to be DDL. Those that change rows without
a rows event must not be passed over: a TRUNCATE is passed on, all else is a named stop. What is
not known is a stop as well: a statement that is passed over by mistake loses rows for good, and a
stop in vain costs a look at it.

What is not obvious:

* ``ROLLBACK``, and ``ROLLBACK TO``, stand in a binlog only behind rows that were written and are
  undone by them (a transaction that had changed a table without transactions, too). Those rows are
  not to be believed.
* Where the server itself writes a statement, names are UTF-8, whatever the client's character set
  is that the event names. So a text that can be read in two ways is judged in both.
* A name without a database is in the session's, which the event carries.

Source: MySQL, ``libs/mysql/binlog/event/statement_events.h`` (layout and status variables of
``Query_event``), ``sql/binlog.cc``; MariaDB, ``sql/log_event.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.kinds import EXECUTE_LOAD_QUERY
from onceward.mysql.binlog.lengths import Fields
from onceward.mysql.binlog.sql_verdicts import (
    DECISION,
    PASSED,
    Elsewhere,
    Passed,
    Stop,
    Truncated,
    Verdict,
    unknown,
    verdict_of,
)
from onceward.mysql.binlog.sql_words import words

__all__ = [
    "DECISION", "PASSED", "Elsewhere", "Passed", "Statement", "Stop", "Truncated", "Verdict",
    "classify", "judged",
    "short_text", "statement_of",
]  # fmt: skip

_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 0x4, 0x100000  # of sql_mode
_SQL_MODE, _CHARSET = 1, 4  # status variables
_WIDTHS = {0: 4, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3}
_TEXTS = {5: 1, 6: 1, 11: 2}  # how many texts, each behind its length
_TEXT_AT = (
    13  # in the body, behind the numbers at its front: variables, database, a zero, then the text
)
_OF_LOADS = 13
"""Bytes more that LOAD DATA has there: its file, where the file's name is in the text, what is
done with duplicates.
"""
_HARMLESS, _SHORT = frozenset({b"BEGIN", b"COMMIT"}), len("ROLLBACK")

_CODECS = {
    "utf-8": (33, 45, 46, 76, 83, *range(192, 216), *range(223, 248), *range(255, 324)),
    "cp1252": (5, 8, 15, 31, 47, 48, 49, 94),
    "ascii": (11, 65),
    "big5": (1, 84), "gb2312": (24, 86), "gbk": (28, 87), "gb18030": (248, 249, 250),
    "shift_jis": (13, 88), "cp932": (95, 96), "euc_jp": (12, 91, 97, 98), "euc_kr": (19, 85),
    "latin2": (2, 9, 21, 27, 77), "cp1250": (26, 34, 44, 66, 99), "cp1251": (14, 23, 50, 51, 52),
    "koi8_r": (7, 74),
    "koi8_u": (22, 75), "iso8859_7": (25, 70), "iso8859_8": (16, 71), "latin5": (30, 78),
    "iso8859_13": (20, 41, 42, 79), "cp1256": (57, 67), "cp1257": (29, 58, 59), "cp850": (4, 80),
    "cp852": (40, 81),
    "cp866": (36, 68), "mac_roman": (39, 53), "tis_620": (18, 89),
}  # fmt: skip
"""By a client's collation, what its statements are written in. Source:
``information_schema.collations``.
"""

_CODEC = {number: codec for codec, numbers in _CODECS.items() for number in numbers}


@dataclass(frozen=True)
class Statement:
    """What a QUERY event carries."""

    database: str
    """The session's, empty if it had none."""
    texts: tuple[str, ...]
    """The statement, in each way that its bytes can be read; none if they cannot be."""
    ansi_quotes: bool = False
    backslashes: bool = True


def classify(
    event: Event,
    wanted: Callable[[str, str], bool],
    wanted_database: Callable[[str], bool] = lambda _: True,
    *,
    lower_case_names: bool = False,
) -> Verdict:
    """What a QUERY event does to the wanted tables. One that is compressed has to be unpacked
    before.

    :param wanted: is that table of that database read?
    :param wanted_database: is any table of it read? Without, every DROP DATABASE is a stop.
    :param lower_case_names: ``lower_case_table_names`` is not 0: names are asked for, and given,
        in lower case.
    :raises BinlogDamaged: it ends inside of a field.
    """
    if short_text(event) in _HARMLESS:
        return PASSED  # most are: without looking closer
    return judged(statement_of(event), wanted, wanted_database, lower_case_names=lower_case_names)


def short_text(event: Event) -> bytes:
    """The statement of a QUERY event, if it is one of the words that begin and end transactions,
    or as short; else nothing. What an event ends with does not tell: a table may be called
    ``xBEGIN``.
    """
    buffer, at = event.buffer, event.start + HEADER_BYTES
    if event.stop - at <= _TEXT_AT:
        return b""
    begins = (
        at + _TEXT_AT + buffer[at + 8] + int.from_bytes(buffer[at + 11 : at + 13], "little") + 1
    )
    return bytes(buffer[begins : event.stop]) if event.stop - begins <= _SHORT else b""


def statement_of(event: Event) -> Statement:
    """
    :raises BinlogDamaged: it ends inside of a field.
    """
    fields = Fields(event)
    fields.take(8)
    length = fields.number(1)
    fields.take(2)
    variables = fields.number(2)
    fields.take(_OF_LOADS if event.kind == EXECUTE_LOAD_QUERY else 0)
    mode, collation = _said(Fields(event, fields.take(variables)))
    database = bytes(fields.take(length)).decode("utf-8", "replace")
    fields.take(1)
    raw = bytes(fields.rest())
    codecs = ["ascii"] if raw.isascii() else dict.fromkeys([_CODEC.get(collation, ""), "utf-8"])
    texts = [text for codec in codecs if codec and (text := _decoded(raw, codec)) is not None]
    return Statement(
        database, tuple(texts), bool(mode & _ANSI_QUOTES), not mode & _NO_BACKSLASH_ESCAPES
    )


def judged(
    statement: Statement,
    wanted: Callable[[str, str], bool],
    wanted_database: Callable[[str], bool] = lambda _: True,
    *,
    lower_case_names: bool = False,
) -> Verdict:
    """The same for what a QUERY event carries."""
    verdicts = [
        verdict_of(
            words(text, ansi_quotes=statement.ansi_quotes, backslashes=statement.backslashes),
            statement.database, wanted, wanted_database, lower_case_names,
        )
        for text in statement.texts
    ]  # fmt: skip
    if not verdicts:
        return unknown("a statement in a character set that is not known")
    passed = [verdict for verdict in verdicts if isinstance(verdict, Passed)]
    if len(passed) == len(verdicts):
        return max(passed, key=lambda verdict: verdict.defines is not None)
    elsewhere = [verdict.tables for verdict in verdicts if isinstance(verdict, Elsewhere)]
    if len(elsewhere) == len(verdicts):
        return Elsewhere(tuple(dict.fromkeys(name for tables in elsewhere for name in tables)))
    if not isinstance(verdicts[0], Stop) and any(verdict != verdicts[0] for verdict in verdicts):
        return unknown(
            "a statement whose character set is not sure, and which may be on a table that is read"
        )
    return verdicts[0]


def _said(variables: Fields) -> tuple[int, int]:
    """``sql_mode`` and the client's collation. What follows an unknown variable is not read: these
    are among the first, and each is as long as its own kind is.
    """
    mode, collation = 0, 0
    while variables.left:
        code = variables.number(1)
        if code == _CHARSET:
            collation = variables.number(2)
            variables.take(4)
        elif code == _SQL_MODE:
            mode = variables.number(8)
        elif code in _WIDTHS:
            variables.take(_WIDTHS[code])
        elif code in _TEXTS:
            for _ in range(_TEXTS[code]):
                variables.take(variables.number(1))
        else:
            break
    return mode, collation


def _decoded(raw: bytes, codec: str) -> str | None:
    try:
        return raw.decode(codec)
    except UnicodeDecodeError:
        return raw.decode("latin-1") if codec == "cp1252" else None  # MySQL's latin1 has all 256
