"""What a ledger's table, and a sink's tables beside it, need of a database server: sessions, and
the words in which kinds of servers differ. An interface; :mod:`postgresql` and :mod:`mysql` are
it. Driver only.

How long a session waits for a server that says nothing. Driver; MySQL's in executors, too.

A server that stands still, and a COMMIT that waits for a standby that is gone, keep their
connection: the kernel answers its keepalives, and no limit of the server's own applies. So whoever
waits for an answer looks every moment whether it has been long enough, says in the log that it
waits, and asks whether anybody waits for it in turn (:mod:`onceward.patience`).
"""

from __future__ import annotations

import logging
import select
import ssl
from abc import ABC, abstractmethod
from collections.abc import Container, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

from onceward import patience, surroundings
from onceward.errors import FileUnreadable

log = logging.getLogger(__name__)

STATEMENT_SECONDS = 90.0
"""Longer than servers are asked to wait themselves: they know why."""
COMMIT_SECONDS = READ_SECONDS = 30.0
LOOKS_EVERY_SECONDS = 0.25
_SAID_EVERY_SECONDS = 30.0
_SECONDS_AT_LEAST = 600.0
_ROWS_PER_SECOND = 100
"""The slowest server, with triggers and indexes, that is not taken for one that stands still."""
_LOGIN = (
    "correct the user and the password in the url (what is not ASCII is sent as UTF-8; %FC is the "
    "byte ü of a login that was made in Latin-1); a login with REQUIRE SSL is let in by TLS alone"
)
_EXPIRED = "give the login a new password (ALTER USER … IDENTIFIED BY …), and the url the same"
_UNLOCK = (
    "ALTER USER … ACCOUNT UNLOCK for the login, and see that the password in the url is right"
)
_OTHER_PLUGIN = (
    "let the login have a plugin that PyMySQL has (ALTER USER … IDENTIFIED WITH "
    "caching_sha2_password BY …; of MariaDB IDENTIFIED VIA mysql_native_password USING …), or "
    "install the package that the error names (pip install PyNaCl for MariaDB's ed25519)"
)
LOGIN_STEPS = {
    **dict.fromkeys((1045, 1698), _LOGIN),
    **dict.fromkeys((1820, 1862), _EXPIRED),
    **dict.fromkeys((3118, 3955, 4151), _UNLOCK),
    **dict.fromkeys((1524, 2059, 2061), _OTHER_PLUGIN),
    1129: "unblock the client's host on the server (MySQL: TRUNCATE TABLE "
    "performance_schema.host_cache; MariaDB: FLUSH HOSTS), and see what ends its connections "
    "before they log in (max_connect_errors)",
    1130: "let the login be one for the host that the error names (CREATE USER user@host …)",
    2026: "see that ssl_ca in the url has what signed the server's certificate (which may be a "
    "new one), that this is for the url's host and has not expired, and that the server has TLS",
    3159: "take ssl_disabled=true out of the url: the server takes connections by TLS alone",
    4150: "FLUSH PRIVILEGES on the server, and see that the password in the url is right",
}
"""The next step where MySQL or MariaDB does not let a login in, by number: 1045 and 1698 of a
password, 1129 and 1130 of a host; 1820 and 1862 expired, 3118 and 4151 (MariaDB) locked, 3955 and
4150 (MariaDB) after too many wrong passwords; 1524 of the server, 2059 and 2061 of PyMySQL without
its plugin; 3159 without TLS, 2026 where that failed.
"""
_WRITES = "see that the url leads to a server that takes writes (SELECT @@read_only)"
SERVER_STEPS = {
    **LOGIN_STEPS,
    **dict.fromkeys((1021, 1114), "make room on the server's disk"),
    1047: "see whether a node of Galera is ready, which waits for its cluster (SHOW STATUS LIKE "
    "'wsrep_ready'); where a proxy says so, let the address lead to the server itself",
    1040: "raise max_connections, or close what holds them (SHOW PROCESSLIST)",
    1203: "raise max_user_connections, or close what holds them (SHOW PROCESSLIST)",
    1226: "raise the limit that the server names (ALTER USER … WITH …)",
    **dict.fromkeys((1290, 1836), _WRITES),
}
"""The same, and where a server has no room, is not ready yet, or takes no writes."""


