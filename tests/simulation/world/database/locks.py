"""Locks of rows, of tables and of names, and who waits for them. First come, first served.

Shared ones (``FOR SHARE`` of a row, ``ROW EXCLUSIVE`` of a table) go together; an exclusive one
goes with nobody. Sources: *Explicit Locking* in PostgreSQL's manual, *InnoDB Locking* and
*Metadata Locking* in MySQL's. Who waits does so until ``lock_timeout`` or ``statement_timeout``
(``innodb_lock_wait_timeout``, ``lock_wait_timeout``); whoever stands still in a transaction for
longer than it may is ended by the server when somebody waits for it.
"""

from __future__ import annotations

from typing import Any, Protocol

from simulation.kernel.scheduler import Sim, Task

SHARED, EXCLUSIVE = 1, 2
NEVER = float("inf")


class Holder(Protocol):
    """A transaction, or a session with a lock of its own."""

    locks: list[Lock]

    def ends_at(self) -> float:
        """When the server will end it, as it stands still."""

    def is_ended(self) -> None:
        """The server does, for somebody waits."""


class Lock:
    """One thing that can be locked."""

    __slots__ = ("holders", "parked", "queue")

    def __init__(self) -> None:
        self.holders: dict[Any, int] = {}
        self.queue: list[tuple[Any, int]] = []
        self.parked: list[Task] = []

    def take(self, sim: Sim, holder: Any, mode: int, until: float) -> bool:
        """Wait for it; False when the time is over."""
        held = self.holders.get(holder, 0)
        if held >= mode:
            return True
        if not self.queue and not self._blockers(holder, mode):
            self._granted(holder, mode, held)
            return True
        place = (holder, mode)
        self.queue.append(place)
        try:
            while True:
                blockers = self._blockers(holder, mode)
                for other, wanted in self.queue:
                    if other is holder:
                        break
                    if mode == EXCLUSIVE or wanted == EXCLUSIVE:
                        blockers.append(other)
                if not blockers:
                    self._granted(holder, mode, self.holders.get(holder, 0))
                    return True
                if sim.now >= until:
                    return False
                self._wait(sim, until, blockers)
        finally:
            self.queue.remove(place)
            self.wake(sim)

    def _wait(self, sim: Sim, until: float, blockers: list[Any]) -> None:
        standing = [other for other in blockers if other in self.holders]
        first = min([until, *(other.ends_at() for other in standing)])
        task = sim.current
        assert task is not None
        self.parked.append(task)
        try:
            sim.park(None if first == NEVER else max(0.0, first - sim.now))
        finally:
            if task in self.parked:
                self.parked.remove(task)
        for other in standing:
            if other in self.holders and other.ends_at() <= sim.now:
                other.is_ended()

    def _blockers(self, holder: Any, mode: int) -> list[Any]:
        return [
            other
            for other, has in self.holders.items()
            if other is not holder and (mode == EXCLUSIVE or has == EXCLUSIVE)
        ]

    def _granted(self, holder: Any, mode: int, held: int) -> None:
        self.holders[holder] = mode
        if not held:
            holder.locks.append(self)

    def give_back(self, sim: Sim, holder: Any) -> None:
        if self.holders.pop(holder, None) is not None and self.parked:
            self.wake(sim)

    def wake(self, sim: Sim) -> None:
        """Whoever waits looks again, in the order in which they came."""
        for task in self.parked:
            sim.wake(task)
