"""What tasks share whatever the dialect: rows wait until they are worth sending, and a worker
keeps its connection for the next task. Executors.

What if a task runs twice, or dies? Rows that it stages are marked by a number of each task
attempt; rows that it writes straight into the table are in a transaction of each. Only those of
the attempts that a report names are moved, or committed; a transaction that ends without having
been prepared is rolled back by the server. What if it is late, an executor that was stopped? Its
staging table is gone, and its transaction is named nowhere, and rolled back when it is listed.

A staged piece is a transaction of its own, so that a slow plan leaves none open. One that is
prepared is open while the plan computes a task's rows, and holds locks until the decision.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pyarrow as pa

from onceward.engine.task_writer import TaskWriter

_PIECE_BYTES = 8 << 20
_MOST_KEPT = 2

S = TypeVar("S")

Bare = Callable[[Any], Any]
"""Returns rows with no more of those that delete than is read of them."""


class PieceWriter(TaskWriter):
    """One task attempt's rows, in pieces of some MiB."""

    def __init__(self, task_attempt_id: int, bare: Bare = lambda rows: rows) -> None:
        self._task = task_attempt_id
        self._bare = bare
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        rows = self._bare(rows)
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _PIECE_BYTES:
            self._send_all()

    def pre_commit(self) -> str | None:
        self._send_all()
        return None

    def _send_all(self) -> None:
        rows, self._rows, self._bytes = [part for part in self._rows if part.num_rows], [], 0
        if rows:
            self._send(rows)

    @abstractmethod
    def _send(self, rows: list[pa.RecordBatch]) -> None:
        """Send a piece as a transaction of its own."""


class SessionCache(Generic[S]):
    """This worker's connections, by what they were made with: mostly one. Last used comes last.

    :param answers: is it still of use?
    :param give_up: close it, whatever state it is in, one that is :meth:`lent` as well. Never
        raises.
    """

    def __init__(self, answers: Callable[[S], bool], give_up: Callable[[S], None]) -> None:
        self._answers = answers
        self.give_up = give_up
        self.cached: dict[str, S] = {}

    def get(self, dsn: str, connect: Callable[[], S]) -> S:
        """Return the cached session if it answers, else open one."""
        if dsn in self.cached and not self._answers(self.cached[dsn]):
            self.forget(dsn)
        if dsn not in self.cached:
            while len(self.cached) >= _MOST_KEPT:
                self.forget(next(iter(self.cached)))
            self.cached[dsn] = connect()
        self.cached[dsn] = self.cached.pop(dsn)
        return self.cached[dsn]

    def lent(self, dsn: str, connect: Callable[[], S]) -> S:
        """Lend the cached session, or a new one, to one task until :meth:`give_back`: a task that
        was left in the middle of a transaction must not share it with the next one.
        """
        session = self.get(dsn, connect)
        del self.cached[dsn]
        return session

    def give_back(self, dsn: str, session: S) -> None:
        """Return a session that was :meth:`lent`, with no transaction open."""
        self.forget(dsn)
        self.cached[dsn] = session

    def forget(self, dsn: str) -> None:
        """Close the cached session, which may be in the middle of a transaction."""
        session = self.cached.pop(dsn, None)
        if session is not None:
            self.give_up(session)
