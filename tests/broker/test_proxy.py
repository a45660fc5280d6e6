"""Each thing that the proxy does to a request, with real brokers behind it and librdkafka before
it.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from onceward.ids import TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.transactions.fencing import brokers_limit
from onceward_testing import KafkaProxy, LocalKafka, ProxyFault
from onceward_testing.kafka_node import brokers_seen_by
from support.wire_fixtures import Writer, settings

Read = Callable[[str, str], list[Message]]

INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED = 48, 47, 90


@pytest.fixture
def proxy(any_kafka: LocalKafka) -> Iterator[KafkaProxy]:
    yield any_kafka.proxy
    any_kafka.proxy.heal()


@pytest.fixture
def topic(any_kafka: LocalKafka, new_topic: Callable[..., str]) -> str:
    return new_topic(any_kafka.bootstrap_servers, 1)


@pytest.fixture
def visible(any_kafka: LocalKafka, topic: str, read_committed: Read) -> Callable[[], list[bytes]]:
    """What a reader that goes around the proxy is given."""
    return lambda: [
        message.value() for message in read_committed(any_kafka.bootstrap_servers, topic)
    ]


def producer(kafka: LocalKafka, **more: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return Producer(
        {
            "bootstrap.servers": kafka.proxied_servers,
            "client.id": "me",
            "log_level": 0,
            "linger.ms": 0,
        }
        | named
    )


def transactional(kafka: LocalKafka, **more: Any) -> Producer:
    made = producer(
        kafka,
        **{"transactional_id": f"t-{uuid.uuid4().hex[:8]}", "socket_timeout_ms": 10_000, **more},
    )
    made.init_transactions(60)
    return made


def commit(made: Producer, topic: str, value: bytes) -> None:
    made.begin_transaction()
    made.produce(topic, value)
    made.commit_transaction(60)


def send(made: Producer, topic: str, value: bytes) -> None:
    made.produce(topic, value)
    assert made.flush(60) == 0


def must_fire(fault: ProxyFault, times: int = 1) -> None:
    assert fault.wait(60, times=times), "INVALID: the fault did not fire"


def test_everything_passes_and_is_counted(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    before = proxy.mark()
    commit(transactional(any_kafka), topic, b"a")
    assert visible() == [b"a"]
    passed = proxy.since(before)
    assert (passed.count("EndTxn"), passed.count("Produce", client_id="m*")) == (1, 1)
    assert passed.count("Produce", client_id="somebody-else") == 0
    assert passed.client_ids("Produce") == {"me"}
    assert proxy.count("Fetch") == 0, "the verdict's reader goes around the proxy"


def test_the_products_own_client_works_through_it(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    client = KafkaClient(settings(any_kafka.proxied_servers)[0])
    try:
        writer = Writer(client, f"t-{uuid.uuid4().hex[:8]}")
        writer.transaction.take_over()
        lost = [
            proxy.on(api, client_id="wire-test").drop_response() for api in ("Produce", "EndTxn")
        ]
        writer.commit({TopicPartition(topic, 0): [b"a", b"b"]})
        for fault in lost:
            must_fire(fault)
    finally:
        client.close()
    assert visible() == [b"a", b"b"]


def test_a_frame_of_many_megabytes_passes(
    any_kafka: LocalKafka, proxy: KafkaProxy, new_topic: Any, read_committed: Read
):
    topic = new_topic(any_kafka.bootstrap_servers, 1, max_message_bytes=30_000_000)
    large = bytes(range(256)) * 80_000
    send(producer(any_kafka, message_max_bytes=30_000_000), topic, large)
    assert [message.value() for message in read_committed(any_kafka.bootstrap_servers, topic)] == [
        large
    ]


@pytest.mark.parametrize("silently", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_lost_request_is_not_carried_out_until_it_is_sent_again(
    any_kafka: LocalKafka,
    proxy: KafkaProxy,
    topic: str,
    visible: Callable[[], list[bytes]],
    silently: bool,
):
    made = transactional(any_kafka)
    fault = proxy.on("EndTxn").drop_request(silently=silently)
    before = proxy.mark()
    commit(made, topic, b"a")
    assert fault.fired == 1
    assert visible() == [b"a"]
    assert proxy.since(before).count("EndTxn") == 1, "what is lost has not passed"


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
def test_a_lost_answer_means_that_it_was_carried_out(
    any_kafka: LocalKafka,
    proxy: KafkaProxy,
    topic: str,
    visible: Callable[[], list[bytes]],
    api: str,
):
    made = transactional(any_kafka)
    before = proxy.mark()
    fault = proxy.on(api).drop_response()
    commit(made, topic, b"a")
    assert fault.fired == 1
    assert proxy.since(before).count(api) == 2
    assert visible() == [b"a"]


def test_a_lost_answer_to_a_producer_without_idempotence_is_a_duplicate(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    """What the proxy is for: it shows the anomaly that idempotence prevents."""
    fault = proxy.on("Produce").drop_response()
    send(producer(any_kafka, acks="all"), topic, b"a")
    must_fire(fault)
    assert visible() == [b"a", b"a"]


def test_a_doubled_request_is_carried_out_twice(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    made = producer(any_kafka)
    fault = proxy.on("Produce").duplicate()
    send(made, topic, b"a")
    send(made, topic, b"b")  # the connection is still in step
    assert fault.fired == 1
    assert visible() == [b"a", b"a", b"b"]

    idempotent = producer(any_kafka, enable_idempotence=True)
    fault = proxy.on("Produce").duplicate()
    send(idempotent, topic, b"c")
    must_fire(fault)
    assert visible() == [b"a", b"a", b"b", b"c"]


def test_a_request_without_an_answer_does_not_put_answers_out_of_step(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    made = producer(any_kafka, acks=0)
    fault = proxy.on("Produce", nth=2).duplicate()
    for value in (b"a", b"b", b"c"):
        send(made, topic, value)
    made.list_topics(timeout=30)
    must_fire(fault)
    deadline = time.monotonic() + 30
    while len(found := visible()) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == [b"a", b"b", b"b", b"c"]


def test_a_delayed_request_comes_late(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    fault = proxy.on("Produce").delay(2)
    begun = time.monotonic()
    send(producer(any_kafka), topic, b"a")
    assert time.monotonic() - begun >= 2
    must_fire(fault)
    assert visible() == [b"a"]


def test_a_held_request_waits_and_its_client_gets_the_answer(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    made = producer(any_kafka)
    fault = proxy.on("Produce").hold()
    made.produce(topic, b"a")
    made.poll(0)
    must_fire(fault)
    assert visible() == []
    assert not fault.answered
    fault.release()
    assert made.flush(60) == 0
    assert fault.answered
    assert visible() == [b"a"]


def test_a_held_request_is_delivered_though_its_client_has_long_given_up(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    """And the broker refuses it: a late EndTxn of an owner that was fenced meanwhile."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    old = transactional(any_kafka, transactional_id=name, client_id="old")
    fault = proxy.on("EndTxn", client_id="old").hold()
    old.begin_transaction()
    old.produce(topic, b"old")
    with pytest.raises(KafkaException):
        old.commit_transaction(3)
    must_fire(fault)
    del old  # with its connections

    new = transactional(any_kafka, transactional_id=name, client_id="new")
    new.begin_transaction()
    new.produce(topic, b"new")
    new.flush(60)
    fault.release()
    assert fault.held[0].decoded_answer().error_code in (
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        INVALID_TXN_STATE,
    )
    new.commit_transaction(60)
    assert visible() == [b"new"]


