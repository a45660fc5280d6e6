"""A database server: sessions, transactions, locks, what is prepared, what a crash takes.
PostgreSQL's or MySQL's kind.

What a statement means is :mod:`statements`; how client libraries speak of it, :mod:`postgresql`
and :mod:`mysql`. Rules:

* READ COMMITTED: a statement sees what is committed when it begins, and its own transaction's
  changes. An UPDATE that had to wait for a row looks at it again (*Transaction Isolation*, 13.2.1,
  PostgreSQL's manual; *Consistent Nonlocking Reads*, MySQL's: semi-consistent reads).
* A COMMIT is a message: once sent it is carried out, whatever becomes of its client; it may come
  late, or never.
* A session whose client is gone is ended when the server sees that, and its transaction is rolled
  back; a cable that was pulled is not seen (``tcp_keepalives``), and locks stay. Who stands still
  in a transaction is ended after ``idle_in_transaction_session_timeout`` (MySQL: ``wait_timeout``,
  MariaDB: ``idle_write_transaction_timeout``).
* A crash ends all sessions, empties unlogged tables, and takes the last commits that nobody waited
  for (``synchronous_commit = off``, *Asynchronous Commit*). A commit that is waited for makes
  those before it last, too.
* What is prepared outlasts session and server (*PREPARE TRANSACTION*; *XA Transactions*), with its
  locks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from simulation.kernel.scheduler import Process, Sim
from simulation.world.database.expressions import Unknown
from simulation.world.database.locks import Lock
from simulation.world.database.session import (
    COMMITTED,
    OPEN,
    PREPARED,
    ROLLED_BACK,
    Session,
    Transaction,
)
from simulation.world.database.statements import understand
from simulation.world.database.tables import Change, Table
from simulation.world.database.trouble import Trouble

_FLUSHED_AFTER = 0.6
_RESTART = 3.0
_READ_ONLY = 20.0
_STAGING = "onceward_staging"
"""Whatever staging table a statement is about."""
_OWN_NAME = re.compile(r"(?:[\"`]?\w+[\"`]?\.)?[\"`]?onceward_staging_\w+[\"`]?")
_NUMBERS = re.compile(r"onceward_task IN \((NULL|[\d, ]+)\)")


class Heir:
    """A process that has taken the chain: when, how many faults there had been, and whether it has
    decided a batch.
    """

    __slots__ = ("faults", "has_decided", "process", "taken_at")

    def __init__(self, process: Process, taken_at: float, faults: int) -> None:
        self.process = process
        self.taken_at = taken_at
        self.faults = faults
        self.has_decided = False


class Server:
    """See the module.

    :param kind: "postgresql", "mysql", "mariadb".
    :param hasty: a role or the server has ``synchronous_commit = off`` (PostgreSQL).
    :param room: ``max_prepared_transactions``.
    :param kinds: of faults that may befall it.
    """

    def __init__(
        self,
        sim: Sim,
        kind: str = "postgresql",
        *,
        hasty: bool = False,
        room: int = 100,
        kinds: Iterable[str] = (),
    ) -> None:
        self.sim = sim
        self.kind = kind
        self.frame_columns: Any = None
        """Of the frames that go into this database (:class:`arrow.Columns`)."""
        self.workers: dict[Any, Any] = {}
        """Of executors: sessions that are kept."""
        self.is_mysql = kind != "postgresql"
        self.hasty = hasty
        self.room = room
        self.tables: dict[str, Table] = {}
        self.making: dict[str, Lock] = {}
        """Names of tables that are being made: who makes the same waits."""
        self.names: dict[str, Lock] = {}
        """``GET_LOCK``."""
        self.sessions: dict[Session, None] = {}
        self.prepared: dict[str, Transaction] = {}
        self.up = True
        self.faulty = any(sim.lots.is_on(kind) for kind in kinds)
        """May anything befall its clients? False saves the questions."""
        self.read_only_until = 0.0
        self.default_schema = "app" if self.is_mysql else "public"
        self.heirs: list[Heir] = []
        """Whoever has taken a chain of the ledger, in their order."""
        self.overruled: list[str] = []
        """Records that somebody has decided to whom the chain did not belong any more."""
        self.too_late: list[str] = []
        """Staging tables that somebody has made whose heir had looked for them."""
        self._unflushed: list[Change] = []
        self._number = 1_000
        self._understood: dict[str, Any] = {}

    # ── names and statements ──

    def name_of(self, text: str) -> str:
        """``"a"."b"``, ``a.b`` or ``b`` as ``schema.name``."""
        if text == _STAGING:
            return text
        name = text.replace('"', "").replace("`", "")
        return name if "." in name else f"{self.default_schema}.{name}"

    def has(self, name: str, transaction: Transaction) -> bool:
        if name == _STAGING:
            name = transaction.session.meant  # type: ignore[union-attr]
        return name in transaction.made or (
            name in self.tables and name not in transaction.dropped
        )

    def table(self, name: str, transaction: Transaction) -> Table:
        """:raises Trouble: there is none."""
        if name == _STAGING:
            name = transaction.session.meant  # type: ignore[union-attr]
        found = self.tables.get(name)
        if found is None or transaction.made or transaction.dropped:
            found = transaction.made.get(name) or (None if name in transaction.dropped else found)
            if found is None and transaction.session is not None:
                found = transaction.session.own_tables.get(name)
            if found is None:
                raise Trouble("no table", f'relation "{name}" does not exist')
        return found

    @property
    def is_read_only(self) -> bool:
        return self.sim.now < self.read_only_until and not self.sim.lots.calm

    def types_of(self, table: Table) -> tuple[str, ...]:
        return table.types or ("text",) * len(table.columns)

    def understood(self, session: Session, sql: str, parameters: Any) -> tuple[Any, Any]:
        """What ``sql`` means, and its parameters: what differs from batch to batch in its text is
        taken out of it.
        """
        known = self._understood.get(sql)
        if known is not None:
            return known, parameters or ()
        if "onceward_staging_" in sql:
            found = _OWN_NAME.search(sql)
            assert found is not None
            session.meant = self.name_of(found[0])
            sql = sql.replace(found[0], _STAGING)
        if "onceward_task IN (" in sql:
            numbers = _NUMBERS.search(sql)
            assert numbers is not None
            tasks = (
                [] if numbers[1] == "NULL" else [int(number) for number in numbers[1].split(",")]
            )
            sql = sql.replace(numbers[0], "onceward_task = ANY(%s)")
            parameters = (tasks, *(parameters or ()))
        known = self._understood.get(sql)
        if known is None:
            if len(self._understood) > 500:  # names of what tasks prepare differ, too
                self._understood.clear()
            try:
                known = self._understood[sql] = understand(self, sql)
            except Unknown as unknown:  # nobody may take it for the server's answer
                self.sim.failed(unknown)
                raise
        return known, parameters or ()

    # ── transactions ──

    def begin(self, session: Session) -> Transaction:
        self._number += 1
        return Transaction(session, self._number)

    def carry_out(self, transaction: Transaction) -> None:
        """Its COMMIT has arrived."""
        transaction.in_flight = False
        if transaction.state != OPEN:
            return
        if transaction.failed or not self.up:
            self.roll_back(transaction)
            return
        self.now_true(transaction)

    def now_true(self, transaction: Transaction) -> None:
        """Open or prepared, it becomes true."""
        if transaction.state not in (OPEN, PREPARED):
            return
        change = None if transaction.durable else Change(self.sim.now)
        for table, rows in transaction.changed.items():
            committed = table.rows
            is_ledger = table.made_for == "ledger"
            for key, row in rows.items():
                if is_ledger:
                    transaction.ledger_row = (committed.get(key), row)
                if change is not None:
                    change.changed.append((table, key, committed.get(key)))
                if row is None:
                    committed.pop(key, None)
                else:
                    committed[key] = row
        for table, added in transaction.appended:
            if change is not None:
                change.lengths.append((table, len(table.rows)))
            table.rows.extend(added)
        for name in transaction.dropped:
            gone = self.tables.pop(name, None)
            if change is not None and gone is not None:
                change.dropped.append(gone)
        for name, table in transaction.made.items():
            self.tables[name] = table
            table.made_at = self.sim.now
            table.made_by = transaction.session and transaction.session.process
            if (
                table.made_for == "staging"
                and self.heirs
                and table.made_by is not self.heirs[-1].process
            ):
                self._made_by_an_older(table)
            if change is not None:
                change.made.append(name)
        if change is None:
            self._unflushed.clear()
        elif (
            transaction.changed or transaction.appended or transaction.made or transaction.dropped
        ):
            self._unflushed.append(change)
        if transaction.ledger_row is not None:
            self._ledger_changed(transaction)
        self._over(transaction, COMMITTED)

    def _made_by_an_older(self, table: Table) -> None:
        heir = self.heirs[-1]
        opened = [
            start.opened_at for start in self.sim.world.starts if start.process is heir.process
        ]
        if any(when >= heir.taken_at for when in opened):
            self.too_late.append(
                f"{table.made_by} made {table.name}, and its heir {heir.process} had opened"
            )

    def _ledger_changed(self, transaction: Transaction) -> None:
        before, now = transaction.ledger_row
        session = transaction.session
        if session is None:
            return
        if before is None or before[1] != now[1]:
            if not self.heirs or self.heirs[-1].process is not session.process:
                self.heirs.append(Heir(session.process, self.sim.now, len(self.sim.lots.fired)))
        elif self.heirs and self.heirs[-1].process is session.process:
            self.heirs[-1].has_decided |= (
                before[2] != now[2]
            )  # not only finished what it has inherited
        elif self.heirs:
            who, then = self.heirs[-1].process, self.heirs[-1].taken_at
            self.overruled.append(
                f"{session.process} has decided sequence {now[2]} at {self.sim.now:.3f} s, and "
                f"{who} had taken the "
                f"chain at {then:.3f} s"
            )

    def roll_back(self, transaction: Transaction) -> None:
        if transaction.state in (OPEN, PREPARED):
            self._over(transaction, ROLLED_BACK)

    def prepare(self, transaction: Transaction, gid: str) -> None:
        if gid in self.prepared:
            raise Trouble("there", f'transaction identifier "{gid}" is already in use')
        if len(self.prepared) >= self.room:
            raise Trouble("no room", "maximum number of prepared transactions reached")
        transaction.state = PREPARED
        transaction.gid = gid
        transaction.prepared_at = self.sim.now
        self.prepared[gid] = transaction
        self._unflushed.clear()

    def _over(self, transaction: Transaction, state: str) -> None:
        if transaction.gid:
            self.prepared.pop(transaction.gid, None)
        transaction.state = state
        session = transaction.session
        if session is not None and session.transaction is transaction and state == ROLLED_BACK:
            session.transaction = None
        for lock in transaction.locks:
            lock.give_back(self.sim, transaction)
        transaction.locks.clear()

    # ── what befalls the server ──

    def crash(self, seconds: float = _RESTART, read_only: bool = False) -> None:
        """Power failure, or ``kill -9`` of the postmaster; it is there again so much later.

        :param read_only: what is there then takes no writes for a while: a standby that is not
            promoted yet.
        """
        sim = self.sim
        if not self.up:
            return
        if sim.tell is not None:
            sim.tell(
                sim.now,
                "database",
                f"⚡ crashes, and is back in {seconds:.1f} s" + (", read only" * read_only),
            )
        self.up = False
        for session in list(self.sessions):
            session.end("gone")
        while self._unflushed and self._unflushed[-1].at > sim.now - _FLUSHED_AFTER:
            self._unflushed.pop().undo(self.tables)
        self._unflushed.clear()
        for table in self.tables.values():
            if not table.logged:
                table.rows.clear()
        if read_only:
            self.read_only_until = sim.now + seconds + _READ_ONLY
        sim.after(seconds, self._start)

    def _start(self) -> None:
        self.up = True
        if self.sim.tell is not None:
            self.sim.tell(self.sim.now, "database", "is there again")

    def lock_for_others(self, table: Table, seconds: float) -> None:
        """Somebody else, a migration say, locks the table in a transaction of his own."""
        session = Session(self, self.sim.outside, "somebody else")
        transaction = session.transaction = self.begin(session)
        if table.lock.holders:
            session.close()
            return
        table.lock.holders[transaction] = 2
        transaction.locks.append(table.lock)
        self.sim.after(seconds, session.end, "ended")

    def left(self) -> list[str]:
        """What is left that should be gone: what was there when the last heir took the chain, or
        what an older copy has made since. (A drop may fail, and is left to the next start; so
        nothing is said where something befell it, nor of a table that was locked then: by a
        transaction whose COMMIT was on its way before the heir came, say.)
        """
        if not self.heirs or not self.heirs[-1].has_decided:
            return []
        heir = self.heirs[-1]
        since = [
            kind for kind, _ in self.sim.lots.fired[heir.faults :] if kind != "db:client dies"
        ]
        if any(kind.startswith(("db:", "pause:")) for kind in since):
            return []
        staging = [
            table.name for table in self.tables.values()
            if table.made_for == "staging" and (table.made_at < heir.taken_at or table.made_by is not heir.process)
            and table.kept_at < heir.taken_at
        ]  # fmt: skip
        return staging + [
            gid for gid, prepared in self.prepared.items() if prepared.prepared_at < heir.taken_at
        ]
