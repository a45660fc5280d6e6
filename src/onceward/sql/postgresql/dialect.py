"""The sink's PostgreSQL. Driver only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from onceward.engine.task_writer import Beginner, OpenWriter
from onceward.errors import ServerMisconfigured
from onceward.sql.ledger.database import Overdue, Session
from onceward.sql.postgresql import catalogue, prepared
from onceward.sql.postgresql.refusals import CONFLICTS, translate_errors, typed_error
from onceward.sql.postgresql.staging import OpenStagingWriter, must_be_storable, numbers
from onceward.sql.postgresql.statements import STATEMENTS
from onceward.sql.sink.columns import Rows, Table, Written, form_error, python_values
from onceward.sql.sink.dialect import Beside, Dialect, ask_columns
from onceward.sql.sink.pieces import Bare


class PostgreSQLDialect(Dialect):
    """See the module."""

    statements = STATEMENTS
    catalogue = catalogue
    prepared = prepared
    typed_error = staticmethod(typed_error)
    text = "text"
    wide = ("text", "bytea")
    can_defer = True

    def must_serve(self, connection: Session) -> None:
        ((quotes,),) = connection.execute(
            "SELECT reset_val FROM pg_settings WHERE name = 'quote_all_identifiers'"
        )
        if quotes != "off":
            raise ServerMisconfigured(
                "the login of the sink's url has quote_all_identifiers = on, by which the driver "
                "that copies rows does not know any type",
                next_step="ALTER ROLE … SET quote_all_identifiers = off; then start the query "
                "again",
            )

    def translate_errors(self, what: str) -> AbstractContextManager[None]:
        return translate_errors(what, psycopg.Error, Overdue)

    def open_staging(self, connection: Session, schema: str, name: str, bare: Bare) -> OpenWriter:
        return OpenStagingWriter(connection_words(connection), schema, name, bare)

    def open_transactions(
        self,
        session: Session,
        beside: Beside,
        staged: Mapping[str, str],
        table: Table,
        written: Sequence[Written],
    ) -> Beginner:
        return prepared.landing(session, connection_words(session), beside, staged, table, written)

    def bring(
        self, connection: Session, name: str, staged: Mapping[str, str], rows: pa.Table
    ) -> None:
        """Check the driver's rows as tasks check theirs; they travel with the statements."""
        must_be_storable(rows)

    def held_rows(
        self, name: str, staged: Mapping[str, str], rows: pa.Table, only: tuple[str, str] | None
    ) -> Rows:
        mine = rows if only is None else rows.filter(pc.equal(rows.column(only[0]), only[1]))
        values = {
            column: python_values(_without_limits(mine.column(column)), column)
            for column in staged
        }
        return STATEMENTS.held_rows(staged, values)

    def is_conflict(self, error: BaseException | None) -> bool:
        return isinstance(error, psycopg.Error) and error.sqlstate in CONFLICTS

    def take_time(self, connection: Session, lock_seconds: int) -> None:
        connection.execute(f"SET LOCAL lock_timeout = '{lock_seconds}s'")
        connection.execute("SET LOCAL statement_timeout = 0")
        connection.execute("SET CONSTRAINTS ALL DEFERRED")

    def end_move(self, connection: Session) -> None:
        with self.translate_errors("checking what the tables defer to the COMMIT"):
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def look_closer(
        self,
        rows: Rows,
        written: Sequence[Written],
        table: Table,
        connection: Session,
    ) -> None:
        formed = [column for column in written if column.pattern]
        for column, number in ask_columns(connection, STATEMENTS.out_of_form, rows, formed):
            if number:
                raise form_error(table.name, column)

    def drop_in_a_hurry(self, connection: Session, table: str) -> None:
        connection.execute("SET LOCAL lock_timeout = '200ms'")
        connection.execute("SET LOCAL synchronous_commit = off")
        connection.execute(f"DROP TABLE IF EXISTS {table}", ())


def _without_limits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times to numbers where Python's own have fewer years than the server's."""
    return numbers(column) if pa.types.is_temporal(column.type) else column


# Of libpq 17, with a default that is no empty one
_OF_NEWER_ONES = (b"sslnegotiation",)
# Another machine has no such file, and the words have what was found there
_FILES = (b"service", b"servicefile", b"passfile")


def connection_words(connection: Any) -> str:
    """Return libpq's connection parameters, those of its environment variables, service and
    password file included, for processes elsewhere. What only a newer libpq than theirs knows is
    left out where it is the default.
    """
    from psycopg.conninfo import make_conninfo

    pgconn = connection.connection.pgconn
    options = {
        word.keyword.decode(): word.val.decode()
        for word in pgconn.info
        if word.val
        and word.keyword not in _FILES
        and (word.val != word.compiled or word.keyword not in _OF_NEWER_ONES)
    }
    if pgconn.password:
        # The one that was found in the file is no option
        options["password"] = pgconn.password.decode()
    return make_conninfo(**{**options, "application_name": "onceward"})
