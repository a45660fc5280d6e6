"""The effect of a statement on the selected tables, from its tokens: :class:`StatementClassifier`.
Pure; called by :mod:`statements`.

Every form is read to its end, and a statement that is not wholly understood is unsupported.

Source: MySQL 9 and MariaDB 11 manuals, *Data Definition Statements*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from onceward.mysql.binlog.event import START_ANEW
from onceward.mysql.binlog.sql_tables import (
    ROW_CHANGES,
    OtherTables,
    TableNames,
    Token,
    TokenReader,
    UnknownStatement,
    dml_tables,
    quote_table,
)


@dataclass(frozen=True)
class NoEffect:
    """It changes no row of a selected table."""

    defines: tuple[str, str] | None = None
    """The selected table that it creates or alters."""


@dataclass(frozen=True)
class Truncation:
    """It removes all rows of a selected table."""

    database: str
    table: str


@dataclass(frozen=True)
class SavepointSet:
    """It marks a place in its transaction."""

    name: str


@dataclass(frozen=True)
class Rollback:
    """It undoes what its transaction has done."""

    to: str | None = None
    """Since this savepoint; None: all of it."""


@dataclass(frozen=True)
class Unsupported:
    """It may have changed rows without rows events."""

    reason: str
    """For ``ChangeUnreadable.details``: ``statement``, ``unknown_statement``, ``ddl``,
    ``cascade``, ``system_versioned`` or ``xa``.
    """
    what: str
    """Follows "there is"."""
    next_step: str
    table: tuple[str, str] | None = None
    """Of ``cascade``."""
    if_there: TableNames = ()
    """It has the effect ``otherwise`` if none of these selected tables was there ("": none of the
    database); without any, it has this one."""
    otherwise: Effect = NoEffect()


_COMPARE = (
    "see the statement with mysqlbinlog, and compare the tables that are read with what has come "
    f"of them, or {START_ANEW}"
)


def unknown_statement(what: str = "a statement that is not known") -> Unsupported:
    """Return the effect of a statement that is not understood."""
    return Unsupported("unknown_statement", what, _COMPARE)


XA_DECISION = Unsupported(
    "xa",
    "the decision on an XA transaction that was prepared with rows of tables that are read, or "
    "before the query began",
    _COMPARE,
)
"""The caller may pass it if it knows that the transaction has no rows of selected tables."""

Effect = NoEffect | Truncation | OtherTables | SavepointSet | Rollback | Unsupported
NO_EFFECT = NoEffect()

_DML = (*ROW_CHANGES, "CALL", "DO", "SELECT", "VALUES", "TABLE", "HANDLER", "MERGE")
_ACCOUNT_VERBS = ("GRANT", "REVOKE", "FLUSH", "INSTALL", "UNINSTALL")
_OBJECTS = (
    "VIEW", "INDEX", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER",
    "TABLESPACE", "LOGFILE", "RESOURCE", "SPATIAL", "SEQUENCE", "PACKAGE", "LIBRARY", "INSTANCE",
    "PREPARE", "COMPRESSION_DICTIONARY",
)  # fmt: skip
"""Objects that can be created, altered and dropped, and are no tables."""
_DATABASE = ("DATABASE", "SCHEMA")
_TABLE = ("TABLE", "TABLES")
_MODIFIERS = 24
"""So many words, such as DEFINER and SQL SECURITY, may stand between CREATE and the object."""
_PARTITION_CHANGES = ("TRUNCATE", "DROP", "EXCHANGE", "CONVERT", "DISCARD", "IMPORT")
"""Clauses of ALTER TABLE that take rows away with a partition, or bring some."""
_BEFORE_OTHER_KEYS = (
    "ADD", "ALTER", "DROP", "RENAME", "UNIQUE", "FOREIGN", "FULLTEXT", "SPATIAL", "VECTOR", "BY",
    "LINEAR", "CLUSTERING", ",", "(",
)  # fmt: skip
"""Before KEY, where it is not that of [PRIMARY] KEY."""


class StatementClassifier:
    """One statement, read from the front. There is a method for each verb of ``_VERBS``."""

    def __init__(
        self,
        tokens: TokenReader,
        selects: Callable[[str, str], bool],
        selects_database: Callable[[str], bool],
    ) -> None:
        self._tokens = tokens
        self._selects = selects
        self._selects_database = selects_database

    def classify(self) -> Effect:
        """Return the effect."""
        word = self._tokens.next
        if word is None:
            # Nothing but comments: MariaDB's dummy events
            return NO_EFFECT
        if word.kind != "word":
            raise UnknownStatement
        self._tokens.take()
        verb = word.text.upper()
        if verb in _DML:
            return self._dml(verb)
        if verb in _ACCOUNT_VERBS:
            return NO_EFFECT
        rule = getattr(self, f"_{verb.lower()}", None) if verb in _VERBS else None
        if rule is None:
            raise UnknownStatement
        found: Effect = rule()
        return found

    def _dml(self, verb: str) -> Effect:
        what = f"a statement ({verb} …) in the place of the rows that it changed"
        with suppress(UnknownStatement):
            if verb in ROW_CHANGES:
                found = dml_tables(verb, self._tokens)
                selected = [name for name in found.tables if self._selects(*name)]
                if not selected:
                    return found
                what = f"{what}, which may be those of {'.'.join(selected[0])}"
        return _unsupported_statement(what)

    # ── transactions ──

    def _begin(self) -> Effect:
        self._tokens.skip("WORK")
        return self._at_end(NO_EFFECT)

    _commit = _begin

    def _start(self) -> Effect:
        return self._no_effect_if("TRANSACTION")

    def _savepoint(self) -> Effect:
        return SavepointSet(self._tokens.take_name().casefold())

    def _release(self) -> Effect:
        return self._no_effect_if("SAVEPOINT")

    def _rollback(self) -> Effect:
        if not self._tokens.skip("TO"):
            return Rollback()
        return self._at_end(Rollback(self._tokens.take_name().casefold()))

    def _xa(self) -> Effect:
        # Its rows follow START, or came before END, and its end is an event of its own.
        return NO_EFFECT if self._tokens.skip("START", "BEGIN", "END") else XA_DECISION

    # ── accounts and settings ──

    def _set(self) -> Effect:
        # MariaDB: SET STATEMENT a = b, c = d FOR …
        if self._tokens.skip("STATEMENT"):
            while self._tokens.next is not None and not self._tokens.skip("FOR"):
                self._tokens.take()
            return self.classify() if self._tokens.next is not None else self._unknown()
        return self._no_effect_if("PASSWORD", "DEFAULT")

    # ── tables ──

    def _analyze(self) -> Effect:
        self._tokens.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        if self._tokens.skip(*_TABLE):
            return NO_EFFECT
        # MariaDB's ANALYZE FORMAT=JSON UPDATE …
        return _unsupported_statement("an ANALYZE of a statement, which is carried out")

    def _optimize(self) -> Effect:
        self._tokens.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        # MariaDB has REPAIR VIEW
        return self._no_effect_if(*_TABLE, "VIEW")

    _repair = _optimize

    def _truncate(self) -> Effect:
        self._tokens.skip("TABLE")
        table = self._tokens.take_table()
        self._tokens.skip_wait_clause()
        return self._at_end(Truncation(*table) if self._selects(*table) else NO_EFFECT)

    def _drop(self) -> Effect:
        temporary = self._tokens.skip("TEMPORARY")
        if self._tokens.skip(*_TABLE):
            self._tokens.skip_if_exists()
            names = self._tokens.take_tables()
            effect = self._ddl("a DROP TABLE", *names, if_there=names)
            self._tokens.skip("RESTRICT", "CASCADE")
            self._tokens.skip_wait_clause()
            return self._at_end(NO_EFFECT if temporary else effect)
        return self._whole_database("DROP") if self._tokens.skip(*_DATABASE) else self._object()

    def _rename(self) -> Effect:
        if self._tokens.skip("USER"):
            return NO_EFFECT
        if not self._tokens.skip(*_TABLE):
            return self._unknown()
        self._tokens.skip_if_exists()
        names = []
        while True:
            names.append(self._tokens.take_table())
            self._tokens.skip_wait_clause()
            if not self._tokens.skip("TO"):
                return self._unknown()
            names.append(self._tokens.take_table())
            if not self._tokens.skip_sign(","):
                break
        return self._at_end(self._ddl("a RENAME TABLE", *names))

    def _create(self) -> Effect:
        replaces = False
        for _ in range(_MODIFIERS):
            if self._tokens.skip("TABLE"):
                return self._create_table(replaces)
            if self._tokens.skip(*_DATABASE):
                return self._whole_database("CREATE OR REPLACE") if replaces else NO_EFFECT
            if self._tokens.next_is(*_OBJECTS):
                return NO_EFFECT
            if self._tokens.skip("TEMPORARY"):
                return self._create_temporary()
            replaces |= self._tokens.take().is_keyword("REPLACE")
        return self._unknown()

    def _create_table(self, replaces: bool) -> Effect:
        self._tokens.skip_if_exists()
        name = self._tokens.take_table()
        if not self._selects(*name):
            return NO_EFFECT
        effect = self._definition(name)
        if not replaces:
            return effect
        replaced = _unsupported_ddl("a CREATE OR REPLACE TABLE", name)
        return replace(replaced, if_there=(name,), otherwise=effect)

    def _definition(self, name: tuple[str, str]) -> Effect:
        """Return the effect of the rest of a CREATE TABLE of a selected table."""
        cascades = False
        while self._tokens.next is not None:
            word = self._tokens.take()
            cascades |= self._is_cascade(word)
            if self._is_versioning(word):
                return _unsupported_versioning(name)
            values = word.is_keyword("VALUES") and not self._tokens.next_is("LESS", "IN")
            if word.is_keyword("SELECT", "TABLE") or values:
                return _unsupported_statement(
                    f"a CREATE TABLE … SELECT of {'.'.join(name)}, without the rows that it wrote"
                )
        return _unsupported_cascade(name) if cascades else NoEffect(name)

    def _is_cascade(self, word: Token) -> bool:
        """Check whether ``word`` begins a foreign key's rule that changes rows by itself."""
        if not word.is_keyword("ON") or not self._tokens.skip("DELETE", "UPDATE"):
            return False
        if self._tokens.skip("CASCADE"):
            return True
        return self._tokens.skip("SET") and self._tokens.next_is("NULL", "DEFAULT")

    def _create_temporary(self) -> Effect:
        if not self._tokens.skip("TABLE"):
            return self._no_effect_if("SEQUENCE")
        self._tokens.skip_if_exists()
        name = self._tokens.take_table()
        if not self._selects(*name):
            return NO_EFFECT
        # Only statements use it in a binlog, and they do not say which of the two they mean.
        table = ".".join(name)
        return _unsupported_statement(f"a temporary table called {table}, as one that is read is")

    def _alter(self) -> Effect:
        ignoring = False
        for _ in range(_MODIFIERS):
            if self._tokens.skip("TABLE"):
                return self._alter_table(ignoring)
            if self._tokens.next_is(*_OBJECTS, *_DATABASE):
                return NO_EFFECT
            ignoring |= self._tokens.take().is_keyword("IGNORE")
        return self._unknown()

    def _alter_table(self, ignoring: bool) -> Effect:
        self._tokens.skip_if_exists()
        name = self._tokens.take_table()
        found: Effect = NO_EFFECT
        depth, cascades, before = 0, False, _OPEN
        while self._tokens.next is not None:
            word = self._tokens.take()
            cascades |= self._is_cascade(word)
            depth += (word == _OPEN) - (word == _CLOSE)
            is_key = _is_primary_key(word, before)
            before = word
            if self._is_versioning(word) and self._selects(*name):
                found = _unsupported_versioning(name)
            elif is_key and found == NO_EFFECT and self._selects(*name):
                found = _unsupported_key(name)
            elif depth == 0 and found == NO_EFFECT:
                found = self._clause(word, name)
        if depth:
            return self._unknown()
        if ignoring and self._selects(*name):
            return _unsupported_ddl("an ALTER IGNORE TABLE", name)
        if found != NO_EFFECT or not self._selects(*name):
            return found
        return _unsupported_cascade(name) if cascades else NoEffect(name)

    def _clause(self, word: Token, name: tuple[str, str]) -> Effect:
        """Return the effect of the clause that begins with ``word`` outside of brackets. In doubt
        a word begins one: a column called like a keyword, without quotes, may cost an error.
        """
        tokens = self._tokens
        if word.is_keyword("RENAME") and not tokens.next_is("COLUMN", "INDEX", "KEY"):
            if not tokens.skip("TO", "AS"):
                tokens.skip_sign("=")
            return self._ddl("an ALTER TABLE … RENAME", name, tokens.take_table())
        if word.is_keyword("WITH") and tokens.skip("TABLE"):
            # EXCHANGE PARTITION a WITH TABLE b
            return self._ddl("an EXCHANGE PARTITION", tokens.take_table())
        if self._selects(*name) and tokens.next is not None:
            return self._row_changing_clause(word, tokens.next, name)
        if word.is_keyword("CONVERT", "TO") and tokens.skip("TABLE"):
            # CONVERT TABLE b TO PARTITION, CONVERT PARTITION a TO TABLE b
            return self._ddl("a CONVERT of a partition", tokens.take_table())
        return NO_EFFECT

    def _row_changing_clause(self, word: Token, following: Token, name: tuple[str, str]) -> Effect:
        """Return the effect of a clause that takes rows from a selected table, or brings some."""
        is_partition = following.is_keyword("PARTITION", "TABLESPACE", "TABLE")
        if is_partition and word.is_keyword(*_PARTITION_CHANGES):
            clause = f"{word.text.upper()} {following.text.upper()}"
            return _unsupported_ddl(f"an ALTER TABLE … {clause}", name)
        if word.is_keyword("DROP") and self._tokens.skip("SYSTEM"):
            if not self._tokens.next_is("VERSIONING"):
                return NO_EFFECT
            return _unsupported_ddl("an ALTER TABLE … DROP SYSTEM VERSIONING", name)
        if word.is_keyword("ENGINE"):
            self._tokens.skip_sign("=")
            engine = self._tokens.next
            if engine is not None and engine.text.strip("'\"").upper() == "BLACKHOLE":
                return _unsupported_ddl("an ALTER TABLE … ENGINE = BLACKHOLE", name)
        return NO_EFFECT

    def _is_versioning(self, word: Token) -> bool:
        """Check for MariaDB's WITH or ADD SYSTEM VERSIONING: from there on deleted rows stay."""
        if not (word.is_keyword("WITH", "ADD") and self._tokens.skip("SYSTEM")):
            return False
        return self._tokens.next_is("VERSIONING")

    def _whole_database(self, verb: str) -> Effect:
        self._tokens.skip_if_exists()
        name = self._tokens.take_name()
        if not self._selects_database(name):
            return NO_EFFECT
        what = f"a {verb} DATABASE of {name}"
        return Unsupported("ddl", what, _COMPARE, if_there=((name, ""),))

    def _object(self) -> Effect:
        for _ in range(_MODIFIERS):
            word = self._tokens.take()
            if word.is_keyword("INDEX"):
                return self._drop_index()
            if word.is_keyword(*_OBJECTS):
                return NO_EFFECT
        return self._unknown()

    def _drop_index(self) -> Effect:
        self._tokens.skip_if_exists()
        if self._tokens.take_name().upper() != "PRIMARY":
            return NO_EFFECT
        self._tokens.skip_wait_clause()
        if not self._tokens.skip("ON"):
            return self._unknown()
        name = self._tokens.take_table()
        return _unsupported_key(name) if self._selects(*name) else NO_EFFECT

    def _ddl(
        self, what: str, *tables: tuple[str, str], if_there: Iterable[tuple[str, str]] = ()
    ) -> Effect:
        """Return the effect of DDL that takes rows from these tables, or brings some to them."""
        selected = [name for name in tables if self._selects(*name)]
        if not selected:
            return NO_EFFECT
        there = tuple(name for name in if_there if name in selected)
        return replace(_unsupported_ddl(what, selected[0]), if_there=there)

    def _no_effect_if(self, *keywords: str) -> Effect:
        return NO_EFFECT if self._tokens.skip(*keywords) else self._unknown()

    def _at_end(self, effect: Effect) -> Effect:
        """Return ``effect`` if nothing follows."""
        self._tokens.skip_sign(";")
        return effect if self._tokens.next is None else self._unknown()

    def _unknown(self) -> Effect:
        raise UnknownStatement


