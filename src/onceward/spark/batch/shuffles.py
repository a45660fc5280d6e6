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
  is behind them: see *persisted frames* below.
* With ``spark.decommission.enabled`` a lost output may come back from the executor that leaves
  (``updateMapOutput`` clears the trace) in the moment in which it is computed again.

Parts of the driver's ``SparkContext`` and ``SparkEnv`` that each batch asks, looked up once. Those
of ``SparkEnv`` are reached without looking at its class: py4j finds a method by listing all
methods of the object's class, for which the JVM loads every class that their signatures name.
Since Spark 4.3 one of them is ``UDFWorkerSpecification``, which needs protobuf, and no jar of
PySpark has it: the call dies with ``NoClassDefFoundError: com/google/protobuf/MessageOrBuilder``,
in a session whose other jars do not happen to bring protobuf. So nobody calls a method of
``SparkEnv`` through py4j.

**Persisted frames** behind a batch: who reads them, and is a block of them gone? A replay that
counts (:func:`count_rows`) asks, too.

A user's function persists a frame so that all who read it see the same rows: two frames that share
out a batch by a lot that was drawn, or by a look-up. Spark takes persisting for a matter of speed.
Blocks are lost with their executor, and whoever reads next computes them again, from the source or
from what is left of a shuffle. Nothing tells of it: the job has no stage that was attempted twice,
and every task is in its first attempt. Two cases:

* A shuffle is behind the frame. Its lost output left a trace, and the batch runs again. Then
  blocks that are left must go, too (:func:`drop_blocks`): some are of the first computation, some
  of a mix, and the next attempt would read them.
* None is. Then a block is the same rows of the source however often it is computed, and one who
  reads it once loses nothing. But two who read it may see two answers (:class:`Readers`): a record
  whose lot is drawn again is in both frames of the batch, or in none.

What remains:

* A frame in memory only (``MEMORY_ONLY``) that does not fit is as good as not persisted.
* Two branches of one frame that are the first to read a persisted one may each compute a block of
  it, at the same time on two executors. An action that fills it first (``kept.count()``) helps.
* What the function itself has read before the first write (``if not rejected.isEmpty()``) may have
  been another computation than what is written.
* An executor that comes and goes within one job is not missed.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from itertools import product
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from onceward.errors import ComputationsMixed, OncewardError
from onceward.spark.batch.job import JobInterrupted
from onceward.spark.batch.query import RunningBatch, items, state_texts


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
    """Forget the blocks of persisted frames behind ``frame``; they stay persisted, computed anew.

    What is checkpointed is left alone: Spark cannot compute a block again, and says so.
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
        for dependency in items(waiting.pop().dependencies()):
            parent = dependency.rdd()
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


@lru_cache(maxsize=2)
def scala_context(context: SparkContext) -> Any:
    """Return Spark's own ``SparkContext``."""
    return context._jsc.sc()


@lru_cache(maxsize=2)
def _scheduler_and_tracker(context: SparkContext) -> tuple[Any, Any]:
    """Return the context's ``DAGScheduler``, and the ``MapOutputTrackerMaster`` that
    ``TaskSchedulerImpl`` has on every cluster."""
    scala = scala_context(context)
    return scala.dagScheduler(), scala.taskScheduler().mapOutputTracker()


