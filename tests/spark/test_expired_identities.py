"""The broker forgets who has been idle for too long: producer ids (per partition), then whole
transactional ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline
from topic_operations import until

import fault_table
import onceward
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.target import Write
from onceward.errors import BatchFailed, Fenced
from onceward.ids import BatchId, SourceRange, TopicPartition
from onceward.kafka.sink.sink import KafkaTarget
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.transactions.coordinator import TransactionCoordinator
from onceward.spark.batch.query import RunningBatch
from onceward_testing import LocalKafka
from support.wire_fixtures import Writer, settings

FORGET_PRODUCERS = {
    "producer.id.expiration.ms": 1_000,
    "producer.id.expiration.check.interval.ms": 200,
}
FORGET_IDS = {
    # a batch must reach the broker within that, on a busy machine, too
    "transactional.id.expiration.ms": 12_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
}
VERSIONS = [pytest.param("4.3.1"), pytest.param("3.9.1", marks=pytest.mark.slow)]
TRANSACTIONAL_ID_NOT_FOUND = 105


@pytest.fixture(scope="module", params=VERSIONS)
def forgetful_of_producers(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    with LocalKafka(version=request.param, properties=FORGET_PRODUCERS) as kafka:
        yield kafka


@pytest.fixture(scope="module", params=VERSIONS)
def forgetful_of_ids(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    with LocalKafka(version=request.param, properties={**FORGET_PRODUCERS, **FORGET_IDS}) as kafka:
        yield kafka


@pytest.fixture
def client_of() -> Iterator[Callable[[Pipeline], KafkaClient]]:
    made: list[KafkaClient] = []

    def make(pipeline: Pipeline) -> KafkaClient:
        made.append(KafkaClient(pipeline.sink().settings.client))
        return made[-1]

    yield make
    for client in made:
        client.close()


def forgotten_producer(client: KafkaClient, pipeline: Pipeline) -> bool:
    """Does no partition of the output know a producer any more?"""
    partitions = range(3)
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(
                name=pipeline.output, partition_indexes=list(partitions)
            )
        ]
    )
    leader = client.known_leader(TopicPartition(pipeline.output, 0))
    (topic,) = client.call(request, leader).topics
    assert [p.error_code for p in topic.partitions] == [0 for _ in partitions]
    return not any(p.active_producers for p in topic.partitions)


def forgotten_id(client: KafkaClient, transactional_id: str) -> bool:
    """Does the coordinator not know the transactional id any more?"""
    try:
        TransactionCoordinator(client, transactional_id).describe(Deadline(30_000))
    except Refused as refused:
        return refused.code == TRANSACTIONAL_ID_NOT_FOUND
    return False


def wait_until_forgotten(client: KafkaClient, transactional_id: str) -> None:
    deadline = time.monotonic() + 60
    while not forgotten_id(client, transactional_id):
        fault_table.fired(time.monotonic() < deadline, "the transactional id never expired")
        time.sleep(0.2)


def one_batch(pipeline: Pipeline) -> StreamingQuery:
    """A running query that has written 40 records, and now is idle."""
    pipeline.feed(40)
    query = pipeline.start(trigger={"processingTime": "0 seconds"})
    until(lambda: len(pipeline.visible()) == 40, query, "the first records never came")
    return query


@pytest.mark.fault("producer-id-expired")
def test_an_idle_pipeline_goes_on_when_the_partitions_have_forgotten_it(
    forgetful_of_producers: LocalKafka, pipeline_on: Any, client_of: Any
):
    pipeline = pipeline_on(forgetful_of_producers)
    query = one_batch(pipeline)
    client = client_of(pipeline)
    until(
        lambda: forgotten_producer(client, pipeline),
        query,
        "INVALID: the producer id never expired",
    )
    pipeline.feed(80)
    until(lambda: len(pipeline.visible()) >= 120, query, "nothing more was written")
    query.stop()
    pipeline.run()
    pipeline.assert_exactly_once()
    assert len({record["attempt"][0] for record in pipeline.ledger()}) == 1


@pytest.mark.slow
@pytest.mark.fault("transactional-id-expired", "producer-id-expired")
def test_an_idle_pipeline_goes_on_when_the_coordinator_has_forgotten_it(
    forgetful_of_ids: LocalKafka, pipeline_on: Any, client_of: Any
):
    pipeline = pipeline_on(forgetful_of_ids)
    query = one_batch(pipeline)
    client = client_of(pipeline)
    until(
        lambda: forgotten_id(client, pipeline.name),
        query,
        "INVALID: the transactional id never expired",
    )
    pipeline.feed(40)
    until(lambda: len(pipeline.visible()) >= 80, query, "nothing more was written")
    query.stop()
    wait_until_forgotten(client, pipeline.name)
    pipeline.feed(40)
    pipeline.run()  # and so does a start after a long time without any
    pipeline.assert_exactly_once()
    assert len({record["attempt"][0] for record in pipeline.ledger()}) >= 3


@pytest.mark.slow
@pytest.mark.fault("transactional-id-expired")
def test_a_forgotten_id_is_noticed_before_an_attempt_is_spent_on_it(
    forgetful_of_ids: LocalKafka, new_topic: Any
):
    """So that a pipeline with ``batch_attempts=1`` does not stop after a long time without
    records.
    """
    topic = new_topic(forgetful_of_ids.bootstrap_servers)
    client = KafkaClient(settings(forgetful_of_ids.bootstrap_servers)[0])
    try:
        writer = Writer(client, f"idle-{topic}")
        before = writer.transaction.take_over()
        writer.commit({TopicPartition(topic, 0): [b"before"]})
        wait_until_forgotten(client, writer.transaction.transactional_id)
        writer.commit({TopicPartition(topic, 0): [b"after"]})
        assert writer.transaction.identity.producer_id != before.producer_id
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.fault("transactional-id-expired", "zombie-driver")
def test_a_zombie_whose_id_expired_along_with_its_heirs_writes_nothing(
    forgetful_of_ids: LocalKafka, pipeline_on: Any, client_of: Any
):
    """The coordinator knows neither of the two, and so it fences nobody; the ledger knows the
    heir, who goes on.
    """
    pipeline = pipeline_on(forgetful_of_ids)
    zombie = one_batch(pipeline)
    heir = Heir(pipeline)
    heir.write([f"heir-{n}" for n in range(20)])
    client = client_of(pipeline)
    until(
        lambda: forgotten_id(client, pipeline.name),
        zombie,
        "INVALID: the transactional id never expired",
    )
    pipeline.feed(40)
    while zombie.isActive:
        assert len(pipeline.visible()) == 60, "the zombie goes on"
    error = onceward.error_of(zombie)
    assert type(error) is Fenced
    assert "leave this copy stopped" in error.next_step
    heir.write([f"heir-{n}" for n in range(20, 30)])
    heir.target.close()
    written = [message.value() for message in pipeline.visible()]
    assert len(written) == 70
    assert {value for value in written if value.startswith(b"heir-")} == {
        b"heir-%d" % n for n in range(30)
    }
    assert [record["sequence"] for record in pipeline.ledger()] == [0, 1, 2]
    assert pipeline.open_transactions() == []


class Heir:
    """A newer process of the pipeline: it takes over, and writes batch after batch."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.target = KafkaTarget(pipeline.sink().settings)
        newest = self.target.open(self.batch(1))
        assert newest is not None
        self.newest: LedgerRecord = newest

    def batch(self, number: int) -> RunningBatch:
        first = self.pipeline.ledger()[0]
        end = first["sources"][0]["end"]
        return RunningBatch(
            batch=BatchId(first["query_id"], number),
            run_id="heir",
            name="",
            sources=(SourceRange(end, end),),
            kafka_sources=(),
            stateful=False,
            input_records=None,
        )

    def write(self, values: list[str], attempts: int = 3) -> None:
        """As the engine does: again, when the coordinator has forgotten the heir, too."""
        running = self.batch(self.newest.sequence + 1)
        rows = self.pipeline.spark.createDataFrame([(value,) for value in values], "value string")
        attempt = self.target.begin(self.newest, running)
        try:
            attempt.write(Write(rows), running)
            outputs, sequence = attempt.prepared().outputs, self.newest.sequence + 1
            record = LedgerRecord(
                self.newest.pipeline,
                sequence,
                running.batch,
                running.sources,
                attempt.id,
                outputs,
                0,
            )
            attempt.stage(record, running)
        except BatchFailed:
            attempt.abort()
            if attempts == 1:
                raise
            self.write(values, attempts - 1)
            return
        attempt.commit()
        self.newest = record
