"""Batches without records, without offsets, without Kafka sources, and queries that keep state."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from streaming_pipeline import Pipeline, copy, source_records

from onceward import events
from onceward.engine.calls.advice import paragraph
from onceward.engine.spark_jobs import plan_write
from onceward.engine.task_writer import TaskWriter, results
from onceward.ids import TaskAttempt
from onceward_testing.topic_reader import end_offsets


def nothing(rows: DataFrame) -> DataFrame:
    return copy(rows).where("value IS NULL")


@pytest.mark.fault("empty-batch")
def test_batches_whose_rows_are_all_filtered_out_are_ledger_only_transactions(
    any_pipeline: Pipeline,
):
    any_pipeline.feed(80)
    any_pipeline.run(nothing)
    chain = any_pipeline.ledger()
    assert [
        (record["sequence"], record["records"], record["outputs"]["kafka"]["data"])
        for record in chain
    ] == [
        (0, 0, {}),
        (1, 0, {}),
    ]
    assert (
        sum(end_offsets(any_pipeline.bootstrap, any_pipeline.output, "read_uncommitted").values())
        == 0
    )
    assert set(any_pipeline.lag().values()) == {0}
    any_pipeline.feed(20)
    any_pipeline.run()
    assert Counter(source_records(any_pipeline.visible())) == Counter(any_pipeline.fed[80:])
    any_pipeline.forget_commit()
    any_pipeline.run(nothing)
    assert len(any_pipeline.ledger()) == 3


@pytest.mark.fault("empty-batch")
def test_a_source_without_records_ends_well_and_later_records_come(any_pipeline: Pipeline):
    any_pipeline.run()
    any_pipeline.feed(20)
    any_pipeline.run()
    any_pipeline.assert_exactly_once()


def test_a_batch_with_one_record_and_many_tasks(pipeline: Pipeline):
    pipeline.feed(1)
    pipeline.run(lambda rows: copy(rows).repartition(6), driver_records=0)
    pipeline.assert_exactly_once(ledger_records=1)


def windows(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("timestamp", "10 seconds")
        .selectExpr("window(timestamp, '60 seconds') AS w", "CAST(key AS STRING) AS key")
        .groupBy("w", "key")
        .count()
        .selectExpr(
            "CONCAT(key, '@', unix_seconds(w.start)) AS key", "CAST(count AS STRING) AS value"
        )
    )


def produce_at(pipeline: Pipeline, keyed: list[tuple[bytes, datetime]]) -> None:
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for key, when in keyed:
        producer.produce(
            pipeline.source, b"", key=key, partition=0, timestamp=int(when.timestamp() * 1000)
        )
    assert producer.flush(60) == 0


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("watermark-batch")
def test_batches_without_data_that_only_move_the_watermark(any_pipeline: Pipeline, at_step: Any):
    """Spark runs them to emit the windows that are complete; each is a transaction like any
    other.
    """
    noon = datetime(2024, 5, 17, 12, 0, tzinfo=timezone.utc)
    frame = any_pipeline.frame(max_offsets_per_trigger=1000)

    def run(**options: Any) -> None:
        any_pipeline.run(windows, frame=frame, **options)

    produce_at(any_pipeline, [(b"a", noon + timedelta(seconds=n)) for n in range(5)])
    produce_at(any_pipeline, [(b"b", noon + timedelta(seconds=n)) for n in range(3)])
    run()
    assert any_pipeline.visible() == []
    produce_at(any_pipeline, [(b"a", noon + timedelta(minutes=2))])
    at_step(
        events.FINISH,
        "started",
        RuntimeError("the driver dies after a batch that moved the watermark"),
        nth=2,
    )
    any_pipeline.failing_run(windows, frame=frame)
    run()
    produce_at(any_pipeline, [(b"a", noon + timedelta(seconds=10))])  # late: its window is closed
    produce_at(any_pipeline, [(b"c", noon + timedelta(minutes=9))])
    run()
    at = int(noon.timestamp())
    assert Counter((m.key(), m.value()) for m in any_pipeline.visible()) == Counter(
        [(b"a@%d" % at, b"5"), (b"b@%d" % at, b"3"), (b"a@%d" % (at + 120), b"1")]
    )
    chain = any_pipeline.ledger()
    assert [record["sequence"] for record in chain] == list(range(len(chain)))
    idle = [r for r in chain if all(source["start"] == source["end"] for source in r["sources"])]
    assert idle, "INVALID: no batch without data has run"
    assert any(record["records"] for record in idle)


def test_a_query_over_files_is_exact_too(pipeline: Pipeline, tmp_path: Path, at_step: Any):
    """Sources other than Kafka: no consumer group, offsets that Onceward cannot read, and the same
    promise.
    """
    folder = tmp_path / "files"
    folder.mkdir()

    def add(name: str, numbers: range) -> None:
        (folder / f".{name}").write_text("".join(f"line-{n}\n" for n in numbers))
        (folder / f".{name}").rename(folder / f"{name}.txt")

    def run(fail: bool = False) -> None:
        frame = (
            pipeline.spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(folder))
        )
        (pipeline.failing_run if fail else pipeline.run)(lambda rows: rows, frame=frame)

    add("one", range(30))
    add("two", range(30, 50))
    run()
    add("three", range(50, 90))
    at_step(events.FINISH, "started", RuntimeError("the driver dies here"))
    run(fail=True)
    run()
    add("four", range(90, 100))
    run()
    assert Counter(m.value() for m in pipeline.visible()) == Counter(
        b"line-%d" % n for n in range(100)
    )
    assert len(pipeline.appended()) == 100
    assert [record["batch_id"] for record in pipeline.ledger()] == [0, 1, 2, 3]


def test_a_source_that_makes_its_rows_itself(pipeline: Pipeline):
    """Sources that make rows: the rate source has offsets, but no records that anybody could
    count.
    """
    frame = pipeline.spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    query = pipeline.start(
        lambda rows: rows.selectExpr("CAST(value AS STRING) AS value"),
        frame=frame,
        trigger={"processingTime": "0 seconds"},
    )
    deadline = time.monotonic() + 120
    while len(pipeline.ledger()) < 3:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    query.stop()
    numbers = sorted(int(message.value()) for message in pipeline.visible())
    assert numbers == list(range(len(numbers)))


def test_a_job_that_is_cancelled_in_the_middle_of_a_batch(any_pipeline: Pipeline, at_step: Any):
    """As with the button in Spark's web page: the attempt is lost, the batch is not."""
    any_pipeline.feed(80)
    at_step(events.LEASE, "started", lambda _: any_pipeline.spark.sparkContext.cancelAllJobs())
    error = any_pipeline.ended(any_pipeline.start())
    if error:
        assert "cancel" in error.lower()
        any_pipeline.run()
    any_pipeline.assert_exactly_once(ledger_records=2)


