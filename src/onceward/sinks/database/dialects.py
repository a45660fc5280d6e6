"""The dialect of a ledger's database, which is the sink's, too. Driver only."""

from __future__ import annotations

from onceward.ledger.database import Database
from onceward.ledger.mysql import MySQL
from onceward.sinks.database.dialect import Dialect


def dialect_of(database: Database) -> Dialect:
    """Imports what only that kind of server needs."""
    if isinstance(database, MySQL):
        from onceward.sinks.database.mysql.dialect import MySQLDialect

        return MySQLDialect(database)
    from onceward.sinks.database.postgresql.dialect import PostgreSQLDialect

    return PostgreSQLDialect()
