"""What ORC files keep of timestamps: the clock in the JVM's time zone. Driver only."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, TimestampType

from onceward.errors import ConfigurationError
from onceward.spark.files.parquet_times import has_any


def must_keep_instants(session: SparkSession, schema: StructType) -> None:
    """Check that a timestamp in ORC files of this session is the same one to every reader.

    ORC's ``TIMESTAMP`` is the clock of the JVM that wrote it, and in a JVM of another time zone
    the same reading at another moment; an hour that the clock shows twice is one of the two.

    :raises ConfigurationError: it may be another one, and columns of ``schema`` may have some.
    """
    if not has_any(schema, TimestampType):
        return
    jvm: Any = session.sparkContext._jvm
    zone = jvm.java.util.TimeZone.getDefault()
    if not zone.toZoneId().getRules().equals(jvm.java.time.ZoneOffset.UTC.getRules()):
        raise ConfigurationError(
            f"ORC files have timestamps by the clock of the JVM's time zone ({zone.getID()}): in "
            "a JVM of another one, and where that clock is set back, they would be other times",
            next_step="start driver, executors and readers with -Duser.timezone=UTC "
            "(spark.driver.extraJavaOptions, spark.executor.extraJavaOptions); or write parquet, "
            "or timestamp_ntz columns",
        )
