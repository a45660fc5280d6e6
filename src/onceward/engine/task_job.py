"""The Spark jobs of one attempt, for sinks that are written in Python. Driver only; called by
targets.

What runs in the tasks is :mod:`onceward.engine.task_writer`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame

from onceward.engine.ending import TimeLimit
from onceward.engine.task_writer import (
    RESULT_DDL,
    OpenWriter,
    TaskResult,
    check_each_task_once,
    collect_reports,
    task_function,
)
from onceward.errors import OncewardError
from onceward.secrecy import unlogged_calls
from onceward.spark.batch import job
from onceward.spark.batch.shuffles import Computation

_WORD = re.compile(r"\w+")


def plan_write(
    frame: DataFrame,
    open_writer: OpenWriter,
    returned_errors: tuple[type[OncewardError], ...] = (OncewardError,),
) -> DataFrame:
    """Return ``frame`` as its tasks write it; its rows are then their results."""
    names = frame.columns
    if not _mean_themselves(names):
        frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
    # What is pickled here may hold passwords
    with unlogged_calls():
        return frame.mapInArrow(task_function(open_writer, names, returned_errors), RESULT_DDL)


def _mean_themselves(names: Sequence[str]) -> bool:
    """Return whether ``mapInArrow``, which looks columns up as SQL does, finds each by its name:
    ``a.b`` is a field of ``a``, ``*`` all columns, and ``A`` may be ``a``."""
    return all(map(_WORD.fullmatch, names)) and len({name.lower() for name in names}) == len(names)


def run(
    frame: DataFrame,
    open_writer: OpenWriter,
    computation: Computation,
    limit: TimeLimit,
    prepared: list[TaskResult],
) -> None:
    """Write ``frame`` by one job.

    :param prepared: gets what its tasks have prepared, by partitions; also where an error is
        raised, as far as the tasks have collect_reports it.
    :raises OncewardError: what a task brought back.
    :raises BatchTimedOut, ComputationsMixed, ReportMismatch: …
    :raises Exception: Spark's own, when the job fails.
    """
    written = plan_write(frame, open_writer)
    with computation.read_once(written):
        with job.naming_the_loss(limit.passed):
            rows, task_count = job.collect(written, limit.passed)
        errors = collect_reports(rows, prepared)
        computation.counts(written)
    if errors:
        raise errors[0]
    check_each_task_once([result.partition_id for result in prepared], task_count)
