"""A node, and what is unanswered at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.world.kafka.around import Surroundings


class Broker:
    """One node."""

    __slots__ = (
        "fenced",
        "held",
        "isolated",
        "life",
        "next_producer",
        "node",
        "producers_end",
        "up",
    )

    def __init__(self, node: int) -> None:
        self.node = node
        self.up = True
        self.isolated = False
        self.fenced = False
        self.life = 0
        """How often it has come or gone."""
        self.held: dict[Held, None] = {}
        self.next_producer = self.producers_end = 0

    @property
    def well(self) -> bool:
        return self.up and not self.isolated


class Health:
    """What all partitions ask all the time. ``quick``: nothing but a follower's fetch, at once,
    lies between an append and its acknowledgement; ``well``: every node is; ``told``: what
    metadata have said, until anything changes.
    """

    __slots__ = ("lags", "told", "well")

    def __init__(self, around: Surroundings) -> None:
        self.well = True
        self.told: dict[str, Any] = {}
        self.lags = around.is_on("lag:replicate") or around.is_on("kafka:follower lags")


class Held:
    """A request whose answer takes a while. Its connection breaks when the broker dies."""

    __slots__ = ("broker", "reply")

    def __init__(self, broker: Broker, reply: Callable[[Any], None]) -> None:
        self.broker: Broker | None = broker
        self.reply = reply
        broker.held[self] = None

    def __call__(self, answer: Any) -> None:
        broker = self.broker
        if broker is not None:
            self.broker = None
            del broker.held[self]
            self.reply(answer)
