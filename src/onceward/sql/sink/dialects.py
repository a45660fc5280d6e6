"""The dialect of a ledger's database, which is the sink's, too. Driver only."""

from __future__ import annotations

from onceward.sql.ledger.database import Database
from onceward.sql.ledger.mysql import MySQL
from onceward.sql.sink.dialect import Dialect


def dialect_for(database: Database) -> Dialect:
    """Return the dialect of a database. Import only what that kind of server needs."""
    if isinstance(database, MySQL):
        from onceward.sql.mysql.dialect import MySQLDialect

        return MySQLDialect(database)
    from onceward.sql.postgresql.dialect import PostgreSQLDialect

    return PostgreSQLDialect()
