"""The way of a micro-batch: nine steps, from Spark's call to Spark's commit log. Read this first.

Called by ``engine.foreach_batch`` in the query's own thread, in the driver. The steps, numbered alike here and in the
code:

1. **Admit**: compare the batch with the ledger (the first batch of a run fences its predecessors before it reads).
2. **Plan**, 3. **Encode**, 4. **Lease**, 5. **Stamp and send**, 6. **Check**: the attempt's ``write``, a Spark job for
   each frame. (What is said of leases and stamps is Kafka's; other targets stage in their own way.)
7. **Offsets and ledger**: the attempt's ``stage``.
8. **Commit**: the decision, the only commit point; and what a two-phase target publishes after it, ``finish``.
9. **Return** to Spark, which writes its commit log.

What if the process dies …

* before 8: the attempt is open. The next start fences it, which aborts it at once, finds the ledger without this
  batch, and runs the batch again over the same offsets. Nothing of the attempt ever was visible.
* between 8 and 9: the next start finds the batch in the ledger: ``REPLAY``. The plan runs (state and watermark need
  it), its rows are counted against those that are committed, and nothing is sent.
* in 8, the answer lost: never abort, never guess. ``settle`` fences the attempt itself, so that a late request
  finds nothing to end, and the ledger then says which of the two it was.
* after 8, not all of it published: the ledger says *decided*. Every start goes on publishing before it does anything
  else, until the ledger says *finished*; nothing of a decided batch is ever aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onceward import events, surroundings
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Prepared, Target, Write, ids_of
from onceward.errors import (
    AdmissionRefused,
    CommitInDoubt,
    ComputationsMixed,
    Fenced,
    OncewardError,
    Recovery,
    SourceDataLost,
    TransactionTimedOut,
)
from onceward.ids import BatchId, SourceRange
from onceward.ledger.admission import (
    Admission,
    Skipped,
    admit,
    hopeless,
    refusal,
    refuse_skipped_dead_letters,
    second_call,
)
from onceward.ledger.chain import overtaken
from onceward.ledger.record import FrameWritten, LedgerRecord, State
from onceward.ledger.replayed import Replayed, batch_changed, compare_all
from onceward.spark.handed_over import HandedOver, Note, standing
from onceward.spark.job import naming_failures
from onceward.spark.persisted import count_rows
from onceward.spark.query import History, RunningBatch, is_deterministic

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_REPLAY = "-replay"
"""After the run's id, in the name of a note: the batch was committed, and it was its replay that failed."""


