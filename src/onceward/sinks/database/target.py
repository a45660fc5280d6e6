"""The database sink's side of a pipeline. Driver only; called by ``engine.micro_batch``.

One batch is one :class:`~onceward.sinks.database.attempt.DatabaseAttempt`; what they share is a
:class:`~onceward.sinks.database.run.DatabaseRun`. The chain of the ledger is in the same database as the tables
(:mod:`onceward.ledger.table`), so that its owner, its session and its COMMIT are the target's.
"""

from __future__ import annotations

from onceward.engine.target import AtomicTarget
from onceward.ledger.record import LedgerRecord
from onceward.sinks.database.attempt import DatabaseAttempt
from onceward.sinks.database.run import DatabaseRun
from onceward.sinks.database.settings import DatabaseSinkSettings
from onceward.sources.kafka_clusters import client_of
from onceward.sources.kafka_witness import KafkaWitness
from onceward.spark.query import RunningBatch


class DatabaseTarget(AtomicTarget):
    """One run's transactions with the database."""

    def __init__(self, settings: DatabaseSinkSettings) -> None:
        self.run = DatabaseRun(settings)
        self.chain = self.run.chain
        self.witness = KafkaWitness(client_of)

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
