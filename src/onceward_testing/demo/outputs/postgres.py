"""A table of a PostgreSQL that is started for the demo."""

from __future__ import annotations

from typing import Any

import psycopg

from onceward_testing.demo.outputs.database import DatabaseOutput
from onceward_testing.local_postgres import LocalPostgres


class PostgresOutput(DatabaseOutput):
    """See the module."""

    instant = "timestamptz"

    def __init__(self, servers: str) -> None:
        super().__init__(servers, LocalPostgres())

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address, autocommit=True)
