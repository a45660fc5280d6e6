"""Every workload without a fault: what comes out is what its model says, and the models are worth
something.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pipeline_audit import audit, output_rows
from pipeline_models import balance, late_and_dropped
from pipeline_runs import Pipeline

from fault_table import fired
from onceward_testing import LocalKafka

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("query", ["fanout", "windows", "transfers"])
def test_what_comes_out_is_what_the_model_says(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline], query: str
):
    pipeline = new_pipeline(kafka, query=query, max_offsets=2_000)
    pipeline.produce(8_000, close_windows=query == "windows")
    pipeline.run_to_the_end()
    found = audit(pipeline)
    assert len(found.committed) > 100
    if query == "windows":
        fired(
            late_and_dropped(found.source, found.ledger, pipeline.source) > 100,
            "no record came too late",
        )
    if query == "transfers":
        assert len(found.committed) == 16_000
        assert balance(output_rows(pipeline)) == 0
