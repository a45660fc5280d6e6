"""A PostgreSQL server, for :mod:`table`. Driver only; executors pin their transactions with
:data:`PINNED`, too.

Three things are not obvious:

* a client that is gone without a word (its machine, its network) holds the row's lock for as long
  as the server takes it for alive: ``idle_in_transaction_session_timeout`` ends that.
* ``synchronous_commit`` may be off for a database or a role: whatever changes the row asks for it.
  A takeover that a crash undoes would give the chain back to an older owner.
* nothing is set for a session, all of it for one transaction (``SET LOCAL``), in the message that
  begins it. A pooler for transactions gives each to another session of the server, which other
  programs get next: what stayed set there would be theirs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

from onceward.errors import ConfigurationError, ServerMisconfigured
from onceward.libraries import library
from onceward.patience import in_time
from onceward.sql.ledger.database import (
    Database,
    Overdue,
    Patience,
    Session,
    has_spoken,
    url_without_password,
)

_SHOWN = frozenset(
    {
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "gssencmode",
        "hostaddr", "krbsrvname", "load_balance_hosts", "options", "passfile", "require_auth",
        "service", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs",
    }
)  # fmt: skip
"""Options of libpq that are no secret. Four others are, and each release may bring more
(PostgreSQL, *Parameter Key Words*).
"""
_DEFAULTS = {
    "connect_timeout": "30",
    # A server that is gone is noticed in half a minute, not in the quarter of an hour of TCP.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
}
"""Of the connection, where the URL says nothing else."""

PINNED = (
    "SET LOCAL standard_conforming_strings = on",
    "SET LOCAL array_nulls = on",
    "SET LOCAL TimeZone = 'UTC'",
    "SET LOCAL DateStyle = 'ISO, YMD'",
    "SET LOCAL IntervalStyle = 'postgres'",
)
"""What the meaning of values hangs on, in a transaction: a database, a role or the URL may have
set it in another way. ``client_encoding`` is said when a session begins.
"""

UNLIMITED = (
    "SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'"
)
"""From version 17 on; a transaction takes as long as it takes."""
_HAS_TRANSACTION_TIMEOUT = 170_000


class PostgreSQL(Database):
    """At ``postgresql://…``, as libpq takes it. No error repeats it: it may hold a password.

    :raises ConfigurationError: no such address, or psycopg is not installed.
    """

    kind = "postgresql"
    create = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline text PRIMARY KEY,
    owner bigint NOT NULL,
    sequence bigint NOT NULL,
    state text NOT NULL,
    record text,
    identity text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
)"""
    be_there = (
        "INSERT INTO {table} (pipeline, owner, sequence, state, identity) VALUES (%s, 0, -1, '', "
        "%s) ON CONFLICT DO NOTHING"
    )
    # The server notes each row's transaction (xmin), which tells rows and batches apart.
    create_batches = """
CREATE TABLE IF NOT EXISTS {batches} (
    pipeline text NOT NULL,
    sequence bigint NOT NULL,
    state text NOT NULL,
    record text NOT NULL,
    transaction bigint NOT NULL DEFAULT txid_current(),
    PRIMARY KEY (pipeline, sequence, state)
)"""
    keep = (
        "INSERT INTO {batches} (pipeline, sequence, state, record) VALUES (%s, %s, %s, %s) ON "
        "CONFLICT (pipeline, sequence, state) DO UPDATE SET record = excluded.record, transaction "
        "= excluded.transaction"
    )
    for_share = " FOR SHARE"
    durably = ("SET LOCAL synchronous_commit = on",)

    def __init__(self, url: str) -> None:
        try:
            found: dict[str, str] = _driver().conninfo.conninfo_to_dict(url)
        except _driver().Error:
            found = {}
        if not found or "@" in found.get("host", "") + found.get("dbname", ""):
            raise ConfigurationError(
                "DatabaseLedger(url=…) is no address of a PostgreSQL database",
                next_step="pass postgresql://user@host:port/database; in a password write % as "
                "%25, and other special characters in the same way",
            )
        # Of what libpq has parsed, and not of the URL: it takes more than other parsers do
        names = {"dbname": "database"}
        parsed = {names.get(name, name): value for name, value in found.items()}
        self.address = url_without_password("postgresql", parsed, _SHOWN)
        self._options = {**_DEFAULTS, **found, "client_encoding": "UTF8"}
        self.host = self._options.get("host") or "the database"

    @property
    def where(self) -> Hashable:
        return (
            self.kind,
            *(self._options.get(name) for name in ("host", "port", "dbname", "options")),
        )

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (_driver().Error, Overdue)

    def connect(self, name: str, idle_ms: int, statement_ms: int) -> Session:
        options = {"application_name": name[:63], **self._options}
        connection = _connected(options)
        begin = [
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SET LOCAL idle_in_transaction_session_timeout = {idle_ms}",
            f"SET LOCAL statement_timeout = {statement_ms}",
            "SET LOCAL lock_timeout = 0",
            *PINNED,
        ]
        # Which table a name is of: the session may be as another program has left it. A pooler
        # that knows search_path puts the one of our own options there.
        if "search_path" not in connection.info.options:
            begin.append("SET LOCAL search_path = DEFAULT")
        if connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
            begin.append("SET LOCAL transaction_timeout = 0")
        return PostgreSQLSession(
            connection, "; ".join(begin), Patience(f"the database at {self.host}")
        )

    def quoted(self, table: str) -> str:
        return ".".join(f'"{name}"' for name in table.split("."))

    def is_reserved(self, table: str) -> bool:
        return table.startswith("pg_")

    def asked_for(self, table: str) -> tuple[str, tuple[object, ...]]:
        return "SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)", (
            self.quoted(table),
        )

    def must_last(self, found: Any, table: str, place: str) -> None:
        if found[0] != "p":
            raise ServerMisconfigured(
                f"the ledger in {place} is not logged, so that a crash of the server empties it",
                next_step=f"ALTER TABLE {self.quoted(table)} SET LOGGED; or name another table",
            )

    def was_there(self, error: Exception) -> bool:
        there = _driver().errors
        return isinstance(
            error, there.UniqueViolation | there.DuplicateObject | there.DuplicateTable
        )

    def ended_before(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", None) in _ENDED_BEFORE


_ENDED_BEFORE = ("25P03", "25P04")
"""idle_in_transaction_session_timeout, transaction_timeout."""


class PostgreSQLSession:
    """psycopg's connection, whose transactions begin with all that is pinned."""

    def __init__(self, connection: Any, begin: str, patience: Patience) -> None:
        self.connection = connection
        self._begin = begin
        self._is_open = False
        self.each_by_itself = False
        """Each statement is a transaction of its own, of which nothing is pinned."""
        self.patience = patience

    @property
    def patience(self) -> Patience:
        found: Patience = self.connection.patience
        return found

    @patience.setter
    def patience(self, patience: Patience) -> None:
        self.connection.patience = patience

    @property
    def is_usable(self) -> bool:
        return not self.connection.closed and not has_spoken(self.connection.fileno())

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        self.patience.begin()
        try:
            if not self._is_open and not self.each_by_itself:
                self._is_open = True
                # SET LOCAL in the message that begins the transaction, never SET: behind a pooler
                # for transactions the session belongs to another program afterwards.
                self.connection.execute(self._begin)
            return self.connection.execute(statement, parameters)
        except _driver().Error:
            raise
        except BaseException:
            # nobody waits any longer
            # Else it would hold its locks to its end, with nobody to hear of it
            with suppress(Exception):
                self.connection.cancel_safe(timeout=_CANCEL_SECONDS)
            self.close()
            raise

    def commit(self) -> None:
        """Commit the transaction. An overdue COMMIT is not cancelled: the server would take that
        for the end of its wait for standbys.
        """
        self._end(self.connection.commit)

    def rollback(self) -> None:
        self._end(self.connection.rollback)

    def _end(self, how: Callable[[], None]) -> None:
        if self._is_open:
            self._is_open = False
            self.patience.begin()
            how()

    def close(self) -> None:
        self.connection.close()


_CANCEL_SECONDS = 1.0


def _connected(options: Mapping[str, Any]) -> Any:
    """Connect, in a thread: libpq's limit is one for each host, and nobody is asked meanwhile."""
    given_up = threading.Event()

    def connect() -> Any:
        connection = _patient(_driver().Connection).connect(
            **options, prepare_threshold=None, autocommit=True
        )
        if given_up.is_set():
            connection.close()
        return connection

    late = Overdue(f"no host has let this client in for {_CONNECT_SECONDS:g} s")
    return in_time(connect, _CONNECT_SECONDS, "onceward-connect", late=late, abandon=given_up.set)


_CONNECT_SECONDS = 600.0


@functools.cache
def _patient(kind: Any) -> Any:
    """Return a subclass of psycopg's ``Connection`` that asks its ``patience`` while it waits."""

    def wait(self: Any, waiting: Any, *limits: Any, **more: Any) -> Any:
        # from when it is connected on
        patience = getattr(self, "patience", None)
        return kind.wait(
            self, waiting if patience is None else _looking(waiting, patience), *limits, **more
        )

    return type("PatientConnection", (kind,), {"wait": wait})


def _looking(waiting: Any, patience: Patience) -> Any:
    """Resume psycopg's wait generator every moment, with what is ready or with nothing."""
    try:
        event = next(waiting)
        while True:
            ready = yield event
            if not ready:
                patience.look()
            event = waiting.send(ready)
    except StopIteration as done:
        return done.value


def _driver() -> Any:
    return library("a ledger in PostgreSQL needs psycopg", "postgresql", "psycopg", "conninfo")
