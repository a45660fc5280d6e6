"""Conversation with a PostgreSQL server, by psycopg: ledger, and who wrote which rows.

The only module of the checker that imports ``psycopg``. Everything is read in one snapshot, so
that a running pipeline changes nothing of it; nothing is written, and no lock is taken that
anybody would wait for.

The server keeps with every row the transaction that wrote it (the system column ``xmin``), which
no client can set: rows of one batch have that of their batch's record. It is the number's lower
half, 32 bits, and stays when a row is frozen (PostgreSQL's manual, 5.6 *System Columns* and 24.1
*Routine Vacuuming*; from 9.4 on).
"""

from __future__ import annotations

from typing import Any

from onceward_verify.database import DatabaseSnapshot, StoredRecord, TableRef
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


class PostgreSQLSnapshot(DatabaseSnapshot):
    """Snapshot of a PostgreSQL database.

    :param url: ``postgresql://…``, as libpq takes it.
    """

    names_writers = True

    def __init__(self, url: str) -> None:
        try:
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                url, connect_timeout=_SECONDS_TO_CONNECT, tcp_user_timeout=60_000
            )
        except psycopg.Error as error:
            raise Unavailable(
                f"the database does not let us in: {str(error).strip()}",
                next_step="check --database-url, and that the server is up",
            ) from error
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True

    def __enter__(self) -> PostgreSQLSnapshot:
        # A policy that would hide rows from us is an error then.
        self._connection.execute("SET row_security = off")
        self._connection.execute("SET lock_timeout = '60s'")
        return self

    def is_replica(self) -> bool:
        ((found,),) = self._query("SELECT pg_is_in_recovery()")
        return bool(found)

    def find_table(self, name: str) -> TableRef | None:
        rows = self._query(
            "WITH RECURSIVE above(oid) AS ("
            "SELECT inhparent FROM pg_inherits WHERE inhrelid = to_regclass(%s) "
            "UNION SELECT inhparent FROM pg_inherits JOIN above ON inhrelid = above.oid) "
            "SELECT c.oid, format('%%I.%%I', n.nspname, c.relname), "
            "(SELECT array_agg(oid) FROM above), EXISTS (SELECT 1 FROM pg_constraint f "
            "WHERE f.conrelid = c.oid AND f.contype = 'f' "
            "AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))) "
            "FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
            name,
            name,
        )
        if not rows:
            return None
        ((oid, quoted, parents, follows),) = rows
        return TableRef(int(oid), str(quoted), tuple(map(int, parents or ())), bool(follows))

    def ledger_end(self, ledger: TableRef, pipeline_id: str) -> int | None:
        query = _compose("SELECT sequence FROM {} WHERE pipeline = %s", ledger)
        rows = self._query(query, pipeline_id)
        return int(rows[0][0]) if rows and int(rows[0][0]) >= 0 else None

    def batches(self, batches: TableRef, pipeline_id: str) -> list[StoredRecord]:
        query = (
            "SELECT sequence, record, transaction, xmin::text::bigint FROM {} "
            "WHERE pipeline = %s ORDER BY sequence, state"
        )
        return [
            StoredRecord(int(sequence), record.encode(), int(transaction), int(writer))
            for sequence, record, transaction, writer in self._query(
                _compose(query, batches), pipeline_id
            )
        ]

    def row_counts(self, table: TableRef) -> dict[int, int]:
        query = "SELECT xmin::text::bigint, count(*) FROM {} WHERE %s GROUP BY 1"
        rows = self._query(_compose(query, table), True)
        return {int(transaction): int(number) for transaction, number in rows}

    def staging_tables(self, ledger: TableRef) -> list[str]:
        rows = self._query(
            "SELECT relname FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = %s) "
            "AND relname LIKE 'onceward\\_staging\\_%%' ORDER BY relname",
            ledger.key,
        )
        return [str(name) for (name,) in rows]

    def _query(self, query: str | sql.Composed, *parameters: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except psycopg.errors.SerializationFailure as error:
            # A transaction that only reads has no other conflict than one with WAL
            raise CannotTell(
                f"the standby has ended the look, to go on with WAL: {str(error).strip()}",
                next_step="ask the primary (--database-url), or let the standby wait for longer "
                "(max_standby_streaming_delay, hot_standby_feedback)",
            ) from error
        except psycopg.Error as error:
            raise CannotTell(
                f"the database does not answer: {str(error).strip()}",
                next_step="see that this login may SELECT all rows of the ledger's tables and the "
                "pipeline's",
            ) from error


def _compose(query: str, table: TableRef) -> sql.Composed:
    """Insert the name of ``table`` into ``query``; the server has quoted it."""
    return sql.SQL(query).format(sql.SQL(table.name.replace("%", "%%")))
