"""The side of a pipeline that writes to a table of a lake: a two-phase target whose tasks are
Spark's own. Driver only.

Called by ``engine.micro_batch``; the order of things is :mod:`onceward.engine.two_phase`'s.
"""

from __future__ import annotations

from typing import Any, ClassVar

from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.spark_jobs import attempt_name
from onceward.engine.two_phase import TwoPhaseTarget
from onceward.errors import LedgerBehind
from onceward.ids import AttemptId, chain_mark, chain_prefix
from onceward.lake.attempt import LakeAttempt
from onceward.lake.settings import LakeSettings
from onceward.lake.table import LakeTable
from onceward.spark.batch.computation import Computation


class LakeTarget(TwoPhaseTarget):
    """One run of a query, writing to one table."""

    def __init__(self, settings: LakeSettings, table: LakeTable) -> None:
        policy = settings.policy
        chain = settings.ledger.chain(policy.pipeline)
        super().__init__(table, chain, policy, commit_timeout_s=settings.commit_timeout_s)
        self._ledger = f"the ledger {settings.ledger.where}"
        self._table = table
        # of the chain, once it is ours
        self._identity = self._mark = ""
        # the table with the ledger
        self._is_compared = False

    def list_prepared(self) -> list[Any]:
        """Check the table, then list what is staged."""
        self._table.check()
        return super().list_prepared()

    def must_be_of_this_chain(self) -> None:
        self._identity = self.chain.identity()
        self._mark = chain_mark(self._identity)
        self._table.must_be_of(self._identity, self._ledger)

    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> LakeAttempt:
        last = -1 if newest is None else newest.sequence
        if not self._is_compared:
            self._must_not_be_ahead(last)
        return LakeAttempt(
            self._table,
            self.kind,
            self.chain,
            self._policy,
            attempt_id,
            attempt_name(self._policy.pipeline, self._mark, attempt_id, self.branch),
            branch=self.branch,
            identity=self._identity,
            sequence=last + 1,
            computation=Computation(self._shuffles),
        )

    def _must_not_be_ahead(self, last: int) -> None:
        """Check once a run, before anything is decided: afterwards nobody but us can decide."""
        try:
            self._table.must_not_be_ahead(self._identity, last, self._ledger)
        except LedgerBehind:
            # a newer copy may have published its batch there: then this raises Fenced
            self.chain.newest()
            raise
        self._is_compared = True

    def is_of_this_chain(self, recovered: Any) -> bool:
        """Return whether the attempt's name begins with this chain's mark."""
        return str(recovered["attempt"]).startswith(
            chain_prefix(self._policy.pipeline, self._mark)
        )

    def as_recovered(self, record: LedgerRecord) -> list[Any]:
        """List an attempt by its name."""
        return [{"attempt": committable["attempt"]} for committable in self._committables(record)]


class DeltaTarget(LakeTarget):
    """Into a Delta table."""

    kind: ClassVar[str] = "delta"


class IcebergTarget(LakeTarget):
    """Into an Iceberg table."""

    kind: ClassVar[str] = "iceberg"
