"""Interface of ``postgresql`` and ``mysql``, by which the checker reads ledger and tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple


class StoredRecord(NamedTuple):
    """Record of one batch, as stored.

    ``transaction``: the one that its own column names. ``writer``: the lower half of the one that
    the server has noted with the row. Both are 0 where the server shows none to clients.
    """

    sequence: int
    record: bytes
    transaction: int = 0
    writer: int = 0


class TableRef(NamedTuple):
    """Table: the server's key of it, its name for people, and its parents.

    A partition, or a table that inherits, is a part of its parents: whoever reads those reads its
    rows, too.

    ``follows``: a foreign key (ON DELETE CASCADE and the like) changes its rows with those of
    another table, so far as the server's counts of rows would show it.
    """

    key: Hashable
    name: str
    parents: tuple[Hashable, ...] = ()
    follows: bool = False


class DatabaseSnapshot(AbstractContextManager["DatabaseSnapshot"], ABC):
    """Snapshot of one database, which a running pipeline does not change. Nothing is written.

    :raises CannotTell: by every method: the server does not answer, or not this login.
    """

    names_writers: ClassVar[bool]
    """The server shows which transaction wrote a row."""
    _connection: Any
    """Connection of the server's own client."""

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @abstractmethod
    def is_replica(self) -> bool:
        """Return whether the server takes no writes: it may be behind the one that does."""

    @abstractmethod
    def find_table(self, name: str) -> TableRef | None:
        """Return the table that the server takes ``name`` for, spelled as in SQL, if any."""

    @abstractmethod
    def ledger_end(self, ledger: TableRef, pipeline_id: str) -> int | None:
        """Return the sequence in the ledger's own row; None if nothing is decided yet."""

    @abstractmethod
    def batches(self, batches: TableRef, pipeline_id: str) -> list[StoredRecord]:
        """Return the stored records, oldest first."""

    @abstractmethod
    def row_counts(self, table: TableRef) -> dict[int, int]:
        """Return the number of rows by the transaction (its number's lower half) that wrote them.

        All count under 0 where the server shows no transactions to clients.
        """

    @abstractmethod
    def staging_tables(self, ledger: TableRef) -> list[str]:
        """Return the staging tables beside the ledger, of all pipelines."""
