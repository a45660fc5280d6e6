"""Tests of a pipeline of one's own on a real broker: ``python -m pytest
examples/own_pipeline_test``.
"""

from __future__ import annotations

from pathlib import Path

from kafka import KafkaProducer
from pipeline import start
from pyspark.sql import SparkSession

from onceward_testing import LocalKafka, exactly_once, read_topic


def send(servers: str, topic: str, values: list[str]) -> None:
    producer = KafkaProducer(bootstrap_servers=servers)
    for value in values:
        producer.send(topic, key=b"sensor-1", value=value.encode())
    producer.flush()
    producer.close()


def run_to_the_end(spark: SparkSession, kafka: LocalKafka, checkpoint: Path) -> None:
    query = start(spark, kafka.bootstrap_servers, "fahrenheit", "celsius", str(checkpoint))
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_a_restart_neither_loses_nor_repeats(
    spark: SparkSession, local_kafka: LocalKafka, tmp_path: Path
):
    servers = local_kafka.bootstrap_servers
    local_kafka.kafka_tool(
        "kafka-topics", "--create", "--topic", "fahrenheit", "--partitions", "1"
    )

    send(servers, "fahrenheit", ["32", "212", "not a number"])
    run_to_the_end(spark, local_kafka, tmp_path / "checkpoint")
    send(servers, "fahrenheit", ["32", "14"])
    run_to_the_end(spark, local_kafka, tmp_path / "checkpoint")

    visible = [record.value for record in read_topic(servers, "celsius")]
    verdict = exactly_once([b"0.0", b"100.0", b"0.0", b"-10.0"], visible)
    assert verdict.holds, verdict
