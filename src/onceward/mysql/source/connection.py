"""Sessions at the server whose changes are read: :class:`Server` for queries, :func:`open_dump`
for its binlog. Driver and tasks.

Passwords are in ``ChangesSettings.connect_args`` alone, which no message and no ``repr`` shows.
PyMySQL's errors have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    BinlogCorrupted,
    BinlogPurged,
    OncewardError,
    ServerMisconfigured,
    ServerUnreachable,
    SourceReplaced,
)
from onceward.libraries import library
from onceward.mysql.binlog.event import (
    FORMAT_DESCRIPTION,
    START_ANEW,
    START_ANEW_WITHOUT_GTIDS,
    TRANSACTION_STARTS,
    BinlogEvent,
    Dialect,
)
from onceward.mysql.binlog.framing import DumpRefused
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.binlog.gtids import parse_previous_gtids
from onceward.mysql.source.dump import Dump
from onceward.mysql.source.settings import FIRST_BYTE, ChangesSettings, Coordinates, Position
from onceward.sql.ledger.database import LOGIN_STEPS, SERVER_STEPS
from onceward.sql.ledger.mysql import MySQLSession, connected

_NAME = "onceward mysql_changes"
_DENIED = (1044, 1142, 1143, 1227, 1370, 1410)
_NOT_KNOWN = (1046, 1049, 1054, 1064, 1109, 1115, 1146, 1193, 1231, 1235, 1273, 1305)
"""Databases, tables, columns, words, variables, their values, character sets and functions that a
server, or a proxy in front of it, does not have."""
LOCK_WAIT = 1205  # ER_LOCK_WAIT_TIMEOUT
_HANDSHAKE_SECONDS = 30
ANSWER_SECONDS = 300.0
"""Timeout of an answer, or of a row of one, from a server that is still there."""
# Who locks a table is waited for so long: servers say a day, or a year
_LOCK_SECONDS = 60
_IDLE_SECONDS = 28_800
_HIDES_KEYS = (8, 0, 30)
_NOT_LOGGING = 1381  # ER_NO_BINARY_LOGGING
# ER_MASTER_FATAL_ERROR_READING_BINLOG
_REFUSED = 1236
# SHOW SLAVE STATUS has another name there, and is gone in 8.4
_REPLICA_RENAMED = (8, 0, 22)
# SHOW MASTER STATUS has another name there, and is gone in 8.4
_STATUS_RENAMED = (8, 2)


class Server:
    """An open session, in autocommit. Close it.

    :raises ServerUnreachable: the server does not answer.
    :raises AuthenticationFailed: it does not accept the login.
    """

    def __init__(self, settings: ChangesSettings) -> None:
        self.where = settings.where
        self._session = connect(settings)
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
        # MariaDB has no server_uuid. The substitute may change while the data stay (a container
        # with another name): then the position is found again by its GTIDs, as after a failover.
        self.identity = variables.get("server_uuid") or "{hostname}:{port}/{server_id}".format(
            **variables
        )
        """The ``server_uuid``, or a substitute for it on MariaDB."""
        self.lower_case_table_names = int(variables["lower_case_table_names"])
        self.cascades_are_logged = variables.get("innodb_native_foreign_keys") == "OFF"
        """MySQL 9.6 and later log changes by foreign keys, unless this variable is set."""
        self.held: Any = None
        """Transactions that were found in its binlogs before it had committed them."""

    def query(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return all rows.

        :raises ServerUnreachable: the connection is lost.
        :raises AccessDenied: the login lacks a privilege.
        :raises ServerMisconfigured: the server cannot answer.
        """
        with driver_errors(self.where):
            cursor = self.connection.cursor()
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def variables(self, *names: str) -> dict[str, str]:
        """Return those of these global variables that the server has."""
        some = ", ".join(["%s"] * len(names))
        rows = self.query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({some})", names)
        return {str(name).lower(): str(value) for name, value in rows}

    def binlog_status(self) -> tuple[Any, ...]:
        """Return file, position, ``binlog_do_db``, ``binlog_ignore_db``, and MySQL's set of GTIDs.

        :raises ServerMisconfigured: the server writes no binlog.
        """
        has_new_name = self.dialect == "mysql" and self.version >= _STATUS_RENAMED
        rows = self.query("SHOW BINARY LOG STATUS" if has_new_name else "SHOW MASTER STATUS")
        if not rows:
            raise _no_binlog_error(self.where)
        return rows[0]

    def end(self) -> Coordinates:
        """Return where the server is writing. The newest transactions may not be sent yet."""
        file, pos = self.binlog_status()[:2]
        return Coordinates(str(file), int(pos))

    def binlogs(self) -> dict[str, int]:
        """Return the size of each binlog, oldest first; 0 without its file."""
        return {str(row[0]): int(row[1]) for row in self.query("SHOW BINARY LOGS")}

    def reaches_others(self, database: str, table: str) -> bool:
        """Check whether changes of a table may be changes of others, as the login sees it: of
        those that a view, a trigger or a foreign key leads to. (What a foreign key changes where
        it is not logged is in no binlog, whatever its format.)
        """
        place = (database, table)
        has_triggers = (
            "SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND "
            "EVENT_OBJECT_TABLE = %s"
        )
        has_keys = (
            "SELECT 1 FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE "
            "UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s AND (DELETE_RULE NOT IN "
            "('RESTRICT', 'NO ACTION') OR UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION'))"
        )
        return (
            self.is_view(*place)
            or bool(self.query(has_triggers, place))
            or (self.cascades_are_logged and bool(self.query(has_keys, place)))
        )

    def is_view(self, database: str, table: str) -> bool:
        """Check whether to read a table may be to call functions, as the login sees it."""
        rows = self.query(
            "SELECT 1 FROM information_schema.VIEWS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (database, table),
        )
        return bool(rows)

    def executed_gtids(self) -> str:
        """Return all transactions that the server has; on MariaDB the last ones of each server."""
        if self.dialect == "mysql":
            return self._gtids("gtid_executed")
        # What a replica was made of, by SET GLOBAL gtid_slave_pos, is in no binlog of its own.
        return ",".join(
            filter(None, (self._gtids("gtid_slave_pos"), self._gtids("gtid_binlog_state")))
        )

    def purged_gtids(self) -> str:
        """Return MySQL's set of transactions whose binlogs are gone, or never were."""
        return self._gtids("gtid_purged")

    def replicated_gtids(self, *, not_logged: bool) -> str:
        """Return MariaDB's last transactions that came from other servers, one of each domain.

        :param not_logged: only of those servers that have none in its binlogs.
        """
        last = self._gtids("gtid_slave_pos")
        if not not_logged:
            return last
        logged_servers = {
            one.rpartition("-")[0] for one in self._gtids("gtid_binlog_state").split(",")
        }
        return ",".join(
            one for one in last.split(",") if one.rpartition("-")[0] not in logged_servers
        )

    def _gtids(self, variable: str) -> str:
        text = self.query(f"SELECT @@GLOBAL.{variable}")[0][0]
        return "".join((text.decode() if isinstance(text, bytes) else str(text or "")).split())

    def is_member(self) -> bool:
        """Check whether it is set to be a member of a group (Group Replication, Galera)."""
        group = self.variables("group_replication_group_name", "wsrep_on")
        return bool(group.get("group_replication_group_name")) or group.get("wsrep_on") == "ON"

    def is_replica(self) -> bool:
        """Check whether it is configured to replicate another one, under whatever name or channel.

        :raises AccessDenied: MariaDB has a privilege of its own for that.
        """
        if self.dialect == "mariadb":
            return bool(self.query("SHOW ALL SLAVES STATUS"))
        return bool(
            self.query(
                "SHOW REPLICA STATUS" if self.version >= _REPLICA_RENAMED else "SHOW SLAVE STATUS"
            )
        )

    @property
    def anew_advice(self) -> str:
        """The next step when the binlogs of what was not read are lost."""
        # Each transaction has a GTID: else there is no snapshot
        has_gtids = self.dialect == "mariadb" or self.variables("gtid_mode") == {"gtid_mode": "ON"}
        return START_ANEW if has_gtids else START_ANEW_WITHOUT_GTIDS

    @property
    def connection(self) -> Any:
        """PyMySQL's connection."""
        return self._session.connection

    @property
    def is_open(self) -> bool:
        return self._session.is_usable

    def close(self) -> None:
        """Close the session, whatever its state."""
        self._session.give_up()


