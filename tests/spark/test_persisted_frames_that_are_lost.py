"""Blocks of a persisted frame that are gone: what is computed again in their place must not meet
what was read before.

On real executors that are killed: ``tests/chaos/test_shuffles_that_die.py``. Here is what a single
block manager shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from onceward.errors import ComputationsMixed
from onceward.spark.batch import shuffles
from onceward.spark.batch.shuffles import Readers, Shuffles, block_manager, count_rows


def register_again(spark: SparkSession) -> None:
    """Where another test has lost a shuffle, Spark has disowned the one block manager there is,
    and no block is found.

    A block manager cannot do it by itself: a session of one process has no scheduler to ask
    whether it is alive.
    """
    if not spark.sparkContext._jsc.sc().getExecutorMemoryStatus().isEmpty():
        return
    manager = block_manager(spark.sparkContext)
    endpoint = manager.getClass().getDeclaredField("storageEndpoint")
    endpoint.setAccessible(True)
    folders = manager.diskBlockManager().localDirsString()
    memory = (manager.maxOnHeapMemory(), manager.maxOffHeapMemory())
    manager.master().registerBlockManager(
        manager.blockManagerId(), folders, *memory, endpoint.get(manager), False
    )


@pytest.fixture
def counted(spark: SparkSession) -> Iterator[tuple[DataFrame, Any]]:
    """A persisted frame of two blocks behind a shuffle, and how many partitions were computed
    before the shuffle.
    """
    register_again(spark)
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        computed.add(1)
        yield from batches

    kept = spark.range(0, 100, 1, 3).mapInArrow(count, "id long").repartition(2).persist()
    kept.count()
    yield kept, computed
    kept.unpersist(blocking=True)


def test_blocks_are_read_before_a_loss(counted: tuple[DataFrame, Any]):
    kept, computed = counted
    with Shuffles().read_once(kept):
        assert len(kept.collect()) == 100
    assert computed.value == 3


def test_no_block_survives_a_mix(counted: tuple[DataFrame, Any]):
    """Or the next attempt would read blocks of two computations, with nothing left to compute."""
    kept, computed = counted
    shuffles = Shuffles()
    kept.sparkSession.sparkContext._jsc.sc().taskScheduler().mapOutputTracker().removeOutputsOnExecutor(
        "driver"
    )
    with pytest.raises(ComputationsMixed), shuffles.read_once(kept):
        kept.collect()
    with shuffles.read_once(kept):
        assert len(kept.collect()) == 100
    assert computed.value == 6
    assert kept.is_cached


@pytest.mark.parametrize("way", ["two frames", "a union", "behind shuffles"])
def test_two_readers_after_an_executor_is_gone(
    counted: tuple[DataFrame, Any], monkeypatch: pytest.MonkeyPatch, way: str
):
    kept, _ = counted
    some, others = kept.where("id < 50"), kept.where("id >= 50")
    if way == "a union":
        read = [some.union(others)]
    else:
        read = (
            [some, others] if way == "two frames" else [some.repartition(3), others.repartition(3)]
        )
    behind = shuffles._persisted_behind(
        kept
    )  # now: adaptive execution fills a cache when asked for a plan
    assert blocks(kept, behind) == 2
    readers = after_the_loss_of_an_executor(monkeypatch, kept, read)
    with pytest.raises(ComputationsMixed, match="read more than once"):
        readers.must_have_seen_the_same()
    assert blocks(kept, behind) == 0, "the next attempt computes all of them"


def blocks(frame: DataFrame, rdds: Iterable[int]) -> int:
    """How many there are, by the block managers' master (``getRDDStorageInfo`` hears of it by
    events, or never).
    """
    context = frame.sparkSession.sparkContext
    master, block_id = (
        block_manager(context).master(),
        context._jvm.org.apache.spark.storage.RDDBlockId,
    )
    return sum(
        not master.getLocations(block_id(rdd, part)).isEmpty() for rdd in rdds for part in range(2)
    )


def test_a_replay_counts_frames_of_one_computation(
    counted: tuple[DataFrame, Any], monkeypatch: pytest.MonkeyPatch
):
    """An executor is gone after the first count: what was persisted is computed again, for all
    frames.
    """
    kept, computed = counted
    frames = [kept.where("id < 50"), kept.where("id >= 50")]
    assert count_rows(frames) == [50, 50]
    assert computed.value == 3, "by the blocks that are there"
    there = iter([{"driver", "gone"}, {"driver", "gone"}, {"driver"}, {"driver"}])
    with monkeypatch.context() as patch:
        patch.setattr(shuffles, "_executors", lambda context: frozenset(next(there)))
        with pytest.raises(ComputationsMixed, match="read more than once"):
            count_rows(frames)
    assert blocks(kept, shuffles._persisted_behind(kept)) == 0
    assert count_rows(frames) == [50, 50]


def test_one_reader_after_an_executor_is_gone(
    counted: tuple[DataFrame, Any], monkeypatch: pytest.MonkeyPatch
):
    """A record is in one block, and that is read once."""
    after_the_loss_of_an_executor(monkeypatch, counted[0], [counted[0]]).must_have_seen_the_same()


def test_two_readers_of_what_is_not_persisted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    frame = spark.range(10).repartition(2)
    after_the_loss_of_an_executor(monkeypatch, frame, [frame, frame]).must_have_seen_the_same()


def test_two_readers_and_all_executors_there(counted: tuple[DataFrame, Any]):
    readers = Readers(counted[0].sparkSession.sparkContext)
    for _ in range(2):
        readers.add(counted[0])
    readers.must_have_seen_the_same()


def test_a_checkpointed_frame_is_left_alone(spark: SparkSession):
    """Its blocks are all there is of it."""
    kept = spark.range(10).repartition(2).localCheckpoint()
    shuffles.drop_blocks(kept.where("id < 5"))
    assert kept.count() == 10


def after_the_loss_of_an_executor(
    monkeypatch: pytest.MonkeyPatch, frame: DataFrame, read: list[DataFrame]
) -> Readers:
    """One that was there when the first of ``read`` was written; a local session has none to
    lose.
    """
    context = frame.sparkSession.sparkContext
    there = shuffles._executors(context)
    with monkeypatch.context() as before:
        before.setattr(shuffles, "_executors", lambda _: there | {"lost:1"})
        readers = Readers(context)
    for one in read:
        readers.add(one)
    return readers
