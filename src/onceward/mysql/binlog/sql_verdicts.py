"""From a statement's words to what it does to the wanted tables: :class:`Sentence`. Pure; called
by :mod:`statements`.

Every form is read to its end, and one that is not wholly understood is a stop.

Source: MySQL 9 and MariaDB 11 manuals, *Data Definition Statements*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onceward.mysql.binlog.sql_changes import CHANGES_ROWS, Names, tables_of
from onceward.mysql.binlog.sql_words import Reading, Unknown, Word


@dataclass(frozen=True)
class Passed:
    """It changes no row of a wanted table."""

    defines: tuple[str, str] | None = None
    """The wanted table that it makes, or defines anew."""


@dataclass(frozen=True)
class Truncated:
    """All rows of a wanted table are gone."""

    database: str
    table: str


@dataclass(frozen=True)
class Elsewhere:
    """It stands in the place of rows that it changed, of tables that nobody reads: unless one of
    these is a view, or has a trigger.
    """

    tables: Names


@dataclass(frozen=True)
class Stop:
    """It may have changed rows without a word of them in the binlog."""

    reason: str
    """For ``ChangeUnreadable.details``: ``statement``, ``unknown_statement``, ``ddl``, ``cascade``
    or ``xa``.
    """
    what: str
    """Follows "there is"."""
    next_step: str
    table: tuple[str, str] | None = None
    """Of ``cascade``."""


_COMPARE = (
    "see the statement with mysqlbinlog, and compare the tables that are read with what has come "
    "of them, or start "
    "from a new checkpoint with a snapshot"
)


def unknown(what: str = "a statement that is not known") -> Stop:
    return Stop("unknown_statement", what, _COMPARE)


DECISION = Stop(
    "xa",
    "the decision on an XA transaction that was prepared with rows of tables that are read, or "
    "before the query began",
    _COMPARE,
)
"""Whoever knows that its transaction has no row that is wanted may pass it."""

Verdict = Passed | Truncated | Elsewhere | Stop
PASSED = Passed()

_DML = (*CHANGES_ROWS, "CALL", "DO", "SELECT", "VALUES", "TABLE", "HANDLER", "MERGE")
_ROWLESS = ("GRANT", "REVOKE", "FLUSH", "INSTALL", "UNINSTALL")
_OBJECTS = (
    "VIEW", "INDEX", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER",
    "TABLESPACE", "LOGFILE",
    "RESOURCE", "SPATIAL", "SEQUENCE", "PACKAGE", "LIBRARY", "INSTANCE", "PREPARE",
)  # fmt: skip
"""What can be made, changed and dropped, and is no table."""
_DATABASE = ("DATABASE", "SCHEMA")
_TABLE = ("TABLE", "TABLES")
_MODIFIERS = 24
"""So many words may stand between CREATE and what is created (``DEFINER = `a`@`b` SQL SECURITY
DEFINER …``).
"""
_WITHOUT_ROWS = ("TRUNCATE", "DROP", "EXCHANGE", "CONVERT", "DISCARD", "IMPORT")
"""What ALTER TABLE does to a partition that takes rows away, or brings some."""


def verdict_of(
    said: Iterable[Word], database: str, wanted: Callable[[str, str], bool],
    wanted_database: Callable[[str], bool], lower_case_names: bool,
) -> Verdict:  # fmt: skip
    """
    :param said: the words of one statement. :param database: of names without one.
    """
    try:
        return Sentence(
            Reading(said, database, lower_case_names), wanted, wanted_database
        ).verdict()
    except Unknown:
        return unknown()


class Sentence:
    """One statement. Words are read from the front."""

    def __init__(
        self,
        said: Reading,
        wanted: Callable[[str, str], bool],
        wanted_database: Callable[[str], bool],
    ) -> None:
        self._said = said
        self._wanted = wanted
        self._wanted_database = wanted_database

    def verdict(self) -> Verdict:
        """
        :raises Unknown: it is not wholly understood.
        """
        word = self._said.next
        if word is None:
            return PASSED  # nothing but comments: MariaDB's dummy events
        if word.kind != "word":
            raise Unknown
        self._said.take()
        verb = word.text.upper()
        if verb in _DML:
            return self._dml(verb)
        if verb in _ROWLESS:
            return PASSED
        rule = getattr(self, f"_{verb.lower()}", None) if verb in _VERBS else None
        if rule is None:
            raise Unknown
        found: Verdict = rule()
        return found

    def _dml(self, verb: str) -> Verdict:
        what = f"a statement ({verb} …) in the place of the rows that it changed"
        try:
            names = tables_of(verb, self._said) if verb in CHANGES_ROWS else ()
        except Unknown:
            names = ()
        touched = [name for name in names if self._wanted(*name)]
        if names and not touched:
            return Elsewhere(names)
        return _as_statement(
            what if not touched else f"{what}, which may be those of {'.'.join(touched[0])}"
        )

    # ── transactions ──

    def _begin(self) -> Verdict:
        self._said.skip("WORK")
        return self._end(PASSED)

    _commit = _begin

    def _start(self) -> Verdict:
        return PASSED if self._said.skip("TRANSACTION") else self._no()

    def _savepoint(self) -> Verdict:
        return PASSED

    def _release(self) -> Verdict:
        return PASSED if self._said.skip("SAVEPOINT") else self._no()

    def _rollback(self) -> Verdict:
        return Stop(
            "statement",
            "a ROLLBACK, by which rows that are written before it never came to be",
            _COMPARE,
        )

    def _xa(self) -> Verdict:
        if self._said.skip("START", "BEGIN", "END"):
            # what follows, or came before, are its rows; the end is an event of its own
            return PASSED
        return DECISION

    # ── accounts and settings ──

    def _set(self) -> Verdict:
        if self._said.skip("STATEMENT"):  # MariaDB: SET STATEMENT a = b, c = d FOR …
            while self._said.next is not None and not self._said.skip("FOR"):
                self._said.take()
            return self.verdict() if self._said.next is not None else self._no()
        return PASSED if self._said.skip("PASSWORD", "DEFAULT") else self._no()

    # ── tables ──

    def _analyze(self) -> Verdict:
        self._said.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        if self._said.skip(*_TABLE):
            return PASSED
        return _as_statement("an ANALYZE of a statement, which is carried out")  # MariaDB's

    def _optimize(self) -> Verdict:
        self._said.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        return PASSED if self._said.skip(*_TABLE, "VIEW") else self._no()  # MariaDB's REPAIR VIEW

    _repair = _optimize

    def _truncate(self) -> Verdict:
        self._said.skip("TABLE")
        database, table = self._said.name()
        self._said.skip_wait()
        return self._end(Truncated(database, table) if self._wanted(database, table) else PASSED)

    def _drop(self) -> Verdict:
        temporary = self._said.skip("TEMPORARY")
        if self._said.skip(*_TABLE):
            self._said.skip_if()
            gone = [name for name in self._said.names() if self._wanted(*name)]
            self._said.skip("RESTRICT", "CASCADE")
            self._said.skip_wait()
            return self._end(_ddl("a DROP TABLE", gone[0]) if gone and not temporary else PASSED)
        return self._whole_database("DROP") if self._said.skip(*_DATABASE) else self._object()

    def _rename(self) -> Verdict:
        if self._said.skip("USER"):
            return PASSED
        if not self._said.skip(*_TABLE):
            return self._no()
        self._said.skip_if()
        touched = []
        while True:
            touched.append(self._said.name())
            self._said.skip_wait()
            if not self._said.skip("TO"):
                return self._no()
            touched.append(self._said.name())
            if not self._said.skip_sign(","):
                break
        moved = [name for name in touched if self._wanted(*name)]
        return self._end(_ddl("a RENAME TABLE", moved[0]) if moved else PASSED)

    def _create(self) -> Verdict:
        replaced = False
        for _ in range(_MODIFIERS):
            if self._said.skip("TABLE"):
                return self._create_table(replaced)
            if self._said.skip(*_DATABASE):
                return self._whole_database("CREATE OR REPLACE") if replaced else PASSED
            if self._said.next is not None and self._said.next.says(*_OBJECTS):
                return PASSED
            if self._said.skip("TEMPORARY"):
                return self._create_temporary()
            replaced |= self._said.take().says("REPLACE")
        return self._no()

    def _create_table(self, replaced: bool) -> Verdict:
        self._said.skip_if()
        name = self._said.name()
        if not self._wanted(*name):
            return PASSED
        if replaced:
            return _ddl("a CREATE OR REPLACE TABLE", name)
        cascades = False
        while self._said.next is not None:
            word = self._said.take()
            cascades |= self._cascades(word)
            if self._versions(word):
                return _versioned(name)
            values = word.says("VALUES") and not (
                self._said.next is not None and self._said.next.says("LESS", "IN")
            )
            if word.says("SELECT", "TABLE") or values:
                return _as_statement(
                    f"a CREATE TABLE … SELECT of {'.'.join(name)}, without the rows that it wrote"
                )
        return _cascade(name) if cascades else Passed(name)

    def _cascades(self, word: Word) -> bool:
        """Does a foreign key's rule begin with it that changes rows by itself?"""
        if not word.says("ON") or not self._said.skip("DELETE", "UPDATE"):
            return False
        if self._said.skip("CASCADE"):
            return True
        return (
            self._said.skip("SET")
            and self._said.next is not None
            and self._said.next.says("NULL", "DEFAULT")
        )

    def _create_temporary(self) -> Verdict:
        if not self._said.skip("TABLE"):
            return PASSED if self._said.skip("SEQUENCE") else self._no()
        self._said.skip_if()
        name = self._said.name()
        if not self._wanted(*name):
            return PASSED
        # Only statements use it in the binlog, and nothing in those on that name says which of the
        # two it means.
        return _as_statement(f"a temporary table called {'.'.join(name)}, as one that is read is")

    def _alter(self) -> Verdict:
        ignoring = False
        for _ in range(_MODIFIERS):
            if self._said.skip("TABLE"):
                return self._alter_table(ignoring)
            if self._said.next is not None and self._said.next.says(*_OBJECTS, *_DATABASE):
                return PASSED
            ignoring |= self._said.take().says("IGNORE")
        return self._no()

    def _alter_table(self, ignoring: bool) -> Verdict:
        self._said.skip_if()
        name = self._said.name()
        found: Verdict = PASSED
        depth, cascades = 0, False
        while self._said.next is not None:
            word = self._said.take()
            cascades |= self._cascades(word)
            depth += (word == _OPEN) - (word == _CLOSE)
            if self._versions(word) and self._wanted(*name):
                found = _versioned(name)
            elif depth == 0 and found == PASSED:
                found = self._clause(word, name)
        if depth:
            return self._no()
        if ignoring and self._wanted(*name):
            return _ddl("an ALTER IGNORE TABLE", name)
        if found != PASSED or not self._wanted(*name):
            return found
        return _cascade(name) if cascades else Passed(name)

    def _clause(self, word: Word, name: tuple[str, str]) -> Verdict:
        """What begins with that word outside of brackets. In doubt it begins a clause: a column
        that is called like a keyword, without quotes, may cost a stop.
        """
        if word.says("RENAME") and not (
            self._said.next is not None and self._said.next.says("COLUMN", "INDEX", "KEY")
        ):
            if not self._said.skip("TO", "AS"):
                self._said.skip_sign("=")
            other = self._said.name()
            moved = [one for one in (name, other) if self._wanted(*one)]
            return _ddl("an ALTER TABLE … RENAME", moved[0]) if moved else PASSED
        if word.says("WITH") and self._said.skip("TABLE"):  # EXCHANGE PARTITION a WITH TABLE b
            other = self._said.name()
            return _ddl("an EXCHANGE PARTITION", other) if self._wanted(*other) else PASSED
        if not self._wanted(*name) or self._said.next is None:
            if (
                word.says("CONVERT", "TO")
                and self._said.next is not None
                and self._said.skip("TABLE")
            ):
                other = (
                    self._said.name()
                )  # CONVERT TABLE b TO PARTITION, CONVERT PARTITION a TO TABLE b
                return _ddl("a CONVERT of a partition", other) if self._wanted(*other) else PASSED
            return PASSED
        if word.says(*_WITHOUT_ROWS) and self._said.next.says("PARTITION", "TABLESPACE", "TABLE"):
            return _ddl(
                f"an ALTER TABLE … {word.text.upper()} {self._said.next.text.upper()}", name
            )
        if word.says("DROP") and self._said.skip("SYSTEM"):
            versions = self._said.next is not None and self._said.next.says("VERSIONING")
            return _ddl("an ALTER TABLE … DROP SYSTEM VERSIONING", name) if versions else PASSED
        if word.says("ENGINE"):
            self._said.skip_sign("=")
            if (
                self._said.next is not None
                and self._said.next.text.strip("'\"").upper() == "BLACKHOLE"
            ):
                return _ddl("an ALTER TABLE … ENGINE = BLACKHOLE", name)
        return PASSED

    def _versions(self, word: Word) -> bool:
        """MariaDB's WITH SYSTEM VERSIONING and ADD SYSTEM VERSIONING: from there on rows that are
        gone stay.
        """
        if not (word.says("WITH", "ADD") and self._said.skip("SYSTEM")):
            return False
        return self._said.next is not None and self._said.next.says("VERSIONING")

    def _whole_database(self, verb: str) -> Verdict:
        self._said.skip_if()
        name = self._said.take_name()
        return (
            Stop("ddl", f"a {verb} DATABASE of {name}", _COMPARE)
            if self._wanted_database(name)
            else PASSED
        )

    def _object(self) -> Verdict:
        """Something that is no table, behind words that may describe it."""
        for _ in range(_MODIFIERS):
            if self._said.take().says(*_OBJECTS):
                return PASSED
        return self._no()

    def _end(self, verdict: Verdict) -> Verdict:
        """That verdict, if nothing follows."""
        self._said.skip_sign(";")
        return verdict if self._said.next is None else self._no()

    def _no(self) -> Verdict:
        raise Unknown