def connect(settings: ChangesSettings) -> MySQLSession:
    """Open a session in autocommit, whose values mean the same whatever the server has set.

    :raises ServerUnreachable, AuthenticationFailed: as :class:`Server`.
    """
    with driver_errors(settings.where):
        # A server, or a proxy in front of it, that takes a connection and says nothing is waited
        # for no longer.
        seconds = settings.connect_args.get("connect_timeout", _HANDSHAKE_SECONDS)
        session = connected(
            {**settings.connect_args, "read_timeout": seconds, "write_timeout": seconds},
            _NAME,
            patient=False,
        )
        # PyMySQL cannot change a timeout once it has connected: this one is private.
        session.connection._read_timeout = ANSWER_SECONDS
        session.connection.autocommit(True)
        # A snapshot's view stands idle while the binlog is read in another session, for as long as
        # that takes: a shorter limit of the server's would end each attempt.
        session.limit_idleness(_IDLE_SECONDS)
        # Here values are only read and compared, and a strict mode of a newer MySQL refuses to
        # compare with dates that a table of before has: 0000-00-00, 2024-00-00.
        pinned = {
            "sql_mode": "''",
            "sql_quote_show_create": "ON",
            "lock_wait_timeout": _LOCK_SECONDS,
            "wait_timeout": _IDLE_SECONDS,
        }
        if not session.is_mariadb and session.version >= _HIDES_KEYS:
            # A table's key may be the server's own, and hidden; its binlog has it
            pinned["show_gipk_in_create_table_and_information_schema"] = "ON"
        words = ", ".join(f"{name} = {value}" for name, value in pinned.items())
        session.execute(f"SET SESSION {words}")
        return session


