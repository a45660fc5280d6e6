"""The queries that run against each other: the same source, the same projection, another sink. Driver only.

Called by :mod:`rounds`. Both sinks keep their defaults: Spark's own is the Java producer with its defaults
(idempotent, ``acks=all``; at least once), Onceward's is exactly once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from onceward.cli.bench.figures import ONCEWARD, SOURCE, SPARK_SINK
from onceward.engine.foreach_batch import error_of
from onceward.engine.spark_session import spark_conf
from onceward.sinks.kafka.sink import KafkaSink


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a topic. ``name`` is new for every query: checkpoint, pipeline and output topic are called so."""

    name: str
    bootstrap_servers: str
    source: str
    batch_records: int
    checkpoints: Path


def start_spark() -> SparkSession:
    """A session on two cores, with the settings that Onceward advises; all contenders run in it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        **spark_conf(),
        "spark.master": "local[2]",
        "spark.app.name": "onceward-bench",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder: Any = SparkSession.builder
    session: SparkSession = builder.config(map=settings).getOrCreate()
    return session


def jvm_pid(spark: SparkSession) -> int:
    """The process of the driver's JVM."""
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.jvm.java.lang.ProcessHandle.current().pid())


def collect_garbage(spark: SparkSession) -> None:
    """Nobody shall pay for what the one before left behind."""
    gateway: Any = spark.sparkContext._gateway
    gateway.jvm.java.lang.System.gc()


def run(spark: SparkSession, contender: str, copy: Copy) -> list[float]:
    """Copy the whole source with ``contender``; returns when all is written, with the seconds of each batch.

    :raises OncewardError: Onceward's own error, when it failed.
    """
    rows = _source(spark, copy)
    if contender == SOURCE:
        return _finished(rows.format("noop").start())
    if contender == SPARK_SINK:
        return _finished(
            rows.format("kafka")
            .option("kafka.bootstrap.servers", copy.bootstrap_servers)
            .option("topic", copy.name)
            .start()
        )
    if contender == ONCEWARD:
        sink = KafkaSink(bootstrap_servers=copy.bootstrap_servers, topic=copy.name, pipeline_id=copy.name)
        with contextlib.closing(sink):  # or its connections would still be there in the rounds that follow
            return _finished(rows.foreachBatch(sink).start())
    raise ValueError(contender)


def _source(spark: SparkSession, copy: Copy) -> DataStreamWriter:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", copy.bootstrap_servers)
        .option("subscribe", copy.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", copy.batch_records)
        .load()
        .selectExpr("key", "value")
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(copy.checkpoints / copy.name))
    )


def _finished(query: StreamingQuery) -> list[float]:
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if (error := error_of(query)) is not None:
            raise error from None
        raise
    return _batch_seconds(query)


def _batch_seconds(query: StreamingQuery) -> list[float]:
    """How long each batch that had input took, from its trigger to Spark's commit log."""
    return [batch.durationMs["triggerExecution"] / 1e3 for batch in query.recentProgress if batch.numInputRows]
