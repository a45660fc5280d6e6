"""A driver dies with its ``EndTxn`` still on its way; its successor is long done when it
arrives.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pipeline_audit import audit, audit_epochs
from pipeline_runs import Pipeline

from fault_table import fired
from onceward_testing import LocalKafka

INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED = 47, 48, 90

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.fault("end-txn-late", "driver-killed-before-end-txn")
@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_the_commit_of_a_dead_driver_is_refused(
    version: str, new_pipeline: Callable[..., Pipeline]
):
    with LocalKafka(version=version, proxied=True) as kafka:
        pipeline = new_pipeline(kafka, max_offsets=1_000)
        pipeline.produce(3_000)
        late = kafka.proxy.on("EndTxn", nth=2).hold()
        with pipeline.job(bootstrap_servers=kafka.proxied_servers) as life:
            life.until(lambda: late.fired, "the second EndTxn")
            life.kill()
        fired(pipeline.open_partitions(), "the driver had not sent its batch")

        successor = pipeline.run_to_the_end()
        assert len(successor.steps("commit")) == 2
        before = audit(pipeline)
        late.release()
        assert late.held[0].decoded_answer().error_code in (
            INVALID_PRODUCER_EPOCH,
            INVALID_TXN_STATE,
            PRODUCER_FENCED,
        )
        after = audit(pipeline)
        audit_epochs(pipeline, after)
        assert (after.committed, after.ledger) == (before.committed, before.ledger)
        assert after.aborted_records == 1_000
