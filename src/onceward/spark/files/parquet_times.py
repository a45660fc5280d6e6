"""A session's settings that have Parquet and Avro cut timestamps, or write other dates. Driver
only.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructType,
    TimestampType,
)

from onceward.errors import ConfigurationError

_SETTING = "spark.sql.parquet.outputTimestampType"
_BOTH = (DateType, TimestampType)
_CALENDARS: dict[str, dict[str, tuple[type[DataType], ...]]] = {
    "parquet": {
        "spark.sql.parquet.datetimeRebaseModeInWrite": _BOTH,
        "spark.sql.parquet.int96RebaseModeInWrite": (TimestampType,),
    },
    "avro": {"spark.sql.avro.datetimeRebaseModeInWrite": _BOTH},
}
"""By format; each with the types that it is for."""


def must_keep_microseconds(session: SparkSession, schema: StructType) -> None:
    """Check that Parquet files of this session keep microseconds.

    :raises ConfigurationError: they do not, and columns of ``schema`` may have them.
    """
    if str(session.conf.get(_SETTING)).upper() == "TIMESTAMP_MILLIS" and has_any(
        schema, TimestampType
    ):
        raise ConfigurationError(
            f"{_SETTING}=TIMESTAMP_MILLIS cuts the microseconds of timestamps in Parquet files, "
            "without a word",
            next_step=f"set {_SETTING} to TIMESTAMP_MICROS; where milliseconds are wanted, say so "
            "in the query: date_trunc('MILLISECOND', …)",
        )


def must_keep_dates(session: SparkSession, kind: DataType, format_name: str) -> None:
    """Check that this session writes dates by the calendar that everybody reads them by.

    Spark 2 and Hive counted days before 15 October 1582 by the Julian calendar. Spark marks files
    of such days for itself; other readers, and records, know of no mark.

    :raises ConfigurationError: it does not, and ``kind`` has dates or timestamps.
    """
    writes_int96 = str(session.conf.get(_SETTING)).upper() == "INT96"
    for setting, kinds in _CALENDARS.get(format_name, {}).items():
        counts = writes_int96 or "int96" not in setting
        is_legacy = counts and str(session.conf.get(setting)).upper() == "LEGACY"
        if is_legacy and has_any(kind, *kinds):
            raise ConfigurationError(
                f"{setting}=LEGACY writes dates before 1582 (and timestamps before 1900) by the "
                "Julian calendar, and readers take them for other ones",
                next_step=f"set {setting} to CORRECTED, its default",
            )


def has_any(kind: DataType, *kinds: type[DataType]) -> bool:
    """Return whether a type contains one of ``kinds``; timestamps without a time zone are none:
    they are always kept.
    """
    if isinstance(kind, StructType):
        return any(has_any(field.dataType, *kinds) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_any(kind.elementType, *kinds)
    if isinstance(kind, MapType):
        return has_any(kind.keyType, *kinds) or has_any(kind.valueType, *kinds)
    return isinstance(kind, kinds)
