"""``delivery="at_least_once"`` and ``"none"``: everything is written, without transaction, ledger
or admission.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from streaming_pipeline import Pipeline, source_records
from topic_operations import delete

from fault_table import fired
from onceward.errors import InvalidColumn, PartitionMissing, RecordTooLarge, TopicMissing
from onceward_testing.topic_reader import end_offsets

WEAKER = pytest.mark.parametrize("delivery", ["at_least_once", "none"])


@WEAKER
def test_all_records_are_written_without_a_transaction(any_pipeline: Pipeline, delivery: str):
    any_pipeline.feed(80)
    any_pipeline.run(delivery=delivery)
    any_pipeline.feed(40)
    any_pipeline.run(delivery=delivery, driver_records=0)
    assert Counter(source_records(any_pipeline.visible())) == Counter(any_pipeline.fed)
    ends = end_offsets(any_pipeline.bootstrap, any_pipeline.output, "read_uncommitted")
    assert sum(ends.values()) == 120, "a transaction marker takes an offset"
    assert (
        sum(
            end_offsets(
                any_pipeline.bootstrap, any_pipeline.ledger_topic, "read_uncommitted"
            ).values()
        )
        == 0
    )


@WEAKER
def test_a_batch_that_runs_again_is_written_again(pipeline: Pipeline, delivery: str):
    """The difference to exactly-once, seen: these modes promise no more than Spark's own sink."""
    pipeline.feed(40)
    pipeline.run(delivery=delivery)
    pipeline.forget_commit()
    pipeline.run(delivery=delivery)
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed + pipeline.fed)


@pytest.mark.lengthy("chaos")
def test_a_topic_that_was_deleted_meanwhile_is_created_again(pipeline: Pipeline):
    """By the sink that has created it before, as soon as a batch has missed it."""
    pipeline.feed(20)
    sink = pipeline.sink(delivery="at_least_once", create_topic_partitions=3)
    pipeline.run(sink=sink)
    delete(pipeline, pipeline.output)
    pipeline.feed(20)
    assert isinstance(pipeline.refused(sink=sink), TopicMissing)
    pipeline.run(sink=sink)
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed[20:])


def test_tasks_of_one_worker_are_one_producer(pipeline: Pipeline):
    """Brokers remember each producer of a partition for a day: one a task slot, not one a task."""
    pipeline.feed(100)
    query = pipeline.run(
        delivery="at_least_once", frame=pipeline.frame(max_offsets_per_trigger=10)
    )
    assert query.lastProgress is not None
    assert query.lastProgress.batchId == 9, "INVALID: not so many batches"
    producers = set()
    for partition in range(3):
        told = pipeline.kafka.kafka_tool(
            "kafka-transactions",
            "describe-producers",
            "--topic",
            pipeline.output,
            "--partition",
            str(partition),
        )
        producers |= {line.split()[0] for line in told.strip().splitlines()[1:]}
    slots = pipeline.spark.sparkContext.defaultParallelism
    assert 0 < len(producers) <= 2 * slots, "a worker may end, and another one come"
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed)


@WEAKER
def test_a_batch_that_could_not_be_sent_is_sent_again(pipeline: Pipeline, delivery: str):
    """Its error says so, and the query goes on."""
    pipeline.feed(20)
    pipeline.job_servers = pipeline.kafka.proxied_servers
    fault = pipeline.kafka.proxy.on("Produce", times=4).drop_request()
    options = {"delivery.timeout.ms": 2_000, "request.timeout.ms": 900}
    try:
        pipeline.run(delivery=delivery, options=options)
    finally:
        pipeline.kafka.proxy.heal()
    fired(fault.fired == 4, f"{fault.fired} of 4")
    assert set(source_records(pipeline.visible())) == set(pipeline.fed)


@WEAKER
@pytest.mark.parametrize(
    ("expressions", "options", "kind"),
    [
        (["key"], {}, InvalidColumn),
        (["'v' AS value", "99 AS partition"], {}, PartitionMissing),
        (["'v' AS value"], {"topic": "topic-that-is-not-there"}, TopicMissing),
        (
            ["repeat('x', 200000) AS value"],
            {"options": {"max.request.size": 100_000, "batch.size": 50_000}},
            RecordTooLarge,
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_errors_keep_their_type(
    pipeline: Pipeline,
    delivery: str,
    expressions: list[str],
    options: dict[str, Any],
    kind: type[Exception],
):
    pipeline.feed(10)
    error = pipeline.refused(
        lambda rows: rows.selectExpr(*expressions), delivery=delivery, **options
    )
    assert type(error) is kind
