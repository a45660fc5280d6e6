"""Prepared transactions in PostgreSQL: how the driver ends them, and what tasks do. Executors,
and the driver.

Sources: PREPARE TRANSACTION, COMMIT PREPARED and ``pg_prepared_xacts`` in PostgreSQL's manual. A
name has fewer than 200 bytes, and is one for the whole server; only who has prepared it may end
it, in the same database. What is prepared outlasts session and server, synchronous_commit or not.
COMMIT PREPARED shows the rows before it forgets the name.

Rows go by ADBC's binary COPY, from Arrow, which does not convert: where widths agree and types
differ it would store other values without a word. So the task locks the table, so that nobody
changes it any more, and compares it with what the driver has seen. Where the table has other types
than the frame, and Arrow cannot widen to them, rows go into a table that the same transaction
makes and drops, and the server casts them from there. (A temporary one may not be touched by a
transaction that is prepared.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onceward.engine.task_writer import Task, TaskWriter
from onceward.errors import RowRefused, SendFailed, ServerMisconfigured
from onceward.ids import MARK_LENGTH
from onceward.sql.ledger.database import Session, seconds_for
from onceward.sql.postgresql import staging
from onceward.sql.postgresql.catalogue import parsed
from onceward.sql.postgresql.refusals import translate_errors
from onceward.sql.postgresql.staging import storable
from onceward.sql.postgresql.statements import STATEMENTS
from onceward.sql.sink.columns import TASK, Rows, Table, Written, must_stay_as_they_are
from onceward.sql.sink.dialect import IDLE_SECONDS, Beside, transaction_name, with_number
from onceward.sql.sink.pieces import PieceWriter

_SETTINGS = (
    "SET LOCAL synchronous_commit = on",
    "SET LOCAL statement_timeout = 0",
    # of tasks that wait for each other one gives up
    "SET LOCAL lock_timeout = '60s'",
    # A plan takes its time from one piece of rows to the next. But a task that is frozen holds the
    # locks of its rows, and so may one whose machine is gone without a word.
    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_SECONDS}000",
    "SET LOCAL tcp_keepalives_idle = 60",
    "SET LOCAL tcp_keepalives_interval = 10",
    "SET LOCAL tcp_keepalives_count = 6",
)


@dataclass(frozen=True)
class Landing:
    """Where the rows of a frame go. Pickled into the job's closure.

    :param connection: what libpq needs to connect, as ``key=value`` words; it may hold a password.
    :param asked: the query for ``schema``, ``name`` and ``shape`` of the table.
    :param straight: as what Arrow type each column goes into the table; None: rows are staged, and
        the server casts.
    :param home: the schema in which they are.
    """

    connection: str = field(repr=False)
    table: Table
    schema: str
    name: str
    asked: str
    shape: str
    staged: Mapping[str, str]
    written: tuple[Written, ...]
    markers: str
    mark: str
    straight: Mapping[str, str] | None
    home: str

    def begin(self, task: Task) -> TaskWriter:
        return TransactionWriter(self, task)


class TransactionWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, landing: Landing, task: Task) -> None:
        super().__init__(task.task_attempt_id)
        self._landing = landing
        self._pipeline = task.pipeline
        self._name = transaction_name(task, landing.mark)
        self._rows_table = f"onceward_rows_{hashlib.sha256(self._name.encode()).hexdigest()[:24]}"
        self._connection: Any = None
        self._sent = 0

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        landing = self._landing
        table = pa.Table.from_batches([storable(part) for part in rows])
        must_stay_as_they_are(table, landing.written, landing.table.name)
        with translate_errors(f"writing to table {landing.table.name}", *staging.errors()):
            if self._connection is None:
                self._begin()
            if landing.straight is None:
                own = pa.repeat(pa.scalar(self._task, pa.int64()), table.num_rows)
                staging.copy(
                    self._connection,
                    landing.home,
                    self._rows_table,
                    table.append_column(TASK, own),
                )
            else:
                staging.copy(
                    self._connection, landing.schema, landing.name, _as(landing.straight, table)
                )
        self._sent += table.num_rows

    def _begin(self) -> None:
        landing = self._landing
        self._connection = staging.sessions.lent(
            landing.connection, lambda: staging.connect(landing.connection)
        )
        staging.begin(
            self._connection,
            *_SETTINGS,
            f"SET LOCAL application_name = 'onceward-{self._name[:54]}'",
            f"LOCK TABLE ONLY {landing.table.sql} IN ROW EXCLUSIVE MODE",
        )
        found = staging.execute(self._connection, landing.asked)
        if found is None or found[:3] != (landing.schema, landing.name, landing.shape):
            raise SendFailed(
                f"table {landing.table.name} was changed while the batch was written",
                next_step="nothing; the batch runs again",
            )
        if landing.straight is None:
            self._run(
                "creating the staging table",
                STATEMENTS.staging_table(self._rows_sql(), landing.staged),
            )

    def _run(self, what: str, statement: str) -> None:
        with translate_errors(f"{what} {self._rows_table}", *staging.errors()):
            staging.run(self._connection, statement.replace("%%", "%"))

    def _rows_sql(self) -> str:
        return STATEMENTS.quoted_pair(self._landing.home, self._rows_table)

    def pre_commit(self) -> str | None:
        super().pre_commit()
        if self._connection is None:
            return None
        with translate_errors(f"writing to table {self._landing.table.name}", *staging.errors()):
            if self._landing.straight is None:
                self._cast()
            (number,) = staging.execute(self._connection, "SELECT txid_current()")
            # Who looks for its rows finds the lower half in their xmin
            self._name = with_number(self._name, number)
            staging.run(
                self._connection,
                f"INSERT INTO "  # noqa: S608
                f"{self._landing.markers} (pipeline, name) VALUES ('{self._pipeline}', "
                f"'{self._name}')".replace("%%", "%"),
            )
        with translate_errors("preparing the transaction of a task", *staging.errors()):
            staging.run(self._connection, f"PREPARE TRANSACTION '{self._name}'")
        connection, self._connection = self._connection, None
        staging.sessions.give_back(self._landing.connection, connection)
        return self._name

    def _cast(self) -> None:
        rows = Rows(f"SELECT * FROM {self._rows_sql()}", ())  # noqa: S608 — quoted
        insert = STATEMENTS.append(rows, self._landing.table, self._landing.written).sql.replace(
            "%%", "%"
        )
        # Quoted.
        counted = f"WITH taken AS ({insert} RETURNING 1) SELECT count(*) FROM taken"  # noqa: S608
        (taken,) = staging.execute(self._connection, counted, seconds_for(self._sent))
        if taken != self._sent:
            raise RowRefused(
                f"of {self._sent} rows for table {self._landing.table.name} the server took "
                f"{taken}: a trigger or a rule of the table leaves some out",
                next_step="filter them in the query, or write to a table without it",
            )
        self._run("dropping the staging table", f"DROP TABLE {self._rows_sql()}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        # Not prepared, and the server rolls back; or nobody knows, and it will be listed
        if connection is not None:
            staging.sessions.give_up(connection)


def _as(kinds: Mapping[str, str], rows: pa.Table) -> pa.Table:
    for name, kind in kinds.items():
        if kind:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, name, rows.column(name).cast(kind))
    return rows


_MOST_BYTES = 199
_BEHIND_THE_MARK = 91
"""Owner, attempt, frame, partition, task attempt, transaction's number, as large as may be."""

