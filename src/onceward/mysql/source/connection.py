"""A server whose changes are read: one session to ask it things, and dumps of its binlog. Driver
and tasks.

What is not obvious:

* An address may lead to another server from one connection to the next (a proxy, a name that was
  moved). So each session says which server it is at before anything is concluded from it
  (:func:`asking`).
* MariaDB has no ``server_uuid``. What stands for it may change while the data stay (a container
  with another name): then the place is found again by its GTID, as after a failover, and is the
  same.
* A server refuses to send its binlog by one number (1236), whatever the reason, with texts that
  differ by version. So what it means is read off the server's state, not off the text
  (:func:`_meaning`).
* PyMySQL has no word for another patience once it has connected: its private ``_read_timeout`` is
  set here.
* Passwords are in :attr:`Settings.said` alone, which no message and no ``repr`` shows. PyMySQL's
  errors have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BinlogDamaged,
    BinlogPurged,
    OncewardError,
    ServerUnfit,
    ServerUnreachable,
    SourceReplaced,
)  # fmt: skip
from onceward.libraries import library
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.kinds import Dialect
from onceward.mysql.source.dump import Dump, Refused
from onceward.mysql.source.position import Place, Position
from onceward.mysql.source.settings import Settings
from onceward.sql.ledger.mysql import MySQLSession, connected

_NAME = "onceward mysql_changes"
_LOGIN = (1045, 1698, 1524, 1862, 3118, 2059, 2061)
_DENIED = (1044, 1142, 1143, 1227, 1370, 1410)
_PASSING = (
    1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1317, 1927,
    1969,
)  # fmt: skip
"""Too many connections, a server that stops, connections that were lost or killed, locks that were
waited for.
"""
LOCK_WAIT = 1205  # ER_LOCK_WAIT_TIMEOUT
_HANDSHAKE_SECONDS = 30
ANSWER_SECONDS = 300.0
"""So long an answer may take, or a row of one; a server that is gone without a word is noticed in
half a minute.
"""
_LOCK_SECONDS = 60  # who locks a table is waited for so long: servers say a day, or a year
_NOT_LOGGING = 1381  # ER_NO_BINARY_LOGGING
_REFUSED = 1236  # ER_MASTER_FATAL_ERROR_READING_BINLOG
_REPLICA_RENAMED = (8, 0, 22)  # SHOW SLAVE STATUS has another name there, and is gone in 8.4
_STATUS_RENAMED = (8, 2)  # SHOW MASTER STATUS has another name there, and is gone in 8.4


ANEW = "start from a new checkpoint, with a snapshot"
ANEW_WITHOUT_GTIDS = (
    'start from a new checkpoint with starting="latest", and bring the target up to date by hand, '
    "for a server without "
    "gtid_mode=ON there is no snapshot; with gtid_mode=ON a query finds its place again by itself"
)


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
            variables = self.variables(
                "server_uuid", "hostname", "port", "server_id", "lower_case_table_names",
                "innodb_native_foreign_keys",
            )  # fmt: skip
        except BaseException:
            self.close()
            raise
        self.identity = variables.get("server_uuid") or "{hostname}:{port}/{server_id}".format(
            **variables
        )
        """Which server this is."""
        self.lower_case_table_names = int(variables["lower_case_table_names"])
        self.cascades_are_logged = variables.get("innodb_native_foreign_keys") == "OFF"
        """MySQL 9.6 and later carry foreign keys out above the storage engine, unless it says
        so.
        """

    def ask(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
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
        """Where the server is writing. What a group of transactions has just put there may not be
        sent yet.
        """
        file, pos = self.binlog_status()[:2]
        return Place(str(file), int(pos))

    def binlogs(self) -> dict[str, int]:
        """How many bytes each has that is there, oldest first; 0 for one whose file somebody has
        removed by hand.
        """
        return {str(row[0]): int(row[1]) for row in self.ask("SHOW BINARY LOGS")}

    def reaches_others(self, database: str, table: str) -> bool:
        """Is it a view, or has it triggers, so that its changes may be others' too? As far as the
        login sees.
        """
        rows = self.ask(
            "SELECT 1 FROM information_schema.VIEWS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
            "UNION ALL "
            "SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND "
            "EVENT_OBJECT_TABLE = %s",
            (database, table) * 2,
        )
        return bool(rows)

    def executed(self) -> str:
        """All transactions that the server has, as a set of GTIDs; on MariaDB the last ones of
        each server.
        """
        if self.dialect == "mysql":
            return self._gtids("gtid_executed")
        # What a replica was made of, by SET GLOBAL gtid_slave_pos, is in no binlog of its own.
        return ",".join(
            filter(None, (self._gtids("gtid_slave_pos"), self._gtids("gtid_binlog_state")))
        )

    def purged(self) -> str:
        """MySQL's set of transactions whose binlogs are gone, or never were."""
        return self._gtids("gtid_purged")

    def replicated(self, *, not_logged: bool) -> str:
        """MariaDB's last transactions that came from other servers: of each domain one.

        :param not_logged: only of those servers of whom its binlogs never had one.
        """
        last = self._gtids("gtid_slave_pos")
        if not not_logged:
            return last
        logged = {one.rpartition("-")[0] for one in self._gtids("gtid_binlog_state").split(",")}
        return ",".join(one for one in last.split(",") if one.rpartition("-")[0] not in logged)

    def _gtids(self, variable: str) -> str:
        said = self.ask(f"SELECT @@GLOBAL.{variable}")[0][0]
        return "".join((said.decode() if isinstance(said, bytes) else str(said or "")).split())

    def is_replica(self) -> bool:
        """Whether it was told to replicate another one, under whatever name or channel.

        :raises AccessDenied: MariaDB has a right of its own for that.
        """
        if self.dialect == "mariadb":
            return bool(self.ask("SHOW ALL SLAVES STATUS"))
        return bool(
            self.ask(
                "SHOW REPLICA STATUS" if self.version >= _REPLICA_RENAMED else "SHOW SLAVE STATUS"
            )
        )

    @property
    def anew(self) -> str:
        """What to do when the binlogs of what was not read are lost."""
        return ANEW if self.has_gtids else ANEW_WITHOUT_GTIDS

    @property
    def has_gtids(self) -> bool:
        """Whether each transaction has one: else there is no snapshot."""
        return self.dialect == "mariadb" or self.variables("gtid_mode").get("gtid_mode") == "ON"

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
        # A server, or a proxy in front of it, that takes a connection and says nothing is waited
        # for no longer.
        seconds = settings.said.get("connect_timeout", _HANDSHAKE_SECONDS)
        session = connected(
            {**settings.said, "read_timeout": seconds, "write_timeout": seconds},
            _NAME,
            patient=False,
        )
        session.connection._read_timeout = ANSWER_SECONDS
        session.connection.autocommit(True)
        session.execute(f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
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
                next_step="start the query again: it finds its place on the new server by GTIDs; "
                "where the address is "
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
    :raises BinlogPurged: the file is gone. :raises SourceReplaced: the file is shorter than that.
    :raises BinlogDamaged: the server cannot read its binlog.
    """
    with asking(settings, server) as asked:
        dump = Dump(asked.connection, asked.dialect, place.file, place.pos)
        try:
            with dump:
                yield dump
        except Refused as refused:
            at = Place(dump.reader.file, dump.reader.position)
            with asking(settings, server) as again:
                raise _meaning(again, at, refused) from refused


def _meaning(server: Server, at: Place, refused: Refused) -> OncewardError:
    """Of a refusal to send the binlog at ``at``, by what the server has now.

    Source: MySQL, ``sql/rpl_binlog_sender.cc``; MariaDB, ``sql/sql_repl.cc``.

    :raises ServerUnfit: the server writes no binlog any more.
    """
    what = f"{server.where} says, asked for its binlog at {at}: {refused.code}, {refused.text}"
    if refused.code != _REFUSED:
        return _named(refused.code, what, server.where)
    size = server.binlogs().get(at.file, 0)
    details = {"at": str(at), "code": refused.code}
    if not size:
        return BinlogPurged(
            f"{what}; the file is not there any more",
            next_step=f"{server.anew}; and let the server keep its binlogs for longer than a "
            f"query may stand still "
            "(binlog_expire_logs_seconds)",
            details=details,
        )
    if at.pos > size:
        return SourceReplaced(
            f"{what}; the file has {size} bytes, and is shorter than when it was read: the "
            f"server's binlogs were "
            "reset, or it lost their end in a crash, or it is another server",
            next_step=server.anew,
            details=details,
        )
    return BinlogDamaged(
        what,
        next_step="the query tries again by itself; if that fails at the same place, run "
        "mysqlbinlog "
        f"--verify-binlog-checksum on the file, and {server.anew}",
        details=details,
    )


def follow(settings: Settings, at: Position, feed: Callable[[list[Event]], bool]) -> None:
    """Give ``feed`` the events from ``at`` on, until it says that these are enough, or the server
    has no more.
    """
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
        raise _named(
            number, f"{where} says: ({number}) {' '.join(text.split())}", where
        ) from error


def said_number(error: BaseException) -> int:
    """The number of PyMySQL's error that ``error`` is, or came of; 0: of none."""
    said = error.__cause__ if isinstance(error, OncewardError) else error
    driver = library("changes of a MySQL or MariaDB server need PyMySQL", "mysql", "pymysql")
    known = (
        isinstance(said, driver.MySQLError) and bool(said.args) and isinstance(said.args[0], int)
    )
    return int(said.args[0]) if known and said is not None else 0


def _named(number: int, said: str, where: str) -> OncewardError:
    if number in _LOGIN:
        return AuthenticationFailed(said, next_step="correct the user and the password in the url")
    if number in _DENIED:
        return AccessDenied(
            said,
            next_step="GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the login, and "
            "SELECT on the tables; then "
            "start the query again",
        )
    if number == _NOT_LOGGING:
        return _no_binlog(where)
    if 1000 < number < 2000 and number not in _PASSING:
        return ServerUnfit(said, next_step="see what the server says above")
    return ServerUnreachable(
        said, next_step="see whether it runs; the query goes on when it is started again"
    )


def _no_binlog(where: str) -> ServerUnfit:
    return ServerUnfit(
        f"{where} writes no binlog",
        next_step="start the server with --log-bin, for MariaDB also --binlog-format=ROW",
    )
