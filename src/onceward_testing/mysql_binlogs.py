"""Settings of a MySQL or MariaDB whose binlogs tell all changes, and one as the replica of
another.

Called by :mod:`local_mysql`. What is set here is what :func:`onceward.mysql_changes` asks of a
server. The statements are those of MySQL's manual, "Setting Up Replication Using GTIDs", and of
MariaDB's page "Global Transaction ID".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceward.errors import ConfigurationError, ResourceError
from onceward.libraries import library
from onceward_testing.mysql_servers import Kind

NAME = "binlog"
"""Prefix of the binlogs' names: ``binlog.000001``."""

_BOTH = {
    "log-bin": NAME,
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "binlog-checksum": "CRC32",  # older MariaDBs' default is NONE
    "relay-log": "relay",  # without the machine's name, which may change
    "relay-log-recovery": "1",  # nothing waits for the disk: a crash may cut the relay log short
    "slave-net-timeout": "4",  # a primary that was killed is missed within seconds
}
_OF: dict[Kind, dict[str, str]] = {
    "mysql": {"gtid-mode": "ON", "enforce-gtid-consistency": "ON"},
    # MySQL does so by itself: a replica's binlogs tell its primary's transactions.
    # gtid_strict_mode is as by default.
    "mariadb": {"log-slave-updates": "1"},
}
_POLL_SECONDS = 0.02
_LONGEST_SECONDS = 60.0
_STATES = ("Slave_IO_Running", "Slave_SQL_Running", "Last_IO_Error", "Last_SQL_Error")


@dataclass(frozen=True)
class ServerAccess:
    """A server that runs, and how its user ``onceward`` gets in."""

    kind: Kind
    product: str
    port: int
    password: str = field(repr=False)


def binlog_settings(kind: Kind) -> dict[str, str]:
    """Return options of a server, under a number that no other server has.

    MySQL gives itself a UUID, too, in its data.
    """
    return {**_BOTH, **_OF[kind], "server-id": str(secrets.randbelow(2**31 - 2) + 2)}


def follow(replica: ServerAccess, primary: ServerAccess) -> None:
    """Make ``replica`` take over all transactions of ``primary`` that it has not, from now on and
    after each start.

    :raises ConfigurationError: two kinds. :raises ResourceError: it does not get on with it.
    """
    if replica.kind != primary.kind:
        raise ConfigurationError(
            f"{replica.product} does not follow {primary.product} here",
            next_step="take two servers of one kind",
        )
    source = {
        "HOST": "127.0.0.1",
        "PORT": primary.port,
        "USER": "onceward",
        "PASSWORD": primary.password,
    }
    with _connect(replica) as run:
        words = _words(run, replica.kind)
        run(f"STOP {words.replica}")
        if replica.kind == "mariadb":
            # Who was a primary knows what it wrote, and not yet that it need not be given that
            # again.
            run("SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos")
            how = "MASTER_USE_GTID = slave_pos, MASTER_SSL = 0"
        else:
            # A password may not be sent in clear to a newer server, and there is no TLS: so by the
            # server's key.
            how = f"{words.source}_AUTO_POSITION = 1, GET_{words.source}_PUBLIC_KEY = 1"
        what = ", ".join(f"{words.source}_{name} = %s" for name in source)
        run(f"{words.change} TO {what}, {how}, {words.source}_CONNECT_RETRY = 1", *source.values())
        run(f"START {words.replica}")
        _wait_until(
            lambda: _follows(run, words),
            lambda: _replica_status(run, words),
            f"{replica.product} does not follow",
        )


def wait_for(replica: ServerAccess, primary: ServerAccess) -> None:
    """Wait until ``replica`` has carried out all that ``primary`` has committed by now.

    :raises ResourceError: it has not after a minute.
    """
    with _connect(primary) as ask, _connect(replica) as run:
        ((target,),) = ask(
            f"SELECT @@GLOBAL.{'gtid_executed' if primary.kind == 'mysql' else 'gtid_binlog_pos'}"
        )
        waits = "WAIT_FOR_EXECUTED_GTID_SET" if primary.kind == "mysql" else "MASTER_GTID_WAIT"
        ((late,),) = run(f"SELECT {waits}(%s, {_LONGEST_SECONDS:g})", target)
        if late:
            status = _replica_status(run, _words(run, replica.kind))
            raise _replication_error(
                f"{replica.product} has not carried out {target} after a minute", status
            )


