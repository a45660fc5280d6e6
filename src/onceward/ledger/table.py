"""Chains in a table of a PostgreSQL database: one row a pipeline, changed by its owner only. Driver only.

``owner`` counts takeovers. Taking the chain is one ``UPDATE`` that raises it; an append is one ``UPDATE`` that asks for
the owner and the sequence that it knows, and changes no row if somebody else has been there. Three things are not
obvious:

* a ``COMMIT`` without an answer may still be carried out *after* somebody has looked. So a doubt is settled by an
  ``UPDATE`` of the same row: it waits for the row's lock, sees what became of the commit, and fences it for good. A
  plain ``SELECT`` does neither.
* a client that is gone without a word (its machine, its network) holds that lock for as long as the server takes it for
  alive: ``idle_in_transaction_session_timeout`` ends that.
* ``synchronous_commit`` may be off for a database or a role: whatever changes the row asks for it. A takeover that a
  crash undoes would give the chain back to an older owner.

What the row says lasts as long as the database's own promise. A standby that is promoted and had not all of it has lost
decisions and takeovers. A query that is running then finds out (``LedgerBehind``, or ``Fenced``); one that starts just
then may write its last batch again.

Sessions are used for one transaction at a time and hold nothing in between, but they ask for their own timeouts and for
READ COMMITTED when they begin: a pooler between us and the server has to be one for sessions, not for transactions.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceward.errors import CommitInDoubt, ConfigurationError, Fenced, LedgerUnreachable, TransactionTimedOut
from onceward.ids import AttemptId, PipelineId
from onceward.ledger.chain import Chain, Ledger, cut_off, new_owner, overtaken
from onceward.ledger.record import LedgerRecord, decode, encode

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)

Work = Callable[["psycopg.Connection[Any]"], None]

DEFAULT_TABLE = "onceward_ledger"
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")
_IDLE_MS = 30_000
_STATEMENT_MS = 60_000
_NOBODY = -1
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

_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline text PRIMARY KEY,
    owner bigint NOT NULL,
    sequence bigint NOT NULL,
    state text NOT NULL,
    record text,
    changed_at timestamptz NOT NULL DEFAULT now()
)"""
_BE_THERE = "INSERT INTO {table} (pipeline, owner, sequence, state) VALUES (%s, 0, -1, '') ON CONFLICT DO NOTHING"
_TAKE = (
    "UPDATE {table} SET owner = greatest(owner + 1, %s), changed_at = now() WHERE pipeline = %s RETURNING owner, record"
)
_TAKE_AGAIN = _TAKE.replace(" RETURNING", " AND owner = %s RETURNING")
_APPEND = (
    "UPDATE {table} SET sequence = %s, state = %s, record = %s, changed_at = now() "
    "WHERE pipeline = %s AND owner = %s AND sequence = %s AND state = %s"
)
_READ = "SELECT owner, sequence, record, state FROM {table} WHERE pipeline = %s"


@dataclass(frozen=True)
class DatabaseLedger(Ledger):
    """Chains in a table of a PostgreSQL database (12 or later), which is created when it is missing.

    Needs the extra ``onceward[postgresql]``, and for the login the rights to SELECT, INSERT and UPDATE; CREATE in the
    schema where the table is missing.

    :param url: ``postgresql://user:password@host:port/database?sslmode=…``, as libpq takes it. What is not in it comes
        from libpq's own variables and files (``PGPASSWORD``, ``~/.pgpass``).
    :param table: its name, also ``schema.table``: lower case letters, digits and ``_``.
        ``target_session_attrs`` is ``read-write`` unless it says otherwise, so that several hosts may be named.
    :raises ConfigurationError: no such URL or name, or the extra is not installed.
    """

    url: str = field(repr=False)
    table: str = DEFAULT_TABLE

    def __post_init__(self) -> None:
        _connection_of(self.url)
        if not _TABLE.fullmatch(self.table) or self.table.startswith("pg_"):
            raise ConfigurationError(
                f"table={self.table!r} is not a usable name",
                next_step="use lower case letters, digits and '_', and a schema and '.' before it if need be",
            )

    def chain(self, pipeline: PipelineId) -> TableChain:
        return TableChain(_connection_of(self.url), self.table, pipeline)

    @property
    def where(self) -> Hashable:
        said = _connection_of(self.url)
        return ("postgresql", *(said.get(name) for name in ("host", "port", "dbname", "options")), self.table)


