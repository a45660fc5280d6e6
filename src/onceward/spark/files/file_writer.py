"""A frame into files, by Spark's own writers: one job. Driver only; called by the file sink.

It does what ``frame.write.format(…).mode("append").save(folder)`` does, for two reasons:

* The rows of the frame's own plan are what is written (:mod:`onceward.spark.batch.shuffles`).
* How many rows were written is known to the command that wrote them: each task's result, of which
  Spark takes one for each partition, brings what it has written along with what it has committed
  (``WriteTaskResult``, ``BasicWriteJobStatsTracker``). That counts neither attempts that failed
  nor stages that ran twice, and there is no second reading of the rows. ``DataFrameWriter`` keeps
  it to itself.

A task attempt may publish its files only if the driver lets it (``OutputCommitCoordinator``), one
for each partition; with Hadoop's algorithm 1 they stay below ``_temporary`` until the job commits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from onceward.spark.batch import job
from onceward.spark.batch.shuffles import Computation, planned_once
from onceward.spark.batch.write_errors import failures_told
from onceward.spark.session.connector import must_have_avro

COMMITTER_OPTIONS = {
    # Version 2 moves a task's files while others run, and leaves them there if they fail.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
MAX_RECORDS = "maxRecordsPerFile"
"""The option after how many rows a writer begins a new file."""


class WrittenFiles(NamedTuple):
    """What the tasks of one job say that they have written and committed."""

    rows: int
    files: int
    bytes: int


class FileFormat(NamedTuple):
    """How: Spark's name of a format, the columns that become folders, and Spark's options."""

    name: str
    partition_by: Sequence[str]
    options: Mapping[str, str]


def write(
    frame: DataFrame, folder: str, how: FileFormat, computation: Computation, lost: job.Lost
) -> WrittenFiles:
    """Write ``frame`` into ``folder``, beside what is there, by one job.

    :raises InvalidColumn: the format cannot hold the frame.
    :raises RowRefused: the frame's own plan refuses a row (:mod:`onceward.spark.batch.carried`).
    :raises SendFailed: ``folder`` cannot be written to.
    :raises ComputationsMixed: and what ``lost`` returned, and what is known of Spark's failures.
    :raises Exception: Spark's own, when the job fails for another reason.
    """
    with computation.read_once(frame):
        with job.watched(frame, lost):
            written = _written(frame, folder, how)
        computation.counts(frame)
    return written


def guessed_row_bytes(frame: DataFrame) -> float:
    """Return the bytes that Spark's planner assumes for a row (``StructType.defaultSize``)."""
    return float(frame._jdf.schema().defaultSize())


def must_know(session: SparkSession, format_name: str) -> None:
    """Raise ConfigurationError if this session cannot write files of that format."""
    if format_name == "avro":
        must_have_avro(session)


def _written(frame: DataFrame, folder: str, how: FileFormat) -> WrittenFiles:
    session: Any = frame.sparkSession
    with failures_told(f"as {how.name}", folder, partition_by=how.partition_by):
        command = _planned(session, frame, folder, how)
        modes = session.sparkContext._jvm.org.apache.spark.sql.execution
        mode = _single(modes, "CommandExecutionMode").ALL()
        execution = session._jsparkSession.sessionState().executePlan(command, mode)
        execution.assertCommandExecuted()
    # Counting files would include those of an attempt that was given up and still writes.
    metrics = _writing(execution.executedPlan()).metrics()
    names = ("numOutputRows", "numFiles", "numOutputBytes")
    return WrittenFiles(*(int(metrics.apply(name).value()) for name in names))


def _planned(session: Any, frame: DataFrame, folder: str, how: FileFormat) -> Any:
    """Build the command as ``DataFrameWriter.saveToV1SourceCommand`` does."""
    jvm = session.sparkContext._jvm
    sequence, nothing = jvm.PythonUtils.toSeq, _single(jvm.scala, "None")
    plan = planned_once(frame)._jdf.logicalPlan()
    options = {**how.options, **COMMITTER_OPTIONS, "path": folder}
    if how.partition_by:
        # DataSourceUtils.PARTITIONING_COLUMNS_KEY
        options["__partition_columns"] = json.dumps(list(how.partition_by))
    source = jvm.org.apache.spark.sql.execution.datasources.DataSource(
        session._jsparkSession,
        how.name,
        sequence([]),
        nothing,
        sequence(list(how.partition_by)),
        nothing,
        jvm.PythonUtils.toScalaMap(options),
        nothing,
        # The names of streams' sources
        *([nothing] if not str(session.version).startswith(("4.0.", "4.1.")) else []),
    )
    return source.planForWriting(jvm.org.apache.spark.sql.SaveMode.Append, plan)


def _single(package: Any, name: str) -> Any:
    """Return a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _writing(plan: Any) -> Any:
    """Return the node that has written, below the command's result and adaptive execution."""
    kind = plan.getClass().getSimpleName()
    if kind == "CommandResultExec":
        return _writing(plan.commandPhysicalPlan())
    return _writing(plan.executedPlan()) if kind == "AdaptiveSparkPlanExec" else plan
