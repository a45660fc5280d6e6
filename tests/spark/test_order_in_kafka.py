"""``KafkaSink(order_by=…)``: records of one key lie in their partition in order, whichever tasks
they came from.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from streaming_pipeline import Pipeline

import onceward as ow
from fault_table import fired
from onceward import events
from onceward.spark.batch.shuffles import block_manager

RECORDS, KEYS = 900, 7
POSITION = "CAST(CAST(value AS STRING) AS INT) AS position"


def feed(pipeline: Pipeline, keys: int = KEYS, begin: int = 0) -> None:
    """Numbers by key in the partitions of the source by chance, so that each task of the query has
    some of each key.
    """
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    chance = random.Random(begin)
    numbers = list(range(begin, begin + RECORDS))
    chance.shuffle(numbers)
    for number in numbers:
        key = b"key-%d" % (number % keys) if keys else None
        producer.produce(
            pipeline.source, key=key, value=b"%d" % number, partition=chance.randrange(4)
        )
    assert producer.flush(60) == 0


def rows(frame: DataFrame, size: int = 0) -> DataFrame:
    """Records of some size, that a task may not hold all of them."""
    return frame.selectExpr(
        "key", f"concat(CAST(value AS STRING), repeat('x', {size})) AS value", POSITION
    )


def number(message: Message) -> int:
    return int(bytes(message.value() or b"").rstrip(b"x"))


def by(what: Any, messages: list[Message]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for message in messages:
        found[what(message)].append(number(message))
    return found


def key_of(message: Message) -> tuple[object, ...]:
    return (message.topic(), message.partition(), message.key())


def in_order(pipeline: Pipeline, batches: int = 1, *, what: Any = key_of) -> bool:
    """Is everything there once, and all of each key as it grows, batch behind batch?"""
    visible = pipeline.visible()
    assert sorted(map(number, visible)) == list(range(batches * RECORDS))
    return all(numbers == sorted(numbers) for numbers in by(what, visible).values())


@pytest.fixture
def wide(kafka: Any, pipeline_on: Any) -> Pipeline:
    return pipeline_on(kafka, source_partitions=4)


@pytest.mark.parametrize("driver_records", [0, 10_000])
def test_a_key_is_in_order_over_many_tasks(wide: Pipeline, driver_records: int):
    """Tasks send several times each: they hold 1 MiB, and the batch has 9; the driver sends small
    ones at once.
    """
    size = 10_000 if driver_records == 0 else 0
    options = {"driver_records": driver_records, "held_bytes": 1 << 20, "order_by": "position"}
    for batch in range(2):
        feed(wide, begin=batch * RECORDS)
        wide.run(
            lambda frame: rows(frame, size),
            frame=wide.frame(max_offsets_per_trigger=None),
            **options,
        )
    assert in_order(wide, 2)
    assert {len(message.value()) > 10_000 for message in wide.visible()} == {size > 0}


def test_a_batch_has_as_many_tasks_as_there_are_cores_for(wide: Pipeline, at_step: Any):
    """And not Spark's 200, of which each takes its time for a few rows."""
    tasks: list[int] = []
    at_step("send", "finished", lambda event: tasks.append(event.values["tasks"]))
    feed(wide)
    wide.spark.conf.set("spark.sql.shuffle.partitions", "200")
    try:
        frame = wide.frame(max_offsets_per_trigger=None)
        wide.run(rows, frame=frame, driver_records=0, order_by="position")
    finally:
        wide.spark.conf.set("spark.sql.shuffle.partitions", "2")
    # Adaptive execution, which is on where the matrix runs, makes one of few rows
    assert tasks in ([4], [1])
    assert in_order(wide)


def test_without_it_a_key_is_in_no_order(wide: Pipeline):
    """Or the others would show nothing."""
    feed(wide)
    wide.run(
        lambda frame: rows(frame).drop("position"), frame=wide.frame(max_offsets_per_trigger=None)
    )
    assert not in_order(wide)


