"""One batch as one transaction of the database. Driver only; made by :mod:`target`.

In reading order: each frame is fetched by the driver where it is small, and else staged by tasks (:meth:`write`); then
one transaction changes the ledger's row, which fences, moves the rows of all frames into their tables, and drops the
staging tables (:meth:`stage`); its COMMIT is the decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from onceward import events
from onceward.engine import driver_rows, task_job
from onceward.engine.target import Attempt, Prepared, Write, ids_of
from onceward.engine.task_writer import TaskResult
from onceward.engine.time_limit import TimeLimit
from onceward.errors import BadColumn, LedgerUnreachable, RowRefused, SendFailed
from onceward.ids import AttemptId
from onceward.ledger.record import LedgerRecord, Output
from onceward.sinks.database import catalogue, statements
from onceward.sinks.database.columns import Table, Written, fit, staged_columns
from onceward.sinks.database.refusals import errors, named
from onceward.sinks.database.run import DatabaseRun
from onceward.sinks.database.settings import TABLE_COLUMN
from onceward.sinks.database.staging import OpenStagingWriter
from onceward.sinks.database.statements import Merge, Rows
from onceward.spark.computation import Computation
from onceward.spark.query import RunningBatch

if TYPE_CHECKING:
    import psycopg

KIND = "table"
"""Of a ledger record's outputs, by the names of the tables: ``{"mode": …}``."""

_FORMAT = 1


class Frame(ABC):
    """The rows of one frame, on their way."""

    def __init__(self, staged: Mapping[str, str], table: str | None) -> None:
        self.staged = staged
        self.table = table

    @abstractmethod
    def counts(self, connection: psycopg.Connection[Any]) -> Mapping[str | None, int]:
        """How many rows there are for each table that they name; None: they name none."""

    @abstractmethod
    def rows(self, table: str) -> Rows:
        """Those for one table."""


class HeldFrame(Frame):
    """In the driver's memory."""

    def __init__(self, staged: Mapping[str, str], table: str | None, rows: pa.Table) -> None:
        super().__init__(staged, table)
        self._rows = rows

    def counts(self, connection: psycopg.Connection[Any]) -> Mapping[str | None, int]:
        if self.table is not None:
            return {self.table: self._rows.num_rows}
        return Counter(_values(self._rows.column(TABLE_COLUMN), TABLE_COLUMN))

    def rows(self, table: str) -> Rows:
        mine = self._rows
        if self.table is None:
            mine = mine.filter(pc.equal(mine.column(TABLE_COLUMN), table))
        return statements.held_rows(self.staged, {name: _values(mine.column(name), name) for name in self.staged})


class StagedFrame(Frame):
    """In a staging table."""

    def __init__(self, staged: Mapping[str, str], table: str | None, name: str, results: list[TaskResult]) -> None:
        super().__init__(staged, table)
        self._name = name
        self._results = results

    @property
    def _tasks(self) -> list[int]:
        return [result.task_attempt_id for result in self._results]

    def counts(self, connection: psycopg.Connection[Any]) -> Mapping[str | None, int]:
        if self.table is not None:
            return {self.table: sum(result.rows for result in self._results)}
        rows = statements.staged_rows(self._name, self.staged, self._tasks)
        named_in = statements.quoted(TABLE_COLUMN)
        sql = f"SELECT {named_in}, count(*) FROM ({rows.sql}) AS rows GROUP BY {named_in}"  # noqa: S608 — quoted
        return {table: int(number) for table, number in connection.execute(sql, rows.parameters)}

    def rows(self, table: str) -> Rows:
        only = None if self.table is not None else (TABLE_COLUMN, table)
        return statements.staged_rows(self._name, self.staged, self._tasks, only)


