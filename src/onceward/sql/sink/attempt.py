"""One batch as one transaction of the database. Driver only; made by
:class:`~onceward.sql.sink.sink.DatabaseTarget`.

In reading order: each frame is fetched by the driver where it is small, and else staged by tasks
(:meth:`write`); then one transaction changes the ledger's row, which fences, and moves the rows of
all frames into their tables (:meth:`stage`); its COMMIT is the decision. Staging tables are
dropped afterwards, and are no part of it: whoever has the weakest lock on one, a dump of the
database, would hold the decision up.

Tables that refer to each other are written in the order of their foreign keys (:mod:`columns`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from onceward import events
from onceward.engine import driver_rows, spark_jobs
from onceward.engine.ending import TimeLimit
from onceward.engine.ledger.record import LedgerRecord, Output
from onceward.engine.target import Attempt, Prepared, Write, event_ids, run_again_after
from onceward.engine.task_writer import TaskResult
from onceward.errors import InvalidColumn, LedgerUnreachable, RowRefused
from onceward.ids import AttemptId
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation
from onceward.spark.types import quoted
from onceward.sql.ledger.database import Session, seconds_for
from onceward.sql.sink.columns import (
    Merge,
    Reference,
    Rows,
    Table,
    Written,
    circle,
    fit,
    must_show_all,
    must_take,
    parents_first,
    python_values,
    staged_columns,
)
from onceward.sql.sink.dialect import LOCK_SECONDS, Dialect, ask_columns
from onceward.sql.sink.merging import Merging, Order, Part, Steps, not_all
from onceward.sql.sink.run import TABLE_COLUMN, DatabaseRun


@dataclass(eq=False, repr=False)
class Frame(ABC):
    """The rows of one frame, on their way."""

    dialect: Dialect
    staged: Mapping[str, str]
    table: str | None
    name: str
    """Of where they are: nobody else's in the session."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Of all its rows."""

    def bring(self, connection: Session) -> None:  # noqa: B027
        """Send the rows ahead of the transaction that decides."""

    def counts(self, connection: Session) -> Mapping[str | None, int]:
        """Count the rows for each table that they name; None where they name none."""
        return {self.table: self.number} if self.table is not None else self._by_table(connection)

    @abstractmethod
    def _by_table(self, connection: Session) -> Mapping[str | None, int]: ...

    def rows(self, table: str) -> Rows:
        """Select the rows for one table."""
        return self._select(self._only(table))

    def number_steps(self, connection: Session, place: int, order_by: Sequence[str]) -> None:
        """Give each row its step among all of the frame, for :meth:`steps`."""
        self._steps = f"onceward_held_steps_{place}"
        numbered = self.dialect.statements.number_steps(
            self._steps, self.staged, self._select(None), order_by
        )
        self.dialect.fill_table(connection, numbered)

    def steps(self, table: str, first: int, last: int) -> Rows:
        """Select of the rows for one table those of some steps of the whole frame."""
        return self.dialect.statements.steps(self._steps, first, last, self._only(table))

    @abstractmethod
    def _select(self, only: tuple[str, str] | None) -> Rows:
        """Select all rows; ``only`` where a column has a value."""

    def _only(self, table: str) -> tuple[str, str] | None:
        return None if self.table is not None else (TABLE_COLUMN, table)


@dataclass(eq=False, repr=False)
class HeldFrame(Frame):
    """In the driver's memory."""

    held: pa.Table

    @property
    def number(self) -> int:
        return int(self.held.num_rows)

    def _by_table(self, connection: Session) -> Mapping[str | None, int]:
        return Counter(python_values(self.held.column(TABLE_COLUMN), TABLE_COLUMN))

    def bring(self, connection: Session) -> None:
        self.dialect.bring(connection, self.name, self.staged, self.held)

    def _select(self, only: tuple[str, str] | None) -> Rows:
        return self.dialect.held_rows(self.name, self.staged, self.held, only)


