"""Rows into PostgreSQL: ``DatabaseSink`` beside Spark's own JDBC writer. Called by :mod:`__main__`.

One streaming query a turn, of one batch, in one Spark; a fresh table each time. Spark's writer, with its defaults and
with the driver's ``reWriteBatchedInserts``, promises nothing: after a crash in mid-batch rows are there twice. What is
timed is the function of ``foreachBatch``; every table is counted and summed afterwards.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
import psycopg
from pyspark.sql import DataFrame

import onceward as ow
from benchmarks.cpu import CpuMeter, with_reaped
from benchmarks.orders import Orders, in_turns, java, orders
from onceward.testing import LocalPostgres

SPARK_DEFAULTS, SPARK_REWRITING, ONCEWARD = "Spark's JDBC writer", "… reWriteBatchedInserts", "onceward"
SOURCE = "the rows alone"

_DRIVER = "org.postgresql:postgresql:42.7.7"
_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
_COLUMNS = (
    "id bigint NOT NULL, customer integer, amount numeric(12,2), rate double precision, name text, note text, "
    "placed_at timestamp with time zone, paid boolean"
)
Write = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class DatabaseTurn:
    """One contender's turn: seconds by the clock, and of CPU."""

    contender: str
    seconds: float
    spark_cpu: float
    server_cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, CPU {self.spark_cpu:.2f} + {self.server_cpu:.2f} s"


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
    contenders = (SOURCE, SPARK_DEFAULTS, SPARK_REWRITING, ONCEWARD)
    with orders(rows, _DRIVER) as made, LocalPostgres(_SETTINGS) as postgres:
        turns = in_turns(contenders, rounds, _Bench(made, postgres).turn, say)
    return [_median(turns[name], rows) for name in contenders]


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
    def __init__(self, made: Orders, postgres: LocalPostgres) -> None:
        self._made, self._postgres = made, postgres
        self._server = psutil.Process(postgres.pid)
        self._meter = CpuMeter(psutil.Process().pid, java().pid, self._server.pid)

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

        query = (
            self._made.stream()
            .parquet(self._made.source)
            .writeStream.foreachBatch(timed)
            .option("checkpointLocation", str(self._made.folder / table))
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
        self._made.must_be_all(contender, found)


def _with_sessions(server: psutil.Process) -> float:
    """CPU seconds of a server, of its sessions that live, and of those that have ended."""
    return with_reaped(server) + sum(with_reaped(session) for session in server.children(recursive=True))
