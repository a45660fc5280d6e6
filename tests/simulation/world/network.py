"""Connections to the simulated cluster, in the place of ``kafka.wire.connections.Connections``;
and what befalls them.

One connection is first in, first out, and a broker works on one request of a connection at a time
(``SocketServer.Processor``: the channel is muted until the response is sent). A request that times
out takes its connection with it, and what was on its way may still arrive: much later, after what
is asked anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from onceward.kafka.wire.connections import ConnectionLost
from simulation.kernel.scheduler import Process, Sim
from simulation.kernel.threads import Future

FAULTS = {
    "net:request lost": "a request is lost, and its connection with it: a reset, or a cable that "
    "is pulled",
    "net:answer lost": "a request is carried out, and its answer is lost with the connection",
    "net:held": "a request arrives when its sender has long given it up, and has asked anew: up "
    "to two minutes late",
    "net:slow": "a request, or its answer, takes seconds",
    "net:black hole": "neither request nor answer arrives, and nobody says so until the time is "
    "out",
}
_LATENCY = 0.0004
_SLOW, _HELD = 8.0, 120.0
_REFUSED = 0.002


class Connections:
    """The sockets of one client in one process."""

    def __init__(self, sim: Sim, settings: Any) -> None:
        self._sim = sim
        self._world = sim.world
        self._process: Process = sim.here
        self._settings = settings
        self._client = f"{settings.client_id}@{self._process.name}"
        self._links: dict[int, _Link] = {}
        self._known: list[int] = []
        nodes = list(sim.world.cluster.node_ids)
        first = int(sim.lots.time.random() * len(nodes))
        self._turn = int(sim.lots.time.random() * len(nodes))
        cut_off = [
            place for place, node in enumerate(nodes) if sim.world.cluster.brokers[node].isolated
        ]
        if cut_off and sim.lots.time.random() < 0.5:
            first = self._turn = cut_off[0]
        self._bootstrap = [f"bootstrap-{node}" for node in nodes[first:] + nodes[:first]]
        self._closed = False
        self._process.on_death.append(self._break_all)

    def nodes(self) -> Sequence[int | str]:
        """Those that are connected first. Where to begin is chance: with bootstrap servers by
        ``kafka.cluster.collect_hosts``. kafka-python has known brokers in the order of the answer,
        which is that of their ids; a broker that is cut off would be asked on only where it has
        the lowest.
        """
        links = self._links
        known = sorted(self._known, key=lambda node: node not in links or links[node].broken)
        return [*known, *self._bootstrap]

    def addresses(self) -> frozenset[str]:
        return frozenset(f"broker-{node}:9092" for node in self._known)

    def learn_brokers(self, metadata: Any) -> None:
        known = [broker.node_id for broker in metadata.brokers]
        turn = self._turn
        self._known = known[turn:] + known[:turn]

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        """Brokers stay where they are."""
        if node_id not in self._known:
            self._known.append(node_id)

    def start_anew(self) -> None:
        """No thread is stuck here."""

    def submit(self, request: Any, node_id: int | str, timeout_ms: float) -> Future:
        sim = self._sim
        sim.alive()
        node = int(node_id.rpartition("-")[2]) if isinstance(node_id, str) else node_id
        future = Future(sim)
        if self._closed or not self._world.reachable(node):
            sim.after(
                _REFUSED, future.settle, None, ConnectionLost(f"broker {node} cannot be reached")
            )
            return future
        link = self._links.get(node)
        if link is None or link.broken:
            link = self._links[node] = _Link(sim, self._world, self._client, node)
        link.send(request, future, timeout_ms / 1000)
        return future

    def close(self) -> None:
        self._closed = True
        self._break_all()

    def _break_all(self) -> None:
        for link in self._links.values():
            link.break_off("the connection was closed")
        self._links.clear()


class _Link:
    """One connection to one broker."""

    __slots__ = (
        "_arrives",
        "_at_work",
        "_client",
        "_clock_runs",
        "_node",
        "_sim",
        "_unanswered",
        "_waiting",
        "_world",
        "broken",
    )

    def __init__(self, sim: Sim, world: Any, client: str, node: int) -> None:
        self._sim = sim
        self._world = world
        self._client = client
        self._node = node
        self._arrives = 0.0
        self._waiting: deque[tuple[Any, Future | None]] = deque()
        self._at_work = False
        self._unanswered: dict[Future, tuple[float, Any]] = {}
        """Until when each is waited for, and what it asks."""
        self._clock_runs = False
        self.broken = False

    def send(self, request: Any, future: Future, timeout: float) -> None:
        sim, lots = self._sim, self._sim.lots
        self._unanswered[future] = sim.now + timeout, request
        if not self._clock_runs:
            self._clock_runs = True
            sim.after(timeout, self._look_at_the_clock)
        at = sim.now + _LATENCY * (0.5 + lots.time.random())
        if lots.fires("net:request lost"):
            self._tell(request, "lost, with its connection")
            sim.after(_LATENCY, self.break_off, "reset by peer")
            return
        if lots.fires("net:black hole"):
            self._tell(request, "vanishes")
            return
        if lots.fires("net:held"):
            late = 1.0 + lots.below("net:held", 1000) / 1000 * _HELD
            self._tell(request, f"held for {late:.1f} s")
            sim.after(
                late, self._world.cluster_receives, self._node, self._client, request, _nobody
            )
            if lots.below("net:held", 2):
                sim.after(_LATENCY, self.break_off, "reset by peer")
            return
        if lots.fires("net:slow"):
            late = lots.below("net:slow", 1000) / 1000 * _SLOW
            self._tell(request, f"takes {late:.1f} s")
            at += late
        answered: Future | None = future
        if lots.fires("net:answer lost"):
            self._tell(request, "its answer will be lost")
            answered = None
        self._arrives = at = max(self._arrives, at)
        sim.after(at - sim.now, self._arrived, request, answered)

    def _arrived(self, request: Any, future: Future | None) -> None:
        self._waiting.append((request, future))
        if not self._at_work:
            self._work()

    def _work(self) -> None:
        """The broker takes the next request of this connection. What has arrived is carried out,
        broken or not.
        """
        request, future = self._waiting.popleft()
        self._at_work = True

        def reply(answer: Any) -> None:
            self._at_work = False
            if answer is None:
                self.break_off("the broker closed the connection")
            elif future is None:
                self.break_off("reset by peer")
            elif not self.broken:
                self._sim.after(
                    _LATENCY * (0.5 + self._sim.lots.time.random()), self._answered, future, answer
                )
            if self._waiting and not self._at_work:
                self._work()

        if not self._world.reachable(self._node):
            self._waiting.clear()
            self._at_work = False
            self.break_off("the broker is gone")
            return
        self._world.cluster_receives(self._node, self._client, request, reply)

    def _answered(self, future: Future, answer: Any) -> None:
        if self._unanswered.pop(future, None) is not None:
            future.settle(answer)

    def _look_at_the_clock(self) -> None:
        """One look for all that is unanswered: most requests are answered long before."""
        if self.broken or not self._unanswered:
            self._clock_runs = False
            return
        due, request = min(self._unanswered.values(), key=_due)
        if due <= self._sim.now:
            self._tell(request, "has timed out")
            self.break_off("timed out")
        else:
            self._sim.after(due - self._sim.now, self._look_at_the_clock)

    def break_off(self, why: str) -> None:
        if self.broken:
            return
        self.broken = True
        unanswered, self._unanswered = self._unanswered, {}
        for future in unanswered:
            future.settle(None, ConnectionLost(f"broker {self._node}: {why}"))

    def _tell(self, request: Any, what: str) -> None:
        if self._sim.tell is not None:
            name = type(request).__name__.removesuffix("Request")
            self._sim.tell(
                self._sim.now, self._client, f"⚡ {name} to broker {self._node}: {what}"
            )


def _due(unanswered: tuple[float, Any]) -> float:
    return unanswered[0]


def _nobody(answer: Any) -> None:
    """Whoever asked is not there any more."""
