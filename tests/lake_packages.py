"""The table formats that the tests of their sinks run with: for Spark 4.0."""

from __future__ import annotations

LAKE_PACKAGES = ("io.delta:delta-spark_2.13:4.0.0", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0")
