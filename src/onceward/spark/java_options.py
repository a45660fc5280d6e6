"""Which garbage collector Spark's JVMs run, together with the options that are set for them already.

Called by :func:`onceward.spark.session.spark_conf`. Driver only; reads Spark's ``spark-defaults.conf``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Throughput: a batch's records die young, all at once, where G1's write barriers and concurrent threads cost most.
# Measured together with kafka_source's larger fetches only: 12 % less CPU for reading than with larger polls alone.
_COLLECTOR = "-XX:+UseParallelGC"
_SOME_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_SETTINGS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_JVM_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_LINE = re.compile(r"\s*([^\s#=:]\S*?)(?:\s*[=:]\s*|\s+)(\S.*)")  # as in a Java properties file


def java_options(defaults: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """``extraJavaOptions`` for driver and executors: those in ``defaults`` and the parallel collector.

    Where a collector is chosen already, nothing is added: a JVM that is given two refuses to start. What is not in the
    result stays as it is.

    :param defaults: what ``spark-defaults.conf`` says.
    :param environment: this process's variables, some of which its JVMs read.
    """
    if any(_SOME_COLLECTOR.search(environment.get(name, "")) for name in _JVM_VARIABLES):
        return {}
    # Set here, a value replaces the one of spark-defaults.conf, so that one has to be repeated.
    given = {name: defaults.get(name, "") for name in _SETTINGS}
    of_the_site = {name: defaults.get(name.replace("extra", "default"), "") for name in _SETTINGS}
    return {
        name: f"{options} {_COLLECTOR}".strip()
        for name, options in given.items()
        if not _SOME_COLLECTOR.search(f"{options} {of_the_site[name]}")
    }


def spark_defaults(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the ``spark-defaults.conf`` that Spark will read says; empty without one."""
    environment = os.environ if environment is None else environment
    folder = environment.get("SPARK_CONF_DIR")
    if not folder:
        from pyspark import find_spark_home

        home: Any = find_spark_home  # PySpark ships it without types
        folder = str(Path(environment.get("SPARK_HOME") or home._find_spark_home()) / "conf")
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}  # most have none
    return {match[1]: match[2].strip() for line in lines if (match := _LINE.match(line))}
