"""Tasks copy their rows into the attempt's staging table. Executors; the driver makes and drops the table.

What if a task runs twice, or dies? Each task attempt marks its rows with a number of its own, and only those of the
attempts that a report names are moved. What if it is late, an executor that was stopped? Its table is gone. What if the
server crashes? The table is empty then (it is not logged), and the decision counts.

Rows go by ADBC's binary COPY, from Arrow. It does not convert: where widths agree and types differ it would store other
values without a word, so the staging table has the frame's types, and the move from there casts.

A piece is a transaction of its own, so that a slow plan leaves none open. A worker keeps its connection for the next
task; opening one costs some 50 ms.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.engine.task_writer import TaskWriter
from onceward.errors import ConfigurationError, RowRefused
from onceward.ids import TaskAttempt
from onceward.ledger.postgresql import PINNED
from onceward.sinks.database.pieces import KeptSessions, PieceWriter
from onceward.sinks.database.postgresql.refusals import named
from onceward.sinks.database.rows import TASK


@dataclass(frozen=True)
class OpenStagingWriter:
    """Opens the writer in each task attempt. Pickled into the job's closure.

    :param connection: what libpq needs to connect, as ``key=value`` words; it may hold a password.
    """

    connection: str = field(repr=False)
    schema: str
    table: str

    def __call__(self, task: TaskAttempt) -> TaskWriter:
        return StagingWriter(self, task.task_attempt_id)


class StagingWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, spec: OpenStagingWriter, task_attempt_id: int) -> None:
        super().__init__(task_attempt_id)
        self._spec = spec
        self._connection: Any = None

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches([widened(part) for part in rows])
        table = table.append_column(TASK, pa.repeat(pa.scalar(self._task, pa.int64()), table.num_rows))
        if self._connection is None:
            with named("connecting to the database from a task", *errors()):
                self._connection = sessions.of(self._spec.connection, lambda: connect(self._spec.connection))
        try:
            with named("copying rows to the staging table", *errors()), self._connection.cursor() as cursor:
                cursor.adbc_ingest(self._spec.table, table, mode="append", db_schema_name=self._spec.schema)
        except BaseException:
            sessions.forget(self._spec.connection)  # it may be in the middle of a COPY, with a lock on the table
            raise


def widened(rows: pa.RecordBatch) -> pa.RecordBatch:
    """PostgreSQL has no integer of one byte.

    :raises RowRefused: a date or time that it has not; the binary COPY would make another of it, or infinity.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        values = column.flatten() if pa.types.is_list(column.type) else column
        least, most = _TIMES.get(_family(values.type), (None, None))
        if least is not None and values.null_count < len(values):
            span = pc.min_max(values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32()))
            if span["min"].as_py() < least or span["max"].as_py() > most:
                raise RowRefused(
                    f"column {name!r} has dates before 4713 BC, or after all that PostgreSQL has",
                    next_step="mend or filter such rows in the query",
                )
    columns = [column.cast(pa.int16()) if pa.types.is_int8(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _family(kind: pa.DataType) -> str:
    return "date" if pa.types.is_date32(kind) else "timestamp" if pa.types.is_timestamp(kind) else ""


_TIMES = {"date": (-2_440_588, 2_145_000_000), "timestamp": (-210_866_803_200_000_000, 2**63 - 1)}
"""Days and microseconds from 1970 on: from 4713 BC, the server's first day, to the year 5,874,000, or Arrow's end."""


def connect(said: str) -> Any:
    connection = _driver().connect(said, autocommit=True)
    # Whether a piece outlives a crash is found out when it is moved.
    for statement in (*PINNED, "SET statement_timeout = 0", "SET synchronous_commit = off"):
        execute(connection, statement)
    return connection


def _answers(connection: Any) -> bool:
    try:
        execute(connection, "SELECT 1")
    except errors():
        return False
    return True


def execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _give_up(connection: Any) -> None:
    with suppress(*errors()):
        connection.close()


sessions: KeptSessions[Any] = KeptSessions(_answers, _give_up)


def _driver() -> Any:
    try:
        import adbc_driver_postgresql.dbapi as driver
    except ImportError as error:
        raise ConfigurationError(
            f"a task cannot write to PostgreSQL: {error}",
            next_step='pip install "onceward[postgresql]" on executors too',
        ) from error
    return driver


def errors() -> tuple[type[Exception], ...]:
    return (_driver().Error,)
