"""Writers that change tables of a MySQL server, and what two other readers say of them.

The load: ten tables of different keys; statements of one row and of hundreds, transactions of one
table and of several, rows that move to another key, rows that are deleted and come again. Seeded;
several writers at once meet in deadlocks, which they pass over.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pymysql
from changes_audit import Change, Key, Row

DATABASE = "shop"
_COLUMNS = (
    "v BIGINT NOT NULL, w VARCHAR(60) NOT NULL, d DECIMAL(12,2) NULL, at DATETIME(3) NOT NULL"
)
_KEYS = (
    "id INT NOT NULL PRIMARY KEY",
    "id BIGINT UNSIGNED NOT NULL PRIMARY KEY",
    "id VARCHAR(20) NOT NULL PRIMARY KEY",
)


def client(url: str, **settings: Any) -> Any:
    """A connection by another library than ours would choose."""
    at = urlsplit(url)
    return pymysql.connect(
        host=at.hostname,
        port=at.port or 3306,
        user=at.username,
        password=at.password or "",
        autocommit=True,
        **settings,
    )


class Load:
    """Ten tables, and writers that go on until they are told to stop.

    :param rows: in each table at first. :param per_second: changes of each writer, about: the job
        has to keep up.
    """

    def __init__(
        self, url: str, rows: int, *, tables: int = 10, seed: int = 1, per_second: int = 1_000
    ) -> None:
        self.url, self.rows, self.seed, self._per_second = url, rows, seed, per_second
        self.tables = [f"{DATABASE}.t{number}" for number in range(tables)]
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._changes = [0, 0, 0, 0]
        self.failures: list[Exception] = []

    def make(self) -> None:
        """The tables and their first rows."""
        with closing(client(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            for number, table in enumerate(self.tables):
                cursor.execute(
                    f"CREATE TABLE {table} ({_KEYS[number % len(_KEYS)]}, {_COLUMNS}) "
                    f"ENGINE=InnoDB"
                )
                for first in range(0, self.rows, 500):
                    values = [_values(key, 0) for key in range(first, min(first + 500, self.rows))]
                    cursor.execute(f"INSERT INTO {table} VALUES {', '.join(values)}")  # noqa: S608

    def start(self, writers: int = 2, before_each: tuple[str, ...] = ()) -> None:
        """:param before_each: statements of each writer's session."""
        for number in range(writers):
            thread = threading.Thread(target=self._write, args=(number, before_each), daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def changes(self) -> int:
        """Rows changed so far, about."""
        return sum(self._changes)

    def wait_for(self, changes: int, seconds: float) -> None:
        """Until about so many have been made."""
        end = time.monotonic() + seconds
        while self.changes < changes:
            assert time.monotonic() < end, (
                f"{self.changes} of {changes} changes within {seconds} s"
            )
            assert not self.failures, self.failures
            time.sleep(0.1)

    def stop(self) -> None:
        """No more changes after this."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.failures, self.failures

    def _write(self, number: int, before_each: tuple[str, ...]) -> None:
        chance = random.Random(self.seed * 100 + number)
        stamp = number * 10_000_000
        while not self._ended.is_set():
            stamp += 100_000
            self._session(number, before_each, chance, stamp)

    def _session(
        self, number: int, before_each: tuple[str, ...], chance: random.Random, stamp: int
    ) -> None:
        try:
            with closing(client(self.url)) as connection, connection.cursor() as cursor:
                for statement in before_each:
                    cursor.execute(statement)
                while not self._ended.is_set():
                    stamp += 1
                    made = self._transaction(connection, cursor, chance, stamp)
                    self._changes[number] += made
                    self._ended.wait(made / self._per_second)
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError):
            time.sleep(0.2)  # a deadlock, or the server is killed just now
        except Exception as error:  # noqa: BLE001 — raised in the test's thread
            self.failures.append(error)
            self._ended.set()

    def _transaction(self, connection: Any, cursor: Any, chance: random.Random, stamp: int) -> int:
        several = chance.random() < 0.3
        if several:
            connection.begin()
        done = sum(
            self._statement(cursor, chance, stamp * 10 + step)
            for step in range(3 if several else 1)
        )
        if several:
            connection.commit()
        return int(done)

    def _statement(self, cursor: Any, chance: random.Random, stamp: int) -> int:
        table, kind = chance.choice(self.tables), chance.random()
        key, many = chance.randrange(self.rows * 2), chance.choice((1, 1, 1, 40, 200))
        if kind < 0.45:
            values = ", ".join(
                _values((key + step) % (self.rows * 2), stamp) for step in range(many)
            )
            cursor.execute(
                f"INSERT INTO {table} VALUES {values} ON DUPLICATE KEY UPDATE v = {stamp}"  # noqa: S608
            )
            return many  # MySQL counts an update here as two
        keys = ", ".join(f"'{(key + step) % (self.rows * 2)}'" for step in range(many))
        if kind < 0.8:
            return int(
                cursor.execute(
                    f"UPDATE {table} SET v = {stamp}, d = d + 0.01 WHERE id IN ({keys})"  # noqa: S608
                )
            )
        if kind < 0.95:
            return int(cursor.execute(f"DELETE FROM {table} WHERE id IN ({keys})"))  # noqa: S608
        return int(
            cursor.execute(
                f"UPDATE IGNORE {table} SET id = '{self.rows * 2 + key}' WHERE id = '{key}'"  # noqa: S608
            )
        )


def _values(key: int, stamp: int) -> str:
    return f"('{key}', {stamp}, 'w{stamp}', {key}.25, '2026-01-02 03:04:05.678')"


def witnessed(url: str, file: str, position: int) -> Iterator[Change]:
    """Every change since, by python-mysql-replication, in the binlog's order; moved keys as d and
    c.

    It passes over compressed transactions without a word, so it is asked where there are none.
    """
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    at = urlsplit(url)
    stream = BinLogStreamReader(
        {"host": at.hostname, "port": at.port or 3306, "user": at.username,
        "passwd": at.password or ""},
        server_id=4_000_001, log_file=file, log_pos=position, resume_stream=True, blocking=False,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent], only_schemas=[DATABASE],
    )  # fmt: skip
    with closing(stream):
        for event in stream:
            gone = isinstance(event, DeleteRowsEvent)
            for row in event.rows:
                yield from _changes(f"{event.schema}.{event.table}", *_images(row, gone=gone))


def _changes(table: str, before: Row | None, after: Row | None) -> Iterator[Change]:
    if before is not None and after is not None and before["id"] != after["id"]:
        yield Change((table, before["id"]), "d", before, None)
        yield Change((table, after["id"]), "c", None, after)
        return
    op = "u" if before is not None and after is not None else "c" if before is None else "d"
    some = after or before
    assert some is not None
    yield Change((table, some["id"]), op, before, after)


def _images(row: dict[str, Any], *, gone: bool) -> tuple[Row | None, Row | None]:
    if "values" not in row:
        return as_text(row["before_values"]), as_text(row["after_values"])
    image = as_text(row["values"])
    return (image, None) if gone else (None, image)


def streamed(key: bytes, value: bytes) -> Change:
    """A record that ``changes_job`` wrote."""
    said = json.loads(value)
    before, after = (
        as_text(json.loads(said[image], parse_float=Decimal))
        if said.get(image) is not None
        else None
        for image in ("before", "after")
    )
    some = after or before
    assert some is not None, said
    table = f"{said['db']}.{said['table']}"
    assert key.decode() == f"{table}/" + json.dumps(
        {"id": json.loads(said.get("after") or said["before"])["id"]}, separators=(",", ":")
    )
    return Change((table, some["id"]), said["op"], before, after)


def as_text(image: dict[str, Any]) -> Row:
    """Values of whatever types as texts that can be compared."""
    return {name: None if value is None else str(value)[:23] for name, value in image.items()}


def rows_of(url: str, tables: list[str]) -> dict[Key, Row]:
    """What is in the tables now."""
    found: dict[Key, Row] = {}
    with (
        closing(client(url, cursorclass=pymysql.cursors.DictCursor)) as connection,
        connection.cursor() as cursor,
    ):
        for table in tables:
            cursor.execute(f"SELECT * FROM {table}")  # noqa: S608
            for row in cursor.fetchall():
                image = as_text(row)
                found[table, image["id"]] = image
    return found


def end_of_binlog(url: str) -> tuple[str, int]:
    """File and position."""
    with closing(client(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, position = cursor.fetchone()[:2]
        return file, int(position)
