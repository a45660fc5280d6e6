"""A connection on the server's side, and its transaction: what it has set, locked and changed, and
how both end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.kernel.scheduler import Process
from simulation.world.database.locks import NEVER, Lock
from simulation.world.database.tables import Table
from simulation.world.database.trouble import Trouble

OPEN, COMMITTED, ROLLED_BACK, PREPARED = "open", "committed", "rolled back", "prepared"
_NOTICED = 0.1


class Transaction:
    """What it has changed is its own until it is carried out."""

    __slots__ = (
        "appended", "changed", "dropped", "durable", "failed", "gid", "in_flight", "ledger_row",
        "lock_s", "locks",
        "made", "name", "number", "prepared_at", "session", "state", "statement_s",
    )  # fmt: skip

    def __init__(self, session: Session, number: int) -> None:
        self.session: Session | None = session
        self.number = number
        self.state = OPEN
        self.failed = False
        self.durable = session.durable
        self.lock_s = session.lock_s
        self.statement_s = session.statement_s
        self.changed: dict[Table, dict[Any, Any]] = {}
        self.appended: list[tuple[Table, list[Any]]] = []
        self.made: dict[str, Table] = {}
        self.dropped: dict[str, Table] = {}
        self.locks: list[Lock] = []
        self.gid = ""
        self.prepared_at = 0.0
        self.ledger_row: Any = None
        """Of the ledger's, before and after."""
        self.in_flight = False
        """Its COMMIT is on the way: what comes after it on the line cannot overtake it."""

    def set(self, table: Table, key: Any, row: Any) -> None:
        self.changed.setdefault(table, {})[key] = row

    def ends_at(self) -> float:
        session = self.session
        return NEVER if session is None else session.ends_at()

    def is_ended(self) -> None:
        if self.session is not None:
            self.session.end("idle")


