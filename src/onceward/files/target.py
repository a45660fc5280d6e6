"""The file sink's side of a pipeline: a two-phase target whose tasks are Spark's own. Driver only.

Called by ``engine.micro_batch``; the order of things is :mod:`onceward.engine.two_phase`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.spark_jobs import attempt_name
from onceward.engine.two_phase import TwoPhaseTarget
from onceward.files.attempt import KIND, FileAttempt
from onceward.files.publishing import Publisher
from onceward.files.rolling import Rolling
from onceward.files.settings import FileSinkSettings
from onceward.ids import AttemptId, chain_mark, chain_prefix
from onceward.spark.batch.computation import Computation

log = logging.getLogger(__name__)


class FileTarget(TwoPhaseTarget):
    """One run of a query, writing files below one path."""

    kind: ClassVar[str] = KIND

    def __init__(self, settings: FileSinkSettings, publisher: Publisher) -> None:
        policy = settings.policy
        chain = settings.ledger.chain(policy.pipeline)
        super().__init__(publisher, chain, policy, commit_timeout_s=settings.commit_timeout_s)
        self._settings = settings
        self._publisher = publisher
        # of the chain, once it is ours
        self._mark = ""
        self._row_bytes: float | None = None

    def list_prepared(self) -> list[Any]:
        """Check the path, then list the attempts' folders."""
        newest = self.chain.peek()
        self._publisher.check("" if newest is None else self._written_to(newest))
        return super().list_prepared()

    def _written_to(self, record: LedgerRecord) -> str:
        """Return the path below which a batch was written; "" where its record does not tell."""
        output = record.outputs.get(self.kind)
        if output is None or output.kind != KIND:
            return ""
        roots = [str(one["root"]) for one in output.data["committables"]]
        return str(output.data.get("root") or next(iter(roots), ""))

    def must_be_of_this_chain(self) -> None:
        self._mark = chain_mark(self.chain.identity())

    def is_of_this_chain(self, recovered: Any) -> bool:
        """Return whether the folder's name begins with this chain's mark."""
        return str(recovered["folder"]).startswith(chain_prefix(self._policy.pipeline, self._mark))

    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> FileAttempt:
        if newest is not None:
            self._row_bytes = self._size_of_a_row(newest) or self._row_bytes
        return FileAttempt(
            self._publisher,
            Rolling(self._settings.how, self._settings.target_file_size_bytes, self._row_bytes),
            self.chain,
            self._policy,
            attempt_id,
            attempt_name(self._policy.pipeline, self._mark, attempt_id, self.branch),
            0 if newest is None else newest.sequence + 1,
            Computation(self._shuffles),
        )

    def _size_of_a_row(self, record: LedgerRecord) -> float | None:
        """Return a row's average size in files; None of a batch without rows, or of which that is
        not told."""
        output = record.outputs.get(self.kind)
        if output is None or output.kind != KIND or not output.records:
            return None
        total = sum(
            int(size) for one in output.data["committables"] for size in one["files"].values()
        )
        return total / output.records

    def as_recovered(self, record: LedgerRecord) -> list[Any]:
        """List an attempt's folder by its name; what becomes of its files, the ledger alone
        says.
        """
        return [{"folder": committable["folder"]} for committable in self._committables(record)]

    def _must_not_be_lost(self, lost: Sequence[Any], record: LedgerRecord) -> None:
        super()._must_not_be_lost(lost, record)
        # it may be left out: what is still there need not be
        for committable in lost:
            self._publisher.commit_what_is_left(committable)
