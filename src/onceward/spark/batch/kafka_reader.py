"""Loads Spark's Kafka source, or says how a session gets it. Driver only; called by
:mod:`onceward.kafka.source.source`.

Spark finds a source by name among its jars, and those are named when its JVM starts. In a session
that exists, a notebook's or that of ``spark-submit``, it is too late for ``spark.jars``.
"""

from __future__ import annotations

from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onceward.errors import ConnectorMissing
from onceward.spark.batch.thrown import has_kind, thrown_by
from onceward.spark.session.connector import connector_to_name

# QueryCompilationErrors: without a condition of its own
_NOT_FOUND = "Failed to find data source: kafka"
# A connector of another Spark, or without the jars that it needs itself.
_DOES_NOT_LINK = (
    "ServiceConfigurationError",
    "NoClassDefFoundError",
    "ClassNotFoundException",
    "NoSuchMethodError",
    "AbstractMethodError",
    "IncompatibleClassChangeError",
)


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Load ``spark.readStream.format("kafka")`` with ``options``.

    :raises ConnectorMissing: the session cannot; the message has the line that names the jars.
    """
    try:
        return spark.readStream.format("kafka").options(**options).load()
    except (PySparkException, Py4JJavaError) as error:
        thrown = thrown_by(error)
        if any(
            one.is_a("AnalysisException") and one.message.startswith(_NOT_FOUND) for one in thrown
        ):
            what = "has no Kafka source"
        elif (broken := has_kind(thrown, *_DOES_NOT_LINK)) is not None:
            what = f"has a Kafka source that does not fit it ({broken.kind.rpartition('.')[2]})"
        else:
            raise
        raise _missing(spark.version, what) from error


def _missing(version: str, what: str) -> ConnectorMissing:
    coordinate = connector_to_name(version)
    return ConnectorMissing(
        f"this Spark session ({version}) {what}, and it is too late to give it one: jars are "
        "named before a JVM starts",
        next_step="start the job with `spark-submit $(onceward jars --submit) job.py` or "
        f"`spark-submit --packages {coordinate} job.py`; in a notebook, restart the kernel and "
        "build the session with SparkSession.builder.config(map=onceward.spark_conf()) or "
        f'.config("spark.jars.packages", "{coordinate}") before anything else builds one',
        details={"spark_version": version, "packages": coordinate},
    )
