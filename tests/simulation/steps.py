"""In which step of the engine the newest driver is: asked when a fault happens, for the coverage
and for aims.
"""

from __future__ import annotations

from onceward.events import Event
from simulation.kernel.scheduler import Process, Sim

BETWEEN = "between"
"""Between two steps: Spark is at its logs, notes are written beside the checkpoint, the user's
function is at work.
"""


class Steps:
    """Hears of every step of every process. Steps may be nested, and those of leases overlap."""

    __slots__ = ("_open", "_sim")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._open: dict[Process, list[str]] = {}

    def __call__(self, event: Event) -> None:
        """A probe of :mod:`onceward.events`."""
        process = self._sim.here
        steps = self._open.get(process)
        if steps is None:
            steps = self._open[process] = []
        step = event.step
        if event.phase == "started":
            steps.append(step)
        elif step in steps:
            del steps[len(steps) - 1 - steps[::-1].index(step)]

    def innermost(self) -> str:
        """Of the newest process that had any step and is alive; "" where there is none."""
        for process in reversed(self._open):
            if process.alive:
                steps = self._open[process]
                return steps[-1] if steps else BETWEEN
        return ""
