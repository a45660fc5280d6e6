"""Small batches that the driver sends itself: as exact as those of tasks, bounded, and left to
tasks when not small.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from streaming_pipeline import Pipeline, copy, source_records

import onceward
from onceward import events
from onceward.errors import BatchTimedOut, Fenced, RecordTooLarge, SendFailed
from onceward.spark.batch import job

SMALL = {"driver_records": 1_000}


@pytest.fixture
def leases(steps: list[events.Event]) -> Any:
    """How many leases there were: the driver needs none."""
    return lambda: sum((event.step, event.phase) == (events.LEASE, "started") for event in steps)


def test_no_task_leases_anything(any_pipeline: Pipeline, leases: Any):
    any_pipeline.feed(100)
    any_pipeline.run(**SMALL)
    any_pipeline.feed(100)
    any_pipeline.run(**SMALL)
    any_pipeline.assert_exactly_once(ledger_records=6)
    assert leases() == 0
    any_pipeline.feed(100)
    any_pipeline.run()
    any_pipeline.assert_exactly_once(ledger_records=9)
    assert leases() > 0


def test_driver_and_tasks_share_the_sequences(any_pipeline: Pipeline, leases: Any):
    """One transaction, one sequence a partition: driver, tasks, driver, tasks."""
    any_pipeline.feed(40)
    sink = any_pipeline.sink(driver_records=1_000, driver_bytes=1_000)

    def four(frame: DataFrame, batch_id: int) -> None:
        numbered = frame.selectExpr("partition", "offset", "key")
        with sink.batch(frame, batch_id) as batch:
            for size in (
                10,
                70_000,
                10,
                70_000,
            ):  # what is too large for the driver goes to tasks, and so does the next
                batch.write(
                    numbered.selectExpr("key", f"REPEAT('x', {size}) AS value").where(
                        "offset < 10"
                    )
                )

    query = any_pipeline.frame().writeStream.foreachBatch(four)
    query = (
        query.option("checkpointLocation", str(any_pipeline.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert any_pipeline.ended(query) == ""
    sizes = Counter(len(message.value()) for message in any_pipeline.visible())
    assert sizes == {10: 40, 70_000: 40}
    assert leases() > 0
    (record,) = any_pipeline.ledger()
    assert [written for _, written in record["writes"]] == [20, 20, 20, 20]


@pytest.mark.parametrize("why", ["rows", "bytes"])
def test_more_than_expected_goes_to_tasks(
    pipeline: Pipeline, leases: Any, steps: list[events.Event], why: str
):
    pipeline.feed(40)

    def more(rows: DataFrame) -> DataFrame:
        if why == "bytes":
            return (
                rows.selectExpr("key", "REPEAT('x', 70000) AS value", "offset")
                .where("offset = 0")
                .drop("offset")
            )
        return rows.selectExpr("key", "EXPLODE(SEQUENCE(1, 1000)) AS n").selectExpr(
            "key", "CAST(n AS STRING) AS value"
        )

    pipeline.run(more, driver_records=100, driver_bytes=2_000)
    assert len(pipeline.visible()) == {"rows": 40_000, "bytes": 2}[why]
    assert leases() > 0
    assert [e.phase for e in steps if e.step == events.COMMIT] == ["started", "finished"]


def test_more_than_spark_gives_a_driver_goes_to_tasks(pipeline: Pipeline, leases: Any):
    """By ``spark.driver.maxResultSize``, of all tasks of a job together."""
    pipeline.feed(40)
    conf = pipeline.spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", "100k")
    try:
        pipeline.run(lambda rows: rows.selectExpr("key", "REPEAT('x', 9000) AS value"), **SMALL)
    finally:
        conf.remove("spark.driver.maxResultSize")
    assert len(pipeline.visible()) == 40
    assert leases() > 0


@pytest.mark.parametrize("path", [job.to_arrow, job.collect])
def test_a_query_that_is_stopped_ends_a_job_of_any_group(
    spark: SparkSession, tmp_path: Path, path: Any
):
    """Spark ends those of its own; a user's function may set another."""
    ended, began = [], threading.Event()

    def function(frame: DataFrame, _: int) -> None:
        session = frame.sparkSession
        session.sparkContext.setJobGroup("nightly", "by the function")
        began.set()
        asleep = "reflect('java.lang.Thread', 'sleep', 60000L)"
        try:
            path(session.range(1).selectExpr(asleep), lambda: None)
        except BaseException as error:
            ended.append((type(error), time.monotonic() - stopped_at))
            raise

    rates = spark.readStream.format("rate").load().writeStream.foreachBatch(function)
    query = rates.option("checkpointLocation", str(tmp_path)).start()
    assert began.wait(60)
    time.sleep(1)
    stopped_at = time.monotonic()
    query.stop()
    ((kind, seconds),) = ended
    assert kind is job.JobInterrupted
    assert seconds < 30


