"""Open runs: one owner for each chain of batches in a run of a query, in this process. Called by
``foreach_batch``; driver only. Two things depend on there being one owner:

* Two sink objects under one ``pipeline_id`` in one query would take each other for a crashed
  predecessor, and the second would find the first one's batch in the ledger and drop its own rows
  as a replay. So the second gets the first one's run, if it is built alike (a sink that is built
  anew in every batch, say), and is refused otherwise.
* Nobody calls ``close()`` when a query ends. A thread asks Spark once a second whether the queries
  still run, and closes the runs of those that do not.

:class:`SinkRuns` are the runs of one sink: it opens one, tries a batch again, and gives up a run
that was replaced.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from pyspark.sql import DataFrame

from onceward import surroundings
from onceward.engine.calls.advice import second_call
from onceward.engine.calls.gate import compute_again, must_know_one_state, settle_state
from onceward.engine.calls.journal import CallMemory
from onceward.engine.ledger.chain import as_far_as_known
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy, with_the_next_start
from onceward.engine.target import Target, Write
from onceward.errors import (
    ROWS_REFUSED,
    Fenced,
    LedgerBehind,
    LedgerOutdated,
    OncewardError,
    Recovery,
    UnsupportedQuery,
)
from onceward.ids import BatchId
from onceward.spark.batch.job import ending_of
from onceward.spark.batch.query import RunningBatch, is_running, query_by_id, run_is_active

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_REMEMBERED = 1_000

K = TypeVar("K")
V = TypeVar("V")


class RunKey(NamedTuple):
    """A chain of batches in a run of a query: ``where`` names its ledger and pipeline."""

    run_id: str
    where: Hashable


@dataclass(eq=False)
class OpenRun:
    """The owner of a chain: the settings of its sink, and what it keeps from batch to batch."""

    query_id: str
    settings: object
    target: Target
    batches: MicroBatches
    is_running: Callable[[], bool] = field(repr=False)


_lock = surroundings.RLock()
_open: dict[RunKey, OpenRun] = {}
_memories: OrderedDict[RunKey, CallMemory] = OrderedDict()
_chains: OrderedDict[tuple[str, str], Hashable] = OrderedDict()
_known: OrderedDict[Hashable, LedgerRecord] = OrderedDict()
_last: OrderedDict[str, tuple[str, Callable[[], str]]] = OrderedDict()
_closer: threading.Thread | None = None


def memory(key: RunKey) -> CallMemory:
    """Return what is known of the calls for ``key``."""
    return _recent(_memories, key, CallMemory())


def known(where: Hashable) -> LedgerRecord | None:
    """Return the newest record of an owner of the chain ``where`` that has lost the ledger."""
    with _lock:
        return _known.get(where)


def note(where: Hashable, error: OncewardError) -> None:
    """Keep what is known of the chain ``where`` beyond its ledger, also for the next run, which a
    supervisor starts; said once that batches are gone from the ledger, it is the user's turn."""
    with _lock:
        if isinstance(error, LedgerBehind):
            _known.pop(where, None)
        elif isinstance(error, LedgerOutdated) and error.known is not None:
            newest = as_far_as_known(error.known, _known.pop(where, None))
            if newest is not None:
                _recent(_known, where, newest)


def forget(where: Hashable) -> None:
    """Forget it: the ledger has it."""
    with _lock:
        _known.pop(where, None)


def error_in(run_id: str) -> OncewardError | None:
    """Return the error that a call met last in that run, if none has succeeded since; of several
    sinks' the most severe: who was fenced must not come back for another's error."""
    with _lock:
        met = [memory.error for key, memory in reversed(_memories.items()) if key.run_id == run_id]
    errors = [error for error in met if error is not None]
    return max(errors, key=_severity, default=None)


def committed_in(run_id: str, batch_id: int) -> list[str]:
    """Return the pipelines that have committed the batch in that run, or found it committed."""
    with _lock:
        return sorted(
            pipeline
            for (run, pipeline), where in _chains.items()
            if run == run_id
            and (of := _memories.get(RunKey(run, where))) is not None
            and of.committed == batch_id
        )


def note_run(frame: DataFrame, run_id: str, query_id: str = "") -> None:
    """Remember that run of the frame's query as its last one, also where its call is refused
    before a sink is open."""
    # What is asked at the end of a job may not end a batch
    with suppress(Exception):
        query_id = query_id or str(query_by_id(frame).id().toString())
        with _lock:
            _last.pop(query_id, None)
            _recent(_last, query_id, (run_id, ending_of(frame)))


