"""A world with nothing in it but files: for tests of one part of the simulation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from simulation.kernel import enter, leave, threads
from simulation.kernel.lots import Lots
from simulation.kernel.scheduler import Sim


@contextmanager
def world(seed: int, odds: Mapping[str, float] | None = None, tell: Any = None) -> Iterator[Sim]:
    """The simulation of one seed, which is the surroundings until it is left."""
    sim = Sim(Lots(seed, odds or {}), tell)
    sim.world = SimpleNamespace(sim=sim, lots=sim.lots)
    threads.install(sim)
    enter(sim)
    try:
        yield sim
    finally:
        sim.bury_all()
        leave()
        threads.uninstall()


@contextmanager
def standing_in(stand_ins: list[tuple[str, str, Any]]) -> Iterator[None]:
    """The names of the product's modules mean what the simulation says, until this is left."""
    owners = [importlib.import_module(module) for module, _, _ in stand_ins]
    before = [
        (owner, name, getattr(owner, name))
        for owner, (_, name, _) in zip(owners, stand_ins, strict=True)
    ]
    for owner, (_, name, value) in zip(owners, stand_ins, strict=True):
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def run_to_the_end(sim: Sim, *stories: Callable[[], None]) -> None:
    """Each of ``stories`` is a thread of nobody's process; when all have ended, the simulation
    has.
    """
    left = [len(stories)]

    def told(story: Callable[[], None]) -> None:
        story()
        left[0] -= 1
        if not left[0]:
            sim.stop()

    for story in stories:
        sim.spawn(sim.outside, told, story)
    sim.run()
