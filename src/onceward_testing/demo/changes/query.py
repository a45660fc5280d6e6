"""The query of the changes: what a user would write. Nothing here knows that it will be killed.

Runs in the driver of the job's process (:mod:`onceward_testing.demo.job`).
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow
from onceward_testing.demo.changes.tables import DATABASE, DEFAULT_EMAIL, HOMES, PEOPLE
from onceward_testing.demo.settings import CHANGES_PIPELINE_ID, CHANGES_PREFIX, DemoJobSettings

_PEOPLE = """
    id BIGINT NOT NULL, version INT NOT NULL, name STRING NOT NULL, number STRING, born DATE,
    balance DECIMAL(12,2) NOT NULL, kind STRING NOT NULL, notes VARIANT, photo BINARY,
    registered TIMESTAMP_NTZ NOT NULL, seen TIMESTAMP NOT NULL, email STRING
"""


def start_changes(spark: SparkSession, settings: DemoJobSettings) -> StreamingQuery:
    """Start the query, into topics or into a table."""
    into = _into_topics if settings.sink == "kafka" else _into_a_table
    frame, sink = into(spark, settings)
    return (
        frame.writeStream.queryName("people-changes")
        .option("checkpointLocation", settings.checkpoint)
        .trigger(processingTime="1 second")
        .foreachBatch(sink)
        .start()
    )


def _into_topics(
    spark: SparkSession, settings: DemoJobSettings
) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    """Write each table's changes into a topic of its own, in Debezium's envelope, in the order of
    each key."""
    changes = ow.mysql_changes(
        spark,
        url=settings.source_address,
        tables=[f"{DATABASE}.{PEOPLE.name}", f"{DATABASE}.{HOMES.name}"],
        starting="initial",
        values="debezium",
    )
    records = ow.debezium.encode(changes, prefix=CHANGES_PREFIX.rstrip("."))
    sink = ow.KafkaSink(
        bootstrap_servers=settings.bootstrap_servers,
        pipeline_id=CHANGES_PIPELINE_ID,
        order_by="position",
    )
    return records, sink


def _into_a_table(
    spark: SparkSession, settings: DemoJobSettings
) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    """Apply the changes of each batch to a table of PostgreSQL, in one transaction."""
    table = f"{DATABASE}.{PEOPLE.name}"
    changes = ow.mysql_changes(
        spark, url=settings.source_address, tables=[table], starting="initial"
    )
    people = ow.debezium.rows(changes, table=table, schema=_PEOPLE)
    people = people.withColumn("notes", F.to_json("notes"))  # for jsonb
    people = people.fillna(
        {"email": DEFAULT_EMAIL}
    )  # rows that were written before the table had the column
    sink = ow.DatabaseSink(
        url=settings.address,
        table=PEOPLE.name,
        pipeline_id=CHANGES_PIPELINE_ID,
        mode="changes",
        key="id",
        order_by="position",
    )
    return people, sink
