"""The sink's MySQL and MariaDB. Driver only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from onceward.engine.task_writer import Beginner, OpenWriter
from onceward.errors import RowRefused, ServerMisconfigured
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.mysql import SORTED_BYTES, MySQL
from onceward.sql.mysql import catalogue, prepared
from onceward.sql.mysql.refusals import is_conflict, translate_errors, typed_error
from onceward.sql.mysql.staging import OpenStagingWriter, load
from onceward.sql.mysql.statements import STATEMENTS
from onceward.sql.sink.columns import (
    Merge,
    Rows,
    Table,
    Written,
    label_error,
    must_take,
    null_error,
)
from onceward.sql.sink.dialect import LOCK_SECONDS, Beside, Dialect, ask_columns
from onceward.sql.sink.pieces import Bare

# The task attempt of rows that the driver has
_OURS = 0


class MySQLDialect(Dialect):
    """See the module."""

    statements = STATEMENTS
    catalogue = catalogue
    prepared = prepared
    translate_errors = staticmethod(translate_errors)
    is_conflict = staticmethod(is_conflict)
    typed_error = staticmethod(typed_error)
    text = catalogue.TEXT
    wide = (catalogue.TEXT, "longblob")
    makes_tables_ahead = True

    def __init__(self, database: MySQL) -> None:
        self._parameters: Mapping[str, Any] = database.parameters

    def must_serve(self, connection: Session) -> None:
        ((allowed,),) = connection.execute("SELECT @@local_infile")
        if not allowed:
            raise ServerMisconfigured(
                "the server has local_infile = OFF, and rows are loaded by LOAD DATA LOCAL",
                next_step="SET GLOBAL local_infile = ON, and the same in the server's "
                "configuration file (MySQL: SET PERSIST; in a managed service: among its "
                "parameters)",
            )

    def open_staging(self, connection: Session, schema: str, name: str, bare: Bare) -> OpenWriter:
        return OpenStagingWriter(self._parameters, STATEMENTS.quoted_pair(schema, name), bare)

    def open_transactions(
        self,
        session: Session,
        beside: Beside,
        staged: Mapping[str, str],
        table: Table,
        written: Sequence[Written],
    ) -> Beginner:
        return prepared.landing(self._parameters, beside, table, written)

    def bring(
        self, connection: Session, name: str, staged: Mapping[str, str], rows: pa.Table
    ) -> None:
        """Insert the driver's rows into a temporary table."""
        with _outside_transactions(connection):
            connection.execute(f"DROP TEMPORARY TABLE IF EXISTS {name}")
            connection.execute(STATEMENTS.staging_table(name, staged, temporary=True), ())
            load(connection, name, rows, _OURS, 0)

    def fill_table(self, connection: Session, statements: Sequence[Rows]) -> None:
        with _outside_transactions(connection):
            super().fill_table(connection, statements)

    def held_rows(
        self, name: str, staged: Mapping[str, str], rows: pa.Table, only: tuple[str, str] | None
    ) -> Rows:
        return STATEMENTS.staged_rows(name, staged, [_OURS], only)

    def take_time(self, connection: Session, lock_seconds: int) -> None:
        connection.execute(
            f"SET SESSION innodb_lock_wait_timeout = {lock_seconds}, lock_wait_timeout = "
            f"{lock_seconds}"
        )

    def drop_in_a_hurry(self, connection: Session, table: str) -> None:
        connection.execute("SET SESSION lock_wait_timeout = 1")
        connection.execute(f"DROP TABLE IF EXISTS {table}", ())
        # What the session does next waits as ever: a dump locks all tables for some seconds. (One
        # whose DROP has failed is given up.)
        self.take_time(connection, LOCK_SECONDS)

    def look_closer(
        self,
        rows: Rows,
        written: Sequence[Written],
        table: Table,
        connection: Session,
    ) -> None:
        nulls = [column for column in written if column.never_null]
        for column, number in ask_columns(connection, STATEMENTS.nulls, rows, nulls):
            if number:
                raise null_error(table.name, column, number)
        limited = [column for column in written if column.most_bytes is not None]
        # MySQL copies a longtext into a shorter kind of text with its length modulo 256 or 65,536:
        # in a tinytext 256 bytes become an empty value, without an error or a warning.
        for column, most in ask_columns(connection, STATEMENTS.most_bytes, rows, limited):
            must_take(table.name, column, most, column.most_bytes, "bytes")
        for column in written:
            if column.charset and _number(connection, STATEMENTS.no_place(rows, column)):
                raise RowRefused(
                    f"rows for table {table.name} have a character in column {column.name!r} that "
                    f"its character set {column.charset} has not",
                    next_step=f"ALTER TABLE {table.sql} CONVERT TO CHARACTER SET utf8mb4; or mend "
                    "such rows",
                )
            if column.labels and _number(connection, STATEMENTS.no_label(rows, column)):
                raise label_error(table.name, column)

    def must_tell_keys_apart(
        self, rows: Rows, written: Sequence[Written], merge: Merge, connection: Session
    ) -> None:
        names = (*merge.key, *merge.order_by)
        found = connection.execute(*STATEMENTS.sorted_bytes(rows, written, merge)).fetchone()
        for name, most in zip(names, found, strict=True):
            if most is not None and most > SORTED_BYTES:
                raise RowRefused(
                    f"a value of column {name!r} is sorted by {most} bytes, and servers take the "
                    f"first {SORTED_BYTES} of them: which row of a key is the last would be "
                    "chance",
                    next_step="make key= of shorter values, such as sha2(…, 256)"
                    if name in merge.key
                    else "make order_by= of numbers, of times, or of shorter texts that sort "
                    "alike; no hash does",
                )


@contextmanager
def _outside_transactions(connection: Session) -> Iterator[None]:
    """With GTIDs some servers create and drop temporary tables outside transactions only."""
    connection.execute("SET autocommit = 1")
    try:
        yield
    except BaseException:
        # Not asked to go back: what a session that is gone answers would hide why it is gone.
        with suppress(Exception):
            connection.close()
        raise
    connection.execute("SET autocommit = 0")


def _number(connection: Session, question: Rows) -> int:
    ((number,),) = connection.execute(*question)
    return int(number)
