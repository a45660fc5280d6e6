"""Two-phase targets: tasks prepare, the ledger record decides, the driver publishes. Driver only.
Called by ``engine.micro_batch``. What is written is the matter of a :class:`Committer`, which a
user's sink is; here is the order, and who may do what when:

1. At the start, the target finds what earlier runs have prepared and never decided
   (:meth:`TwoPhaseTarget.open`). It is aborted before the first attempt, and not sooner: a start
   that is refused (the ledger is another one, say, and decided nothing) drops nothing.
2. Tasks prepare, each task attempt under a name of its own. What no report names never becomes
   true.
3. The ledger record, with every committable in it, is appended: the decision.
4. Each committable is committed, again and again until all are done, here or at the next start;
   then the record says *finished*. Only then may the next batch be decided.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar, Protocol

from onceward import patience, surroundings
from onceward.engine import spark_jobs
from onceward.engine.ledger.chain import Chain, takeover_error
from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.engine.policy import SinkPolicy
from onceward.engine.spark_jobs import RECORD_FORMAT, RecordedAttempt
from onceward.engine.target import (
    Attempt,
    Target,
    Write,
    foreign_output_error,
)
from onceward.engine.task_writer import Beginner, OpenTaskWriter, OpenWriter, TaskResult
from onceward.errors import (
    ConfigurationError,
    LedgerUnreadable,
    OncewardError,
    PreparedDataLost,
    PublishIncomplete,
    summary,
)
from onceward.ids import AttemptId, PipelineId, chain_mark, chain_prefix
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Shuffles

log = logging.getLogger(__name__)

KIND = "two_phase"
"""Of a ledger record's output: ``{"version": of the committables, "committables": […]}``. A target
that keeps more there has a kind of its own."""

_TASK_NAME = re.compile(r"([A-Za-z0-9._-]+)@[^@/\\\\\"\s]{1,8}-\d+-\d+\.\d+-\d+-\d+\.\d+")
"""As ``Task.name`` has it, with the pipeline's id in front."""

# Characters of a committable in an error
_LONGEST_TEXT = 300


class CommitResult(Enum):
    """The outcome of committing one committable."""

    DONE = "done"
    # By an earlier call, whose answer was lost
    ALREADY_DONE = "already done"
    RETRY_LATER = "retry later"
    # A part of it is done: call again, and do not count what this call took
    PROGRESS = "progress"
    # What was prepared is gone, and can never be committed
    LOST = "lost"


class Committer(Beginner, Protocol):
    """Writes, and makes visible; documented at :class:`onceward.TwoPhaseCommitSink`."""

    committable_version: ClassVar[int]

    def commit(self, committable: Any) -> CommitResult | None:
        """Make a committable visible. In the driver, after the decision."""

    def abort(self, committable: Any) -> None:
        """Drop a committable. In the driver, instead of :meth:`commit`."""

    def recover(self) -> Iterable[Any]:
        """List what is prepared. In the driver, at the start, before anything else."""

    def upgrade(self, committable: Any, version: int) -> Any:
        """Return a committable of an older version in today's form. In the driver."""


