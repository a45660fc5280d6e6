"""Server settings and privileges without which changes would be lost. Driver, and ``onceward
doctor``.

:func:`check_requirements` checks everything and returns it at once; :class:`ServerCheck` is what a
    query does before it reads, and again whenever the result may have changed. A session's own
    settings are not seen here: its events are refused by name when they come.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from onceward.errors import AccessDenied, ServerMisconfigured, SourceDataLost
from onceward.mysql.binlog.event import SET_GTIDS, START_ANEW
from onceward.mysql.binlog.sql_tables import quote, quote_table
from onceward.mysql.snapshot.catalogue import list_selected_tables
from onceward.mysql.snapshot.state import is_missing
from onceward.mysql.source.connection import Server, open_dump
from onceward.mysql.source.grants import (
    Grants,
    SelectGrant,
    find_unseen,
    grant_target,
    select_error,
)
from onceward.mysql.source.settings import (
    FIRST_BYTE,
    ChangesSettings,
    Coordinates,
    Position,
)

_REQUIRED = {
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_row_value_options": "",
}
# ``binlog_row_metadata`` is MINIMAL by default.
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
"""The login follows. Until 10.5 MariaDB's SLAVE MONITOR was part of REPLICATION CLIENT."""
_LOGIN = "the login"
# A ` in the name is ` on MariaDB, and `` on MySQL.
_FOREIGN_KEY = re.compile(r"\s+CONSTRAINT `(.+?)` FOREIGN KEY ")
_NAME = re.compile(r"`(?:[^`]|``)*`")
_CASCADE_RULES = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")
NOT_THERE = "not there"
_EVERY_SECONDS = 60.0
# Times as long as the look took: of thousands of tables it takes seconds
_PAUSES = 100


@dataclass(frozen=True)
class Requirement:
    """One thing that was checked."""

    name: str
    """A variable, a privilege, a table."""
    actual: str
    is_met: bool
    """Changes can be read with this value."""
    why: str = ""
    fix: str = ""
    """The next step: a statement where one will do."""
    grants: tuple[SelectGrant, ...] = ()
    unlogged: bool = False
    """Whatever is changed with this value is in no binlog, and leaves no trace there."""


def _unmet(name: str, actual: str, why: str, fix: str, *grants: SelectGrant) -> Requirement:
    return Requirement(name, actual, is_met=False, why=why, fix=fix, grants=grants)


