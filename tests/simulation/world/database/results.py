"""What a statement gives back, and what it is once it is understood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simulation.world.database.expressions import Row

_NO_ROWS: list[Row] = []


class Result:
    """A cursor: the rows, and how many the statement has touched."""

    __slots__ = ("_at", "_rows", "rowcount")

    def __init__(self, rows: Sequence[Any] = _NO_ROWS, touched: int | None = None) -> None:
        self._rows = rows
        self._at = 0
        self.rowcount = len(rows) if touched is None else touched

    def fetchone(self) -> Any:
        if self._at >= len(self._rows):
            return None
        self._at += 1
        return self._rows[self._at - 1]

    def fetchall(self) -> list[Any]:
        rows, self._at = list(self._rows[self._at :]), len(self._rows)
        return rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


DONE = Result()
Plan = Callable[[Any, Any, Sequence[Any]], Result]


class Understood:
    """A statement: it is run by whoever has sent it, who may have to wait; or it is a message,
    upon which the server acts by itself, whatever becomes of its sender.

    :param act: of a message; what it gives, or the trouble.
    :param writes: it changes rows of tables.
    :param begins: MySQL: it is part of a transaction, and begins one.
    :param opens: it begins one, also where each statement is one of its own.
    :param commits: what is open, and then itself (MySQL's *Statements That Cause an Implicit
        Commit*).
    """

    __slots__ = ("act", "begins", "commits", "opens", "run", "writes")

    def __init__(
        self,
        run: Plan | None = None,
        *,
        act: Callable[[Any], Any] | None = None,
        writes: bool = False,
        begins: bool = True,
        opens: bool = False,
        commits: bool = False,
    ) -> None:
        self.run = run
        self.act = act
        self.writes = writes
        self.begins = begins
        self.opens = opens
        self.commits = commits