def test_a_query_that_is_stopped_in_the_middle_of_a_batch(any_pipeline: Pipeline, at_step: Any):
    """``query.stop()`` interrupts the batch where it stands; the next start is exact."""
    any_pipeline.feed(80)
    at_batch_end = threading.Event()

    def wait_for_the_stop(_: events.Event) -> None:
        at_batch_end.set()
        time.sleep(3)  # the query's thread is interrupted meanwhile

    at_step(events.CHECK, "started", wait_for_the_stop)
    query = any_pipeline.start(trigger={"processingTime": "0 seconds"})
    assert at_batch_end.wait(120)
    query.stop()
    assert not query.isActive
    any_pipeline.run()
    any_pipeline.assert_exactly_once()


def test_large_records_come_to_a_worker_a_few_mebibytes_at_a_time(spark: SparkSession):
    """By Spark's default it is 256 MiB, and a worker has that in memory three times."""

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"bytes": [batch.nbytes]})

    rows = spark.range(0, 60, 1, 1).selectExpr("CAST(repeat('x', 1000000) AS BINARY) AS value")
    found = [row["bytes"] for row in rows.mapInArrow(sizes, "bytes long").collect()]
    assert sum(found) >= 60_000_000
    assert max(found) < 10 << 20


def test_a_column_has_its_own_values_whatever_it_is_called(spark: SparkSession):
    """To SQL, and so to PySpark's ``mapInArrow``, ``address.city`` is a field of ``address``."""

    class ShownWriter(TaskWriter):
        """Its committable is its rows. Inside, as workers do not know the module of a test."""

        def __init__(self, _: TaskAttempt) -> None:
            self.rows: list[dict[str, Any]] = []

        def write(self, rows: pa.RecordBatch) -> None:
            self.rows += rows.to_pylist()

        def pre_commit(self) -> Any:
            return self.rows

    odd = {"address.city": "outer", "a`b": "odd", "": "none", "é ": 1}
    for others in (odd, {"address.city": 2}, {"*": 3}, {"a": 4, "A": 5}, {"é": 6}):
        row = {"address": {"city": "inner"}, **others}
        named = spark.range(0, 1, 1, 1).selectExpr(
            "named_struct('city', 'inner') AS address", *map(repr, others.values())
        )
        found = results(plan_write(named.toDF(*row), ShownWriter).collect(), 1)
        assert found[0].committable == [row], row


def test_what_a_writer_raises_in_a_task_is_in_the_log_line(spark: SparkSession):
    def unreachable(_: TaskAttempt) -> TaskWriter:
        raise ConnectionError("no route to warehouse-7:5439")

    with pytest.raises(Exception) as raised:  # noqa: PT011 — Spark's own, by its version
        plan_write(spark.range(1).toDF("id"), unreachable).collect()
    text = paragraph(raised.value)
    assert "ConnectionError: no route to warehouse-7:5439. Next: mend what it names" in text
    assert "Traceback" not in text