class TwoPhaseTarget(Target):
    """One run of a query, writing to one place in two phases.

    :cvar kind: of the output in its ledger records.
    :param commit_timeout_s: how long committables are tried again before the query fails, to be
        started again.
    """

    kind: str = KIND

    def __init__(
        self, committer: Committer, chain: Chain, policy: SinkPolicy, *, commit_timeout_s: float
    ) -> None:
        self.committer = committer
        self.chain = chain
        self._policy = policy
        self.commit_timeout_s = commit_timeout_s
        self._shuffles = Shuffles()
        self.branch = ""
        """In a fan-out, its name there: what it makes besides, by the attempt's name alone, has
        this one, too."""
        # What earlier runs have prepared, for the first attempt to drop
        self._undecided: list[Any] = []
        # What the ledger says is published, and is prepared here
        self._again: list[Any] = []
        # The newest sequence of an earlier run
        self._inherited: int | None = None
        # Before the chain was taken
        self._is_looked_at = False

    def peek(self) -> LedgerRecord | None:
        return self.chain.peek()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        check_chain_exists(self.chain, running, self._policy)
        # List, take the chain, list again, and drop only what was there both times and is not
        # decided:
        # 1. dropping before the takeover: the older copy could still decide what was just dropped;
        # 2. listing after the takeover only: a copy that has itself been taken over meanwhile
        #    could drop what the newer one has prepared and decided;
        # 3. listing before the takeover only: it could drop what the older copy has published
        #    since.
        before = self.list_prepared()
        newest = self.chain.take()
        self.find_undecided(before, newest, running)
        return newest

    def list_prepared(self) -> list[Any]:
        """Check what can be checked, and list what is prepared. Before the chain is taken."""
        # None is no first start: an open transaction may have a record. Then nothing is made, and
        # nothing taken for new, before the chain is ours.
        peeked = self.chain.peek()
        self._is_looked_at = peeked is not None
        if peeked is not None:
            self.look_at_place(peeked)
        return self._recovered()

    def look_at_place(self, newest: LedgerRecord | None) -> None:
        """Check the place, and make what it lacks, by the newest record; None: there is none."""

    def _recovered(self) -> list[Any]:
        by = f"recover() of {type(self.committer).__name__}"
        return as_json(self.committer.recover(), by)

    def find_undecided(
        self,
        before: Sequence[Any],
        newest: LedgerRecord | None,
        running: RunningBatch,
        others: Sequence[Any] = (),
    ) -> None:
        """Find what of ``before`` was never decided, once the chain is taken, which ends with
        ``newest``. :param others: what is decided and another target's, which may be listed here,
        too."""
        earlier = newest is not None and newest.run_id != running.run_id
        self._inherited = newest.sequence if newest is not None and earlier else None
        if not self._is_looked_at:
            self.look_at_place(newest)
        self.must_be_of_this_chain()
        decided = [*others, *self.decided_in(newest)]
        after = self._recovered() if before else []
        if newest is not None and newest.state is RecordState.FINISHED:
            self._again = [one for one in after if one in self.published_in(newest)]
        undecided = [one for one in after if one in before and one not in decided]
        self._undecided = [one for one in undecided if self.is_of_this_chain(one)]
        if of_another := [one for one in undecided if not self.is_of_this_chain(one)]:
            log.warning(
                "%s: %d are prepared by another pipeline, or under this pipeline's id by that of "
                "another ledger, which may have decided them; they are left to it, or to you "
                "(what a sink puts before task.name makes another pipeline's of it): %s",
                self._policy.pipeline,
                len(of_another),
                str(of_another)[:_LONGEST_TEXT],
            )

    def must_be_of_this_chain(self) -> None:
        """Check, as owner, before anything is dropped, that what is prepared here is of this
        chain. :raises ConfigurationError: it is another one's."""

    def is_of_this_chain(self, recovered: Any) -> bool:
        """Return whether it was prepared in this chain, as far as its name tells.

        What another chain has prepared may be decided there. A committable of a custom sink that
        has the name of a task of another pipeline is of that pipeline, though
        :meth:`Committer.recover` lists it: where several of them prepare in one place, say.
        """
        pipelines = {found[1] for found in _TASK_NAME.finditer(json.dumps(recovered))}
        return not pipelines or self._policy.pipeline in pipelines

    def decided_in(self, newest: LedgerRecord | None) -> list[Any]:
        """Return what the committer may list of what is decided, and must not be dropped."""
        if newest is None:
            return []
        is_open = newest.state is RecordState.DECIDED
        return self.as_recovered(newest) if is_open else self.published_in(newest)

    def published_in(self, newest: LedgerRecord) -> list[Any]:
        """Return what is published by the newest record. A target that was failed over, or
        restored, may list it again: it has not heard of that."""
        try:
            return self._committables(newest)
        except LedgerUnreadable:  # of another sink, or of another version of this one
            return []

    def as_recovered(self, record: LedgerRecord) -> list[Any]:
        """Return what the committer lists of ``record`` while that is decided, not finished."""
        return self._committables(record)

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> Attempt:
        self.publish_again(newest)
        return self.attempt(self.chain.begin(newest), newest)

    def attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> Attempt:
        """Return a fresh attempt with the name that the chain has given out for it."""
        self._drop_undecided()
        return self._attempt(attempt_id, newest)

    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> Attempt:
        return TwoPhaseAttempt(self, attempt_id)

    def _drop_undecided(self) -> None:
        """Drop what earlier runs have prepared and not decided, now that this one was admitted."""
        # Nobody can decide it any more: an older copy has no chain, and a newer one decides what
        # its own tasks have prepared.
        self._undecided = drop_all(self.committer, self._undecided, self._policy.pipeline)

    def publish_again(self, newest: LedgerRecord | None) -> None:
        """Commit what the newest record names, and is prepared although that is finished. Before
        anything is dropped."""
        again, self._again = self._again, []
        if again and newest is not None:
            log.warning(
                "%s: %d parts of %s, which was published, are prepared again, as by a failover; "
                "they are committed once more",
                self._policy.pipeline,
                len(again),
                newest.batch,
            )
            self._publish(again, newest)

    def finish(self, record: LedgerRecord) -> LedgerRecord:
        record = self._publish(self._committables(record), record)
        return self.chain.progress(replace(record, state=RecordState.FINISHED))

    def _publish(self, waiting: Sequence[Any], record: LedgerRecord) -> LedgerRecord:
        backoff = patience.GrowingPauses(self.commit_timeout_s)
        while waiting:
            again: list[Any] = []
            lost: list[Any] = []
            result = CommitResult.DONE
            for committable in waiting:
                patience.ask()
                # Each may fail by a time limit of its own
                if result is not CommitResult.RETRY_LATER or not backoff.is_over:
                    result = self._commit(committable, record)
                if result is not CommitResult.RETRY_LATER:
                    backoff = patience.GrowingPauses(self.commit_timeout_s)
                if result in (CommitResult.RETRY_LATER, CommitResult.PROGRESS):
                    again.append(committable)
                elif result is CommitResult.LOST:
                    lost.append(committable)
            record = self._must_not_be_lost(lost, record)
            waiting = again
            if waiting and not backoff.wait():
                raise PublishIncomplete(
                    f"{record.batch} is decided, and {len(waiting)} of its committables were "
                    f"still to be committed after {self.commit_timeout_s:g} s without progress",
                    next_step="see why commit() answers 'retry later' or fails (the log has its "
                    "errors); start the query again: it goes on with them before anything else",
                    details={"pipeline": record.pipeline, "waiting": len(waiting)},
                )
        return record

    def _commit(self, committable: Any, record: LedgerRecord) -> CommitResult:
        try:
            result = self.committer.commit(committable)
        except Exception as error:
            # it stays decided, and is tried again
            if isinstance(error, OncewardError) and error.recovery.needs_a_change:
                raise
            text = "%s: committing a part of %s failed: %s"
            log.warning(text, record.pipeline, record.batch, summary(error))
            return CommitResult.RETRY_LATER
        if result is not None and not isinstance(result, CommitResult):
            raise ConfigurationError(
                f"commit() has answered {result!r}",
                next_step="let it return an ow.CommitResult, or None for DONE",
            )
        return CommitResult.DONE if result is None else result

    def _must_not_be_lost(self, lost: Sequence[Any], record: LedgerRecord) -> LedgerRecord:
        """Return ``record``, as it is to be finished if the user goes on without what is lost."""
        if not lost:
            return record
        newest, here = self.chain.newest(), (record.sequence, record.state)
        if newest is not None and (newest.sequence, newest.state) != here:
            # It has published it, and readers have taken it away since
            raise takeover_error(record.pipeline, f"the ledger, which has {newest.batch}")
        # Only what was decided before this start: of what is lost later, nobody has said that it
        # may be.
        if self._policy.resume == "skip_missing" and record.sequence == self._inherited:
            text = "%s: left out, as it is lost: of %s: %s"
            log.warning(text, record.pipeline, record.batch, lost)
            return record
        raise PreparedDataLost(
            f"a part of {record.batch} was prepared and decided, and is gone from the target: "
            f"{str(lost[0])[:_LONGEST_TEXT]}"
            + (f" and {len(lost) - 1} more" if len(lost) > 1 else ""),
            next_step="find out what removed it, and restore it if that is possible; to go on "
            'without it, start once with resume="skip_missing"',
            details={
                "pipeline": record.pipeline,
                "batch_id": record.batch.batch_id,
                "lost": len(lost),
            },
        )

    def _committables(self, record: LedgerRecord) -> list[Any]:
        """Return the committables. :raises LedgerUnreadable: another sink's, or too new."""
        output = record.outputs.get(self.kind)
        if output is None or (output.kind, output.version) != (self.kind, RECORD_FORMAT):
            raise foreign_output_error(record)
        version, known = int(output.data["version"]), self.committer.committable_version
        if version > known:
            raise LedgerUnreadable(
                f"the newest ledger record of pipeline {record.pipeline} has committables of "
                f"version {version}; this sink knows up to {known} (committable_version)",
                next_step="start this pipeline with the code of the sink that wrote them, or with "
                "later one",
            )
        committables: Sequence[Any] = output.data["committables"]
        if version == known:
            return list(committables)
        upgraded = [self.committer.upgrade(committable, version) for committable in committables]
        return as_json(upgraded, f"upgrade() of {type(self.committer).__name__}")

    def settle(self) -> LedgerRecord | None:
        return self.chain.settle()

    def close(self) -> None:
        self.chain.close()


