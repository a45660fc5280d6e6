"""One Spark job that can be stopped from outside while it runs. Driver only; called by targets.

A task that hangs (its executor is stopped, say) keeps a job waiting for minutes. When the attempt is lost anyway,
waiting for it only keeps the transaction open, so a watcher cancels the job by its tag.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, Row

from onceward.errors import OncewardError, SourceDataLost

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_LOST_INPUT = ("KAFKA_DATA_LOSS", "data may have been lost")  # how Spark's Kafka source says it, planning or reading
_WHAT_IS_LOST = "OffsetOutOfRangeException: "
_GRACE_SECONDS = 2.0  # most tasks stop by themselves, and then the job's own error tells more


def collect(frame: DataFrame, lost: Callable[[], OncewardError | None]) -> list[Row]:
    """The rows of ``frame``, by one Spark job.

    :param lost: asked all the while; what it returns is the reason to cancel the job, soon after.
    :raises Exception: Spark's own, when the job fails or is cancelled.
    """
    context = frame.sparkSession.sparkContext
    tag = f"onceward-{uuid.uuid4()}"
    done = threading.Event()

    def watch() -> None:
        since: float | None = None
        while not done.wait(_POLL_SECONDS):
            reason = lost()
            if reason is None:
                continue
            since = since or time.monotonic()
            if time.monotonic() - since >= _GRACE_SECONDS:
                log.warning("cancelling the Spark job of a lost attempt: %s", reason)
                context.cancelJobsWithTag(tag)
                return

    context.addJobTag(tag)  # a property of the query's own JVM thread, on which this runs
    watcher = threading.Thread(target=watch, name="onceward-job-watcher", daemon=True)
    watcher.start()
    try:
        return frame.collect()
    finally:
        done.set()
        context.removeJobTag(tag)
        watcher.join()


@contextmanager
def naming_lost_input() -> Iterator[None]:
    """Inside, what Spark says of records that are gone from Kafka becomes :class:`SourceDataLost`."""
    try:
        yield
    except OncewardError:
        raise
    except Exception as error:
        lines = str(error).splitlines()
        said = next((line for line in lines if any(sign in line for sign in _LOST_INPUT)), None)
        if said is None:
            raise
        where = next((line.partition(_WHAT_IS_LOST)[2] for line in lines if _WHAT_IS_LOST in line), said.strip())
        raise SourceDataLost(
            f"records of this batch are gone from the source before they were read: {where}",
            next_step="lengthen the source topic's retention (retention.ms, retention.bytes); nothing of the batch was "
            "written; if the topic was deleted and created again, begin anew with another pipeline_id and checkpoint, "
            "or its records below the old offsets are skipped; to go on without the lost records, start once with "
            'kafka_source(spark_options={"failOnDataLoss": False})',
        ) from error


def partition_count(frame: DataFrame) -> int:
    """How many tasks the job of ``frame`` will have: the partitions of its last stage."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())
