"""Somebody who takes chunks of rows, one after the other, and has no transactions: a queue, an
address for mail.

He remembers all that came, and ignores a key that he knows if he is one who looks at keys: whoever
judges may look at it either way.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from onceward.errors import DeliveryRefused
from simulation.kernel import current
from simulation.kernel.scheduler import Sim
from simulation.world.targets.calls import Server, Unanswered, faults_of

FAULTS = {
    **faults_of("target", "the target"),
    "target:refuses": "the target says that it will never take a chunk",
    "target:answers": "the function that delivers returns an answer with an error in it, instead "
    "of raising",
}

_A_WHILE = 1.5  # the product says: a second


class Arrival(NamedTuple):
    """A chunk came. ``told``: whoever sent it was told so."""

    at: float
    key: str
    order: tuple[int, int]
    attempt: str
    rows: list[Any]


class Receiver:
    """See the module."""

    __slots__ = ("_server", "_sim", "arrivals", "outlived", "untold")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._server = Server(sim, "target")
        self.arrivals: list[Arrival] = []
        self.untold = 0
        """Chunks that came, or will, and whose sender was told that they had not: he has to send
        them again.
        """
        self.outlived: dict[int, int] = {}
        """Of starts: how often each has begun to deliver when a newer one had opened a while
        ago.
        """

    def take(self, chunk: Any) -> Any:
        self._who_is_there()
        lots = self._sim.lots
        if lots.fires("target:refuses"):
            raise DeliveryRefused("the target does not want it", next_step="")
        if lots.fires("target:answers"):
            return SimpleNamespace(status=500)
        try:
            return self._server.ask("take a chunk", self._take, chunk)
        except Unanswered as unanswered:
            self.untold += unanswered.carried_out
            raise

    def _who_is_there(self) -> None:
        sim = self._sim
        starts = [start for start in sim.world.starts if start.opened_at >= 0]
        ours = [start for start in starts if start.process is sim.here]
        if ours and starts[-1].process is not sim.here:
            # One that began to open before we had opened may have come first, and stood still
            # since.
            newer = (start.opened_at for start in starts if start.opening_at >= ours[-1].opened_at)
            if any(opened < sim.now - _A_WHILE for opened in newer):
                number = ours[-1].number
                self.outlived[number] = self.outlived.get(number, 0) + 1

    def _take(self, chunk: Any) -> None:
        order = chunk.sequence, chunk.first_row
        self.arrivals.append(
            Arrival(self._sim.now, chunk.key, order, chunk.attempt, list(chunk.rows))
        )


class Deliver:
    """What a user hands to the sink."""

    __slots__ = ("_before",)

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def __call__(self, chunk: Any) -> Any:
        self._before()
        return current().world.receiver.take(chunk)

    def close(self) -> None:
        """Connections."""
        current().alive()
