"""Which garbage collector Spark's JVMs run, and what Avro reads at most, with the options that are
set already.

Called by :func:`onceward.spark.session.settings.spark_conf`. Driver only; reads Spark's
``spark-defaults.conf``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
_SOME_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_SETTINGS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_JVM_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
# as in a Java properties file
_LINE = re.compile(r"\s*([^\s#=:]\S*?)(?:\s*[=:]\s*|\s+)(\S.*)")


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
        # Set here, a value replaces the one of spark-defaults.conf, so that one has to be
        # repeated.
        given = defaults.get(name, "")
        known = f"{said_to_all} {given} {defaults.get(name.replace('extra', 'default'), '')}"
        more = [] if _SOME_COLLECTOR.search(known) else [_COLLECTOR]
        more += [
            f"-D{limit}={value}"
            for limit, value in AVRO_LIMITS.items()
            if f"-D{limit}=" not in known
        ]
        if more:
            found[name] = " ".join([given, *more]).strip()
    return found


def spark_defaults(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read the ``spark-defaults.conf`` that Spark will read; empty without one."""
    environment = os.environ if environment is None else environment
    folder = environment.get("SPARK_CONF_DIR")
    if not folder:
        from pyspark import find_spark_home

        # PySpark ships it without types
        home: Any = find_spark_home
        folder = str(Path(environment.get("SPARK_HOME") or home._find_spark_home()) / "conf")
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}  # most have none
    return {match[1]: match[2].strip() for line in lines if (match := _LINE.match(line))}
