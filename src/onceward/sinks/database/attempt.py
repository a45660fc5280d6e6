"""One batch as one transaction of the database. Driver only; made by :mod:`target`.

In reading order: each frame is fetched by the driver where it is small, and else staged by tasks (:meth:`write`); then
one transaction changes the ledger's row, which fences, moves the rows of all frames into their tables, and drops the
staging tables (:meth:`stage`); its COMMIT is the decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import pyarrow as pa
from pyspark.sql import DataFrame

from onceward import events
from onceward.engine import driver_rows, task_job
from onceward.engine.change_words import DELETES, WRITES
from onceward.engine.target import Attempt, Prepared, Write, ids_of
from onceward.engine.task_writer import TaskResult
from onceward.engine.time_limit import TimeLimit
from onceward.errors import BadColumn, LedgerUnreachable, RowRefused, SendFailed
from onceward.ids import AttemptId
from onceward.ledger.database import Session
from onceward.ledger.record import LedgerRecord, Output
from onceward.sinks.database.columns import Table, Written, fit, staged_columns
from onceward.sinks.database.frames import Frame, HeldFrame, StagedFrame
from onceward.sinks.database.rows import Merge, Rows
from onceward.sinks.database.run import DatabaseRun
from onceward.sinks.database.settings import TABLE_COLUMN
from onceward.spark.computation import Computation
from onceward.spark.query import RunningBatch

KIND = "table"
"""Of a ledger record's outputs, by the names of the tables: ``{"mode": …}``."""

_FORMAT = 1


