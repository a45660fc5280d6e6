"""``foreachBatch`` functions of users, each with a moment in which a test can hurt the executors.

Runs in the job (``pipeline_job``, setting ``function``); what is inside of ``mapInArrow`` in
Python workers. A function that waits tells so by a file ``waiting…`` in ``folder`` and goes on
when the test puts ``go`` there.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

import onceward as ow

Function = Callable[[DataFrame, int], None]

_PATIENCE_SECONDS = 300


def one_task_first(sink: ow.KafkaSink, folder: str, _topics: Sequence[str]) -> Function:
    """One task of the last stage passes, whichever comes first. All others wait with their input
    in hand.
    """

    def gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        try:
            os.close(os.open(f"{folder}/first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            told = Path(f"{folder}/waiting-{task.partitionId()}")
            told.with_suffix(".new").write_text(str(os.getpid()))
            told.with_suffix(".new").rename(told)
            wait(f"{folder}/go")
        yield from batches

    def wait(path: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.05)

    return lambda frame, batch_id: sink(frame.mapInArrow(gate, frame.schema), batch_id)


def persisted(sink: ow.KafkaSink, folder: str, _topics: Sequence[str]) -> Function:
    """Persists its frame, counts it, and waits before it is written."""

    def write(frame: DataFrame, batch_id: int) -> None:
        kept = frame.persist()
        kept.count()
        _tell_and_wait(folder)
        with sink.batch(frame, batch_id) as batch:
            batch.write(kept)
        kept.unpersist()

    return write


def shared_out(sink: ow.KafkaSink, _folder: str, topics: Sequence[str]) -> Function:
    """Draws a lot for each record, persists it, and shares the records out by it: two frames of
    one batch.
    """

    @F.udf("double")
    def lot() -> float:
        return random.random()

    def write(frame: DataFrame, batch_id: int) -> None:
        kept = frame.withColumn("lot", lot.asNondeterministic()()).persist()
        with sink.batch(frame, batch_id) as batch:
            batch.write(kept.where("lot < 0.5").drop("lot"), topic=topics[0])
            batch.write(kept.where("lot >= 0.5").drop("lot"), topic=topics[1])
        kept.unpersist()

    return write


def _tell_and_wait(folder: str) -> None:
    Path(folder, "waiting").touch()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not Path(folder, "go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


FUNCTIONS = {"one-task-first": one_task_first, "persisted": persisted, "shared-out": shared_out}
