"""A small world for tests of the tools: a client counts at a server, over a network that loses
answers.

Each of the client's processes asks, in turn, for so many increments; who gets no answer asks
again, and the server knows by a number whether it has had that request. ``planted`` takes away one
of the precautions:

* ``"forgets"``: a server that restarts forgets which requests it has had. One request is counted
  twice when its answer is lost and the server restarts before it is asked again.
* ``"two clients"``: numbers begin anew with each client, which the server does not know. The first
  requests of a second client are lost.
* ``"hangs"``: whoever has lost two answers in a row waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceward import events
from simulation.kernel.scheduler import Process, Sim
from simulation.swarm import Setting

FAULTS = {
    "toy:answer lost": "the server has counted, and its answer is lost",
    "toy:server restarts": "the server dies and comes back at once",
    "toy:client dies": "the client is killed, and another one goes on",
    "toy:slow": "a request takes a second longer",
}
OPTIONS = {
    "clients": (1, 2, 3),
    "increments": (1, 2, 3, 5),
    "decoration": ("none", "some", "much"),
}
BATCHES = 30


class Toy:
    """The pipeline, as far as a seed is concerned."""

    kind = "toy"
    faults = ("toy:",)
    steps = ("send", "commit")


class Counters:
    """The world."""

    def __init__(self, sim: Sim, setting: Setting, planted: str = "") -> None:
        self.sim = sim
        self.setting = setting
        self.planted = planted
        self.count = 0
        self._had: set[tuple[Any, ...]] = set()
        self._asked = 0
        self._clients = 0
        self._batch = 0

    def live(self) -> None:
        waiting = self.setting.clients
        while waiting:
            self._batch, done = 0, False
            while not done:
                self._clients += 1
                client = self.sim.process(f"client-{self._clients}")
                task = self.sim.spawn(client, self._client, client, name="work")
                while not task.done and client.alive:
                    self.sim.sleep(0.1)
                done = self._batch >= self.setting.batches
            waiting -= 1

    def _client(self, client: Process) -> None:
        lots = self.sim.lots
        while self._batch < self.setting.batches:
            with events.step("send"):
                for number in range(self.setting.increments):
                    self._ask(client, number)
                    if lots.fires("toy:client dies"):
                        # What it has asked for is counted, and the next one goes on behind it.
                        self._asked += number + 1
                        self._batch += 1
                        self.sim.kill(client)
            with events.step("commit"):
                self._asked += self.setting.increments
                self._batch += 1
            self._tell(client.name, f"batch {self._batch} is done, {self._asked} asked for")

    def _ask(self, client: Process, number: int) -> None:
        lots = self.sim.lots
        request = (
            (self._batch, number)
            if self.planted == "two clients"
            else (client.name, self._batch, number)
        )
        lost = 0
        while True:
            self.sim.sleep(0.001 + lots.time.random() * 0.001)
            if lots.fires("toy:slow"):
                self.sim.sleep(lots.below("toy:slow", 1000) / 1000)
            if request not in self._had:
                self._had.add(request)
                self.count += 1
            if lots.fires("toy:server restarts"):
                self._tell("server", "⚡ restarts")
                if self.planted == "forgets":
                    self._had.clear()
            if not lots.fires("toy:answer lost"):
                return
            self._tell("server", f"⚡ its answer to request {number} of {client.name} is lost")
            lost += 1
            if self.planted == "hangs" and lost == 2:
                self.sim.park()

    def _tell(self, who: str, what: str) -> None:
        if self.sim.tell is not None:
            self.sim.tell(self.sim.now, who, what)

    def committed(self) -> int:
        return self._batch

    def judge(self) -> Iterable[str]:
        if self.count < self._asked:
            yield f"I1 no loss: {self._asked} were asked for, {self.count} are counted"
        if self.count > self._asked:
            yield f"I2 no duplicate: {self._asked} were asked for, {self.count} are counted"

    def stops(self) -> Iterable[str]:
        return ()

    def met(self) -> Iterable[tuple[str, ...]]:
        return ()
