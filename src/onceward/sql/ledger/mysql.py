"""A MySQL or MariaDB server, for :mod:`table`: addresses, sessions, and what has to be said to
them. Driver and executors.

What is not obvious:

* A strict mode is a matter of the session, and what it does not refuse is a *warning*: a text cut
  to its column, a number that was rounded. So a statement that gave one has failed
  (:class:`Warned`), whatever it did.
* CREATE and DROP commit. Who makes or drops staging tables holds a lock of the *session*
  (``GET_LOCK``), which that does not end, and a session's lock outlives the statement it is in the
  middle of.
* A client that is gone without a word holds the row's lock until the server ends its session:
  MariaDB has ``idle_transaction_timeout`` for that, MySQL only ``wait_timeout``, which also ends
  sessions between two batches. That is seen on the connection before anything is sent
  (:attr:`MySQLSession.is_usable`), also before a COMMIT: what was not sent cannot be in doubt.
* READ COMMITTED, for then only rows that are there get locked: the default, REPEATABLE READ, locks
  the gaps between them, too, against everybody else who writes to the same tables. Nothing here
  reads a row twice and trusts it.
"""

from __future__ import annotations

import hashlib
import io
import re
import select
import socket
import sys
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from onceward import surroundings
from onceward.errors import ConfigurationError, LedgerUnreachable, ServerMisconfigured
from onceward.libraries import library
from onceward.patience import Cut, cut_in_time, probe_if_idle
from onceward.sql.ledger.database import (
    LOOKS_EVERY_SECONDS,
    STATEMENT_SECONDS,
    Database,
    Overdue,
    Patience,
    Session,
    has_spoken,
    login_errors,
    tls_files,
    url_without_password,
)

# of MySQL, of MariaDB
_LEAST = {False: (8, 0), True: (10, 6)}
_TIMEOUTS = ("connect_timeout", "read_timeout", "write_timeout")
_CONNECT_SECONDS = 30
_HOLD_SECONDS = 60
_SILENT = ("SET", "CREATE", "DROP", "SHOW")
"""Statements that change no row; their notes ("exists already") are none of ours."""

_NOT_OF_ROWS = (1287, 1681, 3170, 3719, 3778, 4114, 4186, 4189)
"""Warnings that a word of a statement will be gone, or mean something else; that there was no
memory to plan a better way, or no histogram; that history partitions are full, or were not added.
"""

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_OPTIONS = {
    "ssl_ca": str, "ssl_cert": str, "ssl_key": str, "ssl_verify_cert": bool,
    "ssl_verify_identity": bool, "ssl_disabled": bool, "connect_timeout": int,
}  # fmt: skip
"""What an address may say behind ``?``, in PyMySQL's words."""

