"""A transaction ends while one of its partitions has no leader, and coordinators of Kafka 4.3 pass
over that one (KAFKA-20734): what the partition holds is decided as the rest was, before the next
transaction, whose marker would decide it otherwise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.engine.ledger.record import Output
from onceward.ids import TopicPartition
from onceward.kafka.sink.attempt import KafkaAttempt
from onceward.kafka.sink.sink import KafkaTarget
from onceward.kafka.sink.task_reports import KIND
from onceward.kafka.wire.client import NO_LEADER, KafkaClient
from onceward_testing import LocalKafka
from support.ledger_driver import Driver
from support.wire_fixtures import appends_to, fragments, settings

pytestmark = pytest.mark.lengthy("ci")

AWAY = 3


@pytest.fixture(scope="module")
def three() -> Iterator[LocalKafka]:
    with LocalKafka(nodes=3) as kafka:
        yield kafka


@pytest.fixture
def driver(three: LocalKafka, read_committed: Callable[..., Any]) -> Iterator[Driver]:
    """Its output is on one node alone, and all else on the others."""
    numbers = itertools.count()

    def new_topic(servers: str, prefix: str, **_: str) -> str:
        name = f"{prefix}-{time.time_ns()}-{next(numbers)}"
        nodes = [AWAY] if prefix == "out" else [1, 2]
        admin = AdminClient({"bootstrap.servers": servers})
        config = {"cleanup.policy": "compact"} if prefix == "ledger" else {}
        topic = NewTopic(name, 1, replica_assignment=[nodes], config=config)
        admin.create_topics([topic])[name].result(60)
        return name

    client = KafkaClient(settings(three.bootstrap_servers)[0])
    while True:
        made = Driver(three, new_topic, read_committed)
        if client.coordinator(made.name, "transaction") != AWAY:
            break
    client.close()
    yield made
    made.close()


def write(target: KafkaTarget, driver: Driver, number: int, value: bytes) -> KafkaAttempt:
    """An attempt with one record, which has all but its end behind it."""
    known = driver.record(number - 1) if number else None
    attempt = target.begin(known, driver.running(number))
    where, chain = TopicPartition(driver.topic, 0), target.run.chain
    chain.transaction.add_partitions([where])
    (sent,) = chain.producer().send(appends_to(where, fragments([value])))
    places = {"0": [1, sent.base_offset, sent.base_offset, 0]}
    record = replace(
        driver.record(number, attempt.id),
        outputs={KIND: Output(KIND, 1, 1, {driver.topic: places})},
    )
    attempt.stage(record, driver.running(number))
    return attempt


@contextmanager
def no_leader(three: LocalKafka, target: KafkaTarget, driver: Driver) -> Iterator[None]:
    """The output's only node dies, and comes back behind the block."""

    def leader() -> int:
        return target.run.client.topic_partitions([driver.topic])[driver.topic][0]

    three.nodes[AWAY - 1].kill()
    until(lambda: leader() == NO_LEADER)
    yield
    until(lambda: target.run.chain.transaction.state.name == "READY")
    time.sleep(1)
    three.nodes[AWAY - 1].start()
    until(lambda: leader() == AWAY)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def visible(driver: Driver) -> list[bytes]:
    return [message.value() for message in driver._read(driver.bootstrap, driver.topic)]


@pytest.mark.parametrize("anew", [False, True], ids=["same run", "next start"])
def test_what_was_committed_stays_so_when_the_next_attempt_is_aborted(
    three: LocalKafka, driver: Driver, anew: bool
) -> None:
    target = driver.new()
    target.open(driver.running(0))
    first = write(target, driver, 0, b"decided")
    with no_leader(three, target, driver):
        first.commit()
    if anew:
        target = driver.new()
        target.open(driver.running(1))
    write(target, driver, 1, b"aborted").abort()
    write(target, driver, 1, b"next").commit()
    assert visible(driver) == [b"decided", b"next"]


def test_what_was_aborted_stays_so_when_the_next_attempt_is_committed(
    three: LocalKafka, driver: Driver
) -> None:
    target = driver.new()
    target.open(driver.running(0))
    first = write(target, driver, 0, b"aborted")
    with no_leader(three, target, driver):
        first.abort()
    write(target, driver, 0, b"once").commit()
    assert visible(driver) == [b"once"]
