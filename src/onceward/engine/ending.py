"""How a batch attempt ends without its commit: it is stopped, undone, or in doubt. Driver only.

``query.stop()`` returns when the batch has, and nobody wants to wait for a broker that may be
silent for minutes. So a batch has a moment to end what can be ended, and leaves the rest: the next
start fences this one before all else, which ends the transaction that is open, and asks the ledger
what became of one that was about to be committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from onceward import patience, surroundings
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Target
from onceward.errors import (
    BatchTimedOut,
    CommitInDoubt,
    Fenced,
    LedgerBehind,
    OncewardError,
    TransactionTimedOut,
)
from onceward.ids import PipelineId
from onceward.spark.batch.job import JobInterrupted

log = logging.getLogger(__name__)

_MOMENT_SECONDS = 1.0
_LOOK_SECONDS = 0.2
"""A look costs some calls into the JVM, which a batch without long waits must not pay."""
_UNDO_MS = 60_000
"""For all that an attempt leaves open together; whatever begins next ends the rest."""


class Ending:
    """A check by every wait of one batch (:mod:`onceward.patience`): is it being stopped?"""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._look_at = surroundings.monotonic() + _LOOK_SECONDS
        self._over_at: float | None = None

    def __call__(self) -> None:
        """Check whether the wait may go on. :raises JobInterrupted: the query is being stopped,
        and the moment is over."""
        now = surroundings.monotonic()
        if self._over_at is None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._over_at = now + _MOMENT_SECONDS if self._is_stopping() else None
        if self._over_at is not None and now >= self._over_at:
            raise JobInterrupted(
                "the query is being stopped, and this batch waited for an answer that did not "
                "come. The next start settles it first of all: it ends what is open, and asks the "
                "ledger whether the batch is committed."
            )


class TimeLimit:
    """``batch_timeout_s``, from now on, for all frames of the attempt together."""

    def __init__(self, policy: SinkPolicy) -> None:
        self._seconds = policy.batch_timeout_s
        self._began = surroundings.monotonic()

    def passed(self) -> BatchTimedOut | None:
        """Return the error, once the time is over."""
        if self._seconds is None or surroundings.monotonic() - self._began <= self._seconds:
            return None
        return BatchTimedOut(
            f"the batch ran longer than batch_timeout_s={self._seconds}",
            next_step="raise batch_timeout_s, or make batches smaller (maxOffsetsPerTrigger)",
        )


def undo(target: Target, attempt: Attempt, error: BaseException, pipeline: PipelineId) -> None:
    """Abort after ``error``, which happened before the commit was sent."""
    with patience.within(_UNDO_MS):
        try:
            attempt.abort()
        except Fenced as fenced:
            raise fenced from error
        except OncewardError as also:
            # Timed out, or nobody answers: leave no attempt open before the next begins.
            log.warning("%s: abort failed (%s); settling", pipeline, also)
            target.settle()


def settle_doubt(
    target: Target, attempt: Attempt, record: LedgerRecord, error: BaseException
) -> LedgerRecord:
    """Return the record if a commit that failed with ``error`` was carried out; else raise that.
    :raises CommitInDoubt: nor can the ledger be asked; the next start will."""
    log.warning("%s: %s is in doubt (%s); asking the ledger", record.pipeline, record.batch, error)
    try:
        newest = target.settle()
    except (Fenced, LedgerBehind):
        raise
    except OncewardError as unsettled:
        # Never an error that may be retried: as long as nobody knows, running the batch again
        # could write it twice.
        raise CommitInDoubt(
            f"whether {record.batch} is committed could not be found out: {unsettled}",
            next_step="start the query again: its first step asks the ledger",
        ) from unsettled
    if newest is not None and (newest.sequence, newest.batch, newest.attempt) == (
        record.sequence,
        record.batch,
        record.attempt,
    ):
        return newest
    try:
        # Now it is certain that it was not decided, and never will be
        with patience.within(_UNDO_MS):
            attempt.abort()
    except OncewardError as also:
        log.warning("%s: %s could not be dropped: %s", record.pipeline, attempt.id, also)
    if isinstance(error, CommitInDoubt):
        raise error.refused or TransactionTimedOut(
            f"{record.batch} was not committed: the request was never carried out "
            f"({error.message})",
            next_step="nothing; the batch runs again",
        ) from error
    raise error
