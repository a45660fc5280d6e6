"""Tasks load their rows into the attempt's staging table. Executors; the driver makes and drops
the table.

What if a task runs twice, or dies? Each task attempt marks its rows with a number of its own, and
only those of the attempts that a report names are moved. What if it is late, an executor that was
stopped? Its table is gone.

A piece is a transaction of its own, so that a slow plan leaves none open. A worker keeps its
connection for the next task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onceward.engine.task_writer import TaskWriter
from onceward.ids import TaskAttempt
from onceward.sql.ledger.mysql import MySQLSession, connected
from onceward.sql.mysql.loading import load
from onceward.sql.mysql.refusals import named
from onceward.sql.sink.pieces import PieceWriter, SessionCache


@dataclass(frozen=True)
class OpenStagingWriter:
    """Opens the writer in each task attempt. Pickled into the job's closure.

    :param said: what PyMySQL needs to connect; it may hold a password.
    :param table: in SQL, for statements with parameters.
    """

    said: Mapping[str, Any] = field(repr=False)
    table: str

    def __call__(self, task: TaskAttempt) -> TaskWriter:
        return StagingWriter(self, task.task_attempt_id)


class StagingWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, spec: OpenStagingWriter, task_attempt_id: int) -> None:
        super().__init__(task_attempt_id)
        self._spec = spec
        self._loaded = 0

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(rows)
        said = json.dumps(dict(self._spec.said), sort_keys=True)
        with named("connecting to the database from a task"):
            session = sessions.get(said, lambda: connected(self._spec.said, "onceward"))
        try:
            with named("loading rows into the staging table"):
                load(session, self._spec.table, table, self._task, self._loaded)
                session.commit()
        except BaseException:
            # It may be in the middle of a load, with a lock on the table
            sessions.forget(said)
            raise
        self._loaded += table.num_rows


sessions: SessionCache[MySQLSession] = SessionCache(
    lambda session: not session.closed and not session.is_ended, MySQLSession.give_up
)
