"""Whoever took the pipeline id last may write; whoever had it before stops, for good, and nothing
of it is seen.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from streaming_pipeline import Pipeline

from onceward import events
from onceward.errors import Fenced, UnsupportedQuery
from onceward.ids import BatchId, SourceRange
from onceward.kafka.sink.sink import KafkaTarget
from onceward.spark.batch.query import RunningBatch

A_BATCH = RunningBatch(
    BatchId("3b6c0de1-0000-4000-8000-000000000001", 0),
    "run",
    "",
    (SourceRange(0, 10),),
    (),
    False,
    None,
)


def take_over(pipeline: Pipeline) -> None:
    """A stranger with the same transactional id: any other client will do."""
    stranger = Producer(
        {"bootstrap.servers": pipeline.bootstrap, "transactional.id": pipeline.name}
    )
    stranger.init_transactions(60)


@pytest.mark.parametrize(
    "moment", ["plan started", "check started", "ledger started", "commit started"]
)
def test_a_takeover_in_the_middle_of_a_batch(
    any_pipeline: Pipeline, at_step: Any, steps: list[Any], moment: str
):
    any_pipeline.feed(80)
    step, phase = moment.split()
    at_step(step, phase, lambda _: take_over(any_pipeline), nth=2)
    error = any_pipeline.refused()
    assert type(error) is Fenced
    assert any_pipeline.name in error.message
    planned = [e.ids["batch_id"] for e in steps if (e.step, e.phase) == (events.PLAN, "started")]
    assert planned == [0, 1], "a fenced batch must not be tried again"
    assert len(any_pipeline.visible()) == any_pipeline.ledger()[0]["records"]
    assert len(any_pipeline.ledger()) == 1
    assert any_pipeline.open_transactions() == []
    any_pipeline.run()  # on purpose: the operator decided which copy is the right one
    any_pipeline.assert_exactly_once(ledger_records=2)


def test_a_takeover_between_two_batches(any_pipeline: Pipeline, at_step: Any):
    any_pipeline.feed(80)
    at_step(events.FINISH, "started", lambda _: take_over(any_pipeline))
    assert type(any_pipeline.refused()) is Fenced
    assert len(any_pipeline.ledger()) == 1
    any_pipeline.run()
    any_pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.fault("same-id-twice")
def test_a_second_copy_of_the_job_takes_over_and_the_first_stops(
    any_pipeline: Pipeline, at_step: Any
):
    """As when a scheduler starts a job that it believes dead. (Spark itself refuses it within one
    process, so that here only the second copy's target is at work; whole processes are tested
    elsewhere.)
    """
    any_pipeline.feed(40)
    second: list[KafkaTarget] = []

    def start_the_second(_: events.Event) -> None:
        second.append(KafkaTarget(any_pipeline.sink().settings))
        second[0].open(A_BATCH)

    at_step(events.CHECK, "finished", start_the_second)
    error = any_pipeline.refused()
    assert type(error) is Fenced
    assert "pipeline_id" in error.next_step
    assert any_pipeline.visible() == []
    second[0].close()
    any_pipeline.run()
    any_pipeline.assert_exactly_once(ledger_records=1)


@pytest.mark.fault("ids-mixed-up")
def test_a_second_query_with_the_same_sink_object_is_refused_and_the_first_goes_on(
    pipeline: Pipeline,
):
    pipeline.feed(20)
    sink = pipeline.sink()
    first = pipeline.start(sink=sink, trigger={"processingTime": "0 seconds"})
    for _ in range(600):
        if pipeline.ledger():
            break
        first.awaitTermination(0.2)
    second_id = pipeline.checkpoint.with_name("second")
    error = pipeline.refused(sink=sink, checkpoint=second_id)
    assert type(error) is UnsupportedQuery
    assert "pipeline_id" in error.next_step
    pipeline.feed(20)
    first.processAllAvailable()
    first.stop()
    # in however many batches: the second twenty are not fed in one step
    pipeline.assert_exactly_once()
    records = len(pipeline.ledger())
    pipeline.feed(20)
    pipeline.run(sink=sink)  # a later run of the first query takes the sink over
    pipeline.assert_exactly_once(ledger_records=records + 1)