_VERBS = frozenset({
    "BEGIN", "COMMIT", "START", "SAVEPOINT", "RELEASE", "ROLLBACK", "XA", "SET", "TRUNCATE",
    "DROP", "RENAME", "CREATE", "ALTER", "ANALYZE", "OPTIMIZE", "REPAIR",
})  # fmt: skip

_OPEN, _CLOSE = Token("sign", "("), Token("sign", ")")


def _unsupported_ddl(what: str, name: tuple[str, str]) -> Unsupported:
    return Unsupported(
        "ddl",
        f"{what} that takes rows from {'.'.join(name)}, or brings some to it, without a word of "
        "them",
        _COMPARE,
    )


def _is_primary_key(word: Token, before: Token) -> bool:
    """Check for ``[PRIMARY] KEY`` in an ALTER TABLE, and for the index with that name."""
    if word.kind == "name":
        is_index = before.is_keyword("INDEX", "KEY", "CONSTRAINT", "EXISTS")
        return is_index and word.text.upper() == "PRIMARY"
    is_other = before.kind != "name" and before.text.upper() in _BEFORE_OTHER_KEYS
    return word.is_keyword("KEY") and not is_other


def _unsupported_key(name: tuple[str, str]) -> Unsupported:
    table = ".".join(name)
    return Unsupported(
        "ddl",
        f"a statement by which {table} has another primary key, or none any more: a change of "
        "a row from there on has another key than the row came with",
        "let what takes the rows by their key go by the new one, and compare the table with what "
        f"has come of it, or {START_ANEW}",
    )


def _unsupported_cascade(name: tuple[str, str]) -> Unsupported:
    table = ".".join(name)
    return Unsupported(
        "cascade",
        f"a foreign key of {table} (CASCADE, SET NULL) by which the server changes rows, and "
        "writes no binlog of it",
        "let the key RESTRICT, and the application change the rows; then compare the table with "
        "what came of it. Or, if none of its rows is ever changed that way, "
        f'pass_over=["cascade:{table}"]',
        name,
    )


def _unsupported_versioning(name: tuple[str, str]) -> Unsupported:
    return Unsupported(
        "system_versioned",
        f"a statement by which {'.'.join(name)} has system versions: what is deleted stays in the "
        "table as history, and no change tells it from what is there",
        f"ALTER TABLE {quote_table(*name)} DROP SYSTEM VERSIONING, or leave it out of tables=",
    )


def _unsupported_statement(what: str) -> Unsupported:
    return Unsupported(
        "statement",
        what,
        f"set binlog_format=ROW for every session on the server, then {_COMPARE}",
    )
