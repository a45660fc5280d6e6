"""Spark settings that suit Onceward. Driver only; called by users, the demo and the tests when they build a session."""

from __future__ import annotations

from onceward.engine.jars import resolve, spark_connector_coordinates

WORKER_DAEMON = "onceward.sinks.worker_daemon"


def spark_conf(*packages: str) -> dict[str, str]:
    """Settings for ``SparkSession.builder.config(map=onceward.spark_conf())``. None of them is required.

    * ``spark.jars``: Spark's Kafka source and Avro functions, and ``packages`` (Maven coordinates), as resolved paths.
      ``spark.jars.packages`` would do, but puts every jar on the Python workers' import path, which costs each task
      150 to 300 ms (see :mod:`onceward.engine.zip_importers`).
    * ``spark.python.daemon.module``: Python workers are forked with everything imported.
    * ``spark.sql.execution.arrow.maxRecordsPerBatch``: fewer, larger Arrow batches from the JVM to the tasks.
    * ``spark.speculation``: off; the sink refuses it.

    Executors must have onceward installed. In local mode set ``PYSPARK_PYTHON`` to the interpreter of the driver
    before the session starts, or Spark runs whatever ``python3`` is on the PATH.

    :raises ResourceError: a coordinate cannot be resolved.
    """
    return {
        "spark.jars": ",".join(str(jar) for jar in resolve(*spark_connector_coordinates(), *packages)),
        "spark.python.daemon.module": WORKER_DAEMON,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.speculation": "false",
    }
