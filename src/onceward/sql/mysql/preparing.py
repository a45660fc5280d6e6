"""Tasks write straight into the sink's table, and prepare. Executors; the driver commits or rolls
back.

What if a task runs twice, or dies? Each task attempt has a transaction of its own, and only those
that a report names are committed. One that ends without having prepared is rolled back by the
server. What if it is late, an executor that was stopped? Its transaction is named nowhere, and
rolled back when it is listed.

Rows go by ``LOAD DATA LOCAL`` (:mod:`loading`), which makes warnings of errors: a warning is an
error here. What these servers change without one is looked at before
(:mod:`onceward.sql.sink.unchanged`), in the types that the driver has seen: the transaction locks
the table's definition, and compares it.

The transaction is open while the plan computes the task's rows, and holds its locks until the
batch is decided. Its session is closed once it is prepared, for only then may another one end it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onceward.engine.task_writer import TaskWriter
from onceward.engine.two_phase import Task
from onceward.errors import SendFailed
from onceward.ids import MARK_LENGTH
from onceward.sql.ledger.mysql import MySQLSession, connected
from onceward.sql.mysql import catalogue
from onceward.sql.mysql.loading import load_straight
from onceward.sql.mysql.refusals import named
from onceward.sql.sink.columns import Table, Written
from onceward.sql.sink.pieces import PieceWriter
from onceward.sql.sink.transaction_names import transaction_name
from onceward.sql.sink.unchanged import must_stay_as_they_are

FORMAT = 1_330_528_069
"""Of our names; others may be of another."""

_SESSION = "SET autocommit = 1, innodb_lock_wait_timeout = 60, lock_wait_timeout = 60"
"""XA START may not be within another transaction. Of tasks that wait for each other one gives
up.
"""


def xid(name: str) -> str:
    """Return ``name`` as an XA transaction id: in two parts, ``<pipeline>@<mark>`` and the
    rest.
    """
    first = name.index("@") + 1 + MARK_LENGTH
    whose, which = name[:first], name[first + 1 :]
    return f"X'{whose.encode().hex()}', X'{which.encode().hex()}', {FORMAT}"


@dataclass(frozen=True)
class Landing:
    """Where the rows of a frame go. Pickled into the job's closure.

    :param said: what PyMySQL needs to connect; it may hold a password.
    :param texts: the columns that take texts as such, and no bytes: of documents, and of other
        character sets.
    """

    said: Mapping[str, Any] = field(repr=False)
    table: Table
    written: tuple[Written, ...]
    texts: frozenset[str]
    ledger: str
    markers: str
    mark: str

    def begin(self, task: Task) -> TaskWriter:
        return TransactionWriter(self, task)


class TransactionWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, landing: Landing, task: Task) -> None:
        super().__init__(task.task_attempt_id)
        self._landing = landing
        self._pipeline = task.pipeline
        self._name = transaction_name(task, landing.mark)
        self._session: MySQLSession | None = None

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        landing = self._landing
        table = pa.Table.from_batches(rows)
        must_stay_as_they_are(table, landing.written, landing.table.name)
        with named(f"writing to table {landing.table.name}"):
            session = self._session or self._begun()
            load_straight(session, landing.table.sql.replace("%", "%%"), table, landing.texts)

    def _begun(self) -> MySQLSession:
        landing = self._landing
        session = self._session = connected(landing.said, "onceward")
        session.execute(_SESSION)
        session.execute(f"XA START {xid(self._name)}")
        found = catalogue.locked(session, landing.table.name, landing.ledger)
        if (found.sql, found.columns) != (landing.table.sql, landing.table.columns):
            raise SendFailed(
                f"table {landing.table.name} was changed while the batch was written",
                next_step="nothing; the batch runs again",
            )
        return session

    def pre_commit(self) -> str | None:
        super().pre_commit()
        session = self._session
        if session is None:
            return None
        with named("preparing the transaction of a task"):
            session.execute(
                # Quoted.
                f"INSERT INTO {self._landing.markers} (pipeline, name) VALUES (%s, %s)",  # noqa: S608
                (self._pipeline, self._name),
            )
            session.execute(f"XA END {xid(self._name)}")
            session.execute(f"XA PREPARE {xid(self._name)}")
        self.close()
        return self._name

    def close(self) -> None:
        session, self._session = self._session, None
        # What is not prepared the server rolls back; what nobody knows of will be listed
        if session is not None:
            session.give_up()
