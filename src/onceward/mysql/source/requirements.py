"""What a server must have set, and a login must be granted, so that no change is lost. Driver, and
``onceward doctor``.

:func:`findings` looks at everything and says all at once; :class:`Look` is what a query does
before it reads, and again whenever what it has seen may have changed.

What is not obvious:

* ``binlog_row_metadata`` is MINIMAL by default: then events have no names of columns.
* What a session sets for itself is not seen here. Its events are refused by name when they come.
* Rows that a foreign key changes by itself (ON DELETE CASCADE) are in no binlog: InnoDB does it
  below the part of the server that writes one. MySQL 9.6 and later do it above, unless
  ``innodb_native_foreign_keys`` says otherwise.
* A replica with ``log_replica_updates=OFF`` applies changes that are in no binlog of its own.
* ``binlog_do_db`` and ``binlog_ignore_db`` leave out databases without a word in the binlog.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onceward.errors import AccessDenied, ServerUnfit, ServerUnreachable
from onceward.mysql.snapshot.keys import quoted
from onceward.mysql.snapshot.state import is_missing
from onceward.mysql.source.connection import LOCK_WAIT, Server, reading, said_number
from onceward.mysql.source.position import FIRST_BYTE, Place
from onceward.mysql.source.settings import SYSTEM, Settings

_NEEDED = {
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_row_value_options": "",
}
_WHY = {
    "binlog_format": "without ROW the binlog has statements in the place of rows",
    "binlog_row_image": "without FULL a change has only some of its columns",
    "binlog_row_metadata": "without FULL events have no names of columns",
    "binlog_row_value_options": "with PARTIAL_JSON an update has only what is new in a JSON value",
}
GRANTS = {
    "mysql": "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO",
    "mariadb": "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SLAVE MONITOR ON *.* TO",
}
"""Behind it stands the login. MariaDB's first word for SLAVE MONITOR was REPLICATION CLIENT, too:
until 10.5.
"""
_FOREIGN_KEY = re.compile(
    r"\s+CONSTRAINT `(.+?)` FOREIGN KEY "
)  # a ` in the name is ` on MariaDB, and `` on MySQL
_NAME = re.compile(r"`(?:[^`]|``)*`")
_CHANGES = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")
_UPDATES = "log_replica_updates"
NOT_THERE = "not there"
_EVERY_SECONDS = 60.0
_PAUSES = 100  # times as long as the look took: of thousands of tables it takes seconds


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    """A variable, a grant, a table."""
    said: str
    """What is there."""
    fit: bool
    """May changes be read as it is?"""
    why: str = ""
    fix: str = ""
    """What to do: a statement where one will do."""


class Look:
    """What was seen of a server, for as long as nothing has happened that may have changed it.

    It is looked at again behind each new session (the server may be another one, or has other
    settings since it was started), when a statement of the binlog has defined a wanted table, when
    changes come of a table that was not seen, and every minute: a server becomes a replica, or
    loses a grant, without a word in its binlog.
    """

    def __init__(self) -> None:
        self.tables: frozenset[tuple[str, str]] = frozenset()
        """The wanted ones, as the server compares names."""
        self._due = 0.0

    def again(self) -> None:
        """What was seen is not known any more."""
        self._due = 0.0

    def at(
        self,
        server: Server,
        settings: Settings,
        *,
        begins: bool = False,
        unseen: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Look, unless all is known.

        :param begins: the query has no position yet: then a table that is not there is a wrong
            name, and else one that was dropped.
        :param unseen: tables that the binlog names, and that may not be visible.
        :raises ServerUnfit: changes would be lost, or cannot be read; the error says all that is
            to be done.
        """
        began = time.monotonic()
        if began < self._due:
            return
        tables = {
            *tables_of(server, settings),
            *unseen,
        }  # before the look: who comes later is unseen
        _must_be_fit(server, [*findings(server, settings), *_selectable(server, unseen)], begins)
        self.tables = frozenset(settings.as_compared(*one) for one in tables)
        now = time.monotonic()
        self._due = now + max(_EVERY_SECONDS, (now - began) * _PAUSES)


