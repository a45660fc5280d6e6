"""The shared broker as the benchmark knows it."""

from __future__ import annotations

import pytest

from benchmarks.local_broker import LocalBroker
from onceward_testing import LocalKafka


@pytest.fixture
def broker(kafka: LocalKafka) -> LocalBroker:
    """Where it is, and its JVM."""
    pid = kafka.nodes[0].pid
    assert pid is not None
    return LocalBroker(kafka.bootstrap_servers, pid)
