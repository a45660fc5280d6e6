"""Two copies of one pipeline: the newer one wins, the older one stops with ``Fenced``, and nothing
of it is seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from pipeline_audit import audit, audit_epochs, output_rows
from pipeline_job import STOPPED_BY_US
from pipeline_runs import Pipeline

from onceward_testing import LocalKafka

pytestmark = pytest.mark.timeout(1_200)

EACH_VERSION = pytest.mark.parametrize("cluster", ["kafka", "kafka39"])


@pytest.mark.fault("same-id-twice")
@EACH_VERSION
def test_a_second_copy_takes_over_and_the_first_stops_fenced(
    request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline], cluster: str
):
    pipeline = new_pipeline(request.getfixturevalue(cluster), max_offsets=2_000)
    pipeline.produce(6_000)
    with pipeline.job(hold="ledger") as first:  # alive and well, its first batch ready to commit
        first.until(lambda: first.steps("ledger"), "the first copy's ledger record")
        second = pipeline.run_to_the_end()
        assert len(second.steps("commit")) == 3
        seen = output_rows(pipeline)
        first.go()
        assert first.wait() == STOPPED_BY_US, first.log_tail()
    assert first.error == "Fenced"
    assert first.steps("commit") == []
    assert sorted(output_rows(pipeline), key=repr) == sorted(seen, key=repr)
    assert audit(pipeline).aborted_records == 2_000


@pytest.mark.fault("zombie-driver")
@EACH_VERSION
def test_drivers_that_were_stopped_and_come_back_as_zombies_stop_fenced(
    request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline], cluster: str
):
    pipeline = new_pipeline(request.getfixturevalue(cluster), max_offsets=2_000)
    pipeline.produce(6_000)
    with pipeline.job("lease:finished:5:stop") as mid_send:
        mid_send.until_fired()
        with pipeline.job("commit:started:2:stop") as before_end_txn:
            before_end_txn.until_fired()
            pipeline.run_to_the_end()
            seen = output_rows(pipeline)
            for zombie in (before_end_txn, mid_send):
                zombie.resume()
                assert zombie.wait() == STOPPED_BY_US, zombie.log_tail()
                assert zombie.error == "Fenced"
    assert len(mid_send.steps("commit")) == 0
    assert len(before_end_txn.steps("commit")) == 1
    assert sorted(output_rows(pipeline), key=repr) == sorted(seen, key=repr)
    found = audit(pipeline)
    audit_epochs(pipeline, found)
    assert 2_000 < found.aborted_records < 4_000, (
        "INVALID: one attempt was to be cut short, one complete"
    )


@pytest.mark.fault("ids-mixed-up")
def test_a_copy_with_another_checkpoint_is_refused_and_harms_nobody(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    pipeline = new_pipeline(kafka, seconds=0.5)
    pipeline.produce(1_000)
    with pipeline.job() as first:
        first.until_committed(1)
        stranger = pipeline.run(checkpoint=str(pipeline.folder / "another-checkpoint"))
        assert (stranger.status, stranger.error) == (STOPPED_BY_US, "CheckpointReplaced"), (
            stranger.log_tail()
        )
        pipeline.produce(1_000)
        first.until_committed(2)
        first.until(lambda: pipeline.lag() == 0, "lag 0")
    assert audit(pipeline).aborted_records == 0


@pytest.mark.fault("two-on-one-checkpoint")
def test_two_copies_that_race_for_one_checkpoint_neither_lose_nor_repeat_anything(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """Who wins is up to the moment, but never may both go on.

    The newer copy fences the older one; or it has read the checkpoint when the older one was
    batches further by the time it came to write, and is refused; or Spark's own offset log stops
    one of them.
    """
    pipeline = new_pipeline(any_kafka, seconds=0.3)
    pipeline.produce(1_000)
    with pipeline.job() as one, ExitStack() as late:
        one.until_committed(1)
        other = late.enter_context(pipeline.job())
        while one.status is None and other.status is None:
            pipeline.produce(200)
            time.sleep(0.1)
        loser, winner = (one, other) if one.status is not None else (other, one)
        ours = loser.error in ("Fenced", "CheckpointRewound")
        assert ours or "CONCURRENT_STREAM_LOG_UPDATE" in loser.log_tail(), loser.log_tail()
        pipeline.produce(200)
        winner.until(lambda: pipeline.lag() == 0, "lag 0")
    found = audit(pipeline)
    audit_epochs(pipeline, found)
