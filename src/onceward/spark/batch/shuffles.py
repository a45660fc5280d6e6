"""Has Spark computed a part of a batch twice? The one reader of its map output tracker. Driver
only; called by targets.

A batch must be of one computation. Spark keeps the output of a shuffle's map tasks until it is
lost (an executor dies, a disk fails); then it computes the lost part again and goes on with those
readers that had not finished (``DAGScheduler.handleTaskCompletion``, case ``FetchFailed``;
``submitMissingTasks`` asks ``findMissingPartitions``). That is right where the same input gives
the same output. Where it does not (uuid, random, a look-up in a Python function, of which Spark
knows nothing unless its RDD says ``INDETERMINATE``) a row can change places between the two
computations: the reader that had it is finished and has it not, or has it once more. Several
stages in a row may do so far from our own tasks::

    source -> look-up -> [shuffle 1] -> window -> [shuffle 2] -> our tasks

When output of shuffle 1 is lost after half of shuffle 2 is written, shuffle 2 is a mix for good,
and our tasks, all of them in the first attempt of their stage, read it without any sign. A stage's
attempt number would not tell, nor would it tell of a shuffle that an earlier job of the same batch
computed (``frame.isEmpty()``, a first ``write``, adaptive execution), which our own job skips.

What does tell: the driver's ``ShuffleStatus`` keeps an output that it takes back in
``mapStatusesDeleted`` (``removeMapOutput``, ``removeOutputsByFilter``; Spark 4.0 to 4.3). So when
no output of any shuffle behind a frame was ever taken back, every reader of it saw the same. When
one was, this may be harmless (repeatable output, or nobody had read), but nobody can know: the
batch runs again, with all shuffles behind it forgotten and all blocks of persisted frames dropped,
so that nothing is left of the mix. An answer of the tracker is immediate, unlike Spark's
listeners, which lag and may drop events.

What remains:

* What is computed twice on purpose. Two frames that are written one after the other, or two
  branches of a union, each compute a plan that is not persisted: a function that is not repeatable
  answers each of them anew.
* Blocks of a persisted frame that are lost and computed again leave no trace here, if no shuffle
  is behind them: see ``spark.persisted``.
* With ``spark.decommission.enabled`` a lost output may come back from the executor that leaves
  (``updateMapOutput`` clears the trace) in the moment in which it is computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from onceward.errors import ComputationsMixed, OncewardError
from onceward.spark.batch.job import JobInterrupted
from onceward.spark.batch.persisted import Readers, drop_blocks
from onceward.spark.session.environment import dag_scheduler, map_output_tracker


def planned_once(frame: DataFrame) -> DataFrame:
    """Return the rows of the plan of ``frame``; itself if ``foreachBatch`` has made it of rows."""
    if frame._jdf.logicalPlan().getClass().getSimpleName() == "LogicalRDD":
        return frame
    session: Any = frame.sparkSession
    rows = frame._jdf.queryExecution().toRdd()
    return DataFrame(
        session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False), session
    )


log = logging.getLogger(__name__)

_NOTHING_LOST: frozenset[str] = frozenset()


class Shuffles:
    """What is known of the shuffles behind a query's batches. One for a run; not thread safe."""

    def __init__(self) -> None:
        # What was taken back when we told Spark to forget
        self._forgotten: dict[int, frozenset[str]] = {}

    @contextmanager
    def read_once(self, frame: DataFrame) -> Iterator[None]:
        """Watch the one job inside the block that computes ``frame``, and check that it was *one*
        computation.

        :raises ComputationsMixed: it may not have been. The shuffles are forgotten, so that the
            next attempt computes all of them. An error of Spark's in which they got lost becomes
            this one, too; any other passes.
        """
        try:
            yield
        except JobInterrupted:
            raise
        except OncewardError:
            self._forget_after_failure(frame)
            raise
        except Exception as error:
            if self._forget_after_failure(frame):
                raise _mixed() from error
            raise
        if self._forget_if_lost(frame):
            raise _mixed()

    def _forget_after_failure(self, frame: DataFrame) -> bool:
        """Forget the shuffles of a job that failed, as :meth:`_forget_if_lost` does; it may have
        failed before there was an RDD to ask.

        Under adaptive execution a plan has none until all stages but the last have run; then
        asking for it raises what they raised. Nothing is missed: a shuffle that the next attempt
        reads again is looked at when that one ends.
        """
        try:
            return self._forget_if_lost(frame)
        except Exception as again:  # noqa: BLE001 — the job's own error is the one to hear of
            log.debug("the plan of the failed job never became an RDD: %s", again)
            return False

    def _forget_if_lost(self, frame: DataFrame) -> bool:
        context = frame.sparkSession.sparkContext
        tracker = map_output_tracker(context)
        shuffles = sorted(
            _shuffle_ids(frame._jdf.queryExecution().toRdd(), dag_scheduler(context))
        )
        taken_back = {shuffle: _taken_back(context, tracker, shuffle) for shuffle in shuffles}
        lost = [
            shuffle
            for shuffle in shuffles
            if taken_back[shuffle] != self._forgotten.get(shuffle, _NOTHING_LOST)
        ]
        self._forgotten = {
            shuffle: known for shuffle, known in self._forgotten.items() if shuffle in taken_back
        }
        if not lost:
            return False
        log.warning(
            "map output of shuffles %s was lost while a batch was computed: forgetting %s",
            lost,
            shuffles,
        )
        for shuffle in shuffles:
            # All shuffles, not only the one that lost output:
            # 1. an executor dies with output of shuffle 1 after half of shuffle 2 is written from
            #    it;
            # 2. Spark computes the lost part of shuffle 1 again (DAGScheduler, FetchFailed), with
            #    other rows if the plan is not repeatable, and writes the other half of shuffle
            #    2 from that;
            # 3. shuffle 2 is now a mix, complete, and the next attempt would read it without any
            #    sign.
            tracker.unregisterAllMapAndMergeOutput(shuffle)
            self._forgotten[shuffle] = _taken_back(context, tracker, shuffle)
        # Blocks of persisted frames outlive a shuffle: they hold rows of the first computation or
        # of the mix, and the next attempt would read them instead of computing anything.
        drop_blocks(frame)
        return True


