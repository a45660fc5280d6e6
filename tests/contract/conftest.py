"""One kit per target and version. ``kit`` runs every test of the contract with each of ``KITS``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from target_kit import KafkaKit, TargetKit

from onceward.testing import LocalKafka

KITS = ["kafka_with_transactions_v2", "kafka_with_transactions_v1"]


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Iterator[TargetKit]:
    """A target of its own for each test."""
    kit: TargetKit = request.getfixturevalue(request.param)
    yield kit
    kit.close()


@pytest.fixture
def kafka_with_transactions_v2(spark: Any, kafka: LocalKafka, new_topic: Any, read_committed: Any) -> KafkaKit:
    """Kafka 4.3.1."""
    return KafkaKit(spark, kafka, new_topic, read_committed)


@pytest.fixture
def kafka_with_transactions_v1(spark: Any, kafka39: LocalKafka, new_topic: Any, read_committed: Any) -> KafkaKit:
    """Kafka 3.9.1."""
    return KafkaKit(spark, kafka39, new_topic, read_committed)
