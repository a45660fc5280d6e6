"""Small batches without a Python worker: the driver collects the rows and writes them. Driver
only. Called by targets. The user's plan runs as it is, in all of its tasks, so that a slow
function is as parallel as ever; its rows come back as Arrow, as in ``DataFrame.toArrow``.

A plan may make many rows of few records, or large ones. So that no batch can fill the driver, the
plan itself limits what it gives back (:class:`Bound`): each task gives at most so many rows, and
an oversized row only a flag that it is oversized. When either happened, nothing has been written,
and the batch goes to tasks. That Spark computes part of the plan a second time
(``spark.batch.shuffles``) is as dangerous here as elsewhere: :func:`fetch` checks it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from onceward.spark.batch import job
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation
from onceward.spark.types import quoted

_OVERSIZED = "onceward_oversized"
# Few of them: Spark compiles the plan's code once for each
_LEVELS = (100, 1_000)
# A plan may make two rows of one record
_ROOM = 2
# How much more than wished may come in the worst case, when every task gives all it may
_SPREAD = 64
_LEAST_RECORD_BYTES = 1_000
# the lower 33 bits (its documentation promises them)
_ROW_IN_TASK = "monotonically_increasing_id() & 8589934591L"
_MANY_TASKS = 32
# Frames that go to tasks before the driver looks again
_PASSES = 50


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one task of a plan may give to the driver: rows, and bytes of one row."""

    rows: int
    record_bytes: int

    @staticmethod
    def for_batch(
        source_records: int, tasks: int, driver_records: int, driver_bytes: int
    ) -> Bound:
        """Return the bound for a batch of ``source_records``, whose plan has so many ``tasks``.
        All tasks together give no more than 64 times ``driver_bytes``, or ``driver_records``
        kilobytes a task where that is more."""
        room = min(_ROOM * source_records, driver_records)
        rows = next(
            (level for level in _LEVELS if room <= level <= driver_records), driver_records
        )
        return Bound(
            rows, max(_LEAST_RECORD_BYTES, _SPREAD * driver_bytes // (rows * max(1, tasks)))
        )


class DriverTurn:
    """Decides whether the driver takes a batch, by what is known of it and of those before it."""

    def __init__(self, driver_records: int, driver_bytes: int) -> None:
        self._records = driver_records
        self._bytes = driver_bytes
        self._passes = 0
        # of the plan, as far as known
        self._tasks = _MANY_TASKS

    def takes(self, running: RunningBatch) -> bool:
        """Return whether the driver takes a frame. Called once for each frame."""
        # State is left to tasks: its output has no relation to the batch's source records.
        if running.stateful or running.input_records is None or self._bytes == 0:
            return False
        if not running.input_records <= self._records or self._records == 0:
            return False
        if self._passes:
            self._passes -= 1
            return False
        return True

    def bound(self, running: RunningBatch) -> Bound:
        """Return the bound for a batch that is taken."""
        return Bound.for_batch(running.input_records or 0, self._tasks, self._records, self._bytes)

    def note(self, table: pa.Table | None, tasks: int) -> None:
        """Note the result of a frame that was taken (None: too many rows for the driver), and how
        many tasks its plan had."""
        # Before, the number of tasks is not known without planning the job twice. After too many
        # rows tasks have the next frames: looking costs a job.
        self._tasks = tasks
        if table is None or table.nbytes > self._bytes:
            self._passes = _PASSES


def fetch(
    frame: DataFrame,
    size: str,
    running: RunningBatch,
    turn: DriverTurn,
    computation: Computation,
    lost: job.Lost,
) -> pa.Table | None:
    """Return all rows of ``frame``, by one job, in the order of its partitions; None: too many.

    :param size: SQL for the payload bytes of one row.
    :raises OncewardError: what ``lost`` returned, and as :func:`onceward.spark.batch.job.collect`
        does.
    """
    bound = turn.bound(running)
    frame = bounded(frame, bound, size)
    with computation.read_once(frame):
        everything, tasks = job.to_arrow(frame, lost)
        table = None if everything is None else within(everything, bound)
        if table is not None:
            computation.counts(frame)
    turn.note(table, tasks)
    return table


def bounded(frame: DataFrame, bound: Bound, size: str) -> DataFrame:
    """Return ``frame`` within ``bound``; else with one row too many, or one without content."""
    oversized = f"({size}) > {bound.record_bytes}"
    columns = [f"IF({oversized}, NULL, {name}) AS {name}" for name in map(quoted, frame.columns)]
    # A filter, no LIMIT: Spark runs that one in several jobs, one after the other; and the code of
    # a task's limit has another name in each plan, so that it would be compiled for each batch.
    return job.selected_where(
        frame, f"({_ROW_IN_TASK}) <= {bound.rows}", (*columns, f"{oversized} AS {_OVERSIZED}")
    )


def within(table: pa.Table, bound: Bound) -> pa.Table | None:
    """Return the rows of a :func:`bounded` frame; None when a task had to leave something out."""
    if table.num_rows > bound.rows or pc.any(table.column(_OVERSIZED)).as_py():
        return None
    return table.drop_columns([_OVERSIZED])