class Computation:
    """All jobs of one attempt at a batch: rows of two computations never meet, whatever the sink.
    ``shuffles`` are kept from batch to batch.
    """

    def __init__(self, shuffles: Shuffles) -> None:
        self._shuffles = shuffles
        self._readers: Readers | None = None

    @contextmanager
    def read_once(self, frame: DataFrame) -> Iterator[None]:
        """Watch the one job inside that computes ``frame``. :raises ComputationsMixed: it may have
        been two computations (:meth:`Shuffles.read_once`)."""
        if self._readers is None:
            self._readers = Readers(frame.sparkSession.sparkContext)
        with self._shuffles.read_once(frame):
            yield

    def counts(self, frame: DataFrame) -> None:
        """Note, inside :meth:`read_once` and after the job, that the rows are in the batch."""
        assert self._readers is not None  # noqa: S101 — made by read_once
        self._readers.add(frame)

    def must_be_one(self) -> None:
        """Raise ComputationsMixed, after the last job, if frames may have read two results of a
        persisted one."""
        if self._readers is not None:
            self._readers.must_have_seen_the_same()


def _shuffle_ids(rdd: Any, scheduler: Any) -> set[int]:
    """Return the shuffles that ``rdd`` is computed from, directly or not."""
    found: set[int] = set()
    waiting = [rdd]
    while waiting:
        # A stage's direct shuffles in one call: walking its RDDs one by one costs a dozen for each
        # of them.
        direct = scheduler.getShuffleDependenciesAndResourceProfiles(waiting.pop())._1()
        if direct.isEmpty():
            continue
        dependencies = direct.iterator()
        while dependencies.hasNext():
            dependency = dependencies.next()
            shuffle = int(dependency.shuffleId())
            if shuffle not in found:
                found.add(shuffle)
                waiting.append(dependency.rdd())
    return found


def _taken_back(context: Any, tracker: Any, shuffle: int) -> frozenset[str]:
    """Return outputs of ``shuffle`` that Spark has unregistered, by identity in the JVM; none of
    one that is not registered, or has no map tasks (a batch without data)."""
    status = tracker.shuffleStatuses().get(shuffle)
    if status.isEmpty():
        return _NOTHING_LOST
    # All in one text, "Array(null, …)": one call into the JVM for each output would be felt.
    text = str(
        context._gateway.jvm.scala.runtime.ScalaRunTime.stringOf(status.get().mapStatusesDeleted())
    )
    return frozenset(text.removeprefix("Array(").removesuffix(")").split(", ")) - {"", "null"}


def _mixed() -> ComputationsMixed:
    return ComputationsMixed(
        "intermediate results (shuffle output) were lost while the batch was computed, and Spark "
        "computed them again for a part of it: rows of two computations may have met",
        next_step="nothing; the batch runs again from its source. If it repeats, find out why "
        "executors or their disks are lost",
    )
