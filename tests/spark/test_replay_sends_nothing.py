"""A batch that is committed in Kafka but not in Spark's commit log runs again, and nothing of it
is sent again.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.functions import udf, window
from streaming_pipeline import Pipeline, use_state_store
from topic_operations import expire

import onceward
from onceward import events
from onceward.errors import BatchChanged
from onceward.spark.batch.below import is_repeatable, rows_below


@pytest.mark.fault("commit-log-deleted")
def test_a_deleted_commit_log_entry_is_a_replay(any_pipeline: Pipeline, steps: list[events.Event]):
    any_pipeline.feed(60)
    any_pipeline.run()
    before = len(any_pipeline.appended())
    again = any_pipeline.forget_commit()
    del steps[:]
    any_pipeline.run()
    assert [
        e.ids["batch_id"] for e in steps if (e.step, e.phase) == (events.REPLAY, "finished")
    ] == [again]
    assert not [e for e in steps if e.step in (events.SEND, events.LEASE, events.COMMIT)]
    assert len(any_pipeline.appended()) == before == 60
    any_pipeline.feed(30)
    any_pipeline.run()
    any_pipeline.assert_exactly_once()


@pytest.mark.fault("driver-killed-after-commit")
def test_a_fault_between_end_txn_and_the_commit_log(any_pipeline: Pipeline, at_step: Any):
    any_pipeline.feed(80)
    at_step(events.FINISH, "started", RuntimeError("the driver dies here"), nth=2)
    query = any_pipeline.failing_run()
    assert "the driver dies here" in str(query.exception())
    assert onceward.error_of(query) is None
    assert any_pipeline.committed_batches() == [0]
    assert len(any_pipeline.ledger()) == 2
    any_pipeline.run()
    any_pipeline.assert_exactly_once()
    assert len(any_pipeline.appended()) == 80


@pytest.mark.fault("driver-killed-after-commit")
@pytest.mark.parametrize("how", ["joins a table", "joins it in the function", "calls a function"])
def test_a_replay_with_more_rows_of_what_a_plan_looks_up_is_left_as_committed(
    pipeline: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
):
    """The program is the same, and nobody can say which rows are new: the next batch has them."""
    table, numbers = tmp_path / "numbers", tmp_path / "numbers.txt"
    spark = pipeline.spark
    pipeline.feed([(b"%d" % n, b"") for n in range(20)])
    allowed = udf(lambda key: key in numbers.read_text().split(), "boolean")

    def grow(to: int) -> None:
        spark.range(to).selectExpr("CAST(id AS STRING) AS k").write.mode("overwrite").parquet(
            str(table)
        )
        numbers.write_text(" ".join(map(str, range(to))))

    def joined(rows: DataFrame) -> DataFrame:
        there = spark.read.parquet(str(table)).selectExpr("CAST(k AS BINARY) AS key")
        return rows.join(there, "key").select("key", "value")

    def looked_up(rows: DataFrame) -> DataFrame:
        return rows.where(allowed(rows.key.cast("string"))).select("key", "value")

    def run() -> None:
        if how != "joins it in the function":
            pipeline.run(joined if how == "joins a table" else looked_up)
            return
        sink = pipeline.sink()

        def function(frame: DataFrame, batch_id: int) -> None:
            sink(joined(frame), batch_id)

        pipeline.run(sink=function)

    grow(5)
    run()
    grow(15)
    pipeline.forget_commit()
    run()
    assert "left as it is" in caplog.text
    assert len(pipeline.visible()) == 5
    pipeline.feed([(b"%d" % n, b"") for n in range(20)])
    run()
    assert len(pipeline.visible()) == 5 + 15


@pytest.mark.fault("driver-killed-after-commit")
@pytest.mark.parametrize("how", ["collect", "toPandas", "rdd"])
def test_a_replay_of_rows_that_the_function_makes_in_the_driver_is_left_as_committed(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, how: str
):
    """What the function has looked up is in no plan; all that is known is that the rows are not
    the batch's.
    """
    found = 2
    spark = pipeline.spark

    def made(rows: DataFrame) -> DataFrame:
        if how == "collect":
            return spark.createDataFrame(rows.collect() + [(b"", b"")] * found, rows.schema)
        if how == "toPandas":
            records = rows.toPandas()
            return spark.createDataFrame(pandas.concat([records] * found), rows.schema)
        return rows.rdd.mapPartitions(lambda part, n=found: list(part) * n).toDF(rows.schema)

    def run() -> None:
        sink = pipeline.sink()
        pipeline.run(sink=lambda rows, batch_id: sink(made(rows), batch_id))

    pipeline.feed(6)
    run()
    before = len(pipeline.visible())
    pipeline.forget_commit()
    found = 3
    run()
    assert "left as it is" in caplog.text
    assert len(pipeline.visible()) == before
    pipeline.feed(4)
    run()
    assert len(pipeline.ledger()) == 2


@pytest.mark.fault("driver-killed-after-commit")
def test_a_changed_program_over_the_batchs_own_rows_is_refused(pipeline: Pipeline):
    def run(number: int) -> Any:
        sink = pipeline.sink()

        def function(rows: DataFrame, batch_id: int) -> None:
            rows = rows.select("key", "value").distinct()
            copies = rows.selectExpr("*", f"explode(sequence(1, {number}))")
            sink(copies.select("key", "value"), batch_id)

        return pipeline.failing_run(sink=function) if number > 1 else pipeline.run(sink=function)

    pipeline.feed(6)
    run(1)
    pipeline.forget_commit()
    assert isinstance(onceward.error_of(run(2)), BatchChanged)
    assert len(pipeline.visible()) == 6


def judged(pipeline: Pipeline, frames: Callable[[DataFrame], Any], expression: str = "*") -> Any:
    """Return which of ``frames`` of a batch of ``expression`` are known to be repeatable."""
    answers = {}

    def look(frame: DataFrame, batch_id: int) -> None:
        answers.update({name: is_repeatable(each) for name, each in frames(frame).items()})

    rows = pipeline.frame().alias("the source").selectExpr(expression)
    writer = rows.writeStream.foreachBatch(look).trigger(availableNow=True)
    folder = f"{pipeline.checkpoint}-{uuid.uuid4().hex}"
    query = writer.option("checkpointLocation", folder).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    return answers


@pytest.mark.fault("driver-killed-after-commit")
def test_a_plan_that_is_the_same_each_time_is_told_from_one_that_is_not(pipeline: Pipeline):
    spark, table = pipeline.spark, f"{pipeline.checkpoint}-numbers"
    spark.range(3).write.mode("overwrite").parquet(table)
    spark.read.parquet(table).createOrReplaceTempView("numbers")
    plans = {
        "key": True,
        "rand() AS key": False,
        "now() AS key": False,
        "upper('k') AS key": True,
        "offset IN (SELECT id FROM numbers) AS key": False,
        "offset > (SELECT max(id) FROM numbers) AS key": False,
        "offset IN (SELECT id FROM range(9)) AS key": False,
    }
    pipeline.feed(5)
    for plan, expected in plans.items():
        found = judged(pipeline, lambda frame: {"rows": frame}, plan)
        assert found == {"rows": expected}, plan
    spark.catalog.dropTempView("numbers")


@pytest.mark.fault("driver-killed-after-commit")
def test_rows_that_are_not_known_to_be_the_batchs_are_told_from_its_own(pipeline: Pipeline):
    repeatable = {
        "cached": lambda rows: rows.cache(),
        "joined with itself": lambda rows: rows.alias("a").join(rows.alias("b"), "key"),
        "aggregated": lambda rows: rows.groupBy("partition").agg(
            *(getattr(f, name)("offset") for name in ("count", "sum", "avg", "min", "max")),
            f.count_if(f.col("offset") > 3),
        ),
        "distinct": lambda rows: rows.distinct().orderBy("key"),
        "a view": lambda rows: rows.sparkSession.table("batch"),
        "named in SQL": lambda rows: rows.sparkSession.sql(
            "WITH few AS (SELECT key FROM batch) SELECT * FROM few UNION ALL SELECT * FROM few"
        ),
        "its own subquery": lambda rows: rows.where("offset < (SELECT max(offset) FROM batch)"),
        "below a place": lambda rows: rows_below(rows, "the source"),
        "literals": lambda rows: rows.sparkSession.sql("SELECT 1 AS n"),
    }
    others = {
        "a range": lambda rows: rows.crossJoin(rows.sparkSession.range(2)),
        "values": lambda rows: rows.sparkSession.sql("SELECT * FROM VALUES (1), (2)"),
        "collected": lambda rows: rows.sparkSession.createDataFrame(rows.collect(), rows.schema),
        "its RDD": lambda rows: rows.sparkSession.createDataFrame(rows.rdd, rows.schema),
        "checkpointed": lambda rows: rows.localCheckpoint(),
        "a subquery": lambda rows: rows.where("offset < (SELECT max(id) FROM range(9))"),
        "a union": lambda rows: rows.select("offset").union(rows.sparkSession.range(2)),
        "one of each key": lambda rows: rows.dropDuplicates(["key"]),
        "some": lambda rows: rows.limit(3),
        "but some": lambda rows: rows.offset(3),
        "ranked": lambda rows: rows.withColumn("rank", f.row_number().over(Window.orderBy("key"))),
        "the first": lambda rows: rows.groupBy("partition").agg(f.first("offset")),
        "that of the most": lambda rows: rows.groupBy("partition").agg(f.max_by("key", "offset")),
        "a list": lambda rows: rows.groupBy("partition").agg(f.size(f.collect_list("key"))),
        "sampled": lambda rows: rows.sample(0.5),
        "a program": lambda rows: rows.sparkSession.sql(
            "SELECT TRANSFORM(offset) USING 'cat' AS (line) FROM batch"
        ),
        "pandas": lambda rows: rows.select("offset").mapInPandas(lambda it: it, "offset long"),
    }

    def frames(rows: DataFrame) -> dict[str, DataFrame]:
        rows.createOrReplaceTempView("batch")
        return {name: make(rows) for name, make in (repeatable | others).items()}

    pipeline.feed(5)
    expected = dict.fromkeys(repeatable, True) | dict.fromkeys(others, False)
    assert judged(pipeline, frames) == expected


def count_per_key(rows: DataFrame) -> DataFrame:
    return (
        rows.selectExpr("CAST(key AS STRING) AS k")
        .groupBy("k")
        .count()
        .selectExpr("k AS key", "CAST(count AS STRING) AS value")
    )


@pytest.mark.fault("commit-log-deleted", "driver-killed-after-commit")
@pytest.mark.parametrize("store", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
@pytest.mark.parametrize("interrupted", ["commit log entry deleted", "killed after EndTxn"])
def test_counts_go_on_right_after_a_replay(
    pipeline: Pipeline, at_step: Any, request: pytest.FixtureRequest, store: str, interrupted: str
):
    """I9: what is emitted for a key is exactly the growing count, value by value, with no value
    repeated.
    """
    use_state_store(pipeline, request, store)
    model: Counter[bytes] = Counter()
    emitted: dict[bytes, list[int]] = defaultdict(list)

    def feed(count: int) -> None:
        records = [(b"k%d" % (n % 4), b"") for n in range(count)]
        pipeline.feed(records)
        for key in {key for key, _ in records}:
            model[key] += sum(k == key for k, _ in records)
            emitted[key].append(model[key])

    def run(**options: Any) -> None:
        frame = pipeline.frame(max_offsets_per_trigger=1000)
        pipeline.run(count_per_key, frame=frame, mode="update", **options)

    feed(20)
    run()
    feed(9)
    if interrupted == "killed after EndTxn":
        at_step(events.FINISH, "started", RuntimeError("the driver dies here"))
        frame = pipeline.frame(max_offsets_per_trigger=1000)
        pipeline.failing_run(count_per_key, frame=frame, mode="update")
    else:
        run()
        pipeline.forget_commit()
    appended = len(pipeline.appended())
    run()
    assert len(pipeline.appended()) == appended
    feed(7)
    run()
    found: dict[bytes, list[int]] = defaultdict(list)
    for message in pipeline.visible():
        found[message.key()].append(int(message.value()))
    assert found == emitted
    assert len(pipeline.ledger()) == 3


@pytest.mark.fault("driver-killed-after-commit")
@pytest.mark.parametrize("column", ["uuid()", "'a'"])
def test_state_that_is_computed_again_by_chance_is_named(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, column: str
):
    def largest(rows: DataFrame) -> DataFrame:
        rows = rows.selectExpr("CAST(key AS STRING) AS key", f"{column} AS value")
        return rows.groupBy("key").agg(f.max("value").alias("value"))

    pipeline.feed([(b"k", b"")])
    pipeline.run(largest, mode="update")
    pipeline.forget_commit()
    pipeline.run(largest, mode="update")
    assert ("state and output may disagree" in caplog.text) == (column == "uuid()")
    assert len(pipeline.visible()) == 1


def windows(rows: DataFrame) -> DataFrame:
    """Counts per ten seconds of event time, which is the value, in seconds; late by no more than
    ten.
    """
    timed = rows.selectExpr("CAST(CAST(CAST(value AS STRING) AS LONG) AS TIMESTAMP) AS time")
    counts = (
        timed.withWatermark("time", "10 seconds").groupBy(window("time", "10 seconds")).count()
    )
    return counts.selectExpr(
        "CAST(CAST(window.start AS LONG) AS STRING) AS key", "CAST(count AS STRING) AS value"
    )


@pytest.mark.fault("driver-killed-after-commit")
def test_a_watermark_goes_on_right_after_a_replay(pipeline: Pipeline, at_step: Any):
    """Spark learns how far event time has come by running the plan: a replay that did not would
    let late records in.
    """

    def feed(second: int) -> None:
        pipeline.feed([(b"", b"%d" % second)])

    feed(100)
    pipeline.run(windows, mode="update")
    feed(200)  # the watermark is 190 from here on
    at_step(events.FINISH, "started", RuntimeError("the driver dies here"))
    pipeline.failing_run(windows, mode="update")
    pipeline.run(windows, mode="update")
    feed(105)  # too late
    feed(205)
    pipeline.run(windows, mode="update")
    found = sorted((message.key(), message.value()) for message in pipeline.visible())
    assert found == [(b"100", b"1"), (b"200", b"1"), (b"200", b"2")]


def test_a_replay_in_which_the_plan_itself_fails_is_tried_again_at_the_next_start(
    pipeline: Pipeline, at_step: Any
):
    pipeline.feed(40)
    pipeline.run()
    pipeline.forget_commit()
    at_step(events.REPLAY, "started", RuntimeError("not now"))
    pipeline.failing_run()
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)
    assert len(pipeline.appended()) == 40


@pytest.mark.fault("offsets-expired", "driver-killed-after-commit")
def test_a_committed_batch_whose_source_has_expired(pipeline: Pipeline):
    """Without state there is nothing to repeat, and nothing is lost: the query goes on."""
    pipeline.feed(40)
    pipeline.run()
    pipeline.forget_commit()
    pipeline.feed(10)
    expire(pipeline, pipeline.source, {0: 20, 1: 20})
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=2)
