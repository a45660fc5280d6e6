"""The server as PyMySQL speaks of it, behind the product's own
:class:`~onceward.sql.ledger.mysql.MySQLSession`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymysql

from onceward.sql.ledger.mysql import MySQLSession
from simulation.kernel import current
from simulation.world.database import line
from simulation.world.database.trouble import Trouble

_ERRORS: dict[str, tuple[type[pymysql.MySQLError], int]] = {
    "gone": (pymysql.OperationalError, 2013),
    "refused": (pymysql.OperationalError, 2003),
    "ended": (pymysql.OperationalError, 2013),
    "idle": (pymysql.OperationalError, 4031),
    "no table": (pymysql.ProgrammingError, 1146),
    "there": (pymysql.OperationalError, 1440),  # XAER_DUPID
    "unique": (pymysql.IntegrityError, 1062),
    "locked": (pymysql.OperationalError, 1205),
    "deadlock": (pymysql.OperationalError, 1213),
    "failed": (pymysql.OperationalError, 1399),  # XAER_RMFAIL
    "unknown": (pymysql.OperationalError, 1397),  # XAER_NOTA
    "full": (pymysql.OperationalError, 1114),
    "read only": (pymysql.OperationalError, 1290),
}
_OVER = ("gone", "refused", "ended", "idle")


class _Connection:
    """As :class:`pymysql.Connection`, with autocommit off."""

    def __init__(self, session: Any, said: Mapping[str, Any]) -> None:
        self.session = session
        self.host = said["host"]
        self.open = True
        self._local_infile = False
        self._is_mariadb = session.server.kind == "mariadb"

    def get_server_info(self) -> str:
        return "11.4.2-MariaDB" if self._is_mariadb else "8.4.3"

    def cursor(self) -> _Cursor:
        return _Cursor(self)

    def commit(self) -> None:
        try:
            line.commit(self.session)
        except Trouble as trouble:
            raise self.error(trouble) from None

    def rollback(self) -> None:
        try:
            line.roll_back(self.session)
        except Trouble as trouble:
            raise self.error(trouble) from None

    def close(self) -> None:
        if not self.open:
            raise pymysql.Error("Already closed")
        self.open = False
        self.session.close()

    def error(self, trouble: Trouble) -> pymysql.MySQLError:
        if trouble.kind in _OVER and self.open:
            self.close()
        kind, number = _ERRORS[trouble.kind]
        return kind(number, trouble.text)


class _Cursor:
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._result: Any = None
        self.warning_count = 0
        self.rowcount = 0

    def execute(self, statement: str, parameters: Any = None) -> int:
        connection = self._connection
        if not connection.open:
            raise pymysql.InterfaceError(0, "")
        try:
            self._result = line.execute(connection.session, statement, parameters)
        except Trouble as trouble:
            raise connection.error(trouble) from None
        self.rowcount = self._result.rowcount
        return self.rowcount

    def fetchone(self) -> Any:
        return self._result.fetchone()

    def fetchall(self) -> Any:
        return self._result.fetchall()

    def __iter__(self) -> Any:
        return iter(self._result)


class SimulatedSession(MySQLSession):
    """The product's session: what it sends, what it takes for a warning, and when it commits, are
    its own.
    """

    @property
    def is_usable(self) -> bool:
        """Has the server not said its farewell? That is seen on the socket."""
        session = self.connection.session
        session.look()
        return self.connection.open and not session.ended


def connected(said: Mapping[str, Any], name: str) -> SimulatedSession:
    """As :func:`onceward.sql.ledger.mysql.connected`."""
    try:
        session = line.connect(current().world.database, name)
    except Trouble as trouble:
        kind, number = _ERRORS[trouble.kind]
        raise kind(number, trouble.text) from None
    return SimulatedSession(_Connection(session, said))
