"""What the driver does with a batch, without Spark: fence, read the ledger, stage, commit, settle.

The verdict on offsets and ledger is librdkafka's.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_INVALID, Consumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewPartitions

from onceward import KafkaSink
from onceward.engine.spark_query import KafkaSource, RunningBatch
from onceward.errors import CommitInDoubt, Fenced
from onceward.ids import BatchId, PipelineId, ProducerIdentity, SourceRange
from onceward.ledger.record import LedgerRecord
from onceward.ledger.topic import Ledger
from onceward.records.partitioner import partition_of_keys
from onceward.sinks.kafka.target import KafkaTarget
from onceward.sources.kafka import _looked_up
from onceward.testing import LocalKafka
from onceward.wire.client import KafkaClient
from onceward.wire.connections import ConnectionLost
from wire_fixtures import Writer, appends_to, settings

pytestmark = pytest.mark.broker

NOBODY = ProducerIdentity(-1, -1)
A_WHILE = 1.5  # how long an answer is held back for something that must not happen meanwhile


class Driver:
    """One pipeline on one cluster; `new()` is its target as a new process would make it."""

    def __init__(self, kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]) -> None:
        self.bootstrap = kafka.bootstrap_servers
        self.name = PipelineId(f"driver-{uuid.uuid4().hex[:10]}")
        self.source = new_topic(self.bootstrap, prefix="in")
        self.topic = new_topic(self.bootstrap, prefix="out")
        self.ledger_topic = new_topic(self.bootstrap, prefix="ledger", cleanup_policy="compact")
        self._read = read_committed
        self._targets: list[KafkaTarget] = []

    def new(self) -> KafkaTarget:
        sink = KafkaSink(
            bootstrap_servers=self.bootstrap,
            pipeline_id=self.name,
            topic=self.topic,
            ledger_topic=self.ledger_topic,
        )
        self._targets.append(KafkaTarget(sink.settings))
        return self._targets[-1]

    def running(self, number: int) -> RunningBatch:
        """Batch ``number`` of a query that reads ten records a batch from one partition on the same cluster."""
        start, end = ({self.source: {"0": number * 10 + extra}} for extra in (0, 10))
        return RunningBatch(
            batch=BatchId("3b6c0de1-0000-4000-8000-000000000001", number),
            run_id="3b6c0de1-0000-4000-8000-000000000002",
            name="",
            sources=(SourceRange(start, end),),
            kafka_sources=(KafkaSource(0, frozenset(self.bootstrap.split(","))),),
            stateful=False,
            input_records=None,
        )

    def record(self, number: int, identity: ProducerIdentity = NOBODY) -> LedgerRecord:
        running = self.running(number)
        return LedgerRecord(self.name, number, running.batch, running.sources, {}, identity, 1_700_000_000_000)

    def stage(self, target: KafkaTarget, number: int) -> LedgerRecord:
        record = self.record(number, target.begin())
        target.stage(record, self.running(number))
        return record

    def committed_sequences(self) -> list[int]:
        """Of the ledger records that a ``read_committed`` consumer is given."""
        return [json.loads(m.value())["sequence"] for m in self._read(self.bootstrap, self.ledger_topic)]

    def group_offset(self) -> int | None:
        """Where the pipeline's consumer group stands."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        try:
            (found,) = consumer.committed([Position(self.source, 0)], timeout=30)
        finally:
            consumer.close()
        return None if found.offset == OFFSET_INVALID else found.offset

    def move_group(self, offset: int) -> None:
        """As an operator does with ``kafka-consumer-groups --reset-offsets``."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        consumer.commit(offsets=[Position(self.source, 0, offset)], asynchronous=False)
        consumer.close()

    def move_ledger(self) -> int:
        """Add partitions to the ledger topic, so many that this pipeline's key has another place; how many now."""
        key = pa.array([self.name.encode()], pa.binary())
        count = next(n for n in range(2, 100) if partition_of_keys(key, n)[0] != 0)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(self.ledger_topic, count)])[self.ledger_topic].result(30)
        for _ in range(600):
            found = admin.list_topics(self.ledger_topic, timeout=30).topics[self.ledger_topic].partitions
            if len(found) == count and all(partition.leader >= 0 for partition in found.values()):
                return count
            time.sleep(0.05)
        raise AssertionError(f"{self.ledger_topic} never got {count} partitions")

    def close(self) -> None:
        for target in self._targets:
            target.close()


@pytest.fixture
def driver(
    any_kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]
) -> Iterator[Driver]:
    driver = Driver(any_kafka, new_topic, read_committed)
    yield driver
    driver.close()


def test_offsets_and_ledger_record_are_there_with_the_commit_and_not_before(driver: Driver) -> None:
    target = driver.new()
    assert target.open(driver.running(0)) is None
    record = driver.stage(target, 0)
    assert driver.new().glance() is None
    target.commit()
    assert driver.committed_sequences() == [0]
    assert driver.group_offset() == 10
    assert driver.new().open(driver.running(1)) == record


def test_offsets_and_ledger_record_of_an_aborted_attempt_never_were(driver: Driver) -> None:
    target = driver.new()
    target.open(driver.running(0))
    driver.stage(target, 0)
    target.abort()
    assert driver.committed_sequences() == []
    assert driver.group_offset() is None
    assert driver.new().glance() is None
    driver.stage(target, 0)
    target.commit()
    assert driver.committed_sequences() == [0]


