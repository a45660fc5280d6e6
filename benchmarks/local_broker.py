"""The one broker of a benchmark, with a heap that does not become what is measured. Called by
:mod:`__main__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onceward_testing import LocalKafka

_HEAP_MB = 1_024


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """Where it is, and the process of its JVM."""

    bootstrap_servers: str
    pid: int


@contextmanager
def local_broker(version: str) -> Iterator[LocalBroker]:
    """One node of Kafka ``version``, for a ``with`` block."""
    with LocalKafka(1, version, heap_mb=_HEAP_MB) as kafka:
        pid = kafka.nodes[0].pid
        assert pid is not None  # noqa: S101 — it serves
        yield LocalBroker(kafka.bootstrap_servers, pid)