def _must_be_fit(server: Server, found: Iterable[Finding], begins: bool) -> None:
    unfit = list(
        dict.fromkeys(one for one in found if not one.fit and (begins or one.said != NOT_THERE))
    )
    if not unfit:
        return
    raise ServerUnfit(
        f"{server.where} cannot be read without loss: "
        + "; ".join(f"{one.name} is {one.said}: {one.why}" for one in unfit),
        next_step="; ".join(dict.fromkeys(one.fix for one in unfit)),
        details={"unfit": [one.name for one in unfit]},
    )


def findings(server: Server, settings: Settings, *, whole: bool = True) -> list[Finding]:
    """All that there is to say, fit or not.

    :param whole: must all tables that fit a pattern be visible?
    """
    variables = server.variables(
        *_NEEDED, "log_bin", "server_id", "gtid_mode", "log_replica_updates", "log_slave_updates"
    )
    found = [_binlog(variables)]
    if not found[0].fit:
        return found
    found += _variables(server, variables)
    if variables.get("server_id") == "0":
        fix = _set(server, "server_id", "1")
        return [
            *found,
            Finding(
                "server_id", "0", fit=False, why="the server sends its binlog to nobody", fix=fix
            ),
        ]
    granted = list(_granted(server, settings))
    found += granted
    if all(one.fit for one in granted):
        found += _left_out(server, settings)
        found += _replica(server, variables)
    if whole:
        found += _patterns(server, settings)
    tables = tables_of(server, settings)
    found += _tables(server, settings, tables)
    return found


def tables_of(server: Server, settings: Settings) -> list[tuple[str, str]]:
    """Database and table of each that is wanted and there, in the order of their names."""
    some = ", ".join(["%s"] * len(SYSTEM))
    rows = server.ask(
        "SELECT table_schema, "  # noqa: S608
        "table_name FROM information_schema.tables "
        f"WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND table_schema NOT IN ({some})",
        SYSTEM,
    )
    return sorted(
        (str(database), str(table))
        for database, table in rows
        if settings.wanted(str(database), str(table))
    )


def _binlog(variables: Mapping[str, str]) -> Finding:
    on = variables.get("log_bin") == "ON"
    return Finding(
        "log_bin", variables.get("log_bin", "not known"), on, "it writes no binlog",
        "start the server with --log-bin, and for MariaDB with --binlog-format=ROW",
    )  # fmt: skip


def _variables(server: Server, variables: Mapping[str, str]) -> Iterator[Finding]:
    for name, needed in _NEEDED.items():
        if name not in variables:
            if name != "binlog_row_value_options":  # MariaDB has no such thing
                yield Finding(
                    name,
                    "not known",
                    fit=False,
                    why=_WHY[name],
                    fix="use MySQL 8.0 or MariaDB 10.6, or later",
                )
            continue
        said = variables[name]
        yield Finding(name, said or "''", said == needed, _WHY[name], _set(server, name, needed))
    if server.dialect == "mysql":
        said = variables.get("gtid_mode", "OFF")
        yield Finding(
            "gtid_mode", said, fit=True, why="without ON a query cannot go on by itself after a "
                                             "failover",
            fix="" if said == "ON" else "set gtid_mode=ON and enforce_gtid_consistency=ON",
        )  # fmt: skip


def _set(server: Server, name: str, value: str) -> str:
    said = value if value.isdigit() else f"'{value}'"
    if server.dialect == "mysql":
        return f"SET PERSIST {name} = {said}, and let sessions that are open connect anew"
    return (
        f"SET GLOBAL {name} = {said}, the same in the server's configuration file, and let "
        f"sessions that are open "
        "connect anew"
    )


def _grants(server: Server) -> str:
    return f"{GRANTS[server.dialect]} the login"