def _connection_of(url: object) -> dict[str, str]:
    """The parts of ``url``, as libpq takes it apart, and our defaults. No error repeats it: it may hold a password."""
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        try:
            found: dict[str, str] = _driver().conninfo.conninfo_to_dict(url)
        except _driver().Error:
            found = {}
        if found and "@" not in found.get("host", "") + found.get("dbname", ""):
            return {**_DEFAULTS, **found, "client_encoding": "UTF8"}
    raise ConfigurationError(
        "DatabaseLedger(url=…) is no address of a PostgreSQL database",
        next_step="pass postgresql://user@host:port/database; in a password write % as %25, and other special "
        "characters in the same way",
    )


class TableChain(Chain):
    """See the module."""

    def __init__(self, connection: dict[str, str], table: str, pipeline: PipelineId) -> None:
        self._said = connection
        self._table = ".".join(f'"{name}"' for name in table.split("."))
        self._pipeline = pipeline
        self._place = f"table {table} of {connection.get('host') or 'the database'}"
        self._connection: psycopg.Connection[Any] | None = None
        self._owner = _NOBODY
        self._known: tuple[int, str] = (-1, "")  # sequence and state of the row, as far as known
        self._attempts = 0
        self._put: LedgerRecord | None = None

    def peek(self) -> LedgerRecord | None:
        if not self._is_there():
            return None
        found = self._row_of(_READ, (self._pipeline,))
        return None if found is None else self._decoded(found[2])

    def take(self) -> LedgerRecord | None:
        if not self._is_there():
            there = _driver().errors
            with self._talking() as connection:  # of two who create it at once one may be told that it is there
                try:
                    connection.execute(self._sql(_CREATE))
                    connection.commit()
                except (there.UniqueViolation, there.DuplicateObject, there.DuplicateTable):
                    connection.rollback()
        with self._talking() as connection:
            connection.execute(_DURABLY)
            connection.execute(self._sql(_BE_THERE), (self._pipeline,))
            found = connection.execute(self._sql(_TAKE), (new_owner(), self._pipeline)).fetchone()
            connection.commit()
        return self._now_ours(found)

    def _is_there(self) -> bool:
        found = self._row_of(_READ_IF_THERE, (self._table,))
        if found is not None and found[0] != "p":
            raise ConfigurationError(
                f"the ledger in {self._place} is not logged, so that a crash of the server empties it",
                next_step=f"ALTER TABLE {self._table} SET LOGGED; or name another table",
            )
        return found is not None

    def _now_ours(self, found: Any) -> LedgerRecord | None:
        if found is None:
            raise self._overtaken()
        self._owner, self._attempts = int(found[0]), 0
        newest = self._decoded(found[1])
        self._known = (-1, "") if newest is None else (newest.sequence, newest.state.value)
        return newest

    def newest(self) -> LedgerRecord | None:
        return self._decoded(self._ours()[2])

    def begin(self, newest: LedgerRecord | None) -> AttemptId:
        found = self._ours()
        if (int(found[1]), found[3]) != self._known:
            what = (
                f"ended with sequence {self._known[0]} ({self._known[1] or 'empty'}) and now ends with {found[1]} "
                f"({found[3] or 'empty'}): the database was restored from an older copy, or a standby was promoted "
                "that had not all of it"
            )
            raise cut_off(self._pipeline, self._place, what)
        self._attempts += 1
        return AttemptId(self._owner, self._attempts)

    def append(self, record: LedgerRecord) -> None:
        self.put(record)
        self.commit()

    def put(self, record: LedgerRecord, work: Work = lambda connection: None) -> None:
        """The decision, but for its COMMIT. The row is changed first: from now on whoever takes the chain waits.

        :param work: what becomes true with ``record``, done in the same transaction. What it raises undoes all of it.
        """
        said = (record.sequence, record.state.value, encode(record).decode())
        self._ours()  # an older copy shall not wait for the lock of its heir's decision only to be refused
        try:
            with self._talking() as connection:
                connection.execute(_DURABLY)
                parameters = (*said, self._pipeline, self._owner, *self._known)
                if connection.execute(self._sql(_APPEND), parameters).rowcount != 1:
                    raise self._overtaken()
                work(connection)
        except BaseException:
            self.abort()
            raise
        self._put = record

    def commit(self) -> None:
        """Of what was :meth:`put`: the point.

        :raises CommitInDoubt: no answer; :meth:`settle`.
        """
        record, self._put = self._put, None
        assert record is not None  # noqa: S101 — put
        assert self._connection is not None  # noqa: S101 — or it would have failed
        try:
            self._connection.commit()
        except _driver().errors.IdleInTransactionSessionTimeout as error:  # the server's word: it is rolled back
            self._forget_connection()
            self._ours()  # whoever waited for the row has it now
            raise TransactionTimedOut(
                f"{record.batch} was not committed: this process stood still for {_IDLE_MS} ms before its COMMIT",
                next_step="nothing; the batch runs again",
            ) from error
        except _driver().Error as error:
            self._forget_connection()
            raise CommitInDoubt(
                f"whether {record.batch} was written to {self._place} is not known: {error}",
                next_step="see that the database answers; the next start of the query asks it",
            ) from error
        self._known = (record.sequence, record.state.value)

    def abort(self) -> None:
        self._put = None
        if self._connection is not None:
            try:
                self._connection.rollback()
            except _driver().Error:  # the server has rolled it back, or does when it sees that nobody is there
                self._forget_connection()

    @contextmanager
    def owned(self) -> Iterator[psycopg.Connection[Any]]:
        """Inside, a transaction that is carried out only if the chain is ours until its end."""
        self._ours()  # as in put(): without waiting, where it is not
        with self._talking() as connection:
            found = connection.execute(self._sql(_READ + " FOR SHARE"), (self._pipeline,)).fetchone()
            if found is None or int(found[0]) != self._owner:
                connection.rollback()
                raise self._overtaken()
            yield connection
            connection.commit()

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """Inside, a transaction of its own that asks nobody who owns the chain."""
        with self._talking() as connection:
            yield connection
            connection.commit()

    def settle(self) -> LedgerRecord | None:
        self._forget_connection()  # its own transaction may still be under way: the update below waits for it
        with self._talking() as connection:
            connection.execute(_DURABLY)
            found = connection.execute(self._sql(_TAKE_AGAIN), (new_owner(), self._pipeline, self._owner)).fetchone()
            connection.commit()
        return self._now_ours(found)

    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        """The newest alone."""
        newest = self.peek()
        return iter([newest][:limit] if newest else ())

    def close(self) -> None:
        self._forget_connection()

    # the database

    def _ours(self) -> Any:
        found = self._row_of(_READ, (self._pipeline,))
        if found is None:
            raise cut_off(self._pipeline, self._place, "has lost its row")
        if int(found[0]) != self._owner:
            raise self._overtaken()
        return found

    def _row_of(self, statement: str, parameters: tuple[object, ...]) -> Any:
        """What is read. A connection that broke since the last batch is replaced once."""
        kept = self._connection is not None
        try:
            return self._read(statement, parameters)
        except LedgerUnreachable:
            if not kept:
                raise
        return self._read(statement, parameters)

    def _read(self, statement: str, parameters: tuple[object, ...]) -> Any:
        with self._talking() as connection:
            found = connection.execute(self._sql(statement), parameters).fetchone()
            connection.commit()
        return found

    def _sql(self, statement: str) -> Any:
        return statement.replace("{table}", self._table)  # a name that was checked

    def _decoded(self, text: str | None) -> LedgerRecord | None:
        return None if text is None else decode(text.encode(), where=f"{self._place}, row {self._pipeline!r}")

    def _overtaken(self) -> Fenced:
        return overtaken(self._pipeline, self._place)

    @contextmanager
    def _talking(self) -> Iterator[psycopg.Connection[Any]]:
        """With a connection; what goes wrong before a COMMIT was sent has not happened."""
        psycopg = _driver()
        try:
            connection = self._connected()
            yield connection
        except psycopg.Error as error:
            self._forget_connection()
            raise LedgerUnreachable(
                f"the ledger in {self._place} cannot be used: {error}",
                next_step="see that the database answers and that this login may SELECT, INSERT and UPDATE there (and "
                "CREATE, where the table is missing); then start the query again",
            ) from error

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            began = time.monotonic()
            said = {"application_name": f"onceward-{self._pipeline}"[:63], **self._said}
            connection = _driver().connect(**said, prepare_threshold=None)
            connection.isolation_level = _driver().IsolationLevel.READ_COMMITTED
            connection.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MS}")
            connection.execute(f"SET statement_timeout = {_STATEMENT_MS}")
            for statement in PINNED:
                connection.execute(statement)
            connection.commit()
            self._connection = connection
            log.debug("connected to %s in %.0f ms", self._place, 1000 * (time.monotonic() - began))
        return self._connection

    def _forget_connection(self) -> None:
        connection, self._connection, self._put = self._connection, None, None
        if connection is not None:
            with suppress(Exception):  # it is being given up
                connection.close()


_READ_IF_THERE = "SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)"
_DURABLY = "SET LOCAL synchronous_commit = on"


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise ConfigurationError(
            f"a ledger in PostgreSQL needs psycopg: {error}", next_step='pip install "onceward[postgresql]"'
        ) from error
    return psycopg