class MarkedTarget(TwoPhaseTarget):
    """One that prepares under names which have the chain in them. What another ledger's pipeline
    of the same id has prepared may be decided there."""

    # Of the chain, once it is ours
    identity = mark = ""

    def must_be_of_this_chain(self) -> None:
        self.identity = self.chain.identity()
        self.mark = chain_mark(self.identity)

    def is_of_this_chain(self, recovered: Any) -> bool:
        """Return whether its name begins as those of this chain do."""
        name = self._name_of(recovered)
        return name.startswith(chain_prefix(self._policy.pipeline, self.mark))

    def _name_of(self, recovered: Any) -> str:
        return str(recovered)


class TwoPhaseAttempt(RecordedAttempt):
    """One attempt at a batch: what its tasks have prepared, until it is decided or dropped."""

    target: TwoPhaseTarget

    def __init__(self, target: TwoPhaseTarget, attempt_id: AttemptId) -> None:
        super().__init__(target, attempt_id)
        self._results: list[list[TaskResult]] = []

    def _written(self, write: Write, running: RunningBatch) -> int:
        opening = self._opening(write, running, len(self._results))
        results: list[TaskResult] = []
        # Before they are looked at: what is prepared can be dropped then
        self._results.append(results)
        spark_jobs.run(write.frame, opening, self._computation, self._limit, results)
        return sum(result.rows for result in results)

    def _opening(self, write: Write, running: RunningBatch, frame: int) -> OpenWriter:
        """Return what opens the writers of the batch's frame number ``frame``."""
        return OpenTaskWriter(
            self._committer, self._policy.pipeline, running.batch, self.id, frame
        )

    def _committables(self) -> list[Any]:
        """Return those of all frames, in their order and that of their partitions."""
        reported = (result.committable for results in self._results for result in results)
        return [committable for committable in reported if committable is not None]

    def commit(self) -> None:
        self._chain.append(self.record)

    def abort(self) -> None:
        """Drop what reports have named; the rest, of tasks that died, is for ``recover``."""
        committables, self._results = self._committables(), []
        try:
            # What it has no time for, the next attempt drops
            left = drop_all(self._committer, committables, self._policy.pipeline)
            self.target._undecided += left
        finally:
            self._chain.abort()


