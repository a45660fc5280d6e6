"""Jobs that read text files, a file a batch, and are killed by their own faults. For tests.

:func:`session`, :func:`to_the_end` and :func:`run` are the job's side, :class:`TextFileJob` is the
test's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_lives import PATIENCE_SECONDS
from pyspark.sql import DataFrame, SparkSession

import onceward as ow
from onceward_testing.faults import (
    FAULTS_VARIABLE,
    FIRED_VARIABLE,
    arm_from_environment,
    fired_faults,
)
from onceward_testing.job_process import JobProcess


def session(folder: Path) -> SparkSession:
    """The job's, with its faults armed."""
    arm_from_environment()
    return (
        SparkSession.builder.master("local[2]")
        .config(map=ow.spark_conf())
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )


def run(folder: Path, sink: Callable[[DataFrame, int], None]) -> None:
    """In the job: everything there is in text files, to the end."""
    rows = (
        session(folder)
        .readStream.option("maxFilesPerTrigger", 1)
        .text(str(folder / "in"))
        .repartition(2)
    )
    to_the_end(rows, folder, sink)


def to_the_end(rows: DataFrame, folder: Path, sink: Callable[[DataFrame, int], None]) -> None:
    """Every batch that there is now."""
    query = (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


class TextFileJob:
    """A job's input, and its lives.

    :param program: of the job; it is given ``folder`` and ``arguments``.
    """

    def __init__(self, program: Path, folder: Path, *arguments: str) -> None:
        self._command = [sys.executable, str(program), str(folder), *arguments]
        self._folder = folder
        self._fired = folder / "fired.jsonl"
        (folder / "in").mkdir(exist_ok=True)

    def write_input(self, batches: int, rows: int = 500) -> list[str]:
        """So many files of so many lines; the lines."""
        wanted = [f"{batch}-{number}" for batch in range(batches) for number in range(rows)]
        first = time.time() - batches
        for batch in range(batches):
            lines = wanted[batch * rows : (batch + 1) * rows]
            file = self._folder / "in" / f"{batch}.txt"
            file.write_text("\n".join(lines) + "\n")
            # Spark reads files in the order of their times (FileStreamSource); of one millisecond,
            # in any order.
            os.utime(file, (first + batch, first + batch))
        return wanted

    def start(self, fault: str | None = None) -> JobProcess:
        """A life of the job, which the caller sees to its end."""
        return JobProcess(
            self._command,
            folder=self._folder,
            log=self._folder / "log",
            environment={
                "PYTHONPATH": os.pathsep.join(sys.path),
                FAULTS_VARIABLE: fault,
                FIRED_VARIABLE: str(self._fired) if fault else None,
            },
        )

    def fired(self) -> list[str]:
        """The faults that have happened."""
        return [found.fault for found in fired_faults(self._fired)]

    def live(self, fault: str | None = None) -> JobProcess:
        """One life of the job, to its end."""
        job = self.start(fault)
        try:
            job.wait(PATIENCE_SECONDS)
        finally:
            job.end_all()
        if fault:
            assert self.fired() == [fault], f"INVALID: {fault} never fired"
        return job
