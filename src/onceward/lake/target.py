"""The side of a pipeline that writes to a table of a lake: a two-phase target whose tasks are
Spark's own. Driver only.

Called by ``engine.micro_batch``; the order of things is :mod:`onceward.engine.two_phase`'s. A
batch is a :class:`LakeAttempt`: a Spark job for each frame, none of which readers see.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import SinkPolicy, must_be_decided
from onceward.engine.spark_jobs import SparkJobsAttempt
from onceward.engine.target import Write, run_again_after
from onceward.engine.two_phase import MarkedTarget
from onceward.errors import (
    ConfigurationError,
    LedgerBehind,
    PreparedDataLost,
    TargetUnreachable,
)
from onceward.ids import AttemptId
from onceward.lake.table import LakeTable, Latest, Staged, concatenated
from onceward.spark.batch import job
from onceward.spark.batch.query import RunningBatch

log = logging.getLogger(__name__)

_LATEST = "latest"
"""In an output's data: :class:`~onceward.lake.table.Latest`; not there if nothing is known."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The settings of a sink for a table of a lake, checked when it is built, immutable.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    policy: SinkPolicy
    ledger: Ledger
    table: str | None
    path: str | None
    commit_timeout_s: float

    def __post_init__(self) -> None:
        must_be_decided(self.ledger, self.commit_timeout_s)
        for name, value in (("table", self.table), ("path", self.path)):
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigurationError(
                    f"{name}={value!r} names no table", next_step="pass its name as text"
                )


class LakeAttempt(SparkJobsAttempt):
    """One batch into a table: a Spark job for each frame, none of which readers see.

    :param latest: what the table has of the batches before.
    """

    target: LakeTarget

    def __init__(
        self,
        target: LakeTarget,
        attempt_id: AttemptId,
        newest: LedgerRecord | None,
        latest: Latest | None,
    ) -> None:
        super().__init__(target, attempt_id, newest)
        self._table = target._table
        self._latest = latest
        self._staged: list[Staged] = []

    @run_again_after(TargetUnreachable)
    def write(self, write: Write, running: RunningBatch) -> int:
        return super().write(write, running)

    def _written(self, write: Write, running: RunningBatch) -> int:
        frame = self._table.fitting(write.frame)
        with self._computation.read_once(frame):
            with job.watched(frame, self._limit.passed):
                staged = self._table.stage(frame, self._name, len(self._staged))
                self._staged.append(staged)
            self._computation.counts(frame)
        return staged.rows

    @run_again_after(TargetUnreachable)
    def _committable(self) -> dict[str, Any]:
        target = self.target
        return self._table.committable(
            self._name, target.identity, target.branch, self._sequence, self._staged
        )

    def _summary(self, committables: Sequence[Any]) -> str:
        return f"as {self._name}"

    def _extra_data(self) -> Mapping[str, Any]:
        latest = self._latest
        if self._rows:
            table_id = str(self._staged[0].table["id"])
            latest = Latest(self._table.place, table_id, self._sequence)
        return {} if latest is None else {_LATEST: latest._asdict()}

    def _drop(self) -> None:
        staged, self._staged = self._staged, []
        self._table.abort({"attempt": self._name, "staged": concatenated(staged)})


class LakeTarget(MarkedTarget):
    """One run of a query, writing to one table."""

    def __init__(self, settings: LakeSettings, table: LakeTable) -> None:
        policy = settings.policy
        chain = settings.ledger.chain(policy.pipeline)
        super().__init__(table, chain, policy, commit_timeout_s=settings.commit_timeout_s)
        self._ledger = f"the ledger {settings.ledger.where}"
        self.kind = table.kind
        self._table = table
        # The newest batch of earlier runs; None: table and ledger are yet to be compared
        self._inherited_last: int | None = None

    def list_prepared(self) -> list[Any]:
        self._table.check()
        return super().list_prepared()

    def must_be_of_this_chain(self) -> None:
        super().must_be_of_this_chain()
        self._table.must_belong_to(self.identity, self._ledger)

    @run_again_after(TargetUnreachable)
    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> LakeAttempt:
        last = -1 if newest is None else newest.sequence
        self._table.look_anew()
        if self._inherited_last is None:
            # Once a run, before anything is decided: afterwards nobody but us can decide
            try:
                self._table.must_not_be_ahead(self.identity, last, self._ledger)
            except LedgerBehind:
                # a newer copy may have published its batch there: then this raises Fenced
                self.chain.newest()
                raise
            self._inherited_last = last
        return LakeAttempt(self, attempt_id, newest, self._latest(newest))

    def _latest(self, newest: LedgerRecord | None) -> Latest | None:
        """Return what the table has of the batches up to ``newest``, for the next record.

        :raises PreparedDataLost: it has lost some, and none may be left out.
        """
        output = None if newest is None else newest.outputs.get(self.kind)
        if newest is None or output is None or _LATEST not in output.data:
            return None
        latest = Latest(**output.data[_LATEST])
        try:
            self._table.must_not_be_behind(latest, self.identity, self.branch)
        except PreparedDataLost as lost:
            # whoever has gone on without them may be a newer copy: then this raises Fenced
            self.chain.newest()
            # only of what is lost before this run, somebody has said that it may be
            if self._policy.resume != "skip_missing" or newest.sequence != self._inherited_last:
                raise
            log.warning("%s: left out: %s", self._policy.pipeline, lost.message)
            found = int(lost.details["first_missing"]) - 1
            return Latest(self._table.place, self._table.id, found)
        return latest

    def _must_not_be_lost(self, lost: Sequence[Any], record: LedgerRecord) -> LedgerRecord:
        record = super()._must_not_be_lost(lost, record)
        if not lost:
            return record
        # It is left out: the next start is not to look for it
        output = record.outputs[self.kind]
        found = self._table.newest_batch(self.identity, self.branch)
        latest = Latest(self._table.place, self._table.id, found)._asdict()
        data = {**output.data, _LATEST: latest}
        return replace(record, outputs={self.kind: replace(output, data=data)})

    def _name_of(self, recovered: Any) -> str:
        return str(recovered["attempt"])

    def as_recovered(self, record: LedgerRecord) -> list[Any]:
        return [{"attempt": committable["attempt"]} for committable in self._committables(record)]
