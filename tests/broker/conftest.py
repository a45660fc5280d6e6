"""Clients of ours that the tests of the wire share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceward.kafka.wire.client import KafkaClient
from onceward_testing import LocalKafka
from support.ledger_driver import Driver
from support.wire_fixtures import LosingClient, settings


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


@pytest.fixture
def driver(
    any_kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]
) -> Iterator[Driver]:
    driver = Driver(any_kafka, new_topic, read_committed)
    yield driver
    driver.close()
