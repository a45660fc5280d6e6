"""A frame into files, by Spark's own writers: one job. Driver only; called by the file sink.

It is what ``frame.write.format(…).mode("append").save(folder)`` does, step by step, for two reasons:

* Spark's writer plans a frame anew. What is asked of the frame's plan afterwards (was a shuffle of it computed twice?
  ``spark.shuffles``) would be said of shuffles that nobody has read. So the frame is planned once, and the rows of that
  plan are what is written, as ``foreachBatch`` itself does it (``ForeachBatchSink.addBatch``).
* How many rows were written is known to the command that wrote them: each task's result, of which Spark takes one for
  each partition, brings what it has written along with what it has committed (``WriteTaskResult``,
  ``BasicWriteJobStatsTracker``). That counts neither attempts that failed nor stages that ran twice, and there is no
  second reading of the rows. ``DataFrameWriter`` keeps it to itself.

A task attempt may publish its files only if the driver lets it (``OutputCommitCoordinator``), one for each partition;
with version 1 of Hadoop's algorithm they stay below ``_temporary`` until the job commits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from onceward.errors import BadColumn, ConfigurationError, OncewardError, SendFailed
from onceward.spark import job
from onceward.spark.computation import Computation
from onceward.spark.row_guard import refusal

COMMITTER_OPTIONS = {
    # Version 2 moves a task's files into the folder while other tasks still run, and leaves them there if they fail.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
_CAUSES = re.compile(r"^(?:Caused by)?: (.*)$", re.MULTILINE)
_OUTSIDE = ("java.io.", "java.nio.file.", "org.apache.hadoop.")
_WORKER_DIED = "java.io.EOFException"


class Written(NamedTuple):
    """What the tasks of one job say that they have written and committed."""

    rows: int
    files: int
    bytes: int


class FileFormat(NamedTuple):
    """How: Spark's name of a format, the columns that become folders, and Spark's options."""

    name: str
    partition_by: Sequence[str]
    options: Mapping[str, str]


def write(frame: DataFrame, folder: str, how: FileFormat, computation: Computation, lost: job.Lost) -> Written:
    """Write ``frame`` into ``folder``, beside what is there, by one job.

    :raises BadColumn: the format cannot hold the frame.
    :raises RowRefused: the frame's own plan refuses a row (:mod:`onceward.spark.row_guard`).
    :raises SendFailed: ``folder`` cannot be written to.
    :raises ComputationsMixed: and what ``lost`` returned, and what is known of Spark's failures.
    :raises Exception: Spark's own, when the job fails for another reason.
    """
    with computation.read_once(frame):
        with job.watched(frame, lost):
            written = _written(frame, folder, how)
        computation.counts(frame)
    return written


def must_know(session: SparkSession, format_name: str) -> None:
    """:raises ConfigurationError: this session cannot write files of that format."""
    if format_name != "avro":
        return
    jvm: Any = session.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(_AVRO)
    except Exception as error:
        raise ConfigurationError(
            'format="avro": this Spark session has no spark-avro',
            next_step="build the session with ow.spark_conf(), which brings it along, or add the package "
            "org.apache.spark:spark-avro_2.13 of Spark's version",
        ) from error


def _written(frame: DataFrame, folder: str, how: FileFormat) -> Written:
    session: Any = frame.sparkSession
    try:
        command = _planned(session, frame, folder, how)
        execution = session._jsparkSession.sessionState().executePlan(command, _all(session))
        execution.assertCommandExecuted()
    except OncewardError:
        raise
    except AnalysisException as error:
        raise BadColumn(
            f"the frame cannot be written as {how.name}: {str(error).strip().splitlines()[0]}",
            next_step="select and cast columns in the query so that they fit the format",
        ) from error
    except Exception as error:
        if (refused := refusal(str(error))) is not None:
            raise refused from None  # the rest is a stack trace
        cause = next(reversed(_CAUSES.findall(str(error))), "")
        if cause.startswith(_OUTSIDE) and not cause.startswith(_WORKER_DIED):
            raise SendFailed(
                f"the job that writes files to {folder} has failed: {cause.strip()}",
                next_step="nothing, the batch runs again; if it repeats, see that the file system is there, has room, "
                "and lets executors write",
            ) from error
        raise
    metrics = _writing(execution.executedPlan()).metrics()
    return Written(*(int(metrics.apply(f"num{what}").value()) for what in ("OutputRows", "Files", "OutputBytes")))


def _planned(session: Any, frame: DataFrame, folder: str, how: FileFormat) -> Any:
    """The command, as ``DataFrameWriter.saveToV1SourceCommand`` makes it."""
    jvm = session.sparkContext._jvm
    sequence, nothing = jvm.PythonUtils.toSeq, _single(jvm.scala, "None")
    plan = frame._jdf.logicalPlan()
    if plan.getClass().getSimpleName() != "LogicalRDD":  # as foreachBatch gives it: a plan that has been made already
        rdd = frame._jdf.queryExecution().toRdd()
        plan = session._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False).logicalPlan()
    options = {**how.options, **COMMITTER_OPTIONS, "path": folder}
    if how.partition_by:
        options["__partition_columns"] = json.dumps(list(how.partition_by))  # DataSourceUtils.PARTITIONING_COLUMNS_KEY
    source = jvm.org.apache.spark.sql.execution.datasources.DataSource(
        session._jsparkSession,
        how.name,
        sequence([]),
        nothing,
        sequence(list(how.partition_by)),
        nothing,
        jvm.PythonUtils.toScalaMap(options),
        nothing,
    )
    return source.planForWriting(jvm.org.apache.spark.sql.SaveMode.Append, plan)


def _all(session: Any) -> Any:
    return _single(session.sparkContext._jvm.org.apache.spark.sql.execution, "CommandExecutionMode").ALL()


def _single(package: Any, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _writing(plan: Any) -> Any:
    """The node that has written, below what shows its result and what adapts it."""
    kind = plan.getClass().getSimpleName()
    if kind == "CommandResultExec":
        return _writing(plan.commandPhysicalPlan())
    return _writing(plan.executedPlan()) if kind == "AdaptiveSparkPlanExec" else plan