@dataclass(eq=False, repr=False)
class StagedFrame(Frame):
    """In a staging table."""

    results: list[TaskResult]

    @property
    def number(self) -> int:
        return sum(result.rows for result in self.results)

    def _by_table(self, connection: Session) -> Mapping[str | None, int]:
        by_table = self.dialect.statements.by_table(self._select(None), TABLE_COLUMN)
        return {table: int(n) for table, n in connection.execute(*by_table)}

    def _select(self, only: tuple[str, str] | None) -> Rows:
        tasks = [result.task_attempt_id for result in self.results]
        return self.dialect.statements.staged_rows(self.name, self.staged, tasks, only)


log = logging.getLogger(__name__)

KIND = "table"
"""Of a ledger record's outputs, by the names of the tables: ``{"mode": …}``."""

_FORMAT = 1


class DatabaseAttempt(Attempt):
    """One batch as one transaction. ``run`` outlives it, all else belongs to this attempt."""

    def __init__(self, run: DatabaseRun, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self._run = run
        self._settings = run.settings
        self._dialect = run.dialect
        self._statements = run.dialect.statements
        self._limit = TimeLimit(run.settings.policy)
        self._computation = Computation(run.shuffles)
        self._frames: list[Frame] = []
        self._staging: list[str] = []
        # of each frame, by table
        self._counts: list[Mapping[str, int]] = []
        self._order = Order.DELETES_FIRST
        # Foreign keys between the batch's tables may want its deletes last
        self._may_turn = False

    # each frame is computed by one Spark job

    @run_again_after(LedgerUnreachable)
    def write(self, write: Write, running: RunningBatch) -> int:
        ids = self._ids(running)
        table = write.where or self._settings.table
        with events.step(events.PLAN, **ids):
            staged = staged_columns(write.frame.schema, self._dialect.catalogue.staged)
            if table is not None:
                self._fit(staged, self._run.table_named(table))
        with events.step(events.SEND, **ids) as values:
            held = self._fetched(write.frame, staged, running)
            if held is not None:
                name = f"onceward_held_{len(self._frames)}"
                self._frames.append(HeldFrame(self._dialect, staged, table, name, held))
                values |= {"path": "driver", "records": int(held.num_rows)}
                return int(held.num_rows)
            results = self._staged(write.frame, staged, table)
            values |= {"path": "tasks", "records": sum(result.rows for result in results)}
            return int(values["records"])

    def _fetched(
        self, frame: DataFrame, staged: Mapping[str, str], running: RunningBatch
    ) -> pa.Table | None:
        # An array of arrays would lose its shape
        arrays = any(kind.endswith("[]") for kind in staged.values())
        turn = self._run.driver_turn
        if arrays or not staged or not turn.takes(running):
            return None
        held = driver_rows.fetch(
            frame,
            _row_bytes(staged, self._dialect.wide),
            running,
            turn,
            self._computation,
            self._limit.passed,
        )
        return None if held is None else self._settings.bare(held)

    def _staged(
        self, frame: DataFrame, staged: Mapping[str, str], table: str | None
    ) -> list[TaskResult]:
        name = self._run.staging_name(self.id, len(self._frames))
        self._staging.append(name)
        opening = self._run.create_staging(name, staged)
        results: list[TaskResult] = []
        spark_jobs.run(frame, opening, self._computation, self._limit, results)
        self._frames.append(
            StagedFrame(self._dialect, staged, table, self._run.in_schema(name), results)
        )
        return results

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        if self._frames:
            with (
                run_again_after(LedgerUnreachable),
                self._run.chain.session() as connection,
                self._dialect.translate_errors("counting staged rows"),
            ):
                if self._staging:
                    self._dialect.take_time(connection, LOCK_SECONDS)
                with connection.patience.of(self._seconds(), "the count of staged rows"):
                    self._counts = [self._counted(frame, connection) for frame in self._frames]
        rows: Counter[str] = Counter()
        for counts in self._counts:
            rows.update(counts)
        data = {"mode": self._settings.mode}
        outputs = {table: Output(KIND, _FORMAT, number, data) for table, number in rows.items()}
        where = "by tasks" if self._staging else "by the driver"
        return Prepared(outputs, f"to {len(outputs)} tables {where} as {self.id}")

    def _counted(self, frame: Frame, connection: Session) -> dict[str, int]:
        counts = frame.counts(connection)
        if not all(counts):
            raise InvalidColumn(
                f"column {TABLE_COLUMN!r} is null or empty in "
                f"{sum(n for name, n in counts.items() if not name)} rows",
                next_step="say there into which table a row goes, or pass table= to the sink",
            )
        return {name: number for name, number in counts.items() if name}

    # the decision

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        with events.step(events.LEDGER, **self._ids(running)), run_again_after(LedgerUnreachable):
            self._put_rows(record, running)
        super().stage(record, running)

    def _put_rows(self, record: LedgerRecord, running: RunningBatch) -> None:
        """Move each key's last row; or, where rows are in its way, all changes in their order."""
        try:
            self._put(record, running)
        except RowRefused as refused:
            if self._may_turn:
                self._order = Order.WRITES_FIRST
                with suppress(RowRefused):
                    self._put(record, running)
                    return
            settings = self._settings
            if settings.mode == "append" or not self._dialect.is_conflict(refused.__cause__):
                raise
            if not settings.order_by:
                refused.next_step += (
                    "; or pass order_by=, and changes that need another's are made in that order"
                )
                raise
            log.info(
                "%s: %s; its changes are made in their order",
                settings.policy.pipeline,
                refused.message,
            )
            self._order = Order.OF_CHANGES
            self._put(record, running)

    def _put(self, record: LedgerRecord, running: RunningBatch) -> None:
        self._run.chain.put(
            record,
            lambda connection: self._move(connection, running),
            self._bring,
            self._dialect.typed_error,
        )

    def _bring(self, connection: Session) -> None:
        """Send the driver's rows ahead of the transaction, in the same session."""
        with connection.patience.of(self._seconds(), "what goes ahead of the batch's rows"):
            for frame in self._frames:
                with self._dialect.translate_errors("bringing rows from the driver"):
                    frame.bring(connection)
            if self._order is Order.OF_CHANGES and self._dialect.makes_tables_ahead:
                self._number_steps(connection)

    def _number_steps(self, connection: Session) -> None:
        with self._dialect.translate_errors("numbering the rows of the batch"):
            for place, frame in enumerate(self._frames):
                frame.number_steps(connection, place, self._settings.order_by)

    def _move(self, connection: Session, running: RunningBatch) -> None:
        """Move the staged rows, inside the decision: the ledger's row is owned and locked."""
        self._dialect.take_time(connection, LOCK_SECONDS)
        with connection.patience.of(self._seconds(), "the move of the batch's rows"):
            if self._order is Order.OF_CHANGES and not self._dialect.makes_tables_ahead:
                self._number_steps(connection)
            parts = [
                self._part(name, frame, expected, connection)
                for frame, counts in zip(self._frames, self._counts, strict=True)
                for name, expected in counts.items()
            ]
            many = self._settings.mode != "append" or len({part.table.oid for part in parts}) > 1
            references = (
                self._dialect.catalogue.references(connection, [p.table for p in parts])
                if many
                else ()
            )
            try:
                self._write_all(parents_first(parts, references), references, running, connection)
                self._dialect.end_move(connection)
            except RowRefused as refused:
                if circle(references) and self._dialect.can_defer:
                    refused.next_step += (
                        "; if it is a foreign key: these tables refer to each other in a circle, "
                        "which is written if one of the keys is DEFERRABLE (ALTER TABLE … ALTER "
                        "CONSTRAINT … DEFERRABLE)"
                    )
                raise

    def _write_all(
        self,
        parts: Sequence[Part],
        references: Sequence[Reference],
        running: RunningBatch,
        connection: Session,
    ) -> None:
        """Write all parts, parents before their children."""
        if self._settings.mode == "append":
            for part in parts:
                with self._writing(part, running):
                    self._append(part, connection)
            return
        self._may_turn = bool(references) and self._settings.mode == "changes"
        writing = partial(self._writing, running=running)
        Merging(self._dialect, parts, references, connection, writing).merge(self._order)

    @contextmanager
    def _writing(self, part: Part, running: RunningBatch) -> Iterator[None]:
        name = part.table.name
        step: AbstractContextManager[dict[str, Any]] = (
            events.step(events.MOVE, **self._ids(running), table=name)
            if part.expected
            else nullcontext({})
        )
        with step as values, self._dialect.translate_errors(f"writing to table {name}"):
            values["records"] = part.expected
            yield

    def _seconds(self) -> float:
        return seconds_for(sum(frame.number for frame in self._frames))

    def _part(self, name: str, frame: Frame, expected: int, connection: Session) -> Part:
        """Return the rows of a frame for one table, after checking that they fit."""
        with self._dialect.translate_errors(f"looking at table {name}"):
            table = self._dialect.catalogue.locked(connection, name, self._settings.ledger.table)
        settings = self._settings
        written = self._fit(frame.staged, table)
        rows = frame.rows(name)
        changes = settings.mode == "changes"
        op_column = settings.op_column if changes else None
        merge = Merge(settings.key, settings.order_by, op_column, frame.staged)
        with self._dialect.translate_errors(f"looking at rows for table {name}"):
            keys = [column for column in written if column.name in merge.key]
            others = [column for column in written if column.name not in merge.key]
            for looked_at, columns in ((rows, keys), (self._statements.kept(rows, merge), others)):
                self._dialect.look_closer(looked_at, columns, table, connection)
                self._must_not_be_cut(looked_at, columns, table, connection)
        steps = partial(frame.steps, name)
        return Part(rows, table, written, merge, expected, Steps(id(frame), frame.number, steps))

    def _append(self, part: Part, connection: Session) -> None:
        moved = connection.execute(
            *self._statements.append(part.rows, part.table, part.written)
        ).rowcount
        # Staged rows are not believed, they are counted: a crash of the server empties an unlogged
        # table, and a task attempt that no report names may have left rows in it.
        if moved != part.expected:
            raise not_all(self._statements, part, part.expected, moved, connection)

    def _fit(self, staged: Mapping[str, str], table: Table) -> tuple[Written, ...]:
        settings = self._settings
        # A frame that was handed over for one table need not name it in each row.
        control = [
            column
            for column in settings.control_columns
            if column in staged or column != TABLE_COLUMN
        ]
        if settings.mode == "changes":
            must_show_all(table)
        fitting = self._dialect.catalogue.fitting
        return fit(staged, table, control, settings.order_by, settings.key, fitting)

    def _must_not_be_cut(
        self, rows: Rows, written: Sequence[Written], table: Table, connection: Session
    ) -> None:
        limited = [column for column in written if column.longest is not None]
        for column, length in ask_columns(connection, self._statements.longest, rows, limited):
            must_take(table.name, column, length, column.longest, "characters")

    def commit(self) -> None:
        try:
            self._run.chain.commit()
        finally:
            # After the COMMIT, outside of its transaction: DROP TABLE waits for every lock on the
            # table, and pg_dump holds the weakest one, so that a dump would hold up the decision.
            # What was moved was read before
            self._run.drop_later(self._staging)
        self._run.drop_staging()

    def abort(self) -> None:
        self._run.chain.abort()
        staging, self._staging, self._frames, self._counts = self._staging, [], [], []
        if staging:
            self._run.drop_later(staging)
            self._run.drop_staging()

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {**event_ids(self._settings.policy.pipeline, running), **self.ids}


def _row_bytes(staged: Mapping[str, str], wide: Sequence[str]) -> str:
    """Return Spark SQL for the payload bytes of a row."""
    columns = (quoted(name) for name, kind in staged.items() if kind in wide)
    return " + ".join(
        [f"{8 * len(staged)}", *(f"COALESCE(OCTET_LENGTH({name}), 0)" for name in columns)]
    )
