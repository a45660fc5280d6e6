"""Books transfers: a function of your own that writes two frames in one transaction, and leaves
empty batches out.

Reads JSON such as ``{"from": "ann", "to": "bob", "cents": 500}`` from topic ``transfers``. Each
transfer becomes a debit in topic ``debits`` and a credit in topic ``credits``: whatever crashes,
both are visible or neither is.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow


def start(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    source = ow.kafka_source(
        spark, bootstrap_servers=servers, topic="transfers", max_offsets_per_trigger=100_000
    )
    transfers = source.selectExpr(
        "from_json(CAST(value AS STRING), 'from STRING, to STRING, cents BIGINT') AS transfer"
    ).select("transfer.*")
    sink = ow.KafkaSink(
        bootstrap_servers=servers,
        topic="debits",
        pipeline_id="transfers",
        create_topic_partitions=4,
    )  # one sink for the life of the query, not one for each batch

    def book(frame: DataFrame, batch_id: int) -> None:
        frame.persist()  # read three times below
        try:
            with sink.batch(frame, batch_id) as batch:
                batch.write(frame.selectExpr("from AS key", "CAST(-cents AS STRING) AS value"))
                batch.write(
                    frame.selectExpr("to AS key", "CAST(cents AS STRING) AS value"),
                    topic="credits",
                )
        finally:
            frame.unpersist()

    return (
        transfers.writeStream.option("checkpointLocation", checkpoint).foreachBatch(book).start()
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bootstrap-servers", default="localhost:9092")
    arguments.add_argument("--checkpoint", default="checkpoints/transfers")
    given = arguments.parse_args()
    session = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
    query = start(session, given.bootstrap_servers, given.checkpoint)
    ow.wait(query)