def test_what_a_predecessor_commits_just_before_it_is_fenced_is_found(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the ledger first and fences afterwards overlooks it, and writes that batch again."""
    predecessor, heir = driver.new(), driver.new()
    predecessor.open(driver.running(0))
    take_over = heir._transaction.take_over
    committed: list[LedgerRecord] = []

    def at_the_last_moment() -> ProducerIdentity:
        committed.append(driver.stage(predecessor, 0))
        predecessor.commit()
        return take_over()

    monkeypatch.setattr(heir._transaction, "take_over", at_the_last_moment)
    assert heir.open(driver.running(0)) == committed[0]


def test_a_record_whose_transaction_is_not_decided_is_waited_for_when_a_run_begins(driver: Driver) -> None:
    """As right after a restart: ``EndTxn`` is answered before its markers are in the log. A glance will not do."""
    client = KafkaClient(settings(driver.bootstrap)[0])
    writer = Writer(client, f"slow-markers-{driver.name}")
    ledger = Ledger(client, driver.ledger_topic, driver.name)
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.transaction.add_partitions([ledger.partition()])
    record = driver.record(0)
    writer.producer().send(appends_to(ledger.partition(), [ledger.record_to_append(record)]))
    heir = driver.new()
    assert heir.glance() is None
    decide = threading.Timer(1.0, writer.transaction.commit)
    decide.start()
    assert heir.open(driver.running(0)) == record
    decide.join()
    client.close()


def test_end_txn_waits_until_the_ledger_record_is_acknowledged(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a batch could commit whose record was lost on its way: the next start would write it again."""
    target = driver.new()
    target.open(driver.running(0))
    send = target._client.send
    asked, answered = threading.Event(), threading.Event()
    too_early: list[str] = []

    def hold(answer: Future[Any], held: Future[Any]) -> None:
        asked.wait(A_WHILE)
        answered.set()
        answer.add_done_callback(lambda done: held.set_result(done.result()))

    def holding(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        name = type(request).__name__
        if name == "EndTxnRequest":
            if not answered.is_set():
                too_early.append("EndTxn was sent before the answer to Produce")
            asked.set()
        answer = send(request, node_id, timeout_ms)
        if name != "ProduceFrame":
            return answer
        held: Future[Any] = Future()
        threading.Thread(target=hold, args=(answer, held)).start()
        return held

    monkeypatch.setattr(target._client, "send", holding)
    driver.stage(target, 0)
    target.commit()
    assert too_early == []
    assert answered.is_set()
    assert driver.committed_sequences() == [0]


def test_an_end_txn_that_arrives_after_the_doubt_was_settled_finds_nothing_to_commit(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling answers "not committed" only when that can no longer change."""
    target = driver.new()
    target.open(driver.running(0))
    driver.stage(target, 0)
    client, send = target._client, target._client.send
    under_way: list[tuple[Any, Any]] = []

    def held(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        if not type(request).__name__.startswith("EndTxn"):
            return send(request, node_id, timeout_ms)
        under_way.append((request, node_id))
        lost: Future[Any] = Future()
        lost.set_exception(ConnectionLost("held on its way"))
        return lost

    target._transaction.patience_ms = 1_000
    monkeypatch.setattr(client, "send", held)
    with pytest.raises(CommitInDoubt):
        target.commit()
    monkeypatch.setattr(client, "send", send)
    target._transaction.patience_ms = 30_000
    assert target.settle() is None
    late = send(*under_way[0], 30_000).result(30)
    assert late.error_code != 0
    assert driver.committed_sequences() == []
    assert driver.group_offset() is None
    record = driver.stage(target, 0)
    target.commit()
    assert driver.committed_sequences() == [0]
    assert driver.new().glance() == record


@pytest.mark.parametrize("doing", ["stage", "settle"])
def test_an_old_copy_does_not_abort_what_its_heir_has_open(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """``InitProducerId`` with an old identity is refused only after the coordinator has aborted what is open."""
    old, heir = driver.new(), driver.new()
    old.open(driver.running(0))
    driver.stage(old, 0)
    if doing == "stage":
        old.commit()
    else:
        send = old._client.send

        def lose(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
            if not type(request).__name__.startswith("EndTxn"):
                return send(request, node_id, timeout_ms)
            lost: Future[Any] = Future()
            lost.set_exception(ConnectionLost("lost on purpose"))
            return lost

        old._transaction.patience_ms = 1_000
        monkeypatch.setattr(old._client, "send", lose)
        with pytest.raises(CommitInDoubt):
            old.commit()
        old._transaction.patience_ms = 30_000
        monkeypatch.setattr(old._client, "send", send)
    newest = heir.open(driver.running(0))
    number = 0 if newest is None else 1
    driver.stage(heir, number)
    with pytest.raises(Fenced):
        old.settle() if doing == "settle" else driver.stage(old, number)
    heir.commit()
    assert driver.committed_sequences()[-1] == number
    assert driver.group_offset() == number * 10 + 10


def test_the_ledger_says_where_a_source_goes_on_not_the_consumer_group(driver: Driver) -> None:
    """Anybody may move the group's offsets; nobody but the pipeline's own transaction writes its ledger record."""
    target = driver.new()
    target.open(driver.running(0))
    driver.stage(target, 0)
    target.commit()
    driver.move_group(3)
    assert driver.group_offset() == 3
    client = KafkaClient(settings(driver.bootstrap)[0])
    positions = _looked_up(client, [driver.source], "ledger", driver.name, "earliest", driver.ledger_topic)
    client.close()
    assert json.loads(positions) == {driver.source: {"0": 10}}


def test_a_ledger_record_is_found_after_its_key_moved_to_another_partition(driver: Driver) -> None:
    """Partitions that somebody adds to the ledger topic move keys; what was written before stays where it is."""
    target = driver.new()
    target.open(driver.running(0))
    record = driver.stage(target, 0)
    target.commit()
    count = driver.move_ledger()
    heir = driver.new()
    assert heir.open(driver.running(1)) == record
    newer = driver.stage(heir, 1)
    heir.commit()
    assert count > 1
    assert driver.new().open(driver.running(2)) == newer
