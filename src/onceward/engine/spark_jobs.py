"""The Spark jobs of one attempt: of sinks that are written in Python, whose tasks run
:mod:`onceward.engine.task_writer`; and of sinks whose tasks are Spark's own. Driver only.

The latter, for files and for tables of a lake, subclass :class:`SparkJobsAttempt`. What they
prepare they know by the batch's number in the ledger, so that the record has to have that one.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql import DataFrame

from onceward import patience
from onceward.engine.ending import TimeLimit
from onceward.engine.ledger.chain import Chain, takeover_error
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Prepared
from onceward.engine.task_writer import (
    RESULT_DDL,
    OpenWriter,
    TaskResult,
    check_each_task_once,
    collect_reports,
    task_function,
)
from onceward.errors import ConfigurationError, OncewardError, ReportMismatch, summary
from onceward.ids import AttemptId, PipelineId, chain_prefix
from onceward.secrecy import unlogged_calls
from onceward.spark.batch import job
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation, Shuffles

_WORD = re.compile(r"\w+")


def plan_write(
    frame: DataFrame,
    open_writer: OpenWriter,
    returned_errors: tuple[type[OncewardError], ...] = (OncewardError,),
) -> DataFrame:
    """Return ``frame`` as its tasks write it; its rows are then their results."""
    names = frame.columns
    # mapInArrow looks columns up as SQL does: `a.b` is a field of `a`, `*` all columns, and `A`
    # may be `a`.
    different = {name.lower() for name in names}
    if not all(map(_WORD.fullmatch, names)) or len(different) < len(names):
        frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
    # What is pickled here may hold passwords
    with unlogged_calls():
        return frame.mapInArrow(task_function(open_writer, names, returned_errors), RESULT_DDL)


def run(
    frame: DataFrame,
    open_writer: OpenWriter,
    computation: Computation,
    limit: TimeLimit,
    prepared: list[TaskResult],
) -> None:
    """Write ``frame`` by one job.

    :param prepared: gets what its tasks have prepared, by partitions; also where an error is
        raised, as far as the tasks have reported it.
    :raises OncewardError: what a task brought back.
    :raises BatchTimedOut, ComputationsMixed, ReportMismatch: …
    :raises Exception: Spark's own, when the job fails.
    """
    written = plan_write(frame, open_writer)
    with computation.read_once(written):
        with job.naming_the_loss(limit.passed):
            rows, task_count = job.collect(written, limit.passed)
        errors = collect_reports(rows, prepared)
        computation.counts(written)
    if errors:
        raise errors[0]
    check_each_task_once([result.partition_id for result in prepared], task_count)


def compute(frame: DataFrame, shuffles: Shuffles, limit: TimeLimit) -> None:
    """Compute ``frame``, of which nothing is written, by one job. Raises as :func:`run` does."""
    with shuffles.read_once(frame), job.watched(frame, limit.passed):
        frame.count()


log = logging.getLogger(__name__)

_FORMAT = 1


def attempt_name(pipeline: PipelineId, mark: str, attempt: AttemptId, branch: str) -> str:
    """Return the name of an attempt in its target, which no other ever has.

    :param mark: of the chain (:func:`onceward.ids.chain_mark`).
    :param branch: the sink's name in a fan-out, or empty.
    """
    return f"{chain_prefix(pipeline, mark)}{attempt.owner}.{attempt.number}" + (
        f"-{branch}" if branch else ""
    )


class SparkJobsAttempt(Attempt):
    """One try at one batch, with at most one committable.

    :param kind: of its output in the ledger record: ``{"version": of the committable,
        "committables": [it]}``, and what :meth:`_extra_data` says besides.
    :param name: of the attempt in the target.
    :param sequence: the number that the batch will have in the ledger.
    """

    committable_version: ClassVar[int] = 1

    def __init__(
        self,
        kind: str,
        chain: Chain,
        policy: SinkPolicy,
        attempt_id: AttemptId,
        name: str,
        sequence: int,
        computation: Computation,
    ) -> None:
        self.id = attempt_id
        self._kind = kind
        self._chain = chain
        self._policy = policy
        self._name = name
        self._sequence = sequence
        self._computation = computation
        self._limit = TimeLimit(policy)
        self._rows = 0
        self._decided = False

    @abstractmethod
    def _committable(self) -> dict[str, Any]:
        """Return what the ledger record is to name, of a batch with rows. All of it is durable."""

    def _committable_of_ours(self) -> dict[str, Any]:
        try:
            return self._committable()
        except (ConfigurationError, ReportMismatch) as error:
            # A newer copy may have put its batch there, or have dropped ours: then it is for
            # Fenced to say so.
            newest = self._chain.newest()
            if newest is not None and newest.sequence >= self._sequence:
                raise takeover_error(
                    self._policy.pipeline, f"the ledger, which has {newest.batch}"
                ) from error
            raise

    @abstractmethod
    def _drop(self) -> None:
        """Drop what was written, and will never be decided."""

    def _extra_data(self) -> Mapping[str, Any]:
        """Return what the ledger record is to hold besides."""
        return {}

    def _summary(self, committables: Sequence[Mapping[str, Any]]) -> str:
        """Return what was prepared, for the log."""
        return f"as {self._name}"

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        committables = [self._committable_of_ours()] if self._rows else []
        # Whoever writes a schema without rows makes something all the same
        if not committables:
            self._try_to_drop()
        data = {
            "version": self.committable_version,
            **self._extra_data(),
            "committables": committables,
        }
        return Prepared(
            {self._kind: Output(self._kind, _FORMAT, self._rows, data)},
            self._summary(committables),
            RecordState.DECIDED if committables else RecordState.FINISHED,
        )

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        if record.sequence != self._sequence:
            raise ReportMismatch(
                f"{self.id} was prepared as number {self._sequence}, not as {record.sequence}"
            )
        super().stage(record, running)

    def commit(self) -> None:
        self._chain.append(self.record)
        self._decided = True

    def abort(self) -> None:
        # Else it is the target's, whatever happens to us
        if not self._decided:
            self._try_to_drop()
        self._chain.abort()

    def _try_to_drop(self) -> None:
        """Drop what was written; what stays, the next start finds, or the target's maintenance."""
        try:
            with patience.dropping():
                self._drop()
        except Exception as error:  # noqa: BLE001 — see above
            text = "%s: what %s has written could not be dropped: %s"
            log.warning(text, self._policy.pipeline, self._name, summary(error))
