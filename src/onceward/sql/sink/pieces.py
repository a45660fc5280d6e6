"""What tasks share whatever the dialect: rows wait until they are worth sending, and a worker
keeps its connection for the next task. Executors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

from onceward.engine.task_writer import TaskWriter

_PIECE_BYTES = 8 << 20
_MOST_KEPT = 2

S = TypeVar("S")


class PieceWriter(TaskWriter):
    """One task attempt's rows, in pieces of some MiB."""

    def __init__(self, task_attempt_id: int) -> None:
        self._task = task_attempt_id
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
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


class KeptSessions(Generic[S]):
    """The connections of this worker, by what they were made with: one, as a rule. The last one
    used comes last.

    :param answers: is it still of use?
    :param give_up: close it, whatever state it is in. Never raises.
    """

    def __init__(self, answers: Callable[[S], bool], give_up: Callable[[S], None]) -> None:
        self._answers = answers
        self._give_up = give_up
        self.kept: dict[str, S] = {}

    def of(self, said: str, connect: Callable[[], S]) -> S:
        """Return the cached session if it answers, else open one."""
        if said in self.kept and not self._answers(self.kept[said]):
            self.forget(said)
        if said not in self.kept:
            while len(self.kept) >= _MOST_KEPT:
                self.forget(next(iter(self.kept)))
            self.kept[said] = connect()
        self.kept[said] = self.kept.pop(said)
        return self.kept[said]

    def lent(self, said: str, connect: Callable[[], S]) -> S:
        """Lend the cached session, or a new one, to one task until :meth:`give_back`: a task that
        was left in the middle of a transaction must not share it with the next one.
        """
        session = self.of(said, connect)
        del self.kept[said]
        return session

    def give_back(self, said: str, session: S) -> None:
        """Return a session that was :meth:`lent`, with no transaction open."""
        self.forget(said)
        self.kept[said] = session

    def give_up(self, session: S) -> None:
        """Close a session that was :meth:`lent`, in the middle of a transaction."""
        self._give_up(session)

    def forget(self, said: str) -> None:
        """Close the cached session, which may be in the middle of a transaction."""
        session = self.kept.pop(said, None)
        if session is not None:
            self._give_up(session)

    def forget_all(self) -> None:
        """Close all cached sessions, at the end of a worker."""
        for said in list(self.kept):
            self.forget(said)
