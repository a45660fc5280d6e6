"""A call to a server somewhere: what befalls it on its way, and what may happen when nobody waits
any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from simulation.kernel.scheduler import Sim

Answer = TypeVar("Answer")

_LATENCY = 0.001
_SLOW, _LATE, _DOWN = 20.0, 90.0, 40.0


def faults_of(name: str, what: str) -> dict[str, str]:
    """Of a server: the kinds that :class:`Server` asks for."""
    return {
        f"{name}:request lost": f"{what} is not reached",
        f"{name}:answer lost": f"{what} does what it is asked, and its answer is lost",
        f"{name}:late": f"{what} gets a request when its sender has long given up: up to a minute "
        f"and a half late",
        f"{name}:slow": f"{what} takes seconds",
        f"{name}:down": f"{what} is away for up to {_DOWN:.0f} seconds",
        f"{name}:caller dies": f"whoever asks {what} dies with the question, or the answer, on "
        f"its way",
    }


class Unanswered(ConnectionError):
    """A call failed, and whether it was carried out the caller cannot know. ``carried_out``: it
    was, or will be.
    """

    def __init__(self, what: str, carried_out: bool) -> None:
        super().__init__(what)
        self.carried_out = carried_out


class Server:
    """See the module. A server has one thread: what it is asked happens at one moment."""

    __slots__ = (
        "_answer_lost",
        "_dies",
        "_down",
        "_down_until",
        "_late",
        "_name",
        "_request_lost",
        "_sim",
        "_slow",
    )

    def __init__(self, sim: Sim, name: str) -> None:
        self._sim = sim
        self._name = name
        self._down_until = 0.0
        self._request_lost, self._answer_lost = f"{name}:request lost", f"{name}:answer lost"
        self._late, self._slow, self._down = f"{name}:late", f"{name}:slow", f"{name}:down"
        self._dies = f"{name}:caller dies"

    def ask(self, what: str, action: Callable[..., Answer], *args: Any) -> Answer:
        """Call ``action`` there. :raises Unanswered: no answer."""
        sim, lots = self._sim, self._sim.lots
        sim.alive()
        if lots.fires(self._down):
            self._down_until = sim.now + lots.below(self._down, 1000) / 1000 * _DOWN
            self._say("is away", what)
        if sim.now < self._down_until and not lots.calm:
            sim.sleep(_LATENCY)
            raise Unanswered(f"the {self._name} is away", False)
        if lots.fires(self._request_lost):
            self._say("is not reached", what)
            sim.sleep(_LATENCY)
            raise Unanswered(f"the {self._name} was not reached", False)
        if lots.fires(self._late):
            late = lots.below(self._late, 1000) / 1000 * _LATE
            self._say(f"will hear of it in {late:.1f} s", what)
            sim.after(late, _quietly, action, args)
            sim.sleep(_LATENCY)
            raise Unanswered(f"the {self._name} did not answer in time", True)
        if lots.fires(self._dies):
            carried_out = lots.below(self._dies, 2)
            if carried_out:
                _quietly(action, args)
            sim.kill(
                sim.here,
                f"asking the {self._name} to {what}"
                + (", which it has done" if carried_out else ""),
            )
        seconds = _LATENCY * lots.time.random()
        if lots.fires(self._slow):
            seconds = lots.below(self._slow, 1000) / 1000 * _SLOW
            self._say(f"takes {seconds:.1f} s", what)
        sim.sleep(seconds)
        answer = action(*args)
        if lots.fires(self._answer_lost):
            self._say("has done it, and its answer is lost", what)
            raise Unanswered(f"the {self._name} did not answer", True)
        return answer

    def _say(self, how: str, what: str) -> None:
        if self._sim.tell is not None:
            self._sim.tell(
                self._sim.now, self._sim.here.name, f"⚡ the {self._name}, asked to {what}, {how}"
            )


def _quietly(action: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with suppress(Exception):  # nobody hears of it
        action(*args)
