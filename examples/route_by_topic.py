"""Sends each event to the topic of its kind: one batch over several topics, visible in all of them
or in none.

Reads JSON such as ``{"kind": "click", ...}`` from topic ``events``, and writes to
``events-click``, ``events-view`` and, for any other kind, ``events-other``. These three must
exist: a sink without ``topic=`` creates none.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow

TOPIC_OF_AN_EVENT = """
    CASE get_json_object(CAST(value AS STRING), '$.kind')
        WHEN 'click' THEN 'events-click'
        WHEN 'view' THEN 'events-view'
        ELSE 'events-other'
    END AS topic
"""


def start(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    events = ow.kafka_source(
        spark, bootstrap_servers=servers, topic="events", max_offsets_per_trigger=100_000
    )
    routed = events.selectExpr("key", "value", "headers", TOPIC_OF_AN_EVENT)
    sink = ow.KafkaSink(bootstrap_servers=servers, pipeline_id="events-by-kind")
    return routed.writeStream.option("checkpointLocation", checkpoint).foreachBatch(sink).start()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bootstrap-servers", default="localhost:9092")
    arguments.add_argument("--checkpoint", default="checkpoints/events-by-kind")
    given = arguments.parse_args()
    session = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
    query = start(session, given.bootstrap_servers, given.checkpoint)
    ow.wait(query)
