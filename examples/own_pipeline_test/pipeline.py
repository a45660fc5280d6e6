"""The pipeline that is tested here: temperatures in Fahrenheit become Celsius, and what is no
number is dropped.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow


def in_celsius(readings: DataFrame) -> DataFrame:
    fahrenheit = "try_cast(CAST(value AS STRING) AS DOUBLE)"
    return readings.where(f"{fahrenheit} IS NOT NULL").selectExpr(
        "key", f"CAST(round(({fahrenheit} - 32) / 1.8, 1) AS STRING) AS value"
    )


def start(
    spark: SparkSession, servers: str, source: str, output: str, checkpoint: str
) -> StreamingQuery:
    readings = ow.kafka_source(
        spark, bootstrap_servers=servers, topic=source, max_offsets_per_trigger=50
    )
    sink = ow.KafkaSink(
        bootstrap_servers=servers,
        topic=output,
        pipeline_id=f"{output}-celsius",
        create_topic_partitions=2,
    )
    return (
        in_celsius(readings)
        .writeStream.option("checkpointLocation", checkpoint)
        .foreachBatch(sink)
        .start()
    )
