"""Tasks copy rows into the attempt's staging table, which the driver makes and drops. Executors.

What if the server crashes? The table is empty then (it is not logged), and the decision counts.

Rows go by ADBC's binary COPY, from Arrow. It does not convert: where widths agree and types differ
it would store other values without a word, so the staging table has the frame's types, and the
move from there casts.

All that is set is set for a piece's transaction alone (:mod:`onceward.sql.ledger.postgresql` says
why). Opening a connection costs some 50 ms.

Values that PostgreSQL has not, and those that it has another type for, are refused or converted
here for whoever writes a batch, tasks or the driver: which of them it is hangs on the batch's size
alone, and shall change no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward import patience
from onceward.engine.task_writer import TaskWriter
from onceward.errors import ConfigurationError, LibraryMissing, RowRefused
from onceward.ids import TaskAttempt
from onceward.sql.ledger.database import STATEMENT_SECONDS, Overdue, seconds_for
from onceward.sql.ledger.postgresql import PINNED, UNLIMITED
from onceward.sql.postgresql.refusals import translate_errors
from onceward.sql.sink.columns import TASK
from onceward.sql.sink.pieces import Bare, PieceWriter, SessionCache

_NEXT = "mend or filter such rows in the query"


def storable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``rows`` in types that PostgreSQL has: it has no integer of one byte.

    :raises RowRefused: a date or time that it has not, where the binary COPY would make another of
        it, or infinity; a text that is none to it.
    :raises ConfigurationError: the driver would store another value.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        values = column
        if pa.types.is_list(column.type):
            values = column.flatten()
            _must_keep_nulls(name, values)
        _must_be_a_time_of_its_own(name, values)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            _must_be_texts(name, values)
    columns = [
        column.cast(pa.int16()) if pa.types.is_int8(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def must_be_storable(rows: pa.Table) -> None:
    """Check that PostgreSQL can store the rows.

    :raises RowRefused: as :func:`storable`.
    """
    for part in rows.to_batches():
        storable(part)


def _must_be_a_time_of_its_own(name: str, values: pa.Array) -> None:
    least, most = _TIMES.get(values.type.id, (None, None))
    if least is None or values.null_count == len(values):
        return
    span = pc.min_max(numbers(values))
    if span["min"].as_py() < least or span["max"].as_py() > most:
        raise RowRefused(
            f"column {name!r} has dates before 4713 BC, or after all that PostgreSQL has",
            next_step=_NEXT,
        )


def _must_be_texts(name: str, values: pa.Array) -> None:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RowRefused(
            f"a value of column {name!r} is no text: {error}",
            next_step=f"{_NEXT}; is_valid_utf8 finds such",
        ) from error
    if pc.any(pc.match_substring(values, "\0"), min_count=0).as_py():
        raise RowRefused(
            f"a text of column {name!r} has the character of code 0, which PostgreSQL has not in "
            "texts",
            next_step=_NEXT,
        )


def numbers(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert times to days since 1970, or to microseconds in UTC."""
    return times.cast(pa.int64() if times.type.bit_width == 64 else pa.int32())


_TIMES = {
    pa.lib.Type_DATE32: (-2_440_588, 2_145_000_000),
    pa.lib.Type_TIMESTAMP: (-210_866_803_200_000_000, 2**63 - 1),
}
"""From 1970 on: from 4713 BC, the server's first day, to the year 5,874,000, or Arrow's end."""


@dataclass(frozen=True)
class OpenStagingWriter:
    """Opens the writer in each task attempt. Pickled into the job's closure.

    :param connection: what libpq needs to connect, as ``key=value`` words; it may hold a password.
    """

    connection: str = field(repr=False)
    schema: str
    table: str
    bare: Bare = lambda rows: rows

    def __call__(self, task: TaskAttempt) -> TaskWriter:
        return StagingWriter(self, task.task_attempt_id)


class StagingWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, spec: OpenStagingWriter, task_attempt_id: int) -> None:
        super().__init__(task_attempt_id, spec.bare)
        self._spec = spec

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches([storable(part) for part in rows])
        table = table.append_column(
            TASK, pa.repeat(pa.scalar(self._task, pa.int64()), table.num_rows)
        )
        # For each piece: the plan may take longer from one to the next than sessions may idle
        with translate_errors("connecting to the database from a task", *errors()):
            connection = sessions.get(
                self._spec.connection, lambda: connect(self._spec.connection)
            )
        try:
            with translate_errors("copying rows to the staging table", *errors()):
                # Whether a piece outlives a crash is found out when it is moved.
                begin(
                    connection,
                    "SET LOCAL statement_timeout = 0",
                    "SET LOCAL synchronous_commit = off",
                )
                copy(connection, self._spec.schema, self._spec.table, table)
                run(connection, "COMMIT")
        except BaseException:
            # It may be in the middle of a COPY, with a lock on the table
            sessions.forget(self._spec.connection)
            raise


