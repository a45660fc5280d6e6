"""Prepared transactions in MySQL and MariaDB: how the driver ends them, and what tasks do.
Executors, and the driver.

Sources: *XA Transactions* in MySQL's manual and in MariaDB's. A name has two parts of up to 64
bytes. What is prepared outlasts its session from MySQL 5.7.7 and MariaDB 10.5 on (MDEV-742), so on
each server that the ledger's module takes. Another session may end it once the one that prepared
it is gone: until then it is listed, and yet unknown (XAER_NOTA). MySQL lists only for who has
XA_RECOVER_ADMIN. Its list is asked for in hexadecimal digits, for names of others may be no texts.

Rows go by ``LOAD DATA LOCAL`` (:mod:`staging`), which makes warnings of errors: a warning is an
error here. What these servers change without one is looked at before
(:func:`onceward.sql.sink.columns.must_stay_as_they_are`), in the types that the driver has seen:
the transaction locks the table's definition, and compares it.

A task's session is closed once its transaction is prepared, for only then may another one end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from onceward.engine.task_writer import Task, TaskWriter
from onceward.errors import AccessDenied, SendFailed, ServerMisconfigured
from onceward.ids import MARK_LENGTH
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.mysql import MySQLSession, connected
from onceward.sql.mysql import catalogue
from onceward.sql.mysql.refusals import translate_errors
from onceward.sql.mysql.staging import load_straight
from onceward.sql.sink.columns import Table, Written, must_stay_as_they_are
from onceward.sql.sink.dialect import IDLE_SECONDS, Beside, transaction_name
from onceward.sql.sink.pieces import PieceWriter

FORMAT = 1_330_528_069
"""Of our names; others may be of another."""

_SESSION = "SET autocommit = 1, innodb_lock_wait_timeout = 60, lock_wait_timeout = 60"
"""XA START may not be within another transaction. Of tasks that wait for each other one gives
up. A task that is frozen holds the locks of its rows, for as long as its session is not idle for
too long.
"""


def xid(name: str) -> str:
    """Return ``name`` as an XA id, in two parts: ``<pipeline>@<mark>`` and the rest."""
    first = name.index("@") + 1 + MARK_LENGTH
    whose, which = name[:first], name[first + 1 :]
    return f"X'{whose.encode().hex()}', X'{which.encode().hex()}', {FORMAT}"


@dataclass(frozen=True)
class Landing:
    """Where the rows of a frame go. Pickled into the job's closure.

    :param parameters: what PyMySQL needs to connect; it may hold a password.
    :param texts: the columns that take texts, and no bytes: documents, other character sets.
    """

    parameters: Mapping[str, Any] = field(repr=False)
    table: Table
    written: tuple[Written, ...]
    texts: frozenset[str]
    ledger: str
    markers: str
    mark: str

    def begin(self, task: Task) -> TaskWriter:
        return TransactionWriter(self, task)


class TransactionWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, landing: Landing, task: Task) -> None:
        super().__init__(task.task_attempt_id)
        self._landing = landing
        self._pipeline = task.pipeline
        self._name = transaction_name(task, landing.mark)
        self._session: MySQLSession | None = None

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        landing = self._landing
        table = pa.Table.from_batches(rows)
        must_stay_as_they_are(table, landing.written, landing.table.name)
        with translate_errors(f"writing to table {landing.table.name}"):
            session = self._session or self._begun()
            load_straight(session, landing.table.sql.replace("%", "%%"), table, landing.texts)

    def _begun(self) -> MySQLSession:
        landing = self._landing
        session = self._session = connected(landing.parameters, f"onceward-{self._name}")
        session.execute(_SESSION)
        session.limit_idleness(IDLE_SECONDS)
        session.execute(f"XA START {xid(self._name)}")
        found = catalogue.locked(session, landing.table.name, landing.ledger)
        if (found.sql, found.columns) != (landing.table.sql, landing.table.columns):
            raise SendFailed(
                f"table {landing.table.name} was changed while the batch was written",
                next_step="nothing; the batch runs again",
            )
        return session

    def pre_commit(self) -> str | None:
        super().pre_commit()
        session = self._session
        if session is None:
            return None
        with translate_errors("preparing the transaction of a task"):
            markers = self._landing.markers  # Quoted.
            session.execute(
                f"INSERT INTO {markers} (pipeline, name) VALUES (%s, %s)",  # noqa: S608
                (self._pipeline, self._name),
            )
            session.execute(f"XA END {xid(self._name)}")
            session.execute(f"XA PREPARE {xid(self._name)}")
        self.close()
        return self._name

    def close(self) -> None:
        session, self._session = self._session, None
        # What is not prepared the server rolls back; what nobody knows of will be listed
        if session is not None:
            session.give_up()


_MOST_BYTES = 64
# The first part is <pipeline>@<mark>
longest_pipeline = _MOST_BYTES - 1 - MARK_LENGTH

create_markers = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (pipeline, name)
) ENGINE = InnoDB"""

