r"""Tasks load rows into the attempt's staging table, which the driver makes and drops. Executors.

Rows go by ``LOAD DATA LOCAL``, from this process's memory, as the lines that it reads: one line a
row, fields between tabs, ``\`` before what would end a field, ``\N`` for null: the statement's
defaults (*LOAD DATA Statement* in MySQL's manual). Texts and binaries are both sent as they are. A
float goes with all digits of the double that it is, so that it is read back as the same.

LOCAL turns what a strict mode refuses into warnings: 99999 becomes 999.99, a null 0, a row with a
key that is there is left out, and a stream that was cut short is taken for the whole. So a load
has to give no warning (:class:`onceward.sql.ledger.mysql.Warned`), and as many rows as were sent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.engine.task_writer import TaskWriter
from onceward.errors import RowRefused, SendFailed
from onceward.ids import TaskAttempt
from onceward.libraries import readable_file
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.mysql import MySQLSession, connected, may_load
from onceward.sql.mysql.refusals import translate_errors
from onceward.sql.mysql.statements import ROW, STATEMENTS
from onceward.sql.sink.columns import TASK
from onceward.sql.sink.pieces import Bare, PieceWriter, SessionCache

_ESCAPED = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\0", b"\\0"))
_BYTES = pa.large_binary()
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""From 1970 on: of the years 1 to 9999."""


def lines(rows: pa.Table) -> bytes:
    """Encode rows as lines for LOAD DATA.

    :raises RowRefused: a value that the server cannot hold, naming its column.
    """
    if rows.num_rows == 0:
        return b""
    fields = [_field(name, rows.column(name).combine_chunks()) for name in rows.column_names]
    end = pa.scalar(b"", _BYTES)
    text = pc.binary_join_element_wise(*fields, pa.scalar(b"\t", _BYTES))
    text = pc.binary_join_element_wise(text, end, pa.scalar(b"\n", _BYTES))
    return b"".join(
        _data(part) for part in (text.chunks if isinstance(text, pa.ChunkedArray) else [text])
    )


def _data(column: pa.Array) -> memoryview:
    """Return the bytes of all values, concatenated."""
    _, offsets, values = column.buffers()
    places = memoryview(offsets).cast("b").cast("q")
    return memoryview(values)[places[column.offset] : places[column.offset + len(column)]]


def _field(name: str, column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = (
            pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        )
    return pc.fill_null(_text(name, column), pa.scalar(b"\\N", _BYTES))


def _text(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _escaped(column.cast(pa.large_string()).cast(_BYTES))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _escaped(column.cast(_BYTES))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_floating(kind):
        if not pc.all(pc.is_finite(column), skip_nulls=True, min_count=0).as_py():
            raise RowRefused(
                f"column {name!r} has infinity or NaN, which the server has not",
                next_step="mend or filter such rows in the query: if(abs(x) < "
                "double('Infinity'), x, NULL) makes nulls of both",
            )
        column = column.cast(pa.float64())
    elif pa.types.is_date32(kind):
        _must_be_within(name, column.cast(pa.int32()), _DAYS)
    elif pa.types.is_timestamp(kind):
        # In UTC, if it is a moment
        number = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        _must_be_within(name, number, _MICROSECONDS)
        column = number.cast(pa.timestamp("us"))
    return column.cast(pa.string()).cast(pa.large_string()).cast(_BYTES)


def _must_be_within(name: str, numbers: pa.Array, limits: tuple[int, int]) -> None:
    found = pc.min_max(numbers)
    if (
        found["min"].is_valid
        and not limits[0] <= found["min"].as_py() <= found["max"].as_py() <= limits[1]
    ):
        raise RowRefused(
            f"column {name!r} has dates before the year 1 or after the year 9999, which the "
            "server has not",
            next_step="mend or filter such rows in the query",
        )


def _escaped(column: pa.Array) -> pa.Array:
    for plain, escaped in _ESCAPED:
        if pc.any(pc.match_substring(column, plain), min_count=0).as_py():
            column = pc.replace_substring(column, plain, escaped)
    return column


def load(session: Session, sql_name: str, rows: pa.Table, task: int, first: int) -> None:
    """Load ``rows`` of a task attempt into its staging table, numbered from ``first``.

    :param sql_name: of a staging table, for statements with parameters.
    :raises RowRefused: a value that the server has not.
    """
    with_task = rows.append_column(TASK, pa.repeat(pa.scalar(task, pa.int64()), rows.num_rows))
    with_task = with_task.append_column(
        ROW, pa.array(range(first, first + rows.num_rows), pa.int64())
    )
    load_straight(session, sql_name, with_task)


def load_straight(
    session: Session, sql_name: str, rows: pa.Table, converted: Collection[str] = ()
) -> None:
    """Load ``rows`` into columns of the same names.

    :param converted: the columns that take texts as such, and no bytes.
    :raises RowRefused: a value that the server has not.
    """
    places = {
        name: f"@onceward_{number}"
        for number, name in enumerate(rows.column_names)
        if name in converted
    }
    quoted = STATEMENTS.quoted
    columns = ", ".join(places.get(name) or quoted(name) for name in rows.column_names)
    texts = ", ".join(
        f"{quoted(name)} = CONVERT({place} USING utf8mb4)" for name, place in places.items()
    )
    with readable_file(lines(rows)) as path, may_load(session):
        # binary: texts as they are, and the column says whether they are some.
        loaded = session.execute(
            f"LOAD DATA LOCAL INFILE %s INTO TABLE {sql_name} CHARACTER SET binary "
            f"FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({columns})"
            + (f" SET {texts}" if texts else ""),
            (path,),
        ).rowcount
    # LOCAL makes warnings of errors, skips duplicate keys, and takes a cut stream for the whole: a
    # warning is an error here (Warned), and rows are counted.
    if loaded != rows.num_rows:
        raise SendFailed(
            f"of {rows.num_rows} rows the server loaded {loaded} into {sql_name}",
            next_step="nothing; the batch runs again",
        )


@dataclass(frozen=True)
class OpenStagingWriter:
    """Opens the writer in each task attempt. Pickled into the job's closure.

    :param parameters: what PyMySQL needs to connect; it may hold a password.
    :param table: in SQL, for statements with parameters.
    """

    parameters: Mapping[str, Any] = field(repr=False)
    table: str
    bare: Bare = lambda rows: rows

    def __call__(self, task: TaskAttempt) -> TaskWriter:
        return StagingWriter(self, task.task_attempt_id)


class StagingWriter(PieceWriter):
    """One task attempt's rows."""

    def __init__(self, spec: OpenStagingWriter, task_attempt_id: int) -> None:
        super().__init__(task_attempt_id, spec.bare)
        self._spec = spec
        self._loaded = 0

    def _send(self, rows: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(rows)
        key = json.dumps(dict(self._spec.parameters), sort_keys=True)
        with translate_errors("connecting to the database from a task"):
            session = sessions.get(key, lambda: connected(self._spec.parameters, "onceward"))
        try:
            with translate_errors("loading rows into the staging table"):
                load(session, self._spec.table, table, self._task, self._loaded)
                session.commit()
        except BaseException:
            # It may be in the middle of a load, with a lock on the table
            sessions.forget(key)
            raise
        self._loaded += table.num_rows


sessions: SessionCache[MySQLSession] = SessionCache(
    lambda session: session.is_usable, MySQLSession.give_up
)
