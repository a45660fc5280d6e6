"""A server's binlog to changes: Onceward's decoder beside mysql-replication, both in Python.
Called by :mod:`__main__`.

Both read the same binlogs of the same MySQL over a connection of their own, from the first byte
on. The other gives rows as dictionaries of Python's values; here they become a table of changes
with keys and rows as JSON texts, in the binlog's order, which is more. The events alone are a
contender, too: received, checked, and not looked into. What is counted is this process's CPU: the
server's is its own affair, and the same for all.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pymysql

from benchmarks.plan import in_turns
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.source.dump import Dump
from onceward_testing import LocalMySQL

EVENTS, WITNESS, ONCEWARD = "the events alone", "mysql-replication", "onceward"
CONTENDERS = (EVENTS, WITNESS, ONCEWARD)

_FLUSH_BYTES = 4 << 20
_ROWS_A_STATEMENT = 1000
_SETTINGS = {"binlog-row-metadata": "FULL"}
_COLUMNS = """id bigint unsigned PRIMARY KEY, name varchar(40) NOT NULL, amount decimal(12,2) NOT NULL,
 qty int NOT NULL, placed datetime(3) NOT NULL, status varchar(12) NOT NULL, note varchar(300) NOT NULL,
 flag tinyint NOT NULL, doc json"""


@dataclass(frozen=True, slots=True)
class BinlogFigures:
    """The median over the rounds, of one kind of changes."""

    shape: str
    contender: str
    changes: int
    cpu_us: float
    """For a change, with all that is done once."""
    times: float
    """To mysql-replication in the same rounds."""


def run_binlog(changes: int, rounds: int, say: Callable[[str], None]) -> list[BinlogFigures]:
    """Rows of nine columns, a JSON document in every fourth: inserted a thousand at a time,
    updated so, and inserted one by one in transactions of their own, of which there are a fifth.
    """
    found = []
    with LocalMySQL("mysql", _SETTINGS) as server:
        say("writing the binlogs …")
        for shape, count, statements in (
            ("inserts, 1,000 a statement", changes, _inserts("bulk", changes, _ROWS_A_STATEMENT)),
            ("updates, 1,000 a statement", changes, _updates(changes)),
            ("transactions of one row", changes // 5, _inserts("single", changes // 5, 1)),
        ):
            written = _written(server, shape, count, statements)
            turns = in_turns(CONTENDERS, rounds, written.turn, say, shape)
            medians = {name: statistics.median(turns[name]) for name in CONTENDERS}
            found += [
                BinlogFigures(shape, n, count, us, us / medians[WITNESS])
                for n, us in medians.items()
            ]
    return found


@dataclass(frozen=True)
class _Written:
    """One binlog."""

    server: LocalMySQL
    file: str
    end: int
    changes: int

    def turn(self, contender: str) -> float:
        """CPU in µs a change."""
        read = {EVENTS: self._events, WITNESS: self._witness, ONCEWARD: self._onceward}[contender]
        before = time.process_time()
        count = read()
        used = time.process_time() - before
        if count != self.changes:
            raise RuntimeError(
                f"{contender} found {count} changes in {self.file}, where there are {self.changes}"
            )
        return used * 1e6 / self.changes

    def _events(self) -> int:
        with self._dump() as dump:
            for _ in dump.blocks(self.file, self.end):
                pass
        return self.changes

    def _onceward(self) -> int:
        decoder = Decoder("mysql", lambda database, _: database == "test")
        count = fed = 0
        with self._dump() as dump:
            for block in dump.blocks(self.file, self.end):
                for event in block:
                    decoder.feed(event)
                fed += block[-1].stop - block[0].start
                while decoder.is_full or (fed >= _FLUSH_BYTES and decoder.has_changes):
                    count += len(decoder.flush())
                fed %= _FLUSH_BYTES
        while decoder.has_changes:
            count += len(decoder.flush())
        return count

    def _witness(self) -> int:
        from pymysqlreplication import BinLogStreamReader
        from pymysqlreplication.row_event import UpdateRowsEvent, WriteRowsEvent

        login = {**said(self.server), "passwd": urlsplit(self.server.url).password}
        del login["password"]
        reader = BinLogStreamReader(
            login, server_id=77, log_file=self.file, log_pos=4, resume_stream=True,
            only_schemas=["test"],
            only_events=[WriteRowsEvent, UpdateRowsEvent],
        )  # fmt: skip
        count = 0
        for event in reader:
            count += len(event.rows)
            if count >= self.changes:
                break
        reader.close()
        return count

    @contextmanager
    def _dump(self) -> Iterator[Dump]:
        with Dump(
            pymysql.connect(**said(self.server), autocommit=True), "mysql", self.file, 4
        ) as dump:
            yield dump


def said(server: LocalMySQL) -> dict[str, Any]:
    """What PyMySQL needs to connect to its database."""
    url = urlsplit(server.url)
    return {
        "host": url.hostname, "port": url.port, "user": url.username, "password": url.password,
        "ssl_disabled": True,
        "charset": "utf8mb4", "database": "test",
    }  # fmt: skip


def _written(server: LocalMySQL, shape: str, changes: int, statements: Iterator[str]) -> _Written:
    connection = pymysql.connect(**said(server), autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("SHOW MASTER STATUS")
        status = cursor.fetchone()
    if status is None:
        raise RuntimeError(f"{shape}: the server writes no binlog")
    return _Written(server, str(status[0]), int(status[1]), changes)


def _inserts(table: str, count: int, at_once: int) -> Iterator[str]:
    yield f"CREATE TABLE {table} ({_COLUMNS}) CHARACTER SET utf8mb4"
    for start in range(0, count, at_once):
        rows = ", ".join(map(_row, range(start, min(count, start + at_once))))
        yield f"INSERT INTO {table} VALUES {rows}"  # noqa: S608  made here


def _updates(count: int) -> Iterator[str]:
    for start in range(0, count, _ROWS_A_STATEMENT):
        first, last = (1 << 63) + start, (1 << 63) + start + _ROWS_A_STATEMENT - 1
        yield (f"UPDATE bulk SET qty = qty + 1 WHERE id BETWEEN {first} AND {last}")  # noqa: S608  the same


def _row(n: int) -> str:
    document = (
        "NULL"
        if n % 4
        else f"'{json.dumps({'k': n, 's': 'x' * (n % 9), 'l': [1, 2.5, True, None]})}'"
    )
    status = ("new", "paid", "shipped")[n % 3]
    return (
        f"({(1 << 63) + n}, 'näme-{n}', {(n * 7919) % 10**9 / 100}, {n % 1000 - 500}, "
        f"'2026-{1 + n % 12:02d}-{1 + n % 28:02d} 12:34:56.{n % 1000:03d}', '{status}', "
        f"'{'n' * (n % 60)}', "
        f"{n % 5 - 2}, {document})"
    )
