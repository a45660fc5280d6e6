"""The rows of one frame of a batch, on their way: in the driver's memory, or in a staging table.
Driver only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa

from onceward.engine.task_writer import TaskResult
from onceward.sql.ledger.database import Session
from onceward.sql.sink.dialect import Dialect
from onceward.sql.sink.rows import Rows, python_values
from onceward.sql.sink.settings import TABLE_COLUMN


class Frame(ABC):
    """The rows of one frame, on their way."""

    def __init__(self, dialect: Dialect, staged: Mapping[str, str], table: str | None) -> None:
        self._dialect = dialect
        self.staged = staged
        self.table = table

    def bring(self, connection: Session) -> None:  # noqa: B027
        """Send the rows ahead of the transaction that decides, to where :meth:`rows` finds
        them.
        """

    @property
    @abstractmethod
    def number(self) -> int:
        """Of all its rows."""

    @abstractmethod
    def counts(self, connection: Session) -> Mapping[str | None, int]:
        """Count the rows for each table that they name; None where they name none."""

    @abstractmethod
    def rows(self, table: str) -> Rows:
        """Select the rows for one table."""


class HeldFrame(Frame):
    """In the driver's memory.

    :param name: nobody else's in the session.
    """

    def __init__(
        self,
        dialect: Dialect,
        staged: Mapping[str, str],
        table: str | None,
        name: str,
        rows: pa.Table,
    ) -> None:
        super().__init__(dialect, staged, table)
        self._name = name
        self._rows = rows

    @property
    def number(self) -> int:
        return int(self._rows.num_rows)

    def counts(self, connection: Session) -> Mapping[str | None, int]:
        if self.table is not None:
            return {self.table: self.number}
        return Counter(python_values(self._rows.column(TABLE_COLUMN), TABLE_COLUMN))

    def bring(self, connection: Session) -> None:
        self._dialect.bring(connection, self._name, self.staged, self._rows)

    def rows(self, table: str) -> Rows:
        only = None if self.table is not None else (TABLE_COLUMN, table)
        return self._dialect.held_rows(self._name, self.staged, self._rows, only)


class StagedFrame(Frame):
    """In a staging table."""

    def __init__(
        self,
        dialect: Dialect,
        staged: Mapping[str, str],
        table: str | None,
        name: str,
        results: list[TaskResult],
    ) -> None:
        super().__init__(dialect, staged, table)
        self._name = name
        self._results = results

    @property
    def _tasks(self) -> list[int]:
        return [result.task_attempt_id for result in self._results]

    @property
    def number(self) -> int:
        return sum(result.rows for result in self._results)

    def counts(self, connection: Session) -> Mapping[str | None, int]:
        if self.table is not None:
            return {self.table: self.number}
        statements = self._dialect.statements
        rows = statements.staged_rows(self._name, self.staged, self._tasks)
        return {
            table: int(n)
            for table, n in connection.execute(*statements.by_table(rows, TABLE_COLUMN))
        }

    def rows(self, table: str) -> Rows:
        only = None if self.table is not None else (TABLE_COLUMN, table)
        return self._dialect.statements.staged_rows(self._name, self.staged, self._tasks, only)
