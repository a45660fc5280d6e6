"""``ow.checkpointing`` in a real query: pauses, retained logs, and a timeout that the broker does
not allow; and a job that ends at a batch boundary.
"""

from __future__ import annotations

import time

import pytest
from streaming_pipeline import Pipeline
from topic_operations import until

import onceward as ow
from onceward import events
from onceward.engine.calls import gate
from onceward.errors import TransactionTimeoutTooLarge
from onceward.operate import stopping
from onceward.spark.batch import progress


@pytest.mark.lengthy("chaos")
def test_batches_keep_the_pause_and_the_checkpoint_keeps_what_is_retained(pipeline: Pipeline):
    checkpoints = ow.checkpointing(min_pause="700 ms", timeout="3 min", retain=2)
    ends: list[tuple[str, float]] = []

    def note(event: events.Event) -> None:
        if (event.step, event.phase) in ((events.ADMIT, "started"), (events.FINISH, "finished")):
            ends.append((event.step, time.monotonic()))

    pipeline.feed(320)
    stop = events.probe(note)
    before = {name: pipeline.spark.conf.get(name) for name in checkpoints.spark_conf}
    try:
        for name, value in checkpoints.spark_conf.items():
            pipeline.spark.conf.set(name, value)
        pipeline.run(checkpointing=checkpoints)
    finally:
        stop()
        for name, value in before.items():
            pipeline.spark.conf.set(name, str(value))
    pipeline.assert_exactly_once()
    times = [moment for _, moment in ends]
    pauses = [begun - ended for ended, begun in zip(times[1::2], times[2::2], strict=False)]
    assert len(pauses) == 7
    assert all(0.7 <= pause < 20 for pause in pauses), pauses
    logged = [file for file in (pipeline.checkpoint / "commits").iterdir() if file.name.isdigit()]
    assert len(logged) <= 4, "two are retained, and one or two are on their way out"


def test_a_timeout_that_the_broker_does_not_allow_is_refused_by_both_names(pipeline: Pipeline):
    pipeline.feed(10)
    error = pipeline.refused(checkpointing=ow.checkpointing(timeout="20 min"))
    assert type(error) is TransactionTimeoutTooLarge
    assert "transaction.timeout.ms=1260000" in error.message
    assert "transaction.max.timeout.ms=900000" in error.message
    assert "timeout=1200 s of ow.checkpointing" in error.message
    assert "lower timeout= of ow.checkpointing" in error.next_step
    pipeline.run(checkpointing=ow.checkpointing(timeout="14 min"))
    pipeline.assert_exactly_once()


def test_a_stop_ends_a_pause(pipeline: Pipeline):
    pipeline.feed(80)
    query = pipeline.start(checkpointing=ow.checkpointing(min_pause="1 h"))
    until(lambda: len(pipeline.visible()) >= 40, query, "no batch came")
    time.sleep(1)
    stopped_at = time.monotonic()
    query.stop()
    assert time.monotonic() - stopped_at < 20
    assert query.exception() is None
    pipeline.run()
    pipeline.assert_exactly_once()


def test_a_query_is_stopped_at_a_boundary_by_a_closed_gate(pipeline: Pipeline):
    """What SIGTERM does, without a signal: this process goes on."""
    pipeline.feed(200)
    began: list[int] = []

    def close(event: events.Event) -> None:
        if (event.step, event.phase) == (events.SEND, "started"):
            began.append(int(event.ids["batch_id"]))
            if len(began) == 2:
                gate.close()
                time.sleep(1)

    stop = events.probe(close)
    query = pipeline.start(trigger=ow.checkpointing().trigger)
    seen: dict[str, object] = {}
    try:
        until(lambda: gate.holds(str(query.runId)), query, "no batch is held")
        assert progress.newest_batches()[str(query.runId)] == 2, "Spark has begun it"
        [running] = [one for one in stopping._running() if one.runId == query.runId]
        assert stopping._is_at_boundary(running, seen) is False, "the trigger of batch 2 is active"
        stopping._stop(running)
        assert ow.wait(query, timeout_s=60)
    finally:
        stop()
        gate.close(False)
    assert began == [0, 1]
    assert (pipeline.checkpoint / "commits" / "1").exists()
    assert not (pipeline.checkpoint / "commits" / "2").exists()
    assert len(pipeline.visible()) == 80
    pipeline.run()
    pipeline.assert_exactly_once()
