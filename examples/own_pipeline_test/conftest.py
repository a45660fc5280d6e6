"""One Spark session for all tests. The broker needs no line here: the fixture ``local_kafka``
comes with Onceward.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import onceward as ow


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = ow.spark_conf() | {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    yield session
    session.stop()
