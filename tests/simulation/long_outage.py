"""A day on which everything that a pipeline leans on is away in turn, for longer than any timeout.

The real ``ow.supervise`` in virtual time, over the real engine in the simulated world. A process
is never started again: what is alive at the end has been all day. For Spark's ``StreamingQuery``
stands :class:`Supervised`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pyspark.errors import StreamingQueryException

import onceward as ow
from onceward import surroundings
from onceward.errors import AuthenticationFailed, RegistryUnreachable, TableMissing
from simulation import assembled
from simulation.kernel import current
from simulation.kernel.scheduler import Killed, Process, Sim
from simulation.kernel.threads import Future
from simulation.run import Outcome, simulate
from simulation.spark.frames import Frame
from simulation.spark.query import Query, Source
from simulation.spark.world import Start, World
from simulation.world.files.tree import Tree
from simulation.world.network import Connections
from simulation.world.targets.calls import Server

BROKERS, SOURCE, REGISTRY, IDENTITY, CATALOG = (
    "brokers",
    "source",
    "registry",
    "identity provider",
    "catalog",
)
CHECKPOINT, LEDGER, TARGET, DATABASE = (
    "disk of the checkpoint",
    "disk of the ledger",
    "target",
    "database",
)
EVERYWHERE = (SOURCE, REGISTRY, CATALOG, CHECKPOINT)

_RECORDS = 12
_WELL = 90.0
_BACK = 3_600.0
"""How long it may take until all is caught up again: pauses grow up to five minutes, and a
transaction may be open.
"""


class SourceAway(Exception):
    """As Spark's Kafka source has it (``TimeoutException``), by itself: no error of ours."""


class Supervised:
    """As much of a ``StreamingQuery`` as ``ow.supervise`` asks, over the simulated query, which
    has a thread.
    """

    def __init__(
        self,
        world: LongOutage,
        process: Process,
        query: Query,
        function: Callable[[Frame, int], None],
    ) -> None:
        self.id = self.name = query.checkpoint.query_id
        self.runId = query.run_id
        self._query = query
        self._error: BaseException | None = None
        self._ended = surroundings.Event()
        self._jsq = SimpleNamespace(
            streamingQuery=lambda: SimpleNamespace(
                exception=lambda: SimpleNamespace(isEmpty=lambda: True),
                commitLog=lambda: SimpleNamespace(getLatestBatchId=self._newest),
            )
        )
        world.sim.spawn(process, self._run, function, name="query")

    @property
    def isActive(self) -> bool:  # noqa: N802 — Spark's name
        return not self._ended.is_set()

    def exception(self) -> BaseException | None:
        return self._error

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
        ended = bool(self._ended.wait(timeout))
        if self._error is not None:
            raise StreamingQueryException(f"{type(self._error).__name__}: {self._error}")
        return ended

    def _run(self, function: Callable[[Frame, int], None]) -> None:
        try:
            self._query.run(function)
        except Killed:
            raise
        except BaseException as error:  # noqa: BLE001 — whatever it is, it ends the query
            self._error = error
        self._ended.set()

    def _newest(self) -> Any:
        """Of the log of commits, as ``HDFSMetadataLog`` finds it: by listing a folder."""
        self._query.world.files.tree("").door("list", f"{self._query.checkpoint.root}/commits")
        commits = self._query.checkpoint.commits
        return SimpleNamespace(isEmpty=lambda: not commits, get=lambda: max(commits))


