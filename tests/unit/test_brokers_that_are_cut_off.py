"""A broker that is cut off from the controllers, and not from its clients, goes on naming itself
for what it led: whoever asks it alone never finds the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.appends.producer import _Send
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.options.settings import settings_from_options
from onceward.kafka.wire.reads.offsets import LATEST, list_offsets
from onceward.kafka.wire.transactions.coordinator import (
    NOBODY,
    TransactionCoordinator,
    idempotent_identity,
)

CUT_OFF = (1, "bootstrap-0")
COORDINATOR_LOAD_IN_PROGRESS = 14
NODES = {node: SimpleNamespace(node_id=node, host=f"b{node}", port=9092) for node in (1, 2, 3)}


class Cluster:
    """Node 1 names itself, and does not answer what it would have to write; 2 and 3 know that 2
    has taken over.
    """

    def __init__(self, client: KafkaClient) -> None:
        self.manager = client._connections._loop.manager
        self.asked: list[tuple[str, int | str]] = []

    def send(self, request: Any, node: int | str, timeout_ms: float | None = None) -> Future[Any]:
        sent: Future[Any] = Future()
        try:
            sent.set_result(self.answer(request, node))
        except ConnectionLost as lost:
            sent.set_exception(lost)
        return sent

    def answer(self, request: Any, node: int | str) -> Any:
        kind = type(request).__name__.removesuffix("Request")
        self.asked.append((kind, node))
        self.manager.connected |= {node}
        owner = NODES[1 if node in CUT_OFF else 2]
        if kind == "FindCoordinator":
            found = SimpleNamespace(error_code=0, error_message=None, **vars(owner))
            return SimpleNamespace(coordinators=[found])
        if kind == "Metadata":
            return self.metadata(owner)
        if node in CUT_OFF and kind == "InitProducerId" and request.transactional_id is None:
            # It has no ids left, and gets none (RPCProducerIdManager.generateProducerId)
            return SimpleNamespace(error_code=COORDINATOR_LOAD_IN_PROGRESS)
        if node in CUT_OFF:
            # A request that times out takes its connection with it
            self.manager.connected -= {node}
            raise ConnectionLost("no answer")
        part = SimpleNamespace(partition_index=0, error_code=0, offset=5)
        topics = [SimpleNamespace(name="out", partitions=[part])]
        return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=1, topics=topics)

    @staticmethod
    def metadata(leader: Any) -> Any:
        partition = SimpleNamespace(partition_index=0, leader_id=leader.node_id)
        topic = SimpleNamespace(name="out", error_code=0, partitions=[partition])
        return SimpleNamespace(brokers=NODES.values(), cluster_id="c", topics=[topic])


@pytest.fixture
def client() -> Iterator[KafkaClient]:
    settings, _ = settings_from_options("b1:9092,b2:9092,b3:9092", {}, client_id="c")
    client = KafkaClient(settings)
    yield client
    client.close()


def test_a_coordinator_that_does_not_answer_is_asked_for_at_another_broker(
    client: KafkaClient,
) -> None:
    cluster = Cluster(client)
    client.send = cluster.send  # type: ignore[method-assign]
    client.brokers()
    coordinator = TransactionCoordinator(client, "p")
    assert coordinator.init_producer_id(NOBODY, 60_000, Deadline(20_000)) == ProducerIdentity(7, 1)
    looked = [node for kind, node in cluster.asked if kind == "FindCoordinator"]
    assert (looked[0], looked[-1]) == ("bootstrap-0", 2)
    assert client.coordinator("p", "transaction") == 2, "known, and not asked for again"
    assert len(looked) == cluster.asked.count(("InitProducerId", 1)) + 1


def test_who_leads_what_has_failed_is_asked_of_another_broker(client: KafkaClient) -> None:
    cluster = Cluster(client)
    client.send = cluster.send  # type: ignore[method-assign]
    place = TopicPartition("out", 0)
    assert client.topic_partitions(["out"]) == {"out": {0: 1}}
    producer: Any = SimpleNamespace(
        client=client, settings=SimpleNamespace(delivery_timeout_ms=20_000)
    )
    send = _Send(producer, [])
    for _ in range(3):
        if client.known_leader(place) == 1:
            send._stale_topics = {"out"}
            send._refresh_leaders()
    assert client.known_leader(place) == 2


def test_who_leads_what_is_read_is_asked_of_another_broker(client: KafkaClient) -> None:
    """Of the ledger, of a source, of dead letters: the first one asked names itself, for ever."""
    cluster = Cluster(client)
    client.send = cluster.send  # type: ignore[method-assign]
    place = TopicPartition("out", 0)
    assert client.known_leader(place) == 1
    assert list_offsets(client, [place], LATEST, timeout_ms=5_000) == {place: 5}
    assert cluster.asked[-1] == ("ListOffsets", 2)


def test_what_any_broker_may_answer_is_asked_of_another_one(client: KafkaClient) -> None:
    cluster = Cluster(client)
    client.send = cluster.send  # type: ignore[method-assign]
    client.brokers()
    assert idempotent_identity(client) == ProducerIdentity(7, 1)
