"""Which kind of database an address is of."""

from __future__ import annotations

from onceward_verify.database import Database
from onceward_verify.findings import WrongUsage


def opened(url: str) -> Database:
    """The database at ``url``, whose scheme says what it is. Imports what only that kind of server
    needs.

    :raises WrongUsage: it is no such address.
    :raises Unavailable: no server answers there, it does not let us in, or its client is not
        installed.
    """
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        from onceward_verify.postgresql import PostgreSQL

        return PostgreSQL(url)
    if scheme in ("mysql", "mariadb"):
        from onceward_verify.mysql import MySQL

        return MySQL(url)
    raise WrongUsage(
        "--database-url is no address of a PostgreSQL, MySQL or MariaDB database",
        next_step="pass postgresql://user@host:port/database, mysql://… or mariadb://…; the "
        "password may stand in "
        "PGPASSWORD, or in MYSQL_PWD",
    )
