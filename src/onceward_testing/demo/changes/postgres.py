"""The demo's source table once more, in a PostgreSQL that is started for the demo."""

from __future__ import annotations

import datetime
import json
from typing import Any

import psycopg

from onceward_testing.demo.audit import CheckerFacts, OutputFacts, ask
from onceward_testing.demo.changes.feed import PeopleOfATown
from onceward_testing.demo.changes.outputs import OutputOfChanges
from onceward_testing.demo.changes.rows import PEOPLE
from onceward_testing.demo.outputs.database import OnAServer, asked, left_over
from onceward_testing.demo.outputs.output import CountingTail
from onceward_testing.demo.settings import CHANGES_PIPELINE_ID
from onceward_testing.local_postgres import LocalPostgres
from onceward_testing.verdict import exactly_once

_TABLE = """
CREATE TABLE people (
    id bigint PRIMARY KEY, version int NOT NULL, name text NOT NULL, number text, born date,
    balance numeric(12,2) NOT NULL, kind text NOT NULL, notes jsonb, photo bytea, registered timestamp NOT NULL,
    seen timestamptz NOT NULL, email text NOT NULL
)
"""


class RowsInPostgres(OnAServer, OutputOfChanges):
    """See the module."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers, LocalPostgres())

    def make(self) -> None:
        with self._connected() as connection:
            connection.execute(_TABLE)

    def tail(self) -> CountingTail:
        connection = self._connected()
        return CountingTail(lambda: int(asked(connection, "SELECT count(*) FROM people")[0]))

    def read(self, town: PeopleOfATown) -> OutputFacts:
        """The rows of both tables, as the two servers' own clients give them."""
        source = [repr(row) for (table, _), row in town.rows().items() if table == PEOPLE.name]
        with self._connected() as connection:
            target = [
                repr(_plain(row)) for row in connection.execute("SELECT * FROM people").fetchall()
            ]
            left = left_over(connection)
        return OutputFacts(exactly_once(source, target), left_over=left)

    def ask_the_checker(self) -> CheckerFacts:
        where = [
            "--database-url",
            self.address,
            "--what-is-left",
            "--bootstrap-servers",
            self._servers,
        ]
        return ask("--pipeline-id", CHANGES_PIPELINE_ID, *where)

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address, autocommit=True)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """As :mod:`rows` has it."""
    identity, version, name, number, born, balance, kind, notes, photo, registered, seen, email = (
        row
    )
    return (
        identity,
        version,
        name,
        number,
        None if born is None else str(born),
        str(balance),
        kind,
        None if notes is None else json.dumps(notes, sort_keys=True, ensure_ascii=False),
        None if photo is None else photo.hex(),
        registered.isoformat(" ", "microseconds"),
        seen.astimezone(datetime.timezone.utc).replace(tzinfo=None).isoformat(" ", "microseconds"),
        email,
    )