def _granted(server: Server, settings: Settings) -> Iterator[Finding]:
    """Tried out: rights come by roles and in other ways that no list of grants tells."""
    try:
        end = server.end()
        server.binlogs()
    except AccessDenied as error:
        yield Finding(
            "REPLICATION CLIENT",
            error.message,
            fit=False,
            why="where the binlog ends is not said",
            fix=_grants(server),
        )
        return
    yield Finding("REPLICATION CLIENT", "granted", fit=True)
    try:
        with reading(settings, server.identity, Place(end.file, FIRST_BYTE)) as dump:
            next(dump.blocks(), None)
    except (ServerUnfit, AccessDenied) as error:
        yield Finding(
            "REPLICATION SLAVE",
            error.message,
            fit=False,
            why="the binlog is not sent",
            fix=_grants(server),
        )
        return
    yield Finding("REPLICATION SLAVE", "granted", fit=True)


def _left_out(server: Server, settings: Settings) -> Iterator[Finding]:
    only, without = (_names(text) for text in server.binlog_status()[2:4])
    for database, table in tables_of(server, settings):
        if (only and database not in only) or database in without:
            yield Finding(
                f"{database}.{table}", "left out of the binlog", fit=False,
                why="binlog_do_db or binlog_ignore_db leaves its database out",
                fix="start the server without binlog_do_db and binlog_ignore_db",
            )  # fmt: skip


def _replica(server: Server, variables: Mapping[str, str]) -> Iterator[Finding]:
    said = variables.get("log_replica_updates", variables.get("log_slave_updates", "ON"))
    if said == "ON":
        return
    fix = (
        "start the server with log_replica_updates=ON (log_slave_updates=ON), or read from the "
        "server it replicates"
    )
    try:
        is_replica = server.is_replica()
    except AccessDenied:  # MariaDB has a right of its own for that
        why = (
            "if it is a replica, what it applies is in no binlog of its own, and whether it is "
            "one may not be asked"
        )
        yield Finding("SLAVE MONITOR", "not granted", fit=False, why=why, fix=_grants(server))
        return
    why = "it is a replica, and what it applies is in no binlog of its own"
    yield Finding(_UPDATES, said, not is_replica, why, fix)


def _tables(
    server: Server, settings: Settings, tables: list[tuple[str, str]]
) -> Iterator[Finding]:
    for pattern in settings.tables:
        there = any(settings.fits(*one, pattern) for one in tables)
        yield Finding(
            ".".join(pattern), "there" if there else NOT_THERE, there, "no such table is seen",
            f"correct the name, make the table first, or GRANT SELECT ON {granted_on(*pattern)} "
            f"TO the login",
        )  # fmt: skip
    yield from _selectable(server, tables)
    yield from _cascades(server, settings, tables)
    yield from _versioned(server, tables)


def _patterns(server: Server, settings: Settings) -> Iterator[Finding]:
    """May all tables be seen that fit? A table on which nothing is granted is in no list, and
    would be in no snapshot.

    Tried out, with a name that no table has: a server says of a right before it says what is
    there.
    """
    for pattern in settings.tables:
        if "*" not in "".join(pattern):
            continue
        database, table = (one.replace("*", f"onceward_{secrets.token_hex(4)}") for one in pattern)
        if _is_denied(server, f"SELECT 1 FROM {quoted(database)}.{quoted(table)} LIMIT 0"):  # noqa: S608 — quoted
            yield Finding(
                f"SELECT on {'.'.join(pattern)}", "not granted on all of it", fit=False,
                why="tables on which nothing is granted are not seen, and their rows would be "
                    "missing",
                fix=f"GRANT SELECT ON {granted_on(*pattern)} TO the login, or name the tables one "
                    f"by one",
            )  # fmt: skip


