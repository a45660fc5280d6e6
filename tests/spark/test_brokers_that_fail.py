"""Brokers of three die, restart, hand over and refuse in the middle of a batch: it waits, or runs
again; never twice.

The cluster is shared by the tests of this module, each with a pipeline of its own, and whole again
before each. A proxy before each broker holds the request that says where the batch is, while a
broker is dealt with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    TopicMetadata,
)
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline

from fault_table import fired
from onceward import events
from onceward_testing import KafkaNode, KafkaProxy, LocalKafka

FIRE_SECONDS = 120
WHOLE_SECONDS = 180
TRANSACTION_STATE = "__transaction_state"
NOT_LEADER = 6

# With these a slow machine costs no attempt: what one is spent on is then the brokers' doing.
PATIENT = {"transaction.timeout.ms": 600_000, "delivery.timeout.ms": 600_000}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.1", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    with LocalKafka(nodes=3, version=request.param, proxied=True) as kafka:
        yield kafka


@pytest.fixture
def proxy(cluster: LocalKafka) -> Iterator[KafkaProxy]:
    make_whole(cluster)
    yield cluster.proxy
    cluster.proxy.heal()
    make_whole(cluster)


@pytest.fixture
def pipeline(
    cluster: LocalKafka, proxy: KafkaProxy, pipeline_on: Callable[..., Pipeline]
) -> Pipeline:
    """Behind the proxy; one batch is written, so that all internal topics are there, and two are
    to come.
    """
    pipeline = pipeline_on(cluster)
    pipeline.job_servers = cluster.proxied_servers
    pipeline.feed(40)
    pipeline.run()
    pipeline.feed(80)
    return pipeline


def make_whole(cluster: LocalKafka) -> None:
    """Every node is up, and every replica in sync."""
    for node in cluster.nodes:
        node.start(wait=False)
    cluster.wait_until_serving()
    until(
        lambda: all(in_sync(topic) for topic in topics(cluster).values()), "every replica in sync"
    )


def in_sync(topic: TopicMetadata) -> bool:
    return all(
        sorted(p.isrs) == sorted(p.replicas) and p.leader in p.isrs
        for p in topic.partitions.values()
    )


def topics(cluster: LocalKafka) -> dict[str, TopicMetadata]:
    found: dict[str, TopicMetadata] = admin(cluster).list_topics(timeout=30).topics
    return found


def admin(cluster: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def until(happened: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WHOLE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"INVALID: never: {what}"
        time.sleep(0.2)


def attempts(steps: list[events.Event]) -> list[int]:
    return [
        step.ids["batch_id"]
        for step in steps
        if (step.step, step.phase) == (events.PLAN, "started")
    ]


def node_of(cluster: LocalKafka, node_id: int) -> KafkaNode:
    return cluster.nodes[node_id - 1]


def coordinator_of(cluster: LocalKafka, pipeline: Pipeline) -> KafkaNode:
    """The leader of the transactional id's partition: ``TransactionStateManager.partitionFor``,
    Java's hash of it.
    """
    number = 0
    for character in pipeline.name:
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    if number >= 1 << 31:
        number -= 1 << 32
    partitions = topics(cluster)[TRANSACTION_STATE].partitions
    return node_of(cluster, partitions[abs(number) % len(partitions)].leader)


@pytest.mark.parametrize(
    "api",
    [
        pytest.param(
            "InitProducerId", marks=[pytest.mark.fault("coordinator-dies-init"), pytest.mark.slow]
        ),
        pytest.param(
            "Produce", marks=[pytest.mark.fault("coordinator-dies-send"), pytest.mark.slow]
        ),
        pytest.param("EndTxn", marks=pytest.mark.fault("coordinator-dies-end")),
    ],
)
def test_the_coordinator_dies(
    cluster: LocalKafka, proxy: KafkaProxy, pipeline: Pipeline, steps: list[events.Event], api: str
):
    """Killed while it is being asked for an identity, while tasks send, and while it is being
    asked to commit.
    """
    coordinator = coordinator_of(cluster, pipeline)
    held = proxy.on(api, client_id=f"onceward-{pipeline.name}").hold()
    query = pipeline.start()
    fired(held.wait(FIRE_SECONDS), f"no {api}")
    if api != "Produce":
        assert held.held[0].node == coordinator.node_id, (
            "INVALID: somebody else is the coordinator"
        )
    coordinator.kill()
    if api == "Produce" and held.held[0].node != coordinator.node_id:
        held.release()
    else:
        held.cancel()  # lost with the broker that it was meant for
    assert pipeline.ended(query) == ""
    coordinator.start()
    pipeline.assert_exactly_once(ledger_records=3)
    assert set(attempts(steps)) == {1, 2}


@pytest.mark.slow
@pytest.mark.fault("leader-moves")
def test_the_leader_of_a_partition_moves_in_the_middle_of_a_transaction(
    cluster: LocalKafka,
    proxy: KafkaProxy,
    pipeline_on: Callable[..., Pipeline],
    steps: list[events.Event],
):
    """A polite restart leaves a node without leaders; an election gives them back while a batch is
    on its way.
    """
    pipeline = pipeline_on(cluster, output_partitions=1)
    pipeline.job_servers = cluster.proxied_servers
    pipeline.feed(80)
    preferred = leader(cluster, pipeline.output)
    node_of(cluster, preferred).restart()
    make_whole(cluster)
    before = leader(cluster, pipeline.output)
    fired(before != preferred, "a restart moved nothing")
    on_its_way = proxy.on("Produce", client_id=f"onceward-{pipeline.name}").hold()
    query = pipeline.start(
        options=PATIENT | {"request.timeout.ms": 300_000}
    )  # the task does not ask twice meanwhile
    fired(on_its_way.wait(FIRE_SECONDS), "no Produce")
    electing = admin(cluster)  # kept: what it was asked for ends with it
    electing.elect_leaders(ElectionType.PREFERRED, [Position(pipeline.output, 0)]).result(60)
    until(lambda: leader(cluster, pipeline.output) == preferred, "an election")
    on_its_way.release()
    (late,) = on_its_way.held
    assert late.node == before
    assert late.decoded_answer().responses[0].partition_responses[0].error_code == NOT_LEADER
    assert pipeline.ended(query) == ""
    pipeline.assert_exactly_once(ledger_records=2)
    assert attempts(steps) == [0, 1], "a leader's move is no reason to run a batch again"


def leader(cluster: LocalKafka, topic: str) -> int:
    number: int = topics(cluster)[topic].partitions[0].leader
    return number


@contextmanager
def three_needed(cluster: LocalKafka, topic: str) -> Iterator[None]:
    """``topic`` takes nothing unless all of its three replicas are in sync."""
    changing = admin(cluster)

    def need(replicas: int) -> None:
        entry = ConfigEntry(
            "min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        changing.incremental_alter_configs([resource])[resource].result(60)

    need(3)
    try:
        yield
    finally:
        need(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starved", "asked"),
    [
        pytest.param("output", "Produce", marks=pytest.mark.fault("output-below-min-isr")),
        pytest.param(
            TRANSACTION_STATE,
            "InitProducerId",
            marks=pytest.mark.fault("transaction-state-below-min-isr"),
        ),
    ],
)
def test_a_topic_has_too_few_replicas_for_a_while(
    cluster: LocalKafka,
    proxy: KafkaProxy,
    pipeline: Pipeline,
    steps: list[events.Event],
    starved: str,
    asked: str,
):
    """The batch waits and asks again with pauses that grow; no epoch is spent on waiting."""
    pipeline.run()  # a takeover and two batches without any trouble
    untroubled = [record["attempt"][1] for record in pipeline.ledger()]
    pipeline.feed(40)
    del steps[:]
    topic = pipeline.output if starved == "output" else starved
    with three_needed(cluster, topic):
        cluster.nodes[2].stop()
        until(lambda: not in_sync(topics(cluster)[topic]), "a replica less")
        mine, mark = f"onceward-{pipeline.name}", proxy.mark()
        query = pipeline.start(options=PATIENT)
        until(
            lambda: proxy.since(mark).count(asked, client_id=mine) >= 6 or not query.isActive,
            f"six {asked}",
        )
        assert query.isActive, query.exception()
        assert len(pipeline.ledger()) == len(untroubled)
        mark, begun = proxy.mark(), time.monotonic()
        time.sleep(3)  # long enough to tell pauses of half a second from none
        passed, waited_s = proxy.since(mark).count(asked, client_id=mine), time.monotonic() - begun
        cluster.nodes[2].start()
        assert pipeline.ended(query) == ""
    assert passed < 15 * (waited_s + 1), f"{passed} requests in {waited_s:.1f} s are no waiting"
    pipeline.assert_exactly_once(ledger_records=4)
    assert attempts(steps) == [3]
    takeover = (
        untroubled[1] - untroubled[0]
    )  # the first run's batch, then a takeover, then the next run's first
    assert pipeline.ledger()[-1]["attempt"][1] - untroubled[-1] == takeover


@pytest.mark.slow
@pytest.mark.fault("rolling-restart", "all-brokers-restart", "broker-restart")
def test_brokers_restart_one_after_the_other_and_all_at_once(
    cluster: LocalKafka, proxy: KafkaProxy, pipeline: Pipeline
):
    """Under a query that never stops, with records coming in all the time."""
    with fed_all_the_time(pipeline):
        frame = pipeline.frame(max_offsets_per_trigger=1_000)
        query = pipeline.start(frame=frame, trigger={"processingTime": "200 milliseconds"})
        two_more_batches(pipeline, query, "at the start")
        for node in cluster.nodes:
            node.restart()
            make_whole(cluster)
            two_more_batches(pipeline, query, f"after node {node.node_id} has restarted")
        for node in cluster.nodes:
            node.kill()
        make_whole(cluster)
        two_more_batches(pipeline, query, "after all brokers have restarted")
    query.processAllAvailable()
    query.stop()
    assert set(pipeline.lag().values()) == {0}
    pipeline.assert_exactly_once()


def two_more_batches(pipeline: Pipeline, query: StreamingQuery, when: str) -> None:
    enough, deadline = len(pipeline.ledger()) + 2, time.monotonic() + WHOLE_SECONDS
    while len(pipeline.ledger()) < enough:
        assert query.isActive, f"{when}: {query.exception()}"
        assert time.monotonic() < deadline, f"no two batches {when}"
        time.sleep(0.2)


@contextmanager
def fed_all_the_time(pipeline: Pipeline) -> Iterator[None]:
    enough = threading.Event()
    failures: list[BaseException] = []

    def feed() -> None:
        try:
            while not enough.wait(0.2):
                pipeline.feed(20)
        except BaseException as failure:  # noqa: BLE001  told below
            failures.append(failure)

    feeder = threading.Thread(target=feed, name="feeder")
    feeder.start()
    try:
        yield
    finally:
        enough.set()
        feeder.join()
    assert failures == []