def is_missing(error: BaseException) -> bool:
    """Return whether a MySQL or MariaDB says that there is no such table, or no such database."""
    return error.args[:1] in ((1049,), (1146,))


class Overdue(Exception):
    """There is no answer, and no more waiting. The session is of no use any more, and whether the
    statement is carried out is not known.
    """


def seconds_for(rows: int) -> float:
    """Return the seconds that a statement over so many rows may take."""
    return _SECONDS_AT_LEAST + rows / _ROWS_PER_SECOND


class Patience:
    """Of one session.

    :param place: for messages, where the server is.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._limit = STATEMENT_SECONDS
        self._what = "a statement"
        self._since = surroundings.monotonic()
        self._warned_at = 0.0

    def begin(self) -> None:
        """Start the clock: a statement is sent."""
        self._since = surroundings.monotonic()
        self._warned_at = 0.0

    def look(self) -> None:
        """Check the deadline: nothing has arrived for a moment.

        :raises Overdue: it has been long enough.
        :raises Exception: what those raise who are asked.
        """
        patience.ask()
        waited = surroundings.monotonic() - self._since
        # The only limit that always applies: the kernel of a stopped server still answers
        # keepalives, and `statement_timeout` does not end a COMMIT that waits for a synchronous
        # standby.
        if waited > self._limit:
            raise Overdue(f"{self._place} has not answered {self._what} for {self._limit:g} s")
        if waited - self._warned_at > _SAID_EVERY_SECONDS:
            self._warned_at = waited
            log.warning("%s has not answered %s for %.0f s", self._place, self._what, waited)

    @contextmanager
    def of(self, seconds: float, what: str) -> Iterator[None]:
        """Limit the statements inside the block to so many seconds."""
        before = self._limit, self._what
        self._limit, self._what = seconds, what
        try:
            yield
        finally:
            self._limit, self._what = before


class Session(Protocol):
    """A connection, in psycopg's manner: a transaction begins with the first statement, and
    parameters are ``%s``.
    """

    patience: Patience
    """How long it waits for an answer."""

    @property
    def is_usable(self) -> bool:
        """Can it be used, as far as that shows without asking the server?"""

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        """Run a statement and return its cursor: ``rowcount``, ``fetchone()``, and its rows."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def has_spoken(socket: int) -> bool:
    """Return whether the server has said something unasked: the end of the connection, say."""
    poll = select.poll()
    poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


@contextmanager
def tls_files(options: str) -> Iterator[None]:
    """Raise what a driver says of files for TLS, named by ``options`` of the url, as our error."""
    try:
        yield
    except OSError as error:
        # ssl.SSLError is one, too
        raise FileUnreadable(
            f"a file that {options} of the url names cannot be read: {error}",
            next_step="give PEM files that the driver and every executor can read at this path",
        ) from error


@contextmanager
def login_errors(failed: type[Exception]) -> Iterator[None]:
    """Raise what PyMySQL raises at a login under the number that MySQL's own client has for it.

    :param failed: PyMySQL's ``OperationalError``.
    """
    try:
        yield
    except RuntimeError as error:
        # A plugin (ed25519) whose package PyMySQL does not find: CR_AUTH_PLUGIN_CANNOT_LOAD
        raise failed(2059, str(error)) from error
    except failed as error:
        met = getattr(error, "original_exception", None)
        cut_off = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
        if not isinstance(met, ssl.SSLError) or isinstance(met, cut_off):
            raise
        # TLS said no, to a certificate or a host: CR_SSL_CONNECTION_ERROR. PyMySQL has 2003 for
        # it, as for a server that is away
        raise failed(2026, *error.args[1:]) from error


def server_step(error: Exception, otherwise: str) -> str:
    """Return the next step behind an error of the client library, where its number tells one;
    psycopg has none for a login that is refused, only words.
    """
    return SERVER_STEPS.get(error.args[0] if error.args else 0, otherwise)


