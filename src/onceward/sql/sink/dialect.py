"""What the sink asks of a kind of database server. An interface; :mod:`postgresql` and
:mod:`mysql` are it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType

from onceward.engine.task_writer import OpenWriter
from onceward.engine.two_phase import Beginner
from onceward.errors import OncewardError
from onceward.sql.ledger.database import Session
from onceward.sql.sink.columns import Column, Table, Written
from onceward.sql.sink.order import Reference
from onceward.sql.sink.rows import Merge, Rows


class Statements(Protocol):
    """The SQL of a batch: text and parameters (``%s``). Pure. Rows come from a staging table or
    from the driver; what is done with them is the same.
    """

    def quoted(self, name: str) -> str:
        """``name`` as SQL has it, inside a statement with parameters."""

    def staging_table(self, sql_name: str, staged: Mapping[str, str]) -> str:
        """Makes it."""

    def staged_rows(
        self,
        sql_name: str,
        staged: Mapping[str, str],
        tasks: Sequence[int],
        only: tuple[str, str] | None = None,
    ) -> Rows:
        """What these task attempts have staged; ``only`` where a column has a value."""

    def count(self, rows: Rows) -> Rows:
        """How many there are."""

    def by_table(self, rows: Rows, column: str) -> Rows:
        """How many there are of each value of ``column``, which names tables."""

    def longest(self, rows: Rows, limited: Sequence[Written]) -> Rows:
        """The length of the longest value of each of these columns."""

    def append(self, rows: Rows, table: Table, written: Sequence[Written]) -> Rows:
        """Add them all."""

    def looked_at(self, rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
        """Of rows with a key: how many there are, and how many without a key, with an ``op`` that
        nobody knows, that are the last of their key, such keys, and of the last those that delete.
        """

    def delete(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        """The rows whose last change says so."""

    def upsert(
        self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge
    ) -> list[Rows]:
        """The last row of each key, but for those that delete: statements whose counts add up to
        that.
        """

    def present(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        """Of the keys whose last change deletes, and of the others: how many the table has."""


class Catalogue(Protocol):
    """What the server says of a table."""

    def table_named(self, connection: Session, name: str, ledger: str) -> Table:
        """The table that ``name`` means to the server.

        :raises TableMissing: there is none, or it is a view or the like.
        :raises ConfigurationError: it is one that cannot be written to exactly once.
        """

    def locked(self, connection: Session, name: str, ledger: str) -> Table:
        """The same, of a table that cannot be changed until the transaction ends: not between what
        is found out about it and what is done with it.
        """

    def schema_of(self, connection: Session, table: str) -> tuple[str, object]:
        """The schema that has a table, and what the table is to the server."""

    def references(self, connection: Session, tables: Sequence[Table]) -> Sequence[Reference]:
        """The foreign keys between these tables, those of a table to itself included."""

    def staging_left(self, connection: Session, schema: str, prefix: str) -> list[str]:
        """The tables of a schema whose names begin so."""


class PreparedWords(Protocol):
    """How transactions are ended that tasks have prepared. Sessions are those of
    :meth:`each_by_itself`.
    """

    longest_pipeline: int
    """How long a pipeline's id may be, so that all its transactions have names that the server
    takes.
    """
    create_markers: str
    """The table of markers, ``{table}``, if it is missing."""

    def each_by_itself(self, session: Session) -> None:
        """From now on each statement is a transaction of its own."""

    def must_keep(self, session: Session) -> None:
        """
        :raises ConfigurationError: by its settings the server keeps no prepared transactions.
        :raises AccessDenied: this login may not list them.
        """

    def listed(self, session: Session, beginning: str) -> list[str]:
        """The names of those that are prepared, and begin so."""

    def commit(self, session: Session, name: str) -> bool:
        """False where the server knows none of that name that this session may end."""

    def roll_back(self, session: Session, name: str) -> bool:
        """The same."""


class Beside(NamedTuple):
    """What is beside the table that a task writes to.

    :cvar ledger: the ledger's table, if it is in this database.
    :cvar markers: the table of markers, in SQL.
    :cvar home: the schema that has it, where this login may create tables.
    :cvar mark: the chain's, in names of transactions.
    """

    ledger: str
    markers: str
    home: str
    mark: str


class Dialect(ABC):
    """See the module. Driver only."""

    statements: Statements
    catalogue: Catalogue
    prepared: PreparedWords

    text: ClassVar[str]
    """What a string is staged as."""
    wide: ClassVar[tuple[str, ...]]
    """Staged types whose values may be of any length."""

    can_defer: ClassVar[bool] = False
    """A foreign key may be declared so that it is checked at the end of the transaction."""

    def must_serve(self, connection: Session) -> None:  # noqa: B027
        """:raises ConfigurationError: by its settings the server cannot be written to in this
        way.
        """

    @abstractmethod
    def staged(self, name: str, kind: DataType) -> str:
        """The type that a column of a frame is staged with.

        :raises InvalidColumn: there is none.
        """

    @abstractmethod
    def fitting(self, name: str, staged: str, column: Column, table: Table) -> Written:
        """See :data:`onceward.sql.sink.columns.Fitting`."""

    @abstractmethod
    def named(self, what: str) -> AbstractContextManager[None]:
        """Inside, an error of the server's is raised as ours, with what was being done."""

    @abstractmethod
    def open_staging(
        self, connection: Session, schema: str, name: str, staged: Mapping[str, str]
    ) -> OpenWriter:
        """For tasks: with the address, login and password of ``connection``."""

    @abstractmethod
    def open_transactions(
        self,
        session: Session,
        beside: Beside,
        staged: Mapping[str, str],
        table: Table,
        written: Sequence[Written],
    ) -> Beginner:
        """For tasks, each of which writes straight into ``table``, in a transaction of its own,
        and prepares it.
        """

    def bring(  # noqa: B027
        self, connection: Session, name: str, staged: Mapping[str, str], rows: pa.Table
    ) -> None:
        """Ahead of the transaction that decides: rows that the driver has, for
        :meth:`held_rows`.
        """

    @abstractmethod
    def held_rows(
        self, name: str, staged: Mapping[str, str], rows: pa.Table, only: tuple[str, str] | None
    ) -> Rows:
        """Those of ``rows``, which the driver has; ``only`` where a column has a value.

        :param name: nobody else's in this session.
        """

    @abstractmethod
    def refusal_of(self, error: Exception, what: str) -> OncewardError:
        """The error of ours for one of the server's."""

    @abstractmethod
    def take_time(self, connection: Session, lock_seconds: int) -> None:
        """Inside a transaction: from here on statements may take as long as they take, and wait
        for a lock for so long. What the tables let be checked at the end is checked in
        :meth:`end_move`.
        """

    def end_move(self, connection: Session) -> None:  # noqa: B027
        """Check what the tables would leave to the COMMIT."""

    def look_closer(  # noqa: B027
        self, rows: Rows, written: Sequence[Written], table: Table, connection: Session
    ) -> None:
        """At values that the server would store as others without a word.

        :raises RowRefused: there are some.
        """

    def must_tell_keys_apart(  # noqa: B027
        self, rows: Rows, written: Sequence[Written], merge: Merge, connection: Session
    ) -> None:
        """:raises RowRefused: the server would sort some of them as if they were the same."""

    @abstractmethod
    def in_a_hurry(self, connection: Session) -> None:
        """In this transaction, wait for a lock but a moment, and for no disk."""


def quoted_pair(statements: Statements, schema: str, name: str) -> str:
    """``schema.name`` for statements with parameters."""
    return f"{statements.quoted(schema)}.{statements.quoted(name)}"