longest_pipeline = _MOST_BYTES - 1 - MARK_LENGTH - _BEHIND_THE_MARK

create_markers = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline text NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (pipeline, name)
)"""

_UNKNOWN = "42704"
_NAME = re.compile(r"[A-Za-z0-9._@-]+")

_SENT_AS = {
    ("smallint", "integer"): "int32",
    ("smallint", "bigint"): "int64",
    ("integer", "bigint"): "int64",
    ("smallint", "real"): "float32",
    ("smallint", "double precision"): "float64",
    ("integer", "double precision"): "float64",
    ("real", "double precision"): "float64",
}
"""By the frame's type and the table's, where Arrow can widen every value to what the table has."""

_SHAPE = """
WITH RECURSIVE tree(oid) AS (
    SELECT {}::oid UNION ALL SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.oid)
SELECT n.nspname::text, c.relname::text,
    md5(concat_ws('/', c.oid, c.relkind, c.relpersistence, c.relhasrules,
        row_security_active(c.oid),
        (SELECT string_agg(
            concat_ws(',', attname, atttypid, atttypmod, attnotnull, attgenerated, attidentity),
            ';' ORDER BY attnum)
         FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
        (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM tree),
        (SELECT string_agg(concat(t.oid, t.tgenabled), ',' ORDER BY t.oid) FROM pg_trigger t
         WHERE NOT t.tgisinternal AND t.tgrelid IN (SELECT oid FROM tree)))),
    NOT (c.relhasrules OR row_security_active(c.oid) OR EXISTS (
        SELECT 1 FROM pg_trigger t
        WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 7 = 7
        AND t.tgrelid IN (SELECT oid FROM tree)))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {}"""
"""Schema and name; all that has to stay as it is until rows are written; and whether COPY would do
as INSERT does: it leaves rules aside, and does not say how many rows a trigger BEFORE each row (of
tgtype bits 1, 2 and 4) left out.
"""


def each_by_itself(session: Any) -> None:
    # COMMIT PREPARED must run outside a transaction
    session.each_by_itself = True
    # A COMMIT PREPARED that no standby has is undone by a failover. No transaction pins it here.
    session.execute("SET synchronous_commit = on")


def must_keep(session: Session) -> None:
    (most,) = session.execute(
        "SELECT current_setting('max_prepared_transactions')::int"
    ).fetchone()
    if most < 1:
        raise ServerMisconfigured(
            f"the server has max_prepared_transactions = {most}, and with xa=True each task of a "
            "batch prepares one",
            next_step="set it to at least the number of tasks of a batch, for all pipelines "
            "together (ALTER SYSTEM SET max_prepared_transactions = 100; it holds from the "
            "server's next start on), or leave xa= out",
        )


def listed(session: Session, beginning: str) -> list[str]:
    found = session.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND "
        "starts_with(gid, %s)",
        (beginning,),
    )
    return [str(name) for (name,) in found]


def end(session: Session, how: str, name: str) -> bool:
    import psycopg

    assert _NAME.fullmatch(name), name  # noqa: S101 — made by transaction_names
    try:
        session.execute(f"{how} PREPARED '{name}'")
    except psycopg.Error as error:
        if error.sqlstate == _UNKNOWN:
            return False
        raise
    return True


def landing(
    session: Session,
    connection: str,
    beside: Beside,
    staged: Mapping[str, str],
    table: Table,
    written: Sequence[Written],
) -> Landing:
    """Return what tasks need to write and prepare."""
    literal = table.sql.replace("'", "''")
    if session.execute(
        f"SELECT 1 FROM pg_rewrite WHERE ev_class = '{literal}'::regclass"  # noqa: S608
    ).fetchone():
        raise ServerMisconfigured(
            f"table {table.name} has rules, and with xa=True tasks write in a way that rules do "
            "not take part in, or that PostgreSQL does not carry out beside them",
            next_step="drop the rules (a trigger may do what they do), or leave xa= out",
        )
    query = _SHAPE.replace("{}", f"'{literal}'::regclass")
    schema, name, shape, copies = session.execute(query).fetchone()
    kinds = {column.name: column.type for column in table.columns}
    sent = {column.name: sent_as(staged[column.name], kinds[column.name]) for column in written}
    straight = {name: kind for name, kind in sent.items() if kind is not None}
    return Landing(
        connection, table, schema, name, query, shape, staged, tuple(written), beside.markers,
        beside.mark,
        straight=straight if copies and len(straight) == len(sent) else None, home=beside.home,
    )  # fmt: skip


def sent_as(ours: str, theirs: str) -> str | None:
    """Return the Arrow type by which a column goes straight into the table by a binary COPY, which
    converts nothing: "" for its own type, None where only the server can convert it.
    """
    base, _, array = parsed(ours)
    their_base, limits, their_array = parsed(theirs)
    # Without limits a numeric keeps the scale that it comes with, and ADBC sends none
    if array != their_array or (their_base == "numeric" and not limits):
        return None
    if base == their_base or (base, their_base) == ("text", "character varying"):
        return ""
    return None if array else _SENT_AS.get((base, their_base))
