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
from typing import Any, Protocol

from pyspark.sql import DataFrame

from onceward import events, patience
from onceward.engine.ending import TimeLimit
from onceward.engine.ledger.chain import Chain, takeover_error
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Prepared, Write, event_ids
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

RECORD_FORMAT = 1
"""Of outputs that have committables, in ledger records."""


def attempt_name(pipeline: PipelineId, mark: str, attempt: AttemptId, branch: str) -> str:
    """Return the name of an attempt in its target, which no other ever has.

    :param mark: of the chain (:func:`onceward.ids.chain_mark`).
    :param branch: the sink's name in a fan-out, or empty.
    """
    return f"{chain_prefix(pipeline, mark)}{attempt.owner}.{attempt.number}" + (
        f"-{branch}" if branch else ""
    )


class RecordedTarget(Protocol):
    """A two-phase target (:mod:`onceward.engine.two_phase`), as far as its attempts ask it."""

    kind: str
    chain: Chain
    branch: str
    committer: Any
    _policy: SinkPolicy
    _shuffles: Shuffles


class NamingTarget(RecordedTarget, Protocol):
    """One whose names of what is prepared have the chain's mark."""

    mark: str


class RecordedAttempt(Attempt):
    """One try at a batch that its ledger record decides, with the committables in it.

    Its output there is of the target's kind: ``{"version": of the committables, "committables":
    […]}``, and what :meth:`_extra_data` says besides.
    """

    target: RecordedTarget

    def __init__(self, target: RecordedTarget, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self.target = target
        self._committer = target.committer
        self._chain = target.chain
        self._policy = target._policy
        self._computation = Computation(target._shuffles)
        self._limit = TimeLimit(target._policy)
        self._rows = 0

    def write(self, write: Write, running: RunningBatch) -> int:
        ids = {**event_ids(self._policy.pipeline, running), **self.ids}
        with events.step(events.SEND, **ids) as values:
            values["records"] = rows = self._written(write, running)
        self._rows += rows
        return rows

    @abstractmethod
    def _written(self, write: Write, running: RunningBatch) -> int:
        """Write one frame of the batch by one job; return how many rows it has."""

    @abstractmethod
    def _committables(self) -> list[Any]:
        """Return what the ledger record is to name. All of it is durable."""

    def _extra_data(self) -> Mapping[str, Any]:
        """Return what the ledger record is to hold besides."""
        return {}

    def _summary(self, committables: Sequence[Any]) -> str:
        """Return what was prepared, for the log."""
        return f"{len(committables)} committables of {self.id}"

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        committables = self._committables()
        kind = self.target.kind
        data = {
            "version": self._committer.committable_version,
            **self._extra_data(),
            "committables": committables,
        }
        return Prepared(
            {kind: Output(kind, RECORD_FORMAT, self._rows, data)},
            self._summary(committables),
            RecordState.DECIDED if committables else RecordState.FINISHED,
        )


class SparkJobsAttempt(RecordedAttempt):
    """One try at one batch, with at most one committable."""

    def __init__(
        self, target: NamingTarget, attempt_id: AttemptId, newest: LedgerRecord | None
    ) -> None:
        super().__init__(target, attempt_id)
        self._name = attempt_name(self._policy.pipeline, target.mark, attempt_id, target.branch)
        # The number that the batch will have in the ledger
        self._sequence = 0 if newest is None else newest.sequence + 1
        self._decided = False

    @abstractmethod
    def _committable(self) -> dict[str, Any]:
        """Return what the ledger record is to name, of a batch with rows. All of it is durable."""

    @abstractmethod
    def _drop(self) -> None:
        """Drop what was written, and will never be decided."""

    def _committables(self) -> list[dict[str, Any]]:
        if not self._rows:
            # Whoever writes a schema without rows makes something all the same
            self._try_to_drop()
            return []
        try:
            return [self._committable()]
        except (ConfigurationError, ReportMismatch) as error:
            # A newer copy may have put its batch there, or have dropped ours: then it is for
            # Fenced to say so.
            newest = self._chain.newest()
            if newest is not None and newest.sequence >= self._sequence:
                raise takeover_error(
                    self._policy.pipeline, f"the ledger, which has {newest.batch}"
                ) from error
            raise

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
