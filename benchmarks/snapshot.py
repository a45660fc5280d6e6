"""All rows of a MySQL's table: Onceward's snapshot beside a plain client that reads them. Called
by :mod:`__main__`.

Ours are chunks as of a place of the binlog, with keys and rows as JSON texts, read one after the
other in this process as tasks of Spark read them side by side. The other is PyMySQL with a cursor
that streams: tuples of Python's values, and no place at which they are valid. What is counted is
this process's CPU, and the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pymysql
from pymysql.cursors import SSCursor

from benchmarks.binlog import said
from benchmarks.plan import in_turns
from onceward.mysql.source.settings import BATCH_BYTES, make_settings
from onceward.mysql.source.source import MySQLChanges
from onceward_testing import LocalMySQL

CLIENT, ONCEWARD = "PyMySQL, a streaming cursor", "onceward"
CONTENDERS = (CLIENT, ONCEWARD)

_COLUMNS = """id bigint NOT NULL PRIMARY KEY, name varchar(40) NOT NULL, amount decimal(12,2) NOT NULL,
 qty int NOT NULL, placed datetime(3) NOT NULL, status varchar(12) NOT NULL,
 note varchar(300) NOT NULL, flag tinyint NOT NULL"""
_DIGITS = (
    "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4)"
)
_VALUES = """n, CONCAT('näme-', n), n % 100000 / 100, n % 1000 - 500,
 '2026-01-02 03:04:05.678' + INTERVAL n % 86400 SECOND, ELT(1 + n % 3, 'new', 'paid', 'shipped'),
 REPEAT('n', n % 60), n % 5 - 2"""
_MOST_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """The median over the rounds."""

    contender: str
    rows: int
    rows_per_s: float
    cpu_us: float
    """For a row."""


def run_snapshot(rows: int, rounds: int, say: Callable[[str], None]) -> list[SnapshotFigures]:
    """A table of eight columns."""
    with LocalMySQL(binlog=True) as server:
        say(f"writing {rows:,} rows …")
        _write(server, rows)
        turns = in_turns(CONTENDERS, rounds, partial(_turn, server, rows), say)
    return [
        SnapshotFigures(
            name,
            rows,
            rows / statistics.median(wall for wall, _ in measured),
            statistics.median(cpu for _, cpu in measured) * 1e6 / rows,
        )
        for name, measured in turns.items()
    ]


def _turn(server: LocalMySQL, rows: int, contender: str) -> tuple[float, float]:
    read = {CLIENT: _client, ONCEWARD: _onceward}[contender]
    cpu, wall = time.process_time(), time.monotonic()
    count = read(server)
    used = time.monotonic() - wall, time.process_time() - cpu
    if count != rows:
        raise RuntimeError(f"{contender} found {count} rows where there are {rows}")
    return used


def _client(server: LocalMySQL) -> int:
    with pymysql.connect(**said(server)) as connection, connection.cursor(SSCursor) as cursor:
        cursor.execute("SELECT * FROM many")
        return sum(len(block) for block in iter(partial(cursor.fetchmany, 10_000), ()) if block)


def _onceward(server: LocalMySQL) -> int:
    source = MySQLChanges(
        make_settings(
            url=server.url, tables="test.many", starting="initial",
            max_bytes_per_batch=BATCH_BYTES,
            heartbeat_seconds=60, pass_over=(), values="text",
        )
    )  # fmt: skip
    count, at = 0, source.start()
    for _ in range(_MOST_CALLS):
        end = source.advance(at, 1 << 30)
        count += sum(source.read_partition(part).num_rows for part in source.partitions(at, end))
        at = end
        if at["snapshot"] is None or not (at["snapshot"]["left"] or at["snapshot"]["table"]):
            break
    return count


def _write(server: LocalMySQL, rows: int) -> None:
    digits = len(str(rows)) * 3 // 2 + 1  # of base 5
    joined = " CROSS JOIN ".join(f"{_DIGITS} d{place}" for place in range(digits))
    number = " + ".join(f"d{place}.d * {5**place}" for place in range(digits))
    with (
        pymysql.connect(**said(server), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"CREATE TABLE many ({_COLUMNS}) CHARACTER SET utf8mb4")
        cursor.execute(
            f"INSERT INTO many SELECT {_VALUES} FROM (SELECT {number} n FROM {joined} LIMIT "  # noqa: S608
            f"{rows}) numbers"
        )
