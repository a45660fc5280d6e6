"""What a target brings along to be put through the contract: how to make it, feed it, break it and look at it.

To add a target: write a kit, make a fixture of it in ``conftest.py``, and name that fixture in ``KITS`` there.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from onceward.engine.target import AtomicTarget
from onceward.ids import PipelineId, pipeline_id
from onceward.sinks.kafka.settings import KafkaSinkSettings
from onceward.sinks.kafka.sink import KafkaSink
from onceward.sinks.kafka.target import KafkaTarget
from onceward.testing import LocalKafka
from onceward.wire.connections import ConnectionLost

Reader = Callable[[str, str], list[Message]]


class TargetKit(ABC):
    """One place to write to, of one pipeline. Whatever it reads back, it reads with a client that is not ours."""

    pipeline: PipelineId

    @abstractmethod
    def new_target(self) -> AtomicTarget:
        """The target as a new process of the pipeline would make it. The kit closes it in the end."""

    @abstractmethod
    def frame(self, values: Sequence[str], tasks: int = 2) -> DataFrame:
        """Rows for the target, one a value, written by so many tasks."""

    @abstractmethod
    def visible(self) -> Counter[str]:
        """The values that a reader of committed data finds."""

    @abstractmethod
    def ledger_sequences(self) -> list[int]:
        """The sequence numbers of the pipeline's committed ledger records, oldest first; a target that keeps only
        the newest one names that."""

    @abstractmethod
    def unanswered(self, target: AtomicTarget, *, carried_out: bool) -> AbstractContextManager[None]:
        """Inside, no commit and no abort of ``target`` gets an answer, whether it is carried out or never arrives."""

    @abstractmethod
    def close(self) -> None:
        """Close all targets."""


class KafkaKit(TargetKit):
    """A topic of three partitions, written in Kafka transactions."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, new_topic: Callable[..., str], reader: Reader) -> None:
        self.pipeline = pipeline_id(f"contract-{uuid.uuid4().hex[:10]}")
        self._spark = spark
        self._reader = reader
        self._bootstrap = kafka.bootstrap_servers
        self._topic = new_topic(self._bootstrap, 3)
        self._ledger_topic = new_topic(self._bootstrap, 1, prefix="ledger", cleanup_policy="compact")
        self._targets: list[KafkaTarget] = []

    def new_target(self) -> KafkaTarget:
        self._targets.append(KafkaTarget(self._settings()))
        return self._targets[-1]

    def _settings(self) -> KafkaSinkSettings:
        return KafkaSink(
            bootstrap_servers=self._bootstrap,
            pipeline_id=self.pipeline,
            topic=self._topic,
            ledger_topic=self._ledger_topic,
        ).settings

    def frame(self, values: Sequence[str], tasks: int = 2) -> DataFrame:
        rows = self._spark.createDataFrame([(value, value) for value in values], "key string, value string")
        return rows.repartition(tasks)

    def visible(self) -> Counter[str]:
        return Counter(message.value().decode() for message in self._reader(self._bootstrap, self._topic))

    def ledger_sequences(self) -> list[int]:
        messages = self._reader(self._bootstrap, self._ledger_topic)
        return [json.loads(message.value())["sequence"] for message in messages]

    @contextmanager
    def unanswered(self, target: AtomicTarget, *, carried_out: bool) -> Iterator[None]:
        assert isinstance(target, KafkaTarget)
        client, transaction = target._client, target._transaction
        send, patience_ms = client.send, transaction.patience_ms

        def losing(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
            if not type(request).__name__.startswith("EndTxn"):
                return send(request, node_id, timeout_ms)
            outcome: Future[Any] = Future()
            lost = ConnectionLost("lost on purpose")
            if carried_out:
                send(request, node_id, timeout_ms).add_done_callback(lambda _: outcome.set_exception(lost))
            else:
                outcome.set_exception(lost)
            return outcome

        client.send = losing  # type: ignore[method-assign]
        transaction.patience_ms = 2_000
        try:
            yield
        finally:
            client.send = send  # type: ignore[method-assign]
            transaction.patience_ms = patience_ms

    def close(self) -> None:
        for target in self._targets:
            target.close()
