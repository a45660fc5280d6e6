"""The driver's side of a pipeline's batches, without Spark: its topics, its targets, and what
librdkafka reads of them.

For tests in ``tests/broker``, by the fixture ``driver``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_INVALID, Consumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewPartitions

from onceward import KafkaSink
from onceward.engine.ledger.record import LedgerRecord
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.kafka.records.partitioner import partition_of_keys
from onceward.kafka.sink.attempt import KafkaAttempt
from onceward.kafka.sink.sink import KafkaTarget
from onceward.spark.batch.query import KafkaSource, RunningBatch
from onceward_testing import LocalKafka

NOBODY = AttemptId(-1, -1)


class Driver:
    """One pipeline on one cluster; `new()` is its target as a new process would make it."""

    def __init__(
        self, kafka: LocalKafka, new_topic: Callable[..., str], read_committed: Callable[..., Any]
    ) -> None:
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
        """Batch ``number`` of a query that reads ten records a batch from one partition on the
        same cluster.
        """
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

    def record(self, number: int, attempt: AttemptId = NOBODY) -> LedgerRecord:
        running = self.running(number)
        return LedgerRecord(
            self.name, number, running.batch, running.sources, attempt, {}, 1_700_000_000_000
        )

    def stage(
        self, target: KafkaTarget, number: int, newest: LedgerRecord | None = None
    ) -> KafkaAttempt:
        """An attempt at the batch, which has all but the commit behind it.

        :param newest: what the driver takes for the newest record; default: that of the batch
            before.
        """
        known = newest or (self.record(number - 1) if number else None)
        attempt = target.begin(known, self.running(number))
        attempt.stage(self.record(number, attempt.id), self.running(number))
        return attempt

    def commit(self, target: KafkaTarget, number: int) -> LedgerRecord:
        attempt = self.stage(target, number)
        attempt.commit()
        return attempt.record

    def committed_sequences(self) -> list[int]:
        """Of the ledger records that a ``read_committed`` consumer is given."""
        return [
            json.loads(m.value())["sequence"]
            for m in self._read(self.bootstrap, self.ledger_topic)
        ]

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
        """Add partitions to the ledger topic, so many that this pipeline's key has another place;
        how many now.
        """
        key = pa.array([self.name.encode()], pa.binary())
        count = next(n for n in range(2, 100) if partition_of_keys(key, n)[0] != 0)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(self.ledger_topic, count)])[
            self.ledger_topic
        ].result(30)
        for _ in range(600):
            found = (
                admin.list_topics(self.ledger_topic, timeout=30)
                .topics[self.ledger_topic]
                .partitions
            )
            if len(found) == count and all(partition.leader >= 0 for partition in found.values()):
                return count
            time.sleep(0.05)
        raise AssertionError(f"{self.ledger_topic} never got {count} partitions")

    def close(self) -> None:
        for target in self._targets:
            target.close()