class ServerCheck:
    """The result of checking a server, for as long as nothing has happened that may have changed
    it.

    It is checked again behind each new session (the server may be another one, or was restarted
    with other settings), when a statement of the binlog has defined a selected table, when changes
    come of a table that was not seen, and every minute: a server becomes a replica, or loses a
    privilege, without a word in its binlog.
    """

    def __init__(self) -> None:
        self.tables: frozenset[tuple[str, str]] = frozenset()
        """The selected ones, as the server compares names."""
        self._due = 0.0

    def invalidate(self) -> None:
        """Check again next time."""
        self._due = 0.0

    def run(
        self,
        server: Server,
        settings: ChangesSettings,
        *,
        read: Position | None,
        unchecked_tables: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Check the server, unless a result is valid.

        :param read: how far the query has read. None, it begins: then a table that is not there is
            a wrong name, and else one that was dropped.
        :param unchecked_tables: tables that the binlog names, and that may not be visible.
        :raises ServerMisconfigured: changes would be lost, or cannot be read.
        :raises SourceDataLost: changes may be in no binlog.
        """
        began = time.monotonic()
        if began < self._due:
            return
        # Before the look: who comes later is unseen.
        tables = {*list_selected_tables(server, settings), *unchecked_tables}
        _raise_unmet(
            server,
            [*check_requirements(server, settings), *_check_select(server, unchecked_tables)],
            read,
            settings.starting,
        )
        self.tables = frozenset(settings.normalize(*one) for one in tables)
        now = time.monotonic()
        self._due = now + max(_EVERY_SECONDS, (now - began) * _PAUSES)


def check_added(server: Server, settings: ChangesSettings) -> None:
    """Check tables that a running query is told to read, too, as if it began with them.

    :raises ServerMisconfigured: one is not there, or not seen.
    """
    tables = list_selected_tables(server, settings)
    found = [*_check_patterns(server, settings), *_check_tables(server, settings, tables)]
    _raise_unmet(server, found, None, settings.starting)


_ROWS_BEFORE = (
    "a table that had rows when this query began, and could not be seen then, is in no snapshot "
    f"of it: if there may be one, {START_ANEW}, after that"
)


def _raise_unmet(
    server: Server, found: Iterable[Requirement], read: Position | None, starting: object
) -> None:
    unmet = dict.fromkeys(
        one for one in found if not one.is_met and (read is None or one.actual != NOT_THERE)
    )
    if not unmet:
        return
    steps = dict.fromkeys(one.fix for one in unmet)
    if starting == "initial" and read is not None and any(one.grants for one in unmet):
        steps[_ROWS_BEFORE] = None
    message = f"{server.where} cannot be read without loss: " + "; ".join(
        f"{one.name} is {one.actual}: {one.why}" for one in unmet
    )
    details = {"unfit": [one.name for one in unmet]}
    # Once it is put right nobody can tell any more. What another server applies of the one that
    # was read is in that one's binlog.
    if (
        read is not None
        and any(one.unlogged for one in unmet)
        and (read.server == server.identity or _takes_writes(server))
    ):
        raise SourceDataLost(
            f"{message}. What was changed since {read.place} may be in no binlog",
            next_step="; ".join(steps) + f"; then {START_ANEW}; or "
            "start the query again, if nothing was changed meanwhile, or you write it yourself: "
            "it goes on behind what is missing, and does not say so again",
            details=details,
        )
    raise ServerMisconfigured(message, next_step="; ".join(steps), details=details)


def _takes_writes(server: Server) -> bool:
    """Check whether applications may write to a server, which replicates no other one."""
    if server.is_member() or "ON" in server.variables("read_only", "innodb_read_only").values():
        return False
    with suppress(AccessDenied):
        return not server.is_replica()
    return False


def check_requirements(
    server: Server, settings: ChangesSettings, *, whole: bool = True
) -> list[Requirement]:
    """Return all requirements, met or not.

    :param whole: all tables that match a pattern must be visible.
    """
    variables = server.variables(
        *_REQUIRED, "log_bin", "server_id", "gtid_mode", "log_replica_updates", "log_slave_updates"
    )
    found = [_check_log_bin(variables)]
    if not found[0].is_met:
        return found
    found += _check_variables(server, variables)
    if variables.get("server_id") == "0":
        fix = _set_statement(server, "server_id", "1")
        return [*found, _unmet("server_id", "0", "the server sends its binlog to nobody", fix)]
    checks = list(_check_grants(server, settings))
    found += checks
    if all(one.is_met for one in checks):
        found += _filtered_databases(server, settings)
        found += _check_replica(server, variables)
    if whole:
        found += _check_patterns(server, settings)
    return [*found, *_check_tables(server, settings, list_selected_tables(server, settings))]


def _check_log_bin(variables: Mapping[str, str]) -> Requirement:
    on = variables.get("log_bin") == "ON"
    return Requirement(
        "log_bin", variables.get("log_bin", "not known"), on, "it writes no binlog",
        "start the server with --log-bin, and for MariaDB with --binlog-format=ROW",
        unlogged=True,
    )  # fmt: skip


def _check_variables(server: Server, variables: Mapping[str, str]) -> Iterator[Requirement]:
    for name, expected in _REQUIRED.items():
        if name not in variables:
            # MariaDB has no such thing
            if name != "binlog_row_value_options":
                fix = "use MySQL 8.0 or MariaDB 10.6, or later"
                yield _unmet(name, "not known", _WHY[name], fix)
            continue
        actual, fix = variables[name], _set_statement(server, name, expected)
        yield Requirement(name, actual or "''", actual == expected, _WHY[name], fix)
    if server.dialect == "mysql":
        actual = variables.get("gtid_mode", "OFF")
        yield Requirement(
            "gtid_mode", actual, is_met=True, why="without ON a query cannot go on by itself "
                                                  "after a failover",
            fix="" if actual == "ON" else SET_GTIDS,
        )  # fmt: skip


def _set_statement(server: Server, name: str, value: str) -> str:
    actual = value if value.isdigit() else f"'{value}'"
    step = (
        f"SET PERSIST {name} = {actual}, and"
        if server.dialect == "mysql"
        else f"SET GLOBAL {name} = {actual}, the same in the server's configuration file, and"
    )
    return f"{step} let sessions that are open connect anew"


def _grant_statement(server: Server) -> str:
    return f"{GRANTS[server.dialect]} {_LOGIN}"


def _check_grants(server: Server, settings: ChangesSettings) -> Iterator[Requirement]:
    """Check privileges by use: they come by roles and in other ways that no list of grants has."""
    grant = _grant_statement(server)
    try:
        end = server.end()
        server.binlogs()
    except AccessDenied as error:
        why = "where the binlog ends is not said"
        yield _unmet("REPLICATION CLIENT", error.message, why, grant)
        return
    yield Requirement("REPLICATION CLIENT", "granted", is_met=True)
    try:
        with open_dump(settings, server.identity, Coordinates(end.file, FIRST_BYTE)) as dump:
            next(dump.blocks(), None)
    except (ServerMisconfigured, AccessDenied) as error:
        yield _unmet("REPLICATION SLAVE", error.message, "the binlog is not sent", grant)
        return
    yield Requirement("REPLICATION SLAVE", "granted", is_met=True)


def _filtered_databases(server: Server, settings: ChangesSettings) -> Iterator[Requirement]:
    only, without = (_split_names(text) for text in server.binlog_status()[2:4])
    for database, table in list_selected_tables(server, settings):
        if (only and database not in only) or database in without:
            yield Requirement(
                f"{database}.{table}", "left out of the binlog", is_met=False,
                why="binlog_do_db or binlog_ignore_db leaves its database out",
                fix="start the server without binlog_do_db and binlog_ignore_db", unlogged=True,
            )  # fmt: skip


def _check_replica(server: Server, variables: Mapping[str, str]) -> Iterator[Requirement]:
    actual = variables.get("log_replica_updates", variables.get("log_slave_updates", "ON"))
    if actual == "ON":
        return
    fix = (
        "start the server with log_replica_updates=ON (log_slave_updates=ON), or read from the "
        "server it replicates"
    )
    try:
        is_replica = server.is_replica()
    except AccessDenied:
        # MariaDB has a right of its own for that
        why = (
            "if it is a replica, what it applies is in no binlog of its own, and whether it is "
            "one may not be asked"
        )
        yield _unmet("SLAVE MONITOR", "not granted", why, _grant_statement(server))
        return
    why = "it is a replica, and what it applies is in no binlog of its own"
    yield Requirement("log_replica_updates", actual, not is_replica, why, fix)


def _check_tables(
    server: Server, settings: ChangesSettings, tables: list[tuple[str, str]]
) -> Iterator[Requirement]:
    for pattern in settings.tables:
        if any(settings.fits(*one, pattern) for one in tables):
            yield Requirement(".".join(pattern), "there", is_met=True)
            continue
        missing, why = Grants(server).on(*pattern), "no such table is seen"
        fix = f"correct the name, make the table first, or {missing.to(_LOGIN)}"
        yield _unmet(".".join(pattern), NOT_THERE, why, fix, missing)
    yield from _check_select(server, tables)
    yield from _check_cascades(server, settings, tables)
    yield from _check_versioning(server, tables)
    yield from _check_row_hashes(server, tables)


def _check_patterns(server: Server, settings: ChangesSettings) -> Iterator[Requirement]:
    """Check that all matching tables are visible: others would be in no snapshot."""
    why = "tables on which nothing is granted are not seen, and their rows would be missing"
    for unseen in find_unseen(server, settings):
        fix = " and ".join(missing.to(_LOGIN) for missing in unseen.grants)
        yield _unmet(
            f"SELECT on {unseen.name}", "not granted on all of it", why,
            f"{fix}, or name the tables one by one", *unseen.grants,
        )  # fmt: skip


def _check_versioning(server: Server, tables: Iterable[tuple[str, str]]) -> Iterator[Requirement]:
    """Check for MariaDB's WITH SYSTEM VERSIONING, whose DELETE updates or inserts rows."""
    if server.dialect != "mariadb":
        return
    rows = server.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = "
        "'SYSTEM VERSIONED'"
    )
    with_versions = {(str(database), str(table)) for database, table in rows}
    for database, table in tables:
        if (database, table) in with_versions:
            yield _unmet(
                f"{database}.{table}", "WITH SYSTEM VERSIONING",
                "what is deleted stays in it as history, and no change tells it from what is "
                "there",
                f"ALTER TABLE {quote_table(database, table)} DROP SYSTEM VERSIONING, or leave it "
                "out",
            )  # fmt: skip


