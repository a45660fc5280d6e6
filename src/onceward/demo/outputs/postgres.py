"""A table of a PostgreSQL that is started for the demo."""

from __future__ import annotations

from typing import Any

import psycopg

from onceward.demo.audit import CheckerFacts, OutputFacts, ask
from onceward.demo.outputs.output import CountingTail, Output
from onceward.demo.settings import OUTPUT_TABLE, PIPELINE_ID
from onceward.testing.local_postgres import LocalPostgres
from onceward.testing.verdict import exactly_once

_COLUMNS = "number text NOT NULL, id bigint, name text, from_time timestamptz NOT NULL, to_time timestamptz NOT NULL"
"""Nothing in it is unique: a row that comes twice is to be seen, not refused."""


class PostgresOutput(Output):
    """See the module."""

    reader = "a SELECT"

    def __init__(self, servers: str) -> None:
        self._servers = servers  # of the input
        self._server = LocalPostgres()

    def __enter__(self) -> PostgresOutput:
        self._server.__enter__()
        self.address = self._server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    def make(self) -> None:
        with self._connected() as connection:
            connection.execute(f"CREATE TABLE {OUTPUT_TABLE} ({_COLUMNS})")

    def tail(self) -> CountingTail:
        connection = self._connected()
        return CountingTail(lambda: _number(connection, f"SELECT count(*) FROM {OUTPUT_TABLE}"))  # noqa: S608

    def read(self, expected: set[str]) -> OutputFacts:
        with self._connected() as connection:
            numbers = [str(number) for (number,) in connection.execute(f"SELECT number FROM {OUTPUT_TABLE}")]  # noqa: S608
            staging = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'onceward\\_staging%'")
            left = [f"staging table {name}" for (name,) in staging]
        return OutputFacts(exactly_once(expected, numbers), left_over=left)

    def ask_the_checker(self) -> CheckerFacts:
        where = ["--database-url", self.address, "--bootstrap-servers", self._servers]
        return ask("--pipeline-id", PIPELINE_ID, *where, "--expect-caught-up")

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address, autocommit=True)


def _number(connection: psycopg.Connection[Any], sql: str) -> int:
    (found,) = connection.execute(sql).fetchone() or (0,)
    return int(found)
