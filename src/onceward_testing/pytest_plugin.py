"""The pytest plugin: a real Kafka and a real Redis for anybody's tests, started when the first
test asks for them.

pytest loads this module by itself wherever Onceward is installed, so it imports nothing heavy at
the top. In a test::

    def test_my_pipeline(local_kafka):
        run_my_pipeline(local_kafka.bootstrap_servers)

One broker serves the whole run: give each test topics of its own. What it is started with is the
fixture ``local_kafka_settings``; override it in a ``conftest.py`` with any arguments of
:class:`~onceward_testing.local_kafka.LocalKafka`::

    @pytest.fixture(scope="session")
    def local_kafka_settings():
        return {"nodes": 3, "version": "3.9.1"}

A test that kills brokers wants a cluster of its own: ``with LocalKafka(nodes=3) as kafka: ...``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onceward_testing.local_kafka import LocalKafka
    from onceward_testing.local_redis import LocalRedis


@pytest.fixture(scope="session")
def local_kafka_settings() -> dict[str, Any]:
    """Arguments for the broker behind ``local_kafka``: one node of the newest tested version,
    unless overridden."""
    return {}


@pytest.fixture(scope="session")
def local_kafka(local_kafka_settings: dict[str, Any]) -> Iterator[LocalKafka]:
    """A running :class:`~onceward_testing.local_kafka.LocalKafka` for the whole test run."""
    from onceward_testing.local_kafka import LocalKafka

    with LocalKafka(**local_kafka_settings) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def local_redis() -> Iterator[LocalRedis]:
    """A running :class:`~onceward_testing.local_redis.LocalRedis` for the whole run: give each
    test its own prefix."""
    from onceward_testing.local_redis import LocalRedis

    with LocalRedis() as redis:
        yield redis
