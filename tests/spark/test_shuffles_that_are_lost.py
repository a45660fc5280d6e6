"""Map output that is lost in mid-batch: what Spark computes again must not meet what it computed
before.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from streaming_pipeline import Pipeline

from fault_table import fired
from onceward import events
from onceward.errors import ComputationsMixed, SendFailed
from onceward.spark.batch.shuffles import Shuffles, block_manager

RECORDS = 400


def by_chance(rows: DataFrame) -> DataFrame:
    """Each record goes to a task that is drawn anew whenever it is computed."""

    @f.udf("string")
    def unrepeatable() -> str:
        return uuid.uuid4().hex

    unrepeatable = unrepeatable.asNondeterministic()
    named = rows.select(
        "key", f.concat_ws(":", "partition", "offset").alias("where"), unrepeatable().alias("id")
    )
    return named.repartition(4).select("key", f.concat_ws("|", "where", "id").alias("value"))


def each_once(pipeline: Pipeline) -> bool:
    sources = Counter(message.value().split(b"|")[0] for message in pipeline.visible())
    return len(sources) == RECORDS and set(sources.values()) == {1}


def disk_folders(spark: SparkSession) -> list[Path]:
    disks = block_manager(spark.sparkContext).diskBlockManager()
    return [Path(folder.getPath()) for folder in disks.localDirs()]


def shuffle_files(spark: SparkSession) -> list[Path]:
    return [file for folder in disk_folders(spark) for file in folder.glob("*/shuffle_*")]


@pytest.mark.fault("stage-retried")
def test_finished_tasks_and_a_recomputed_shuffle(pipeline: Pipeline, steps: list[events.Event]):
    """A task has finished when the others find their input gone: nothing is sent twice, and yet
    rows would be.
    """
    pipeline.feed(RECORDS)
    lost: list[Path] = []

    def lose_the_shuffle(event: events.Event) -> None:
        if not lost and (event.step, event.phase) == (events.LEASE, "finished"):
            lost.extend(shuffle_files(pipeline.spark))
            for file in lost:
                file.unlink()

    stop = events.probe(lose_the_shuffle)
    try:
        pipeline.run(
            by_chance, frame=pipeline.frame(max_offsets_per_trigger=None), driver_records=0
        )
    finally:
        stop()
    fired(lost, "there was no shuffle")
    assert each_once(pipeline)
    # Again at least once: a task that is poisoned before the loss is noticed costs an attempt of
    # its own.
    assert (
        len({e.ids["epoch"] for e in steps if (e.step, e.phase) == (events.SEND, "started")}) >= 2
    )


def test_a_shuffle_lost_far_from_our_tasks(
    pipeline: Pipeline, tmp_path: Path, steps: list[events.Event]
):
    """Two shuffles in a row: the first is lost while the second is written, so that our tasks see
    nothing of it.
    """
    pipeline.feed(RECORDS)
    folders = [str(folder) for folder in disk_folders(pipeline.spark)]
    flag = str(tmp_path / "lost")

    @f.udf("string")
    def lose_the_first(value: str, partition: int) -> str:
        if partition == 1 and not os.path.exists(flag):
            for file in [file for folder in folders for file in Path(folder).glob("*/shuffle_*")]:
                file.unlink(missing_ok=True)
            Path(flag).touch()
        return value

    def twice(rows: DataFrame) -> DataFrame:
        first = by_chance(rows)
        lossy = first.select("key", lose_the_first("value", f.spark_partition_id()).alias("value"))
        return lossy.repartition(3)

    pipeline.run(twice, frame=pipeline.frame(max_offsets_per_trigger=None), driver_records=0)
    fired(os.path.exists(flag), "the second stage never ran")
    assert each_once(pipeline)
    failures = [type(e.error) for e in steps if (e.step, e.phase) == (events.SEND, "failed")]
    assert failures == [ComputationsMixed]


def test_a_run_without_losses_passes(spark: SparkSession):
    frame = spark.range(100).repartition(3).groupBy("id").count()
    shuffles = Shuffles()
    for _ in range(2):
        assert job(shuffles, frame) == 100


def test_what_was_lost_before_is_noticed(spark: SparkSession):
    """An earlier job of the batch read it, which ours skips."""
    frame = spark.range(100).repartition(3).groupBy("id").count()
    frame.collect()
    take_back(frame)
    with pytest.raises(ComputationsMixed, match="again"):
        job(Shuffles(), frame)


def test_what_is_lost_meanwhile_is_noticed(spark: SparkSession):
    frame = spark.range(100).repartition(3).groupBy("id").count()
    with pytest.raises(ComputationsMixed, match="again"):
        job(Shuffles(), frame, loses=True)


def test_the_next_attempt_computes_everything(spark: SparkSession):
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        computed.add(1)
        yield from batches

    frame = (
        spark.range(0, 100, 1, 2).mapInArrow(count, "id long").repartition(3).groupBy("id").count()
    )
    shuffles = Shuffles()
    assert job(shuffles, frame) == 100
    tracker_of(frame).unregisterMapOutput(
        *an_output_of(frame)
    )  # one of the two: Spark would compute that one again
    with pytest.raises(ComputationsMixed):
        job(shuffles, frame)
    before = computed.value
    assert job(shuffles, frame) == 100
    assert computed.value - before == 2


def test_an_error_of_ours_is_not_hidden(spark: SparkSession):
    with pytest.raises(SendFailed):
        job(Shuffles(), spark.range(100).repartition(3), loses=True, then=SendFailed("first"))


def test_an_error_of_sparks_after_a_loss(spark: SparkSession):
    with pytest.raises(ComputationsMixed):
        job(
            Shuffles(),
            spark.range(100).repartition(3),
            loses=True,
            then=RuntimeError("what Spark makes of it"),
        )


def job(
    shuffles: Shuffles, frame: DataFrame, *, loses: bool = False, then: Exception | None = None
) -> int:
    """How many rows there are, if they are of one computation."""
    with shuffles.read_once(frame):
        rows = frame.collect()
        if loses:
            take_back(frame)
        if then is not None:
            raise then
    return len(rows)


def take_back(frame: DataFrame) -> None:
    """What Spark does when the executor is lost that holds the output."""
    tracker_of(frame).removeOutputsOnExecutor("driver")


def tracker_of(frame: DataFrame) -> Any:
    return frame.sparkSession.sparkContext._jsc.sc().taskScheduler().mapOutputTracker()


def an_output_of(frame: DataFrame) -> tuple[int, int, Any]:
    """The first map output of the newest shuffle, and who holds it."""
    newest = max(
        int(n) for n in tracker_of(frame).shuffleStatuses().keys().mkString(",").split(",")
    )
    status = tracker_of(frame).shuffleStatuses().get(newest).get()
    return newest, 0, status.mapStatuses()[0].location()
