"""The way of a micro-batch: nine steps, from Spark's call to Spark's commit log. Read this first.

Called by ``engine.foreach_batch`` in the query's own thread, in the driver. The steps, numbered alike here and in the
code:

1. **Admit**: compare the batch with the ledger (the first batch of a run fences its predecessors before it reads).
2. **Plan**, 3. **Encode**, 4. **Lease**, 5. **Stamp and send**, 6. **Check**: the target's ``write``, one Spark job.
7. **Offsets and ledger**: the target's ``stage``.
8. **Commit**: the only commit point.
9. **Return** to Spark, which writes its commit log.

What if the process dies …

* before 8: the attempt is open. The next start fences it, which aborts it at once, finds the ledger without this
  batch, and runs the batch again over the same offsets. Nothing of the attempt ever was visible.
* between 8 and 9: the next start finds the batch in the ledger: ``REPLAY``. The plan runs (state and watermark need
  it) and nothing is sent.
* in 8, the answer lost: never abort, never guess. ``settle`` fences the attempt's own epoch, so that a late request
  finds nothing to end, and the ledger then says which of the two it was.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from pyspark.sql import DataFrame

from onceward import events
from onceward.engine.spark_query import RunningBatch
from onceward.engine.target import AtomicTarget
from onceward.errors import CommitInDoubt, Fenced, OncewardError, TransactionTimedOut, UnsupportedQuery
from onceward.ids import BatchId, PipelineId, ProducerIdentity
from onceward.ledger.admission import Admission, Resume, admit, hopeless, refusal
from onceward.ledger.record import LedgerRecord, Manifest

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How a batch is admitted and how often it is tried.

    ``attempts`` is the number of times one batch may run in all (1: never again) before its error reaches Spark and
    the query fails; each attempt has an epoch of its own.
    """

    pipeline: PipelineId
    resume: Resume
    attempts: int