class DatabaseAttempt(Attempt):
    """See the module. ``kept`` outlives the batch; all else here belongs to this attempt."""

    def __init__(self, kept: DatabaseRun, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self._kept = kept
        self._settings = kept.settings
        self._limit = TimeLimit(kept.settings.policy)
        self._computation = Computation(kept.shuffles)
        self._frames: list[Frame] = []
        self._staging: list[str] = []
        self._counts: list[Mapping[str, int]] = []  # of each frame, by table

    # each frame is computed by one Spark job

    def write(self, write: Write, running: RunningBatch) -> int:
        ids = self._ids(running)
        table = write.where or self._settings.table
        with events.step(events.PLAN, **ids):
            staged = staged_columns(write.frame.schema)
            if table is not None:
                self._fit(staged, self._kept.table_named(table))
        with events.step(events.SEND, **ids):
            held = self._fetched(write.frame, staged, running)
            if held is not None:
                self._frames.append(HeldFrame(staged, table, held))
                return int(held.num_rows)
            results = self._staged(write.frame, staged, table)
            return sum(result.rows for result in results)

    def _fetched(self, frame: DataFrame, staged: Mapping[str, str], running: RunningBatch) -> pa.Table | None:
        arrays = any(kind.endswith("[]") for kind in staged.values())  # an array of arrays would lose its shape
        turn = self._kept.driver_turn
        if arrays or not staged or not turn.takes(running):
            return None
        return driver_rows.fetch(frame, _row_bytes(staged), running, turn, self._computation, self._limit.passed)

    def _staged(self, frame: DataFrame, staged: Mapping[str, str], table: str | None) -> list[TaskResult]:
        name = self._kept.staging_name(self.id, len(self._frames))
        self._staging.append(name)
        connection = self._kept.create_staging(name, staged)
        opening = OpenStagingWriter(connection, self._kept.schema, name)
        results: list[TaskResult] = []
        task_job.run(frame, opening, self._computation, self._limit, results)
        self._frames.append(StagedFrame(staged, table, self._kept.in_schema(name), results))
        return results

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        if self._frames:
            with self._kept.chain.session() as connection, named("counting staged rows", *errors()):
                self._counts = [self._counted(frame, connection) for frame in self._frames]
        rows: Counter[str] = Counter()
        for counts in self._counts:
            rows.update(counts)
        data = {"mode": self._settings.mode}
        outputs = {table: Output(KIND, _FORMAT, number, data) for table, number in rows.items()}
        where = "by tasks" if self._staging else "by the driver"
        return Prepared(outputs, f"to {len(outputs)} tables {where} as {self.id}")

    def _counted(self, frame: Frame, connection: psycopg.Connection[Any]) -> dict[str, int]:
        counts = frame.counts(connection)
        if not all(counts):
            raise BadColumn(
                f"column {TABLE_COLUMN!r} is null or empty in {sum(n for name, n in counts.items() if not name)} rows",
                next_step="say there into which table a row goes, or pass table= to the sink",
            )
        return {name: number for name, number in counts.items() if name}

    # the decision

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        with events.step(events.LEDGER, **self._ids(running)):
            try:
                self._kept.chain.put(record, self._move)
            except LedgerUnreachable as error:  # before the COMMIT: nothing has happened
                again = f"the batch runs again; if it repeats, {error.next_step}"
                raise SendFailed(error.message, next_step=again) from error
        super().stage(record, running)

    def _move(self, connection: psycopg.Connection[Any]) -> None:
        """Inside the transaction of the decision: the ledger's row is ours and locked."""
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        connection.execute("SET LOCAL statement_timeout = 0")  # moving takes as long as it takes
        reached: set[int] = set()
        for frame, counts in zip(self._frames, self._counts, strict=True):
            for name, expected in counts.items():
                with named(f"writing to table {name}", *errors()):
                    self._move_into(name, frame, expected, connection, reached)
        with named("checking what the tables defer to the COMMIT", *errors()):
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for name in self._staging:
            with named(f"dropping the staging table {name}", *errors()):
                connection.execute(f"DROP TABLE {self._kept.in_schema(name)}", ())

    def _move_into(
        self, name: str, frame: Frame, expected: int, connection: psycopg.Connection[Any], reached: set[int]
    ) -> None:
        table = catalogue.locked(connection, name, self._settings.ledger.table)
        if table.oid in reached and self._settings.mode != "append":
            raise RowRefused(
                f"the batch comes to table {name} in two parts (two frames, or two spellings of its name), and which "
                "row of a key is the last is known within one",
                next_step="hand over one frame for a table, and spell its name in one way",
            )
        reached.add(table.oid)
        written = self._fit(frame.staged, table)
        rows = frame.rows(name)
        limited = [column for column in written if column.longest is not None]
        if limited:
            self._must_not_be_cut(rows, limited, table, connection)
        if self._settings.mode == "append":
            moved = connection.execute(*statements.append(rows, table, written)).rowcount
            if moved != expected:
                raise self._not_all(rows, expected, moved, table, connection)
            return
        self._merge(rows, written, expected, table, connection)

    def _merge(
        self, rows: Rows, written: Sequence[Written], expected: int, table: Table, connection: psycopg.Connection[Any]
    ) -> None:
        changes = self._settings.mode == "changes"
        merge = Merge(self._settings.key, self._settings.order_by, self._settings.op_column if changes else None)
        found = connection.execute(*statements.looked_at(rows, written, merge)).fetchone()
        assert found is not None  # noqa: S101 — counts
        total, without_key, odd, last, keys, deletes = found
        if total != expected:
            raise _staged_rows_are_gone(expected, total)
        if without_key:
            raise RowRefused(
                f"{without_key} rows for table {table.name} have no key: null in {', '.join(merge.key)}",
                next_step="filter them, or give them a key",
            )
        if odd:
            raise RowRefused(
                f"{odd} rows for table {table.name} have a value in column {merge.op_column!r} that nobody knows",
                next_step=f"use one of {', '.join((*statements.WRITES, *statements.DELETES))}",
            )
        if last != keys:
            advice = (
                f"order_by={list(merge.order_by)} must tell rows of one key apart; add a column to it"
                if merge.order_by
                else "pass order_by=, a column by which the last one can be told, or aggregate them in the query"
            )
            raise RowRefused(
                f"the batch has {last - keys} rows for table {table.name} that are neither before nor after another "
                "one of the same key, so that which is to stay would be chance",
                next_step=advice,
            )
        if deletes:
            connection.execute(*statements.delete(rows, table, written, merge))
        moved = connection.execute(*statements.upsert(rows, table, written, merge)).rowcount
        if deletes or len(written) == len(merge.key):  # where rows of just a key are there already, none is written
            still, moved = connection.execute(*statements.present(rows, table, written, merge)).fetchone() or (0, 0)
            if still:
                raise RowRefused(
                    f"{still} rows of table {table.name} are still there when they were deleted: a trigger or a policy "
                    "of the table keeps them",
                    next_step="filter such changes in the query, or write to a table without it",
                )
        if moved != last - deletes:
            raise self._not_all(rows, last - deletes, moved, table, connection)

    def _fit(self, staged: Mapping[str, str], table: Table) -> tuple[Written, ...]:
        settings = self._settings
        # A frame that was handed over for one table need not name it in each row.
        control = [column for column in settings.control_columns if column in staged or column != TABLE_COLUMN]
        return fit(staged, table, control, settings.order_by, settings.key)

    def _must_not_be_cut(
        self, rows: Rows, limited: Sequence[Written], table: Table, connection: psycopg.Connection[Any]
    ) -> None:
        longest = connection.execute(*statements.longest(rows, limited)).fetchone() or ()
        for column, length in zip(limited, longest, strict=True):
            if length is not None and column.longest is not None and length > column.longest:
                raise RowRefused(
                    f"a value of column {column.name!r} has {length} characters, and table {table.name} takes "
                    f"{column.longest}",
                    next_step="widen the column, or shorten the value in the query; nothing of the batch was written",
                )

    def _not_all(
        self, rows: Rows, expected: int, moved: int, table: Table, connection: psycopg.Connection[Any]
    ) -> Exception:
        (there,) = connection.execute(*statements.count(rows)).fetchone() or (0,)
        if there < expected:
            return _staged_rows_are_gone(expected, there)
        return RowRefused(
            f"of {expected} rows for table {table.name} the server took {moved}: a trigger or a rule of the table "
            "leaves some out",
            next_step="filter them in the query, or write to a table without it",
        )

    def commit(self) -> None:
        self._kept.chain.commit()

    def abort(self) -> None:
        self._kept.chain.abort()
        staging, self._staging, self._frames, self._counts = self._staging, [], [], []
        if staging:
            self._kept.drop_staging(staging)

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {**ids_of(self._settings.policy.pipeline, running), **self.ids}


_LOCK_SECONDS = 60


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))  # Python does not know every name of a zone
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise RowRefused(
            f"a value of column {name!r} is no text: {error}",
            next_step="mend it in the query; is_valid_utf8 finds such",
        ) from error
    except (OverflowError, ValueError) as error:  # a date after the year 9999, which Python has not
        raise RowRefused(
            f"a value of column {name!r} is none of Python's: {error}",
            next_step="pass driver_records=0, so that tasks write the rows without Python's values; or mend it",
        ) from error
    return values


def _staged_rows_are_gone(expected: int, there: int) -> SendFailed:
    return SendFailed(
        f"of {expected} staged rows {there} are left: the server has crashed since they were copied, or somebody else "
        "wrote to the staging table",
        next_step="nothing; the batch runs again",
    )


def _row_bytes(staged: Mapping[str, str]) -> str:
    """SQL of Spark's for the payload bytes of a row."""
    wide = ("`" + name.replace("`", "``") + "`" for name, kind in staged.items() if kind in ("text", "bytea"))
    return " + ".join([f"{8 * len(staged)}", *(f"COALESCE(OCTET_LENGTH({name}), 0)" for name in wide)])