@pytest.mark.parametrize("driver_records", [0, 10_000])
def test_each_partition_of_each_topic_is_in_order(wide: Pipeline, driver_records: int):
    """``order_within="topic"``: among keys as well, and records without one; the topic of each row
    says it itself.
    """
    other = wide.topic(1)
    feed(wide)

    def two(frame: DataFrame) -> DataFrame:
        key = "CASE WHEN position % 5 > 0 THEN key END AS key"
        topic = f"CASE WHEN position % 3 = 0 THEN '{other}' ELSE '{wide.output}' END AS topic"
        return rows(frame).selectExpr(key, "value", topic, "position")

    wide.run(
        two, frame=wide.frame(max_offsets_per_trigger=None), topic=None, order_by=["position"],
        order_within="topic",
        driver_records=driver_records,
    )  # fmt: skip
    found = by(
        lambda message: (message.topic(), message.partition()),
        [*wide.visible(), *wide.visible(other)],
    )
    assert {len(numbers) > 10 for numbers in found.values()} == {True}
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(RECORDS))


@pytest.mark.parametrize("driver_records", [0, 10_000])
def test_without_keys_each_partition_is_in_order(wide: Pipeline, driver_records: int):
    """By several columns, nulls first; one of them is a part of the record."""
    feed(wide, keys=0)

    def early(frame: DataFrame) -> DataFrame:
        named = rows(frame).withColumn("half", f.when(f.col("position") >= RECORDS // 2, f.lit(1)))
        return named.selectExpr(
            "value", "half", "timestamp_millis(1000000 + position) AS timestamp"
        )

    wide.run(
        early,
        frame=wide.frame(max_offsets_per_trigger=None),
        order_by=["half", "timestamp"],
        driver_records=driver_records,
    )
    assert in_order(wide, what=lambda message: message.partition())
    assert {message.timestamp()[1] - number(message) for message in wide.visible()} == {1_000_000}


def test_what_cannot_be_read_needs_no_order(wide: Pipeline):
    """A dead letter is the record as it came, without the columns that the query makes."""
    aside = wide.topic(1)
    feed(wide)
    read = ow.json.decode(
        wide.frame(max_offsets_per_trigger=None), schema="n INT", on_error="dead_letter"
    )
    wide.run(
        lambda frame: frame.selectExpr(
            "key", "CAST(value.n AS STRING) AS value", "offset AS position"
        ),
        frame=read,
        order_by="position",
        dead_letter_topic=aside,
    )
    assert (wide.visible(), len(wide.visible(aside))) == ([], RECORDS)


def test_what_is_too_large_is_in_order_elsewhere(wide: Pipeline):
    small, aside = wide.topic(3, max_message_bytes=2_000), wide.topic(1)
    feed(wide)
    sized = "concat(CAST(value AS STRING), repeat('x', IF(position % 10 = 7, 3000, 0))) AS value"
    traced = (
        wide.frame(max_offsets_per_trigger=None)
        .selectExpr("*", POSITION)
        .select("key", f.expr(sized), "position", *ow.lineage())
    )
    wide.run(
        lambda frame: frame, frame=traced, topic=small, order_by="position", lineage=True,
        on_error="dead_letter",
        dead_letter_topic=aside,
    )  # fmt: skip
    taken, too_large = wide.visible(small), wide.visible(aside)
    assert {len(message.headers() or []) for message in taken} == {3}
    assert sorted(map(number, [*taken, *too_large])) == list(range(RECORDS))
    assert {number(message) % 10 for message in too_large} == {7}
    assert all(numbers == sorted(numbers) for numbers in by(key_of, [*taken, *too_large]).values())


@pytest.mark.slow
def test_a_shuffle_that_is_lost_disturbs_no_order(wide: Pipeline, steps: list[events.Event]):
    """As when an executor dies while its rows are read: the batch runs again, in order."""
    feed(wide)
    folders = block_manager(wide.spark.sparkContext).diskBlockManager().localDirs()
    lost: list[Path] = []

    def lose_the_shuffle(event: events.Event) -> None:
        if not lost and (event.step, event.phase) == (events.LEASE, "finished"):
            lost.extend(
                file for folder in folders for file in Path(folder.getPath()).glob("*/shuffle_*")
            )
            for file in lost:
                file.unlink()

    stop = events.probe(lose_the_shuffle)
    try:
        wide.spark.conf.set("spark.sql.shuffle.partitions", "6")
        wide.run(
            lambda frame: rows(frame, 10_000), frame=wide.frame(max_offsets_per_trigger=None),
            held_bytes=1 << 20,
            order_by="position",
        )  # fmt: skip
    finally:
        stop()
        wide.spark.conf.set("spark.sql.shuffle.partitions", "2")
    fired(lost, "there was no shuffle")
    assert in_order(wide)
    assert (
        len(
            {
                event.ids["epoch"]
                for event in steps
                if (event.step, event.phase) == (events.SEND, "started")
            }
        )
        >= 2
    )
