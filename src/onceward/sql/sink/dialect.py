"""What the sink asks of a kind of database server. An interface; :mod:`postgresql` and
:mod:`mysql` are it.

What prepared transactions are called. Pure; executors, and the driver.

``<pipeline>@<mark>-<owner>.<number>-<frame>-<partition>.<task attempt>``, and behind it, where the
server tells a transaction its number, ``.x<that>``: no two task attempts share a name, for an
attempt at a batch has one that no other of its chain has. No pipeline's id has an ``@``, so that
all of a pipeline begin alike and nobody else's do. The mark tells chains apart: what another
ledger's pipeline of the same id has prepared is not ours to drop. Servers take names of some
length only, so that a pipeline's id that is too long for that is refused when the sink is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType

from onceward.engine.policy import DELETES
from onceward.engine.task_writer import Beginner, OpenWriter, Task
from onceward.errors import OncewardError
from onceward.ids import AttemptId, PipelineId, chain_prefix
from onceward.sql.ledger.database import Session
from onceward.sql.sink.columns import Column, Merge, Reference, Rows, Table, Written
from onceward.sql.sink.pieces import Bare


def attempt_prefix(pipeline: PipelineId, mark: str, attempt: AttemptId) -> str:
    """Return the prefix of all transaction names of a batch attempt."""
    owner, number = attempt
    return f"{chain_prefix(pipeline, mark)}{owner}.{number}-"


def owner_in(name: str, pipeline: PipelineId, mark: str) -> int | None:
    """Return the owner who prepared a transaction of this chain; None: another's, or unknown."""
    beginning = chain_prefix(pipeline, mark)
    owner = name[len(beginning) :].partition(".")[0]
    return int(owner) if name.startswith(beginning) and owner.isdecimal() else None


def transaction_name(task: Task, mark: str) -> str:
    """Return the name of a task attempt's transaction."""
    beginning = attempt_prefix(task.pipeline, mark, task.attempt)
    return f"{beginning}{task.frame}-{task.partition_id}.{task.task_attempt_id}"


def with_number(name: str, number: int) -> str:
    """Add the number of the transaction, which the server stores with each row."""
    return f"{name}.x{number}"


