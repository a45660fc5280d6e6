"""Checkpoint and ledger tell different stories: the query stops and says so, and writes
nothing.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from streaming_pipeline import Pipeline, copy, source_records

from onceward import events
from onceward.errors import CheckpointReplaced, CheckpointRewound, LedgerBehind
from onceward_testing.topic_reader import end_offsets


def everything_appended(pipeline: Pipeline) -> dict[str, dict[int, int]]:
    """The ends of output and ledger: any record or marker written since moves one of them."""
    return {
        topic: end_offsets(pipeline.bootstrap, topic, "read_uncommitted")
        for topic in (pipeline.output, pipeline.ledger_topic)
    }


@pytest.fixture
def ran(any_pipeline: Pipeline) -> Pipeline:
    """A pipeline that has written two batches, with more to read."""
    any_pipeline.feed(80)
    any_pipeline.run()
    assert len(any_pipeline.ledger()) == 2
    any_pipeline.feed(40)
    return any_pipeline


def delete_topic(pipeline: Pipeline, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    admin.delete_topics([name], operation_timeout=30)[name].result(30)


@pytest.mark.fault("checkpoint-deleted")
def test_a_deleted_checkpoint_is_refused_and_the_ledger_is_a_way_on(ran: Pipeline):
    ends = everything_appended(ran)
    ran.lose_checkpoint()
    error = ran.refused()
    assert type(error) is CheckpointReplaced
    assert 'resume="ledger" of the sink and kafka_source(starting="ledger"' in error.next_step
    assert error.details["ledger_batch_id"] == 1
    assert everything_appended(ran) == ends

    ran.lose_checkpoint()
    options: dict[str, Any] = {
        "starting": "ledger",
        "pipeline_id": ran.name,
        "ledger_topic": ran.ledger_topic,
    }
    ran.run(frame=ran.frame(**options), resume="ledger")
    ran.assert_exactly_once(ledger_records=3)
    assert len({record["query_id"] for record in ran.ledger()}) == 2
    ran.feed(40)
    ran.run(
        frame=ran.frame(**options), resume="ledger"
    )  # may stay: from now on the checkpoint is the newest
    ran.feed(20)
    ran.run()  # or may go
    ran.assert_exactly_once()


@pytest.mark.fault("checkpoint-deleted")
def test_resuming_from_the_ledger_with_another_start_is_refused(ran: Pipeline):
    ends = everything_appended(ran)
    ran.lose_checkpoint()
    error = ran.refused(
        resume="ledger"
    )  # the source starts at the earliest offset: all would come twice
    assert type(error) is CheckpointReplaced
    assert 'kafka_source(starting="ledger"' in error.next_step
    assert everything_appended(ran) == ends


@pytest.mark.fault("ledger-deleted")
def test_a_deleted_ledger_is_refused(ran: Pipeline):
    delete_topic(ran, ran.ledger_topic)
    ends = end_offsets(ran.bootstrap, ran.output, "read_uncommitted")
    error = ran.refused()
    assert type(error) is LedgerBehind
    assert 'resume="adopt"' in error.next_step
    assert end_offsets(ran.bootstrap, ran.output, "read_uncommitted") == ends


@pytest.mark.fault("two-on-one-checkpoint")
def test_a_pipeline_id_that_was_changed_on_an_old_checkpoint_is_refused(pipeline: Pipeline):
    pipeline.feed(80)
    pipeline.run()
    pipeline.feed(40)
    error = pipeline.refused(pipeline_id=f"{pipeline.name}-renamed")
    assert type(error) is LedgerBehind
    assert len(pipeline.appended()) == 80


@pytest.mark.fault("ids-mixed-up")
def test_two_queries_with_one_pipeline_id_are_told_apart(ran: Pipeline):
    ends = everything_appended(ran)
    error = ran.refused(checkpoint=ran.checkpoint.with_name("another-checkpoint"))
    assert type(error) is CheckpointReplaced
    assert "pipeline_id of its own" in error.next_step
    assert everything_appended(ran) == ends


def test_a_pipeline_moves_over_from_sparks_own_sink(any_pipeline: Pipeline):
    any_pipeline.feed(60)
    query = (
        copy(any_pipeline.frame())
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", any_pipeline.bootstrap)
        .option("topic", any_pipeline.output)
        .option("checkpointLocation", str(any_pipeline.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    any_pipeline.feed(60)
    assert type(any_pipeline.refused()) is LedgerBehind
    assert any_pipeline.ledger() == []
    any_pipeline.run(resume="adopt")
    any_pipeline.feed(30)
    any_pipeline.run()
    assert Counter(source_records(any_pipeline.visible())) == Counter(any_pipeline.fed)
    chain = any_pipeline.ledger()
    assert [record["sequence"] for record in chain] == list(range(len(chain)))
    assert sum(record["records"] for record in chain) == 90


def test_adopt_does_not_open_an_existing_ledger_to_another_checkpoint(ran: Pipeline):
    ran.lose_checkpoint()
    assert type(ran.refused(resume="adopt")) is CheckpointReplaced
    assert len(ran.appended()) == 80


@pytest.mark.fault("checkpoint-restored")
def test_an_older_copy_of_the_checkpoint_is_refused(any_pipeline: Pipeline):
    old_copy = any_pipeline.checkpoint.with_name("older-copy")
    any_pipeline.feed(80)
    any_pipeline.run()
    shutil.copytree(any_pipeline.checkpoint, old_copy)
    any_pipeline.feed(80)
    any_pipeline.run()
    any_pipeline.feed(10)  # what batch 2 of the old copy would span is not what batch 2 was
    any_pipeline.lose_checkpoint()
    shutil.copytree(old_copy, any_pipeline.checkpoint)
    ends = everything_appended(any_pipeline)
    error = any_pipeline.refused(frame=any_pipeline.frame(max_offsets_per_trigger=7))
    assert type(error) is CheckpointRewound
    assert everything_appended(any_pipeline) == ends


@pytest.mark.fault("checkpoint-restored")
def test_a_checkpoint_one_batch_old_that_would_cut_the_batch_elsewhere_is_refused(
    pipeline: Pipeline,
):
    """The same batch id, other offsets: taking it for a replay would lose what lies between."""
    old_copy = pipeline.checkpoint.with_name("older-copy")
    pipeline.feed(40)
    pipeline.run()
    shutil.copytree(pipeline.checkpoint, old_copy)
    pipeline.feed(10)
    pipeline.run()
    pipeline.feed(10)
    pipeline.lose_checkpoint()
    shutil.copytree(old_copy, pipeline.checkpoint)
    error = pipeline.refused()
    assert type(error) is CheckpointRewound
    assert "offsets differ" in error.message
    assert len(pipeline.appended()) == 50


@pytest.mark.fault("ids-mixed-up")
def test_a_start_that_is_refused_does_not_disturb_the_one_that_runs(
    any_pipeline: Pipeline, steps: list[events.Event]
):
    """Refusal comes before fencing: a wrong start must not take a healthy pipeline down."""
    any_pipeline.feed(40)
    query = any_pipeline.start(trigger={"processingTime": "0 seconds"})
    wait_for_records(any_pipeline, query, 40)
    error = any_pipeline.refused(checkpoint=any_pipeline.checkpoint.with_name("wrong-checkpoint"))
    assert type(error) is CheckpointReplaced
    any_pipeline.feed(40)
    wait_for_records(any_pipeline, query, 80)
    assert query.isActive
    query.stop()
    any_pipeline.assert_exactly_once()
    epochs = [record["attempt"][1] for record in any_pipeline.ledger()]
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))
    assert len([e for e in steps if (e.step, e.phase) == (events.OPEN, "finished")]) == 1


def wait_for_records(pipeline: Pipeline, query: Any, count: int) -> None:
    for _ in range(600):
        if len(pipeline.visible()) >= count:
            return
        assert query.isActive, query.exception()
        query.awaitTermination(0.2)
    raise AssertionError(f"only {len(pipeline.visible())} records are visible")


@pytest.mark.fault("checkpoint-deleted")
def test_a_stateful_query_on_a_new_checkpoint_is_refused_like_any_other(pipeline: Pipeline):
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")

    pipeline.feed(20)
    pipeline.run(counts, mode="update")
    pipeline.lose_checkpoint()
    assert type(pipeline.refused(counts, mode="update")) is CheckpointReplaced


def _from_the_ledger(pipeline: Pipeline) -> dict[str, Any]:
    """Options of a start behind a lost checkpoint."""
    where = {"pipeline_id": pipeline.name, "ledger_topic": pipeline.ledger_topic}
    pipeline.lose_checkpoint()
    return {"frame": pipeline.frame(starting="ledger", **where), "resume": "ledger"}


def test_state_is_found_in_a_plan_whose_text_spark_cuts_off(
    pipeline: Pipeline, spark: SparkSession
):
    """Some set the limit because texts of large plans fill the driver's memory."""

    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")

    spark.conf.set("spark.sql.maxPlanStringLength", "100")
    try:
        pipeline.feed(20)
        pipeline.run(counts, mode="update")
        pipeline.feed(20)
        error = pipeline.refused(counts, mode="update", **_from_the_ledger(pipeline))
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")
    assert type(error) is CheckpointReplaced
    assert "state" in error.message
