"""The input of the changes: written to the demo's MySQL while the job runs, in a thread of the
supervisor.

Two sessions, whose transactions overlap and commit in either order. In the middle a column is
added, and now and then the server goes on to its next binlog. What was committed is kept as the
model of the output.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import ER

from onceward_testing.demo.changes.tables import ADD_EMAIL, HOMES, PEOPLE, TABLES, Row, RowId
from onceward_testing.demo.changes.workload import RowChange, SourceTransaction, Workload
from onceward_testing.demo.input import DemoInput, Pace
from onceward_testing.demo.outputs import connect_to_mysql
from onceward_testing.demo.supervisor import newest_batch

_SESSIONS = 2
_PORTION_SECONDS = 0.1
_INTERRUPTIONS = 5
_MANY = 5_000
_IDLE_SECONDS = 1.0
_SESSION = (
    "SET time_zone = '+00:00', transaction_isolation = 'READ-COMMITTED', "
    "innodb_lock_wait_timeout = 20"
)


class ChangesInput(DemoInput):
    """Rows that are there before the job, and the changes while it runs.

    :param url: of the server.
    :param first: how many changes of rows come before the job's first start: what its snapshot is
        of.
    :param pace: of the others.
    :param rows_only: what the output shows are rows, not changes.
    """

    begins = "people go on to come, to change, and to leave"
    unit_written = "changes written"

    def __init__(self, url: str, first: int, pace: Pace, seed: int, *, rows_only: bool) -> None:
        super().__init__()
        self.unit_visible = "rows visible" if rows_only else "changes visible"
        self.planned = first + pace.records
        self.histories: defaultdict[RowId, list[RowChange]] = defaultdict(list)
        """Every change of each key that was committed, in the order of the commits."""
        self._url = url
        self._first = first
        self._pace = pace
        self._rows_only = rows_only
        self._rng = random.Random(seed)  # noqa: S311  which comes first, no secret
        self._workloads = [Workload(number, seed) for number in range(_SESSIONS)]
        self._sessions = [_connect(url) for _ in self._workloads]
        self.compressed = _compress(self._sessions[-1])
        """True if one of the sessions writes its transactions compressed: servers before 8.0.20
        cannot."""
        self._records = 0
        steps = _INTERRUPTIONS + 1
        self._interruptions = [first + pace.records * step // steps for step in range(1, steps)]
        self._end: tuple[str, int] | None = None

    def make(self) -> None:
        """Create the tables, and the rows that are there before the job is."""
        for table in (PEOPLE, HOMES):
            self._sessions[0].cursor().execute(table.create)
        while self._written < self._first // 2:
            for session, workload in zip(self._sessions, self._workloads, strict=True):
                self._carry_out([(session, workload.bulk_insert(min(500, 1 + self._first // 4)))])
        while self._written < self._first:
            self._write_transactions()
        self._records = sum(len(workload.rows) for workload in self._workloads)

    def stop(self) -> None:
        super().stop()
        for session in self._sessions:
            if session.open:
                session.close()

    @property
    def to_be_visible(self) -> int:
        """Return an upper bound: of a row that changes again before the snapshot comes to it, only
        the last is seen."""
        return (
            sum(workload.people for workload in self._workloads)
            if self._rows_only
            else self._records
        )

    def is_through(self, checkpoint: Path) -> bool:
        """Return whether a batch is finished that reaches to where the binlog ended after the last
        transaction."""
        newest = newest_batch(checkpoint / "commits") if self._end is not None else None
        if self._end is None or newest is None:
            return False
        position = json.loads((checkpoint / "offsets" / str(newest)).read_text().splitlines()[2])[
            "position"
        ]
        return not position.get("snapshot") and (position["file"], position["pos"]) >= self._end

    def select_rows(self) -> dict[RowId, Row]:
        """Return what a ``SELECT`` shows, by a connection of its own."""
        found: dict[RowId, Row] = {}
        with _connect(self._url) as connection, connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"SELECT * FROM {table.name}")  # noqa: S608
                found |= {
                    table.row_id(row): row for row in map(table.row_from_client, cursor.fetchall())
                }
        return found

    def _write_all(self) -> None:
        began = wrote = time.monotonic()
        while not self._stop.wait(_PORTION_SECONDS):
            now = time.monotonic()
            due = self._first + self._pace.due(now - began, hold=self._hold)
            # As long as it is to be killed, the job has something to be killed on.
            if self._hold and now >= wrote + _IDLE_SECONDS:
                due = max(due, self._written + 1)
            while self._written < due and not self._stop.is_set():
                self._write_transactions()
                wrote = time.monotonic()
            if not self._hold and self._written >= self.planned:
                self._end = _binlog_end(self._sessions[0])
                return

    def _write_transactions(self) -> None:
        """Carry out one transaction of each session, and what else is due."""
        if self._interruptions and self._written >= self._interruptions[0]:
            self._interrupt(len(self._interruptions))
            del self._interruptions[0]
        both = [
            (session, work.transaction())
            for session, work in zip(self._sessions, self._workloads, strict=True)
        ]
        if any(transaction.alone for _, transaction in both):
            for one in both:
                self._carry_out([one])
        else:
            self._carry_out(both)

    def _interrupt(self, left: int) -> None:
        """Begin another binlog, and add the column or insert many rows at once."""
        cursor = self._sessions[0].cursor()
        cursor.execute("FLUSH BINARY LOGS")
        if left == _INTERRUPTIONS // 2 + 1:
            cursor.execute(ADD_EMAIL)
            for workload in self._workloads:
                workload.add_emails()
        else:
            many = min(_MANY, max(1, self.planned // 50))
            self._carry_out([(self._sessions[0], self._workloads[0].bulk_insert(many))])

    def _carry_out(self, transactions: list[tuple[Any, SourceTransaction]]) -> None:
        """Carry out transactions that are open at the same time."""
        for session, _ in transactions:
            session.begin()
        waiting = [
            (session, list(transaction.statements)) for session, transaction in transactions
        ]
        while waiting := [(session, left) for session, left in waiting if left]:
            session, left = self._rng.choice(waiting)
            statement, parameters = left.pop(0)
            session.cursor().execute(statement, parameters or None)
        for session, transaction in self._rng.sample(transactions, len(transactions)):
            if transaction.rolls_back:
                session.rollback()
                continue
            now_ms = time.time_ns() // 1_000_000
            session.commit()
            for row_id, change in transaction.changes:
                self.histories[row_id].append(change._replace(not_before_ms=now_ms))
            self._written += len(transaction.changes)
            # A deletion has a tombstone, too.
            self._records += sum(1 + (change.op == "d") for _, change in transaction.changes)


def _connect(url: str) -> Any:
    """Return a session in UTC; its user commits."""
    session = connect_to_mysql(url, autocommit=False)
    session.cursor().execute(_SESSION)
    return session


def _compress(session: Any) -> bool:
    try:
        session.cursor().execute("SET SESSION binlog_transaction_compression = ON")
    except pymysql.err.OperationalError as error:
        if error.args[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
            raise
        return False
    return True


def _binlog_end(session: Any) -> tuple[str, int]:
    cursor = session.cursor()
    try:
        cursor.execute("SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:  # servers before 8.2 know the other name alone
        cursor.execute("SHOW MASTER STATUS")
    file, position = cursor.fetchone()[:2]
    return str(file), int(position)
