"""A check of the checker: one kill, two sinks. Spark's own repeats records, and the verdict must
say so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pipeline_audit import audit, output_rows
from pipeline_models import expected
from pipeline_runs import Pipeline

from onceward_testing import LocalKafka
from onceward_testing.topic_reader import end_offsets, read_topic
from onceward_testing.verdict import exactly_once

pytestmark = [pytest.mark.timeout(1_200), pytest.mark.fault("sparks-own-sink")]


def killed_while_it_sends(pipeline: Pipeline) -> None:
    """One task of the batch waits for ever; the driver is killed when the others have sent; then
    it starts again.
    """
    pipeline.produce(2_000)
    with pipeline.job(trap="hang:3:100") as life:
        life.until(lambda: appended(pipeline) >= 1_000, "half of the records appended")
        life.kill()
    pipeline.run_to_the_end()


def test_sparks_own_sink_is_reported_as_duplicating_and_as_losing_nothing(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    pipeline = new_pipeline(any_kafka, sparks_own_sink=True)
    killed_while_it_sends(pipeline)
    source = read_topic(any_kafka.bootstrap_servers, pipeline.source)
    model = expected("copy", source, [], pipeline.source, pipeline.outputs)
    verdict = exactly_once(model[pipeline.output], output_rows(pipeline))
    assert not verdict.holds
    assert sum(verdict.duplicates.values()) >= 1_000
    assert (verdict.lost, verdict.unexpected) == ({}, {})


def test_the_same_kill_does_not_make_ours_repeat_anything(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    pipeline = new_pipeline(kafka)
    killed_while_it_sends(pipeline)
    assert audit(pipeline).aborted_records >= 1_000


def appended(pipeline: Pipeline) -> int:
    return sum(
        end_offsets(pipeline.kafka.bootstrap_servers, pipeline.output, "read_uncommitted").values()
    )
