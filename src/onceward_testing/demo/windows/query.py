"""The query of the windows: what a user would write. Nothing here knows that it will be killed.

Read people, as Avro by the schemas of a registry or as JSON, keep those whose number has 18
characters, collect each number once per tumbling window of event time, and write it when the
window closes. Runs in the driver of the job's process (:mod:`onceward_testing.demo.job`).
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow
from onceward_testing.demo.settings import (
    DEAD_LETTER_TOPIC,
    INPUT_TOPIC,
    OUTPUT_TABLE,
    OUTPUT_TOPIC,
    PIPELINE_ID,
    WATERMARK_DELAY_SECONDS,
    DemoJobSettings,
)
from onceward_testing.demo.windows.people import VALID_LENGTH

_PERSON = "id BIGINT, name STRING, identifyNumber STRING"


def start_windows(spark: SparkSession, settings: DemoJobSettings) -> StreamingQuery:
    """Start the query with Onceward's source and sink, or with Spark's own Kafka source and
    sink."""
    if settings.delivery == "exactly_once":
        records = ow.kafka_source(
            spark,
            bootstrap_servers=settings.bootstrap_servers,
            topic=INPUT_TOPIC,
            starting="earliest",
        )
    else:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.bootstrap_servers)
            .option("subscribe", INPUT_TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
    rows = clean_people(read_people(records, settings), settings.window_seconds)
    shaped = to_records(rows) if settings.sink == "kafka" else to_columns(rows)
    writer = (
        shaped.writeStream.queryName("people-etl")
        .option("checkpointLocation", settings.checkpoint)
        .trigger(processingTime="1 second")
        .outputMode("append")
    )
    if settings.delivery == "exactly_once":
        return writer.foreachBatch(_sink(settings)).start()
    kafka = writer.format("kafka").option("kafka.bootstrap.servers", settings.bootstrap_servers)
    return kafka.option("topic", OUTPUT_TOPIC).start()


def read_people(records: DataFrame, settings: DemoJobSettings) -> DataFrame:
    """Turn Kafka records into ``timestamp`` and ``person``, null for a tombstone.

    Invalid Avro becomes dead letters.
    """
    if not settings.registry:
        return records.select(
            "timestamp", F.from_json(F.col("value").cast("string"), _PERSON).alias("person")
        )
    # By the schema that this job was written for; the registry has the others, which writers have
    # used.
    people = ow.avro.decode(
        records,
        registry=ow.SchemaRegistry(settings.registry),
        reader_schema=1,
        on_error="dead_letter",
        unknown_id_wait_s=1,  # there is one registry, and no copy of it that could be behind
    )
    return people.select("timestamp", F.col("value").alias("person"))


def clean_people(people: DataFrame, window_seconds: int) -> DataFrame:
    """Turn people into one row per window and valid number: ``number``, ``id``, ``name``,
    ``window``."""
    number = F.col("person.identifyNumber")
    # Spark moves a filter that does not mention the event time below the watermark, and then a
    # record that is filtered out does not move time on: tombstones could not close a window. So
    # the condition mentions it.
    valid = F.when(F.col("timestamp").isNotNull(), F.length(number) == VALID_LENGTH)
    return (
        people.withWatermark("timestamp", f"{WATERMARK_DELAY_SECONDS} seconds")
        .where(valid)
        .groupBy(F.window("timestamp", f"{window_seconds} seconds"), number.alias("number"))
        .agg(F.max("person.id").alias("id"), F.max("person.name").alias("name"))
    )


def to_records(rows: DataFrame) -> DataFrame:
    """Return rows for a topic: ``key`` is the number, ``value`` JSON."""
    value = F.to_json(F.struct("id", "name", "number", "window")).alias("value")
    return rows.select(F.col("number").alias("key"), value)


def to_columns(rows: DataFrame) -> DataFrame:
    """Return rows for a table."""
    window = (F.col("window.start").alias("from_time"), F.col("window.end").alias("to_time"))
    return rows.select("number", "id", "name", *window)


def _sink(settings: DemoJobSettings) -> Callable[[DataFrame, int], None]:
    if settings.sink in ("postgres", "mysql"):
        return ow.DatabaseSink(url=settings.address, table=OUTPUT_TABLE, pipeline_id=PIPELINE_ID)
    if settings.sink == "files":
        return ow.FileSink(path=settings.address, pipeline_id=PIPELINE_ID)
    return ow.KafkaSink(
        bootstrap_servers=settings.bootstrap_servers,
        topic=OUTPUT_TOPIC,
        pipeline_id=PIPELINE_ID,
        dead_letter_topic=DEAD_LETTER_TOPIC if settings.registry else None,
    )
