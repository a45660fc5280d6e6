"""What stands inside of Spark's types; and what a session's settings, and its JVM's time zone,
make of dates and timestamps in files. Driver only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DateType, MapType, StructType, TimestampType

from onceward.errors import ConfigurationError


def types_inside(kind: DataType) -> Iterator[DataType]:
    """Yield ``kind``, and each type inside of it."""
    yield kind
    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, MapType):
        inside = [kind.keyType, kind.valueType]
    for one in inside:
        yield from types_inside(one)


def contains_type(kind: DataType, *kinds: type[DataType]) -> bool:
    """Return whether ``kind`` is one of ``kinds``, or has one inside."""
    return any(isinstance(one, kinds) for one in types_inside(kind))


def field_names(kind: DataType) -> list[str]:
    """Return the names of the fields of all structs inside of ``kind``."""
    structs = [one for one in types_inside(kind) if isinstance(one, StructType)]
    return [name for one in structs for name in one.names]


def is_same_type(one: Any, other: Any) -> bool:
    """Compare two types, as Spark has them in JSON, ignoring nullability and comments."""
    if isinstance(one, dict) and isinstance(other, dict):
        ignored = {"nullable", "containsNull", "valueContainsNull", "metadata"}
        keys = (one.keys() | other.keys()) - ignored
        return all(is_same_type(one.get(key), other.get(key)) for key in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_type, one, other))
    return bool(one == other)


def quoted(name: str) -> str:
    """Quote a column's name as Spark reads it, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def column_named(name: str) -> Column:
    """Return the column of that name, dots and all."""
    return f.col(quoted(name))


_SETTING = "spark.sql.parquet.outputTimestampType"
_INT96 = "spark.sql.parquet.int96RebaseModeInWrite"
_BOTH = (DateType, TimestampType)
_CALENDARS: dict[str, dict[str, tuple[type[DataType], ...]]] = {
    "parquet": {
        "spark.sql.parquet.datetimeRebaseModeInWrite": _BOTH,
        _INT96: (TimestampType,),
    },
    "avro": {"spark.sql.avro.datetimeRebaseModeInWrite": _BOTH},
}
"""By format; each with the types that it is for."""


def must_keep_microseconds(session: SparkSession, schema: StructType) -> None:
    """Raise ConfigurationError if Parquet files of this session cut microseconds of ``schema``."""
    if contains_type(schema, TimestampType) and _has(session, _SETTING, "TIMESTAMP_MILLIS"):
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
    for setting, kinds in _CALENDARS.get(format_name, {}).items():
        if not contains_type(kind, *kinds):
            continue
        is_written = setting != _INT96 or _has(session, _SETTING, "INT96")
        if is_written and _has(session, setting, "LEGACY"):
            raise ConfigurationError(
                f"{setting}=LEGACY writes dates before 1582 (and timestamps before 1900) by the "
                "Julian calendar, and readers take them for other ones",
                next_step=f"set {setting} to CORRECTED, its default",
            )


def must_keep_instants(session: SparkSession, schema: StructType) -> None:
    """Check that a timestamp in ORC files of this session is the same one to every reader.

    ORC's ``TIMESTAMP`` is the clock of the JVM that wrote it, and in a JVM of another time zone
    the same reading at another moment; an hour that the clock shows twice is one of the two.

    :raises ConfigurationError: it may be another one, and columns of ``schema`` may have some.
    """
    if not contains_type(schema, TimestampType):
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


def _has(session: SparkSession, setting: str, value: str) -> bool:
    return str(session.conf.get(setting)).upper() == value
