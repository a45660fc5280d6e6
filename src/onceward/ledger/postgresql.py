"""A PostgreSQL server, for :mod:`table`. Driver only; executors pin their sessions with :data:`PINNED`, too.

Three things are not obvious:

* a client that is gone without a word (its machine, its network) holds the row's lock for as long as the server takes
  it for alive: ``idle_in_transaction_session_timeout`` ends that.
* ``synchronous_commit`` may be off for a database or a role: whatever changes the row asks for it. A takeover that a
  crash undoes would give the chain back to an older owner.
* sessions ask for their own timeouts and for READ COMMITTED when they begin: a pooler between us and the server has to
  be one for sessions, not for transactions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from onceward.errors import ConfigurationError
from onceward.ledger.database import Database, Session
from onceward.libraries import library

_DEFAULTS = {
    "connect_timeout": "30",
    # A server that is gone without a word is noticed in half a minute, not in the quarter of an hour of TCP.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
}
"""Of the connection, where the URL says nothing else."""

PINNED = (
    "SET client_encoding = 'UTF8'",
    "SET standard_conforming_strings = on",
    "SET array_nulls = on",
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'",  # from version 17 on
)
"""What a session's meaning of values hangs on: a database, a role or the URL may have set it in another way."""


class PostgreSQL(Database):
    """At ``postgresql://…``, as libpq takes it apart. No error repeats the address: it may hold a password.

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
        "INSERT INTO {table} (pipeline, owner, sequence, state, identity) VALUES (%s, 0, -1, '', %s) "
        "ON CONFLICT DO NOTHING"
    )
    # The server notes with every row which transaction wrote it (xmin). So rows and batches are told apart without us.
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
        "INSERT INTO {batches} (pipeline, sequence, state, record) VALUES (%s, %s, %s, %s) ON CONFLICT "
        "(pipeline, sequence, state) DO UPDATE SET record = excluded.record, transaction = excluded.transaction"
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
                next_step="pass postgresql://user@host:port/database; in a password write % as %25, and other special "
                "characters in the same way",
            )
        self._said = {**_DEFAULTS, **found, "client_encoding": "UTF8"}
        self.host = self._said.get("host") or "the database"

    @property
    def where(self) -> Hashable:
        return (self.kind, *(self._said.get(name) for name in ("host", "port", "dbname", "options")))

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (_driver().Error,)

    def connect(self, name: str, idle_ms: int, statement_ms: int) -> Session:
        said = {"application_name": name[:63], **self._said}
        connection = _driver().connect(**said, prepare_threshold=None)
        connection.isolation_level = _driver().IsolationLevel.READ_COMMITTED
        connection.execute(f"SET idle_in_transaction_session_timeout = {idle_ms}")
        connection.execute(f"SET statement_timeout = {statement_ms}")
        for statement in PINNED:
            connection.execute(statement)
        connection.commit()
        made: Session = connection
        return made

    def quoted(self, table: str) -> str:
        return ".".join(f'"{name}"' for name in table.split("."))

    def is_reserved(self, table: str) -> bool:
        return table.startswith("pg_")

    def asked_for(self, table: str) -> tuple[str, tuple[object, ...]]:
        return "SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)", (self.quoted(table),)

    def must_last(self, found: Any, table: str, place: str) -> None:
        if found[0] != "p":
            raise ConfigurationError(
                f"the ledger in {place} is not logged, so that a crash of the server empties it",
                next_step=f"ALTER TABLE {self.quoted(table)} SET LOGGED; or name another table",
            )

    def was_there(self, error: Exception) -> bool:
        there = _driver().errors
        return isinstance(error, there.UniqueViolation | there.DuplicateObject | there.DuplicateTable)

    def ended_before(self, error: Exception) -> bool:
        return isinstance(error, _driver().errors.IdleInTransactionSessionTimeout)


def _driver() -> Any:
    return library("a ledger in PostgreSQL needs psycopg", "postgresql", "psycopg", "conninfo")
