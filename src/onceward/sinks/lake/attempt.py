"""One batch into a table: a Spark job for each frame, none of which readers see. Driver only; made by :mod:`target`."""

from __future__ import annotations

import logging

from onceward import events
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Prepared, Write, ids_of
from onceward.engine.time_limit import TimeLimit
from onceward.errors import ReportMismatch
from onceward.ids import AttemptId
from onceward.ledger.chain import Chain
from onceward.ledger.record import LedgerRecord, Output, State
from onceward.sinks.lake.table import LakeTable, Staged, all_of
from onceward.spark import job
from onceward.spark.computation import Computation
from onceward.spark.query import RunningBatch

log = logging.getLogger(__name__)

FORMAT = 1


class LakeAttempt(Attempt):
    """See the module.

    :param kind: of its output in the ledger record.
    :param identity: of the chain.
    """

    def __init__(
        self,
        table: LakeTable,
        kind: str,
        chain: Chain,
        policy: SinkPolicy,
        attempt_id: AttemptId,
        *,
        branch: str,
        identity: str,
        sequence: int,
        computation: Computation,
    ) -> None:
        self.id = attempt_id
        self._table = table
        self._kind = kind
        self._chain = chain
        self._policy = policy
        self._identity = identity
        self._branch = branch
        self._sequence = sequence
        self._computation = computation
        self._limit = TimeLimit(policy)
        self._name = table.name(attempt_id, branch)
        self._staged: list[Staged] = []
        self._decided = False

    def write(self, write: Write, running: RunningBatch) -> int:
        with events.step(events.SEND, **ids_of(self._policy.pipeline, running), **self.ids):
            frame = self._table.fitting(write.frame)
            with self._computation.read_once(frame):
                with job.watched(frame, self._limit.passed):
                    staged = self._table.stage(frame, self._name, len(self._staged))
                    self._staged.append(staged)
                self._computation.counts(frame)
        return staged.rows

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        rows = sum(staged.rows for staged in self._staged)
        committables = []
        if rows:
            committables = [
                self._table.committable(self._name, self._identity, self._branch, self._sequence, self._staged)
            ]
        else:
            self._drop()
        data = {"version": LakeTable.committable_version, "committables": committables}
        return Prepared(
            {self._kind: Output(self._kind, FORMAT, rows, data)},
            f"into {self._table} as {self._name}",
            State.DECIDED if committables else State.FINISHED,
        )

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        if record.sequence != self._sequence:  # the table will remember that number
            raise ReportMismatch(f"{self.id} was prepared as number {self._sequence}, not as {record.sequence}")
        super().stage(record, running)

    def commit(self) -> None:
        self._chain.append(self.record)
        self._decided = True

    def abort(self) -> None:
        if not self._decided:  # else it is the table's, whatever happens to us
            self._drop()
        self._chain.abort()

    def _drop(self) -> None:
        """What cannot be dropped now, the next start finds, or the table's own maintenance."""
        staged, self._staged = self._staged, []
        try:
            self._table.abort({"attempt": self._name, "staged": all_of(staged)})
        except Exception as error:  # noqa: BLE001 — see above
            log.warning("%s: what %s has staged could not be dropped: %r", self._policy.pipeline, self._name, error)
