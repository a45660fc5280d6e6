"""Values of a Delta table's partition columns, which Delta's writer changes on their way through
text. Driver only.

It has Spark name a folder for each value, by the session's time zone, and reads that name back in
the task, by the JVM's: a binary becomes text, the empty text null, and a timestamp another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType, TimestampType

from onceward.errors import ConfigurationError, InvalidColumn
from onceward.spark.batch.row_guard import unless

_ZONE = "spark.sql.session.timeZone"
_NULL = "__HIVE_DEFAULT_PARTITION__"


def kept(
    frame: DataFrame, partition_by: Sequence[str], session: SparkSession, table: str
) -> DataFrame:
    """Return ``frame``, whose job fails with :class:`~onceward.errors.RowRefused` at a value that
    would be changed.

    :param session: that writes.
    :param table: in our words.
    :raises InvalidColumn: no value of such a column can be told.
    :raises ConfigurationError: the session's time zone is not the JVM's, and a timestamp would
        become another one.
    """
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    guards = dict[str, Column]()
    for name in partition_by:
        if isinstance(kinds[name], BinaryType):
            raise InvalidColumn(
                f"{table} is partitioned by column {name}, which is binary: Delta writes it as "
                "text, and it comes back as another value",
                next_step=f"write to a table that is partitioned by a column of text, hex({name}) "
                "for one",
            )
        if isinstance(kinds[name], TimestampType):
            _must_be_the_jvms_zone(session, name, table)
            _must_be_the_jvms_zone(frame.sparkSession, name, table)
            guards[name] = _time(name)
        elif isinstance(kinds[name], StringType):
            guards[name] = _text(name)
    return (
        frame.select(*(guards.get(name, _column(name)).alias(name) for name in frame.columns))
        if guards
        else frame
    )


def _must_be_the_jvms_zone(session: SparkSession, name: str, table: str) -> None:
    jvm: Any = session.sparkContext._jvm
    of_session, of_jvm = str(session.conf.get(_ZONE)), jvm.java.util.TimeZone.getDefault()
    rules = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(of_session).getRules()
    if not rules.equals(of_jvm.toZoneId().getRules()):
        raise ConfigurationError(
            f"{table} is partitioned by column {name}, a timestamp, which Delta writes by the "
            f"session's time zone ({of_session}) and reads by the JVM's ({of_jvm.getID()}): each "
            "value would become another one",
            next_step=f"set {_ZONE} to {of_jvm.getID()}, or start driver and executors with "
            f"-Duser.timezone={of_session} (spark.driver.extraJavaOptions, "
            "spark.executor.extraJavaOptions); or partition the table by a date",
        )


def _time(name: str) -> Column:
    value = _column(name)
    return unless(
        ~value.eqNullSafe(value.cast("string").try_cast("timestamp")),
        value,
        f"a value of partition column {name} is a time that the clocks of this time zone show "
        "twice (or never), and Delta would store another one",
        f"set {_ZONE}, and -Duser.timezone of driver and executors, to UTC; or partition the "
        "table by a date",
    )


def _text(name: str) -> Column:
    value = _column(name)
    return unless(
        (value == "") | (value == _NULL) | ~f.is_valid_utf8(value),
        value,
        f"a value of partition column {name} is the empty text, or {_NULL}, which Delta would "
        "store as null, or has bytes that are no UTF-8",
        f"say in the query what such values shall be (NULLIF({name}, '') for null), or write to a "
        "table that is not partitioned by it",
    )


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")
