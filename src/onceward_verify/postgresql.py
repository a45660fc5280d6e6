"""The conversation with a PostgreSQL server, by psycopg: the ledger's tables, and of other tables
who wrote their rows.

The only module of ``onceward_verify`` that imports ``psycopg``. Everything is read in one
snapshot, so that a pipeline that runs on changes nothing of what is seen; nothing is written, and
no lock is taken that anybody would wait for.

The server keeps with every row the transaction that wrote it (the system column ``xmin``), which
no client can set: rows of one batch have that of their batch's record. It is the number's lower
half, 32 bits, and stays when a row is frozen (PostgreSQL's manual, 5.6 *System Columns* and 24.1
*Routine Vacuuming*; from 9.4 on).
"""

from __future__ import annotations

from typing import Any

from onceward_verify.database import Database, Found, Kept
from onceward_verify.findings import CannotTell, Unavailable

try:
    import psycopg
    from psycopg import sql
except ImportError as missing:
    raise Unavailable(
        "the checker reads PostgreSQL with psycopg, which is not installed",
        next_step='pip install "onceward[postgresql]"',
    ) from missing

_SECONDS_TO_CONNECT = 30


class PostgreSQL(Database):
    """See the module.

    :param url: ``postgresql://…``, as libpq takes it.
    """

    tells_writers = True

    def __init__(self, url: str) -> None:
        try:
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                url, connect_timeout=_SECONDS_TO_CONNECT
            )
        except psycopg.Error as error:
            raise Unavailable(
                f"the database does not let us in: {str(error).strip()}",
                next_step="check --database-url, and that the server is up",
            ) from error
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True

    def __enter__(self) -> PostgreSQL:
        self._connection.execute(
            "SET row_security = off"
        )  # a policy that would hide rows from us is an error then
        return self

    def table(self, name: str) -> Found | None:
        rows = self._asked(
            "WITH RECURSIVE above(oid) AS (SELECT inhparent FROM pg_inherits WHERE inhrelid = "
            "to_regclass(%s) "
            "UNION SELECT inhparent FROM pg_inherits JOIN above ON inhrelid = above.oid) "
            "SELECT c.oid, format('%%I.%%I', n.nspname, c.relname), (SELECT array_agg(oid) FROM "
            "above) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
            name,
            name,
        )
        return (
            Found(int(rows[0][0]), str(rows[0][1]), tuple(map(int, rows[0][2] or ())))
            if rows
            else None
        )

    def ledger_ends(self, ledger: Found, pipeline_id: str) -> int | None:
        rows = self._asked(_in("SELECT sequence FROM {} WHERE pipeline = %s", ledger), pipeline_id)
        return int(rows[0][0]) if rows and int(rows[0][0]) >= 0 else None

    def batches(self, batches: Found, pipeline_id: str) -> list[Kept]:
        rows = self._asked(
            _in(
                "SELECT sequence, record, transaction, xmin::text::bigint FROM {} WHERE pipeline "
                "= %s "
                "ORDER BY sequence, state",
                batches,
            ),
            pipeline_id,
        )
        return [
            Kept(int(sequence), record.encode(), int(told), int(by))
            for sequence, record, told, by in rows
        ]

    def rows(self, table: Found) -> dict[int, int]:
        rows = self._asked(
            _in("SELECT xmin::text::bigint, count(*) FROM {} WHERE %s GROUP BY 1", table), True
        )
        return {int(transaction): int(number) for transaction, number in rows}

    def staging_tables(self, ledger: Found) -> list[str]:
        rows = self._asked(
            "SELECT relname FROM pg_class WHERE relnamespace = (SELECT relnamespace FROM pg_class "
            "WHERE oid = %s) "
            "AND relkind = 'r' AND relname LIKE 'onceward\\_staging\\_%%' ORDER BY relname",
            ledger.key,
        )
        return [str(name) for (name,) in rows]

    def _asked(self, query: str | sql.Composed, *parameters: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except psycopg.Error as error:
            raise CannotTell(
                f"the database does not answer: {str(error).strip()}",
                next_step="see that this login may SELECT all rows of the ledger's tables and the "
                "pipeline's",
            ) from error


def _in(query: str, table: Found) -> sql.Composed:
    """``query`` about ``table``, whose name the server has quoted."""
    return sql.SQL(query).format(
        sql.SQL(table.name.replace("%", "%%"))
    )  # the server has quoted it
