"""One input record that hurts whoever reads it, once: what a job's own code, or its memory, does
to a task.

Runs in the job (``pipeline_job``, setting ``trap``); the trap itself springs in a Python worker of
an executor.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it


def trapped(records: DataFrame, trap: str, *, flag: str, news: str) -> DataFrame:
    """``records``, with a trap ``kind:partition:offset`` at one of them.

    Kinds: ``raise`` an error, or ``always``; ``heap``: ask the executor's JVM for more memory than
    it has; all of them only when the job's ``news`` say that the task has given a lease back. ``hang``, until
    killed, at once.

    :param flag: a file that says that it has sprung, and keeps it from doing so again.
    """
    kind, partition, offset = trap.split(":")
    record = (int(partition), int(offset))
    patience = 0 if kind == "hang" else 60

    # Values pass through it, so that those before the trap are not kept in the buffers of its
    # pipe, but sent.
    @F.udf("binary")
    def spring(
        at_partition: int, at_offset: int, value: bytes
    ) -> bytes:  # pickled with all that it needs
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        is_over = kind != "always" and os.path.exists(flag)
        if (at_partition, at_offset) != record or is_over:
            return bytes(value)
        Path(flag).touch()
        task = f"task {TaskContext.get().partitionId()} attempt"
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and not any(
            '"phase": "finished"' in line and task in line
            for line in Path(news).read_text().splitlines()
        ):
            time.sleep(0.1)
        if kind in ("raise", "always"):
            raise ValueError("this record hurts, " + {"raise": "once"}.get(kind, kind))
        if kind == "hang":
            time.sleep(600)
        return b""

    passed = records.withColumn(
        "value", spring.asNondeterministic()("partition", "offset", "value")
    )  # never twice
    # An array of that many numbers is made only where the trap has sprung; its size is never
    # negative.
    numbers = F.when(F.length("value") == 0, F.lit(300_000_000)).otherwise(F.lit(1)).cast("long")
    return passed.withColumn(
        "value", F.when(F.size(F.sequence(F.lit(1).cast("long"), numbers)) > 0, F.col("value"))
    )
