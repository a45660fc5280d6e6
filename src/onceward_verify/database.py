"""What the checker asks of a database, whichever it is. An interface; :mod:`postgresql` and
:mod:`mysql` are it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ClassVar, NamedTuple


class Kept(NamedTuple):
    """The record of one batch. ``told`` is the transaction that its own column names,
    ``written_by`` the lower half of that which the server has noted; both 0 where the server tells
    no client.
    """

    sequence: int
    record: bytes
    told: int = 0
    written_by: int = 0


class Found(NamedTuple):
    """A table: what it is to the server, its name for people, and the tables that it is a part of
    (a partition, or one that inherits): whoever reads those reads its rows, too.
    """

    key: Hashable
    name: str
    part_of: tuple[Hashable, ...] = ()


class Database(AbstractContextManager["Database"], ABC):
    """One snapshot of one database: a pipeline that runs on changes nothing of what is seen.
    Nothing is written.

    :raises CannotTell: by every method: the server does not answer, or not this login.
    """

    tells_writers: ClassVar[bool]
    """Does the server tell which transaction wrote a row?"""
    _connection: Any
    """Of the server's own client."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    @abstractmethod
    def table(self, name: str) -> Found | None:
        """What ``name`` (spelled as in SQL) means to the server; None: nothing."""

    @abstractmethod
    def ledger_ends(self, ledger: Found, pipeline_id: str) -> int | None:
        """The sequence at which the ledger's own row stands; None: there is no row, or nothing is
        decided yet.
        """

    @abstractmethod
    def batches(self, batches: Found, pipeline_id: str) -> list[Kept]:
        """The records that are kept, oldest first."""

    @abstractmethod
    def rows(self, table: Found) -> dict[int, int]:
        """How many are there, by the transaction (its number's lower half) that wrote them; all of
        0 where the server tells no client.
        """

    @abstractmethod
    def staging_tables(self, ledger: Found) -> list[str]:
        """Those that are beside the ledger, of all pipelines."""
