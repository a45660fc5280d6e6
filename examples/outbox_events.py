"""Publishes the events of an outbox table of MySQL: each to the topic of what it is about, exactly
once and in order.

    CREATE TABLE outbox (
        id CHAR(36) PRIMARY KEY,
        aggregate_type VARCHAR(100) NOT NULL,
        aggregate_id VARCHAR(100) NOT NULL,
        type VARCHAR(100) NOT NULL,
        payload JSON NOT NULL
    );

A service inserts an event in the transaction that makes it true; the two cannot disagree. It may
delete the row at once, even in the same transaction: the insert is in the binlog, which is what is
read here. So nothing polls, nothing is marked as sent, and the table stays empty.

The event of an ``order`` goes to topic ``outbox.event.order``, which must exist, with its
``aggregate_id`` as the key, ``payload`` as the value, and ``id`` and ``type`` as headers: what
Debezium's outbox event router makes of it.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow

EVENT = "id STRING, aggregate_type STRING, aggregate_id STRING, type STRING, payload STRING"
# An event that was published cannot be changed: whoever tries to shall hear of it. Deletions are
# housekeeping.
ADDED = """
    CASE WHEN op = 'u' THEN raise_error(concat('an event of the outbox was changed: ', after)) ELSE op IN ('c', 'r') END
"""


def start(
    spark: SparkSession, url: str, table: str, servers: str, checkpoint: str
) -> StreamingQuery:
    changes = ow.mysql_changes(spark, url=url, tables=[table], starting="initial")
    events = changes.where(ADDED).selectExpr(f"from_json(after, '{EVENT}') AS event", "position")
    records = events.selectExpr(
        "concat('outbox.event.', event.aggregate_type) AS topic",
        "event.aggregate_id AS key",
        "event.payload AS value",
        "array(struct('id' AS key, CAST(event.id AS BINARY) AS value),"
        " struct('type' AS key, CAST(event.type AS BINARY) AS value)) AS headers",
        "position",
    )
    sink = ow.KafkaSink(
        bootstrap_servers=servers, pipeline_id="outbox-events", order_by="position"
    )
    return records.writeStream.option("checkpointLocation", checkpoint).foreachBatch(sink).start()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument(
        "--mysql", default="mysql://root@localhost:3306/shop", help="where the outbox is"
    )
    arguments.add_argument("--table", default="shop.outbox")
    arguments.add_argument("--bootstrap-servers", default="localhost:9092")
    arguments.add_argument("--checkpoint", default="checkpoints/outbox-events")
    given = arguments.parse_args()
    session = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
    query = start(session, given.mysql, given.table, given.bootstrap_servers, given.checkpoint)
    ow.wait(query)