class Statements(ABC):
    """The SQL of a batch: text and parameters (``%s``). Pure. Rows come from a staging table or
    from the driver; what is done with them is the same.
    """

    mark: ClassVar[str]
    """Around a quoted name."""

    def quoted(self, name: str) -> str:
        """Quote ``name`` for a statement with parameters."""
        return self.mark + name.replace(self.mark, 2 * self.mark).replace("%", "%%") + self.mark

    def quoted_pair(self, schema: str, name: str) -> str:
        """Quote ``schema.name``."""
        return f"{self.quoted(schema)}.{self.quoted(name)}"

    def names(self, columns: Iterable[Written]) -> str:
        """Quote the names of columns, with commas between them."""
        return ", ".join(self.quoted(column.name) for column in columns)

    @abstractmethod
    def exact(self, text: str) -> str:
        """Return a text such that it equals the same letters alone."""

    @abstractmethod
    def value(self, column: Written) -> str:
        """Return a staged value as the table's column takes it."""

    @abstractmethod
    def staging_table(self, sql_name: str, staged: Mapping[str, str]) -> str:
        """Return the statement that creates a staging table."""

    @abstractmethod
    def staged_by(self, tasks: Sequence[int]) -> Rows:
        """Return the condition that one of these task attempts has staged a row."""

    def staged_rows(
        self,
        sql_name: str,
        staged: Mapping[str, str],
        tasks: Sequence[int],
        only: tuple[str, str] | None = None,
    ) -> Rows:
        """Select what these task attempts have staged; ``only`` where a column has a value."""
        condition, parameters = self.staged_by(tasks)
        columns = ", ".join(map(self.quoted, staged))
        return self._only(f"SELECT {columns} FROM {sql_name} WHERE {condition}", parameters, only)

    def _only(
        self, sql: str, parameters: tuple[object, ...], only: tuple[str, str] | None
    ) -> Rows:
        if only is None:
            return Rows(sql, parameters)
        condition = f"{self.exact(self.quoted(only[0]))} = {self.exact('%s')}"
        return Rows(f"{sql} AND {condition}", (*parameters, only[1]))

    def count(self, rows: Rows) -> Rows:
        """Count the rows."""
        return Rows(f"SELECT count(*) FROM ({rows.sql}) AS staged", rows.parameters)

    @abstractmethod
    def number_steps(
        self, name: str, staged: Mapping[str, str], rows: Rows, order_by: Sequence[str]
    ) -> list[Rows]:
        """Return statements that put the rows into a temporary table ``name``, each with its step
        in the order of ``order_by``: 1 is the first, and equal ones are one step.
        """

    def steps(self, name: str, first: int, last: int, only: tuple[str, str] | None) -> Rows:
        """Select rows of steps ``first`` to ``last``; ``only`` where a column has a value."""
        sql = f"SELECT * FROM {name} WHERE {STEP} BETWEEN {first:d} AND {last:d}"
        return self._only(sql, (), only)

    def by_table(self, rows: Rows, column: str) -> Rows:
        """Count the rows for each value of ``column``, which names tables."""
        name = self.quoted(column)
        return Rows(
            f"SELECT MIN({name}), count(*) FROM ({rows.sql}) AS staged GROUP BY "
            f"{self.exact(name)}",
            rows.parameters,
        )

    def kept(self, rows: Rows, merge: Merge) -> Rows:
        """Select the rows that are written: a delete has no more than its key."""
        if merge.op_column is None:
            return rows
        return Rows(
            f"SELECT * FROM ({rows.sql}) AS staged WHERE NOT {self.deletes(merge)}",
            rows.parameters,
        )

    def deletes(self, merge: Merge) -> str:
        """Say whether a row is a delete."""
        if merge.op_column is None:
            return "false"
        op = self.exact(self.quoted(merge.op_column))
        return f"coalesce({op} IN ({words(DELETES)}), false)"

    def longest(self, rows: Rows, limited: Sequence[Written]) -> Rows:
        """Select each column's greatest length: servers cut spaces beyond a limit silently."""
        lengths = ", ".join(f"max(char_length({self.quoted(column.name)}))" for column in limited)
        return Rows(f"SELECT {lengths} FROM ({rows.sql}) AS staged", rows.parameters)

    def append(self, rows: Rows, table: Table, written: Sequence[Written]) -> Rows:
        """Add them all."""
        return Rows(
            f"INSERT INTO {in_statement(table)} ({self.names(written)}) SELECT "
            f"{', '.join(map(self.value, written))} FROM ({rows.sql}) AS staged",
            rows.parameters,
        )

    @abstractmethod
    def looked_at(self, rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
        """Count rows with a key: all of them, those without a key, those with an unknown ``op``,
        those that are the last of their key, such keys, and among the last those that delete.
        """

    @abstractmethod
    def delete(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        """Delete the rows whose last change is a delete."""

    @abstractmethod
    def upsert(
        self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge
    ) -> list[Rows]:
        """Upsert each key's last row, but deletes: the statements' counts add up to the keys."""

    @abstractmethod
    def present(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        """Count the keys that the table has: of those whose last change deletes, of the others."""


DELETED, STEP = "onceward_deletes", "onceward_step"
"""Columns beside a frame's: the last change of the key deletes; the place among all changes."""


def words(texts: Sequence[str]) -> str:
    """Return words, which have no quotes, as SQL."""
    return ", ".join(f"'{text}'" for text in texts)


def in_statement(table: Table) -> str:
    """Return a table's name for statements with parameters."""
    return table.sql.replace("%", "%%")


def ask_columns(
    connection: Session,
    question: Callable[[Rows, Sequence[Written]], Rows],
    rows: Rows,
    columns: list[Written],
) -> Iterable[tuple[Written, Any]]:
    """Ask one question of all columns by one statement; yield each column with its answer."""
    if not columns:
        return ()
    return zip(columns, connection.execute(*question(rows, columns)).fetchone(), strict=True)


class Catalogue(Protocol):
    """What the server says of a table, and the types that fit."""

    def staged(self, name: str, kind: DataType) -> str:
        """Return the type by which a column of a frame is staged.

        :raises InvalidColumn: there is none.
        """

    def fitting(self, name: str, staged: str, column: Column, table: Table) -> Written:
        """See :data:`onceward.sql.sink.columns.Fitting`."""

    def table_named(self, connection: Session, name: str, ledger: str) -> Table:
        """Read the table that ``name``, spelled as in SQL, means to the server.

        :raises TableMissing: there is none, or it is a view or the like.
        :raises ServerMisconfigured: it is one that cannot be written to exactly once.
        """

    def locked(self, connection: Session, name: str, ledger: str) -> Table:
        """Read a table as :meth:`table_named`, locked to changes until the transaction ends."""

    def find_schema(self, connection: Session, table: str) -> tuple[str, object]:
        """Return the schema of a table, and the table's identity at the server."""

    def references(self, connection: Session, tables: Sequence[Table]) -> Sequence[Reference]:
        """Return the foreign keys between these tables, those of a table to itself included."""

    def staging_left(self, connection: Session, schema: str, prefix: str) -> list[str]:
        """List the tables of a schema whose names begin with ``prefix``."""


class PreparedWords(Protocol):
    """How what tasks have prepared is ended. Sessions are those of :meth:`each_by_itself`."""

    longest_pipeline: int
    """How long a pipeline's id may be, so that the server takes its transactions' names."""
    create_markers: str
    """The table of markers, ``{table}``, if it is missing."""

    def each_by_itself(self, session: Session) -> None:
        """Switch the session to autocommit."""

    def must_keep(self, session: Session) -> None:
        """Check that the server keeps prepared transactions.

        :raises ServerMisconfigured: by its settings it keeps none.
        :raises AccessDenied: this login may not list them.
        """

    def listed(self, session: Session, beginning: str) -> list[str]:
        """List the names of prepared transactions that begin with ``beginning``."""

    def end(self, session: Session, how: Literal["COMMIT", "ROLLBACK"], name: str) -> bool:
        """End a prepared transaction; return False if there is none that this session may end."""


LOCK_SECONDS = 60
"""How long a statement waits for a lock."""

IDLE_SECONDS = 3600
"""How long a task that has begun a transaction may take to its next rows. Then the server ends its
session, and the locks of its rows are free for whoever runs the batch again.
"""


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

    makes_tables_ahead: ClassVar[bool] = False
    """A temporary table is made ahead of the transaction: inside of it some servers refuse to."""
    can_defer: ClassVar[bool] = False
    """A foreign key may be declared so that it is checked at the end of the transaction."""

    def must_serve(self, connection: Session) -> None:  # noqa: B027
        """Check the server's settings.

        :raises ServerMisconfigured: by its settings the server cannot be written to in this way.
        """

    @abstractmethod
    def translate_errors(self, what: str) -> AbstractContextManager[None]:
        """Raise the server's errors inside as typed ones that say what was being done."""

    @abstractmethod
    def open_staging(self, connection: Session, schema: str, name: str, bare: Bare) -> OpenWriter:
        """Return what opens a staging table in tasks, by address and login of ``connection``."""

    @abstractmethod
    def open_transactions(
        self,
        session: Session,
        beside: Beside,
        staged: Mapping[str, str],
        table: Table,
        written: Sequence[Written],
    ) -> Beginner:
        """Return what opens a transaction in tasks, which write into ``table`` and prepare."""

    def fill_table(self, connection: Session, statements: Sequence[Rows]) -> None:
        """Make a temporary table and fill it."""
        for statement in statements:
            connection.execute(*statement)

    def bring(  # noqa: B027
        self, connection: Session, name: str, staged: Mapping[str, str], rows: pa.Table
    ) -> None:
        """Send the driver's rows ahead of the transaction that decides, for :meth:`held_rows`."""

    @abstractmethod
    def held_rows(
        self, name: str, staged: Mapping[str, str], rows: pa.Table, only: tuple[str, str] | None
    ) -> Rows:
        """Select the driver's ``rows``; ``only`` where a column has a value.

        :param name: nobody else's in this session.
        """

    @abstractmethod
    def is_conflict(self, error: BaseException | None) -> bool:
        """Return whether it is the server's, for a unique index or a foreign key that another row
        stands in the way of: in another order it might not.
        """

    @abstractmethod
    def typed_error(self, error: Exception, what: str) -> OncewardError:
        """Translate a server's error into a typed one."""

    @abstractmethod
    def take_time(self, connection: Session, lock_seconds: int) -> None:
        """Lift the statement timeout inside a transaction, and set how long a lock is waited for.
        Deferrable constraints are checked in :meth:`end_move`.
        """

    def end_move(self, connection: Session) -> None:  # noqa: B027
        """Check what the tables would leave to the COMMIT."""

    def look_closer(  # noqa: B027
        self,
        rows: Rows,
        written: Sequence[Written],
        table: Table,
        connection: Session,
    ) -> None:
        """Check for values that the server would store as others silently.

        :raises RowRefused: there are some.
        """

    def must_tell_keys_apart(  # noqa: B027
        self, rows: Rows, written: Sequence[Written], merge: Merge, connection: Session
    ) -> None:
        """Check that the server can distinguish the keys.

        :raises RowRefused: the server would sort some of them as equal.
        """

    @abstractmethod
    def drop_in_a_hurry(self, connection: Session, table: str) -> None:
        """Drop a table of the sink's own, quoted, waiting a moment for its lock, for no disk."""