_MODES = (
    "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)
_PINNED = """SET SESSION
    sql_mode = '{modes}',
    time_zone = '+00:00', foreign_key_checks = 1, unique_checks = 1, sql_notes = 1,
    sql_auto_is_null = 0, sql_select_limit = 18446744073709551615, completion_type = 0,
    sql_safe_updates = 0,
    sql_big_selects = 1, max_sort_length = {sorted}, {limit} = 0"""
"""What a session's meaning of values hangs on, and what it does not say: a server may have set it
in another way. NO_AUTO_VALUE_ON_ZERO: else a 0 in an AUTO_INCREMENT column becomes another number.
completion_type: else a COMMIT may open another transaction. max_sort_length: so many bytes of a
text are all that is sorted by.
"""

_WARNINGS = "SET SESSION max_error_count = 64"
"""Only where the server keeps none: newer ones want SESSION_VARIABLES_ADMIN for it."""

_IN_A_GROUP = {
    "wsrep_sync_wait": "@@wsrep_sync_wait | 7",
    "group_replication_consistency": "CASE WHEN @@group_replication_consistency IN ('EVENTUAL', "
    "'BEFORE_ON_PRIMARY_FAILOVER') THEN 'BEFORE' ELSE @@group_replication_consistency END",
}
"""By default a node of Galera, or a member of Group Replication that has just become the primary,
shows itself as it was before what the others have committed. Behind an address that leads to
another one the ledger would seem cut off. With these a transaction first waits for what the group
has; of a server that has the variable. Source: *wsrep_sync_wait* in MariaDB's manual, *Configuring
Transaction Consistency Guarantees* in MySQL's.
"""

SORTED_BYTES = 4096
"""More, and some servers have no memory to sort with."""


class Warned(Exception):
    """A statement succeeded with a warning: it may have done something else than it was told to.
    Number and text, as in PyMySQL's errors.
    """


class Ended(Exception):
    """The server had ended the session before anything was sent. Number and text."""


class MySQL(Database):
    """At ``mysql://user:password@host:port/database`` or ``mariadb://…``. No error repeats it.

    :raises ConfigurationError: no such address, or PyMySQL is not installed.
    """

    kind = "mysql"
    hides_tables = True
    create = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline varchar(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    owner bigint NOT NULL,
    sequence bigint NOT NULL,
    state varchar(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    record longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    identity varchar(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    changed_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB"""
    be_there = (
        "INSERT INTO {table} (pipeline, owner, sequence, state, identity) VALUES (%s, 0, -1, '', "
        "%s) ON DUPLICATE KEY UPDATE pipeline = pipeline"
    )
    create_batches = """
CREATE TABLE IF NOT EXISTS {batches} (
    pipeline varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sequence bigint NOT NULL,
    state varchar(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    record longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (pipeline, sequence, state)
) ENGINE = InnoDB"""
    keep = "REPLACE INTO {batches} (pipeline, sequence, state, record) VALUES (%s, %s, %s, %s)"
    for_share = ""  # hold() does it

    def __init__(self, url: str) -> None:
        _driver()
        self.parameters = connect_parameters(
            url, "DatabaseLedger(url=…) is no address of a MySQL or MariaDB database"
        )
        """What PyMySQL needs to connect. It may hold a password."""
        self.host = self.parameters["host"]
        self.address = url_without_password("mysql", self.parameters, _OPTIONS)

    @property
    def where(self) -> Hashable:
        return (self.kind, *(self.parameters[name] for name in ("host", "port", "database")))

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (_driver().MySQLError, Warned, Ended, Overdue)

    def connect(self, name: str, idle_ms: int, statement_ms: int) -> Session:
        session = connected(self.parameters, name)
        wait = max(1, statement_ms // 1000)
        session.limit_idleness(max(1, idle_ms // 1000))
        session.execute(
            f"SET SESSION innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}"
        )
        return session

    def quoted(self, table: str) -> str:
        return ".".join(f"`{name}`" for name in table.split("."))

    def is_reserved(self, table: str) -> bool:
        schema, dot, _ = table.partition(".")
        return bool(dot) and schema in ("mysql", "sys", "information_schema", "performance_schema")

    def asked_for(self, table: str) -> tuple[str, tuple[object, ...]]:
        return (
            "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name "
            "= %s",
            self._parts(table),
        )

    def must_last(self, found: Any, table: str, place: str) -> None:
        if found[0] != "InnoDB":
            raise ServerMisconfigured(
                f"the ledger in {place} is kept by the engine {found[0]}, which has no "
                "transactions that last",
                next_step=f"ALTER TABLE {self.quoted(table)} ENGINE = InnoDB; or name another "
                "table",
            )

    def begin(self, session: Session) -> None:
        # Whatever the session's autocommit is: proxies that split reads go by this statement
        session.execute("START TRANSACTION")

    def must_be_one_session(self, session: Any) -> None:
        if session.mark and session.execute("SELECT @onceward_session").fetchone() != (
            session.mark,
        ):
            raise ServerMisconfigured(
                f"behind {self.host} is a proxy that carries out the statements of one session in "
                "several of the server's (multiplexing): what is set for ours, such as a strict "
                "mode, does not hold in them",
                next_step="let the url lead to the server itself; for a ledger alone, which "
                "loads no rows, the proxy may also keep one session of the server for each of "
                "this user's (ProxySQL: multiplex = 0 in mysql_query_rules)",
            )

    def ended_before(self, error: Exception) -> bool:
        return isinstance(error, Ended)

    def hold(self, session: Session, table: str, pipeline: str) -> None:
        # CREATE and DROP commit: no lock of a row lasts across them, but one of the session.
        # 1. an older copy checks that it owns the chain, and stands still;
        # 2. a newer copy takes the chain and drops the staging tables that it finds;
        # 3. without the lock the older copy would create its table now, and nobody would drop it.
        self.begin(session)
        lock = (self._lock(table, pipeline), _HOLD_SECONDS)
        try:
            (got,) = session.execute("SELECT GET_LOCK(%s, %s)", lock).fetchone()
        except _driver().MySQLError as error:
            if "GET_LOCK" not in str(error):
                raise
            raise ServerMisconfigured(
                f"the server at {self.host} refuses GET_LOCK, for staging tables: {error}",
                next_step="SET GLOBAL pxc_strict_mode = MASTER (Percona XtraDB Cluster), and "
                "write to one node; of MariaDB take a later release; then start the query again",
            ) from error
        if got != 1:
            raise LedgerUnreachable(
                f"another copy of pipeline {pipeline} has been making or dropping staging tables "
                "for a minute",
                next_step="see in SHOW PROCESSLIST what it waits for; then start the query again",
            )

    def let_go(self, session: Session, table: str, pipeline: str) -> None:
        self.begin(session)
        session.execute("SELECT RELEASE_LOCK(%s)", (self._lock(table, pipeline),))
        session.commit()

    def _lock(self, table: str, pipeline: str) -> str:
        text = "/".join([*self._parts(table), pipeline])
        return f"onceward_{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _parts(self, table: str) -> tuple[str, str]:
        schema, _, name = table.rpartition(".")
        return schema or str(self.parameters["database"]), name


_IDLE = (
    "idle_transaction_timeout", "idle_write_transaction_timeout",
    "idle_readonly_transaction_timeout",
)  # fmt: skip


class MySQLSession:
    """PyMySQL's connection in the manner of :class:`~onceward.sql.ledger.database.Session`."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.mark = ""
        """What the server's own session should have as a variable, if that was said."""
        self.patience = Patience(f"the database at {connection.host}")
        version = connection.get_server_info()
        self.is_mariadb = "MariaDB" in version
        self.is_galera = False
        # MariaDB puts 5.5.5- before its own, for old replicas.
        numbers = re.match(r"(?:5\.5\.5-(?=1\d\.))?(\d+)\.(\d+)(?:\.(\d+))?", version)
        self.version = tuple(int(number or 0) for number in numbers.groups()) if numbers else (0,)
        if self.version < _LEAST[self.is_mariadb]:
            raise ServerMisconfigured(
                f"the server at {connection.host} is {version}",
                next_step="use MySQL 8.0 or later, or MariaDB 10.6 or later",
            )

    @property
    def is_usable(self) -> bool:
        sock = self.connection._sock
        return sock is not None and not has_spoken(sock.fileno())

    def execute(self, statement: str, parameters: Any = None, /) -> Any:
        self.patience.begin()
        cursor = self.connection.cursor()
        cursor.execute(statement, parameters)
        if cursor.warning_count and not statement.lstrip().startswith(_SILENT):
            warned = self.connection.cursor()
            warned.execute("SHOW WARNINGS")
            warnings = [(int(code), str(text)) for _, code, text in warned] or [
                (0, "a warning that is gone")
            ]
            warnings = [one for one in warnings if one[0] not in _NOT_OF_ROWS]
            if warnings:
                raise Warned(*warnings[0])
        return cursor

    def limit_idleness(self, seconds: int) -> None:
        """Let the server end the session when it stands still for so long in a transaction."""
        # Of MariaDB's three the one for what the transaction did until then holds
        limits = _IDLE if self.is_mariadb else ("wait_timeout",)
        self.execute("SET SESSION " + ", ".join(f"{name} = {seconds}" for name in limits))

    def commit(self) -> None:
        """Commit the transaction.

        :raises Ended: the server had ended the session before: nothing was sent or committed.
        """
        if not self.is_usable:
            raise Ended(
                2013, "the server has ended the session, which stood still in its transaction"
            )
        self.patience.begin()
        self.connection.commit()

    def rollback(self) -> None:
        self.patience.begin()
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()

    def give_up(self) -> None:
        """Close it, whatever state it is in."""
        with suppress(Exception):
            self.connection.close()


def connected(parameters: Mapping[str, Any], name: str, *, patient: bool = True) -> MySQLSession:
    """Open a session with all pinned settings.

    :param patient: for a ledger or a sink: its server takes writes, and its statements are waited
        for by its ``patience``, and whoever is to be asked meanwhile is. Else by PyMySQL alone,
        for whoever reads a stream of it, also of a replica.
    """
    driver = _driver()
    timeout = parameters.get("connect_timeout", _CONNECT_SECONDS)
    password = parameters["password"].encode(errors="surrogateescape")  # else it is in Latin-1
    with tls_files("ssl_ca, ssl_cert or ssl_key"):
        connection = driver.connect(
            **{**dict.fromkeys(_TIMEOUTS, timeout), **parameters, "password": password},
            charset="utf8mb4", program_name=name, defer_connect=True, local_infile=True,
            client_flag=driver.constants.CLIENT.FOUND_ROWS,  # also rows that are as they were
        )  # fmt: skip
    # But where we say so: may_load()
    connection._local_infile = False
    _connect(connection, parameters, timeout)
    session = MySQLSession(connection)
    if patient:
        connection._rfile = io.BufferedReader(_PatientReader(session))
        # Of a part of what is read or sent
        connection._read_timeout = connection._write_timeout = STATEMENT_SECONDS
    limit = "max_statement_time" if session.is_mariadb else "max_execution_time"
    session.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
    pinned = _PINNED.replace("{modes}", _MODES).replace("{limit}", limit)
    session.execute(pinned.replace("{sorted}", str(SORTED_BYTES)))
    if session.execute("SELECT @@max_error_count").fetchone() == (0,):
        session.execute(_WARNINGS)
    if session.is_mariadb:
        session.execute("SET SESSION check_constraint_checks = 1")
    if patient:
        _must_be_up_to_date(session)
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
    session.mark = surroundings.random_bytes(8).hex()
    session.execute("SET @onceward_session = %s", (session.mark,))
    return session


def _connect(connection: Any, parameters: Mapping[str, Any], timeout: float) -> None:
    """Connect and log in. PyMySQL's limit is one for each piece of what the server says."""
    failed = _driver().OperationalError
    at = parameters["host"], parameters["port"]
    place = "{}:{}".format(*at)

    def reach(cut: Cut) -> None:
        try:
            # The name may have several, of which the first ones are silent
            addresses = socket.getaddrinfo(*at, type=socket.SOCK_STREAM)
            sock = socket.create_connection(at, timeout / len(addresses))
            sock.settimeout(timeout)
        except OSError as error:
            raise failed(2003, f"cannot connect to {place}: {error}") from error
        cut.watch(sock)
        _notice_silence(sock)
        with login_errors(failed):
            connection.connect(sock)

    limit = 2 * timeout  # To connect, and to log in
    late = failed(2003, f"{place} has not let this client in for {limit:g} s")
    cut_in_time(reach, limit, "onceward-connect", late=late)


def _must_be_up_to_date(session: MySQLSession) -> None:
    """Let transactions see what the server's group has committed, and refuse a replica, which may
    lack what the ledger is known to have (PostgreSQL: ``target_session_attrs``).
    """
    names = ", ".join(f"'{name}'" for name in ("wsrep_on", *_IN_A_GROUP))
    has = dict(session.execute(f"SHOW VARIABLES WHERE variable_name IN ({names})").fetchall())
    session.is_galera = has.get("wsrep_on") == "ON"
    for name in _IN_A_GROUP.keys() & has.keys():
        session.execute(f"SET SESSION {name} = {_IN_A_GROUP[name]}")
    session.execute("START TRANSACTION READ WRITE")
    session.rollback()


class _PatientReader(io.RawIOBase):
    """What comes from the server. Asks the session's ``patience`` while nothing does."""

    def __init__(self, session: MySQLSession) -> None:
        self._session = session
        self._poll = select.poll()
        self._poll.register(session.connection._sock.fileno(), select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        sock = self._session.connection._sock
        # TLS has read more than it was asked for
        in_hand = getattr(sock, "pending", lambda: 0)
        while not in_hand() and not self._poll.poll(1000 * LOOKS_EVERY_SECONDS):
            self._session.patience.look()
        return int(sock.recv_into(buffer))


@contextmanager
def may_load(session: Any) -> Iterator[None]:
    """Allow the server to read a file of this process inside the block, as LOAD DATA LOCAL does;
    outside, requests for files are refused.
    """
    session.connection._local_infile = True
    try:
        yield
    finally:
        session.connection._local_infile = False


def _notice_silence(sock: socket.socket) -> None:
    """Notice a server that vanished in half a minute instead of TCP's quarter of an hour."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    probe_if_idle(sock, idle_s=10, every_s=5, times=4)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def connect_parameters(url: str, refusal: str, *, database: bool = True) -> dict[str, Any]:
    """Parse ``mysql://user:password@host:port/database`` into the arguments of PyMySQL's
    ``connect``. They may hold a password.

    :param refusal: what the error says.
    :param database: must one be named?
    :raises ConfigurationError: it is no such address.
    """
    refused = ConfigurationError(
        refusal,
        next_step=f"pass mysql://user:password@host:port{'/database' if database else ''}; in a "
        "password write % as %25, and other special characters in the same way; behind ? there "
        f"may be {', '.join(_OPTIONS)}",
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 3306
    except (AttributeError, TypeError, ValueError):
        # not raised in here: the one error would remember the other, which quotes the password
        parts = None
    if parts is None:
        raise refused
    name = unquote(parts.path[1:])
    if (
        parts.scheme not in ("mysql", "mariadb")
        or not host
        or (database and not name)
        or "/" in name
        or "@" in parts.path + parts.query
        or parts.fragment
    ):
        raise refused
    more: dict[str, Any] = {}
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        kind = _OPTIONS.get(option)
        if kind is None or (kind is int and not value.isdecimal()):
            raise refused
        if kind is bool and value.lower() not in _FLAGS:
            raise refused
        more[option] = _FLAGS[value.lower()] if kind is bool else kind(value)
    password = unquote(parts.password or "", errors="surrogateescape")
    login = {"user": unquote(parts.username or ""), "password": password}
    return {"host": host, "port": port, **({"database": name} if name else {}), **login, **more}


def _driver() -> Any:
    return library(
        "a ledger in MySQL or MariaDB needs PyMySQL", "mysql", "pymysql", "constants.CLIENT"
    )
