"""Counts orders by minute and key: a query with state, whose counts are exact after any crash.

Reads topic ``orders`` (the key is a country), and writes to ``orders-per-minute`` each count that
has changed. Run it with ``python examples/count_by_minute.py``, kill it, and start it again: state
and output go on from the same batch.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 — the name that PySpark's own documentation uses
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow


def start(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    orders = ow.kafka_source(
        spark, bootstrap_servers=servers, topic="orders", max_offsets_per_trigger=100_000
    )
    counts = (
        orders.withWatermark("timestamp", "10 minutes")
        .groupBy(F.window("timestamp", "1 minute"), "key")
        .agg(F.count("*").alias("orders"))
        .select(
            "key",
            F.to_json(F.struct(F.col("window.start").alias("minute"), "orders")).alias("value"),
        )
    )
    sink = ow.KafkaSink(
        bootstrap_servers=servers,
        topic="orders-per-minute",
        pipeline_id="orders-per-minute",
        create_topic_partitions=4,
    )
    return (
        counts.writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(sink)
        .start()
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bootstrap-servers", default="localhost:9092")
    arguments.add_argument("--checkpoint", default="checkpoints/orders-per-minute")
    given = arguments.parse_args()
    session = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
    query = start(session, given.bootstrap_servers, given.checkpoint)
    ow.wait(query)
