"""A session's setting that has Parquet files cut timestamps. Driver only."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from onceward.errors import ConfigurationError

_SETTING = "spark.sql.parquet.outputTimestampType"


def must_keep_microseconds(session: SparkSession, schema: StructType) -> None:
    """Check that Parquet files of this session keep microseconds.

    :raises ConfigurationError: they do not, and columns of ``schema`` may have them.
    """
    if str(session.conf.get(_SETTING)).upper() == "TIMESTAMP_MILLIS" and _has_timestamps(schema):
        raise ConfigurationError(
            f"{_SETTING}=TIMESTAMP_MILLIS cuts the microseconds of timestamps in Parquet files, "
            "without a word",
            next_step=f"set {_SETTING} to TIMESTAMP_MICROS; where milliseconds are wanted, say so "
            "in the query: date_trunc('MILLISECOND', …)",
        )


def _has_timestamps(kind: DataType) -> bool:
    """Return whether a type contains timestamps; those without a time zone always keep their
    microseconds.
    """
    if isinstance(kind, StructType):
        return any(_has_timestamps(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_timestamps(kind.elementType)
    if isinstance(kind, MapType):
        return _has_timestamps(kind.keyType) or _has_timestamps(kind.valueType)
    return isinstance(kind, TimestampType)