_VERBS = frozenset({
    "BEGIN", "COMMIT", "START", "SAVEPOINT", "RELEASE", "ROLLBACK", "XA", "SET", "TRUNCATE",
    "DROP", "RENAME", "CREATE",
    "ALTER", "ANALYZE", "OPTIMIZE", "REPAIR",
})  # fmt: skip
"""Each is a method above."""

_OPEN, _CLOSE = Word("sign", "("), Word("sign", ")")


def _ddl(what: str, name: tuple[str, str]) -> Stop:
    return Stop(
        "ddl",
        f"{what} that takes rows from {'.'.join(name)}, or brings some to it, without a word of "
        f"them",
        _COMPARE,
    )


def _cascade(name: tuple[str, str]) -> Stop:
    table = ".".join(name)
    return Stop(
        "cascade",
        f"a foreign key of {table} (CASCADE, SET NULL) by which the server changes rows, and "
        f"writes no binlog of it",
        "let the key RESTRICT, and the application change the rows; then compare the table with "
        "what came of it. Or, "
        f'if none of its rows is ever changed that way, pass_over=["cascade:{table}"]',
        name,
    )


def _versioned(name: tuple[str, str]) -> Stop:
    return Stop(
        "system_versioned",
        f"a statement by which {'.'.join(name)} has system versions: what is deleted stays in the "
        f"table as history, "
        "and no change tells it from what is there",
        f"ALTER TABLE {'.'.join(name)} DROP SYSTEM VERSIONING, or leave it out of the wanted "
        f"tables",
    )


def _as_statement(what: str) -> Stop:
    return Stop(
        "statement",
        what,
        f"set binlog_format=ROW for every session on the server, then {_COMPARE}",
    )
