"""What every word of a conversation stands on: asking a side, patiently, and writing down what it
says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from onceward.ids import ProducerIdentity

PASSING = {3, 5, 6, 13, 14, 15, 16, 72, 75, 78}
"""Codes that a cluster answers with for a moment after topics, leaders and coordinators have come
or gone.
"""
SETTLED = ("Empty", "CompleteCommit", "CompleteAbort")
NOBODY = ProducerIdentity(-1, -1)
TIMEOUT_MS = 60_000

Fact = list[Any]


class Side(Protocol):
    """Who answers."""

    version: str
    transaction_version: int
    nodes: int

    def ask(self, request: Any, where: tuple[str, Any]) -> Any:
        """The answer of the ``("coordinator", id)``, ``("group", name)``, ``("leader", (topic,
        partition))``, ``("node", number)`` or ``("any", None)``; None: the connection broke.
        """

    def now_ms(self) -> int: ...

    def pause(self, ms: float) -> None:
        """Let time pass, about as much."""

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None: ...
    def delete_topic(self, name: str) -> None: ...
    def delete_records(self, topic: str, partition: int, before: int) -> None: ...
    def known_leader(self, topic: str, partition: int) -> int: ...
    def stop_node(self, node: int) -> None: ...
    def start_node(self, node: int) -> None: ...
    def wait_for_isr(self, topic: str, partition: int, count: int) -> None: ...
    def coordinator_of(self, kind: str, key: str) -> int: ...


class Asking:
    """What is said goes to :attr:`facts`, one list of plain values an answer."""

    def __init__(self, side: Side, name: str, unique: str) -> None:
        self.side = side
        self.facts: list[Fact] = []
        self._prefix = f"{name}-{unique}-"
        self._producers: dict[int, str] = {-1: "nobody"}

    # ── names ──

    def real(self, name: str) -> str:
        """A topic's, group's or transactional id's name as the cluster has it."""
        return self._prefix + name

    def producer(self, producer_id: int) -> str:
        return self._producers.setdefault(producer_id, f"P{len(self._producers) - 1}")

    def say(self, *fact: Any) -> None:
        self.facts.append(list(fact))

    def _ask(
        self,
        request: Any,
        where: tuple[str, Any],
        codes: Callable[[Any], Sequence[int]],
        passing: Collection[int] = frozenset(PASSING),
    ) -> Any:
        """Ask until the answer is one to write down."""
        answer = None
        for _ in range(400):
            answer = self.side.ask(request, where)
            if answer is not None and not any(code in passing for code in codes(answer)):
                return answer
            self.side.pause(50)
        assert answer is not None, f"{request} is never answered"
        return answer
