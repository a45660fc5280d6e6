"""What a ledger's table, and a sink's tables beside it, need of a database server: sessions, and
the words in which kinds of servers differ. An interface; :mod:`postgresql` and :mod:`mysql` are
it. Driver only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, Protocol

from onceward.sql.ledger.overdue import Patience


class Session(Protocol):
    """A connection, in psycopg's manner: a transaction begins with the first statement, and
    parameters are ``%s``.
    """

    patience: Patience
    """How long it waits for an answer."""

    @property
    def closed(self) -> bool:
        """Has it been given up?"""

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        """A cursor: ``rowcount``, ``fetchone()``, and its rows."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


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
        """A session whose values mean the same whatever the server, the database or the login has
        set.

        :param name: who asks, for the server's own lists.
        :param idle_ms: how long it may stand still in a transaction before the server rolls that
            back.
        :param statement_ms: how long a statement may wait.
        """

    def is_usable(self, session: Session) -> bool:
        """As far as can be told without asking the server."""
        return not session.closed

    @abstractmethod
    def quoted(self, table: str) -> str:
        """``name`` or ``schema.name`` as SQL has it."""

    @abstractmethod
    def is_reserved(self, table: str) -> bool:
        """Is a table of that name the server's own?"""

    @abstractmethod
    def asked_for(self, table: str) -> tuple[str, tuple[object, ...]]:
        """A query that has a row if the ledger's table is there."""

    @abstractmethod
    def must_last(self, found: Any, table: str, place: str) -> None:
        """:raises ConfigurationError: by that row, a crash may take what is in the table."""

    def must_be_one_session(self, session: Session) -> None:  # noqa: B027
        """Inside a transaction, where what it does hangs on what was set for the session.

        :raises ConfigurationError: somebody between us and the server has put another one in its
            place.
        """

    def was_there(self, error: Exception) -> bool:
        """Did a CREATE fail because somebody else was first?"""
        return False

    @abstractmethod
    def ended_before(self, error: Exception) -> bool:
        """Says the server, or the state of the connection, that the transaction was over before
        its COMMIT?
        """

    @abstractmethod
    def has_refused(self, error: Exception) -> bool:
        """Has the server answered the COMMIT, by a refusal? Else nobody knows what has become of
        it.
        """

    def hold(self, session: Session, table: str, pipeline: str) -> None:  # noqa: B027
        """What :attr:`for_share` does not do where CREATE and DROP end a transaction: nobody else,
        who asks for the same, makes or drops staging tables of the pipeline until :meth:`let_go`,
        or the end of the session.
        """

    def let_go(self, session: Session, table: str, pipeline: str) -> None:  # noqa: B027
        """See :meth:`hold`."""