@contextmanager
def open_session(settings: ChangesSettings, server: str) -> Iterator[Server]:
    """Open a session at the server ``server`` for the ``with`` block."""
    # An address may lead to another server from one connection to the next (a proxy, a name that
    # was moved), so each session is checked before anything is concluded from it.
    session = Server(settings)
    try:
        if session.identity != server:
            raise ServerUnreachable(
                f"{settings.where} led to the server {server}, and leads to {session.identity} "
                "now",
                next_step="start the query again: it finds its place on the new server by GTIDs; "
                "where the address is a proxy's that spreads connections, let it lead to one "
                "server",
                details={"known": server, "found": session.identity},
            )
        yield session
    finally:
        session.close()


@contextmanager
def open_dump(settings: ChangesSettings, server: str, place: Coordinates) -> Iterator[Dump]:
    """Open a dump of the server ``server`` from ``place`` on for the ``with`` block.

    :raises ServerUnreachable: it does not answer, or the address leads to another server now.
    :raises BinlogPurged: the file is gone.
    :raises SourceReplaced: the file is shorter than that.
    :raises BinlogCorrupted: the server cannot read its binlog.
    """
    with open_session(settings, server) as session:
        dump = Dump(session.connection, session.dialect, place.file, place.pos)
        try:
            with dump:
                yield dump
        except DumpRefused as refusal:
            at = Coordinates(dump.reader.file, dump.reader.position)
            with open_session(settings, server) as again:
                raise _dump_error(again, at, refusal) from refusal


