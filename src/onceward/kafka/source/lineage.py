"""``onceward.lineage``: where each row came from, carried along as three columns. Driver; called
by users. ``KafkaSink(lineage=True)`` turns the columns into headers of the output record, by which
``onceward verify --conserves`` proves that every record of the source is accounted for."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

TOPIC, PARTITION, OFFSET = "source_topic", "source_partition", "source_offset"
COLUMNS = (TOPIC, PARTITION, OFFSET)
"""The sink's ``topic`` and ``partition`` are where a record goes; these are where it came from."""


def lineage() -> list[Column]:
    """Return the columns ``source_topic``, ``source_partition`` and ``source_offset``, out of
    those of ``kafka_source``.

    ``rows.select("key", "value", *onceward.lineage())`` at the beginning of a query; the columns
    must then stay in the frame up to the sink. Needs a running Spark session.
    """
    return [
        sql.col(column).alias(name)
        for column, name in zip(("topic", "partition", "offset"), COLUMNS, strict=True)
    ]
