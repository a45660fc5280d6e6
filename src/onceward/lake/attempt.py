"""One batch into a table: a Spark job for each frame, none of which readers see. Driver only; made
by :mod:`target`.
"""

from __future__ import annotations

from typing import Any

from onceward import events
from onceward.engine.ledger.chain import Chain
from onceward.engine.policy import SinkPolicy
from onceward.engine.spark_jobs import SparkJobsAttempt
from onceward.engine.target import Write, event_ids
from onceward.ids import AttemptId
from onceward.lake.table import LakeTable, Staged, concatenated
from onceward.spark.batch import job
from onceward.spark.batch.computation import Computation
from onceward.spark.batch.query import RunningBatch


class LakeAttempt(SparkJobsAttempt):
    """See the module.

    :param kind: of its output in the ledger record.
    :param name: of the attempt in the table.
    :param branch: the sink's name in a fan-out, or empty.
    :param identity: of the chain.
    """

    committable_version = LakeTable.committable_version

    def __init__(
        self,
        table: LakeTable,
        kind: str,
        chain: Chain,
        policy: SinkPolicy,
        attempt_id: AttemptId,
        name: str,
        *,
        branch: str,
        identity: str,
        sequence: int,
        computation: Computation,
    ) -> None:
        super().__init__(kind, chain, policy, attempt_id, name, sequence, computation)
        self._table = table
        self._branch = branch
        self._identity = identity
        self._staged: list[Staged] = []

    def write(self, write: Write, running: RunningBatch) -> int:
        with events.step(events.SEND, **event_ids(self._policy.pipeline, running), **self.ids):
            frame = self._table.fitting(write.frame)
            with self._computation.read_once(frame):
                with job.watched(frame, self._limit.passed):
                    staged = self._table.stage(frame, self._name, len(self._staged))
                    self._staged.append(staged)
                self._computation.counts(frame)
        self._rows += staged.rows
        return staged.rows

    def _committable(self) -> dict[str, Any]:
        return self._table.committable(
            self._name, self._identity, self._branch, self._sequence, self._staged
        )

    def _drop(self) -> None:
        staged, self._staged = self._staged, []
        self._table.abort({"attempt": self._name, "staged": concatenated(staged)})
