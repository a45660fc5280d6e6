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
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.engine.ledger.record import Output
from onceward.errors import AccessDenied, BatchFailed
from onceward.ids import TopicPartition
from onceward.kafka.sink.attempt import KafkaAttempt
from onceward.kafka.sink.sink import KafkaTarget
from onceward.kafka.sink.task_reports import KIND
from onceward.kafka.wire.client import NO_LEADER, KafkaClient
from onceward.kafka.wire.transactions import listing
from onceward_testing import LocalKafka
from support.ledger_driver import Driver
from support.wire_fixtures import appends_to, fragments, settings

pytestmark = pytest.mark.lengthy("ci")

AWAY = 3


@pytest.fixture(scope="module")
def three() -> Iterator[LocalKafka]:
    with LocalKafka(nodes=3) as kafka:
        yield kafka


@pytest.fixture(params=["out", "ledger"])
def away(request: pytest.FixtureRequest) -> str:
    """What has its only replica on a node that dies; all else is on the others."""
    return str(request.param)


@pytest.fixture
def driver(three: LocalKafka, read_committed: Callable[..., Any], away: str) -> Iterator[Driver]:
    numbers = itertools.count()

    def new_topic(servers: str, prefix: str, **_: str) -> str:
        name = f"{prefix}-{time.time_ns()}-{next(numbers)}"
        nodes = [AWAY] if prefix == away else [1, 2]
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
def its_node_dies(three: LocalKafka, client: KafkaClient, topic: str) -> Iterator[None]:
    """The node is back behind the block. Controllers take it for alive for nine seconds more, and
    the coordinator asks it for so long."""

    def leader() -> int:
        return client.topic_partitions([topic])[topic][0]

    three.nodes[AWAY - 1].kill()
    yield
    until(lambda: leader() == NO_LEADER)
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


@pytest.fixture
def lose_marker(three: LocalKafka, driver: Driver, away: str) -> Callable[..., None]:
    """Have a transaction end while a partition of it has no leader."""

    def lose(target: KafkaTarget, end: Callable[[], None]) -> None:
        topic = {"out": driver.topic, "ledger": driver.ledger_topic}[away]
        with its_node_dies(three, target.run.client, topic):
            end()

    return lose


AGAIN = pytest.mark.parametrize("anew", [False, True], ids=["same run", "next start"])


@AGAIN
def test_what_was_committed_stays_so_when_the_next_attempt_is_aborted(
    lose_marker: Callable[..., None], driver: Driver, anew: bool
) -> None:
    target = driver.new()
    target.open(driver.running(0))
    lose_marker(target, write(target, driver, 0, b"decided").commit)
    if anew:
        target = driver.new()
        newest = target.open(driver.running(1))
        assert newest is not None
        assert newest.sequence == 0
    write(target, driver, 1, b"aborted").abort()
    write(target, driver, 1, b"next").commit()
    assert visible(driver) == [b"decided", b"next"]
    assert driver.committed_sequences() == [0, 1]


@AGAIN
def test_what_was_aborted_stays_so_when_the_next_attempt_is_committed(
    lose_marker: Callable[..., None], driver: Driver, away: str, anew: bool
) -> None:
    target = driver.new()
    target.open(driver.running(0))
    lose_marker(target, write(target, driver, 0, b"aborted").abort)
    if anew:
        target = driver.new()
        assert target.open(driver.running(0)) is None
    if (anew, away) == (True, "out"):
        # The ledger, which has nothing of it, is read anew first: it might have lacked that record
        with pytest.raises(BatchFailed, match="read anew"):
            write(target, driver, 0, b"not yet")
        target.run.chain.abort()
    write(target, driver, 0, b"once").commit()
    assert visible(driver) == [b"once"]
    assert driver.committed_sequences() == [0]


@pytest.mark.parametrize("away", ["ledger"], indirect=True)
def test_what_a_run_of_version_1_committed_is_not_taken_for_aborted_under_version_2(
    lose_marker: Callable[..., None], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feature was raised while it ran. No start decides it, nor makes the coordinator forget
    what it has decided."""
    with monkeypatch.context() as before:
        before.setattr(KafkaClient, "transaction_version", lambda _: 1)
        target = driver.new()
        target.open(driver.running(0))
        lose_marker(target, write(target, driver, 0, b"decided").commit)
    for _ in range(2):
        with pytest.raises(BatchFailed, match="transaction version 1"):
            driver.new().open(driver.running(1))
    where = TopicPartition(driver.ledger_topic, 0)
    (left,) = listing.open_producers(target.run.client, [where])
    listing.end_in_partition(target.run.client, left, commit=True)
    newest = driver.new().open(driver.running(1))
    assert newest is not None
    assert newest.sequence == 0


@pytest.mark.parametrize("away", ["ledger"], indirect=True)
def test_what_somebody_has_claimed_who_did_not_look_is_not_taken_for_aborted(
    three: LocalKafka, lose_marker: Callable[..., None], driver: Driver
) -> None:
    """The coordinator says ``Empty``, of what was committed as of what was aborted."""
    target = driver.new()
    target.open(driver.running(0))
    lose_marker(target, write(target, driver, 0, b"decided").commit)
    other = {"bootstrap.servers": three.bootstrap_servers, "transactional.id": driver.name}
    Producer(other).init_transactions(60)
    for _ in range(2):
        with pytest.raises(BatchFailed, match="stands no longer anywhere"):
            driver.new().open(driver.running(1))


@AGAIN
@pytest.mark.parametrize("away", ["out"], indirect=True)
def test_a_partition_without_a_leader_holds_up_what_is_written_to_it_alone(
    three: LocalKafka, driver: Driver, anew: bool
) -> None:
    target = driver.new()
    target.open(driver.running(0))
    first = write(target, driver, 0, b"decided")
    with its_node_dies(three, target.run.client, driver.topic):
        first.commit()
        # It ends once the controllers know, and not before
        driver.commit(target, 1)
        driver.commit(target, 2)
    if anew:
        # What the run knew stands in older records, as long as compaction leaves them.
        target = driver.new()
        target.open(driver.running(3))
    write(target, driver, 3, b"aborted").abort()
    write(target, driver, 3, b"next").commit()
    assert visible(driver) == [b"decided", b"next"]


@pytest.mark.parametrize("away", ["out"], indirect=True)
def test_without_the_right_to_write_it_the_batch_fails_until_it_is_given(
    driver: Driver, lose_marker: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = driver.new()
    target.open(driver.running(0))
    lose_marker(target, write(target, driver, 0, b"decided").commit)

    def refused(*_: object, **__: object) -> None:
        raise AccessDenied("CLUSTER_AUTHORIZATION_FAILED", next_step="grant it")

    with monkeypatch.context() as patched:
        patched.setattr(listing, "end_in_partition", refused)
        attempt = target.begin(driver.record(0), driver.running(1))
        with pytest.raises(BatchFailed, match="ClusterAction"):
            target.run.chain.transaction.add_partitions([TopicPartition(driver.topic, 0)])
        attempt.abort()
    write(target, driver, 1, b"aborted").abort()
    assert visible(driver) == [b"decided"]
