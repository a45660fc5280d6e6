"""Settings of a MySQL or MariaDB whose binlogs tell all changes, and one as the replica of another.

Called by :mod:`local_mysql`. What is set here is what :func:`onceward.mysql_changes` asks of a server. The statements
are those of MySQL's manual, "Setting Up Replication Using GTIDs", in the words that 8.0.12 knows where MySQL is below
8.0.23; and of MariaDB's page "Global Transaction ID".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onceward.errors import ConfigurationError, ResourceError
from onceward.libraries import library

if TYPE_CHECKING:
    from onceward.testing.local_mysql import LocalMySQL
    from onceward.testing.mysql_servers import Kind

NAME = "binlog"
"""How the names of the binlogs begin: ``binlog.000001``."""

_BOTH = {
    "log-bin": NAME,
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "binlog-checksum": "CRC32",  # MariaDB's default is NONE
    "log-slave-updates": "1",  # a replica's binlogs tell the same transactions
    "relay-log": "relay",  # without the machine's name, which may change
    "relay-log-recovery": "1",  # nothing waits for the disk: a crash may cut the relay log short
    "slave-net-timeout": "4",  # a primary that was killed is missed within seconds
}
_OF: dict[Kind, dict[str, str]] = {
    "mysql": {"gtid-mode": "ON", "enforce-gtid-consistency": "ON"},
    "mariadb": {"gtid-strict-mode": "1"},
}
_POLL_SECONDS = 0.02
_LONGEST_SECONDS = 60.0
_STATES = ("Slave_IO_Running", "Slave_SQL_Running", "Last_IO_Error", "Last_SQL_Error")


def binlog_settings(kind: Kind) -> dict[str, str]:
    """Options of a server, under a number that no other server has. MySQL gives itself a UUID, too, in its data."""
    return {**_BOTH, **_OF[kind], "server-id": str(secrets.randbelow(2**31 - 2) + 2)}


def follow(replica: LocalMySQL, primary: LocalMySQL) -> None:
    """``replica`` takes over all transactions of ``primary`` that it has not, from now on and after each start.

    :raises ConfigurationError: two kinds. :raises ResourceError: it does not get on with it.
    """
    if replica.kind != primary.kind:
        raise ConfigurationError(
            f"{replica.product} does not follow {primary.product} here",
            next_step="take two servers of one kind",
        )
    host = "MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'onceward', MASTER_PASSWORD = %s"
    how = "MASTER_AUTO_POSITION = 1" if replica.kind == "mysql" else "MASTER_USE_GTID = slave_pos, MASTER_SSL = 0"
    with _connected(replica) as run:
        run("STOP SLAVE")
        if replica.kind == "mariadb":
            # Who was a primary knows what it wrote, and not yet that it need not be given that again.
            run("SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos")
        run(f"CHANGE MASTER TO {host}, {how}, MASTER_CONNECT_RETRY = 1", primary.port, primary.password)
        run("START SLAVE")
        _until(lambda: _follows(run), lambda: _told(run), f"{replica.product} does not follow")


def wait_for(replica: LocalMySQL, primary: LocalMySQL) -> None:
    """Returns when ``replica`` has carried out all that ``primary`` has committed by now.

    :raises ResourceError: it has not after a minute.
    """
    with _connected(primary) as ask, _connected(replica) as run:
        ((target,),) = ask(f"SELECT @@GLOBAL.{'gtid_executed' if primary.kind == 'mysql' else 'gtid_binlog_pos'}")
        waits = "WAIT_FOR_EXECUTED_GTID_SET" if primary.kind == "mysql" else "MASTER_GTID_WAIT"
        ((late,),) = run(f"SELECT {waits}(%s, {_LONGEST_SECONDS:g})", target)
        if late:
            raise _failed(f"{replica.product} has not carried out {target} after a minute", _told(run))


def promoted(replica: LocalMySQL) -> None:
    """``replica`` carries out what it has received, follows nobody any more, and is a primary: as one does it whose
    primary is dead.

    :raises ResourceError: what it received cannot be carried out.
    """
    with _connected(replica) as run:
        run("STOP SLAVE IO_THREAD")
        _until(lambda: _all_is_carried_out(run, replica.kind), lambda: _told(run), f"{replica.product} lags")
        run("STOP SLAVE")
        run("RESET SLAVE ALL")


def _follows(run: Run) -> bool:
    told = _told(run)
    return told["Slave_IO_Running"] == told["Slave_SQL_Running"] == "Yes"


def _all_is_carried_out(run: Run, kind: Kind) -> bool:
    """Has it applied its whole relay log? Without a thread that reads, that does not grow."""
    state = run.table("SHOW SLAVE STATUS")[0]
    if state["Slave_IO_Running"] != "No":
        return False
    if kind == "mysql":
        ((done,),) = run("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", state["Retrieved_Gtid_Set"])
        return bool(done)
    return (state["Master_Log_File"], state["Read_Master_Log_Pos"]) == (
        state["Relay_Master_Log_File"],
        state["Exec_Master_Log_Pos"],
    )


def _told(run: Run) -> dict[str, str]:
    state = (run.table("SHOW SLAVE STATUS") or [{}])[0]
    return {name: str(state.get(name, "")) for name in _STATES}


def _until(holds: Callable[[], bool], told: Callable[[], dict[str, str]], otherwise: str) -> None:
    ends = time.monotonic() + _LONGEST_SECONDS
    while not holds():
        now = told()
        if now["Last_SQL_Error"] or time.monotonic() > ends:
            raise _failed(otherwise, now)
        time.sleep(_POLL_SECONDS)


def _failed(what: str, told: dict[str, str]) -> ResourceError:
    return ResourceError(
        f"{what}: {', '.join(f'{name} {value!r}' for name, value in told.items())}",
        next_step="read the servers' words above, and their server.log",
    )


class Run:
    """Statements over one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows that it gives."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def table(self, statement: str) -> list[dict[str, Any]]:
        """The same by the columns' names."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextmanager
def _connected(server: LocalMySQL) -> Iterator[Run]:
    pymysql = library("LocalMySQL needs PyMySQL to set up replication", "mysql", "pymysql")
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user="onceward", password=server.password, autocommit=True,
        ssl_disabled=True,
    )  # fmt: skip
    try:
        yield Run(connection)
    finally:
        connection.close()
