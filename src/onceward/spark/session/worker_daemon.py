"""Spark's Python worker daemon with a task's needs already imported, for forked workers to share.

Named by :func:`onceward.spark.session.settings.spark_conf` as ``spark.python.daemon.module``;
Spark starts it once per executor (``PythonWorkerFactory``), and it forks a worker per concurrent
task. Nothing here opens a socket or starts a thread: a fork must not inherit either.
"""

from __future__ import annotations

import gc
from importlib import import_module

import numpy  # noqa: F401 — imported before workers fork
import pandas  # noqa: F401 — PySpark imports it in every worker that runs mapInArrow
import pyarrow.compute  # noqa: F401
import pyspark.daemon

from onceward.spark.session.zip_importers import drop_zip_importers

# By name, because imports point down, and sinks stand above this.
import_module("onceward.kafka.sink.tasks")

if __name__ == "__main__":
    drop_zip_importers()
    # PySpark's workers collect garbage after every task: 36 ms to look at nothing but what was
    # imported here. Frozen objects are not looked at, and their pages stay shared with this
    # process.
    gc.freeze()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
