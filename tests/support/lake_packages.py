"""The table formats that the tests of their sinks run with: they are published for each minor
version of Spark.
"""

from __future__ import annotations

import pyspark

_BY_SPARK = {
    "4.0": (
        "io.delta:delta-spark_2.13:4.0.0",
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    ),
    "4.1": (
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    ),
}

LAKE_PACKAGES: tuple[str, ...] = _BY_SPARK.get(".".join(pyspark.__version__.split(".")[:2]), ())
"""None: neither has been published for this Spark yet, and tests that need them are left out."""
