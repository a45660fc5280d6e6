"""The driver is killed with SIGKILL at every point of a batch that matters, and started again on its checkpoint."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from pipeline_audit import audit, audit_epochs, output_rows
from pipeline_runs import Pipeline

from onceward.testing import LocalKafka

pytestmark = pytest.mark.timeout(1_800)


@pytest.mark.parametrize(("cluster", "query"), [("kafka", "copy"), ("kafka39", "counts")])
def test_a_driver_killed_anywhere_comes_back_without_losing_or_repeating_a_record(
    request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline], cluster: str, query: str
):
    pipeline = new_pipeline(request.getfixturevalue(cluster), query=query, max_offsets=2_000)
    pipeline.produce(8_000)

    def visible_after_a_kill(moment: str) -> int:
        pipeline.run(f"{moment}:kill").must_have_been_killed()
        return len(output_rows(pipeline))

    assert visible_after_a_kill("lease:finished:5") == 0  # batch 0, some of its partitions written
    assert visible_after_a_kill("open:finished:1") == 0  # the producer id taken over, the ledger read
    one_batch = visible_after_a_kill("send:finished:2")  # batch 0 committed; batch 1 sent
    assert one_batch > 0
    assert visible_after_a_kill("offsets:finished:1") == one_batch  # batch 1 again, with its offsets
    assert visible_after_a_kill("ledger:finished:1") == one_batch  # … and its ledger record
    two_batches = visible_after_a_kill("commit:finished:1")  # committed, and not in Spark's commit log
    assert two_batches > one_batch

    last = pipeline.run_to_the_end()
    found = audit(pipeline)
    audit_epochs(pipeline, found)
    assert found.batches == 4
    batch_1 = two_batches - one_batch
    assert found.aborted_records > 3 * batch_1, "INVALID: too few aborted attempts, what was killed?"
    assert found.aborted_records < 3 * batch_1 + one_batch

    (replayed,) = last.steps("replay")
    assert replayed.ids["batch_id"] == 1
    sent = [lease.at for lease in last.steps("lease", "started")]
    assert min(sent) > replayed.at, "a replay must send nothing"


@pytest.mark.slow
def test_a_driver_killed_at_random_moments_comes_back_without_losing_or_repeating_a_record(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    seed = random.randrange(1_000_000)
    print("seed", seed)  # noqa: T201  pytest shows it when the test fails
    moments = random.Random(seed)
    pipeline = new_pipeline(any_kafka, query="counts", seconds=0.1, max_offsets=400)
    for _ in range(6):
        pipeline.produce(4_000)
        with pipeline.job() as life:
            life.until(lambda life=life: life.steps("open"), "the first batch")
            time.sleep(moments.uniform(0, 4))
            life.kill()
    pipeline.run_to_the_end(seconds=None, max_offsets=4_000)
    found = audit(pipeline)
    audit_epochs(pipeline, found)