def failed_at_last() -> OncewardError | str | None:
    """Return what ended the last run of a query that has called a sink: the error that its call
    met, or Spark's words; of several the most severe. None: every one ended well, or goes on.
    """
    with _lock:
        last = list(_last.values())
    outcomes = [error_in(run_id) or words for run_id, failure in last if (words := failure())]
    ours = [each for each in outcomes if isinstance(each, OncewardError)]
    return max(ours, key=_severity, default=None) or next(iter(outcomes), None)


def settle(query_id: str) -> None:
    """Forget how the last run of a query has ended: the job has been told."""
    with _lock:
        _last.pop(query_id, None)


def is_logged(run_id: str) -> bool:
    """Return whether the log has what the last call of that run failed with."""
    with _lock:
        return any(memory.is_logged for key, memory in _memories.items() if key.run_id == run_id)


def _severity(error: OncewardError) -> int:
    if isinstance(error, Fenced):
        return 3
    return {Recovery.STOP: 2, Recovery.RESTART_IF_WORKED: 1}.get(error.recovery, 0)


def find(key: RunKey, settings: object) -> OpenRun | None:
    """Return the open run for ``key``. :raises UnsupportedQuery: of a sink with other settings."""
    with _lock:
        run = _open.get(key)
    if run is not None and run.settings != settings:
        raise UnsupportedQuery(
            "two sinks with the same pipeline_id and different settings are called in one query; "
            "a pipeline_id names one chain of transactions, and the rows of the second sink are "
            "not written",
            next_step="use one sink, hand over all frames of a batch with `with sink.batch(frame, "
            "batch_id) as batch: batch.write(first); batch.write(second, topic=…)`, those of the "
            'first sink first, and start once with resume="write_missing", which writes what the '
            "batch lacks; or give each sink a pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    return run


def enter(key: RunKey, run: OpenRun) -> None:
    """Make ``run`` the owner for ``key``, until :func:`leave` or the end of its query."""
    global _closer
    with _lock:
        _open[key] = run
        # A thread can die at its very start, of an exception.
        if _closer is None or not _closer.is_alive():
            _closer = surroundings.Thread(
                target=_close_ended_runs, name="onceward-runs", daemon=True
            )
            _closer.start()


def leave(key: RunKey, failed: BatchId | None = None) -> None:
    """Close the run for ``key``, if any; ``failed`` is remembered for a second try in the run."""
    with _lock:
        run = _open.pop(key, None)
    if failed is not None:
        memory(key).closed_at = failed
    if run is not None:
        run.batches.log_end()
        run.target.close()


def claim(key: RunKey, pipeline: str) -> CallMemory:
    """Return what is known of the calls for ``key``, which is the pipeline's chain in this run.

    :raises UnsupportedQuery: the pipeline has another chain in this run, and the journal of the
        one would be taken for the other's.
    :raises Fenced: the run has lost the pipeline to a newer copy, and must not take it back.
    """
    if _recent(_chains, (key.run_id, pipeline), key.where) != key.where:
        raise UnsupportedQuery(
            f"two sinks of one query have the pipeline_id {pipeline!r}, and write to different "
            "clusters or ledger topics; the rows of the second are not written",
            next_step="give each sink a pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    found = memory(key)
    if found.fenced:
        raise Fenced(
            f"run {key.run_id} has lost pipeline {pipeline} to a newer copy before: "
            f"{found.fenced}",
            next_step="leave this copy stopped; let the sink's errors leave the foreachBatch "
            "function",
        )
    return found


def _recent(entries: OrderedDict[K, V], key: K, new: V) -> V:
    """Return what is known by ``key``, or ``new``; the thousand asked for last are remembered."""
    with _lock:
        found = entries.setdefault(key, new)
        entries.move_to_end(key)
        while len(entries) > _REMEMBERED:
            entries.popitem(last=False)
    return found


def _close_ended_runs() -> None:
    global _closer
    pause = surroundings.Event()
    while True:
        pause.wait(_LOOK_SECONDS)
        with _lock:
            runs = dict(_open)
            if not runs:
                # Under the lock: the next to enter starts another
                _closer = None
                return
        for key, run in runs.items():
            _close_if_ended(key, run)


def _close_if_ended(key: RunKey, run: OpenRun) -> None:
    try:
        if run.is_running():
            return
        log.debug("query %s has ended; closing its sink", run.query_id)
        leave(key)
    except Exception:
        # That Spark cannot be asked says nothing: out of file descriptors, say, py4j opens no
        # connection, and the query is well. One run must not end the look after the others.
        log.debug(
            "%s: whether its query runs, or its sink is closed, is not known", key, exc_info=True
        )


_FOR_ONE_START = ("adopt", "write_missing", "skip_missing")


class SinkRuns:
    """The runs of one sink object: a newer run of its query replaces the older one."""

    def __init__(
        self, policy: SinkPolicy, settings: object, new_target: Callable[[SinkPolicy], Target]
    ) -> None:
        self._policy = policy
        self._settings = settings
        self._new_target = new_target
        self._key: RunKey | None = None
        self._query_id: str | None = None
        self._replaced: set[str] = set()
        self._committed_in: str | None = None

    def process(
        self, where: Hashable, frame: DataFrame, writes: Sequence[Write], running: RunningBatch
    ) -> None:
        """Write a batch in the run that Spark calls, of the chain ``where``; reopen the ledger."""
        self._refuse_second_query(frame, running)
        must_know_one_state(running)
        key, pipeline = RunKey(running.run_id, where), self._policy.pipeline
        run_memory = claim(key, pipeline)
        if run_memory.committed == running.batch.batch_id:
            raise second_call(running.batch)
        run_memory.check_frames(running, writes)
        if run_memory.open_journal(frame, pipeline, key.run_id).in_this_run(
            running.batch.batch_id
        ):
            compute_again(running, run_memory.error)
        for left in reversed(range(self._policy.batch_attempts)):
            batches = self._open(key, frame, running)
            try:
                batches.process(writes, running)
                self._committed_in = self._committed_in or running.run_id
                forget(where)
                settle_state(running)
                return run_memory.succeed(running.batch)
            except BaseException as error:
                run_memory.was_replay = batches.is_replay(running)
                # Spark ends the query now; a later start, or the next try of a patient function,
                # or of ours, opens everything again. A second call that was refused is no failed
                # try: tried again, it must not pass for a replay.
                failed = None if isinstance(error, UnsupportedQuery) else running.batch
                leave(key, failed)
                if isinstance(error, OncewardError):
                    note(where, error)
                if not isinstance(error, OncewardError) or error.recovery is not Recovery.REOPEN:
                    raise
                if not left:
                    with_the_next_start(error)
                    raise
                compute_again(running, error)
                log.warning(
                    "%s: reopening the ledger and retrying %s: %s", pipeline, running.batch, error
                )
        return None

    def close(self) -> None:
        """Close the run that is open."""
        if self._key is not None:
            leave(self._key)

    def _refuse_second_query(self, frame: DataFrame, running: RunningBatch) -> None:
        # Two queries under one pipeline id would fence each other: the healthy one must not be the
        # first to stop.
        ours = self._query_id
        if ours not in (None, running.batch.query_id) and is_running(frame, str(ours)):
            raise UnsupportedQuery(
                f"query {running.batch.query_id} was given the sink of query {ours}, which is "
                "running",
                next_step="give each query a sink and a pipeline_id of its own",
            )

    def _open(self, key: RunKey, frame: DataFrame, running: RunningBatch) -> MicroBatches:
        """Return the run's batches, which the sink owns now. :raises Fenced: it was replaced."""
        if running.run_id in self._replaced:
            raise Fenced(
                f"run {running.run_id} of query {running.batch.query_id} was replaced by a newer "
                "run of this sink",
                next_step="give each running query a sink and a pipeline_id of its own",
            )
        if self._key is not None and self._key != key:
            leave(self._key)
            self._replaced.add(self._key.run_id)
        elif self._key is None and find(key, self._settings) is not None:
            log.debug(
                "%s: a new sink goes on for one of the same query; build it once",
                self._policy.pipeline,
            )
        self._key, self._query_id = key, running.batch.query_id
        run = find(key, self._settings)
        if run is None:
            run = self._new_run(key, frame, running)
            enter(key, run)
        return run.batches

    def _new_run(self, key: RunKey, frame: DataFrame, running: RunningBatch) -> OpenRun:
        policy = self._policy_in(running.run_id)
        target = self._new_target(policy)
        run_memory = memory(key)
        journal = run_memory.open_journal(frame, self._policy.pipeline, key.run_id)
        session, query_id = frame.sparkSession, running.batch.query_id
        note_run(frame, key.run_id, query_id)
        return OpenRun(
            query_id=query_id,
            settings=self._settings,
            target=target,
            batches=MicroBatches(
                target, policy, run_memory.closed_at, journal, known=known(key.where)
            ),
            is_running=lambda: run_is_active(session, query_id, key.run_id),
        )

    def _policy_in(self, run_id: str) -> SinkPolicy:
        """Return the policy of a run. What the user allowed for one start holds in the first run
        with a committed batch, and in none after it."""
        # A sink that is built once sees many runs under a supervisor: what a later one loses,
        # nobody has looked at.
        if self._policy.resume not in _FOR_ONE_START or self._committed_in in (None, run_id):
            return self._policy
        text = "%s: resume=%r was for one start, and is over"
        log.debug(text, self._policy.pipeline, self._policy.resume)
        return replace(self._policy, resume="checkpoint")