@pytest.mark.slow
def test_a_held_request_finds_its_broker_over_a_connection_of_its_own(
    new_topic: Any, read_committed: Read
):
    with LocalKafka(proxied=True) as kafka:
        topic = new_topic(kafka.bootstrap_servers, 1)
        made = producer(kafka)
        fault = kafka.proxy.on("Produce").hold()
        made.produce(topic, b"late")
        made.poll(0)
        must_fire(fault)
        kafka.nodes[0].kill()  # the connections that it came over go with it
        kafka.nodes[0].start()
        fault.release()
        assert fault.held[0].decoded_answer().responses[0].partition_responses[0].error_code == 0
        assert b"late" in [
            message.value() for message in read_committed(kafka.bootstrap_servers, topic)
        ]


def test_a_reset_connection_is_reset(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    fault = proxy.on("Produce").reset()
    send(producer(any_kafka), topic, b"a")
    must_fire(fault)
    assert visible() == [b"a"]

    fault = proxy.on("Metadata", client_id="onceward-probe").reset()
    with pytest.raises(ConnectionResetError):
        brokers_through(proxy)
    must_fire(fault)
    assert brokers_through(proxy) == {1}


def brokers_through(proxy: KafkaProxy) -> frozenset[int]:
    return brokers_seen_by("127.0.0.1", proxy.ports[1])


def test_a_black_hole_swallows_everything_until_it_heals(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    made = producer(any_kafka, message_timeout_ms=120_000, socket_timeout_ms=10_000)
    fault = proxy.on("Produce").black_hole()
    made.produce(topic, b"a")
    made.poll(0)
    must_fire(fault)
    with pytest.raises((KafkaException, OSError)):
        brokers_through(proxy)
    before = proxy.mark()
    made.flush(2)
    assert proxy.since(before).count("Produce") == 0
    assert any_kafka.nodes[0].sees() == {1}, "the broker itself is well"
    proxy.heal()
    assert made.flush(120) == 0
    assert visible() == [b"a"]


def test_faults_are_only_for_those_they_name(
    any_kafka: LocalKafka, proxy: KafkaProxy, topic: str, visible: Callable[[], list[bytes]]
):
    fault = proxy.on("Produce", client_id="victim*", nth=2).drop_request()
    for name in ("bystander", "victim-1", "bystander", "victim-1"):
        send(producer(any_kafka, client_id=name), topic, name.encode())
    assert fault.fired == 1
    assert visible() == [b"bystander", b"victim-1", b"bystander", b"victim-1"]


@pytest.mark.slow
def test_clients_of_three_brokers_stay_behind_the_proxy_and_outlive_a_broker(
    new_topic: Any, read_committed: Read
):
    before = set(threading.enumerate())  # the proxy of the other tests may be among them
    with LocalKafka(nodes=3, proxied=True) as kafka:
        topic = new_topic(kafka.bootstrap_servers, 6)
        told = (
            AdminClient({"bootstrap.servers": kafka.proxied_servers})
            .list_topics(timeout=30)
            .brokers
        )
        assert {node: broker.port for node, broker in told.items()} == kafka.proxy.ports

        made = producer(kafka, enable_idempotence=True)

        def send_to_each(value: bytes) -> None:
            for partition in range(6):
                made.produce(topic, value, partition=partition)
            assert made.flush(120) == 0

        send_to_each(b"before")
        assert all(kafka.proxy.count("Produce", node=node) for node in (1, 2, 3))
        client = KafkaClient(settings(kafka.bootstrap_servers)[0])
        with closing(client):
            assert client.brokers() == [1, 2, 3]
            kafka.nodes[0].kill()
            assert brokers_limit(client)[0] == "900000", "asked of the one that is away only"
        send_to_each(b"while one is down")
        kafka.nodes[0].start()
        kafka.proxy.cut(2)
        for partition in range(6):
            made.produce(topic, b"while one is cut off", partition=partition)
        assert made.flush(1) > 0, "INVALID: nothing was cut off"
        kafka.proxy.heal()
        assert made.flush(120) == 0
        assert len(read_committed(kafka.bootstrap_servers, topic)) == 18
        ports = kafka.proxy.ports
        kafka.proxy.cut(3)
        kafka.proxy.on("Produce").hold()
    for port in ports.values():
        with (
            pytest.raises(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port), timeout=5),
        ):
            pass
    assert "onceward-kafka-proxy" not in [
        thread.name for thread in set(threading.enumerate()) - before
    ]