_LEAST = (8, 0, 30)
"""Of MySQL, *Restrictions on XA Transactions*. In 8.0.12 a table may be dropped under prepared
rows, which XA COMMIT then says are committed (bug 79940); 8.0.33 holds its definition, also after
a crash.
"""
_UNKNOWN = 1397  # XAER_NOTA
# ER_SPECIFIC_ACCESS_DENIED_ERROR, XAER_RMERR
_NOT_ALLOWED = (1227, 1401)


def each_by_itself(session: Session) -> None:
    # XA COMMIT may not run inside another transaction. Locked markers are not waited for.
    session.execute("SET autocommit = 1, innodb_lock_wait_timeout = 5")


def must_keep(session: Any) -> None:
    import pymysql

    if not session.is_mariadb and session.version < _LEAST:
        raise ServerMisconfigured(
            f"the server is MySQL {'.'.join(map(str, session.version))}, and with xa=True tasks "
            "prepare transactions: before 8.0.30 a crash within an XA statement may leave the "
            "binary log with another outcome, and old ones let anybody change or drop a table for "
            "which rows are prepared",
            next_step="use MySQL 8.0.30 or later, or MariaDB; or leave xa= out",
        )
    if session.is_galera:
        raise ServerMisconfigured(
            "the server is a node of a Galera cluster, which has no XA transactions, and with "
            "xa=True each task of a batch prepares one",
            next_step="leave xa= out",
        )
    try:
        listed(session, "")
    except pymysql.MySQLError as error:
        if error.args[0] not in _NOT_ALLOWED:
            raise
        raise AccessDenied(
            "the login of the sink's url may not list prepared transactions, and with xa=True "
            f"each task of a batch prepares one: {error.args[1]}",
            next_step="GRANT XA_RECOVER_ADMIN ON *.* to it, or leave xa= out",
        ) from error


def listed(session: Any, beginning: str) -> list[str]:
    found = session.execute("XA RECOVER" if session.is_mariadb else "XA RECOVER CONVERT XID")
    names = []
    for kind, first, _, data in found:
        text = data if isinstance(data, bytes) else bytes.fromhex(str(data).removeprefix("0x"))
        if int(kind) == FORMAT and text.isascii():
            names.append(f"{text[: int(first)].decode()}-{text[int(first) :].decode()}")
    return [name for name in names if name.startswith(beginning)]


def end(session: Session, how: str, name: str) -> bool:
    import pymysql

    try:
        session.execute(f"XA {how} {xid(name)}")
    except pymysql.MySQLError as error:
        if error.args[0] == _UNKNOWN:
            return False
        raise
    return True


def landing(
    parameters: Mapping[str, Any], beside: Beside, table: Table, written: Sequence[Written]
) -> Landing:
    """Return what tasks need to write and prepare."""
    theirs = {column.name: column for column in table.columns}
    # As the table says: Written has no character set for an enum, whose labels are looked at one
    # by one, and the server compares bytes with labels in the table's.
    texts = frozenset(
        name
        for name in (column.name for column in written)
        if theirs[name].charset or theirs[name].type == "json"
    )
    # In another character set a text has other bytes: what does not fit is warned of.
    looked_at = tuple(
        replace(column, most_bytes=None) if column.charset else column for column in written
    )
    return Landing(parameters, table, looked_at, texts, beside.ledger, beside.markers, beside.mark)