def test_headers_partitions_timestamps_and_topics(pipeline: Pipeline, leases: Any):
    other = pipeline.topic(2)
    pipeline.feed(60)

    def everything(rows: DataFrame) -> DataFrame:
        return rows.selectExpr(
            "CAST(key AS STRING) AS key",
            "IF(offset % 5 = 0, NULL, value) AS value",
            f"IF(offset % 2 = 0, '{pipeline.output}', '{other}') AS topic",
            "IF(offset % 3 = 0, 1, NULL) AS partition",
            "ARRAY(STRUCT('at' AS key, CAST(CAST(offset AS STRING) AS BINARY) AS value)) AS "
            "headers",
            "TIMESTAMP_MILLIS(1600000000000 + offset) AS timestamp",
            "offset",
        ).drop("offset")

    found = []
    for records in (1_000, 0):
        checkpoint = pipeline.checkpoint / str(records)
        name = f"{pipeline.name}-{records}"
        pipeline.run(
            everything, topic=None, pipeline_id=name, checkpoint=checkpoint, driver_records=records
        )
        assert (leases() == 0) is (records > 0)
        messages = [*pipeline.visible(), *pipeline.visible(other)]
        found.append(
            Counter(
                (m.topic(), m.key(), m.value(), str(m.headers()), m.timestamp()) for m in messages
            )
        )
    assert found[0].total() == 60
    assert found[1] == found[0] + found[0]


def test_an_attempt_that_fails_while_the_driver_sends(
    any_pipeline: Pipeline, at_step: Any, steps: list[events.Event]
):
    any_pipeline.feed(40)
    at_step(events.CHECK, "started", SendFailed("on purpose"))
    any_pipeline.run(**SMALL)
    any_pipeline.assert_exactly_once(ledger_records=1)
    assert len(any_pipeline.appended()) == 80
    assert (
        len({e.ids["epoch"] for e in steps if (e.step, e.phase) == (events.SEND, "finished")}) == 2
    )


def test_a_takeover_before_the_driver_sends(any_pipeline: Pipeline, at_step: Any):
    any_pipeline.feed(40)

    def take_over(_: events.Event) -> None:
        from onceward.kafka.wire.client import KafkaClient
        from onceward.kafka.wire.transactions.transaction import Transaction

        client = KafkaClient(any_pipeline.sink().settings.client)
        Transaction(client, any_pipeline.name, 60_000).take_over()
        client.close()

    at_step(events.SEND, "started", take_over)
    assert type(any_pipeline.refused(**SMALL)) is Fenced
    assert any_pipeline.visible() == []


def test_records_too_large_are_named(pipeline: Pipeline):
    pipeline.feed(4)
    error = pipeline.refused(
        lambda rows: rows.selectExpr("REPEAT('x', 30000) AS value"),
        options={"max.request.size": 20_000, "batch.size": 10_000},
        **SMALL,
    )
    assert type(error) is RecordTooLarge
    assert pipeline.output in error.message


@pytest.mark.lengthy("chaos")
def test_a_plan_that_takes_too_long_is_cancelled(pipeline: Pipeline):
    from pyspark.sql.functions import udf

    @udf("binary")
    def slow(value: bytes) -> bytes:
        time.sleep(60)
        return bytes(value)

    pipeline.feed(4)
    error = pipeline.refused(
        lambda rows: rows.withColumn("value", slow("value")).select("key", "value"),
        batch_timeout_s=3,
        batch_attempts=1,
        **SMALL,
    )
    assert type(error) is BatchTimedOut
    pipeline.run(**SMALL)
    pipeline.assert_exactly_once(ledger_records=1)


@pytest.mark.lengthy("chaos")
def test_a_users_slow_function_keeps_its_tasks(pipeline: Pipeline, leases: Any, tmp_path: Any):
    """Each of the plan's tasks waits for the other: one after the other they would wait for
    ever.
    """
    import os

    from pyspark.sql.functions import udf

    folder = str(tmp_path)

    @udf("binary")
    def together(value: bytes, partition: int) -> bytes:
        open(os.path.join(folder, str(partition)), "w").close()
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(folder, str(1 - partition))):
            assert time.monotonic() < deadline, "the other task never ran"
            time.sleep(0.05)
        return bytes(value)

    pipeline.feed(10)
    pipeline.run(
        lambda rows: copy(rows.withColumn("value", together("value", "partition"))), **SMALL
    )
    pipeline.assert_exactly_once(ledger_records=1)
    assert leases() == 0


def test_empty_batches_and_replays(pipeline: Pipeline, leases: Any):
    pipeline.feed(40)
    pipeline.run(lambda rows: copy(rows).where("value IS NULL"), **SMALL)
    assert [record["records"] for record in pipeline.ledger()] == [0]
    pipeline.feed(10)
    pipeline.run(**SMALL)
    pipeline.forget_commit()
    pipeline.run(**SMALL)
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed[40:])
    assert leases() == 0


@pytest.mark.parametrize("wrong", [{"driver_records": -1}, {"driver_bytes": "4 MiB"}])
def test_bounds_are_checked(wrong: dict[str, Any]):
    with pytest.raises(onceward.errors.ConfigurationError, match=next(iter(wrong))):
        onceward.KafkaSink(
            bootstrap_servers="nowhere:9092", topic="out", pipeline_id="bounds", **wrong
        )
