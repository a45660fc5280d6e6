"""Persisted frames behind a batch: who reads them, and is a block of them gone? Driver only;
called by targets, and where a replay counts (:func:`count_rows`).

A user's function persists a frame so that all who read it see the same rows: two frames that share
out a batch by a lot that was drawn, or by a look-up. Spark takes persisting for a matter of speed.
Blocks are lost with their executor, and whoever reads next computes them again, from the source or
from what is left of a shuffle. Nothing tells of it: the job has no stage that was attempted twice,
and every task is in its first attempt. Two cases:

* A shuffle is behind the frame. Its lost output left a trace (``spark.shuffles``), and the batch
  runs again. Then the blocks that are left must go, too (:func:`drop_blocks`): some are of the
  first computation, some of a mix, and the next attempt would read them instead of computing
  anything.
* None is. Then a block is the same rows of the source however often it is computed, and one who
  reads it once loses nothing. But two who read it may see two answers (:class:`Readers`): a record
  whose lot is drawn again is in both frames of the batch, or in none.

What remains:

* A frame that is persisted in memory only (``StorageLevel.MEMORY_ONLY``) and does not fit is as
  good as not persisted.
* Two branches of one frame that are the first to read a persisted one may each compute a block of
  it, at the same time on two executors. An action that fills it first (``kept.count()``) helps.
* What the function itself has read before the first write (``if not rejected.isEmpty()``) may have
  been another computation than what is written.
* An executor that comes and goes within one job is not missed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame

from onceward.errors import ComputationsMixed
from onceward.spark.session.environment import block_manager, scala_context

log = logging.getLogger(__name__)


class Readers:
    """What one attempt's jobs read of persisted frames. Made before them; not thread safe."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._executors = _executors(context)
        self._times: Counter[int] = Counter()

    def add(self, frame: DataFrame) -> None:
        """Note that ``frame`` was read by a job."""
        read = _persisted_behind(frame)
        if read:
            # Executors come in mid-batch, too: one that did may have computed a block for this
            # job, and be gone before the last one.
            self._executors |= _executors(self._context)
        self._times += read

    def must_have_seen_the_same(self) -> None:
        """Check, after the last job, that all frames have read the same blocks.

        :raises ComputationsMixed: an executor is gone that may have held what was read more than
            once. The blocks are dropped, so that the next attempt computes all of them.
        """
        shared = [rdd for rdd, times in self._times.items() if times > 1]
        if not shared:
            return
        gone = self._executors - _executors(self._context)
        if not gone:
            return
        _drop(self._context, shared)
        raise ComputationsMixed(
            "a persisted frame is read more than once in this batch, and executors that may have "
            f"held a part of it are gone ({', '.join(sorted(gone))}): its rows may have been "
            "computed again, and otherwise",
            next_step="nothing; the batch runs again. If it repeats, find out why executors are "
            "lost; with dynamic allocation, set spark.dynamicAllocation.executorIdleTimeout to "
            "more than a batch takes",
        )


def count_rows(frames: Sequence[DataFrame]) -> list[int]:
    """Count the rows of each of ``frames``, by one job each.

    :raises ComputationsMixed: they may have read two answers of a persisted frame. A row that was
        drawn for one of them and then for another counts twice, or not at all.
    """
    # Nobody else reads what it has read
    if len(frames) < 2:
        return [frame.count() for frame in frames]
    readers, numbers = Readers(frames[0].sparkSession.sparkContext), []
    for frame in frames:
        number, executed = _counted(frame)
        readers.add(executed)
        numbers.append(number)
    readers.must_have_seen_the_same()
    return numbers


def _counted(frame: DataFrame) -> tuple[int, DataFrame]:
    """Return the number of rows, and the frame that was run for it, whose plan may be asked."""
    counting = frame.groupBy().count()  # as ``Dataset.count`` does
    return int(counting.collect()[0][0]), counting


def drop_blocks(frame: DataFrame) -> None:
    """Forget the stored blocks of every persisted frame behind ``frame``; it stays persisted, and
    is computed anew.

    What is checkpointed is left alone: Spark has nothing to compute it from, and says so when a
    block is missing.
    """
    _drop(frame.sparkSession.sparkContext, _persisted_behind(frame))


def _drop(context: SparkContext, rdds: Any) -> None:
    master = block_manager(context).master()
    for rdd in sorted(rdds):
        log.warning("dropping the blocks of persisted RDD %d", rdd)
        # Blocking: a block that still exists when a task of the next attempt asks for it is read.
        master.removeRdd(rdd, True)


def _persisted_behind(frame: DataFrame) -> Counter[int]:
    """Return the persisted RDDs that ``frame`` is computed from, and how often each is read.
    Parents are older than their children: the walk ends at the oldest persisted one."""
    persisted = _persisted(frame.sparkSession.sparkContext)
    found: Counter[int] = Counter()
    if not persisted:
        return found
    oldest = min(persisted)
    top = frame._jdf.queryExecution().toRdd()
    visited, waiting = {int(top.id())}, [top]
    while waiting:
        dependencies = waiting.pop().dependencies()
        for index in range(dependencies.size()):
            parent = dependencies.apply(index).rdd()
            number = int(parent.id())
            if number in persisted:
                found[number] += 1
            if number > oldest and number not in visited:
                visited.add(number)
                waiting.append(parent)
    return found


def _persisted(context: SparkContext) -> set[int]:
    """Return all RDDs of this driver that are persisted and can be computed again."""
    persisted = context._jsc.getPersistentRDDs()
    if persisted.isEmpty():
        return set()
    # Python's own way through a Java map ends with a Java exception, which costs PySpark 30 ms to
    # translate.
    return {
        int(number)
        for number in persisted.keySet().toArray()
        if not persisted[number].rdd().isCheckpointed()
    }


def _executors(context: SparkContext) -> frozenset[str]:
    """Return where blocks can be: ``host:port`` of each living executor, new for a new one."""
    return frozenset(
        str(scala_context(context).getExecutorMemoryStatus().keySet().mkString(",")).split(",")
    )