def check_chain_exists(chain: Chain, running: RunningBatch, policy: SinkPolicy) -> None:
    """Check before a chain is taken, which makes one, that it is there if an earlier batch was
    committed in it. Where an earlier batch of this very run was not handed over, admission says
    so. :raises LedgerUnreachable: it is not: a disk that is not mounted, say."""
    first_of_run = running.history is None or running.history.first_of_run()
    if running.batch.batch_id > 0 and policy.resume != "adopt" and first_of_run:
        chain.must_be_there()


def as_json(found: object, by: str) -> list[Any]:
    """Return committables as they are read back from the ledger, so that they can be compared.

    :param by: whose answer they are.
    :raises ConfigurationError: it is no list of such.
    """
    is_list = isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping)
    listed = list(found) if is_list else found  # type: ignore[call-overload]
    with suppress(TypeError, ValueError):
        if is_list:
            return list(json.loads(json.dumps(listed)))
    raise ConfigurationError(
        f"{by} has answered {str(listed)[:_LONGEST_TEXT]}",
        next_step="let committables be of what JSON has (texts, numbers, lists, dicts): recover() "
        "returns a list of all that is prepared and not published, upgrade() one for one",
    )


def drop_all(committer: Committer, committables: Sequence[Any], pipeline: PipelineId) -> list[Any]:
    """Drop what was not decided, and never will be. What fails, the next start lists again; so it
    does what a query leaves that is stopped (:func:`onceward.patience.dropping`). Return what is
    left when the time is over (:func:`onceward.patience.within`)."""
    with patience.dropping():
        for number, committable in enumerate(committables):
            patience.ask()
            if surroundings.monotonic() > patience.ends_at(math.inf):
                left = list(committables[number:])
                log.warning("%s: %d prepared parts are dropped later", pipeline, len(left))
                return left
            try:
                committer.abort(committable)
            except Exception as error:  # noqa: BLE001 — see above
                text = "%s: %s could not be dropped: %s"
                log.warning(text, pipeline, committable, summary(error))
    return []
