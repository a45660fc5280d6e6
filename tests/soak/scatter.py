"""The pipeline *scatter*: a copy behind a shuffle whose rows change places whenever they are
computed again.

Runs in the driver (``job``); the functions inside run in Python workers of the executors. Three
functions of a user's, by the life of the driver: one hands its frame to the sink; one counts it
first, so that the shuffle was computed by an earlier job of the batch; one persists it first, so
that its tasks read blocks in the executors' memory, and behind them the shuffle. Each then reads
slowly, as a look-up would, and holds nothing back while it waits: executors that are killed
meanwhile leave tasks that have sent, tasks that have their input, and tasks that will not find it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

import onceward as ow

Function = Callable[[DataFrame, int], None]

_READERS = 6
_SECONDS_A_READER = 0.2


def scattered(people: DataFrame) -> DataFrame:
    """Each record once, with where it came from, to a task that a fresh id decides
    (``repartition`` sorts by it).
    """

    @F.udf("string")
    def fresh_id() -> str:
        return uuid.uuid4().hex

    origin = F.concat_ws(":", "partition", "offset")
    copies = people.select(
        "key",
        "partition",
        "offset",
        F.concat_ws(":", origin, F.col("value").cast("string")).alias("value"),
        fresh_id.asNondeterministic()().alias("id"),
    )
    return copies.repartition(_READERS).select(
        "key",
        "value",
        F.array(*(_header(name, name) for name in ("partition", "offset", "id"))).alias("headers"),
    )


def _header(name: str, column: str) -> F.Column:
    return F.struct(
        F.lit(name).alias("key"), F.col(column).cast("string").cast("binary").alias("value")
    )


def _slowly(frame: DataFrame) -> DataFrame:
    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(_SECONDS_A_READER)
        yield from batches

    return frame.mapInArrow(look_up, frame.schema)


def _plain(sink: ow.KafkaSink) -> Function:
    return lambda frame, batch_id: sink(_slowly(frame), batch_id)


def _counted(sink: ow.KafkaSink) -> Function:
    def write(frame: DataFrame, batch_id: int) -> None:
        frame.count()
        sink(_slowly(frame), batch_id)

    return write


def _persisted(sink: ow.KafkaSink) -> Function:
    def write(frame: DataFrame, batch_id: int) -> None:
        kept = frame.persist()
        try:
            kept.count()
            with sink.batch(frame, batch_id) as batch:
                batch.write(_slowly(kept))
        finally:
            kept.unpersist()

    return write


FUNCTIONS = {"plain": _plain, "counted": _counted, "persisted": _persisted}
