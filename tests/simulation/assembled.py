"""The product in its simulated world, put together from the parts: what ``run.simulate`` builds for a seed."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onceward import events
from onceward.engine import runs
from onceward.sources import kafka_clusters
from onceward.wire import client
from simulation import coverage, swarm
from simulation import world as world_package
from simulation.judge import judge
from simulation.kernel.scheduler import Sim
from simulation.spark import stand_ins, world
from simulation.steps import Steps
from simulation.swarm import Setting
from simulation.world.files import Files
from simulation.world.kafka.cluster import Cluster

_FIELDS = frozenset(world.Setting._fields)
_LAGS = {"markers": 2.0, "replicate": 0.5, "verify": 0.5, "session": 9_000.0, "elect": 200.0, "load": 50.0,
         "metadata": 5.0, "catch up": 500.0, "expire": 10_000.0}  # fmt: skip
"""Milliseconds at most, on a good day."""
_PLANS: Mapping[str, Mapping[str, bool]] = {
    "narrow": {},
    "shuffle": {"shuffle": True},
    "shuffle by chance": {"shuffle": True, "by_chance": True},
    "count": {"shuffle": True, "stateful": True},
}

# What the product keeps in a process from one run to the next. The simulated processes share it, by keys of their own.
_KEPT = (runs._open, runs._memories, runs._homes, client._shared, kafka_clusters._known)

log = logging.getLogger("onceward")


class Around:
    """What the cluster asks for, of one story."""

    __slots__ = ("_random", "_sim", "fires", "is_on")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._random = sim.lots.time.random
        self.fires = sim.lots.fires
        self.is_on = sim.lots.is_on

    def now_ms(self) -> int:
        return int((1_700_000_000.0 + self._sim.now) * 1000)

    def later(self, delay_ms: float, action: Callable[[], None], what: str) -> None:
        self._sim.after(delay_ms / 1000, action)

    def lag(self, what: str) -> float:
        lag = _LAGS[what] * self._random()
        return lag * 100 if self.fires(f"lag:{what}") else lag


class Product:
    """As :class:`simulation.run.World` asks for it."""

    def __init__(self, sim: Sim, setting: Setting) -> None:
        install()
        for kept in _KEPT:
            kept.clear()
        plain = world_setting(setting)
        cluster = Cluster(Around(sim), brokers=plain.brokers, transaction_version=plain.transaction_version)
        self._world = world.World(sim, plain, cluster, Files(sim), swarm.pipelines()[setting.pipeline]())
        self._sim = sim
        self._steps = Steps(sim)
        # That of the steps comes first: whatever happens at the end of a step is still in it.
        self._ends = [events.probe(self._world.probe), events.probe(self._steps)]
        if sim.tell is not None:
            self._ends.append(_told(sim))

    def step(self) -> str:
        return self._steps.innermost()

    def live(self) -> None:
        self._world.pipeline.set_up(self._world)
        self._world.operate()

    def committed(self) -> int:
        return self._world.events.get("batches", 0)

    def judge(self) -> Iterable[str]:
        return [*map(str, judge(self._world)), *self._world.pipeline.judge(self._world)]

    def stops(self) -> Iterable[str]:
        return [type(start.error).__name__ for start in self._world.starts if start.error is not None]

    def met(self) -> Iterable[tuple[str, ...]]:
        return [("story", name) for name in self._world.events]

    def end(self) -> None:
        for end in self._ends:
            end()


def world_setting(setting: Setting) -> world.Setting:
    """The drawn values by the names of the world's; what only the pipeline's own module knows is ``more``."""
    values = {**setting.options, **_PLANS[setting.options["plan"]]}
    return world.Setting(
        seed=setting.seed,
        pipeline=setting.pipeline,
        records=setting.batches * setting.options["most_offsets"],
        odds=tuple(setting.odds.items()),
        more=tuple((name, value) for name, value in values.items() if name not in _FIELDS),
        **{name: value for name, value in values.items() if name in _FIELDS},
    )


_replaced: list[tuple[Any, str, Any]] = []


def install() -> None:
    """What stands in for the world's parts is put where it belongs, in this OS process; once is enough."""
    if _replaced:
        return
    stand_ins.put()
    for module in _modules_with_stand_ins():
        for owner, name, value in module.STAND_INS:
            place = importlib.import_module(owner)
            _replaced.append((place, name, getattr(place, name)))
            setattr(place, name, value)
    coverage.install()
    log.setLevel(logging.CRITICAL)


def uninstall() -> None:
    """The product's own again, for whoever else is at work in this OS process."""
    if not _replaced:
        return
    for place, name, value in reversed(_replaced):
        setattr(place, name, value)
    _replaced.clear()
    stand_ins.take_away()
    coverage.uninstall()
    log.setLevel(logging.NOTSET)


def _modules_with_stand_ins() -> list[Any]:
    names = [name for _, name, _ in pkgutil.walk_packages(world_package.__path__, "simulation.world.")]
    found = [importlib.import_module(name) for name in sorted(names) if name.endswith(".stand_ins")]
    return [module for module in found if hasattr(module, "STAND_INS")]


def _told(sim: Sim) -> Callable[[], None]:
    """The product's own words in the timeline. Returns how to end that."""
    handler = _Told(sim)
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    def end() -> None:
        log.removeHandler(handler)
        log.setLevel(logging.CRITICAL)

    return end


class _Told(logging.Handler):
    def __init__(self, sim: Sim) -> None:
        super().__init__()
        self._sim = sim

    def emit(self, record: logging.LogRecord) -> None:
        if self._sim.tell is not None:
            self._sim.tell(self._sim.now, self._sim.here.name, f"“{record.getMessage()}”")
