"""The driver is killed with SIGKILL at every point of a batch that matters, and started again on
its checkpoint.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from pipeline_audit import audit, audit_epochs, output_rows
from pipeline_models import balance, late_and_dropped
from pipeline_runs import Pipeline

import onceward as ow
from fault_table import fired
from onceward_testing import LocalKafka

pytestmark = pytest.mark.timeout(1_800)

# An open transaction that ends sooner than this was ended by somebody, and not by its age.
LONG_MS = 600_000
# State, too, by the file manager of ``local_disk``
ON_A_LOCAL_DISK = {
    **ow.checkpointing(local_disk=True).spark_conf,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}


@pytest.mark.lengthy("chaos")
@pytest.mark.fault(
    "driver-killed-before-init",
    "driver-killed-after-init",
    "driver-killed-mid-send",
    "driver-killed-after-send",
    "driver-killed-after-offsets",
    "driver-killed-before-end-txn",
    "driver-killed-after-commit",
)
@pytest.mark.parametrize(("cluster", "query"), [("kafka", "transfers"), ("kafka39", "counts")])
def test_a_driver_killed_anywhere_comes_back_without_losing_or_repeating_a_record(
    request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline], cluster: str, query: str
):
    options = {"transaction.timeout.ms": LONG_MS}
    pipeline = new_pipeline(
        request.getfixturevalue(cluster),
        query=query,
        max_offsets=2_000,
        options=options,
        spark=ON_A_LOCAL_DISK if query == "counts" else {},
    )
    pipeline.produce(8_000)
    began = time.monotonic()

    def visible_after_a_kill(moment: str) -> int:
        pipeline.run(f"{moment}:kill").must_have_been_killed()
        rows = output_rows(pipeline)
        if query == "transfers":
            assert balance(rows) == 0, "half a transfer is visible"
        return len(rows)

    assert visible_after_a_kill("lease:finished:5") == 0  # batch 0, some of its partitions written
    fired(left_open := pipeline.open_partitions(), "no transaction was open when the driver died")
    assert visible_after_a_kill("open:started:1") == 0  # nothing said to the coordinator yet
    fired(
        pipeline.open_partitions() == left_open,
        "the transaction ended before anybody asked for it",
    )
    assert (
        visible_after_a_kill("open:finished:1") == 0
    )  # the producer id taken over, the ledger read
    assert pipeline.open_partitions() == [], "a takeover must end what its predecessor left open"
    one_batch = visible_after_a_kill("send:finished:2")  # batch 0 committed; batch 1 sent
    assert one_batch > 0
    assert (
        visible_after_a_kill("offsets:finished:1") == one_batch
    )  # batch 1 again, with its offsets
    assert visible_after_a_kill("ledger:finished:1") == one_batch  # … and its ledger record
    two_batches = visible_after_a_kill(
        "commit:finished:1"
    )  # committed, and not in Spark's commit log
    assert two_batches > one_batch

    last = pipeline.run_to_the_end()
    fired(
        1000 * (time.monotonic() - began) < LONG_MS,
        "so slow that transactions may have ended by their age",
    )
    found = audit(pipeline)
    audit_epochs(pipeline, found)
    assert found.batches == 4
    batch_1 = two_batches - one_batch
    fired(found.aborted_records > 3 * batch_1, "too few aborted attempts, what was killed?")
    assert found.aborted_records < 3 * batch_1 + one_batch

    (replayed,) = last.steps("replay")
    assert replayed.ids["batch_id"] == 1
    sent = [lease.at for lease in last.steps("lease", "started")]
    assert min(sent) > replayed.at, "a replay must send nothing"


@pytest.mark.fault("driver-killed-mid-send")
def test_a_killed_driver_loses_and_repeats_nothing(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """The newcomer's proof: one kill."""
    pipeline = new_pipeline(any_kafka, query="transfers", max_offsets=2_000)
    pipeline.produce(4_000)
    pipeline.run("lease:finished:2:kill").must_have_been_killed()
    pipeline.run_to_the_end()
    fired(audit(pipeline).aborted_records, "nothing had been sent when the driver died")


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("driver-killed-mid-send", "driver-killed-after-commit")
def test_late_data_and_watermarks_survive_kills(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """Replays move the watermark, and windows close once, with what was in time and nothing
    else.
    """
    pipeline = new_pipeline(any_kafka, query="windows", max_offsets=2_000)
    pipeline.produce(10_000, close_windows=True)
    mid_send = pipeline.run("lease:finished:4:kill")
    mid_send.must_have_been_killed()
    pipeline.run("ledger:finished:2>commit:finished:1:kill").must_have_been_killed()
    last = pipeline.run_to_the_end()
    assert len(last.steps("replay")) == 1
    found = audit(pipeline)
    fired(found.aborted_records, "nothing had been sent when the driver died")
    fired(
        late_and_dropped(found.source, found.ledger, pipeline.source) > 100,
        "nothing came too late",
    )


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
