"""Clients of ours that the tests of the wire share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceward.testing import LocalKafka
from onceward.wire.client import KafkaClient
from wire_fixtures import LosingClient, settings


@pytest.fixture
def client(any_kafka: LocalKafka) -> Iterator[KafkaClient]:
    client = KafkaClient(settings(any_kafka.bootstrap_servers)[0])
    yield client
    client.close()


@pytest.fixture
def losing(any_kafka: LocalKafka) -> Iterator[LosingClient]:
    client = LosingClient(settings(any_kafka.bootstrap_servers)[0])
    yield client
    client.close()
