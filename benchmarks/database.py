"""Rows into PostgreSQL: ``DatabaseSink`` beside Spark's own JDBC writer. Called by :mod:`__main__`.

One streaming query a turn, of one batch, in one Spark; a fresh table each time. Spark's writer, with its defaults and
with the driver's ``reWriteBatchedInserts``, promises nothing: after a crash in mid-batch rows are there twice. What is
timed is the function of ``foreachBatch``; every table is counted and summed afterwards.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
from pyspark.sql import DataFrame, SparkSession

import onceward as ow
from benchmarks.cpu import CpuMeter, with_reaped
from onceward.errors import ResourceError
from onceward.spark.jars import resolve
from onceward.testing import LocalPostgres

SPARK_DEFAULTS, SPARK_REWRITING, ONCEWARD = "Spark's JDBC writer", "… reWriteBatchedInserts", "onceward"
SOURCE = "the rows alone"

_DRIVER = "org.postgresql:postgresql:42.7.7"
_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
_COLUMNS = (
    "id bigint NOT NULL, customer integer, amount numeric(12,2), rate double precision, name text, note text, "
    "placed_at timestamp with time zone, paid boolean"
)
_ROWS = (
    "id",
    "CAST(id % 10007 AS INT) AS customer",
    "CAST(id % 100000 / 100 AS DECIMAL(12,2)) AS amount",
    "id * 0.001D AS rate",
    "concat('name ', id % 1000) AS name",
    "repeat('x', CAST(id % 40 AS INT)) AS note",
    "timestamp_seconds(1700000000 + id % 1000000) AS placed_at",
    "id % 3 = 0 AS paid",
)

Write = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class DatabaseTurn:
    """One contender's turn: seconds by the clock, and of CPU."""

    contender: str
    seconds: float
    spark_cpu: float
    server_cpu: float


@dataclass(frozen=True, slots=True)
class DatabaseFigures:
    """Medians over the rounds; CPU in µs a row."""

    contender: str
    seconds: float
    spark_us: float
    server_us: float


def run_database(rows: int, rounds: int, say: Callable[[str], None]) -> list[DatabaseFigures]:
    """Measure all contenders, after a round that does not count.

    :raises ResourceError: a table has other rows than it should.
    """
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder, LocalPostgres(_SETTINGS) as postgres:
        spark = _session(Path(folder))
        try:
            source = f"{folder}/rows"
            spark.range(0, rows, 1, 4).selectExpr(*_ROWS).write.parquet(source)
            bench = _Bench(spark, postgres, source, rows, Path(folder))
            turns: list[DatabaseTurn] = []
            for number in range(rounds + 1):
                for contender in (SOURCE, SPARK_DEFAULTS, SPARK_REWRITING, ONCEWARD):
                    turn = bench.turn(contender)
                    name = f"round {number}" if number else "warm-up"
                    say(
                        f"{name}: {contender}: {turn.seconds:.2f} s, CPU {turn.spark_cpu:.2f} + {turn.server_cpu:.2f} s"
                    )
                    turns += [turn] if number else []
        finally:
            spark.stop()
    names = dict.fromkeys(turn.contender for turn in turns)
    return [_median([turn for turn in turns if turn.contender == name], rows) for name in names]


def _median(turns: list[DatabaseTurn], rows: int) -> DatabaseFigures:
    def of(values: list[float]) -> float:
        return statistics.median(values)

    return DatabaseFigures(
        turns[0].contender,
        of([turn.seconds for turn in turns]),
        of([turn.spark_cpu for turn in turns]) * 1e6 / rows,
        of([turn.server_cpu for turn in turns]) * 1e6 / rows,
    )


class _Bench:
    def __init__(self, spark: SparkSession, postgres: LocalPostgres, source: str, rows: int, folder: Path) -> None:
        self._spark, self._postgres, self._source, self._rows, self._folder = spark, postgres, source, rows, folder
        jvm = next(process for process in psutil.Process().children() if "java" in process.name())
        self._server = psutil.Process(postgres.pid)
        self._meter = CpuMeter(psutil.Process().pid, jvm.pid, self._server.pid)

    def turn(self, contender: str) -> DatabaseTurn:
        table = f"rows_{uuid.uuid4().hex[:10]}"
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {table} ({_COLUMNS})")
            connection.execute("CHECKPOINT")
        write = self._write(contender, table)
        took: list[DatabaseTurn] = []

        def timed(frame: DataFrame, batch_id: int) -> None:
            spark, server, began = self._meter.read().spark, _with_sessions(self._server), time.monotonic()
            write(frame, batch_id)
            seconds = time.monotonic() - began
            took.append(
                DatabaseTurn(
                    contender, seconds, self._meter.read().spark - spark, _with_sessions(self._server) - server
                )
            )

        stream = self._spark.readStream.schema(self._spark.read.parquet(self._source).schema)
        query = (
            stream.parquet(self._source)
            .writeStream.foreachBatch(timed)
            .option("checkpointLocation", str(self._folder / table))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if contender != SOURCE:
            self._audit(contender, table)
        return took[0]

    def _write(self, contender: str, table: str) -> Write:
        if contender == SOURCE:
            return lambda frame, batch_id: frame.write.format("noop").mode("append").save()
        if contender == ONCEWARD:
            return ow.DatabaseSink(url=self._postgres.url, table=table, pipeline_id=table)
        said = urlsplit(self._postgres.url)
        more = "?reWriteBatchedInserts=true" if contender == SPARK_REWRITING else ""
        options = {
            "url": f"jdbc:postgresql://{said.hostname}:{said.port}{said.path}{more}",
            "dbtable": table,
            "user": said.username or "",
            "password": said.password or "",
            "driver": "org.postgresql.Driver",
        }
        return lambda frame, batch_id: frame.write.format("jdbc").options(**options).mode("append").save()

    def _audit(self, contender: str, table: str) -> None:
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {table}").fetchone()  # noqa: S608
            connection.execute(f"DROP TABLE {table}")
        if found != (self._rows, self._rows, self._rows * (self._rows - 1) // 2):
            raise ResourceError(f"{contender} wrote other rows than it was given: {found}", next_step="do not trust it")


def _with_sessions(server: psutil.Process) -> float:
    """CPU seconds of a server, of its sessions that live, and of those that have ended."""
    return with_reaped(server) + sum(with_reaped(session) for session in server.children(recursive=True))


def _session(folder: Path) -> SparkSession:
    conf = ow.spark_conf()
    jars = [*filter(None, conf.get("spark.jars", "").split(",")), *map(str, resolve(_DRIVER))]
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
