"""Spark settings that suit Onceward, for who builds a session. Driver only."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward.libraries import properties
from onceward.spark.session.connector import (
    Connector,
    installed_spark,
    must_have_been_run,
    must_start_on,
    other_versions,
    spark_connector,
)
from onceward.spark.session.jars import SUBMITTED_VARIABLE
from onceward.spark.session.java import java_found, must_have_modules

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Throughput: a batch's records die young, all at once, where G1's write barriers and concurrent
# threads cost most. Measured together with kafka_source's larger fetches only: 12 % less CPU for
# reading than with larger polls alone.
_COLLECTOR = "-XX:+UseParallelGC"
AVRO_LIMITS = {
    "org.apache.avro.limits.string.maxLength": "67108864",
    "org.apache.avro.limits.bytes.maxLength": "67108864",
    "org.apache.avro.limits.collectionItems.maxLength": "4000000",
}
"""Properties of Avro's Java library (``SystemLimitException``, 1.11.3 and later), in bytes and
items. It makes room for what a record says that it holds before it looks; without limits five
bytes of a record can end a JVM.
"""
JARS, PACKAGES = "spark.jars", "spark.jars.packages"
_SOME_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_SETTINGS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_JVM_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


def java_options(defaults: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``extraJavaOptions`` for driver and executors: those in ``defaults``, the parallel
    collector and Avro's limits.

    Where a collector is chosen already, none is added: a JVM that is given two refuses to start.
    Nor a limit where it is set already. What is not in the result stays as it is.

    :param defaults: what ``spark-defaults.conf`` says.
    :param environment: this process's variables, some of which its JVMs read.
    """
    said_to_all = " ".join(environment.get(name, "") for name in _JVM_VARIABLES)
    found = {}
    for name in _SETTINGS:
        # Set here, a value replaces that of spark-defaults.conf, which has to be repeated.
        option = defaults.get(name, "")
        options = f"{said_to_all} {option} {defaults.get(name.replace('extra', 'default'), '')}"
        more = [] if _SOME_COLLECTOR.search(options) else [_COLLECTOR]
        more += [
            f"-D{limit}={value}"
            for limit, value in AVRO_LIMITS.items()
            if f"-D{limit}=" not in options
        ]
        if more:
            found[name] = " ".join([option, *more]).strip()
    return found


