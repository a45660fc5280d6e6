"""Rows into PostgreSQL and MySQL: ``DatabaseSink`` beside Spark's own JDBC writer. Called by
:mod:`__main__`.

One streaming query a turn, of one batch, in one Spark; a fresh table each time. Spark's writer,
with its defaults and with what the driver calls rewriting of batches, promises nothing: after a
crash in mid-batch rows are there twice. What is timed is the function of ``foreachBatch``; every
table is counted and summed afterwards.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import psutil
import psycopg
import pymysql
from pyspark.sql import DataFrame

import onceward as ow
from benchmarks.cpu import CpuMeter, with_reaped
from benchmarks.orders import Orders, java, orders
from benchmarks.plan import in_turns
from onceward_testing import LocalMySQL, LocalPostgres

SPARK_DEFAULTS, ONCEWARD, PREPARED = "Spark's JDBC writer", "onceward", "onceward, xa"
SOURCE = "the rows alone"

Server = Literal["PostgreSQL", "MySQL"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How Spark's writer is told of a server, and what the table's columns are."""

    driver: str
    class_name: str
    scheme: str
    url_options: str
    rewriting: str
    columns: str
    before_a_turn: tuple[str, ...]
    ask: Callable[[str, str], tuple[int, ...] | None]
    new_server: Callable[[], LocalPostgres | LocalMySQL]


def _ask_postgresql(url: str, statement: str) -> tuple[int, ...] | None:
    """The first row."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement)
        row: tuple[int, ...] | None = found.fetchone() if found.description else None
        return row


def _ask_mysql(url: str, statement: str) -> tuple[int, ...] | None:
    """The same."""
    said = urlsplit(url)
    connection = pymysql.connect(
        host=said.hostname, port=said.port or 3306, user=said.username,
        password=said.password or "",
        database=said.path.strip("/"), autocommit=True, ssl_disabled=True,
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        return None if row is None else tuple(map(int, row))


_KINDS: dict[Server, _Kind] = {
    "PostgreSQL": _Kind(
        "org.postgresql:postgresql:42.7.7",
        "org.postgresql.Driver",
        "postgresql",
        "ApplicationName=bench",
        "reWriteBatchedInserts",
        "id bigint NOT NULL, customer integer, amount numeric(12,2), rate double precision, name "
        "text, note text, "
        "placed_at timestamp with time zone, paid boolean",
        ("CHECKPOINT",),
        _ask_postgresql,
        lambda: LocalPostgres(
            {"shared_buffers": "256MB", "max_wal_size": "4GB", "max_prepared_transactions": "64"}
        ),
    ),
    "MySQL": _Kind(
        "com.mysql:mysql-connector-j:9.1.0",
        "com.mysql.cj.jdbc.Driver",
        "mysql",
        "sslMode=DISABLED&allowPublicKeyRetrieval=true&connectionTimeZone=UTC",
        "rewriteBatchedStatements",
        "id bigint NOT NULL, customer int, amount decimal(12,2), rate double, name varchar(200), "
        "note varchar(200), "
        "placed_at timestamp(6) NULL, paid boolean",
        (),
        _ask_mysql,
        lambda: LocalMySQL(
            settings={
                "innodb-buffer-pool-size": "512M",
                "innodb-log-file-size": "512M",
                "skip-log-bin": "",
            }
        ),
    ),
}
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


def run_database(
    server: Server, rows: int, rounds: int, say: Callable[[str], None]
) -> list[DatabaseFigures]:
    """Measure all contenders, after a round that does not count.

    :raises ResourceError: a table has other rows than it should.
    """
    kind = _KINDS[server]
    prepares = (
        [PREPARED] if server == "PostgreSQL" else []
    )  # LocalMySQL is older than xa=True takes
    contenders = (SOURCE, SPARK_DEFAULTS, f"… {kind.rewriting}", ONCEWARD, *prepares)
    with orders(rows, kind.driver) as made, kind.new_server() as running:
        turns = in_turns(contenders, rounds, _Bench(made, kind, running).turn, say)
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
    def __init__(self, made: Orders, kind: _Kind, server: LocalPostgres | LocalMySQL) -> None:
        self._made, self._kind, self._url = made, kind, server.url
        self._server = psutil.Process(server.pid)
        self._meter = CpuMeter(psutil.Process().pid, java().pid, self._server.pid)

    def turn(self, contender: str) -> DatabaseTurn:
        table = f"rows_{uuid.uuid4().hex[:10]}"
        for statement in (
            f"CREATE TABLE {table} ({self._kind.columns})",
            *self._kind.before_a_turn,
        ):
            self._kind.ask(self._url, statement)
        write = self._write(contender, table)
        took: list[DatabaseTurn] = []

        def timed(frame: DataFrame, batch_id: int) -> None:
            spark, server, began = (
                self._meter.read().pipeline,
                _with_sessions(self._server),
                time.monotonic(),
            )
            write(frame, batch_id)
            seconds = time.monotonic() - began
            took.append(
                DatabaseTurn(
                    contender,
                    seconds,
                    self._meter.read().pipeline - spark,
                    _with_sessions(self._server) - server,
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
        if contender in (ONCEWARD, PREPARED):
            return ow.DatabaseSink(
                url=self._url, table=table, pipeline_id=table, xa=contender == PREPARED
            )
        said, kind = urlsplit(self._url), self._kind
        rewriting = f"&{kind.rewriting}=true" if kind.rewriting in contender else ""
        options = {
            "url": f"jdbc:{kind.scheme}://{said.hostname}:{said.port}{said.path}?{kind.url_options}{rewriting}",
            "dbtable": table,
            "user": said.username or "",
            "password": said.password or "",
            "driver": kind.class_name,
        }
        return lambda frame, batch_id: (
            frame.write.format("jdbc").options(**options).mode("append").save()
        )

    def _audit(self, contender: str, table: str) -> None:
        found = self._kind.ask(
            self._url,
            f"SELECT count(*), count(DISTINCT id), sum(id) FROM {table}",  # noqa: S608
        )
        self._kind.ask(self._url, f"DROP TABLE {table}")
        self._made.must_be_all(contender, found)


def _with_sessions(server: psutil.Process) -> float:
    """CPU seconds of a server, of its sessions that live, and of those that have ended."""
    return with_reaped(server) + sum(
        with_reaped(session) for session in server.children(recursive=True)
    )
