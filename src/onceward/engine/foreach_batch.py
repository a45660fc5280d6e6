"""The object that users hand to ``foreachBatch``, whatever it writes to; and the way back to its typed errors.

Runs in the driver. Spark calls the sink once per micro-batch on the query's own thread. Sinks subclass
:class:`ForeachBatchSink` and say how to write; when, and whether, is decided in ``engine.micro_batch``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from onceward.engine.micro_batch import BatchPolicy, MicroBatches
from onceward.engine.source_errors import source_refusal
from onceward.engine.spark_query import RunningBatch, current_run_id, is_running, running_batch
from onceward.engine.target import AtomicTarget
from onceward.errors import Fenced, OncewardError, UnsupportedQuery

_REMEMBERED_RUNS = 1_000
_failures: OrderedDict[str, OncewardError] = OrderedDict()
_failures_lock = threading.Lock()


class ForeachBatchSink(ABC):
    """A callable for ``DataStreamWriter.foreachBatch``.

    One sink object belongs to one query; a second one that is given it while the first runs is refused. When a query
    is started again in the same process, the new run takes the sink over and fences what the old one left behind.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._target: AtomicTarget | None = None
        self._run_id: str | None = None
        self._query_id: str | None = None
        self._earlier_runs: set[str | None] = set()
        self._batches: MicroBatches | None = None

    @abstractmethod
    def _new_target(self) -> AtomicTarget:
        """A fresh target for a new run of the query."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch exactly once. Called by Spark.

        :raises OncewardError: the batch is not written; :func:`error_of` finds it behind Spark's own exception.
        """
        self._remembering(frame, batch_id, lambda running: self._process(frame, running))

    def _remembering(self, frame: DataFrame, batch_id: int, write: Callable[[RunningBatch], None]) -> None:
        """Run ``write``; a typed error is kept for :func:`error_of` on its way through Spark."""
        run_id = current_run_id(frame)
        try:
            write(running_batch(frame, batch_id))
        except OncewardError as error:
            _remember(run_id, error)
            raise

    def _process(self, frame: DataFrame, running: RunningBatch) -> None:
        self._refuse_a_second_query(frame, running)
        batches = self._batches_of(running)
        try:
            batches.process(frame, running)
        except BaseException:
            if batches is self._batches:  # and not those of a newer run, whose query is alive
                self.close()  # Spark ends the query now; a later start opens everything again
            raise

    def _refuse_a_second_query(self, frame: DataFrame, running: RunningBatch) -> None:
        """Two queries under one pipeline id would fence each other: the healthy one shall not be the first to stop."""
        ours = self._query_id
        if ours not in (None, running.batch.query_id) and is_running(frame, str(ours)):
            raise UnsupportedQuery(
                f"query {running.batch.query_id} was given the sink of query {ours}, which is running",
                next_step="give each query a sink and a pipeline_id of its own",
            )

    def _batches_of(self, running: RunningBatch) -> MicroBatches:
        if running.run_id in self._earlier_runs:
            raise Fenced(
                f"run {running.run_id} of query {running.batch.query_id} was replaced by a newer run of this sink",
                next_step="give each running query a sink and a pipeline_id of its own",
            )
        if self._batches is None or running.run_id != self._run_id:
            self.close()
            if self._run_id not in (None, running.run_id):
                self._earlier_runs.add(self._run_id)
            self._run_id, self._query_id = running.run_id, running.batch.query_id
            self._target = self._new_target()
            self._batches = MicroBatches(self._target, self._policy)
        return self._batches

    def close(self) -> None:
        """Give back connections and threads; the next batch opens them again. Nothing is aborted.

        Happens by itself when the query fails. To be called after ``query.stop()`` in a driver that goes on.
        """
        if self._target is not None:
            self._target.close()
        self._target = None
        self._batches = None


def _remember(run_id: str, error: OncewardError) -> None:
    with _failures_lock:
        _failures[run_id] = error
        while len(_failures) > _REMEMBERED_RUNS:
            _failures.popitem(last=False)


def error_of(query: StreamingQuery) -> OncewardError | None:
    """The typed error that ended ``query``, or None.

    Spark wraps what ``foreachBatch`` raises into a ``StreamingQueryException`` that carries text only; the error
    itself stays in this process. What Spark's Kafka source met is told, too, when a broker refused it, by an ACL or at
    the login. None when the query runs, ended well, or failed for a reason of its own.
    """
    with _failures_lock:
        remembered = _failures.get(str(query.runId))
    if remembered is not None:
        return remembered
    wrapper = getattr(query, "_jsq", None)  # none in Spark Connect, which the sink refuses anyway
    return None if wrapper is None else source_refusal(wrapper.streamingQuery())
