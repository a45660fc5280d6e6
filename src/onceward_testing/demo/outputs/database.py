"""A table of a database that is started for the demo: what PostgreSQL and MySQL have in common, by
Python's DB-API.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from onceward_testing.demo.audit import CheckerFacts, OutputFacts, ask
from onceward_testing.demo.outputs.output import CountingTail, Output, OutputOfNumbers
from onceward_testing.demo.settings import OUTPUT_TABLE, PIPELINE_ID
from onceward_testing.local_mysql import LocalMySQL
from onceward_testing.local_postgres import LocalPostgres
from onceward_testing.verdict import exactly_once

_STAGING = (
    "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'onceward\\_staging%'"
)


class OnAServer(Output):
    """In a database that lives as long as the ``with`` block.

    :param servers: of the demo's cluster, which the checker wants to know.
    """

    reader = "a SELECT"

    def __init__(self, servers: str, server: LocalPostgres | LocalMySQL) -> None:
        self._servers = servers
        self._server = server

    def __enter__(self) -> OnAServer:
        self._server.__enter__()
        self.address = self._server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    @abstractmethod
    def _connected(self) -> Any:
        """A new connection, by the server's own client, in which each statement is a transaction.
        It is closed at the end of its ``with`` block.
        """


class DatabaseOutput(OnAServer, OutputOfNumbers):
    """See the module."""

    instant: str
    """The server's type for a moment, to the microsecond."""

    def make(self) -> None:
        """Nothing in the table is unique: a row that comes twice is to be seen, not refused."""
        columns = f"number text NOT NULL, id bigint, name text, from_time {self.instant} NOT NULL"
        with self._connected() as connection:
            connection.cursor().execute(
                f"CREATE TABLE {OUTPUT_TABLE} ({columns}, to_time {self.instant} NOT NULL)"
            )

    def tail(self) -> CountingTail:
        connection = self._connected()
        return CountingTail(
            lambda: int(asked(connection, f"SELECT count(*) FROM {OUTPUT_TABLE}")[0])  # noqa: S608
        )

    def read(self, expected: set[str], poison: Sequence[bytes]) -> OutputFacts:
        with self._connected() as connection:
            numbers = map(str, asked(connection, f"SELECT number FROM {OUTPUT_TABLE}"))  # noqa: S608
            left = left_over(connection)
        return OutputFacts(exactly_once(expected, numbers), left_over=left)

    def ask_the_checker(self) -> CheckerFacts:
        where = ["--database-url", self.address, "--bootstrap-servers", self._servers]
        return ask("--pipeline-id", PIPELINE_ID, *where, "--expect-caught-up")


def left_over(connection: Any) -> list[str]:
    """Of attempts that were killed."""
    return [f"staging table {name}" for name in asked(connection, _STAGING)]


def asked(connection: Any, statement: str) -> list[Any]:
    """The only column of what is found."""
    cursor = connection.cursor()
    cursor.execute(statement)
    return [value for (value,) in cursor.fetchall()]
