"""Spark settings that suit Onceward. Driver only; called by users, the demo and the tests when
they build a session.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from onceward.spark.session.connector import Connector, spark_connector
from onceward.spark.session.jars import SUBMITTED_VARIABLE
from onceward.spark.session.java import java_found, must_have_modules
from onceward.spark.session.java_options import java_options, spark_defaults
from onceward.spark.session.versions import installed_spark, must_have_been_run, must_start_on

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

WORKER_DAEMON = "onceward.spark.session.worker_daemon"
_WORKER_PYTHON_VARIABLE = "PYSPARK_PYTHON"
_WORKER_PYTHON_SETTING = "spark.pyspark.python"


def spark_conf(*packages: str) -> dict[str, str]:
    """Return settings for ``SparkSession.builder.config(map=onceward.spark_conf())``. None of them
    is required.

    * ``spark.jars``: Spark's Kafka source and Avro functions, and ``packages`` (Maven
      coordinates), as resolved paths. ``spark.jars.packages`` would do, but puts every jar on the
      Python workers' import path, which costs each task 150 to 300 ms (see
      :mod:`onceward.spark.session.zip_importers`).
    * ``spark.python.daemon.module``: Python workers are forked with everything imported.
    * ``spark.sql.execution.arrow.maxRecordsPerBatch``: fewer, larger Arrow batches from the JVM to
      the tasks.
    * ``spark.speculation``: off; the sink refuses it.
    * ``spark.driver.extraJavaOptions``, ``spark.executor.extraJavaOptions``: what
      ``spark-defaults.conf`` says, and ``-XX:+UseParallelGC``, unless a collector is chosen there
      or in ``JDK_JAVA_OPTIONS`` and its kin, and the limits within which Avro reads
      (``org.apache.avro.limits.…``: texts and bytes of 64 MiB, 4 million items). To choose
      yourself (for heaps of tens of GB, say, where its pauses are long), set the option after
      these: ``.config(map=spark_conf()).config("spark.executor.extraJavaOptions",
      "-XX:+UseG1GC")``.

    In a job that ``spark-submit`` started, jars and JVM options come too late: there this returns
    the rest, and ``spark-submit $(onceward jars --submit) job.py`` sets all of them. The same
    holds for a session that exists.

    Not among them, on purpose: ``spark.sql.streaming.checkpointFileManagerClass``. With
    ``org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager``
    (Spark 4.0: without ``checkpointing.``) a checkpoint on a *local* disk costs 25 ms less a file.
    But the setting holds for every checkpoint of the session, and on HDFS it would take a check
    and a rename for what is one atomic step by default.

    Executors must have onceward installed. In local mode they run the driver's interpreter; on a
    cluster they run ``PYSPARK_PYTHON``, else whatever ``python3`` is on their PATH.

    :raises ConfigurationError: Onceward was never run with this Spark
        (:mod:`onceward.spark.session.versions`), or there is no fit Java.
    :raises ResourceError: a coordinate cannot be resolved.
    """
    version = installed_spark()
    must_have_been_run(version)
    settings = {
        "spark.python.daemon.module": WORKER_DAEMON,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.speculation": "false",
    }
    if SUBMITTED_VARIABLE not in os.environ:
        java, major = java_found()
        must_start_on(java, major, version)
        must_have_modules(java)
        connector = spark_connector(*packages)
        for note in connector.notes:
            log.warning("%s", note)
        return {**launch_conf(connector), **settings}
    # spark.jars would even do harm: executors would fetch it in place of what --jars of
    # spark-submit names.
    if packages:
        log.warning(
            "spark_conf(%s) comes too late in a job of spark-submit: name them with --packages",
            packages,
        )
    return settings


def launch_conf(connector: Connector) -> dict[str, str]:
    """Return the part of :func:`spark_conf` that a JVM has to be started with."""
    jars = ",".join(str(jar) for jar in connector.jars)
    return {"spark.jars": jars, **java_options(spark_defaults(), os.environ)}


def use_the_drivers_python(context: SparkContext) -> None:
    """Let workers run the driver's interpreter in local mode, unless somebody named another.

    Called before the first plan with Python in it is made: by ``kafka_source``, and by the sink
    for other sources. PySpark's own default is the ``python3`` on the PATH, which outside an
    activated environment is another one, without onceward. On a cluster the driver's path need not
    exist where the executors are, so nothing is changed.
    """
    if str(context.master).startswith("local") and not os.environ.get(_WORKER_PYTHON_VARIABLE):
        # Spark reads this setting in spark-submit only and ignores it elsewhere; whoever set it
        # meant it.
        context.pythonExec = context._conf.get(_WORKER_PYTHON_SETTING) or sys.executable
