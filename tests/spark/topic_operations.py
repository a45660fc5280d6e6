"""What operators do to topics while a pipeline lives: through librdkafka, until all brokers
know.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline

import fault_table
from onceward.ids import TopicPartition as Place
from onceward.kafka.wire.client import KafkaClient
from support.wire_fixtures import Writer, appends_to, fragments, settings

WAIT_SECONDS = 120


def until(condition: Callable[[], object], query: StreamingQuery, what: str) -> None:
    """Wait while ``query`` runs."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def admin(pipeline: Pipeline) -> AdminClient:
    return AdminClient({"bootstrap.servers": pipeline.bootstrap})


def partitions_of(pipeline: Pipeline, topic: str) -> list[int]:
    found = admin(pipeline).list_topics(topic, timeout=10).topics[topic]
    return [] if found.error else sorted(found.partitions)


def add_partitions(pipeline: Pipeline, topic: str, total: int) -> None:
    client = admin(pipeline)
    client.create_partitions([NewPartitions(topic, total)])[topic].result(30)
    _until_all_know(pipeline, topic, total)


def delete(pipeline: Pipeline, topic: str) -> None:
    client = admin(pipeline)
    client.delete_topics([topic], operation_timeout=30)[topic].result(30)
    _until_all_know(pipeline, topic, 0)


def create(pipeline: Pipeline, topic: str, partitions: int) -> None:
    client = admin(pipeline)
    client.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    _until_all_know(pipeline, topic, partitions)


def _until_all_know(pipeline: Pipeline, topic: str, partitions: int) -> None:
    """As many partitions, and 0 of a topic that is gone."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(partitions_of(pipeline, topic)) != partitions:
        assert time.monotonic() < deadline, (
            f"{topic} has {partitions_of(pipeline, topic)}, not {partitions}"
        )
        time.sleep(0.05)


def produce(
    pipeline: Pipeline, topic: str, records: list[tuple[bytes, bytes]], partition: int
) -> None:
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(60) == 0


def commit_ledger_record(pipeline: Pipeline, record: dict[str, Any]) -> None:
    """``record`` as the pipeline that it names would have committed it, so that it is believed."""
    client = KafkaClient(settings(pipeline.bootstrap)[0])
    writer, where = Writer(client, record["pipeline"]), Place(pipeline.ledger_topic, 0)
    identity = writer.transaction.take_over()
    named = record | {"attempt": list(identity)}
    writer.transaction.begin()
    writer.transaction.add_partitions([where])
    parts = fragments([json.dumps(named).encode()], key=record["pipeline"].encode())
    writer.producer().send(appends_to(where, parts))
    writer.transaction.commit()
    client.close()


def expire(pipeline: Pipeline, topic: str, before: dict[int, int]) -> None:
    """Remove the records before these offsets, as retention would."""
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    client = admin(pipeline)
    for result in client.delete_records(wanted, operation_timeout=30).values():
        fault_table.fired(
            result.result(30).low_watermark in before.values(), "the records were not removed"
        )


def set_policy(pipeline: Pipeline, topic: str, policy: str) -> None:
    """Set ``cleanup.policy``."""
    set_config(pipeline, topic, "cleanup.policy", policy)


def set_config(pipeline: Pipeline, topic: str, name: str, value: object) -> None:
    """As ``kafka-configs --alter --add-config`` does."""
    entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(pipeline)
    client.incremental_alter_configs([resource])[resource].result(30)
