"""A ledger topic as dashboards look at it, on a real broker: what is committed is seen, whoever else
has a transaction open, and nothing is fetched twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import onceward as ow
from onceward.engine.ledger.record import LedgerRecord
from onceward.ids import BatchId, PipelineId
from onceward.kafka.ledger import reader as readers
from onceward.kafka.ledger.reader import LedgerTopicReader
from onceward.kafka.ledger.topic import key_partition
from onceward.kafka.records.reader import RecordBatch
from onceward.kafka.wire.client import KafkaClient
from onceward_testing import LocalKafka
from support.wire_fixtures import settings


@pytest.fixture
def ledger(kafka: LocalKafka, new_topic: Callable[..., str]) -> ow.KafkaLedger:
    topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
    return ow.KafkaLedger(kafka.bootstrap_servers, topic)


@pytest.fixture
def reader(ledger: ow.KafkaLedger) -> Iterator[LedgerTopicReader]:
    client = KafkaClient(settings(str(ledger.bootstrap_servers))[0])
    yield LedgerTopicReader(client, ledger.topic)
    client.close()


def commit(ledger: ow.KafkaLedger, pipeline: str, count: int) -> None:
    chain = ledger.chain(PipelineId(pipeline))
    newest = chain.take()
    for _ in range(count):
        number = 0 if newest is None else newest.sequence + 1
        newest = LedgerRecord(
            PipelineId(pipeline), number, BatchId("q", number), (), chain.begin(newest), {}, 0
        )
        chain.append(newest)
    chain.settle()  # waits for the markers
    chain.close()


def sequences(reader: LedgerTopicReader, pipeline: str, limit: int = 100) -> list[int]:
    return [record.sequence for record in reader.recent(PipelineId(pipeline), limit)]


def test_what_is_new_is_read_and_nothing_twice(
    ledger: ow.KafkaLedger, reader: LedgerTopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(ledger, "a", 3)
    commit(ledger, "b", 2)
    assert reader.pipelines() == ["a", "b"]
    assert (sequences(reader, "a"), sequences(reader, "b")) == ([2, 1, 0], [1, 0])
    taken: list[int] = []
    take = readers._Place._take
    end = reader._places[0].log.position

    def counted(place: readers._Place, batch: RecordBatch) -> None:
        taken.append(batch.base_offset)
        take(place, batch)

    monkeypatch.setattr(readers._Place, "_take", counted)
    assert sequences(reader, "a", 2) == [2, 1]
    assert taken == []
    commit(ledger, "a", 1)
    assert sequences(reader, "a") == [3, 2, 1, 0]
    assert taken == sorted(set(taken))
    assert taken[0] == end
    assert sequences(reader, "a", 1_000) == [3, 2, 1, 0]
    assert sequences(reader, "nobody") == []


def test_a_pipeline_whose_place_has_moved_is_followed(
    ledger: ow.KafkaLedger, reader: LedgerTopicReader
) -> None:
    """Somebody adds partitions to the ledger: old records stay where they are."""
    commit(ledger, "a", 2)
    assert sequences(reader, "a") == [1, 0]
    number = next(n for n in range(2, 20) if key_partition(b"a", n) != 0)
    admin = AdminClient({"bootstrap.servers": str(ledger.bootstrap_servers)})
    admin.create_partitions([NewPartitions(ledger.topic, number)])[ledger.topic].result(60)
    until = time.monotonic() + 60
    while len(reader._client.topic_partitions([ledger.topic])[ledger.topic]) < number:
        assert time.monotonic() < until
    commit(ledger, "a", 2)
    while sequences(reader, "a") != [3, 2, 1, 0]:  # it asks for partitions once a second
        assert time.monotonic() < until
    assert sequences(reader, "a", 3) == [3, 2, 1]


def test_an_open_transaction_of_somebody_else_hides_nothing(
    ledger: ow.KafkaLedger, reader: LedgerTopicReader
) -> None:
    servers = {"bootstrap.servers": str(ledger.bootstrap_servers)}
    other = Producer({**servers, "transactional.id": f"{ledger.topic}-other"})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(ledger.topic, b'{"attempt": [1, 2]}', key=b"z", partition=0)
    assert other.flush(60) == 0
    commit(ledger, "a", 2)
    assert (reader.pipelines(), sequences(reader, "a")) == (["a"], [1, 0])
    other.commit_transaction(60)
    until = time.monotonic() + 60
    while reader.pipelines() != ["a", "z"]:
        assert time.monotonic() < until
    assert sequences(reader, "z") == [], "it does not name the producer that wrote it"


def test_what_is_aborted_or_a_strangers_is_no_record(
    ledger: ow.KafkaLedger, reader: LedgerTopicReader
) -> None:
    servers = {"bootstrap.servers": str(ledger.bootstrap_servers)}
    commit(ledger, "a", 1)
    other = Producer({**servers, "transactional.id": f"{ledger.topic}-other"})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(ledger.topic, b"{}", key=b"never", partition=0)
    assert other.flush(60) == 0
    other.abort_transaction(60)
    plain = Producer(servers)
    plain.produce(ledger.topic, b'{"attempt": [0, 0]}', key=b"a", partition=0)
    plain.produce(ledger.topic, b"{}", key=b"gone", partition=0)
    plain.produce(ledger.topic, None, key=b"gone", partition=0)
    assert plain.flush(60) == 0
    assert (reader.pipelines(), sequences(reader, "a")) == (["a"], [0])


def test_a_topic_that_is_created_again_is_another_one(
    ledger: ow.KafkaLedger, reader: LedgerTopicReader
) -> None:
    commit(ledger, "a", 3)
    assert sequences(reader, "a") == [2, 1, 0]
    admin = AdminClient({"bootstrap.servers": str(ledger.bootstrap_servers)})
    admin.delete_topics([ledger.topic])[ledger.topic].result(60)
    until = time.monotonic() + 60
    while reader.pipelines():
        assert time.monotonic() < until
    while True:
        try:
            admin.create_topics([NewTopic(ledger.topic, 2, config={"cleanup.policy": "compact"})])[
                ledger.topic
            ].result(60)
            break
        except KafkaException:
            assert time.monotonic() < until
    commit(ledger, "b", 5)
    while reader.pipelines() != ["b"]:
        assert time.monotonic() < until
    assert (sequences(reader, "a"), sequences(reader, "b")) == ([], [4, 3, 2, 1, 0])