def _dump_error(server: Server, at: Coordinates, refusal: DumpRefused) -> OncewardError:
    """Return the error of a refused dump. Source: ``rpl_binlog_sender.cc``, MariaDB's
    ``sql_repl.cc``.
    """
    what = f"{server.where} says, asked for its binlog at {at}: {refusal.code}, {refusal.text}"
    if refusal.code != _REFUSED:
        return _driver_error(refusal.code, what, server.where)
    # The server refuses by one number, whatever the reason, with texts that differ by version: the
    # reason is in its state.
    size = server.binlogs().get(at.file, 0)
    details = {"at": str(at), "code": refusal.code}
    if not size:
        return BinlogPurged(
            f"{what}; the file is not there any more",
            next_step=f"{server.anew_advice}; and let the server keep its binlogs for longer than "
            "a query may stand still (binlog_expire_logs_seconds)",
            details=details,
        )
    if at.pos > size:
        return SourceReplaced(
            f"{what}; the file has {size} bytes, and is shorter than when it was read: the "
            "server's binlogs were reset, or it lost their end in a crash, or it is another "
            "server",
            next_step=server.anew_advice,
            details=details,
        )
    return BinlogCorrupted(
        what,
        next_step="the query tries again by itself; if that fails at the same place, run "
        f"mysqlbinlog --verify-binlog-checksum on the file, and {server.anew_advice}",
        details=details,
    )


def read_file_header(
    settings: ChangesSettings, server: str, file: str
) -> tuple[int | None, Gtids | None]:
    """Return when a binlog was created, and all transactions before it."""
    created_at = None
    with open_dump(settings, server, Coordinates(file, FIRST_BYTE)) as dump:
        for events in dump.blocks():
            for event in events:
                if event.kind == FORMAT_DESCRIPTION:
                    created_at = event.timestamp
                before = parse_previous_gtids(event)
                if before is not None or event.kind in TRANSACTION_STARTS:
                    return created_at, before
    return created_at, None


def follow(
    settings: ChangesSettings, at: Position, feed: Callable[[list[BinlogEvent]], bool]
) -> None:
    """Pass the events from ``at`` on to ``feed``, until it returns True or there are no more."""
    with open_dump(settings, at.server, at.place) as dump:
        for events in dump.blocks():
            if feed(events):
                return


@contextmanager
def driver_errors(where: str) -> Iterator[None]:
    """Raise errors of PyMySQL and of the network as ours, for the ``with`` block."""
    errors = driver().MySQLError
    try:
        yield
    except OncewardError:
        raise
    except (errors, OSError) as error:
        number = _number(error)
        is_numbered = number is not None and len(error.args) > 1
        text = str(error.args[1]) if is_numbered else str(error)
        raise _driver_error(
            number or 0, f"{where} says: ({number or 0}) {' '.join(text.split())}", where
        ) from error


def error_number(error: BaseException) -> int:
    """Return the number of PyMySQL's error that ``error`` is or was raised from; or 0."""
    cause = error.__cause__ if isinstance(error, OncewardError) else error
    return (_number(cause) or 0) if cause is not None else 0


def _number(error: BaseException) -> int | None:
    first = error.args[0] if isinstance(error, driver().MySQLError) and error.args else None
    return first if isinstance(first, int) else None


def driver() -> Any:
    """Import PyMySQL."""
    return library("changes of a MySQL or MariaDB server need PyMySQL", "mysql", "pymysql")


def _driver_error(number: int, text: str, where: str) -> OncewardError:
    if number in LOGIN_STEPS:
        return AuthenticationFailed(text, next_step=LOGIN_STEPS[number])
    if number in _DENIED:
        return AccessDenied(
            text,
            next_step="GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the login, and "
            "SELECT on the tables; then start the query again",
        )
    if number == _NOT_LOGGING:
        return _no_binlog_error(where)
    if number in _NOT_KNOWN:
        return ServerMisconfigured(text, next_step="see what the server says above")
    # Of any other number nobody knows that it will never pass
    then = SERVER_STEPS.get(number, "see whether it runs")
    return ServerUnreachable(text, next_step=f"{then}; the query goes on when it is started again")


def _no_binlog_error(where: str) -> ServerMisconfigured:
    return ServerMisconfigured(
        f"{where} writes no binlog",
        next_step="start the server with --log-bin, for MariaDB also --binlog-format=ROW",
    )
