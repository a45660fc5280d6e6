"""The server as psycopg (the driver) and ADBC (tasks) speak of it. Errors are psycopg's own, and
of ADBC one with its ``sqlstate``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg import conninfo, errors

from simulation.kernel import current
from simulation.world.database import line
from simulation.world.database.arrow import RowsTable
from simulation.world.database.locks import SHARED
from simulation.world.database.results import DONE
from simulation.world.database.session import Session
from simulation.world.database.trouble import Trouble

_ERRORS: dict[str, type[psycopg.Error]] = {
    "gone": psycopg.OperationalError,
    "refused": psycopg.OperationalError,
    "ended": errors.AdminShutdown,
    "idle": errors.IdleInTransactionSessionTimeout,
    "no table": errors.UndefinedTable,
    "there": errors.DuplicateObject,
    "unique": errors.UniqueViolation,
    "locked": errors.LockNotAvailable,
    "cancelled": errors.QueryCanceled,
    "deadlock": errors.DeadlockDetected,
    "failed": errors.InFailedSqlTransaction,
    "unknown": errors.UndefinedObject,
    "no room": errors.OutOfMemory,
    "full": errors.DiskFull,
    "read only": errors.ReadOnlySqlTransaction,
}
_OVER = ("gone", "refused", "ended", "idle")


class Connection:
    """As :class:`psycopg.Connection` with autocommit: a transaction begins with ``BEGIN``."""

    info = SimpleNamespace(server_version=170_000, options="")

    def __init__(self, said: dict[str, Any]) -> None:
        try:
            self._session = line.connect(
                current().world.database, str(said.get("application_name", "psycopg"))
            )
        except Trouble as trouble:
            raise _ERRORS[trouble.kind](trouble.text) from None
        self._session.autocommit = True
        self.closed = False
        self._in_transaction = False

    @classmethod
    def connect(cls, *, prepare_threshold: None, autocommit: bool, **said: Any) -> Connection:
        return cls(said)

    def execute(self, statement: str, parameters: Any = None, /) -> Any:
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if statement.startswith("BEGIN"):
            self._in_transaction = True
        try:
            return line.execute(self._session, statement, parameters)
        except Trouble as trouble:
            raise self._error(trouble) from None

    def commit(self) -> None:
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if self._in_transaction:
            try:
                line.commit(self._session)
            except Trouble as trouble:
                raise self._error(trouble) from None
            self._in_transaction = False

    def rollback(self) -> None:
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if self._in_transaction:
            try:
                line.roll_back(self._session)
            except Trouble as trouble:
                raise self._error(trouble) from None
            self._in_transaction = False

    def fileno(self) -> Any:
        return self._session

    def close(self) -> None:
        self.closed = True
        self._session.close()

    def _error(self, trouble: Trouble) -> psycopg.Error:
        if trouble.kind in _OVER:
            self.closed = True
            self._session.close()
        return _ERRORS[trouble.kind](trouble.text)


def has_spoken(session: Any) -> bool:
    """In the place of :func:`onceward.sql.ledger.database.has_spoken`."""
    session.look()
    return bool(session.ended)


DRIVER = SimpleNamespace(
    Connection=Connection,
    Error=psycopg.Error,
    errors=errors,
    conninfo=conninfo,
)
"""As the module ``psycopg``."""


class TasksError(Exception):
    """As ``adbc_driver_manager``'s: with the server's code, None where there was no answer."""

    def __init__(self, text: str, sqlstate: str | None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class TasksConnection:
    """As a connection of ``adbc_driver_postgresql.dbapi``."""

    def __init__(self, said: str, autocommit: bool = False) -> None:
        try:
            self._session: Session = line.connect(current().world.database, "task")
        except Trouble as trouble:
            raise _tasks(trouble) from None
        self._session.autocommit = autocommit

    def cursor(self) -> _Cursor:
        return _Cursor(self._session)

    def close(self) -> None:
        self._session.close()


class _Cursor:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._result: Any = None

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def execute(self, statement: str) -> None:
        try:
            if statement == "COMMIT":
                line.commit(self._session)
                self._result = DONE
            else:
                self._result = line.execute(self._session, statement, ())
        except Trouble as trouble:
            raise _tasks(trouble) from None

    def executescript(self, statements: str) -> None:
        for statement in statements.split("; "):
            self.execute(statement)

    @property
    def description(self) -> Any:
        return list(self._result._rows) or None

    def fetchone(self) -> Any:
        return self._result.fetchone()

    def adbc_ingest(self, name: str, rows: RowsTable, *, mode: str, db_schema_name: str) -> None:
        """A binary COPY, which is sent as it goes: who stands still in its middle holds the
        table's lock.
        """
        try:
            line.copy(self._session, f"{db_schema_name}.{name}", rows, SHARED)
        except Trouble as trouble:
            raise _tasks(trouble) from None


TASKS_DRIVER = SimpleNamespace(connect=TasksConnection, Error=TasksError)
"""As the module ``adbc_driver_postgresql.dbapi``."""


def _tasks(trouble: Trouble) -> TasksError:
    return TasksError(trouble.text, _ERRORS[trouble.kind].sqlstate)
