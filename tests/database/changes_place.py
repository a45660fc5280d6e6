"""The changes of a schema of the test's own, read as Spark would, without Spark: each step by a
new process's copy.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from pyspark import cloudpickle

from onceward.mysql.source.settings import make_settings
from onceward.mysql.source.source import MySQLChanges
from onceward_testing import LocalMySQL
from support.mysql_client import sql_at

DEFAULTS: dict[str, Any] = {
    "starting": "latest",
    "max_bytes_per_batch": 64 << 20,
    "heartbeat_seconds": 60,
    "pass_over": (),
    "values": "text",
}


def source_of(url: str, **settings: Any) -> MySQLChanges:
    """As ``ow.mysql_changes`` makes it; ``part_bytes`` and ``heartbeat_seconds`` as said."""
    part_bytes = settings.pop("part_bytes", None)
    made = MySQLChanges(make_settings(url=url, **{**DEFAULTS, **settings}))
    if part_bytes is not None:
        object.__setattr__(made._settings, "part_bytes", part_bytes)
    return made


class ChangesPlace:
    """A schema on one server, and a query on it, which stands at ``position``."""

    def __init__(self, server: LocalMySQL, **settings: Any) -> None:
        self.server = server
        self.url = server.url
        self.schema = f"changes_{uuid.uuid4().hex[:10]}"
        self.settings = {"tables": f"{self.schema}.*", **settings}
        self.sql(f"CREATE DATABASE {self.schema}")
        self.sql("CREATE TABLE {s}.t (id int PRIMARY KEY, v varchar(40))")
        self.position: Any = None
        self.running = self.source()

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            found = sql_at(self.url, statement.replace("{s}", self.schema))
        return found

    def source(self, **settings: Any) -> MySQLChanges:
        return source_of(self.url, **{**self.settings, **settings})

    def begin(self, **settings: Any) -> ChangesPlace:
        """A query with a new checkpoint, which begins now."""
        self.settings |= settings
        self.running = self.source()
        self.position = self.running.start()
        return self

    def restarted(self, **settings: Any) -> ChangesPlace:
        """The query goes on in a new process."""
        self.settings |= settings
        self.running = self.source()
        return self

    def advanced(self, limit: int = 1 << 30) -> Any:
        return self.running.advance(self.position, limit)

    def rows(
        self, start: Any, end: Any, source: MySQLChanges | None = None
    ) -> list[dict[str, Any]]:
        """Of one range, in the order of their positions."""
        planner = source or self.running
        parts = planner.partitions(start, end)
        task = cloudpickle.loads(cloudpickle.dumps(planner))  # type: ignore[no-untyped-call]
        found = [row for part in parts for row in task.read_partition(part).to_pylist()]
        return sorted(found, key=lambda row: str(row["position"]))

    def batch(self, limit: int = 1 << 30) -> list[dict[str, Any]]:
        """The next one; none if nothing is new. A new process plans it the same."""
        end = self.advanced(limit)
        if end == self.position:
            return []
        found = self.rows(self.position, end)
        assert self.rows(self.position, end, self.source()) == found
        self.position = end
        return found

    def all(self, limit: int = 1 << 30) -> list[dict[str, Any]]:
        """Batches until nothing is new."""
        found: list[dict[str, Any]] = []
        while rows := self.batch(limit):
            found += rows
        return found

    def all_until_stop(self, kind: type[Exception], words: str) -> list[dict[str, Any]]:
        """Batches until an error of that kind with these words; what a new process would plan is
        not compared.
        """
        found: list[dict[str, Any]] = []
        while True:
            stop: Exception | None = None
            try:
                end = self.advanced()
            except kind as error:
                stop = error
            if stop is not None:
                assert words in str(stop)
                return found
            assert end != self.position, "nothing stops it"
            found += self.rows(self.position, end)
            self.position = end


def purge(url: str) -> None:
    """All binlogs but the newest are gone. MariaDB keeps a file until a checkpoint says that no
    crash needs it, which comes a moment after a rotation.
    """
    newest = sql_at(url, "SHOW MASTER STATUS")[0][0]
    deadline = time.monotonic() + 30
    while sql_at(url, "SHOW BINARY LOGS")[0][0] != newest:
        assert time.monotonic() < deadline
        sql_at(url, f"PURGE BINARY LOGS TO '{newest}'")


def brief(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What tests look at: the kind of change, the table, and the rows."""
    return [(row["op"], row["table"], row["before"], row["after"]) for row in rows]


def row(number: int, value: str | None) -> str:
    """A row of ``t``, as its JSON."""
    return f'{{"id":{number},"v":' + ("null" if value is None else f'"{value}"') + "}"
