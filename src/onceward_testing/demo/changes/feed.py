"""Writes to the demo's MySQL while the job runs, in a thread of the supervisor, and keeps the
model of what it wrote.

Two sessions, whose transactions lie across each other and commit in either order. In the middle a
column is added, and now and then the server goes on to its next binlog.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pymysql
from pymysql.constants import ER

from onceward_testing.demo.changes.deed import Change, Deed
from onceward_testing.demo.changes.rows import ADD_EMAIL, DATABASE, HOMES, PEOPLE, TABLES, Row
from onceward_testing.demo.changes.town import Town
from onceward_testing.demo.changes.verdict import Where
from onceward_testing.demo.checkpoint import newest_batch
from onceward_testing.demo.feed import WrittenByAThread
from onceward_testing.demo.pace import Pace

Shown = Literal["changes", "rows"]

_SESSIONS = 2
_PORTION_SECONDS = 0.1
_STEPS = 5
_MANY = 5_000
_IDLE_SECONDS = 1.0
_SESSION = (
    "SET time_zone = '+00:00', transaction_isolation = 'READ-COMMITTED', "
    "innodb_lock_wait_timeout = 20"
)
_COMPRESSED = "SET SESSION binlog_transaction_compression = ON"


class PeopleOfATown(WrittenByAThread):
    """See the module.

    :param url: of the server.
    :param first: how many changes of rows come before the job's first start: what its snapshot is
        of.
    :param pace: of the others.
    :param shown: what is counted on the other side, and goes into the bar there.
    """

    begins = "people go on to come, to change, and to leave"
    written_words = "changes written"

    def __init__(self, url: str, first: int, pace: Pace, seed: int, shown: Shown) -> None:
        super().__init__()
        self.visible_words = f"{shown} visible"
        self.planned = first + pace.records
        self.histories: defaultdict[Where, list[Change]] = defaultdict(list)
        """Every change of each key that was committed, in the order of the commits."""
        self._url = url
        self._first = first
        self._pace = pace
        self._rng = random.Random(seed)  # noqa: S311  which comes first, no secret
        self._towns = [Town(number, seed) for number in range(_SESSIONS)]
        self._sessions = [connected(url) for _ in self._towns]
        self.compressed = _compresses(self._sessions[-1])
        """Whether one of the sessions writes its transactions compressed: servers before 8.0.20
        cannot.
        """
        self._records = 0
        self._steps = [pace.records * step // (_STEPS + 1) for step in range(1, _STEPS + 1)]
        self._end: tuple[str, int] | None = None

    def make(self) -> None:
        """The tables, and the rows that are there before the job is."""
        for statement in (PEOPLE.created_by, HOMES.created_by):
            self._sessions[0].cursor().execute(statement)
        while self._written < self._first // 2:
            for session, town in zip(self._sessions, self._towns, strict=True):
                self._do([(session, town.many_come(min(500, 1 + self._first // 4)))])
        while self._written < self._first:
            self._go_on()
        self._records = sum(len(town.rows) for town in self._towns)

    def stop(self) -> None:
        super().stop()
        for session in self._sessions:
            if session.open:
                session.close()

    @property
    def to_be_seen(self) -> int:
        """Not more: of a row that changes again before the snapshot comes to it, only the last is
        seen.
        """
        if self.visible_words == "rows visible":
            return sum(town.people for town in self._towns)
        return self._records

    def is_through(self, checkpoint: Path) -> bool:
        """A batch is finished that reaches to where the binlog ended after the last
        transaction.
        """
        newest = newest_batch(checkpoint / "commits") if self._end is not None else None
        if self._end is None or newest is None:
            return False
        position = json.loads((checkpoint / "offsets" / str(newest)).read_text().splitlines()[2])[
            "position"
        ]
        return not position.get("snapshot") and (position["file"], position["pos"]) >= self._end

    def rows(self) -> dict[Where, Row]:
        """What a ``SELECT`` shows, by a connection of its own."""
        found: dict[Where, Row] = {}
        with connected(self._url) as connection, connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"SELECT * FROM {table.name}")  # noqa: S608
                rows = map(table.row_selected, cursor.fetchall())
                found |= {(table.name, table.key_of(row)): row for row in rows}
        return found

    def _write_all(self) -> None:
        began = time.monotonic()
        went_on = 0.0
        while not self._stop.wait(_PORTION_SECONDS):
            elapsed = time.monotonic() - began
            due = self._first + self._pace.due(elapsed, hold=self._hold)
            # As long as it is to be killed, the job has something to be killed on.
            if self._hold and elapsed >= went_on + _IDLE_SECONDS:
                due = max(due, self._written + 1)
            while self._written < due and not self._stop.is_set():
                self._go_on()
                went_on = time.monotonic() - began
            if not self._hold and self._written >= self.planned:
                self._end = _end_of_binlog(self._sessions[0])
                return

    def _go_on(self) -> None:
        """One transaction of each session, and what else is due."""
        if self._steps and self._written >= self._first + self._steps[0]:
            self._step(len(self._steps))
            del self._steps[0]
        both = [
            (session, town.deed())
            for session, town in zip(self._sessions, self._towns, strict=True)
        ]
        if any(deed.alone for _, deed in both):
            for one in both:
                self._do([one])
        else:
            self._do(both)

    def _step(self, left: int) -> None:
        """What happens a few times; no transaction is open."""
        cursor = self._sessions[0].cursor()
        cursor.execute("FLUSH BINARY LOGS")
        if left == _STEPS // 2 + 1:
            cursor.execute(ADD_EMAIL)
            for town in self._towns:
                town.has_emails()
        else:
            many = min(_MANY, max(1, self.planned // 50))
            self._do([(self._sessions[0], self._towns[0].many_come(many))])

    def _do(self, deeds: list[tuple[Any, Deed]]) -> None:
        """Transactions that are open at the same time."""
        for session, _ in deeds:
            session.begin()
        waiting = [(session, list(deed.statements)) for session, deed in deeds]
        while waiting := [(session, left) for session, left in waiting if left]:
            session, left = self._rng.choice(waiting)
            statement, parameters = left.pop(0)
            session.cursor().execute(statement, parameters or None)
        for session, deed in self._rng.sample(deeds, len(deeds)):
            if deed.regretted:
                session.rollback()
                continue
            now_ms = time.time_ns() // 1_000_000
            session.commit()
            for table, key, change in deed.done:
                self.histories[table, key].append(change._replace(not_before_ms=now_ms))
            self._written += len(deed.done)
            self._records += sum(
                1 + (done.change.op == "d") for done in deed.done
            )  # a deletion has a tombstone, too


def connected(url: str) -> Any:
    """A session by PyMySQL, in UTC; to be committed by whoever asked for it."""
    said = urlsplit(url)
    session = pymysql.connect(
        host=said.hostname, port=said.port or 0, user=said.username, password=said.password or "",
        database=DATABASE, charset="utf8mb4", ssl_disabled=True,
    )  # fmt: skip
    session.cursor().execute(_SESSION)
    return session


def _compresses(session: Any) -> bool:
    try:
        session.cursor().execute(_COMPRESSED)
    except pymysql.err.OperationalError as error:
        if error.args[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
            raise
        return False
    return True


def _end_of_binlog(session: Any) -> tuple[str, int]:
    cursor = session.cursor()
    try:
        cursor.execute("SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:  # servers before 8.2 know the other name alone
        cursor.execute("SHOW MASTER STATUS")
    file, position = cursor.fetchone()[:2]
    return str(file), int(position)
