"""The product in its simulated world: what ``run.simulate`` builds for a seed, and what that does
to the OS process.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from typing import Any

from onceward.engine.calls import runs
from onceward.kafka.source import identity as kafka_identity
from onceward.kafka.wire import client
from simulation import coverage, words
from simulation import world as parts
from simulation.kernel.scheduler import Sim
from simulation.spark import stand_ins
from simulation.spark.world import World
from simulation.swarm import Setting

# What the product keeps in a process from one run to the next. Simulated processes share it, by
# keys of their own.
_KEPT: tuple[Any, ...] = (
    runs._open,
    runs._memories,
    runs._chains,
    runs._known,
    client._shared,
    kafka_identity._known,
)

log = logging.getLogger("onceward")
_replaced: list[tuple[Any, str, Any]] = []


def build(sim: Sim, setting: Setting) -> World:
    """The world of that setting, with nothing of an earlier one in it."""
    install()
    for kept in _KEPT:
        kept.clear()
    world = World(sim, setting)
    if sim.tell is not None:
        words.listen(world)
    return world


def install() -> None:
    """What stands in for the world's parts is put where it belongs, in this OS process; once is
    enough.
    """
    if _replaced:
        return
    _replaced.append((coverage, "_plain", coverage._plain))
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
    for kept in _KEPT:
        kept.clear()
    stand_ins.take_away()
    coverage.uninstall()
    log.setLevel(logging.NOTSET)


def _modules_with_stand_ins() -> list[Any]:
    """Those of the parts of the world that are no servers: the lists named ``STAND_INS`` there."""
    names = [name for _, name, _ in pkgutil.walk_packages(parts.__path__, "simulation.world.")]
    found = [
        importlib.import_module(name) for name in sorted(names) if name.endswith(".stand_ins")
    ]
    return [module for module in found if hasattr(module, "STAND_INS")]