class MicroBatches:
    """One run of one query: its batches, one after the other.

    :param failed: a batch that this run of the query has tried before, with an error; it may be committed all the same.
    """

    def __init__(self, target: Target, policy: SinkPolicy, failed: BatchId | None = None) -> None:
        self._target = target
        self._policy = policy
        self._failed = failed
        self._opened = self._witnessed = False
        self._newest: LedgerRecord | None = None
        self._finished: BatchId | None = None
        self._at_checkpoint: HandedOver | None = None
        self._notes: list[Note] = []

    def process(self, writes: Sequence[Write], running: RunningBatch) -> None:
        """Write the frames of a batch exactly once, or raise; when it returns, the batch is committed."""
        if running.batch == self._finished:
            raise second_call(running.batch)
        outcome, notes = self._admit(running), self._notes
        # "keep" is about what an earlier run has skipped, not about what this one goes on skipping.
        excused = self._policy.resume == "keep" and (self._newest is None or self._newest.run_id != running.run_id)
        if outcome is Admission.AFTER_SKIPPED and not excused and any(write.set_aside for write in writes):
            refuse_skipped_dead_letters(running.batch, running.sources, self._newest)
        if running.history is not None:
            self._handed_over(running.history).give(running.batch.batch_id, running.run_id)
        if outcome is Admission.REPLAY:
            self._replay_and_complete(writes, running)
        else:
            self._write(writes, running)
        if running.history is not None:
            self._handed_over(running.history).settle(running.batch.batch_id, running.run_id, notes)
        with events.step(events.FINISH, **self._ids(running)):
            self._finished = running.batch  # 9. back to Spark; here it is between EndTxn and Spark's commit log

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
                self._target.confirm()  # or a broker that no longer leads the ledger would stop the query for good
                raise
        if outcome in (Admission.ADOPT, Admission.RESUME):
            log.warning("%s: %s taken on by resume=%r", self._policy.pipeline, running.batch, self._policy.resume)
        return outcome

    def _finish_what_is_decided(self, running: RunningBatch) -> None:
        """Nothing else comes before it: a batch after this one, decided first, would be seen first."""
        if self._newest is None or self._newest.state is State.FINISHED:
            return
        with events.step(events.PUBLISH, **self._ids(running)):
            self._newest = self._target.finish(self._newest)

    def _refuse_the_hopeless(self, running: RunningBatch) -> None:
        """Before anybody is fenced: a query with the wrong checkpoint or pipeline id must not stop a healthy one."""
        peeked = self._target.peek()
        if hopeless(running.batch, running.sources, peeked, self._policy.resume, stateful=running.stateful):
            try:
                self._decide(running, peeked)
            except AdmissionRefused as refused:
                if peeked is not None and peeked.state is State.DECIDED:
                    refused.next_step += _how_it_is_published(peeked.batch, running.batch)
                raise

    def _decide(self, running: RunningBatch, newest: LedgerRecord | None) -> Admission:
        skipped = self._skipped(running, newest)
        outcome = admit(
            running.batch,
            running.sources,
            newest,
            self._policy.resume,
            stateful=running.stateful,
            run_id="" if running.batch == self._failed else running.run_id,
            skipped=skipped,
        )
        if not outcome.writes and outcome is not Admission.REPLAY:
            raise refusal(outcome, running.batch, running.sources, newest, skipped)
        if outcome is Admission.AFTER_SKIPPED:
            log.info("%s: %s comes after batches that were not handed over", self._policy.pipeline, running.batch)
        return outcome

    def _skipped(self, running: RunningBatch, newest: LedgerRecord | None) -> Skipped | None:
        """What is known of what was handed over before this batch; None where nothing can be missing."""
        history, offered = running.history, running.batch.batch_id
        if history is None:
            return None
        last = -1 if newest is None else newest.batch.batch_id
        elsewhere = newest is not None and newest.batch.query_id != running.batch.query_id
        notes = self._notes = self._handed_over(history).notes(-1 if elsewhere else last, offered)
        if elsewhere:
            return None
        missing, left_out = self._missing(notes, last, running)
        gap = offered - last > 1
        # Where no error is known, the ledger lost its end, and notes of batches before its last ones are gone.
        first = next((number if why else last + 1 for number, why in missing.items()), offered)
        return Skipped(
            history.ends(last) if gap and last >= 0 else None,
            self._saw_it_end(newest, running) if gap else False,
            tuple(missing.items()),
            vouched=any(note.batch_id == last for note in notes),
            checkpoint=history.checkpoint if missing else "",
            others=self._handed_over(history).others(first) if missing else (),
            rewindable=bool(missing) and first >= last and _has_log(history, first),
            left_out=left_out,
        )

    def _missing(self, notes: list[Note], last: int, running: RunningBatch) -> tuple[dict[int, str], bool]:
        """What stands against the batch: numbers and errors. And whether the user has had some of it left out."""
        assert running.history is not None  # noqa: S101 — asked by the caller
        offered, run_id, resume = running.batch.batch_id, running.run_id, self._policy.resume
        missing = standing(notes, last, offered, run_id, running.history.executed)
        left_out = [
            note
            for note in missing
            if note.run_id != run_id and (resume == "keep" or (resume == "adopt" and last < 0 and not note.error))
        ]
        for note in left_out:
            log.warning("%s: left out: batch %d (%s)", self._policy.pipeline, note.batch_id, note.error)
            if note.lacking:
                self._handed_over(running.history).forget(note)
        for note in notes:  # this run has executed it, with nothing to hand over; later it would pass for committed
            if note.lacking and last < note.batch_id < offered and note not in missing:
                self._handed_over(running.history).forget(note)
        rest = sorted(set(missing) - set(left_out), key=lambda note: (note.batch_id, note.error))
        return {note.batch_id: note.error for note in rest}, bool(left_out)

    def _saw_it_end(self, newest: LedgerRecord | None, running: RunningBatch) -> bool:
        """Has this run seen all since the ledger's newest record, or all there is where the ledger has none?"""
        assert running.history is not None  # noqa: S101 — asked by the caller
        if newest is None:
            return running.history.began_with_batch_0(running.batch.batch_id)
        return newest is self._newest and self._finished is not None

    def _handed_over(self, history: History) -> HandedOver:
        if self._at_checkpoint is None:
            self._at_checkpoint = history.handed_over()
        return self._at_checkpoint

    def _replay_and_complete(self, writes: Sequence[Write], running: RunningBatch) -> None:
        try:
            lacking = self._replay(writes, running)
            if lacking:
                self._write(lacking, running, self._newest)
        except Fenced:
            raise
        except BaseException as error:
            if running.history is not None:
                self._note_failed_replay(error, self._handed_over(running.history), running)
            raise

    def _note_failed_replay(self, error: BaseException, handed_over: HandedOver, running: RunningBatch) -> None:
        """The batch is in the ledger: an ordinary note would pass for one of a try before it was committed. Under a
        name of its own, because a later try of this run settles it.

        Nobody would settle that of a copy which stood still while a newer one ran the batch again and went on: it would
        stop each start for good. Whoever takes over later than our look at the ledger reads the note, and settles it.

        :raises Fenced: somebody had taken over before.
        """
        note = Note(running.batch.batch_id, f"{running.run_id}{_REPLAY}", f"{type(error).__name__}: {error}", True)
        handed_over.failed(note)
        if not isinstance(error, Exception):  # somebody wants us to end
            return
        try:
            newest = self._target.must_be_ours()
            if newest is None or self._newest is None or newest.sequence <= self._newest.sequence:
                return
            raise overtaken(self._policy.pipeline, f"the ledger, which has {newest.batch}")
        except Fenced as fenced:
            handed_over.forget(note)
            raise fenced from error
        except OncewardError as also:  # then the note stays, as if we were the owner
            log.warning("%s: whether a newer copy has taken over is not known: %s", self._policy.pipeline, also)

    def _replay(self, writes: Sequence[Write], running: RunningBatch) -> Sequence[Write]:
        """Run the whole plan for its state and watermark, and drop the rows: the batch is committed already.

        Returns the frames that the committed batch lacks, if the user wants them written (``resume="complete"``).

        :raises BatchChanged: there are rows that the committed batch has not.
        """
        with events.step(events.REPLAY, **self._ids(running)):
            log.info("%s: %s is committed already; running it without output", self._policy.pipeline, running.batch)
            try:
                with naming_failures():
                    now = _counted(writes, running, self._policy)
            except SourceDataLost as lost:
                self._refuse_what_cannot_be_compared(lost, writes, running)
                # Without state there is nothing to repeat but the count.
                log.warning(
                    "%s: %s is committed and cannot be read again: %s", self._policy.pipeline, running.batch, lost
                )
                return ()
            return self._lacking(writes, now, running)

    def _refuse_what_cannot_be_compared(
        self, lost: SourceDataLost, writes: Sequence[Write], running: RunningBatch
    ) -> None:
        """The source no longer has the records of a committed batch.

        :raises SourceDataLost: the query's state needs them, or the batch lacks rows that they would have given.
        """
        if running.stateful:
            raise lost
        committed = (self._newest.frames if self._newest else None) or ()
        lacking = bool(self._noted_as_lacking(running))
        more = [write.where for write in writes] != [frame.where for frame in committed]
        if self._policy.resume != "keep" and (lacking or more or self._policy.resume == "complete"):
            raise SourceDataLost(
                f"{running.batch} is committed, and whether it lacks rows that the function hands over now cannot be "
                f"found out: {lost.message}",
                next_step='to leave the batch as it is committed, start once with resume="keep"',
            ) from lost

    def _lacking(self, writes: Sequence[Write], now: Sequence[FrameWritten], running: RunningBatch) -> Sequence[Write]:
        committed = self._newest.frames if self._newest else None
        if committed is None:
            return ()
        refused = any(not note.run_id.endswith(_REPLAY) for note in self._noted_as_lacking(running))
        aside = [write.set_aside for write in writes]
        outcome, lacking = compare_all(committed, now, aside, exactly=refused, stateful=running.stateful)
        if outcome is Replayed.NOTHING_NEW:
            return ()
        changed = batch_changed(running.batch, outcome, committed, now)
        if outcome is Replayed.MORE_FRAMES and self._policy.resume == "complete":
            log.warning("%s: writing what is missing: %s", self._policy.pipeline, changed.message)
            return [writes[index] for index in lacking]
        by_chance = (
            outcome is Replayed.OTHER_ROWS
            and not refused  # then rows are missing for a reason that is known
            and not all(is_deterministic(write.frame) for write in writes)
        )
        if self._policy.resume == "keep" or by_chance:
            log.warning("%s: left as it is: %s", self._policy.pipeline, changed.message)
            return ()
        raise changed

    def _noted_as_lacking(self, running: RunningBatch) -> list[Note]:
        return [note for note in self._notes if note.lacking and note.batch_id == running.batch.batch_id]

    # 2 to 8, as often as it takes

    def _write(self, writes: Sequence[Write], running: RunningBatch, supplemented: LedgerRecord | None = None) -> None:
        """:param supplemented: the committed record of this very batch, to which ``writes`` are added."""
        self._newest = self._until_committed(writes, running, supplemented)
        self._finish_what_is_decided(running)  # not among the attempts: what is decided is never tried again

    def _until_committed(
        self, writes: Sequence[Write], running: RunningBatch, supplemented: LedgerRecord | None
    ) -> LedgerRecord:
        attempt = 1
        while True:
            try:
                return self._attempt(writes, running, supplemented)
            except OncewardError as error:
                if attempt >= self._policy.batch_attempts or error.recovery is not Recovery.RUN_AGAIN:
                    raise
                log.warning(
                    "%s: attempt %d of %s failed and was aborted, running it again: %s",
                    self._policy.pipeline,
                    attempt,
                    running.batch,
                    error,
                )
            surroundings.sleep(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)))
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
            record = self._record(running, sources, writes, records, prepared, attempt, supplemented)
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
        return tuple(s._replace(witness=w) for s, w in zip(running.sources, witnesses, strict=True))

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
        frames = tuple(FrameWritten(write.where, n) for write, n in zip(writes, records, strict=True))
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
        with events.step(events.ABORT, **self._ids(running)):
            try:
                attempt.abort()
            except Fenced as fenced:
                raise fenced from error
            except OncewardError as also:
                # Timed out, or nobody answers: leave no attempt open before the next begins.
                log.warning("%s: abort failed (%s); settling", self._policy.pipeline, also)
                self._target.settle()

    def _ask_the_ledger(self, record: LedgerRecord, attempt: Attempt, error: BaseException) -> LedgerRecord:
        """After a commit without a good answer: was it carried out? Raises ``error`` if not.

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
                f"{record.batch} was not committed: the request was never carried out",
                next_step="nothing; the batch runs again",
            ) from error
        raise error

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return ids_of(self._policy.pipeline, running)


def _how_it_is_published(decided: BatchId, offered: BatchId) -> str:
    """What to add to the advice that goes with a refusal. Only who is admitted publishes what a run before decided."""
    if decided.query_id == offered.query_id:  # its own query cannot be started on this checkpoint any more
        return f"; {decided} is decided and not published yet: whichever start is admitted publishes it first of all"
    return f"; first of all start the query that wrote {decided} once more: it is decided, and not published yet"


def _has_log(history: History, batch_id: int) -> bool:
    """Can Spark be made to run ``batch_id`` again, by taking away what it logged later?"""
    return history.ends(batch_id) is not None and (batch_id == 0 or history.ends(batch_id - 1) is not None)


def _counted(writes: Sequence[Write], running: RunningBatch, policy: SinkPolicy) -> list[FrameWritten]:
    """What a replay finds.

    :raises ComputationsMixed: as often as a batch is tried, the numbers may have been of two computations of it.
        Compared with those that are committed they would name rows as lacking that are there, in another frame.
    """
    attempt = 1
    while True:
        try:
            numbers = count_rows([write.frame for write in writes])
            return [FrameWritten(write.where, number) for write, number in zip(writes, numbers, strict=True)]
        except ComputationsMixed as mixed:
            if attempt >= policy.batch_attempts:
                raise
            log.warning("%s: counting the rows of %s again: %s", policy.pipeline, running.batch, mixed)
        attempt += 1
