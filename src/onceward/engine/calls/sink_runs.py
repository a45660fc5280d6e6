"""The runs of one sink: opens one, tries a batch again, and gives up a run that was replaced.

Called by ``foreach_batch``; driver only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from onceward.engine.calls import runs
from onceward.engine.calls.advice import must_compute_once, second_call
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy, with_the_next_start
from onceward.engine.target import Target, Write
from onceward.errors import (
    Fenced,
    OncewardError,
    Recovery,
    UnsupportedQuery,
)
from onceward.spark.batch.query import RunningBatch, is_running, run_is_active

log = logging.getLogger(__name__)

_FOR_ONE_START = ("adopt", "write_missing", "skip_missing")


class SinkRuns:
    """The runs of one sink object, with targets by ``new_target``: a newer run of its query
    replaces the older one."""

    def __init__(
        self, policy: SinkPolicy, settings: object, new_target: Callable[[SinkPolicy], Target]
    ) -> None:
        self._policy = policy
        self._settings = settings
        self._new_target = new_target
        self._key: runs.RunKey | None = None
        self._query_id: str | None = None
        self._replaced: set[str] = set()
        self._committed_in: str | None = None

    def process(
        self, where: Hashable, frame: DataFrame, writes: Sequence[Write], running: RunningBatch
    ) -> None:
        """Write a batch in the run that Spark calls, of the chain ``where``; reopen the ledger."""
        self._refuse_second_query(frame, running)
        key, pipeline = runs.RunKey(running.run_id, where), self._policy.pipeline
        memory = runs.claim(key, pipeline)
        if memory.committed == running.batch.batch_id:
            raise second_call(running.batch)
        memory.check_frames(running, writes)
        if memory.open_journal(frame, pipeline, key.run_id).in_this_run(running.batch.batch_id):
            must_compute_once(running, memory.error)
        for left in reversed(range(self._policy.batch_attempts)):
            batches = self._open(key, frame, running)
            try:
                batches.process(writes, running)
                self._committed_in = self._committed_in or running.run_id
                runs.forget(where)
                return memory.succeed(running.batch)
            except BaseException as error:
                memory.was_replay = batches.is_replay(running)
                # Spark ends the query now; a later start, or the next try of a patient function,
                # or of ours, opens everything again. A second call that was refused is no failed
                # try: tried again, it must not pass for a replay.
                failed = None if isinstance(error, UnsupportedQuery) else running.batch
                runs.leave(key, failed)
                if isinstance(error, OncewardError):
                    runs.note(where, error)
                if not isinstance(error, OncewardError) or error.recovery is not Recovery.REOPEN:
                    raise
                if not left:
                    with_the_next_start(error)
                    raise
                must_compute_once(running, error)
                log.warning(
                    "%s: reopening the ledger and retrying %s: %s", pipeline, running.batch, error
                )
        return None

    def close(self) -> None:
        """Close the run that is open."""
        if self._key is not None:
            runs.leave(self._key)

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

    def _open(self, key: runs.RunKey, frame: DataFrame, running: RunningBatch) -> MicroBatches:
        """Return the run's batches, which the sink owns now. :raises Fenced: it was replaced."""
        if running.run_id in self._replaced:
            raise Fenced(
                f"run {running.run_id} of query {running.batch.query_id} was replaced by a newer "
                "run of this sink",
                next_step="give each running query a sink and a pipeline_id of its own",
            )
        if self._key is not None and self._key != key:
            runs.leave(self._key)
            self._replaced.add(self._key.run_id)
        elif self._key is None and runs.find(key, self._settings) is not None:
            log.debug(
                "%s: a new sink goes on for one of the same query; build it once",
                self._policy.pipeline,
            )
        self._key, self._query_id = key, running.batch.query_id
        run = runs.find(key, self._settings)
        if run is None:
            run = self._new_run(key, frame, running)
            runs.enter(key, run)
        return run.batches

    def _new_run(self, key: runs.RunKey, frame: DataFrame, running: RunningBatch) -> runs.OpenRun:
        policy = self._policy_in(running.run_id)
        target = self._new_target(policy)
        memory = runs.memory(key)
        journal = memory.open_journal(frame, self._policy.pipeline, key.run_id)
        session, query_id = frame.sparkSession, running.batch.query_id
        return runs.OpenRun(
            query_id=query_id,
            settings=self._settings,
            target=target,
            batches=MicroBatches(
                target, policy, memory.closed_at, journal, known=runs.known(key.where)
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
        log.debug(
            "%s: resume=%r was for one start, and is over",
            self._policy.pipeline,
            self._policy.resume,
        )
        return replace(self._policy, resume="checkpoint")