def connect(dsn: str) -> Any:
    """Open an ADBC connection in time: libpq limits the connection, not ADBC's first queries."""
    return in_time(
        None,
        lambda: _driver().connect(dsn, autocommit=True),
        STATEMENT_SECONDS,
        "a new connection",
    )


def begin(connection: Any, *settings: str) -> None:
    """Begin a transaction with all pinned settings."""
    run(
        connection,
        "; ".join(("BEGIN ISOLATION LEVEL READ COMMITTED", *PINNED, UNLIMITED, *settings)),
    )


def copy(connection: Any, schema: str, name: str, rows: pa.Table) -> None:
    """Copy ``rows`` into a table of the same columns."""

    def ingest() -> None:
        with connection.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="append", db_schema_name=schema)

    in_time(connection, ingest, seconds_for(rows.num_rows), f"a COPY to {schema}.{name}")


def run(connection: Any, statements: str) -> None:
    """Run statements in one message, ignoring their rows. A statement that is prepared first takes
    two, which may reach two sessions of the server behind a pooler while no transaction is open.
    """

    def tell() -> None:
        with connection.cursor() as cursor:
            cursor.executescript(statements)

    in_time(connection, tell, STATEMENT_SECONDS, statements[:60])


def execute(connection: Any, statement: str, seconds: float = STATEMENT_SECONDS) -> Any:
    """Run a statement and return its first row, if it has any."""

    def ask() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None

    return in_time(connection, ask, seconds, statement[:60])


def in_time(connection: Any, call: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return what ``call`` returns, within ``seconds``. ADBC waits in C without a limit, so
    another thread waits for it.

    :raises Overdue: it waits still; the connection is of no use, and may not be closed under it.
    :raises Exception: what those raise who are asked meanwhile (:mod:`onceward.patience`). The
        same.
    """

    def abandon() -> None:
        if connection is not None:
            _stuck.append(connection)

    late = Overdue(f"the database has not answered {what} for {seconds:g} s")
    return patience.in_time(call, seconds, "onceward-adbc", late=late, abandon=abandon)


_stuck: list[Any] = []
"""Connections in the middle of a call that has not returned."""


def _answers(connection: Any) -> bool:
    try:
        run(connection, "SELECT 1")
    except errors():
        return False
    return True


def _give_up(connection: Any) -> None:
    if not any(connection is one for one in _stuck):
        with suppress(*errors()):
            connection.close()


sessions: SessionCache[Any] = SessionCache(_answers, _give_up)


def _driver() -> Any:
    try:
        import adbc_driver_postgresql.dbapi as driver
    except ImportError as error:
        raise LibraryMissing(
            f"a task cannot write to PostgreSQL: {error}",
            next_step='pip install "onceward[postgresql]" on executors too',
        ) from error
    if _version() < _EXACT:
        raise LibraryMissing(
            f"a task has adbc-driver-postgresql {_release()}, which stores some numerics and "
            "elements of arrays as other values",
            next_step='pip install -U "onceward[postgresql]" on executors too',
        )
    return driver


_EXACT, _KEEPS_NULLS = (1, 12), (1, 13)
"""Of ADBC's driver: from which version on it stores what it is given, and within arrays, too."""


def _must_keep_nulls(name: str, elements: pa.Array) -> None:
    """Check that ADBC stores null elements: its last for Python 3.10 makes 0, '', 1970 of them."""
    if elements.null_count and _version() < _KEEPS_NULLS:
        raise ConfigurationError(
            f"an array of column {name!r} has a null element, of which adbc-driver-postgresql "
            f"{_release()} would make another value",
            next_step='pip install -U "adbc-driver-postgresql>=1.13" on executors too, which '
            f"takes Python 3.11 or later; or array_compact({name}) in the query, which leaves "
            "nulls out",
        )


def _version() -> tuple[int, ...]:
    return tuple(map(int, _release().split(".")[:2]))


def _release() -> str:
    import adbc_driver_postgresql

    return str(adbc_driver_postgresql.__version__)


def errors() -> tuple[type[Exception], ...]:
    return (_driver().Error, Overdue)