def promote_replica(replica: ServerAccess) -> None:
    """Make ``replica`` carry out what it has received, follow nobody any more, and be a primary:
    as one does it whose primary is dead.

    :raises ResourceError: what it received cannot be carried out.
    """
    with _connect(replica) as run:
        words = _words(run, replica.kind)
        run(f"STOP {words.replica} IO_THREAD")
        _wait_until(
            lambda: _all_is_carried_out(run, words),
            lambda: _replica_status(run, words),
            f"{replica.product} lags",
        )
        run(f"STOP {words.replica}")
        run(f"RESET {words.replica} ALL")


class Words(NamedTuple):
    """A server's words in statements, and in the columns of its state."""

    change: str
    source: str
    replica: str


_OLD, _NEW = (
    Words("CHANGE MASTER", "MASTER", "SLAVE"),
    Words("CHANGE REPLICATION SOURCE", "SOURCE", "REPLICA"),
)


def _words(run: Execute, kind: Kind) -> Words:
    """Return the server's words: MySQL has the new ones since 8.0.23, and since 8.4 no others."""
    ((version,),) = run("SELECT VERSION()")
    number = tuple(int(part) for part in version.split("-")[0].split("."))
    return _NEW if kind == "mysql" and number >= (8, 0, 23) else _OLD


def _follows(run: Execute, words: Words) -> bool:
    status = _replica_status(run, words)
    return status["Slave_IO_Running"] == status["Slave_SQL_Running"] == "Yes"


def _all_is_carried_out(run: Execute, words: Words) -> bool:
    """Return whether it has applied its whole relay log.

    Without a thread that reads, that does not grow.
    """
    state = _state(run, words)
    if state["Slave_IO_Running"] != "No":
        return False
    if "Retrieved_Gtid_Set" in state:
        ((done,),) = run(
            "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", state["Retrieved_Gtid_Set"]
        )
        return bool(done)
    received, applied = (
        ("Master_Log_File", "Read_Master_Log_Pos"),
        ("Relay_Master_Log_File", "Exec_Master_Log_Pos"),
    )
    return [state[name] for name in received] == [state[name] for name in applied]


def _state(run: Execute, words: Words) -> dict[str, Any]:
    """Return the state by the old names of its columns; empty where it follows nobody."""
    renamed = {words.source.capitalize(): "Master", words.replica.capitalize(): "Slave"}
    for found in run.table(f"SHOW {words.replica} STATUS"):
        return {
            "_".join(renamed.get(part, part) for part in name.split("_")): status
            for name, status in found.items()
        }
    return {}


def _replica_status(run: Execute, words: Words) -> dict[str, str]:
    state = _state(run, words)
    return {name: str(state.get(name, "")) for name in _STATES}


def _wait_until(
    holds: Callable[[], bool], status: Callable[[], dict[str, str]], otherwise: str
) -> None:
    ends = time.monotonic() + _LONGEST_SECONDS
    while not holds():
        now = status()
        if now["Last_SQL_Error"] or time.monotonic() > ends:
            raise _replication_error(otherwise, now)
        time.sleep(_POLL_SECONDS)


def _replication_error(what: str, status: dict[str, str]) -> ResourceError:
    return ResourceError(
        f"{what}: {', '.join(f'{name} {value!r}' for name, value in status.items())}",
        next_step="read the servers' words above, and their server.log",
    )


class Execute:
    """Statements over one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows that it gives."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def table(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows that ``statement`` finds, by the columns' names."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextmanager
def _connect(server: ServerAccess) -> Iterator[Execute]:
    pymysql = library("LocalMySQL needs PyMySQL to set up replication", "mysql", "pymysql")
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user="onceward", password=server.password,
        autocommit=True,
        ssl_disabled=True,
    )  # fmt: skip
    try:
        yield Execute(connection)
    finally:
        connection.close()