class LongOutage(World):
    """See the module.

    :param seconds: for which each of ``dependencies`` is away.
    """

    def __init__(
        self, sim: Sim, setting: Any, dependencies: Sequence[str], seconds: float
    ) -> None:
        self.away = ""
        self.starts_in: dict[str, int] = {}
        """Of each dependency: how often the query was started while it was away."""
        super().__init__(sim, setting)
        self._dependencies = dependencies
        self._seconds = seconds
        self._gave_up: BaseException | None = None

    def live(self) -> None:
        sim = self.sim
        sim.sleep(1.0)
        self._feed()
        self._begin_copy()
        self._until_caught_up("at first")
        for dependency in self._dependencies:
            before = len(self.starts)
            self._goes_away(dependency)
            self._feed()
            sim.sleep(self._seconds)
            self.starts_in[dependency] = len(self.starts) - before
            self._is_back(dependency)
            self._until_caught_up(f"after the {dependency} was away")
            sim.sleep(_WELL)
        self.source.exhausted = True
        self._wait(lambda: self.starts[-1].caught_up, "the supervisor does not return")
        self._end_all()
        self._stop_listening()

    def _feed(self) -> None:
        """Records come meanwhile. The source grows by itself, whether or not anybody can read
        it.
        """
        for number in range(_RECORDS):
            self.source._ends[number % self.source.partitions] += 1

    def _until_caught_up(self, when: str) -> None:
        checkpoint = self.checkpoint

        def caught_up() -> bool:
            newest = max(checkpoint.commits, default=-1)
            return newest >= 0 and checkpoint.offsets.get(newest) == self.source.ends()

        self._wait(caught_up, f"{when}: not all records are written")

    def _wait(self, holds: Callable[[], bool], why: str) -> None:
        deadline = self.sim.now + _BACK
        while not holds():
            assert self._gave_up is None, f"{why}: the supervisor gave up: {self._gave_up!r}"
            assert self.sim.now < deadline, (
                f"{why}, an hour later; the last error: {self.starts[-1].error!r}"
            )
            self.sim.sleep(1.0)

    def _goes_away(self, dependency: str) -> None:
        self.away = dependency
        if dependency == BROKERS:
            for node in self.cluster.node_ids:
                self.cluster.crash(node)
        elif dependency == DATABASE:
            self.database.crash(self._seconds)

    def _is_back(self, dependency: str) -> None:
        self.away = ""
        if dependency == BROKERS:
            for node in self.cluster.node_ids:
                self.cluster.restart(node)

    def judge(self) -> Iterable[str]:
        """What is written, and where. Whether an error had a reason the judge cannot know: these
        outages are not drawn by lot.
        """
        return [violation for violation in super().judge() if not violation.startswith("I11 ")]

    # ── the driver ──

    def _drive(self, process: Process, start: Start) -> None:
        first: list[Start] = [start]
        sinks: list[Any] = []

        def begin() -> Any:
            if first:
                begun = first.pop()
            else:
                self.starts[-1].over = True
                self.starts[-1].over_at = self.sim.now
                begun = self._started(process, Query(self, process, self.checkpoint, self.plan))
            if self.away == REGISTRY:
                raise RegistryUnreachable(
                    "the schema registry does not answer", next_step="see that it is up"
                )
            if not sinks:
                self.operator.define(begun.query.checkpoint)
                sinks.append(self.pipeline.sink(self))
            function = self.pipeline.function(self, sinks[0])

            def through_others(frame: Frame, batch_id: int) -> None:
                if self.away == REGISTRY:
                    raise RegistryUnreachable(
                        "the schema registry does not answer", next_step="see that it is up"
                    )
                if self.away == CATALOG:
                    raise TableMissing(
                        "the catalog knows no table", next_step="see that it is the right one"
                    )
                function(frame, batch_id)

            return Supervised(self, process, begun.query, through_others)

        try:
            ow.supervise(begin, ow.restart.FixedDelay())
            self.starts[-1].caught_up = True
        except Killed:
            raise
        except BaseException as error:  # noqa: BLE001 — that it gave up is what is looked for
            self._gave_up = self.starts[-1].error = error
        self.starts[-1].over = True


@contextmanager
def doors() -> Iterator[None]:
    """The ways to what may be away: while it is, nobody comes through."""

    def away() -> str:
        return str(getattr(current().world, "away", ""))

    def ends(source: Source, real: Any = Source.ends) -> Any:
        if away() == SOURCE and current().here is not current().outside:
            raise SourceAway(
                "Timeout of 60000ms expired before the position for partition source-0 could be "
                "determined"
            )
        return real(source)

    def submit(
        connections: Connections, request: Any, *others: Any, real: Any = Connections.submit
    ) -> Any:
        if away() != IDENTITY:
            return real(connections, request, *others)
        future = Future(current())
        refused = AuthenticationFailed(
            "the token endpoint does not answer", next_step="see to the identity provider"
        )
        current().after(0.01, future.settle, None, refused)
        return future

    def door(
        tree: Tree, what: str, path: str, *, writes: bool = False, real: Any = Tree.door
    ) -> Any:
        if current().here is not current().outside:
            of_ledger = path.startswith("/ledger")
            if (away() == LEDGER and of_ledger) or (away() == CHECKPOINT and not of_ledger):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(tree, what, path, writes=writes)

    def ask(server: Server, what: str, *others: Any, real: Any = Server.ask) -> Any:
        if away() == TARGET:
            current().sleep(5.0)
            raise ConnectionError("the target does not answer")
        return real(server, what, *others)

    with ExitStack() as stack:
        for owner, name, gate in (
            (Source, "ends", ends), (Connections, "submit", submit), (Tree, "door", door),
            (Server, "ask", ask),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(owner, name, gate))
        yield


def outage(
    seed: int, pipeline: str, dependencies: Sequence[str], seconds: float, **change: Any
) -> tuple[Outcome, LongOutage]:
    """The story of a seed without any other faults."""
    worlds: list[LongOutage] = []

    def build(sim: Sim, setting: Any) -> LongOutage:
        assembled.install()
        for kept in assembled._KEPT:
            kept.clear()
        worlds.append(LongOutage(sim, setting, dependencies, seconds))
        return worlds[0]

    with doors():
        found = simulate(seed, pipeline=pipeline, change=change, only=(), build=build)
    return found, worlds[0]