def _check_row_hashes(
    server: Server, tables: Collection[tuple[str, str]]
) -> Iterator[Requirement]:
    """Check for columns that are called as those that MariaDB hides, and are in no change."""
    if server.dialect != "mariadb":
        return
    rows = server.query(
        "SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE "
        "column_name REGEXP '(?-i)^DB_ROW_HASH_[0-9]+$'"
    )
    for database, table, column in rows:
        if (str(database), str(table)) in tables:
            yield _unmet(
                f"{database}.{table}", f"with a column {column}",
                "MariaDB itself gives this name to hidden columns, and binlogs do not tell them "
                "from yours",
                f"ALTER TABLE {quote_table(str(database), str(table))} RENAME COLUMN "
                f"{quote(str(column))} TO another name, or leave the table out",
            )  # fmt: skip


def _check_select(server: Server, tables: Iterable[tuple[str, str]]) -> Iterator[Requirement]:
    for database, table in tables:
        error = select_error(server, database, table)
        if error is None or is_missing(error):
            continue
        missing = SelectGrant(grant_target(database, table))
        name, why = f"SELECT on {database}.{table}", "its rows may not be read"
        yield _unmet(name, error.message, why, missing.to(_LOGIN), missing)


def _check_cascades(
    server: Server, settings: ChangesSettings, tables: Iterable[tuple[str, str]]
) -> Iterator[Requirement]:
    # InnoDB carries foreign keys out below the part of the server that writes the binlog.
    if server.cascades_are_logged:
        return
    rows = server.query(
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE "
        "REFERENCED_TABLE_NAME IS NOT NULL"
    )
    with_keys = {(str(schema), str(table)) for schema, table in rows}
    for schema, table in tables:
        if (schema, table) not in with_keys or settings.allows_cascade(schema, table):
            continue
        for name, rules in _keys_that_change_rows(server, schema, table):
            yield _unmet(
                f"{schema}.{table}", f"changed by the foreign key {name} ({rules})",
                "what a foreign key changes by itself is in no binlog",
                "let the key RESTRICT, and the application change the rows; or, if none of them "
                f'is ever changed that way, pass_over=["cascade:{schema}.{table}"]',
            )  # fmt: skip


def _keys_that_change_rows(server: Server, schema: str, table: str) -> Iterator[tuple[str, str]]:
    """MariaDB shows ``REFERENTIAL_CONSTRAINTS`` to nobody who may only SELECT."""
    try:
        ((_, statement),) = server.query(f"SHOW CREATE TABLE {quote_table(schema, table)}")
    except (AccessDenied, ServerMisconfigured):
        # Said already: its rows may not be read either
        return
    lines = str(statement).splitlines()
    keys = [(key[1], line) for line in lines if (key := _FOREIGN_KEY.match(line))]
    if not keys:
        yield "of which SHOW CREATE TABLE says nothing", "rules that are not known"
    for name, line in keys:
        rules = _CASCADE_RULES.findall(_NAME.sub("", line))
        if rules:
            yield name.replace("``", "`"), ", ".join(rules)


def _split_names(text: object) -> list[str]:
    actual = text.decode() if isinstance(text, bytes) else str(text or "")
    return [name for name in actual.split(",") if name]
