"""The way of a micro-batch: nine steps, from Spark's call to Spark's commit log. Read this first.

Called by ``engine.calls.foreach_batch`` in the query's own thread, in the driver. The steps,
numbered alike here and in the code:

1. **Admit**: compare the batch with the ledger (the first batch of a run fences its predecessors
   before it reads).
2. **Plan**, 3. **Encode**, 4. **Lease**, 5. **Stamp and send**, 6. **Check**: the attempt's
   ``write``, a Spark job for each frame. (What is said of leases and stamps is Kafka's; other
   targets stage in their own way.)
7. **Offsets and ledger**: the attempt's ``stage``.
8. **Commit**: the decision, the only commit point; and what a two-phase target publishes after it,
   ``finish``.
9. **Return** to Spark, which writes its commit log.

What if the process dies …

* before 8: the attempt is open. The next start fences it, which aborts it at once, finds the
  ledger without this batch, and runs the batch again over the same offsets. Nothing of the attempt
  ever was visible.
* between 8 and 9: the next start finds the batch in the ledger: ``REPLAY``. The plan runs (state
  and watermark need it), its rows are counted against those that are committed, and nothing is
  sent.
* in 8, the answer lost: never abort, never guess. ``settle`` fences the attempt itself, so that a
  late request finds nothing to end, and the ledger then says which of the two it was.
* after 8, not all of it published: the ledger says *decided*. Every start goes on publishing
  before it does anything else, until the ledger says *finished*; nothing of a decided batch is
  ever aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onceward import events, patience, surroundings
from onceward.engine.calls.failed_batches import FailedBatches, must_compute_once
from onceward.engine.calls.replays import replay
from onceward.engine.ledger.admission import Admission, Before, admit, hopeless
from onceward.engine.ledger.record import FrameWritten, LedgerRecord, State
from onceward.engine.ledger.refusals import refusal, refuse_skipped_dead_letters, second_call
from onceward.engine.policy import SinkPolicy, with_the_next_start
from onceward.engine.target import Attempt, Prepared, Target, Write, ids_of
from onceward.errors import (
    AdmissionRefused,
    CommitInDoubt,
    Fenced,
    OncewardError,
    Recovery,
    TransactionTimedOut,
)
from onceward.ids import BatchId, SourceRange
from onceward.spark.batch.query import History, RunningBatch

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
# of all that an attempt leaves open together; whoever begins next, here or anywhere, ends the rest
_UNDO_MS = 60_000


class MicroBatches:
    """One run of one query: its batches, one after the other.

    :param failed: a batch that this run of the query has tried before, with an error; it may be
        committed all the same.
    :param failures: the batches whose call failed, in this run or in an earlier one.
    """

    def __init__(
        self,
        target: Target,
        policy: SinkPolicy,
        failed: BatchId | None = None,
        failures: FailedBatches | None = None,
    ) -> None:
        self._target = target
        self._policy = policy
        self._failed = failed
        self._failures = failures
        self._opened = self._witnessed = False
        self._newest: LedgerRecord | None = None
        self._finished: BatchId | None = None

    def process(self, writes: Sequence[Write], running: RunningBatch) -> None:
        """Write the frames of a batch exactly once, or raise; when it returns, the batch is
        committed.
        """
        if running.batch == self._finished:
            raise second_call(running.batch)
        outcome = self._admit(running)
        # "keep" is about what an earlier run has skipped, not about what this one goes on
        # skipping.
        excused = self._policy.resume == "keep" and (
            self._newest is None or self._newest.run_id != running.run_id
        )
        if (
            outcome is Admission.AFTER_SKIPPED
            and not excused
            and any(write.set_aside for write in writes)
        ):
            refuse_skipped_dead_letters(running.batch, running.sources, self._newest)
        if outcome is Admission.REPLAY:
            with events.step(events.REPLAY, **self._ids(running)):
                lacking = replay(writes, running, self._newest, self._policy, self._failures)
            if lacking:
                self._write(lacking, running, self._newest)
        else:
            self._write(writes, running)
        if self._failures is not None:
            self._failures.settle(running.batch.batch_id)
        with events.step(events.FINISH, **self._ids(running)):
            self._finished = (
                running.batch
            )  # 9. back to Spark; here it is between EndTxn and Spark's commit log

    def is_replay(self, running: RunningBatch) -> bool:
        """Had an earlier run committed the batch?"""
        newest = self._newest
        return (
            newest is not None
            and newest.batch == running.batch
            and newest.run_id != running.run_id
        )

    # 1. Admit

    def _admit(self, running: RunningBatch) -> Admission:
        ids = self._ids(running)
        if not self._opened:
            self._refuse_the_hopeless(running)
            with events.step(events.OPEN, **ids):
                self._newest = self._target.open(running)
            self._opened = True
        self._finish_what_is_decided(running)
        if not self._witnessed:
            self._target.witness.begin(running, self._newest)
            self._witnessed = True
        with events.step(events.ADMIT, **ids):
            try:
                outcome = self._decide(running, self._newest)
            except AdmissionRefused:
                # or a broker that no longer leads the ledger would stop the query for good
                self._target.confirm()
                raise
        if outcome in (Admission.ADOPT, Admission.RESUME):
            log.warning(
                "%s: %s taken on by resume=%r",
                self._policy.pipeline,
                running.batch,
                self._policy.resume,
            )
        return outcome

    def _finish_what_is_decided(self, running: RunningBatch) -> None:
        """Nothing else comes before it: a batch after this one, decided first, would be seen
        first.
        """
        if self._newest is None or self._newest.state is State.FINISHED:
            return
        with events.step(events.PUBLISH, **self._ids(running)):
            self._newest = self._target.finish(self._newest)

    def _refuse_the_hopeless(self, running: RunningBatch) -> None:
        """Before anybody is fenced: a query with the wrong checkpoint or pipeline id must not stop
        a healthy one.
        """
        peeked = self._target.peek()
        if hopeless(
            running.batch, running.sources, peeked, self._policy.resume, stateful=running.stateful
        ):
            try:
                self._decide(running, peeked)
            except AdmissionRefused as refused:
                if peeked is not None and peeked.state is State.DECIDED:
                    refused.next_step += _how_it_is_published(peeked.batch, running.batch)
                raise

    def _decide(self, running: RunningBatch, newest: LedgerRecord | None) -> Admission:
        before = self._before(running, newest)
        outcome = admit(
            running.batch,
            running.sources,
            newest,
            self._policy.resume,
            stateful=running.stateful,
            run_id="" if running.batch == self._failed else running.run_id,
            before=before,
        )
        if not outcome.writes and outcome is not Admission.REPLAY:
            raise refusal(outcome, running.batch, running.sources, newest, before)
        if outcome is Admission.AFTER_SKIPPED:
            log.info(
                "%s: %s comes after batches that were not handed over",
                self._policy.pipeline,
                running.batch,
            )
        return outcome

    def _before(self, running: RunningBatch, newest: LedgerRecord | None) -> Before:
        """What is known of the batches before this one; Spark is asked only where something is not
        as usual.
        """
        offered, history = running.batch.batch_id, running.history
        here = newest is not None and newest.batch.query_id == running.batch.query_id
        last = newest.batch.batch_id if newest is not None and here else -1
        standing = () if self._failures is None else self._failures.before(offered, newest, last)
        left_out = [
            each
            for each in standing
            if self._policy.resume == "keep" and each.run_id != running.run_id
        ]
        for each in left_out:
            log.warning(
                "%s: left out: batch %d (%s)", self._policy.pipeline, each.batch_id, each.error
            )
        failed = next(
            ((each.batch_id, each.error) for each in standing if each not in left_out), None
        )
        gap = (here or newest is None) and offered > last + 1
        if history is None or not (gap or failed):
            return Before(self._policy.skipped_batches, failed, bool(left_out))
        return Before(
            self._policy.skipped_batches,
            failed,
            bool(left_out),
            first_of_run=history.first_of_run(),
            ends=history.ends(last) if gap and last >= 0 else None,
            checkpoint=history.checkpoint,
            rewindable=failed is not None and failed[0] >= last and _has_log(history, failed[0]),
        )

    # 2 to 8, as often as it takes

    def _write(
        self,
        writes: Sequence[Write],
        running: RunningBatch,
        supplemented: LedgerRecord | None = None,
    ) -> None:
        """:param supplemented: the committed record of this very batch, to which ``writes`` are
        added.
        """
        self._newest = self._until_committed(writes, running, supplemented)
        self._finish_what_is_decided(
            running
        )  # not among the attempts: what is decided is never tried again

    def _until_committed(
        self, writes: Sequence[Write], running: RunningBatch, supplemented: LedgerRecord | None
    ) -> LedgerRecord:
        attempt = 1
        while True:
            try:
                return self._attempt(writes, running, supplemented)
            except OncewardError as error:
                if error.recovery is not Recovery.RUN_AGAIN:
                    raise
                if attempt >= self._policy.batch_attempts:
                    with_the_next_start(error)
                    raise
                must_compute_once(running, error)
                log.warning(
                    "%s: attempt %d of %s failed and was aborted, running it again: %s",
                    self._policy.pipeline,
                    attempt,
                    running.batch,
                    error,
                )
            patience.pause(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)))
            attempt += 1

    def _attempt(
        self, writes: Sequence[Write], running: RunningBatch, supplemented: LedgerRecord | None
    ) -> LedgerRecord:
        """One attempt: decided when it returns, aborted or fenced when it raises."""
        ids = self._ids(running)
        began = surroundings.monotonic()
        self._target.witness.before(running)
        attempt = self._target.begin(self._newest, running)
        try:
            records = [attempt.write(write, running) for write in writes]  # 2 to 6
            prepared = attempt.prepared()
            sources = self._witnessed_sources(running)
            record = self._record(
                running, sources, writes, records, prepared, attempt, supplemented
            )
            attempt.stage(record, running)  # 7
        except BaseException as error:
            self._undo(attempt, error, running)
            raise
        staged = surroundings.monotonic()
        try:
            with events.step(events.COMMIT, **ids, **attempt.ids):
                attempt.commit()  # 8
        except Fenced:
            raise
        except BaseException as error:  # noqa: BLE001 — whatever it is, the ledger is the judge, and it is raised again
            return self._ask_the_ledger(record, attempt, error)
        log.info(  # one line a batch, for whoever runs it with logging at INFO
            "%s: batch %d committed: %d records, %s, %.0f ms (commit %.0f ms)",
            record.pipeline,
            record.batch.batch_id,
            record.records,
            prepared.said,
            (surroundings.monotonic() - began) * 1000,
            (surroundings.monotonic() - staged) * 1000,
        )
        return record

    def _witnessed_sources(self, running: RunningBatch) -> tuple[SourceRange, ...]:
        """Now that they have been read, they are still the ones that the ledger speaks of."""
        witnesses = self._target.witness.of(running)
        return tuple(
            s._replace(witness=w) for s, w in zip(running.sources, witnesses, strict=True)
        )

    def _record(
        self,
        running: RunningBatch,
        sources: tuple[SourceRange, ...],
        writes: Sequence[Write],
        records: Sequence[int],
        prepared: Prepared,
        attempt: Attempt,
        supplemented: LedgerRecord | None,
    ) -> LedgerRecord:
        frames = tuple(
            FrameWritten(write.where, n) for write, n in zip(writes, records, strict=True)
        )
        before = (supplemented.frames if supplemented else None) or ()
        return LedgerRecord(
            pipeline=self._policy.pipeline,
            sequence=self._newest.sequence + 1 if self._newest else 0,
            batch=running.batch,
            sources=sources,
            attempt=attempt.id,
            outputs=prepared.outputs,
            committed_at_ms=surroundings.wall_clock_ns() // 1_000_000,
            state=prepared.state,
            run_id=running.run_id,
            frames=(*before, *frames),
            supplement=supplemented is not None,
        )

    def _undo(self, attempt: Attempt, error: BaseException, running: RunningBatch) -> None:
        """Abort after ``error``, which happened before the commit was sent."""
        with events.step(events.ABORT, **self._ids(running)), patience.within(_UNDO_MS):
            try:
                attempt.abort()
            except Fenced as fenced:
                raise fenced from error
            except OncewardError as also:
                # Timed out, or nobody answers: leave no attempt open before the next begins.
                log.warning("%s: abort failed (%s); settling", self._policy.pipeline, also)
                self._target.settle()

    def _ask_the_ledger(
        self, record: LedgerRecord, attempt: Attempt, error: BaseException
    ) -> LedgerRecord:
        """After a commit without a good answer: was it carried out? Raises ``error`` if not.

        :raises CommitInDoubt: the ledger cannot be asked either; the next start of the query will.
        """
        log.warning(
            "%s: %s is in doubt (%s); asking the ledger", record.pipeline, record.batch, error
        )
        try:
            newest = self._target.settle()
        except Fenced:
            raise
        except OncewardError as unsettled:
            # Never one that may be retried: as long as nobody knows, running the batch again could
            # write it twice.
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
            attempt.abort()  # now it is certain that it was not decided, and never will be
        except OncewardError as also:
            log.warning("%s: %s could not be dropped: %s", record.pipeline, attempt.id, also)
        if isinstance(error, CommitInDoubt):
            raise TransactionTimedOut(
                f"{record.batch} was not committed: the request was never carried out "
                f"({error.message})",
                next_step="nothing; the batch runs again",
            ) from error
        raise error

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return ids_of(self._policy.pipeline, running)


def _how_it_is_published(decided: BatchId, offered: BatchId) -> str:
    """What to add to the advice that goes with a refusal. Only who is admitted publishes what a
    run before decided.
    """
    if (
        decided.query_id == offered.query_id
    ):  # its own query cannot be started on this checkpoint any more
        return (
            f"; {decided} is decided and not published yet: whichever start is admitted "
            f"publishes it first of all"
        )
    return (
        f"; first of all start the query that wrote {decided} once more: it is decided, and "
        f"not published yet"
    )


def _has_log(history: History, batch_id: int) -> bool:
    """Can Spark be made to run ``batch_id`` again, by taking away what it logged later?"""
    return history.ends(batch_id) is not None and (
        batch_id == 0 or history.ends(batch_id - 1) is not None
    )
