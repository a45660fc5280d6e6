"""The database sink's side of a pipeline. Driver only; called by ``engine.micro_batch``.

One batch is one :class:`~onceward.sql.sink.attempt.DatabaseAttempt`; what they share is a
:class:`~onceward.sql.sink.run.DatabaseRun`. The chain of the ledger is in the same database as the
tables (:mod:`onceward.sql.ledger.table`), so that its owner, its session and its COMMIT are the
target's.
"""

from __future__ import annotations

from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.target import AtomicTarget
from onceward.spark.batch.query import RunningBatch
from onceward.sql.sink.attempt import DatabaseAttempt
from onceward.sql.sink.run import DatabaseRun
from onceward.sql.sink.settings import DatabaseSinkSettings


class DatabaseTarget(AtomicTarget):
    """One run's transactions with the database."""

    def __init__(self, settings: DatabaseSinkSettings) -> None:
        self.run = DatabaseRun(settings)
        self.chain = self.run.chain

    def peek(self) -> LedgerRecord | None:
        return self.run.chain.peek()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        self.run.check_table()
        newest = self.run.chain.take()
        self.run.drop_what_is_left()
        return newest

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> DatabaseAttempt:
        attempt_id = self.run.chain.begin(newest)
        self.run.look_again()
        self.run.drop_staging()
        return DatabaseAttempt(self.run, attempt_id)

    def settle(self) -> LedgerRecord | None:
        return self.run.chain.settle()

    def close(self) -> None:
        self.run.chain.close()
