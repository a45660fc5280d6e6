"""Between the tasks' end and the commit: what the driver must look at again, although the Spark
job succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Row
from streaming_pipeline import Pipeline

from onceward import events
from onceward.kafka.sink.sequencer.listener import Sequencer
from onceward.spark.batch import job

BATCH = 40


@pytest.fixture
def spoil(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[list[Row]], list[Row]]], list[int]]:
    """`spoil(change)`: what the first Spark job returns goes through ``change``; lists the jobs
    there were.
    """

    def arm(change: Callable[[list[Row]], list[Row]]) -> list[int]:
        collect, jobs = job.collect, list[int]()

        def spoilt(*arguments: Any) -> tuple[list[Row], int]:
            rows, tasks = collect(*arguments)
            jobs.append(len(rows))
            return change(rows) if len(jobs) == 1 else rows, tasks

        monkeypatch.setattr(job, "collect", spoilt)
        return jobs

    return arm


def check_failed(steps: list[events.Event]) -> bool:
    return any((event.step, event.phase) == (events.CHECK, "failed") for event in steps)


def test_a_report_that_got_lost_costs_an_attempt_and_no_record(
    pipeline: Pipeline, steps: list[events.Event], spoil: Callable[..., list[int]]
):
    pipeline.feed(BATCH)
    jobs = spoil(lambda rows: rows[1:])
    pipeline.run(driver_records=0)
    assert jobs[0] > 1
    assert check_failed(steps)
    assert len(jobs) == 2
    pipeline.assert_exactly_once(ledger_records=1)


def test_a_report_that_came_twice_costs_an_attempt_and_no_record(
    pipeline: Pipeline, steps: list[events.Event], spoil: Callable[..., list[int]]
):
    pipeline.feed(BATCH)
    jobs = spoil(lambda rows: [*rows, rows[0]])
    pipeline.run(driver_records=0)
    assert check_failed(steps)
    assert len(jobs) == 2
    pipeline.assert_exactly_once(ledger_records=1)


def test_an_epoch_that_was_poisoned_at_the_very_end_is_not_committed(
    pipeline: Pipeline, spoil: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
):
    """Every task finished and Spark is content; only the sequencer knows that two writers may have
    met.
    """
    pipeline.feed(BATCH)
    made: list[Sequencer] = []
    open_epoch = Sequencer.open_epoch

    def opened(self: Sequencer, *arguments: Any, **named: Any) -> Any:
        made.append(self)
        return open_epoch(self, *arguments, **named)

    monkeypatch.setattr(Sequencer, "open_epoch", opened)

    def poison(rows: list[Row]) -> list[Row]:
        made[0].poison("two writers may have met")
        return rows

    jobs = spoil(poison)
    pipeline.run()
    assert len(jobs) == 2
    assert len(pipeline.appended()) == 2 * BATCH
    pipeline.assert_exactly_once(ledger_records=1)
