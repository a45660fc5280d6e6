"""Appends on real brokers: once and in order, whatever gets lost on the way. The verdict is
librdkafka's.
"""

from __future__ import annotations

import gc
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onceward.errors import (
    EpochPoisoned,
    RecordTooLarge,
    Recovery,
    ResourceError,
    SendFailed,
    TopicMissing,
)
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.appends.producer import Append, PartitionProducer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings
from onceward.kafka.wire.transactions.coordinator import idempotent_identity
from onceward_testing import LocalKafka
from support.wire_fixtures import (
    LosingClient,
    Writer,
    appends_to,
    first,
    fragments,
    one_by_one,
    settings,
)

pytestmark = pytest.mark.broker

Read = Callable[[str, str], list[Any]]
MAX_SEQUENCE = 2**31 - 1


@pytest.fixture
def topic(any_kafka: LocalKafka, new_topic: Callable[..., str]) -> str:
    return new_topic(any_kafka.bootstrap_servers, 4)


@pytest.fixture
def appended(
    any_kafka: LocalKafka, topic: str, read_uncommitted: Read
) -> Callable[[], dict[int, list[bytes]]]:
    """Per partition everything that is in the log, aborted or not: duplicates would show."""

    def read() -> dict[int, list[bytes]]:
        logs: dict[int, list[bytes]] = {}
        for message in read_uncommitted(any_kafka.bootstrap_servers, topic):
            logs.setdefault(message.partition(), []).append(message.value())
        return logs

    return read


@pytest.fixture
def writer(losing: LosingClient) -> Writer:
    writer = Writer(losing, f"pipeline-{uuid.uuid4().hex[:12]}")
    writer.transaction.take_over()
    writer.transaction.begin()
    return writer


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


def test_results_name_the_offsets_in_the_order_of_the_appends(
    writer: Writer, topic: str, any_kafka: LocalKafka, read_committed: Read
) -> None:
    partitions = [TopicPartition(topic, n) for n in range(4)]
    writer.transaction.add_partitions(partitions)
    lanes = [one_by_one(partition, numbered(7)) for partition in partitions]
    appends = [lane[i] for i in range(7) for lane in lanes]
    results = writer.producer().send(appends)
    writer.transaction.commit()
    assert [(r.partition, r.base_sequence, r.count) for r in results] == [
        (a.partition, a.base_sequence, 1) for a in appends
    ]
    visible = {
        (m.partition(), m.offset()): m.value()
        for m in read_committed(any_kafka.bootstrap_servers, topic)
    }
    assert {(r.partition.partition, r.base_offset) for r in results} == set(visible)
    assert all(
        visible[r.partition.partition, r.base_offset] == str(r.base_sequence).encode()
        for r in results
    )


def test_nothing_is_kept_of_what_was_sent(writer: Writer, topic: str) -> None:
    """Also before the garbage collector runs, which it does for the number of objects and not for
    their size: a worker had all of a batch in memory that it had sent.
    """
    place = TopicPartition(topic, 0)
    writer.transaction.add_partitions([place])
    appends = one_by_one(place, numbered(20))
    sent = [weakref.ref(append.fragment.records) for append in appends]
    gc.collect()
    gc.disable()
    try:
        writer.producer().send(appends)
        del appends
        until = time.monotonic() + 10
        # The thread of the connection may still be at the last one
        while any(records() is not None for records in sent) and time.monotonic() < until:
            time.sleep(0.01)
        assert [records() for records in sent] == [None] * 20
    finally:
        gc.enable()


@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_one_lost_produce_among_many_in_flight_changes_nothing(
    writer: Writer,
    losing: LosingClient,
    topic: str,
    appended: Callable[[], dict[int, list[bytes]]],
    fate: str,
    number: int,
) -> None:
    partition = TopicPartition(topic, 0)
    writer.transaction.add_partitions([partition])
    losing.lose("ProduceFrame", lambda seen: fate if seen == number else "")
    results = writer.producer().send(one_by_one(partition, numbered(12)))
    writer.transaction.commit()
    assert losing.lost == 1
    assert appended() == {0: numbered(12)}
    assert [r.base_offset for r in results] == list(range(12))


@pytest.mark.parametrize("seed", range(3))
def test_many_losses_over_many_partitions_leave_each_log_complete_and_in_order(
    writer: Writer,
    losing: LosingClient,
    topic: str,
    appended: Callable[[], dict[int, list[bytes]]],
    seed: int,
) -> None:
    chance = random.Random(seed)
    partitions = [TopicPartition(topic, n) for n in range(4)]
    writer.transaction.add_partitions(partitions)
    losing.lose("ProduceFrame", lambda _: chance.choice(["answer", "request", "", "", ""]))
    writer.producer_settings = replace(writer.producer_settings, max_request_bytes=150)
    results = writer.producer().send([a for p in partitions for a in one_by_one(p, numbered(25))])
    writer.transaction.commit()
    assert losing.lost > 5
    assert appended() == {n: numbered(25) for n in range(4)}
    assert [r.last_offset for r in results] == [offset for _ in partitions for offset in range(25)]