class MicroBatches:
    """One run of one query: its batches, one after the other."""

    def __init__(self, target: AtomicTarget, policy: BatchPolicy) -> None:
        self._target = target
        self._policy = policy
        self._opened = False
        self._newest: LedgerRecord | None = None
        self._finished: BatchId | None = None
        self._producer_id: int | None = None

    def process(self, frame: DataFrame, running: RunningBatch) -> None:
        """Write ``frame`` exactly once, or raise; when it returns, the batch is committed."""
        self._refuse_a_second_call(running)
        outcome = self._admit(running)
        if outcome is Admission.REPLAY:
            self._replay(frame, running)
        else:
            self._newest = self._until_committed(frame, running)
        with events.step(events.FINISH, **self._ids(running)):
            self._finished = running.batch  # 9. back to Spark; here it is between EndTxn and Spark's commit log

    def _refuse_a_second_call(self, running: RunningBatch) -> None:
        """A batch has one call. The ledger would take a second one for a replay and drop the second frame's rows."""
        if running.batch == self._finished:
            raise UnsupportedQuery(
                f"the sink was called twice for {running.batch}; one batch is one transaction, written by one call",
                next_step="union the frames (with a 'topic' column if they go to several topics), or give each frame "
                "a sink and a pipeline_id of its own",
            )

    # 1. Admit

    def _admit(self, running: RunningBatch) -> Admission:
        ids = self._ids(running)
        if not self._opened:
            self._refuse_the_hopeless(running)
            with events.step(events.OPEN, **ids):
                self._newest = self._target.open(running)
            self._opened = True
        with events.step(events.ADMIT, **ids):
            outcome = self._decide(running, self._newest)
        if outcome in (Admission.ADOPT, Admission.RESUME):
            log.warning("%s: %s taken on by resume=%r", self._policy.pipeline, running.batch, self._policy.resume)
        return outcome

    def _refuse_the_hopeless(self, running: RunningBatch) -> None:
        """Before anybody is fenced: a query with the wrong checkpoint or pipeline id must not stop a healthy one."""
        glimpsed = self._target.glance()
        if hopeless(running.batch, running.sources, glimpsed, self._policy.resume, stateful=running.stateful):
            self._decide(running, glimpsed)

    def _decide(self, running: RunningBatch, newest: LedgerRecord | None) -> Admission:
        outcome = admit(running.batch, running.sources, newest, self._policy.resume, stateful=running.stateful)
        if not outcome.writes and outcome is not Admission.REPLAY:
            raise refusal(outcome, running.batch, running.sources, newest)
        return outcome

    def _replay(self, frame: DataFrame, running: RunningBatch) -> None:
        """Run the whole plan for its state and watermark, and drop the rows: the batch is committed already."""
        with events.step(events.REPLAY, **self._ids(running)):
            log.info("%s: %s is committed already; replaying it without output", self._policy.pipeline, running.batch)
            frame.write.format("noop").mode("overwrite").save()

    # 2 to 8, as often as it takes

    def _until_committed(self, frame: DataFrame, running: RunningBatch) -> LedgerRecord:
        attempt = 1
        while True:
            try:
                return self._attempt(frame, running)
            except OncewardError as error:
                if attempt >= self._policy.attempts or not error.retry_batch:
                    raise
                log.warning(
                    "%s: attempt %d of %s failed and was aborted, running it again: %s",
                    self._policy.pipeline,
                    attempt,
                    running.batch,
                    error,
                )
            time.sleep(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)))
            attempt += 1

    def _attempt(self, frame: DataFrame, running: RunningBatch) -> LedgerRecord:
        """One attempt under one epoch: committed when it returns, aborted or fenced when it raises."""
        target = self._target
        ids = self._ids(running)
        try:
            identity = target.begin()
            self._refuse_an_heirs_ledger(running, identity)
            manifest = target.write(frame, running)  # 2 to 6
            record = self._record(running, manifest, identity)
            target.stage(record, running)  # 7
        except BaseException as error:
            self._undo(error, running)
            raise
        try:
            with events.step(events.COMMIT, **ids, **_identity_ids(identity)):
                target.commit()  # 8
        except Fenced:
            raise
        except BaseException as error:  # noqa: BLE001 — whatever it is, the ledger is the judge, and it is raised again
            return self._ask_the_ledger(record, error)
        return record

    def _refuse_an_heirs_ledger(self, running: RunningBatch, identity: ProducerIdentity) -> None:
        """Under a new producer id, is the ledger still where we left it?

        Epochs run out, and then there is a new one. But it also comes when the target had forgotten the pipeline
        (``transactional.id.expiration.ms`` without a batch), and with it whoever took over meanwhile: nobody would
        fence us then. From ``begin`` on nobody else can commit, so that what the ledger says is final.

        :raises Fenced: somebody newer has written. :raises LedgerBehind: our own last record is gone.
        """
        if self._producer_id not in (None, identity.producer_id):
            log.info("%s: goes on as %s", self._policy.pipeline, identity)
            newest = self._target.newest()
            if _sequence(newest) < _sequence(self._newest):
                raise refusal(Admission.LEDGER_BEHIND, running.batch, running.sources, newest)
            if newest is not None and (self._newest is None or newest.producer != self._newest.producer):
                raise Fenced(
                    f"a newer copy of pipeline {self._policy.pipeline} has written {newest.batch} (sequence "
                    f"{newest.sequence}) while this one was idle at sequence {_sequence(self._newest)}",
                    next_step="leave this copy stopped; if two are running by mistake, give one another pipeline_id",
                )
        self._producer_id = identity.producer_id

    def _record(self, running: RunningBatch, manifest: Manifest, identity: ProducerIdentity) -> LedgerRecord:
        return LedgerRecord(
            pipeline=self._policy.pipeline,
            sequence=self._newest.sequence + 1 if self._newest else 0,
            batch=running.batch,
            sources=running.sources,
            manifest=manifest,
            producer=identity,
            committed_at_ms=time.time_ns() // 1_000_000,
        )

    def _undo(self, error: BaseException, running: RunningBatch) -> None:
        """Abort after ``error``, which happened before the commit was sent."""
        with events.step(events.ABORT, **self._ids(running)):
            try:
                self._target.abort()
            except Fenced as fenced:
                raise fenced from error
            except OncewardError as also:
                # Timed out, or nobody answers: leave no attempt open before the next begins.
                log.warning("%s: abort failed (%s); settling", self._policy.pipeline, also)
                self._target.settle()

    def _ask_the_ledger(self, record: LedgerRecord, error: BaseException) -> LedgerRecord:
        """After an ``EndTxn(commit)`` without a good answer: was it carried out? Raises ``error`` if not.

        :raises CommitInDoubt: the ledger cannot be asked either; the next start of the query will.
        """
        log.warning("%s: %s is in doubt (%s); asking the ledger", record.pipeline, record.batch, error)
        try:
            newest = self._target.settle()
        except Fenced:
            raise
        except OncewardError as unsettled:
            # Never one that may be retried: as long as nobody knows, running the batch again could write it twice.
            raise CommitInDoubt(
                f"whether {record.batch} is committed could not be found out: {unsettled}",
                next_step="start the query again: its first step asks the ledger",
            ) from unsettled
        if newest is not None and (newest.sequence, newest.batch, newest.producer) == (
            record.sequence,
            record.batch,
            record.producer,
        ):
            return newest
        if isinstance(error, CommitInDoubt):
            raise TransactionTimedOut(
                f"{record.batch} was not committed: its EndTxn was never carried out",
                next_step="nothing; the batch runs again under a new epoch",
            ) from error
        raise error

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {
            "pipeline": self._policy.pipeline,
            "query_id": running.batch.query_id,
            "batch_id": running.batch.batch_id,
        }


def _sequence(record: LedgerRecord | None) -> int:
    return -1 if record is None else record.sequence


def _identity_ids(identity: ProducerIdentity) -> dict[str, int]:
    return {"producer_id": identity.producer_id, "epoch": identity.epoch}