def spark_defaults() -> dict[str, str]:
    """Read the ``spark-defaults.conf`` that Spark will read; empty without one."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder:
        from pyspark import find_spark_home

        # PySpark ships it without types
        home: Any = find_spark_home
        folder = str(Path(os.environ.get("SPARK_HOME") or home._find_spark_home()) / "conf")
    try:
        # Spark, too, passes over letters that are no UTF-8
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}  # most have none
    return dict(pair for _, pair in properties(text) if pair is not None)


log = logging.getLogger(__name__)

WORKER_DAEMON = "onceward.spark.session.worker_daemon"
_WORKER_PYTHON_VARIABLE = "PYSPARK_PYTHON"
_WORKER_PYTHON_SETTING = "spark.pyspark.python"


def spark_conf(*packages: str) -> dict[str, str]:
    """Return settings for ``SparkSession.builder.config(map=onceward.spark_conf())``. None of them
    is required.

    * ``spark.jars``: Spark's Kafka source and Avro functions, and ``packages`` (Maven
      coordinates), as resolved paths, and those of ``spark-defaults.conf``, but for parts of the
      Kafka connector in another version, which are left out of its ``spark.jars.packages``, too.
      ``spark.jars.packages`` would do, but puts every jar on the Python workers' import path,
      which costs each task 150 to 300 ms (see :mod:`onceward.spark.session.zip_importers`).
    * ``spark.python.daemon.module``: Python workers are forked with everything imported.
    * ``spark.sql.execution.arrow.maxRecordsPerBatch``, ``….maxBytesPerBatch``: Arrow batches from
      the JVM to the tasks are larger than Spark's of small records, and 8 MiB instead of 256 of
      large ones, which a worker has in memory three times.
    * ``spark.speculation``: off; the sink refuses it.
    * ``spark.driver.extraJavaOptions``, ``spark.executor.extraJavaOptions``: what
      ``spark-defaults.conf`` says, and ``-XX:+UseParallelGC``, unless a collector is chosen there
      or in ``JDK_JAVA_OPTIONS`` and its kin, and the limits within which Avro reads
      (``org.apache.avro.limits.…``: texts and bytes of 64 MiB, 4 million items). To choose
      yourself (for heaps of tens of GB, say, where its pauses are long), set the option after
      these: ``.config(map=spark_conf()).config("spark.executor.extraJavaOptions",
      "-XX:+UseG1GC")``.

    In a job that ``spark-submit`` started, jars and JVM options come too late: there this returns
    the rest, and ``eval "spark-submit $(onceward jars --submit --quoted) job.py"`` sets all of
    them. The same holds for a session that exists.

    For checkpoints on a local disk, add ``ow.checkpointing(local_disk=True).spark_conf``: 50 ms
    less a batch.

    Executors must have onceward installed. In local mode they run the driver's interpreter; on a
    cluster they run ``PYSPARK_PYTHON``, else whatever ``python3`` is on their PATH.

    :raises ConfigurationError: Onceward was never run with this Spark
        (:mod:`onceward.spark.session.connector`), or there is no fit Java.
    :raises LaunchFailed: a coordinate cannot be resolved.
    """
    version = installed_spark()
    must_have_been_run(version)
    settings = {
        "spark.python.daemon.module": WORKER_DAEMON,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
        "spark.speculation": "false",
    }
    if SUBMITTED_VARIABLE not in os.environ:
        java, major = java_found()
        must_start_on(java, major, version)
        must_have_modules(java)
        return {**launch_conf(spark_connector(*packages)), **settings}
    # spark.jars would even do harm: executors would fetch it, and not what --jars names.
    if packages:
        log.warning(
            "spark_conf(%s) comes too late in a job of spark-submit: name them with --packages",
            packages,
        )
    return settings


def launch_conf(connector: Connector) -> dict[str, str]:
    """Return the part of :func:`spark_conf` that a JVM has to be started with. What the defaults
    name of Spark's Kafka connector in another version is left out."""
    defaults = spark_defaults()
    jars, packages = (
        [each.strip() for each in defaults.get(name, "").split(",") if each.strip()]
        for name in (JARS, PACKAGES)
    )
    ours = [str(jar) for jar in connector.jars]
    left_out = other_versions([*jars, *packages], ours)
    settings = {JARS: ",".join([*ours, *(each for each in jars if each not in left_out)])}
    if left_out:
        log.warning(
            "spark-defaults.conf names parts of Spark's Kafka connector in other versions than "
            "the session is given, and they are left out: %s",
            ", ".join(left_out),
        )
        if PACKAGES in defaults:
            settings[PACKAGES] = ",".join(each for each in packages if each not in left_out)
    return {**settings, **java_options(defaults, os.environ)}


def is_on(session: SparkSession, name: str) -> bool:
    """Return whether a setting that Spark has a default of is true, however that is spelled."""
    return str(session.conf.get(name)).lower() == "true"


def use_the_drivers_python(context: SparkContext) -> None:
    """Let workers run the driver's interpreter in local mode, unless somebody named another.

    Called before the first plan with Python in it is made: by ``kafka_source``, and by the sink
    for other sources. PySpark's own default is the ``python3`` on the PATH, which outside an
    activated environment is another one, without onceward. On a cluster the driver's path need not
    exist where the executors are, so nothing is changed.
    """
    if str(context.master).startswith("local") and not os.environ.get(_WORKER_PYTHON_VARIABLE):
        # Spark reads this in spark-submit only, and ignores it elsewhere; who set it meant it.
        context.pythonExec = context._conf.get(_WORKER_PYTHON_SETTING) or sys.executable


@contextmanager
def quiet(session: SparkSession) -> Iterator[None]:
    """Let nobody print that a query fails, for one that does so on purpose."""
    context: Any = session.sparkContext
    root = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    level, logger = str(root.getLevel().toString()), logging.getLogger("py4j")
    before = logger.level
    context.setLogLevel("OFF")
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        context.setLogLevel(level)
        logger.setLevel(before)
