"""A query that fails again and again under each restart strategy: pauses and end as set, and no record lost."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline

import onceward as ow
from onceward import events
from onceward.errors import BadColumn, SendFailed
from onceward.operate.restart import RestartStrategy

SHORT = 0.2


def fail_times(at_step: Any, times: int, kind: type[Exception] = SendFailed) -> None:
    """A fault that returns in each of the first ``times`` runs of the query."""
    for nth in range(1, times + 1):
        at_step(events.SEND, "started", kind("injected"), nth=nth)


class Starts:
    """Starts the pipeline's query anew each time, and knows when."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.at: list[float] = []

    def __call__(self) -> StreamingQuery:
        self.at.append(time.monotonic())
        return self._pipeline.start(batch_attempts=1)


@pytest.mark.parametrize(
    ("strategy", "times", "pauses"),
    [
        (ow.FixedDelay(attempts=3, delay_s=SHORT), 3, [SHORT, SHORT, SHORT]),
        (ow.ExponentialDelay(initial_s=SHORT, multiplier=3, jitter=0), 2, [SHORT, 3 * SHORT]),
        (ow.FailureRate(max_failures=2, interval_s=600, delay_s=SHORT), 2, [SHORT, SHORT]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_that_returns_costs_restarts_and_no_record(
    pipeline: Pipeline, at_step: Any, strategy: RestartStrategy, times: int, pauses: list[float]
):
    pipeline.feed(80)
    fail_times(at_step, times)
    starts = Starts(pipeline)
    query = ow.supervise(starts, strategy)
    assert query.exception() is None
    assert len(starts.at) == times + 1
    waited = [after - before for before, after in itertools.pairwise(starts.at)]
    assert all(seconds >= pause for seconds, pause in zip(waited, pauses, strict=True))
    pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.parametrize(
    ("strategy", "times"),
    [
        (ow.NoRestart(), 1),
        (ow.FixedDelay(attempts=1, delay_s=SHORT), 2),
        (ow.ExponentialDelay(initial_s=SHORT, attempts=1), 2),
        (ow.FailureRate(max_failures=1, interval_s=600, delay_s=SHORT), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_strategy_gives_up_with_the_typed_error_and_the_next_start_is_exact(
    pipeline: Pipeline, at_step: Any, strategy: RestartStrategy, times: int
):
    pipeline.feed(80)
    fail_times(at_step, times)
    starts = Starts(pipeline)
    with pytest.raises(SendFailed, match="injected"):
        ow.supervise(starts, strategy)
    assert len(starts.at) == times
    assert pipeline.visible() == []
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=2)


def test_data_that_cannot_be_written_is_not_tried_again(pipeline: Pipeline):
    pipeline.feed(80)
    started = []

    def start() -> StreamingQuery:
        started.append(time.monotonic())
        return pipeline.start(lambda frame: frame.selectExpr("key AS no_such_column"))

    with pytest.raises(BadColumn):
        ow.supervise(start, ow.FixedDelay(delay_s=SHORT))
    assert len(started) == 1
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=2)
