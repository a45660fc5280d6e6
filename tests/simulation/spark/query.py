"""A streaming query: its checkpoint, its batches, and what happens to them when a driver dies.

Sources: ``MicroBatchExecution.populateStartOffsets`` (the newest entry of the offset log is run
again unless the commit log has it), ``constructNextBatch`` and ``markMicroBatchStart`` (the offset
log is written before the batch), ``markMicroBatchEnd`` (the commit log after it; somebody else's
entry there ends the query: ``concurrentStreamLogUpdate``), ``HDFSMetadataLog.add`` and ``purge``
(``spark.sql.streaming.minBatchesToRetain``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onceward.engine.calls import runs
from onceward.ids import BatchId, SourceRange
from onceward.spark.batch.query import KafkaSource, RunningBatch
from simulation.kernel.scheduler import Process
from simulation.spark.frames import Computed, Frame, Plan
from simulation.spark.jobs import Executors

FAULTS = {
    "crash:spark.offset log": "the driver dies when the offset log has the batch, before anything "
    "else of it",
    "crash:spark.before the offset log": "the driver dies when a batch is planned, before the "
    "offset log has it",
    "crash:spark.before the commit log": "the driver dies when the batch is written, before "
    "Spark's commit log has it",
    "crash:spark.commit log": "the driver dies when Spark's commit log has the batch",
    "crash:timed": "the driver dies some moment in a batch",
    "pause:timed": "the driver stands still for a while, some moment in a batch",
}

_DELICATE = 8
"""So many opportunities to die has a driver behind the first batch that a new leader of the ledger
has: it is nowhere else, and whoever does not know of the election does not know of it.
"""
SOURCE = "source"
SERVERS = frozenset({"broker-1:9092"})


class LogUpdated(Exception):
    """``QueryExecutionErrors.concurrentStreamLogUpdate``: another copy of the query writes the
    same checkpoint.
    """


class LogNotWritten(Exception):
    """A ``java.io.IOException`` of ``HDFSMetadataLog.add``, which ends the query."""


class Checkpoint:
    """Spark's logs, and the files beside them. It outlives every driver."""

    def __init__(self, world: Any, name: str, begins: list[int] | None) -> None:
        self.world = world
        self.root = name
        self.begins = begins
        """Where the source begins, of each partition; None: where the ledger ends, which nobody
        has looked up yet.
        """
        self.query_id = f"{world.next_number():08x}-query"
        self.offsets: dict[int, list[int]] = {}
        self.commits: set[int] = set()
        self.state: dict[tuple[int, int], dict[int, int]] = {}
        """By batch and task, of a query that counts."""

    def copy(self) -> tuple[dict[int, list[int]], set[int]]:
        return dict(self.offsets), set(self.commits)


class Session:
    """As much of a Spark session as the product asks in the driver: of the files beside the
    checkpoint, see :mod:`simulation.world.files`.
    """

    def __init__(self, query: Query) -> None:
        files = query.world.files.session_for()
        self._jsparkSession = files
        self.sparkContext = _Context(query, files)


class _Context:
    """As much of a Spark context; of the JVM's scheduler what ``spark.shuffles`` asks."""

    master = "local[2]"

    def __init__(self, query: Query, files: Any) -> None:
        self.query = query
        self._jvm, self._gateway = files._jvm, files._gateway
        self._jsc = self

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 — Spark's name
        return {
            "sql.streaming.queryId": self.query.checkpoint.query_id,
            "streaming.sql.batchId": str(self.query.batch),
        }.get(name)

    def sc(self) -> _Context:
        return self

    taskScheduler = dagScheduler = mapOutputTracker = sc  # noqa: N815 — Spark's names

    def unregisterAllMapAndMergeOutput(self, shuffle: int) -> None:  # noqa: N802 — Spark's name
        computed = self.query.computed
        for one in computed.shuffles if computed is not None else ():
            if one.id == shuffle:
                for task in list(one.outputs):
                    one.take_back(task)