class DatabaseAttempt(Attempt):
    """See the module. ``kept`` outlives the batch; all else here belongs to this attempt."""

    def __init__(self, kept: DatabaseRun, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self._kept = kept
        self._settings = kept.settings
        self._dialect = kept.dialect
        self._statements = kept.dialect.statements
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
            staged = staged_columns(write.frame.schema, self._dialect.staged)
            if table is not None:
                self._fit(staged, self._kept.table_named(table))
        with events.step(events.SEND, **ids):
            held = self._fetched(write.frame, staged, running)
            if held is not None:
                name = f"onceward_held_{len(self._frames)}"
                self._frames.append(HeldFrame(self._dialect, staged, table, name, held))
                return int(held.num_rows)
            results = self._staged(write.frame, staged, table)
            return sum(result.rows for result in results)

    def _fetched(self, frame: DataFrame, staged: Mapping[str, str], running: RunningBatch) -> pa.Table | None:
        arrays = any(kind.endswith("[]") for kind in staged.values())  # an array of arrays would lose its shape
        turn = self._kept.driver_turn
        if arrays or not staged or not turn.takes(running):
            return None
        return driver_rows.fetch(
            frame, _row_bytes(staged, self._dialect.wide), running, turn, self._computation, self._limit.passed
        )

    def _staged(self, frame: DataFrame, staged: Mapping[str, str], table: str | None) -> list[TaskResult]:
        name = self._kept.staging_name(self.id, len(self._frames))
        self._staging.append(name)
        opening = self._kept.create_staging(name, staged)
        results: list[TaskResult] = []
        task_job.run(frame, opening, self._computation, self._limit, results)
        self._frames.append(StagedFrame(self._dialect, staged, table, self._kept.in_schema(name), results))
        return results

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        if self._frames:
            with self._kept.chain.session() as connection, self._dialect.named("counting staged rows"):
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
            raise BadColumn(
                f"column {TABLE_COLUMN!r} is null or empty in {sum(n for name, n in counts.items() if not name)} rows",
                next_step="say there into which table a row goes, or pass table= to the sink",
            )
        return {name: number for name, number in counts.items() if name}

    # the decision

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        with events.step(events.LEDGER, **self._ids(running)):
            try:
                self._kept.chain.put(record, lambda connection: self._move(connection, running), self._bring)
            except LedgerUnreachable as error:  # before the COMMIT: nothing has happened
                again = f"the batch runs again; if it repeats, {error.next_step}"
                raise SendFailed(error.message, next_step=again) from error
        super().stage(record, running)

    def _bring(self, connection: Session) -> None:
        """Ahead of the transaction, in the same session."""
        for frame in self._frames:
            with self._dialect.named("bringing rows from the driver"):
                frame.bring(connection)

    def _move(self, connection: Session, running: RunningBatch) -> None:
        """Inside the transaction of the decision: the ledger's row is ours and locked."""
        self._dialect.begin_move(connection, _LOCK_SECONDS)
        reached: set[object] = set()
        for frame, counts in zip(self._frames, self._counts, strict=True):
            for name, expected in counts.items():
                step = events.step(events.MOVE, **self._ids(running), table=name) if expected else nullcontext()
                with step, self._dialect.named(f"writing to table {name}"):
                    self._move_into(name, frame, expected, connection, reached)
        self._dialect.end_move(connection)
        for name in () if self._dialect.staging_outlives else self._staging:
            with self._dialect.named(f"dropping the staging table {name}"):
                connection.execute(f"DROP TABLE {self._kept.in_schema(name)}", ())

    def _move_into(self, name: str, frame: Frame, expected: int, connection: Session, reached: set[object]) -> None:
        table = self._dialect.catalogue.locked(connection, name, self._settings.ledger.table)
        if table.oid in reached and self._settings.mode != "append":
            raise RowRefused(
                f"the batch comes to table {name} in two parts (two frames, or two spellings of its name), and which "
                "row of a key is the last is known within one",
                next_step="hand over one frame for a table, and spell its name in one way",
            )
        reached.add(table.oid)
        written = self._fit(frame.staged, table)
        rows = frame.rows(name)
        self._dialect.look_closer(rows, written, table, connection)
        limited = [column for column in written if column.longest is not None]
        if limited:
            self._must_not_be_cut(rows, limited, table, connection)
        if self._settings.mode == "append":
            moved = connection.execute(*self._statements.append(rows, table, written)).rowcount
            if moved != expected:
                raise self._not_all(rows, expected, moved, table, connection)
            return
        self._merge(rows, written, expected, table, connection)

    def _merge(self, rows: Rows, written: Sequence[Written], expected: int, table: Table, connection: Session) -> None:
        changes = self._settings.mode == "changes"
        merge = Merge(self._settings.key, self._settings.order_by, self._settings.op_column if changes else None)
        self._dialect.must_tell_keys_apart(rows, written, merge, connection)
        found = connection.execute(*self._statements.looked_at(rows, written, merge)).fetchone()
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
                next_step=f"use one of {', '.join((*WRITES, *DELETES))}",
            )
        if last < keys:
            raise RowRefused(
                f"table {table.name} has {keys} keys of the batch, of which the server sorts some as the same",
                next_step="use a key of shorter values, or of numbers",
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
            present = self._statements.present(rows, table, written, merge)
            _, before = connection.execute(*present).fetchone() or (0, 0)
            connection.execute(*self._statements.delete(rows, table, written, merge))
            still, after = connection.execute(*present).fetchone() or (0, 0)
            self._must_be_deleted_alone(table, still, before - after)
        moved = sum(
            connection.execute(*statement).rowcount
            for statement in self._statements.upsert(rows, table, written, merge)
        )
        if moved != last - deletes:
            raise self._not_all(rows, last - deletes, moved, table, connection)

    def _must_be_deleted_alone(self, table: Table, still: int, more: int) -> None:
        if still:
            raise RowRefused(
                f"{still} rows of table {table.name} are still there when they were deleted: a trigger or a policy "
                "of the table keeps them",
                next_step="filter such changes in the query, or write to a table without it",
            )
        if more:
            raise RowRefused(
                f"with the rows that were deleted from table {table.name} {more} others are gone, which the same batch "
                "changes: a foreign key's ON DELETE CASCADE, or a trigger, takes them although they may have changed "
                "before",
                next_step="write to a table without it, or let batches be so small (max_offsets_per_trigger) that such "
                "changes do not meet",
            )

    def _fit(self, staged: Mapping[str, str], table: Table) -> tuple[Written, ...]:
        settings = self._settings
        # A frame that was handed over for one table need not name it in each row.
        control = [column for column in settings.control_columns if column in staged or column != TABLE_COLUMN]
        return fit(staged, table, control, settings.order_by, settings.key, self._dialect.fitting)

    def _must_not_be_cut(self, rows: Rows, limited: Sequence[Written], table: Table, connection: Session) -> None:
        longest = connection.execute(*self._statements.longest(rows, limited)).fetchone() or ()
        for column, length in zip(limited, longest, strict=True):
            if length is not None and column.longest is not None and length > column.longest:
                raise RowRefused(
                    f"a value of column {column.name!r} has {length} characters, and table {table.name} takes "
                    f"{column.longest}",
                    next_step="widen the column, or shorten the value in the query; nothing of the batch was written",
                )

    def _not_all(self, rows: Rows, expected: int, moved: int, table: Table, connection: Session) -> Exception:
        (there,) = connection.execute(*self._statements.count(rows)).fetchone() or (0,)
        if there < expected:
            return _staged_rows_are_gone(expected, there)
        return RowRefused(
            f"of {expected} rows for table {table.name} the server took {moved}: a trigger or a rule of the table "
            "leaves some out",
            next_step="filter them in the query, or write to a table without it",
        )

    def commit(self) -> None:
        try:
            self._kept.chain.commit()
        except BaseException:
            self._kept.drop_later(self._staging)  # what was moved was read before
            raise
        if self._dialect.staging_outlives:
            self._kept.drop_staging(self._staging)

    def abort(self) -> None:
        self._kept.chain.abort()
        staging, self._staging, self._frames, self._counts = self._staging, [], [], []
        if staging:
            self._kept.drop_staging(staging)

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {**ids_of(self._settings.policy.pipeline, running), **self.ids}


_LOCK_SECONDS = 60


def _staged_rows_are_gone(expected: int, there: int) -> SendFailed:
    return SendFailed(
        f"of {expected} staged rows {there} are left: the server has crashed since they were copied, or somebody else "
        "wrote to the staging table",
        next_step="nothing; the batch runs again",
    )


def _row_bytes(staged: Mapping[str, str], wide: Sequence[str]) -> str:
    """SQL of Spark's for the payload bytes of a row."""
    columns = ("`" + name.replace("`", "``") + "`" for name, kind in staged.items() if kind in wide)
    return " + ".join([f"{8 * len(staged)}", *(f"COALESCE(OCTET_LENGTH({name}), 0)" for name in columns)])
