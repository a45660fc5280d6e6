"""What fits ``tables=`` and the login may not read: :func:`find_unseen`. Driver, and ``onceward
doctor``.

A server lists no table, and no database, on which the login has nothing. Of the entries that fit a
database it takes the most exact one alone: ``EXECUTE`` on ``shop\\_b`` ends ``SELECT`` on
``shop\\_%`` there. So one name that a wildcard covers says nothing of another, and these are asked
for, each by a SELECT, for a privilege is looked at before the name:

* the databases that the server lists: all on which the login has anything;
* those that its grants name, among them MySQL's partial revokes, which no list has;
* two that are invented for a pattern, one of signs that no grant has. What covers both covers all
  that fit: what is not listed has no entry of its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onceward.errors import AccessDenied, ServerMisconfigured, ServerUnreachable
from onceward.mysql.binlog.sql_tables import quote, quote_table
from onceward.mysql.source.connection import LOCK_WAIT, Server, error_number
from onceward.mysql.source.settings import SYSTEM, ChangesSettings

_QUOTED = r"`(?:[^`]|``)*`"
_ENTRY = re.compile(rf"((?:[^`]|{_QUOTED})*?) ON ({_QUOTED})\.\* (?:TO|FROM) ")
_GRANTS_SELECT = re.compile(r"GRANT (?:.*, )?(?:SELECT|ALL PRIVILEGES)(?:,|$)")
_WILDCARDS = re.compile(r"\\([_%])|(%)|(_)|([^_%])", re.DOTALL)
_ODD, _ODD_SIGNS = "◊", 16
_NAME_SIGNS = 64


@dataclass(frozen=True)
class SelectGrant:
    """SELECT that the login lacks."""

    target: str
    """A table, or all that may match a pattern, as GRANT has it."""
    roles: str = ""
    """The login's roles, where one of them may be what it was revoked from."""

    def to(self, login: str) -> str:
        """Return the statement."""
        return f"GRANT SELECT ON {self.target} TO {login}" + (self.roles and f", {self.roles}")


@dataclass(frozen=True)
class Unseen:
    """A table, or all tables of a pattern, that may not be read."""

    name: str
    grants: tuple[SelectGrant, ...]


@dataclass(frozen=True)
class _Entry:
    """A database as a grant names it."""

    text: str
    what: str
    """All before its ON."""
    is_literal: bool

    @property
    def has_select(self) -> bool:
        return _GRANTS_SELECT.match(self.what) is not None

    @property
    def database(self) -> str:
        """A name that it fits."""
        if self.is_literal:
            return self.text
        parts = _WILDCARDS.findall(self.text)
        return "".join(
            plain or (_ODD * _ODD_SIGNS if any_text else one or other)
            for plain, any_text, one, other in parts
        )

    def fits(self, database: str) -> bool:
        if self.is_literal:
            return self.text == database
        rule = "".join(
            ".*" if any_text else "." if one else re.escape(plain or other)
            for plain, any_text, one, other in _WILDCARDS.findall(self.text)
        )
        return re.fullmatch(rule, database, re.DOTALL) is not None


class Grants:
    """The login's privileges on databases, as the server says them."""

    def __init__(self, server: Server) -> None:
        self._is_literal = server.variables("partial_revokes").get("partial_revokes") == "ON"
        found = (_ENTRY.match(str(line)) for (line,) in server.query("SHOW GRANTS"))
        self._entries = [
            _Entry(one[2][1:-1].replace("``", "`"), one[1], self._is_literal)
            for one in found
            if one is not None
        ]
        self._roles = ""
        if self._is_literal:
            ((roles,),) = server.query("SELECT CURRENT_ROLE()")
            self._roles = "" if roles == "NONE" else str(roles)

    @property
    def databases(self) -> set[str]:
        """A name for each entry."""
        return {entry.database for entry in self._entries}

    def on_entries(self, database: str) -> tuple[SelectGrant, ...]:
        """Return SELECT on the entries that may be in the way of it on ``database``: where one
        of them is the most exact, no other entry holds.
        """
        return tuple(
            SelectGrant(
                f"{quote(entry.text)}.*", self._roles if entry.what.startswith("REVOKE ") else ""
            )
            for entry in self._entries
            if not entry.has_select and entry.fits(database)
        )

    def on(self, database: str, table: str) -> SelectGrant:
        """Return SELECT on a table, or on all that may match a pattern, as this server has it."""
        return SelectGrant(grant_target(database, table, is_literal=self._is_literal))


def grant_target(database: str, table: str, *, is_literal: bool = False) -> str:
    """Return a table, or all that may match a pattern, as GRANT has it.

    :param is_literal: with MySQL's ``partial_revokes`` no grant on a database has wildcards.
    """
    if "*" not in database + table:
        return quote_table(database, table)
    if database == "*" or (is_literal and "*" in database):
        return "*.*"
    if is_literal:
        return f"{quote(database)}.*"
    escaped = re.sub(r"([\\_%])", r"\\\1", database).replace("*", "%")
    return f"{quote(escaped)}.*"


def find_unseen(server: Server, settings: ChangesSettings) -> Iterator[Unseen]:
    """Find what fits a pattern and may not be read: its rows would be in no snapshot."""
    patterns = [pattern for pattern in settings.tables if "*" in "".join(pattern)]
    if not patterns:
        return
    grants = Grants(server)
    rows = server.query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    databases = sorted(({str(name) for (name,) in rows} | grants.databases) - {*SYSTEM})
    for pattern in patterns:
        yield from _hidden_tables(server, settings, grants, pattern, databases)


def _hidden_tables(
    server: Server, settings: ChangesSettings, grants: Grants, pattern: tuple[str, str],
    databases: Sequence[str],
) -> Iterator[Unseen]:  # fmt: skip
    # No grant on tables has wildcards
    table = pattern[1].replace("*", f"onceward_{secrets.token_hex(4)}")
    invented = _invented_databases(pattern[0]) if "*" in pattern[0] else []
    is_covered = not any(_is_denied(server, database, table) for database in invented)
    if not is_covered:
        yield Unseen(".".join(pattern), (grants.on(*pattern),))
    for database in databases if invented else [pattern[0]]:
        if not settings.fits(database, table, pattern) or not _is_denied(server, database, table):
            continue
        missing = grants.on_entries(database)
        if missing or is_covered:
            yield Unseen(f"{database}.{pattern[1]}", missing or (grants.on(database, "*"),))


def _invented_databases(pattern: str) -> list[str]:
    count = pattern.count("*")
    room = (_NAME_SIGNS - len(pattern) + count) // count
    names = (pattern.replace("*", _ODD * signs) for signs in (0, max(1, min(_ODD_SIGNS, room))))
    return [name for name in names if name]


def _is_denied(server: Server, database: str, table: str) -> bool:
    return isinstance(select_error(server, database, table), AccessDenied)


def select_error(
    server: Server, database: str, table: str
) -> AccessDenied | ServerMisconfigured | None:
    """Return why a table may not be read, or that there is no such table; else None."""
    try:
        server.query(f"SELECT 1 FROM {quote_table(database, table)} LIMIT 0")  # noqa: S608
    except (AccessDenied, ServerMisconfigured) as error:
        return error
    except ServerUnreachable as error:
        # A right is asked for before a lock
        if error_number(error) != LOCK_WAIT:
            raise
    return None
