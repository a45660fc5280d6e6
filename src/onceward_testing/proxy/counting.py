"""How many requests went through to the brokers, by name, client id and node."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from onceward_testing.proxy.frames import RequestHead

_Key = tuple[str, str, int]


@dataclass(frozen=True)
class Mark:
    """A moment, made by :meth:`KafkaProxy.mark`."""

    passed: Counter[_Key]


class Counts:
    """Thread safe: the proxy's thread counts, the test's asks."""

    def __init__(self) -> None:
        self._passed: Counter[_Key] = Counter()
        self._lock = threading.Lock()

    def add(self, node: int, head: RequestHead) -> None:
        with self._lock:
            self._passed[head.api, head.client_id, node] += 1

    def mark(self) -> Mark:
        with self._lock:
            return Mark(self._passed.copy())

    def since(self, mark: Mark | None) -> Passed:
        passed = self.mark().passed
        if mark is not None:
            passed -= mark.passed
        return Passed(passed)


class Passed:
    """The requests that were passed on to brokers between two moments. A duplicated request counts
    once.
    """

    def __init__(self, passed: Counter[_Key]) -> None:
        self._passed = passed

    def count(self, api: str, *, client_id: str | None = None, node: int | None = None) -> int:
        """How many of them are ``api`` (``"Produce"``), of clients whose id matches (``*``,
        ``?``), to ``node``.
        """
        return sum(
            times
            for (name, client, to), times in self._passed.items()
            if name == api
            and (client_id is None or fnmatchcase(client, client_id))
            and node in (None, to)
        )

    def client_ids(self, api: str) -> frozenset[str]:
        """Who asked for ``api``."""
        return frozenset(client for name, client, _ in self._passed if name == api)
