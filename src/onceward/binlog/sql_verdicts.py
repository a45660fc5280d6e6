"""From a statement's words to what it does to the wanted tables: :class:`Sentence`. Pure; called by :mod:`statements`.

Every form is read to its end, and one that is not wholly understood is a stop.

Source: MySQL 9 and MariaDB 11 manuals, *Data Definition Statements*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onceward.binlog.sql_words import Word


@dataclass(frozen=True)
class Passed:
    """It changes no row of a wanted table."""


@dataclass(frozen=True)
class Truncated:
    """All rows of a wanted table are gone."""

    database: str
    table: str


@dataclass(frozen=True)
class Stop:
    """It may have changed rows without a word of them in the binlog."""

    reason: str
    """For ``ChangeUnreadable.details``: ``statement``, ``unknown_statement``, ``ddl`` or ``xa``."""
    why: str
    """Follows "there is"."""


Verdict = Passed | Truncated | Stop
PASSED = Passed()

_DML = (
    "INSERT",
    "UPDATE",
    "DELETE",
    "REPLACE",
    "LOAD",
    "CALL",
    "DO",
    "SELECT",
    "WITH",
    "VALUES",
    "TABLE",
    "HANDLER",
    "MERGE",
)
_ROWLESS = ("GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "CHECKSUM", "FLUSH", "INSTALL", "UNINSTALL")
_OBJECTS = (
    "VIEW", "INDEX", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER", "TABLESPACE", "LOGFILE",
    "RESOURCE", "SPATIAL", "SEQUENCE", "PACKAGE", "LIBRARY", "INSTANCE", "PREPARE",
)  # fmt: skip
"""What can be made, changed and dropped, and is no table."""
_DATABASE = ("DATABASE", "SCHEMA")
_TABLE = ("TABLE", "TABLES")
_MODIFIERS = 24
"""So many words may stand between CREATE and what is created (``DEFINER = `a`@`b` SQL SECURITY DEFINER …``)."""
_WITHOUT_ROWS = ("TRUNCATE", "DROP", "EXCHANGE", "CONVERT", "DISCARD", "IMPORT")
"""What ALTER TABLE does to a partition that takes rows away, or brings some."""


class _Unknown(Exception):
    """The statement is none of those that are known."""


class Sentence:
    """One statement. Words are read from the front."""

    def __init__(
        self, said: Iterable[Word], database: str, wanted: Callable[[str, str], bool],
        wanted_database: Callable[[str], bool], lower_case_names: bool,
    ) -> None:  # fmt: skip
        self._words = iter(said)
        self._next: Word | None = None
        self._database = database.lower() if lower_case_names else database
        self._wanted = wanted
        self._wanted_database = wanted_database
        self._lower = lower_case_names
        self._advance()

    def verdict(self) -> Verdict:
        try:
            return self._statement()
        except _Unknown:
            return Stop("unknown_statement", "a statement that is not known")

    def _statement(self) -> Verdict:
        word = self._next
        if word is None:
            return PASSED  # nothing but comments: MariaDB's dummy events
        if word.kind != "word":
            raise _Unknown
        self._advance()
        verb = word.text.upper()
        if verb in _DML:
            return Stop("statement", f"a statement ({verb} …) in the place of the rows that it changed")
        if verb in _ROWLESS:
            return PASSED
        rule = getattr(self, f"_{verb.lower()}", None) if verb in _VERBS else None
        if rule is None:
            raise _Unknown
        found: Verdict = rule()
        return found

    # ── transactions ──

    def _begin(self) -> Verdict:
        self._skip("WORK")
        return self._end(PASSED)

    _commit = _begin

    def _start(self) -> Verdict:
        return PASSED if self._skip("TRANSACTION") else self._no()

    def _savepoint(self) -> Verdict:
        return PASSED

    def _release(self) -> Verdict:
        return PASSED if self._skip("SAVEPOINT") else self._no()

    def _rollback(self) -> Verdict:
        return Stop("statement", "a ROLLBACK, by which rows that are written before it never came to be")

    def _xa(self) -> Verdict:
        if self._skip("START", "BEGIN", "END"):
            return PASSED  # what follows, or came before, are its rows; the end is an event of its own
        return Stop("xa", "the decision on an XA transaction whose rows stand where it was prepared")

    # ── accounts and settings ──

    def _set(self) -> Verdict:
        if self._skip("STATEMENT"):  # MariaDB: SET STATEMENT a = b, c = d FOR …
            while self._next is not None and not self._skip("FOR"):
                self._take()
            return self._statement() if self._next is not None else self._no()
        return PASSED if self._skip("PASSWORD", "DEFAULT") else self._no()

    # ── tables ──

    def _truncate(self) -> Verdict:
        self._skip("TABLE")
        database, table = self._name()
        self._skip_wait()
        return self._end(Truncated(database, table) if self._wanted(database, table) else PASSED)

    def _drop(self) -> Verdict:
        temporary = self._skip("TEMPORARY")
        if self._skip(*_TABLE):
            self._skip_if()
            gone = [name for name in self._names() if self._wanted(*name)]
            self._skip("RESTRICT", "CASCADE")
            self._skip_wait()
            return self._end(_ddl("a DROP TABLE", gone[0]) if gone and not temporary else PASSED)
        return self._whole_database("DROP") if self._skip(*_DATABASE) else self._object()

    def _rename(self) -> Verdict:
        if self._skip("USER"):
            return PASSED
        if not self._skip(*_TABLE):
            return self._no()
        self._skip_if()
        touched = []
        while True:
            touched.append(self._name())
            self._skip_wait()
            if not self._skip("TO"):
                return self._no()
            touched.append(self._name())
            if not self._skip_sign(","):
                break
        moved = [name for name in touched if self._wanted(*name)]
        return self._end(_ddl("a RENAME TABLE", moved[0]) if moved else PASSED)

    def _create(self) -> Verdict:
        replaced = False
        for _ in range(_MODIFIERS):
            if self._skip("TABLE"):
                return self._create_table(replaced)
            if self._skip(*_DATABASE):
                return self._whole_database("CREATE OR REPLACE") if replaced else PASSED
            if self._next is not None and self._next.says(*_OBJECTS):
                return PASSED
            if self._skip("TEMPORARY"):
                return PASSED if self._skip("TABLE") else self._no()
            replaced = replaced or self._take().says("REPLACE")
        return self._no()

    def _create_table(self, replaced: bool) -> Verdict:
        self._skip_if()
        name = self._name()
        if not self._wanted(*name):
            return PASSED
        if replaced:
            return _ddl("a CREATE OR REPLACE TABLE", name)
        while self._next is not None:
            word = self._take()
            values = word.says("VALUES") and not (self._next is not None and self._next.says("LESS", "IN"))
            if word.says("SELECT", "TABLE") or values:
                return Stop("statement", f"a CREATE TABLE … SELECT of {'.'.join(name)}, without the rows that it wrote")
        return PASSED

    def _alter(self) -> Verdict:
        ignoring = False
        for _ in range(_MODIFIERS):
            if self._skip("TABLE"):
                return self._alter_table(ignoring)
            if self._next is not None and self._next.says(*_OBJECTS, *_DATABASE):
                return PASSED
            ignoring = ignoring or self._take().says("IGNORE")
        return self._no()

    def _alter_table(self, ignoring: bool) -> Verdict:
        self._skip_if()
        name = self._name()
        found: Verdict = PASSED
        depth = 0
        while self._next is not None:
            word = self._take()
            depth += (word == _OPEN) - (word == _CLOSE)
            if depth == 0 and found == PASSED:
                found = self._clause(word, name)
        if depth:
            return self._no()
        if ignoring and self._wanted(*name):
            return _ddl("an ALTER IGNORE TABLE", name)
        return found

    def _clause(self, word: Word, name: tuple[str, str]) -> Verdict:
        """What begins with that word outside of brackets. In doubt it begins a clause: a column that is called like a
        keyword, without quotes, may cost a stop."""
        if word.says("RENAME") and not (self._next is not None and self._next.says("COLUMN", "INDEX", "KEY")):
            if not self._skip("TO", "AS"):
                self._skip_sign("=")
            other = self._name()
            moved = [one for one in (name, other) if self._wanted(*one)]
            return _ddl("an ALTER TABLE … RENAME", moved[0]) if moved else PASSED
        if word.says("WITH") and self._skip("TABLE"):  # EXCHANGE PARTITION a WITH TABLE b
            other = self._name()
            return _ddl("an EXCHANGE PARTITION", other) if self._wanted(*other) else PASSED
        if not self._wanted(*name) or self._next is None:
            if word.says("CONVERT", "TO") and self._next is not None and self._skip("TABLE"):
                other = self._name()  # CONVERT TABLE b TO PARTITION, CONVERT PARTITION a TO TABLE b
                return _ddl("a CONVERT of a partition", other) if self._wanted(*other) else PASSED
            return PASSED
        if word.says(*_WITHOUT_ROWS) and self._next.says("PARTITION", "TABLESPACE", "TABLE"):
            return _ddl(f"an ALTER TABLE … {word.text.upper()} {self._next.text.upper()}", name)
        if word.says("ENGINE"):
            self._skip_sign("=")
            if self._next is not None and self._next.text.upper() == "BLACKHOLE":
                return _ddl("an ALTER TABLE … ENGINE = BLACKHOLE", name)
        return PASSED

    def _whole_database(self, verb: str) -> Verdict:
        self._skip_if()
        name = self._take_name()
        return Stop("ddl", f"a {verb} DATABASE of {name}") if self._wanted_database(name) else PASSED

    def _object(self) -> Verdict:
        """Something that is no table, behind words that may describe it."""
        for _ in range(_MODIFIERS):
            if self._take().says(*_OBJECTS):
                return PASSED
        return self._no()

    # ── words ──

    def _advance(self) -> None:
        self._next = next(self._words, None)
        if self._next is not None and self._next.kind == "broken":
            raise _Unknown

    def _take(self) -> Word:
        word = self._next
        if word is None:
            raise _Unknown
        self._advance()
        return word

    def _skip(self, *keywords: str) -> bool:
        """Whether the next word is one of these; then it is behind us."""
        if self._next is None or not self._next.says(*keywords):
            return False
        self._advance()
        return True

    def _skip_sign(self, sign: str) -> bool:
        if self._next != Word("sign", sign):
            return False
        self._advance()
        return True

    def _skip_if(self) -> None:
        if self._skip("IF"):
            self._skip("NOT")
            if not self._skip("EXISTS"):
                raise _Unknown

    def _skip_wait(self) -> None:
        if self._skip("WAIT"):
            self._take()
        else:
            self._skip("NOWAIT")

    def _name(self) -> tuple[str, str]:
        """Of a table, with its database."""
        if self._skip_sign("."):  # ODBC's .table
            return self._database, self._take_name()
        first = self._take_name()
        return (first, self._take_name()) if self._skip_sign(".") else (self._database, first)

    def _names(self) -> list[tuple[str, str]]:
        found = [self._name()]
        while self._skip_sign(","):
            found.append(self._name())
        return found

    def _take_name(self) -> str:
        word = self._take()
        if word.kind not in ("word", "name"):
            raise _Unknown
        return word.text.lower() if self._lower else word.text

    def _end(self, verdict: Verdict) -> Verdict:
        """That verdict, if nothing follows."""
        self._skip_sign(";")
        return verdict if self._next is None else self._no()

    def _no(self) -> Verdict:
        raise _Unknown


_VERBS = frozenset({
    "BEGIN", "COMMIT", "START", "SAVEPOINT", "RELEASE", "ROLLBACK", "XA", "SET", "TRUNCATE", "DROP", "RENAME", "CREATE",
    "ALTER",
})  # fmt: skip
"""Each is a method above."""

_OPEN, _CLOSE = Word("sign", "("), Word("sign", ")")


def _ddl(what: str, name: tuple[str, str]) -> Stop:
    return Stop("ddl", f"{what} that takes rows from, or brings some to, {'.'.join(name)} without a word of them")
