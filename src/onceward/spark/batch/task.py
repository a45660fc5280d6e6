"""Which task attempt this code runs in. Executors only; called by ``engine.task_writer``."""

from __future__ import annotations

from pyspark import TaskContext

from onceward.ids import TaskAttempt


def this_attempt() -> TaskAttempt:
    """Return the task attempt that this code runs in."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this function runs in Spark tasks only")
    return TaskAttempt(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )
