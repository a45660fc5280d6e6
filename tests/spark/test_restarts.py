"""A query that fails again and again under each restart strategy: pauses and end as set, and no
record lost.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline
from topic_operations import add_partitions, produce, until

import onceward as ow
from onceward import events
from onceward.errors import (
    AuthenticationFailed,
    CheckpointCorrupted,
    InvalidColumn,
    OncewardError,
    PartitionsAdded,
    RegistryRefused,
    SendFailed,
)
from onceward.operate.restart import RestartStrategy

SHORT = 0.2


@contextmanager
def failing(
    times: int, kind: type[OncewardError] = SendFailed, step: str = events.SEND
) -> Iterator[None]:
    """A fault that comes back: the first ``times`` batches that are sent fail, or come to another
    step. INVALID if it did not come so often.
    """
    left = [kind(f"injected {number}") for number in range(times, 0, -1)]

    def fail(event: events.Event) -> None:
        if (event.step, event.phase) == (step, "started") and left:
            raise left.pop()

    stop = events.probe(fail)
    try:
        yield
    finally:
        stop()
    assert not left, f"INVALID: {len(left)} faults never happened"


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
        (ow.restart.FixedDelay(attempts=3, delay_s=SHORT), 3, [SHORT, SHORT, SHORT]),
        (
            ow.restart.ExponentialDelay(initial_s=SHORT, multiplier=3, jitter=0),
            2,
            [SHORT, 3 * SHORT],
        ),
        (ow.restart.FailureRate(max_failures=2, interval_s=600, delay_s=SHORT), 2, [SHORT, SHORT]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_that_returns_costs_restarts_and_no_record(
    pipeline: Pipeline, strategy: RestartStrategy, times: int, pauses: list[float]
):
    pipeline.feed(80)
    starts = Starts(pipeline)
    with failing(times):
        query = ow.supervise(starts, strategy)
    assert query.exception() is None
    assert len(starts.at) == times + 1
    waited = [after - before for before, after in itertools.pairwise(starts.at)]
    assert all(seconds >= pause for seconds, pause in zip(waited, pauses, strict=True))
    pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.parametrize(
    ("strategy", "times"),
    [
        (ow.restart.NoRestart(), 1),
        (ow.restart.FixedDelay(attempts=1, delay_s=SHORT), 2),
        (ow.restart.ExponentialDelay(initial_s=SHORT, attempts=1), 2),
        (ow.restart.FailureRate(max_failures=1, interval_s=600, delay_s=SHORT), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_strategy_gives_up_with_the_typed_error_and_the_next_start_is_exact(
    pipeline: Pipeline, strategy: RestartStrategy, times: int
):
    pipeline.feed(80)
    starts = Starts(pipeline)
    with failing(times), pytest.raises(SendFailed, match=f"injected {times}"):
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

    with pytest.raises(InvalidColumn):
        ow.supervise(start, ow.restart.FixedDelay(delay_s=SHORT))
    assert len(started) == 1
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=2)


def test_what_tasks_throw_is_logged_once(pipeline: Pipeline, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "onceward")
    pipeline.feed(10)

    def start() -> StreamingQuery:
        broken = "CAST(raise_error(concat('broken ', 'row')) AS STRING) AS value"
        return pipeline.start(lambda frame: frame.selectExpr("key", broken))

    with pytest.raises(Exception, match="broken row"):
        ow.supervise(start, ow.restart.NoRestart())
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len([text for text in told if "broken row" in text]) == 1
    assert "as logged above" in told[-1]


def test_a_login_that_is_refused_stops_a_pipeline_that_never_worked_and_no_other(
    pipeline: Pipeline,
):
    """Whether it has worked is read in its checkpoint: another supervisor, or another process,
    knows it as well.
    """
    starts = Starts(pipeline)
    pipeline.feed(80)
    with failing(1, AuthenticationFailed), pytest.raises(AuthenticationFailed):
        ow.supervise(starts, ow.restart.FixedDelay(delay_s=SHORT))
    assert len(starts.at) == 1
    pipeline.run()
    pipeline.feed(80)
    with failing(2, AuthenticationFailed):
        ow.supervise(starts, ow.restart.FixedDelay(delay_s=SHORT))
    assert len(starts.at) == 1 + 3
    pipeline.assert_exactly_once()

    refused = [RegistryRefused("where the query is defined")] * 2

    def start() -> StreamingQuery:
        if refused:
            raise refused.pop()
        return starts()

    with pytest.raises(RegistryRefused):
        ow.supervise(
            start,
            ow.restart.FixedDelay(delay_s=SHORT),
            checkpoint=pipeline.checkpoint.with_name("nowhere"),
        )
    ow.supervise(start, ow.restart.FixedDelay(delay_s=SHORT), checkpoint=pipeline.checkpoint)


def test_a_pipeline_whose_first_batch_is_in_its_ledger_alone_has_worked(pipeline: Pipeline):
    """The driver has died between the decision and Spark's log, and then a login is refused."""
    starts = Starts(pipeline)
    pipeline.feed(40)
    pipeline.run()
    assert pipeline.forget_commit() == 0
    with failing(2, AuthenticationFailed, events.OPEN):
        ow.supervise(starts, ow.restart.FixedDelay(delay_s=SHORT))
    assert len(starts.at) == 3
    pipeline.assert_exactly_once()


def test_partitions_that_came_in_mid_batch_are_mended_by_one_start_without_available_now(
    pipeline: Pipeline, at_step: Any
):
    """As the error says; until then each start is refused, and supervised ones wait longer each
    time.
    """
    pipeline.feed(80)
    at_step(events.PLAN, "started", SendFailed("the driver dies in the second batch"), nth=2)
    pipeline.failing_run(batch_attempts=1)
    add_partitions(pipeline, pipeline.source, 4)
    added = [(b"new-key-%d" % n, b"new-value-%d" % n) for n in range(20)]
    produce(pipeline, pipeline.source, added, 3)
    pipeline.fed += added
    if pipeline.spark.version < "4.1":  # whose connector runs it with availableNow, too
        error = pipeline.refused()
        assert type(error) is PartitionsAdded
        assert "without availableNow" in error.next_step
        assert pipeline.source in error.message
    query = pipeline.start(trigger={"processingTime": "0 seconds"})
    until(lambda: len(pipeline.visible()) >= 100, query, "the batch in the log never ended")
    query.stop()
    pipeline.run()
    pipeline.assert_exactly_once()


def test_a_missing_file_of_the_checkpoint_is_mended_by_the_ledger(pipeline: Pipeline):
    """As the error says, with a new checkpoint; the supervisor has not tried it again and
    again.
    """
    starts = Starts(pipeline)
    pipeline.feed(120)
    pipeline.run()
    pipeline.feed(10)
    for file in (pipeline.checkpoint / "offsets").glob("*1*"):
        file.unlink()
    (pipeline.checkpoint / "offsets" / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointCorrupted, match="batch 1 doesn't exist") as damaged:
        ow.supervise(starts, ow.restart.FixedDelay(delay_s=0))
    assert len(starts.at) == 1
    assert 'resume="ledger"' in damaged.value.next_step
    frame = pipeline.frame(
        starting="ledger", pipeline_id=pipeline.name, ledger_topic=pipeline.ledger_topic
    )
    pipeline.run(frame=frame, checkpoint=pipeline.checkpoint.with_name("new"), resume="ledger")
    pipeline.assert_exactly_once()


def test_a_run_leaves_no_thread_and_no_socket(pipeline: Pipeline):
    """PySpark keeps those by which the JVM has called the function until the process ends."""

    def life(number: int) -> tuple[int, int]:
        pipeline.feed(4)
        ow.supervise(lambda: pipeline.start(sink=sink))
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    sink = pipeline.sink()
    first, *others = [life(number) for number in range(6)]
    assert others[-1][0] <= first[0] + 2
    assert others[-1][1] <= first[1] + 2
