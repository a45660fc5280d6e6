"""Journal of failed calls: in memory for the run, and in one file a call beside the checkpoint.

Called by ``foreach_batch`` when a call fails, before the error reaches the user's function, and by
``engine.micro_batch``; driver only. Spark counts a batch as done when the function returns, also
when the function keeps an error to itself: then only the journal has the error. Nothing is written
of a batch that goes well. A file is named ``<batch_id>.<kind>`` and has the error and the run. It
stands against later batches until its batch is committed, or the user gives it up
(``resume="skip_missing"``). A run lists the files once, when it begins.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from pyspark.sql import DataFrame

from onceward import surroundings
from onceward.engine.calls.advice import other_frames, paragraph
from onceward.engine.ledger.admission import CallHistory
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    ROWS_REFUSED,
    BatchNotWritten,
    CheckpointUnreachable,
    Fenced,
    OncewardError,
)
from onceward.ids import BatchId, PipelineId
from onceward.spark.batch.checkpoint_files import CheckpointFiles
from onceward.spark.batch.query import (
    History,
    RunningBatch,
    checkpoint_files,
    failed_call,
    fingerprint,
)

log = logging.getLogger(__name__)

_LONGEST_TEXT = 2_000
_WRITE_AGAIN_SECONDS = (0.1, 1.0)
_DAMAGED = "its file cannot be read"


class FailureKind(Enum):
    """What a failed call leaves behind. ``FAILED``: the batch may not be committed. ``REPLAY``: it
    is, and whether it has all the rows that the function hands over now was not found out.
    ``REFUSED``: it may be committed by another call, without the rows of this one."""

    FAILED = "failed"
    REPLAY = "replay"
    REFUSED = "refused"


class FailedCall(NamedTuple):
    """A call for ``batch_id`` that failed with ``error`` in a run (empty: unknown)."""

    batch_id: int
    kind: FailureKind
    error: str
    run_id: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.batch_id}.{self.kind.value}"

    def stands(self, run_id: str, newest: LedgerRecord | None, newest_id: int) -> bool:
        """Return whether it stands against later batches in the run ``run_id``; ``newest_id``: the
        batch of ``newest``, -1 where that is of another checkpoint."""
        # Spark has not seen the error, or this run would be over
        if self.run_id == run_id:
            return True
        if self.kind is FailureKind.FAILED:
            return newest_id < self.batch_id
        # 1. An older copy stands still. 2. A newer one takes over, finds no file, and goes on
        # behind that batch. 3. The older copy wakes up, fails, and leaves its file: it stops
        # nobody.
        newest_run = "" if newest is None else newest.run_id
        return self.batch_id >= newest_id or self.run_id in ("", newest_run)


class Journal:
    """The failed calls of one pipeline in one checkpoint, as one run of the query knows them."""

    def __init__(self, pipeline: PipelineId, run_id: str, files: CheckpointFiles) -> None:
        self._pipeline = pipeline
        self._run_id = run_id
        self._files = files
        self._calls: dict[str, FailedCall] = {}
        self._unwritten: list[FailedCall] = []
        self._is_read = False
        # A thread of the function's may be refused while the query's own thread is at work.
        self._lock = surroundings.RLock()

    def add(self, call: FailedCall) -> None:
        """Remember a failed call. :raises CheckpointUnreachable: in this run only;
        :meth:`write_rest`."""
        with self._lock:
            self._calls[call.name] = call
            self._unwritten.append(call)
            for seconds in _WRITE_AGAIN_SECONDS:
                # A file system that fails for a moment
                with suppress(CheckpointUnreachable):
                    return self.write_rest()
                surroundings.sleep(seconds)
            return self.write_rest()

    def write_rest(self) -> None:
        """Write what could not be written; raise CheckpointUnreachable if it still cannot."""
        with self._lock:
            while self._unwritten:
                call = self._unwritten[0]
                text = json.dumps({"error": call.error[:_LONGEST_TEXT], "run_id": call.run_id})
                self._files.write(call.name, text)
                del self._unwritten[0]

    def kinds(self, batch_id: int) -> set[FailureKind]:
        """Return how calls for that batch have failed."""
        return {call.kind for call in self._all() if call.batch_id == batch_id}

    def in_this_run(self, batch_id: int) -> bool:
        """Return whether a call for that batch has failed in this run."""
        with self._lock:
            return any(
                call.batch_id == batch_id and call.run_id == self._run_id
                for call in self._calls.values()
            )

    def before(
        self, batch_id: int, newest: LedgerRecord | None, newest_id: int
    ) -> tuple[FailedCall, ...]:
        """Return the failed calls that stand against ``batch_id``, the first one first;
        ``newest_id``: -1 where ``newest`` is of another checkpoint."""
        standing = [
            call
            for call in self._all()
            if call.batch_id < batch_id and call.stands(self._run_id, newest, newest_id)
        ]
        return tuple(
            sorted(standing, key=lambda call: (call.batch_id, call.kind is FailureKind.FAILED))
        )

    def settle(self, batch_id: int) -> None:
        """Forget what is over when that batch is committed, but not what this run refused of it.
        :raises CheckpointUnreachable: a file may be there still."""
        with self._lock:
            over = [
                call
                for call in self._all()
                if call.batch_id <= batch_id
                and not (call.kind is FailureKind.REFUSED and call.run_id == self._run_id)
            ]
            for call in over:
                text = "%s: batch %d: what failed is over (%s)"
                log.debug(text, self._pipeline, call.batch_id, call.error)
                self._files.remove(call.name)
                del self._calls[call.name]
            self._unwritten = [call for call in self._unwritten if call.name in self._calls]

    def _all(self) -> list[FailedCall]:
        with self._lock:
            if not self._is_read:
                parsed = (_parse(name, text) for name, text in self._files.read().items())
                found = {call.name: call for call in parsed if call is not None}
                self._calls = {**found, **self._calls}
                self._is_read = True
            return list(self._calls.values())


def _parse(name: str, text: str) -> FailedCall | None:
    """Return the failed call of a file; None: the file is none of ours."""
    number, _, kind = name.partition(".")
    if not number.isdecimal() or kind not in {each.value for each in FailureKind}:
        return None
    try:
        document = json.loads(text)
        error, run_id = str(document["error"]), str(document["run_id"])
    except (ValueError, KeyError, TypeError):
        # Cut short by a crash, or damaged on its disk: the name says enough.
        error, run_id = _DAMAGED, ""
    return FailedCall(int(number), FailureKind(kind), error, run_id)


@dataclass(eq=False)
class CallMemory:
    """What is known of the calls at one place while the query's run lasts.

    ``committed``: the newest batch that an owner has committed, or found committed. ``closed_at``:
    the batch at which an owner was closed, for a second try in the same run; ``was_replay``: that
    batch was a replay. ``is_logged``: the last call failed, and the log says so.
    ``failed_frames``: the batch of the call that failed last, and its frames,
    until a call succeeds; ``error``: its error, for ``error_of``. ``fenced``: a newer copy of the
    pipeline has taken over, for good.
    """

    committed: int | None = None
    closed_at: BatchId | None = None
    was_replay: bool = False
    failed_frames: tuple[int, object] | None = None
    error: OncewardError | None = None
    is_logged: bool = False
    fenced: str = ""
    journal: Journal | None = None

    def succeed(self, batch: BatchId) -> None:
        """Note that ``batch`` is committed: a second call for it is none that tries again."""
        self.committed = batch.batch_id
        self.closed_at = self.failed_frames = None

    def fail(self, error: BaseException) -> None:
        """Note the error of a call."""
        if isinstance(error, Fenced):
            self.fenced = self.fenced or error.message
        elif self.fenced:
            # 1. The function keeps Fenced to itself. 2. Its next call meets an outage before the
            # pipeline is asked for. 3. For that the query would be started again, and fence the
            # newer copy.
            return
        if isinstance(error, OncewardError):
            self.error = error

    def open_journal(self, frame: DataFrame, pipeline: PipelineId, run_id: str) -> Journal:
        """Return the journal of the run, of which ``frame`` is a batch."""
        if self.journal is None:
            self.journal = Journal(pipeline, run_id, checkpoint_files(frame, pipeline))
        return self.journal

    def record_failure(
        self,
        frame: DataFrame,
        batch_id: int,
        error: BaseException,
        writes: Sequence[Write] | None,
        pipeline: PipelineId,
        run_id: str,
    ) -> None:
        """Remember the batch that was not written, in the run and beside the checkpoint.

        :param writes: the frames of the call, if no others may take their place.
        :raises CheckpointUnreachable: it is remembered in the run only.
        """
        call = failed_call(frame, batch_id)
        if call is None:
            return
        number, in_thread = call
        journal = self.open_journal(frame, pipeline, run_id)
        # The call that it names is in the journal already
        if isinstance(error, BatchNotWritten):
            journal.write_rest()
            return
        # A thread of the function's may be late, and fail after the next batch has begun.
        newest_failed = -1 if self.failed_frames is None else self.failed_frames[0]
        if writes is not None and number >= newest_failed:
            self.failed_frames = number, _fingerprints(writes)
        refused = isinstance(error, OncewardError) and bool(error.details.get(ROWS_REFUSED))
        late = self.committed is not None and number <= self.committed
        replay = (
            self.was_replay and self.closed_at is not None and self.closed_at.batch_id == number
        )
        kind = (
            FailureKind.REFUSED
            if refused or late or in_thread
            else FailureKind.REPLAY
            if replay
            else FailureKind.FAILED
        )
        # 1. This copy runs a committed batch again, and stands still. 2. A newer one runs it, too,
        # and Spark notes it. 3. This one wakes up, and is fenced. A file would stop every later
        # start: those begin behind the batch, and only who runs it again settles it.
        if kind is FailureKind.REPLAY and isinstance(error, Fenced):
            return
        journal.add(FailedCall(number, kind, paragraph(error), run_id))

    def check_frames(self, running: RunningBatch, writes: Sequence[Write]) -> None:
        """Raise UnsupportedQuery where a call tries again with other frames than the one that
        failed: they would commit the batch without its rows."""
        number, frames = self.failed_frames or (None, None)
        if number == running.batch.batch_id and frames != _fingerprints(writes):
            raise other_frames(running.batch)


def _fingerprints(writes: Sequence[Write]) -> list[tuple[str | None, int]]:
    """Return what is equal for two calls with the same frames, without those the engine adds."""
    return [(write.where, fingerprint(write.frame)) for write in writes if not write.set_aside]


def call_history(
    running: RunningBatch, newest: LedgerRecord | None, policy: SinkPolicy, journal: Journal | None
) -> CallHistory:
    """Return what is known of the calls before ``running``; asks Spark only if one is odd."""
    offered, spark = running.batch.batch_id, running.history
    here = newest is not None and newest.batch.query_id == running.batch.query_id
    last = newest.batch.batch_id if newest is not None and here else -1
    standing = () if journal is None else journal.before(offered, newest, last)
    given_up = [
        call
        for call in standing
        if policy.resume == "skip_missing" and call.run_id != running.run_id
    ]
    for call in given_up:
        log.warning("%s: left out: batch %d (%s)", policy.pipeline, call.batch_id, call.error)
    failed = next(((call.batch_id, call.error) for call in standing if call not in given_up), None)
    gap = (here or newest is None) and offered > last + 1
    known = CallHistory(policy.skipped_batches, failed, bool(given_up))
    if spark is None or not (gap or failed):
        return known
    first = last + 1 if failed is None else failed[0]
    # 1. Batches 12 to 40 have run, and 15.snapshot of the state is there. 2. 12 to 15 run again,
    # over other offsets. 3. The next start takes 15.snapshot for theirs.
    state_goes_back = not running.stateful or first >= offered - 1
    return replace(
        known,
        first_of_run=spark.first_of_run(),
        ends=spark.ends(last) if gap and last >= 0 else None,
        checkpoint=spark.checkpoint,
        rewindable=first >= last and state_goes_back and _can_rewind(spark, first),
    )


def _can_rewind(spark: History, batch_id: int) -> bool:
    """Return whether Spark would run ``batch_id`` again once its later logs are taken away."""
    reached = spark.ends(batch_id) is not None
    return reached and (batch_id == 0 or spark.ends(batch_id - 1) is not None)
