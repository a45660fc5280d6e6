"""A topic of three partitions, written in Kafka transactions, and read by librdkafka."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from onceward.engine.target import Target
from onceward.ids import pipeline_id
from onceward.kafka.sink.sink import KafkaSink, KafkaTarget
from onceward_testing import LocalKafka
from onceward_testing.sink_contract import SinkKit
from support.lost_answers import lost_end_txn

Reader = Callable[[str, str], list[Message]]


class KafkaKit(SinkKit):
    fences_writers = True

    def __init__(
        self, spark: SparkSession, kafka: LocalKafka, new_topic: Callable[..., str], reader: Reader
    ) -> None:
        self.pipeline = pipeline_id(f"contract-{uuid.uuid4().hex[:10]}")
        self._spark = spark
        self._reader = reader
        self._bootstrap = kafka.bootstrap_servers
        self._topic = new_topic(self._bootstrap, 3)
        self._ledger_topic = new_topic(
            self._bootstrap, 1, prefix="ledger", cleanup_policy="compact"
        )
        self._targets: list[KafkaTarget] = []

    def new_target(self) -> KafkaTarget:
        sink = KafkaSink(
            bootstrap_servers=self._bootstrap,
            pipeline_id=self.pipeline,
            topic=self._topic,
            ledger_topic=self._ledger_topic,
        )
        self._targets.append(KafkaTarget(sink.settings))
        return self._targets[-1]

    def frame(self, values: Sequence[str], tasks: int = 2) -> DataFrame:
        rows = self._spark.createDataFrame(
            [(value, value) for value in values], "key string, value string"
        )
        return rows.repartition(tasks)

    def visible(self) -> Counter[str]:
        return Counter(
            message.value().decode() for message in self._reader(self._bootstrap, self._topic)
        )

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, KafkaTarget)
        return lost_end_txn(target.run.chain, carried_out=carried_out)

    def close(self) -> None:
        for target in self._targets:
            target.close()
