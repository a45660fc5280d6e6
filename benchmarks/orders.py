"""The rows, of eight columns, that the sinks beside Kafka's are measured with, and how: in one
Spark, contender after contender, a round that does not count first. Called by :mod:`database` and
:mod:`files`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import onceward as ow
from onceward.errors import ResourceError
from onceward.spark.session.jars import resolve

_COLUMNS = (
    "id",
    "CAST(id % 10007 AS INT) AS customer",
    "CAST(id % 100000 / 100 AS DECIMAL(12,2)) AS amount",
    "id * 0.001D AS rate",
    "concat('name ', id % 1000) AS name",
    "repeat('x', CAST(id % 40 AS INT)) AS note",
    "timestamp_seconds(1700000000 + id % 1000000) AS placed_at",
    "id % 3 = 0 AS paid",
)


class Orders(NamedTuple):
    """``number`` rows in Parquet files, in a folder that goes with the block."""

    spark: SparkSession
    folder: Path
    number: int

    @property
    def source(self) -> str:
        return f"{self.folder}/rows"

    def stream(self) -> DataStreamReader:
        """Of the rows: one batch, with ``availableNow``."""
        return self.spark.readStream.schema(self.spark.read.parquet(self.source).schema)

    def must_be_all(self, contender: str, found: object) -> None:
        """:param found: number, distinct ids and their sum, of what is there afterwards."""
        if found != (self.number, self.number, self.number * (self.number - 1) // 2):
            raise ResourceError(
                f"{contender} wrote other rows than it was given: {found}",
                next_step="do not trust it",
            )


@contextmanager
def orders(number: int, *packages: str) -> Iterator[Orders]:
    """The rows, in a Spark that has ``packages`` besides."""
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
        spark = _session(Path(folder), packages)
        try:
            made = Orders(spark, Path(folder), number)
            spark.range(0, number, 1, 4).selectExpr(*_COLUMNS).write.parquet(made.source)
            yield made
        finally:
            spark.stop()


def java() -> psutil.Process:
    """The JVM of this process's Spark."""
    return next(process for process in psutil.Process().children() if "java" in process.name())


def _session(folder: Path, packages: Sequence[str]) -> SparkSession:
    conf = ow.spark_conf()
    more = [str(jar) for package in packages for jar in resolve(package)]
    jars = [*filter(None, conf.get("spark.jars", "").split(",")), *more]
    return (
        SparkSession.builder.master("local[2]")
        .config(map={**conf, "spark.jars": ",".join(jars)})
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
