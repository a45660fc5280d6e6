"""Time, processes, chance: what everything else in the simulation stands on. Begin with
``scheduler``.
"""

from __future__ import annotations

from simulation.kernel.scheduler import Sim

_current: list[Sim] = []


def current() -> Sim:
    """The simulation that runs, for stand-ins of the product's modules: there is one at a time in
    an OS process.
    """
    return _current[-1]


def enter(sim: Sim) -> None:
    """``sim`` runs from now on."""
    _current.append(sim)


def leave() -> None:
    """The one that runs is over."""
    _current.pop()