class Database(ABC):
    """A server of one kind, and how it is reached. Nothing is connected before :meth:`connect`."""

    kind: ClassVar[str]
    host: str
    """Where it is, for messages."""

    hides_tables: ClassVar[bool] = False
    """Whether :meth:`asked_for` finds no table on which the login has no right."""
    create: ClassVar[str]
    """The ledger's table, ``{table}``, if it is missing."""
    be_there: ClassVar[str]
    """A row for a pipeline, owned by nobody yet, with an identity, if it is missing."""
    create_batches: ClassVar[str]
    """The table of batches, ``{batches}``, if it is missing."""
    keep: ClassVar[str]
    """A row of it, for pipeline, sequence, state and record; in the place of one that is there."""
    for_share: ClassVar[str]
    """Behind a query: its row stays as it is while the transaction lasts."""
    address: str
    """The URL of server and database, with the user and without a password."""
    durably: ClassVar[tuple[str, ...]] = ()
    """Behind :meth:`begin`, in a transaction that must outlast a crash of the server."""

    @property
    @abstractmethod
    def where(self) -> Hashable:
        """Names the server and the database."""

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Of the client library."""

    @abstractmethod
    def connect(self, name: str, idle_ms: int, statement_ms: int) -> Session:
        """Open a session whose values mean the same whatever server, database or login has set.

        :param name: who asks, for the server's own lists.
        :param idle_ms: how long it may stand still in a transaction until that is undone.
        :param statement_ms: how long a statement may wait.
        """

    @abstractmethod
    def quoted(self, table: str) -> str:
        """Quote ``name`` or ``schema.name`` for SQL."""

    @abstractmethod
    def is_reserved(self, table: str) -> bool:
        """Return whether a table of that name is the server's own."""

    @abstractmethod
    def asked_for(self, table: str) -> tuple[str, tuple[object, ...]]:
        """Return a query that has a row if the ledger's table exists, and its parameters."""

    @abstractmethod
    def must_last(self, found: Any, table: str, place: str) -> None:
        """Check that the table survives a crash of the server.

        :raises ServerMisconfigured: by the row found, a crash may empty the table.
        """

    def begin(self, session: Session) -> None:  # noqa: B027
        """Begin a transaction, where a proxy does not see from a statement that it is part of one:
        it asks a replica then, which lags.
        """

    def must_be_one_session(self, session: Session) -> None:  # noqa: B027
        """Check that the session is not shared by a pooler. Called inside a transaction that
        depends on the session's settings.

        :raises ServerMisconfigured: a pooler has put another in its place.
        """

    def was_there(self, error: Exception) -> bool:
        """Return whether a CREATE failed because another session had created the object first."""
        return False

    @abstractmethod
    def ended_before(self, error: Exception) -> bool:
        """Return whether server or session shows that the transaction ended before COMMIT."""

    def hold(self, session: Session, table: str, pipeline: str) -> None:  # noqa: B027
        """Lock the pipeline's staging tables where CREATE and DROP end a transaction, and
        :attr:`for_share` is therefore not enough: no other session that calls this creates or
        drops them until :meth:`let_go`, or the end of this session.
        """

    def let_go(self, session: Session, table: str, pipeline: str) -> None:  # noqa: B027
        """See :meth:`hold`."""


def url_without_password(
    scheme: str, parameters: Mapping[str, Any], options: Container[str]
) -> str:
    """Return the URL of ``parameters``, as a driver has parsed them: ``user``, ``host`` and
    ``port`` (both may be several, with commas), ``database``, and ``options``, which are those
    that are known to be no secret.
    """
    hosts = [
        f"[{host}]" if ":" in host else quote(host, safe="")
        for host in str(parameters.get("host") or "").split(",")
    ]
    ports = str(parameters.get("port") or "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True)]
    user = quote(str(parameters.get("user") or ""), safe="")
    query = "&".join(
        f"{name}={quote(str(value).lower() if isinstance(value, bool) else str(value))}"
        for name, value in parameters.items()
        if value is not None and name in options
    )
    return (
        f"{scheme}://{user and user + '@'}{','.join(places)}"
        f"/{quote(str(parameters.get('database') or ''), safe='')}{query and '?' + query}"
    )