class Session:
    """One connection, on the server's side."""

    __slots__ = (
        "attached", "autocommit", "busy", "closed", "durable", "ended", "faults", "idle_s",
        "idle_since",
        "lingers_until", "lock_s", "locks", "meant", "name", "own_tables", "process", "server",
        "statement_s",
        "transaction",
    )  # fmt: skip

    def __init__(self, server: Any, process: Process, name: str) -> None:
        self.server = server
        self.process = process
        self.name = name
        self.transaction: Transaction | None = None
        self.autocommit = False
        self.busy = False
        self.closed = False
        """The client has given it up."""
        self.ended = ""
        """Why the server has."""
        self.durable = not server.hasty
        self.idle_s = self.statement_s = self.lock_s = 0.0
        self.idle_since = server.sim.now
        self.lingers_until = NEVER
        self.locks: list[Lock] = []
        self.attached: list[Transaction] = []
        """MySQL: what it has prepared, which nobody else can end as long as it is there."""
        self.meant = ""
        """The staging table of the statement that came last."""
        self.own_tables: dict[str, Table] = {}
        """Temporary ones."""
        self.faults = server.faulty
        server.sessions[self] = None
        if process is not server.sim.outside:
            process.on_death.append(self.client_is_gone)

    # ── statements ──

    def run(self, understood: Any, parameters: Sequence[Any]) -> Any:
        """A statement that has arrived. :raises Trouble: the server's answer to it."""
        server = self.server
        transaction = self.transaction
        if understood.commits and transaction is not None:
            server.carry_out(transaction)
            self.transaction = transaction = None
        alone = (self.autocommit or understood.commits) and not understood.opens
        if transaction is None:
            transaction = server.begin(self)
            if alone or understood.begins or not server.is_mysql:
                self.transaction = transaction
        elif transaction.failed:
            raise Trouble(
                "failed",
                "current transaction is aborted, commands ignored until end of transaction block",
            )
        else:
            alone = False
        self.busy = True
        try:
            if understood.writes and server.is_read_only:
                raise Trouble("read only", "cannot execute it in a read-only transaction")
            result = understood.run(self, transaction, parameters)
        except Trouble as trouble:
            self._has_failed(transaction, alone, trouble.kind)
            raise
        finally:
            self.busy = False
            self.idle_since = server.sim.now
        if alone and self.transaction is transaction:
            server.now_true(transaction)
            self.transaction = None
        return result

    def _has_failed(self, transaction: Transaction, alone: bool, kind: str) -> None:
        """PostgreSQL: the whole transaction; MySQL: the statement, but for a deadlock."""
        server = self.server
        if alone or (server.is_mysql and kind == "deadlock"):
            server.roll_back(transaction)
            self.transaction = None
        elif not server.is_mysql:
            transaction.failed = True

    def lock(self, lock: Lock, transaction: Transaction, mode: int) -> None:
        """:raises Trouble: in vain."""
        if not lock.holders and not lock.queue:
            lock.holders[transaction] = mode
            transaction.locks.append(lock)
            return
        sim = self.server.sim
        until, why = NEVER, ""
        if transaction.lock_s:
            until, why = sim.now + transaction.lock_s, "locked"
        if transaction.statement_s and sim.now + transaction.statement_s < until:
            until, why = sim.now + transaction.statement_s, "cancelled"
        in_time = lock.take(sim, transaction, mode, until)
        if self.ended:
            if in_time:
                transaction.locks.remove(lock)
                lock.give_back(sim, transaction)
            raise Trouble(self.ended, "the connection is closed")
        if not in_time:
            raise Trouble(why, f"canceling statement due to {why}")

    def lock_row(self, table: Table, key: Any, transaction: Transaction, mode: int) -> None:
        lock = table.row_locks.get(key)
        if lock is None:
            lock = table.row_locks[key] = Lock()
        self.lock(lock, transaction, mode)

    # ── endings ──

    def ends_at(self) -> float:
        if self.busy:
            return self.lingers_until
        if self.idle_s and (self.transaction is not None or self.server.kind == "mysql"):
            return min(self.idle_since + self.idle_s, self.lingers_until)
        return self.lingers_until

    def is_ended(self) -> None:
        self.end("idle")

    def end(self, why: str) -> None:
        """By the server: what is open is rolled back."""
        if self.ended:
            return
        self.ended = why
        server = self.server
        server.sessions.pop(self, None)
        transaction = self.transaction
        if transaction is not None and transaction.state == OPEN:
            server.roll_back(transaction)
        for lock in self.locks:
            lock.give_back(server.sim, self)
        self.locks.clear()
        for prepared in self.attached:
            server.sim.after(server.sim.lots.time.random() * _NOTICED, _detached, prepared)

    def client_is_gone(self) -> None:
        """Its process has died, or it has closed the connection. A COMMIT that is on its way comes
        first.
        """
        if self.ended:
            return
        sim = self.server.sim
        if self.transaction is not None and self.transaction.in_flight:
            return
        if (self.transaction is not None or self.locks or self.attached) and sim.lots.fires(
            "db:lingers"
        ):
            seconds = sim.lots.below("db:lingers", 1000) / 1000 * 50
            self.lingers_until = sim.now + seconds
            if sim.tell is not None:
                sim.tell(
                    sim.now,
                    "database",
                    f"⚡ does not notice for {seconds:.1f} s that {self.name} is gone",
                )
            sim.after(seconds, self.end, "gone")
            return
        self.end("gone")

    def close(self) -> None:
        """By the client."""
        if self.closed:
            return
        self.closed = True
        if self.process.alive and self.process is not self.server.sim.outside:
            self.process.on_death.remove(self.client_is_gone)
        self.client_is_gone()

    def look(self) -> None:
        """Has it stood still for too long?"""
        if not self.ended and self.ends_at() <= self.server.sim.now:
            self.end("idle")


def _detached(prepared: Transaction) -> None:
    prepared.session = None
