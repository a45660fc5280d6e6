"""What a ledger's table, and a sink's tables beside it, need of a database server: sessions, and
the words in which kinds of servers differ. An interface; :mod:`postgresql` and :mod:`mysql` are
it. Driver only.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Container, Hashable, Mapping
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

from onceward.sql.ledger.overdue import Patience


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
    """Return whether the server has said something unasked: its farewell, or the end of the
    connection.
    """
    poll = select.poll()
    poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


class Database(ABC):
    """A server of one kind, and how it is reached. Nothing is connected before :meth:`connect`."""

    kind: ClassVar[str]
    host: str
    """Where it is, for messages."""

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
    """First in a transaction that must be one, and outlast a crash of the server."""

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
        """Open a session whose values mean the same whatever the server, the database or the login
        has set.

        :param name: who asks, for the server's own lists.
        :param idle_ms: how long it may stand still in a transaction before the server rolls that
            back.
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

        :raises ConfigurationError: by the row found, a crash may empty the table.
        """

    def must_be_one_session(self, session: Session) -> None:  # noqa: B027
        """Check that the session is not shared by a pooler. Called inside a transaction that
        depends on the session's settings.

        :raises ConfigurationError: somebody between us and the server has put another one in its
            place.
        """

    def was_there(self, error: Exception) -> bool:
        """Return whether a CREATE failed because another session had created the object first."""
        return False

    @abstractmethod
    def ended_before(self, error: Exception) -> bool:
        """Return whether the server, or the state of the connection, shows that the transaction
        ended before its COMMIT.
        """

    @abstractmethod
    def has_refused(self, error: Exception) -> bool:
        """Return whether the server refused the COMMIT; if it did not answer, the outcome is
        unknown.
        """

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