class History:
    """:class:`onceward.spark.batch.query.History` of this model."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.checkpoint: str = query.checkpoint.root

    def ends(self, batch_id: int) -> tuple[Any, ...] | None:
        ends = self._query.checkpoint.offsets.get(batch_id)
        return None if ends is None else (_kafka_offsets(ends),)

    def first_of_run(self) -> bool:
        return self._query.batch == self._query.first


class Query:
    """One run of the query, in a driver process."""

    def __init__(self, world: Any, process: Process, checkpoint: Checkpoint, plan: Plan) -> None:
        self.world = world
        self.process = process
        self.checkpoint = checkpoint
        self.plan = plan
        self.run_id = f"run-{world.next_number()}"
        self.batch = -1
        self.computed: Computed | None = None
        self.first = -1
        self.running = False
        self.executors: Executors = world.executors_of(process)
        self.session = Session(self)
        self._begins: list[int] = []

    # ── as the product asks ──

    def running_batch(self, batch_id: int) -> RunningBatch:
        computed = self.computed
        assert computed is not None
        source = SourceRange(_kafka_offsets(computed.start), _kafka_offsets(computed.end))
        return RunningBatch(
            batch=BatchId(self.checkpoint.query_id, batch_id),
            run_id=self.run_id,
            name="",
            sources=(source,),
            kafka_sources=(KafkaSource(0, SERVERS),) if self.world.setting.at_home else (),
            stateful=self.plan.stateful,
            input_records=sum(computed.end) - sum(computed.start),
            history=History(self),
        )

    # ── the run ──

    def run(self, function: Callable[[Frame, int], None]) -> None:
        """Batch after batch until the source is read to its end and will not grow; raises what
        ends the query.
        """
        self.running = True
        self.world.queries.append(self)
        try:
            self._run(function)
        finally:
            self.running = False
            self.world.queries.remove(self)
            if self.process.alive:
                self.world.sim.after(self.world.lots.time.random(), self._close_sinks)

    def _run(self, function: Callable[[Frame, int], None]) -> None:
        world, checkpoint, lots = self.world, self.checkpoint, self.world.lots
        batch, begin, end = self._where_to_begin()
        self.first = batch
        while True:
            if end is None:
                end = self._next_end(begin)
                if end is None:
                    if world.source.exhausted and begin == world.source.ends():
                        return
                    world.sim.sleep(0.05)
                    continue
                self._die("crash:spark.before the offset log")
                with self._logging("offsets", batch):
                    checkpoint.offsets[batch] = end
                self._purge(batch)
                self._die("crash:spark.offset log")
            self.batch = batch
            self.computed = Computed(self, batch, begin, end, self.plan)
            if lots.fires("crash:timed"):
                world.sim.after(
                    lots.below("crash:timed", 1000) / 1000 * 0.05, world.sim.kill, self.process
                )
            if lots.fires("pause:timed"):
                seconds = lots.below("pause:timed", 1000) / 1000 * 90
                world.sim.after(
                    lots.below("pause:timed", 1000) / 1000 * 0.05,
                    world.sim.pause,
                    self.process,
                    seconds,
                )
            function(Frame(self.computed), batch)
            self._die(
                "crash:spark.before the commit log",
                _DELICATE if world.ledger_has_a_new_leader() else 1,
            )
            world.sim.alive()
            with self._logging("commits", batch):
                checkpoint.commits.add(batch)
            self._die("crash:spark.commit log")
            batch, begin, end = batch + 1, end, None

    @contextmanager
    def _logging(self, log: str, batch: int) -> Iterator[None]:
        """Inside, an entry is written, on the file system that has the notes, too: its operations
        fail there as well. (What is written outlasts a power failure.)

        :raises LogUpdated: it is there already. :raises LogNotWritten: perhaps it is; the query
            ends.
        """
        checkpoint = self.checkpoint
        try:
            failed = self.world.files.tree("").door(
                "write", f"{checkpoint.root}/{log}/{batch}", writes=True
            )
        except OSError as error:
            raise LogNotWritten(str(error)) from error
        if batch in getattr(checkpoint, log):
            raise LogUpdated(
                f"Multiple streaming queries are concurrently using {checkpoint.root}/{log}"
            )
        yield
        if failed is not None:
            raise LogNotWritten(str(failed)) from failed

    def _where_to_begin(self) -> tuple[int, list[int], list[int] | None]:
        offsets, commits = self.checkpoint.offsets, self.checkpoint.commits
        first = self.checkpoint.begins
        assert first is not None, "looked up where the query is defined"
        if not offsets:
            return 0, first, None
        newest = max(offsets)
        begins = offsets.get(newest - 1, first)
        if newest in commits:
            return newest + 1, offsets[newest], None
        return newest, begins, offsets[newest]

    def _next_end(self, begin: list[int]) -> list[int] | None:
        """``maxOffsetsPerTrigger`` of all there is; None: nothing new."""
        ends = self.world.source.ends()
        left = self.world.most_offsets
        found = []
        for one, other in zip(begin, ends, strict=True):
            taken = min(other - one, left)
            left -= taken
            found.append(one + taken)
        return found if found != begin else None

    def _purge(self, batch: int) -> None:
        kept = self.world.setting.retained
        for old in [number for number in self.checkpoint.offsets if number < batch - kept]:
            del self.checkpoint.offsets[old]
            self.checkpoint.commits.discard(old)

    def _die(self, kind: str, opportunities: int = 1) -> None:
        self.world.sim.alive()
        for _ in range(opportunities):
            if self.world.lots.fires(kind):
                self.world.sim.kill(self.process, kind.removeprefix("crash:"))

    def _close_sinks(self) -> None:
        """As the thread of ``engine.calls.runs`` does within a second."""
        for place in [place for place in runs._open if place.run_id == self.run_id]:
            runs.leave(place)


def _kafka_offsets(ends: list[int]) -> dict[str, dict[str, int]]:
    return {SOURCE: {str(partition): offset for partition, offset in enumerate(ends)}}


class Source:
    """A topic that is read: so many partitions, whose records come as time goes by."""

    def __init__(self, world: Any, partitions: int, total: int) -> None:
        self._world = world
        self.partitions = partitions
        self.total = total
        self._ends = [0] * partitions
        self._feeders = 0
        self.exhausted = False

    def feed(self, left: int) -> None:
        """In the world's own task: so many records come, a few at a time."""
        sim, chance = self._world.sim, self._world.lots.time
        self._feeders += 1
        self.exhausted = False
        while left > 0:
            some = min(left, 1 + int(chance.random() * self._world.most_offsets))
            left -= some
            for _ in range(some):
                self._ends[int(chance.random() * self.partitions)] += 1
            sim.sleep(chance.random() * 0.2)
        self._feeders -= 1
        self.exhausted = self._feeders == 0

    def ends(self) -> list[int]:
        return list(self._ends)

    def produced(self, partition: int) -> int:
        return self._ends[partition]