def test_sequences_go_on_after_the_largest_number(
    kafka39: LocalKafka, new_topic: Callable[..., str], read_committed: Read
) -> None:
    """A new producer may begin with any sequence on 3.9, which puts the wrap within reach."""
    partition = TopicPartition(new_topic(kafka39.bootstrap_servers, 1), 0)
    client = KafkaClient(settings(kafka39.bootstrap_servers)[0])
    writer = Writer(client, f"pipeline-{uuid.uuid4().hex[:12]}")
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.transaction.add_partitions([partition])
    appends = one_by_one(partition, numbered(4), sequence=MAX_SEQUENCE - 1)
    assert [append.base_sequence for append in appends] == [MAX_SEQUENCE - 1, MAX_SEQUENCE, 0, 1]
    writer.producer().send(appends)
    writer.transaction.commit()
    client.close()
    assert [
        m.value() for m in read_committed(kafka39.bootstrap_servers, partition.topic)
    ] == numbered(4)


def test_a_gap_in_the_sequence_is_refused_and_the_batch_must_run_again(
    writer: Writer, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    writer.transaction.add_partitions([partition])
    writer.producer().send(one_by_one(partition, [b"0"]))
    with pytest.raises(SendFailed, match="OUT_OF_ORDER_SEQUENCE_NUMBER") as refused:
        writer.producer().send(one_by_one(partition, [b"2"], sequence=2))
    assert refused.value.recovery is Recovery.RUN_AGAIN
    assert str(partition) in str(refused.value)


def test_a_clock_that_is_ahead_fails_a_batch_and_no_pipeline(
    any_kafka: LocalKafka, writer: Writer, new_topic: Callable[..., str]
) -> None:
    """Brokers of Kafka 4 refuse what is an hour ahead by default: a clock in local time, before
    it is set right, is so.
    """
    topic = new_topic(
        any_kafka.bootstrap_servers, 1, message_timestamp_after_max_ms=3_600_000,
    )  # fmt: skip
    partition = TopicPartition(topic, 0)
    writer.transaction.add_partitions([partition])
    with pytest.raises(SendFailed) as refused:
        writer.producer().send(appends_to(partition, fragments([b"early"], ahead_s=7_200)))
    assert refused.value.recovery is Recovery.RUN_AGAIN
    assert "INVALID_TIMESTAMP" in refused.value.message
    assert "clocks of driver" in refused.value.next_step
    assert "timestamp" in refused.value.next_step


def test_a_record_without_a_key_in_a_compacted_topic_names_topic_and_both_ways_out(
    any_kafka: LocalKafka, writer: Writer, new_topic: Callable[..., str]
) -> None:
    """The topic may have been made so in mid-life, and may be changed back."""
    compacted = new_topic(any_kafka.bootstrap_servers, 1, cleanup_policy="compact")
    partition = TopicPartition(compacted, 0)
    writer.transaction.add_partitions([partition])
    writer.producer().send(appends_to(partition, fragments([b"fits"], key=b"k")))
    with pytest.raises(ResourceError) as refused:
        writer.producer().send(appends_to(partition, fragments([b"does not"]), sequence=1))
    assert refused.value.recovery is Recovery.RESTART_IF_WORKED
    assert refused.value.details["topic"] == compacted
    for text in (str(partition), "INVALID_RECORD", "Compacted topic cannot accept message"):
        assert text in refused.value.message
    for text in ("`key`", "filter", "cleanup.policy back to delete"):
        assert text in refused.value.next_step


def test_a_record_larger_than_the_topic_takes_names_topic_size_and_limit(
    any_kafka: LocalKafka, writer: Writer, new_topic: Callable[..., str]
) -> None:
    small = new_topic(any_kafka.bootstrap_servers, 1, max_message_bytes=2000)
    partition = TopicPartition(small, 0)
    writer.transaction.add_partitions([partition])
    with pytest.raises(RecordTooLarge) as refused:
        writer.producer().send(one_by_one(partition, [b"fits", b"x" * 5000]))
    for text in (small, "5", "max.message.bytes=2000"):
        assert text in str(refused.value)


def test_a_missing_topic_and_a_missing_partition_are_named(writer: Writer, topic: str) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        writer.producer().send(one_by_one(TopicPartition("no-such-topic", 0), [b"x"]))
    with pytest.raises(SendFailed, match=f"{topic} has no partition 99"):
        writer.producer().send(one_by_one(TopicPartition(topic, 99), [b"x"]))


def test_a_send_that_nobody_answers_ends_at_the_delivery_timeout(
    writer: Writer, losing: LosingClient, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    writer.transaction.add_partitions([partition])
    losing.lose("ProduceFrame", lambda _: "request")
    with pytest.raises(SendFailed, match=r"delivery\.timeout\.ms=400") as failed:
        writer.with_patience(400).producer().send(one_by_one(partition, [b"x"]))
    assert str(partition) in str(failed.value)


def test_a_waiting_send_stops_when_it_is_told_to(
    writer: Writer, losing: LosingClient, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    writer.transaction.add_partitions([partition])
    losing.lose("ProduceFrame", lambda _: "request")
    poisoned = threading.Event()
    threading.Timer(0.3, poisoned.set).start()

    def should_stop() -> None:
        if poisoned.is_set():
            raise EpochPoisoned("another task failed")

    with pytest.raises(EpochPoisoned):
        writer.producer().send(one_by_one(partition, [b"x"]), should_stop=should_stop)


def test_requests_are_filled_with_several_partitions_and_kept_below_their_limit(
    writer: Writer, losing: LosingClient, topic: str
) -> None:
    partitions = [TopicPartition(topic, n) for n in range(4)]
    writer.transaction.add_partitions(partitions)
    # Coordinator and leaders are awake after this, so that nothing below has to be sent twice.
    writer.producer().send([a for p in partitions for a in one_by_one(p, [b"first"])])
    appends = [
        a
        for p in partitions
        for a in appends_to(p, fragments([b"x" * 1000] * 3, batch_bytes=1500), 1)
    ]
    losing.lose("ProduceFrame", first(0, ""))
    writer.producer().send(appends)
    assert losing.seen["ProduceFrame"] == 3  # one batch per partition and request
    losing.lose("ProduceFrame", first(0, ""))
    writer.producer_settings = replace(
        writer.producer_settings, max_request_bytes=2300
    )  # room for two
    writer.producer().send([replace(a, base_sequence=a.base_sequence + 3) for a in appends])
    assert losing.seen["ProduceFrame"] == 6


@pytest.mark.parametrize("idempotent", [True, False])
def test_without_transactions_records_are_visible_at_once(
    losing: LosingClient, topic: str, any_kafka: LocalKafka, read_committed: Read, idempotent: bool
) -> None:
    identity = idempotent_identity(losing) if idempotent else ProducerIdentity(-1, -1)
    producer = PartitionProducer(
        losing, ProducerSettings(), identity, transactional_id=None, version=1
    )
    partition = TopicPartition(topic, 0)
    if idempotent:
        losing.lose("ProduceFrame", first(2, "answer"))
        producer.send(one_by_one(partition, numbered(5)))
        assert losing.lost == 2
    else:
        producer.send([Append(partition, fragments(numbered(5))[0], -1)])
    assert [m.value() for m in read_committed(any_kafka.bootstrap_servers, topic)] == numbered(5)


@pytest.mark.slow
def test_brokers_come_and_go_during_transactions_and_nothing_is_lost_or_repeated(
    read_committed: Read,
) -> None:
    """Leaders and coordinators die and return, one node at a time, while batches are written."""
    with LocalKafka(nodes=3) as cluster:
        client = KafkaClient(settings(cluster.bootstrap_servers)[0])
        topic = f"moves-{uuid.uuid4().hex[:8]}"
        client.create_topic(topic, 6, 3, {"min.insync.replicas": "2"})
        writer = Writer(client, "moving", timeout_ms=60_000)
        writer.transaction.take_over()
        stop = threading.Event()

        def faults() -> None:
            for node in cluster.nodes:
                node.kill()
                time.sleep(3)
                node.start()
                if stop.wait(3):
                    return

        killer = threading.Thread(target=faults)
        killer.start()
        expected: dict[int, list[bytes]] = {n: [] for n in range(6)}
        batch = 0
        while killer.is_alive() or batch < 3:
            values = {
                TopicPartition(topic, n): [f"{batch}-{n}-{i}".encode() for i in range(50)]
                for n in range(6)
            }
            writer.transaction.begin()
            writer.transaction.add_partitions(values)
            writer.producer().send([a for p, some in values.items() for a in one_by_one(p, some)])
            writer.transaction.commit_offsets("moving", {TopicPartition(topic, 0): batch})
            writer.transaction.commit()
            for partition, some in values.items():
                expected[partition.partition] += some
            batch += 1
        killer.join()
        seen: dict[int, list[bytes]] = {}
        for message in read_committed(cluster.bootstrap_servers, topic):
            seen.setdefault(message.partition(), []).append(message.value())
        client.close()
    assert seen == expected
    assert batch > 3
