"""Progress that is lost or moved by hand: ledger, consumer group, both. Refused by name, or it
goes on exactly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from streaming_pipeline import Pipeline, source_records
from topic_operations import admin, commit_ledger_record, create, delete, expire, set_policy, until

import fault_table
from onceward import events
from onceward.errors import LedgerBehind
from onceward_testing.topic_reader import end_offsets


def truncate(pipeline: Pipeline) -> None:
    """As ``kafka-delete-records`` does, for which Kafka demands another clean-up policy
    meanwhile.
    """
    set_policy(pipeline, pipeline.ledger_topic, "delete")
    expire(
        pipeline,
        pipeline.ledger_topic,
        end_offsets(pipeline.bootstrap, pipeline.ledger_topic, "read_uncommitted"),
    )
    set_policy(pipeline, pipeline.ledger_topic, "compact")
    fault_table.fired(not pipeline.ledger(), "the ledger still has its records")


def replace(pipeline: Pipeline) -> None:
    delete(pipeline, pipeline.ledger_topic)
    create(pipeline, pipeline.ledger_topic, 1)
    set_policy(pipeline, pipeline.ledger_topic, "compact")


LOSSES = [
    pytest.param(
        lambda p: delete(p, p.ledger_topic),
        id="deleted",
        marks=pytest.mark.fault("ledger-deleted"),
    ),
    pytest.param(replace, id="recreated", marks=pytest.mark.fault("ledger-deleted")),
    pytest.param(truncate, id="truncated", marks=pytest.mark.fault("ledger-truncated")),
]


def appended(pipeline: Pipeline) -> dict[int, int]:
    return end_offsets(pipeline.bootstrap, pipeline.output, "read_uncommitted")


def assert_the_rest_is_exact(pipeline: Pipeline, chain_begins_at: int = 0) -> None:
    """As ``assert_exactly_once``, where the ledger's older records are gone."""
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed)
    chain = [record["sequence"] for record in pipeline.ledger()]
    assert chain == list(range(chain_begins_at, chain_begins_at + len(chain)))
    assert pipeline.open_transactions() == []


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("lose", LOSSES)
def test_a_ledger_that_is_lost_between_two_runs(
    any_pipeline: Pipeline, lose: Callable[[Pipeline], None]
):
    """Refused, whatever the checkpoint says; and begun anew where checkpoint and consumer group
    agree.
    """
    any_pipeline.feed(80)
    any_pipeline.run()
    any_pipeline.feed(40)
    lose(any_pipeline)
    ends = appended(any_pipeline)
    error = any_pipeline.refused()
    assert type(error) is LedgerBehind
    assert any_pipeline.ledger_topic in error.message
    assert 'resume="adopt"' in error.next_step
    assert appended(any_pipeline) == ends
    any_pipeline.run(resume="adopt")
    any_pipeline.run()
    assert_the_rest_is_exact(any_pipeline)


@pytest.mark.fault("ledger-deleted")
def test_a_ledger_that_is_lost_with_a_batch_that_spark_has_not_logged(
    any_pipeline: Pipeline, at_step: Any
):
    """Neither checkpoint nor ledger knows that the batch is committed; the consumer group does.
    Batch 0 is the worst: it looks like the first start of a new pipeline.
    """
    any_pipeline.feed(40)
    at_step(events.FINISH, "started", RuntimeError("the driver dies here"))
    any_pipeline.failing_run()
    replace(any_pipeline)
    for resume in ("checkpoint", "adopt"):
        error = any_pipeline.refused(resume=resume)
        assert type(error) is LedgerBehind
        assert any_pipeline.name in error.message
    assert any_pipeline.ledger() == []
    assert len(any_pipeline.appended()) == 40


@pytest.mark.fault("ledger-deleted", "checkpoint-deleted")
def test_a_ledger_that_is_lost_together_with_the_checkpoint(any_pipeline: Pipeline):
    """Not a silent start from the beginning, which would write everything again."""
    any_pipeline.feed(40)
    any_pipeline.run()
    replace(any_pipeline)
    any_pipeline.lose_checkpoint()
    error = any_pipeline.refused()
    assert type(error) is LedgerBehind
    assert "new pipeline_id" in error.next_step
    assert len(any_pipeline.appended()) == 40


@pytest.mark.parametrize("lose", LOSSES)
def test_a_ledger_that_is_lost_while_the_pipeline_runs(
    any_pipeline: Pipeline, lose: Callable[[Pipeline], None]
):
    """The pipeline still knows where it is: it writes the next record of the chain, if there is a
    topic to write to.
    """
    any_pipeline.feed(40)
    options = {
        "delivery.timeout.ms": 10_000,
        "request.timeout.ms": 5_000,
        "transaction.timeout.ms": 10_000,
    }
    query = any_pipeline.start(trigger={"processingTime": "0 seconds"}, options=options)
    until(lambda: len(any_pipeline.visible()) == 40, query, "the first records never came")
    lose(any_pipeline)
    any_pipeline.feed(40)
    if any_pipeline.ledger_topic not in topics(any_pipeline):
        error = any_pipeline.ended(query)
        assert any_pipeline.ledger_topic in error
        assert len(any_pipeline.visible()) == 40
        assert type(any_pipeline.refused()) is LedgerBehind
        return
    until(lambda: len(any_pipeline.visible()) == 80, query, "the second records never came")
    query.stop()
    any_pipeline.feed(20)
    any_pipeline.run()
    assert_the_rest_is_exact(any_pipeline, chain_begins_at=1)


def topics(pipeline: Pipeline) -> set[str]:
    return set(admin(pipeline).list_topics(timeout=10).topics)


@pytest.mark.fault("group-offsets-moved")
@pytest.mark.parametrize("to", [0, 1_000_000])
def test_group_offsets_that_somebody_moved_change_nothing(any_pipeline: Pipeline, to: int):
    """They are for watching only: checkpoint and ledger know where to go on, and put them right
    again.
    """
    any_pipeline.feed(80)
    any_pipeline.run()
    moved = [TopicPartition(any_pipeline.source, partition, to) for partition in range(2)]
    client = admin(any_pipeline)
    group = ConsumerGroupTopicPartitions(any_pipeline.name, moved)
    result = client.alter_consumer_group_offsets([group])[any_pipeline.name].result(30)
    fault_table.fired(
        all(p.offset == to and p.error is None for p in result.topic_partitions), "not moved"
    )
    any_pipeline.feed(40)
    any_pipeline.run()
    any_pipeline.assert_exactly_once()
    assert set(any_pipeline.lag().values()) == {0}


@pytest.mark.fault("ledger-truncated")
def test_a_ledger_restored_from_an_older_copy(pipeline: Pipeline, at_step: Any):
    """Its newest record is one batch old, and Spark has not logged that batch: only the consumer
    group still knows.
    """
    pipeline.feed(40)
    pipeline.run()
    (old,) = [
        m for m in pipeline.visible(pipeline.ledger_topic) if m.key() == pipeline.name.encode()
    ]
    pipeline.feed(40)
    at_step(events.FINISH, "started", RuntimeError("the driver dies here"))
    pipeline.failing_run()
    assert len(pipeline.visible()) == 80
    replace(pipeline)
    commit_ledger_record(pipeline, json.loads(old.value()))
    error = pipeline.refused()
    assert type(error) is LedgerBehind
    assert "older copy" in error.message
    assert len(pipeline.appended()) == 80