def block_manager(context: SparkContext) -> Any:
    """Return the driver's ``BlockManager``, which only ``SparkEnv`` has, by a method handle, which
    loads exactly its type: a dozen calls into the JVM, not for every batch."""
    jvm: Any = context._jvm
    invoke, loader = (
        jvm.java.lang.invoke,
        jvm.java.lang.Thread.currentThread().getContextClassLoader(),
    )
    returned = invoke.MethodType.methodType(
        loader.loadClass("org.apache.spark.storage.BlockManager")
    )
    owner = loader.loadClass("org.apache.spark.SparkEnv")
    handle = invoke.MethodHandles.publicLookup().findVirtual(owner, "blockManager", returned)
    return handle.invokeWithArguments(
        jvm.java.util.Collections.singletonList(scala_context(context).env())
    )


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
        """Watch the job inside that computes ``frame``; check that it was *one* computation.

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
        scheduler, tracker = _scheduler_and_tracker(context)
        shuffles = sorted(_shuffle_ids(frame._jdf.queryExecution().toRdd(), scheduler))
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

    def read_once(self, frame: DataFrame) -> AbstractContextManager[None]:
        """Watch the one job inside that computes ``frame``. :raises ComputationsMixed: it may have
        been two computations (:meth:`Shuffles.read_once`)."""
        if self._readers is None:
            self._readers = Readers(frame.sparkSession.sparkContext)
        return self._shuffles.read_once(frame)

    def counts(self, frame: DataFrame) -> None:
        """Note, inside :meth:`read_once` and after the job, that the rows are in the batch."""
        assert self._readers is not None  # noqa: S101 — made by read_once
        self._readers.add(frame)

    def must_be_one(self) -> None:
        """Raise ComputationsMixed, after the last job, if frames may have read two results of a
        persisted one."""
        if self._readers is not None:
            self._readers.must_have_seen_the_same()


class StateCopies:
    """Where executors of one run keep the state of attempts that failed.

    An executor keeps the newest state of each partition that it has computed, by its version
    alone (``HDFSBackedStateStoreProvider.loadedMaps``, ``RocksDB.loadedVersion``):

    1. an attempt commits version n + 1 on one executor, and fails behind that;
    2. the next attempt computes the partition on another one, and is written;
    3. a later batch comes to the first executor, which takes its own n + 1 for that of the rows.

    A run is part of a store's name, so that a restart knows nothing of it; but snapshots may be
    left in the checkpoint (:class:`~onceward.spark.batch.checkpoint_files.StateFiles`).
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, str], set[str]] = {}
        self._left: tuple[int, frozenset[str]] = (-1, frozenset())

    def note(self, running: RunningBatch) -> None:
        """Note where the state of an attempt is that has failed."""
        for store, place in _state_places(running).items():
            self._places.setdefault(store, set()).add(place)

    def settle(self, running: RunningBatch) -> None:
        """Look, when the batch is written, where another attempt's state is left."""
        places, self._places = self._places, {}
        if places:
            now = _state_places(running)
            context = SparkContext._active_spark_context
            alive = str(scala_context(context).getExecutorIds().mkString(",")).split(",")
            left = {
                place
                for store, of_store in places.items()
                for place in of_store - {now.get(store)}
                if alive == [""] or place.rpartition("_")[2] in alive
            }
            self._left = (running.batch.batch_id, frozenset(left))

    def left(self, running: RunningBatch) -> frozenset[str]:
        """Return the executors that a later batch would find another attempt's state at."""
        return self._left[1] if running.batch.batch_id > self._left[0] else frozenset()


# How every stateful operator prints its StatefulOperatorStateInfo
_STATE = re.compile(r"state info \[ .*?opId = (\d+), ver = -?\d+, numPartitions = (\d+)")
# Of a join, one of the four that each of its partitions has
_STORES = ("default", "left-keyToNumValues")


def _state_places(running: RunningBatch) -> dict[tuple[int, int, str], str]:
    """Return the executor (``ExecutorCacheTaskLocation``) at which each store was used last, as
    the ``StateStoreCoordinator`` knows it.
    """
    assert running.history is not None  # noqa: S101 — made with the batch
    execution = running.history.execution
    jvm: Any = SparkSession.active()._jvm
    state = jvm.org.apache.spark.sql.execution.streaming.state
    coordinator = execution.sparkSession().streams().stateStoreCoordinator()
    root = f"{execution.resolvedCheckpointRoot()}/state"
    found = {}
    texts = "\n".join(state_texts(execution.lastExecution().executedPlan()))
    for operator, partitions in {(int(o), int(n)) for o, n in _STATE.findall(texts)}:
        for store in product([operator], range(partitions), _STORES):
            store_id = state.StateStoreProviderId(
                state.StateStoreId(root, *store), execution.runId()
            )
            place = coordinator.getLocation(store_id)
            if not place.isEmpty():
                found[store] = str(place.get())
    return found


def _shuffle_ids(rdd: Any, scheduler: Any) -> set[int]:
    """Return the shuffles that ``rdd`` is computed from, directly or not."""
    found: set[int] = set()
    waiting = [rdd]
    while waiting:
        # A stage's direct shuffles in one call: RDD by RDD it would be a dozen for each.
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