def granted_on(database: str, table: str) -> str:
    """A table, or all that may fit a pattern, as GRANT has it."""
    if "*" not in database + table:
        return f"{quoted(database)}.{quoted(table)}"
    if database == "*":
        return "*.*"
    if "*" in database:
        database = (
            database.replace("\\", "\\\\")
            .replace("_", "\\_")
            .replace("%", "\\%")
            .replace("*", "%")
        )
    return f"{quoted(database)}.*"


def _is_denied(server: Server, statement: str) -> bool:
    try:
        server.ask(statement)
    except AccessDenied:
        return True
    except ServerUnfit:  # no such table, no such database
        return False
    return False


def _versioned(server: Server, tables: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """MariaDB's tables WITH SYSTEM VERSIONING, whose DELETE is an update of one row, or the
    insertion of another.
    """
    if server.dialect != "mariadb":
        return
    rows = server.ask(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = "
        "'SYSTEM VERSIONED'"
    )
    versioned = {(str(database), str(table)) for database, table in rows}
    for database, table in tables:
        if (database, table) in versioned:
            yield Finding(
                f"{database}.{table}", "WITH SYSTEM VERSIONING", fit=False,
                why="what is deleted stays in it as history, and no change tells it from what is "
                    "there",
                fix=f"ALTER TABLE {quoted(database)}.{quoted(table)} DROP SYSTEM VERSIONING, or "
                    f"leave it out",
            )  # fmt: skip


def _selectable(server: Server, tables: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    for database, table in tables:
        refused = _refused(server, f"SELECT 1 FROM {quoted(database)}.{quoted(table)} LIMIT 0")  # noqa: S608 — quoted
        if refused:
            yield Finding(
                f"SELECT on "
                f"{database}.{table}", refused, fit=False, why="its rows may not be read",
                fix=f"GRANT SELECT ON {granted_on(database, table)} TO the login",
            )  # fmt: skip


def _refused(server: Server, statement: str) -> str | None:
    try:
        server.ask(statement)
    except (AccessDenied, ServerUnfit) as error:
        return None if is_missing(error) else error.message
    except ServerUnreachable as error:
        if said_number(error) != LOCK_WAIT:  # a right is asked for before a lock
            raise
    return None


def _cascades(
    server: Server, settings: Settings, tables: Iterable[tuple[str, str]]
) -> Iterator[Finding]:
    if server.cascades_are_logged:
        return
    rows = server.ask(
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE "
        "WHERE REFERENCED_TABLE_NAME IS NOT NULL"
    )
    with_keys = {(str(schema), str(table)) for schema, table in rows}
    for schema, table in tables:
        if (schema, table) not in with_keys or settings.passes_cascade(schema, table):
            continue
        for name, rules in _keys_that_change_rows(server, schema, table):
            yield Finding(
                f"{schema}.{table}", f"changed by the foreign key {name} ({rules})", fit=False,
                why="what a foreign key changes by itself is in no binlog",
                fix="let the key RESTRICT, and the application change the rows; or, if none of "
                    "them is ever changed "
                f'that way, pass_over=["cascade:{schema}.{table}"]',
            )  # fmt: skip


def _keys_that_change_rows(server: Server, schema: str, table: str) -> Iterator[tuple[str, str]]:
    """Names of foreign keys, and what they do. Read off the statement that makes the table:
    MariaDB shows ``REFERENTIAL_CONSTRAINTS`` to nobody who may only SELECT.
    """
    try:
        ((_, statement),) = server.ask(f"SHOW CREATE TABLE {quoted(schema)}.{quoted(table)}")
    except (AccessDenied, ServerUnfit):
        return  # said already: its rows may not be read either
    for line in str(statement).splitlines():
        key = _FOREIGN_KEY.match(line)
        rules = _CHANGES.findall(_NAME.sub("", line)) if key else []
        if key and rules:
            yield key[1].replace("``", "`"), ", ".join(rules)


def _names(text: object) -> list[str]:
    said = text.decode() if isinstance(text, bytes) else str(text or "")
    return [name for name in said.split(",") if name]
