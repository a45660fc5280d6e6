"""A query of Nexmark in Spark's SQL, for a contender to copy a topic through. Loaded by its path,
by :mod:`job`, and so it imports nothing but PySpark.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def through(
    rows: DataFrame, query: str, schema: dict[str, str], watermark_seconds: int
) -> tuple[DataFrame, str]:
    """Return the query's results as JSON, and the output mode.

    :param schema: fields of each kind of event.
    """
    kinds = ", ".join(f"{name} STRUCT<{fields}>" for name, fields in schema.items())
    events = rows.selectExpr(f"from_json(CAST(value AS STRING), '{kinds}') AS event")
    for name in schema:
        one = events.where(f"event.{name} IS NOT NULL").selectExpr(f"event.{name}.*")
        one = one.selectExpr("*", "timestamp_millis(date_time) AS at")
        one = one.withWatermark("at", f"{watermark_seconds} seconds")
        one.createOrReplaceTempView(name.lower())
    results = rows.sparkSession.sql(query)
    return results.selectExpr(
        "CAST(NULL AS BINARY) AS key", "to_json(struct(*)) AS value"
    ), "append"
