"""What the simulated cluster asks of the world: time, and chance."""

from __future__ import annotations

from collections.abc import Callable

from simulation.kernel.scheduler import Sim

_LAGS = {
    "replicate": (0.2, 2.0),
    "verify": (0.1, 0.5),
    "markers": (0.5, 8.0),
    "session": (1_000.0, 9_000.0),
    "elect": (50.0, 500.0),
    "load": (5.0, 200.0),
    "metadata": (1.0, 50.0),
    "catch up": (100.0, 2_000.0),
    "expire": (500.0, 10_000.0),
    "offsets": (0.0, 100.0),
}
"""How long the steps of a cluster take, in milliseconds: at least, and at most."""


class Around:
    """As ``simulation.world.kafka.around.Surroundings`` wants it."""

    def __init__(self, sim: Sim, lags: bool) -> None:
        self._at_once = frozenset() if lags else frozenset({"replicate", "verify"})
        self._sim = sim
        self._random = sim.lots.time.random
        self.fires = sim.lots.fires

    def is_on(self, fault: str) -> bool:
        if fault.startswith("lag:"):
            return fault.removeprefix("lag:") not in self._at_once
        return self._sim.lots.is_on(fault)

    def now_ms(self) -> int:
        return int(1_700_000_000_000 + self._sim.now * 1000)

    def later(self, delay_ms: float, action: Callable[[], None], what: str) -> None:
        self._sim.after(delay_ms / 1000, action)

    def lag(self, what: str) -> float:
        if what in self._at_once:
            return 0.0
        least, most = _LAGS[what]
        return least + (most - least) * self._random()
