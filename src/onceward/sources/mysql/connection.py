"""A server whose changes are read: one session to ask it things, and dumps of its binlog. Driver and tasks.

What is not obvious:

* An address may lead to another server from one connection to the next (a proxy, a name that was moved). So each
  session says which server it is at before anything is concluded from it (:func:`asking`).
* MariaDB has no ``server_uuid``. What stands for it may change while the data stay (a container with another name):
  then the place is found again by its GTID, as after a failover, and is the same.
* Passwords are in :attr:`Settings.said` alone, which no message and no ``repr`` shows. PyMySQL's errors have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from onceward.binlog.event import Event
from onceward.binlog.kinds import Dialect
from onceward.errors import AccessDenied, AuthenticationFailed, OncewardError, ServerUnfit, ServerUnreachable
from onceward.ledger.mysql import MySQLSession, connected
from onceward.libraries import library
from onceward.sources.mysql.dump import Dump
from onceward.sources.mysql.position import Place, Position
from onceward.sources.mysql.settings import Settings

_NAME = "onceward mysql_changes"
_LOGIN = (1045, 1698, 1524, 1862, 3118, 2059, 2061)
_DENIED = (1044, 1142, 1143, 1227, 1370, 1410)
_PASSING = (
    1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1317, 1927, 1969,
)  # fmt: skip
"""Too many connections, a server that stops, connections that were lost or killed, locks that were waited for."""
_NOT_LOGGING = 1381  # ER_NO_BINARY_LOGGING
_STATUS_RENAMED = (8, 2)  # SHOW MASTER STATUS has another name there, and is gone in 8.4


class Server:
    """An open session, in autocommit. Close it.

    :raises ServerUnreachable: it does not answer.
    :raises AuthenticationFailed: it does not know the login.
    """

    def __init__(self, settings: Settings) -> None:
        self.where = settings.where
        self._session = session_of(settings)
        self.dialect: Dialect = "mariadb" if self._session.is_mariadb else "mysql"
        self.version: tuple[int, ...] = self._session.version
        try:
            variables = self.variables("server_uuid", "hostname", "port", "server_id", "lower_case_table_names")
        except BaseException:
            self.close()
            raise
        self.identity = variables.get("server_uuid") or "{hostname}:{port}/{server_id}".format(**variables)
        """Which server this is."""
        self.lower_case_table_names = int(variables["lower_case_table_names"])

    def ask(self, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows.

        :raises ServerUnreachable: the connection is lost.
        :raises AccessDenied: the login may not ask that.
        :raises ServerUnfit: the server cannot answer.
        """
        with named(self.where):
            cursor = self.connection.cursor()
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def variables(self, *names: str) -> dict[str, str]:
        """Global ones, those of them that this server has."""
        some = ", ".join(["%s"] * len(names))
        rows = self.ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({some})", names)
        return {str(name).lower(): str(value) for name, value in rows}

    def binlog_status(self) -> tuple[Any, ...]:
        """File, position, ``binlog_do_db``, ``binlog_ignore_db``, and MySQL's set of GTIDs.

        :raises ServerUnfit: the server writes no binlog.
        """
        renamed = self.dialect == "mysql" and self.version >= _STATUS_RENAMED
        rows = self.ask("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
        if not rows:
            raise _no_binlog(self.where)
        return rows[0]

    def end(self) -> Place:
        """Where the server is writing. What a group of transactions has just put there may not be sent yet."""
        file, pos = self.binlog_status()[:2]
        return Place(str(file), int(pos))

    def binlogs(self) -> list[str]:
        """The names of all that are there, oldest first."""
        return [str(row[0]) for row in self.ask("SHOW BINARY LOGS")]

    def executed(self) -> str:
        """All transactions that the server has, as a set of GTIDs."""
        variable = "gtid_executed" if self.dialect == "mysql" else "gtid_binlog_state"
        return _plain(self.ask(f"SELECT @@GLOBAL.{variable}")[0][0])

    def purged(self) -> str:
        """MySQL's set of transactions whose binlogs are gone, or never were."""
        return _plain(self.ask("SELECT @@GLOBAL.gtid_purged")[0][0])

    @property
    def connection(self) -> Any:
        """PyMySQL's."""
        return self._session.connection

    @property
    def is_open(self) -> bool:
        return not self._session.closed and not self._session.is_ended

    def close(self) -> None:
        """Whatever state it is in."""
        self._session.give_up()


def session_of(settings: Settings) -> MySQLSession:
    """A session in autocommit, whose values mean the same whatever the server has set.

    :raises ServerUnreachable, AuthenticationFailed: …
    """
    with named(settings.where):
        session = connected(settings.said, _NAME)
        session.connection.autocommit(True)
        return session


@contextmanager
def asking(settings: Settings, server: str) -> Iterator[Server]:
    """Inside, a session of its own at the server ``server``.

    :raises ServerUnreachable: it does not answer, or another server does now.
    """
    asked = Server(settings)
    try:
        if asked.identity != server:
            raise ServerUnreachable(
                f"{settings.where} led to the server {server}, and leads to {asked.identity} now",
                next_step="start the query again: it finds its place on the new server by GTIDs; where the address is "
                "a proxy's that spreads connections, let it lead to one server",
                details={"known": server, "found": asked.identity},
            )
        yield asked
    finally:
        asked.close()


@contextmanager
def reading(settings: Settings, server: str, place: Place) -> Iterator[Dump]:
    """Inside, the binlog of the server ``server`` from ``place`` on.

    :raises ServerUnreachable: it does not answer, or another server does now.
    """
    with (
        asking(settings, server) as asked,
        Dump(asked.connection, asked.dialect, place.file, place.pos) as dump,
    ):
        yield dump


def follow(settings: Settings, at: Position, feed: Callable[[list[Event]], bool]) -> None:
    """Give ``feed`` the events from ``at`` on, until it says that these are enough, or the server has no more."""
    with reading(settings, at.server, at.place) as dump:
        for events in dump.blocks():
            if feed(events):
                return


@contextmanager
def named(where: str) -> Iterator[None]:
    """Inside, an error of PyMySQL's, or of the network's, is raised as ours."""
    driver = library("changes of a MySQL or MariaDB server need PyMySQL", "mysql", "pymysql")
    try:
        yield
    except OncewardError:
        raise
    except (driver.MySQLError, OSError) as error:
        known = error.args and isinstance(error.args[0], int) and not isinstance(error, OSError)
        number = error.args[0] if known else 0
        text = str(error.args[1]) if known and len(error.args) > 1 else str(error)
        raise _named(number, f"{where} says: ({number}) {' '.join(text.split())}", where) from error


def _named(number: int, said: str, where: str) -> OncewardError:
    if number in _LOGIN:
        return AuthenticationFailed(said, next_step="correct the user and the password in the url")
    if number in _DENIED:
        return AccessDenied(
            said,
            next_step="GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the login, and SELECT on the tables; then "
            "start the query again",
        )
    if number == _NOT_LOGGING:
        return _no_binlog(where)
    if 1000 < number < 2000 and number not in _PASSING:
        return ServerUnfit(said, next_step="see what the server says above")
    return ServerUnreachable(said, next_step="see whether it runs; the query goes on when it is started again")


def _no_binlog(where: str) -> ServerUnfit:
    return ServerUnfit(
        f"{where} writes no binlog", next_step="start the server with --log-bin, for MariaDB also --binlog-format=ROW"
    )


def _plain(gtids: Any) -> str:
    with suppress(AttributeError):
        gtids = gtids.decode()
    return "".join(str(gtids or "").split())
