"""The way of a micro-batch: nine steps, from Spark's call to Spark's commit log. Read this first.
Called by ``engine.calls`` in the query's own thread, in the driver. The steps, numbered alike here
and in the code:

1. **Admit**: compare the batch with the ledger (the first batch of a run fences its predecessors
   before it reads).
2. **Plan**, 3. **Encode**, 4. **Lease**, 5. **Stamp and send**, 6. **Check**: the attempt's
   ``write``, a Spark job for each frame. (Leases and stamps are Kafka's; other targets stage in
   their own way.)
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
  late request finds nothing to end, and the ledger then has the batch or not.
* after 8, not all of it published: the ledger says *decided*. Every start goes on publishing
  before it does anything else, until the ledger says *finished*; nothing of a decided batch is
  ever aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from onceward import events, patience, surroundings
from onceward.engine import batch_log, spark_jobs
from onceward.engine.calls import gate
from onceward.engine.calls.advice import (
    dead_letters_skipped,
    publishing_first,
    refusal,
    second_call,
)
from onceward.engine.calls.journal import Journal, call_history
from onceward.engine.calls.replay import replay
from onceward.engine.ending import TimeLimit, settle_doubt, undo
from onceward.engine.ledger.admission import (
    Admission,
    admit,
    is_refused_in_any_case,
    loses_dead_letters,
)
from onceward.engine.ledger.chain import as_far_as_known
from onceward.engine.ledger.record import FrameWritten, LedgerRecord, RecordState, this_driver
from onceward.engine.policy import SinkPolicy, with_the_next_start
from onceward.engine.target import (
    Attempt,
    SourceIdentity,
    Target,
    Write,
    event_ids,
    source_identity,
    unwritten,
)
from onceward.errors import AdmissionRefused, Fenced, OncewardError, Recovery, SourceDataLost
from onceward.ids import BatchId, SourceRange
from onceward.spark.batch import file_sources
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Shuffles

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")


class MicroBatches:
    """The batches of one run of one query, one after the other.

    :param failed: a batch that this run of the query has tried before, with an error; it may be
        committed all the same.
    :param journal: the calls that failed, in this run or in an earlier one; None: without a
        ledger.
    :param identity: of the query's sources; None: that of the first batch's.
    :param known: the newest record of the run that this one is opened in place of.
    """

    def __init__(
        self,
        target: Target,
        policy: SinkPolicy,
        failed: BatchId | None = None,
        journal: Journal | None = None,
        identity: SourceIdentity | None = None,
        known: LedgerRecord | None = None,
    ) -> None:
        self._target = target
        self._policy = policy
        self._failed = failed
        self._journal = journal
        self._identity = identity
        self._known = known
        self._is_open = self._is_identified = False
        self._newest: LedgerRecord | None = None
        self._finished: BatchId | None = None
        self._files: tuple[str | None, ...] = ()
        self._shuffles = Shuffles()
        # of the batch that runs, for its line in the log and its last event
        self._values: dict[str, Any] = {}
        self._began, self._batches, self._records = surroundings.monotonic(), 0, 0

    def process(self, writes: Sequence[Write], running: RunningBatch) -> None:
        """Write the frames of a batch exactly once, or raise; afterwards it is committed."""
        if running.batch == self._finished:
            raise second_call(running.batch)
        began, self._values = surroundings.monotonic(), {}
        with events.batch(**self._ids(running)) as under_way:
            is_replay = self._admit(writes, running) is Admission.REPLAY  # 1
            files = file_sources.logged_files(running)
            if is_replay and files and self._newest is not None:
                file_sources.must_be_committed_files(files, running, self._newest.sources)
            if running.stateful or not is_replay:
                file_sources.must_have_files(running, files)
            self._files = file_sources.digests(files, len(running.sources))
            if is_replay:
                self._replay(writes, running)
            else:
                self._write(writes, running)  # 2 to 8
            if self._journal is not None:
                self._journal.settle(running.batch.batch_id)
            with events.step(events.FINISH, **self._ids(running)) as values:
                # 9. here it is between EndTxn and Spark's commit log
                self._finished = running.batch
                ends = kafka_ends(running, running.sources)
                values |= {"sources": ends, "replayed": not self._values}
                values |= self._values
            took = surroundings.monotonic() - began
            batch_log.log_batch(self._policy.pipeline, running.batch, values, under_way, took)
        if not self._batches:
            self._note_home(running)
        self._batches, self._records = self._batches + 1, self._records + values.get("records", 0)

    def log_end(self) -> None:
        """Log that the run has ended, if it had begun."""
        if self._is_open:
            took = surroundings.monotonic() - self._began
            pipeline, written = self._policy.pipeline, (self._batches, self._records)
            batch_log.log_end(pipeline, *written, self._newest, took)

    def _note_home(self, running: RunningBatch) -> None:
        if running.history is not None and gate.knows_homes():
            gate.note_home(running.history.checkpoint, running.batch.query_id)

    def is_replay(self, running: RunningBatch) -> bool:
        """Return whether an earlier run had committed the batch."""
        newest = self._newest
        is_committed = newest is not None and newest.batch == running.batch
        return newest is not None and is_committed and newest.run_id != running.run_id

    # 1. Admit

    def _admit(self, writes: Sequence[Write], running: RunningBatch) -> Admission:
        ids, is_first = self._ids(running), not self._is_open
        if is_first:
            self._refuse_before_fencing(running)
            # open() takes over before it reads the ledger. The other way round: 1. this run reads,
            # 2. a predecessor commits, 3. this run takes over, and writes that batch again.
            with events.step(events.OPEN, **ids) as values:
                self._newest = as_far_as_known(self._target.open(running), self._known)
                if self._newest is not None:
                    values["sequence"] = self._newest.sequence
                    values["sources"] = kafka_ends(running, self._newest.sources)
            self._is_open = True
            if self._newest is not None and self._newest.batch.query_id == running.batch.query_id:
                self._note_home(running)
        self._publish(running)
        if self._identity is None:
            self._identity = source_identity(running, self._target.client_for)
        if not self._is_identified:
            self._identity.start(running, self._newest)
            self._is_identified = True
        with events.step(events.ADMIT, **ids):
            try:
                outcome = self._decide(running, self._newest)
            except AdmissionRefused:
                # A broker that no longer leads the ledger would stop the query for good.
                self._target.confirm()
                raise
        pipeline, resume = self._policy.pipeline, self._policy.resume
        if outcome in (Admission.ADOPT, Admission.RESUME):
            log.warning("%s: %s taken on by resume=%r", pipeline, running.batch, resume)
        if (
            outcome is Admission.AFTER_SKIPPED
            and any(write.set_aside for write in writes)
            and loses_dead_letters(running.sources, self._newest, resume, running.run_id)
        ):
            raise dead_letters_skipped(running.batch, self._newest)
        if is_first:
            file_sources.warn_of_age(running, pipeline)
            batch_log.log_opening(pipeline, running.batch, running.run_id, self._newest, outcome)
        return outcome

    def _refuse_before_fencing(self, running: RunningBatch) -> None:
        """Refuse a wrong checkpoint or pipeline id before it stops a healthy query."""
        # Before the takeover, although it may be outdated:
        # 1. a query starts on an old copy of the checkpoint while the healthy one runs;
        # 2. `open` would take the pipeline over, and the healthy query stops with Fenced;
        # 3. admission then refuses the newcomer, and no query is left.
        peeked = self._target.peek()
        gate.must_be_at_home(running, peeked, self._policy.resume)
        batch, sources, resume = running.batch, running.sources, self._policy.resume
        if peeked is not None and peeked.batch == batch and len(peeked.sources) == len(sources):
            files = file_sources.logged_files(running)
            file_sources.must_be_committed_files(files, running, peeked.sources)
        if is_refused_in_any_case(batch, sources, peeked, resume, stateful=running.stateful):
            try:
                self._decide(running, peeked)
            except AdmissionRefused as refused:
                if peeked is not None and peeked.state is RecordState.DECIDED:
                    refused.next_step += publishing_first(peeked.batch, batch)
                raise

    def _decide(self, running: RunningBatch, newest: LedgerRecord | None) -> Admission:
        history = call_history(running, newest, self._policy, self._journal)
        batch, sources = running.batch, running.sources
        outcome = admit(
            batch,
            sources,
            newest,
            self._policy.resume,
            stateful=running.stateful,
            run_id="" if batch == self._failed else running.run_id,
            history=history,
        )
        if not outcome.writes and outcome is not Admission.REPLAY:
            raise refusal(outcome, batch, sources, newest, history)
        if outcome is Admission.AFTER_SKIPPED:
            text = "%s: %s comes after batches that were not handed over"
            log.debug(text, self._policy.pipeline, batch)
        return outcome

    def _replay(self, writes: Sequence[Write], running: RunningBatch) -> None:
        """Run a committed batch without output, and write the frames that it lacks."""
        assert self._identity is not None  # noqa: S101 — asked when the batch was admitted
        look = partial(self._identity.identify, running)
        with events.step(events.REPLAY, **self._ids(running)):
            missing, _ = self._as_often_as_it_takes(
                running,
                lambda: replay(writes, running, self._newest, self._policy, self._journal, look),
            )
        if missing:
            self._write(missing, running, self._newest)

    def _as_often_as_it_takes(self, running: RunningBatch, once: Callable[[], T]) -> tuple[T, int]:
        explained = self._explaining_losses(running)(once)
        return as_often_as_it_takes(self._policy, running, explained, "running it again")

    def _identified(
        self, identity: SourceIdentity, running: RunningBatch
    ) -> tuple[SourceRange, ...]:
        """Return the sources as the ledger has them. Now that they have been read, they are still
        those of which it speaks."""
        found = zip(running.sources, identity.identify(running), self._files, strict=True)
        return tuple(source._replace(identity=known or files) for source, known, files in found)

    # 2 to 8

    def _write(
        self,
        writes: Sequence[Write],
        running: RunningBatch,
        supplemented: LedgerRecord | None = None,
    ) -> None:
        """Write the batch, as often as it takes; to a ``supplemented`` record ``writes`` are
        added."""
        self._newest, attempts = self._as_often_as_it_takes(
            running, lambda: self._attempt(writes, running, supplemented)
        )
        self._values["attempts"] = attempts
        # Not among the attempts: what is decided is never tried again
        self._publish(running)

    def _check_sources(self, identity: SourceIdentity, running: RunningBatch) -> None:
        # Whoever adopts a ledger has decided that the first batch may go back
        if self._policy.resume != "adopt" or self._batches:
            identity.must_not_go_back(running)
        identity.check_parts(running)

    @contextmanager
    def _explaining_losses(self, running: RunningBatch) -> Iterator[None]:
        """Ask the source what became of records that Spark takes for lost."""
        try:
            yield
        except SourceDataLost as lost:
            assert self._identity is not None  # noqa: S101 — the batch was admitted
            explained = self._identity.explain(lost, running)
            # The batch is written already, and the error says so
            if explained is lost or (
                self.is_replay(running) and explained.recovery is Recovery.STOP
            ):
                raise
            raise explained from lost

    def _attempt(
        self, writes: Sequence[Write], running: RunningBatch, supplemented: LedgerRecord | None
    ) -> LedgerRecord:
        """Try once: the batch is decided when it returns, aborted or fenced when it raises."""
        assert self._identity is not None  # noqa: S101 — the batch was admitted
        self._check_sources(self._identity, running)
        attempt = self._target.begin(self._newest, running)
        # For whatever is logged from here on
        events.batch_ids()["epoch"] = attempt.id.number
        try:
            for frame in unwritten(writes, running):
                spark_jobs.compute(frame, self._shuffles, TimeLimit(self._policy))
            records = [attempt.write(write, running) for write in writes]  # 2 to 6
            prepared = attempt.prepared()
            frames = [
                FrameWritten(write.where, n) for write, n in zip(writes, records, strict=True)
            ]
            before = (supplemented.frames if supplemented else None) or ()
            record = LedgerRecord(
                pipeline=self._policy.pipeline,
                sequence=self._newest.sequence + 1 if self._newest else 0,
                batch=running.batch,
                sources=self._identified(self._identity, running),
                attempt=attempt.id,
                outputs=prepared.outputs,
                committed_at_ms=surroundings.wall_clock_ns() // 1_000_000,
                state=prepared.state,
                run_id=running.run_id,
                frames=(*before, *frames),
                supplement=supplemented is not None,
                writer=this_driver(),
                steps_ms={
                    name: round(took * 1000) for name, took in events.batch_seconds().items()
                },
            )
            attempt.stage(record, running)  # 7
        except BaseException as error:
            with events.step(events.ABORT, **self._ids(running)) as values:
                values["reason"] = type(error).__name__
                undo(self._target, attempt, error, self._policy.pipeline)
            raise
        log.debug("%s: %s: %s", record.pipeline, record.batch, prepared.summary)
        self._values = {
            "records": record.records,
            "sequence": record.sequence,
            "epoch": attempt.id.number,
            "set_aside": sum(n for w, n in zip(writes, records, strict=True) if w.set_aside),
            **prepared.values,
        }
        return self._commit(attempt, record, **self._ids(running))  # 8

    def _commit(self, attempt: Attempt, record: LedgerRecord, **ids: Any) -> LedgerRecord:
        """Commit the attempt; without a good answer the ledger decides."""
        try:
            with events.step(events.COMMIT, **ids, **attempt.ids) as values:
                values |= self._values
                attempt.commit()
        except Fenced:
            raise
        except BaseException as error:  # noqa: BLE001 — the ledger decides, and it is raised again
            return settle_doubt(self._target, attempt, record, error)
        return record

    def _publish(self, running: RunningBatch) -> None:
        # Nothing else comes before it: a batch after this one, decided first, would be seen first.
        if self._newest is None or self._newest.state is RecordState.FINISHED:
            return
        with events.step(events.PUBLISH, **self._ids(running)):
            self._newest = self._target.finish(self._newest)

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return event_ids(self._policy.pipeline, running)


def as_often_as_it_takes(
    policy: SinkPolicy, running: RunningBatch, once: Callable[[], T], verb: str, attempt: int = 1
) -> tuple[T, int]:
    """Return what ``once`` returns, and at which attempt; ``attempt`` is the number of the first,
    ``verb`` says in the log what the next one does."""
    while True:
        try:
            return once(), attempt
        except OncewardError as error:
            if error.recovery is not Recovery.RUN_AGAIN:
                raise
            if attempt >= policy.batch_attempts:
                with_the_next_start(error)
                raise
            gate.compute_again(running, error)
            text = "%s: attempt %d of %s failed, %s: %s"
            log.warning(text, policy.pipeline, attempt, running.batch, verb, error)
        patience.pause(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)))
        attempt += 1


def kafka_ends(
    running: RunningBatch, sources: Sequence[SourceRange]
) -> list[tuple[frozenset[str], Any]]:
    """Return where a batch with ``sources`` ends, by the servers of each Kafka source."""
    return [
        (source.bootstrap_servers, sources[source.index].end)
        for source in running.kafka_sources
        if source.index < len(sources)
    ]
