"""Tasks write straight into the sink's table, and prepare. Executors; the driver commits or rolls
back.

What if a task runs twice, or dies? Each task attempt has a transaction of its own, and only those
that a report names are committed. One that ends without having prepared is rolled back by the
server. What if it is late, an executor that was stopped? Its transaction is named nowhere, and
rolled back when it is listed.

Rows go by ADBC's binary COPY, from Arrow, which does not convert: where widths agree and types
differ it would store other values without a word. So the task locks the table, so that nobody
changes it any more, and compares it with what the driver has seen. Where the table has other types
than the frame, and Arrow cannot widen to them, rows go into a table that the same transaction
makes and drops, and the server casts them from there. (A temporary one may not be touched by a
transaction that is prepared.)

The transaction is open while the plan computes the task's rows, and holds its locks until the
batch is decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onceward.engine.task_writer import TaskWriter
from onceward.engine.two_phase import Task
from onceward.errors import RowRefused, SendFailed
from onceward.sql.ledger.overdue import seconds_for
from onceward.sql.postgresql import staging, statements
from onceward.sql.postgresql.refusals import named
from onceward.sql.postgresql.values import storable
from onceward.sql.sink.columns import Table, Written
from onceward.sql.sink.pieces import PieceWriter
from onceward.sql.sink.rows import TASK, Rows
from onceward.sql.sink.transaction_names import transaction_name, with_number
from onceward.sql.sink.unchanged import must_stay_as_they_are

_SETTINGS = (
    "SET LOCAL synchronous_commit = on",
    "SET LOCAL statement_timeout = 0",
    # of tasks that wait for each other one gives up
    "SET LOCAL lock_timeout = '60s'",
    # a plan takes as long as it takes
    "SET LOCAL idle_in_transaction_session_timeout = 0",
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
        with named(f"writing to table {landing.table.name}", *staging.errors()):
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
            f"LOCK TABLE ONLY {landing.table.sql} IN ROW EXCLUSIVE MODE",
        )
        found = staging.execute(self._connection, landing.asked)
        if found is None or found[:3] != (landing.schema, landing.name, landing.shape):
            raise SendFailed(
                f"table {landing.table.name} was changed while the batch was written",
                next_step="nothing; the batch runs again",
            )
        if landing.straight is None:
            made = statements.staging_table(self._rows_sql(), landing.staged)
            staging.run(self._connection, made.replace("%%", "%"))

    def _rows_sql(self) -> str:
        return f"{statements.quoted(self._landing.home)}.{statements.quoted(self._rows_table)}"

    def pre_commit(self) -> str | None:
        super().pre_commit()
        if self._connection is None:
            return None
        with named(f"writing to table {self._landing.table.name}", *staging.errors()):
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
        with named("preparing the transaction of a task", *staging.errors()):
            staging.run(self._connection, f"PREPARE TRANSACTION '{self._name}'")
        connection, self._connection = self._connection, None
        staging.sessions.give_back(self._landing.connection, connection)
        return self._name

    def _cast(self) -> None:
        rows = Rows(f"SELECT * FROM {self._rows_sql()}", ())  # noqa: S608 — quoted
        insert = statements.append(rows, self._landing.table, self._landing.written).sql.replace(
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
        staging.run(self._connection, f"DROP TABLE {self._rows_sql()}".replace("%%", "%"))

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
