"""An error at each step of a batch: a retriable one costs an attempt, any other one the run; never
a record.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf
from streaming_pipeline import Pipeline

from onceward import events
from onceward.errors import OncewardError, RecordTooLarge, SendFailed

BATCH = 40
SENT_BEFORE = {
    "check started",
    "offsets started",
    "ledger started",
    "ledger finished",
    "commit started",
}
STEPS = [
    "plan started", "plan finished", "send started", "lease started", "lease finished",
    "send finished", "check started", "check finished", "offsets started", "offsets finished",
    "ledger started", "ledger finished", "commit started",
]  # fmt: skip


ENDINGS = {
    "plan finished",
    "send finished",
    "check finished",
    "offsets finished",
    "ledger finished",
}
ANY_ERROR = [
    pytest.param(moment, marks=pytest.mark.slow if moment in ENDINGS else ())
    for moment in ["open finished", "admit started", *STEPS, "abort started"]
]


@pytest.fixture
def fed(any_pipeline: Pipeline) -> Pipeline:
    """Two batches to write."""
    any_pipeline.feed(2 * BATCH)
    return any_pipeline


def attempts_of(steps: list[events.Event], batch_id: int) -> list[int]:
    """The epochs under which a batch was planned."""
    return [
        e.ids["epoch"]
        for e in steps
        if (e.step, e.phase) == (events.PLAN, "started") and e.ids["batch_id"] == batch_id
    ]


@pytest.mark.parametrize("moment", STEPS)
def test_a_retriable_error_is_another_attempt_under_a_new_epoch(
    fed: Pipeline, at_step: Any, steps: list[events.Event], moment: str
):
    step, phase = moment.split()
    nth = 2 if not moment.startswith("lease") else 1
    at_step(step, phase, SendFailed("injected", next_step="nothing"), nth=nth)
    fed.run()
    fed.assert_exactly_once(ledger_records=2)
    hit = 1 if nth == 2 else 0
    epochs = attempts_of(steps, hit)
    assert len(epochs) == 2
    assert epochs[1] > epochs[0]
    assert len(attempts_of(steps, 1 - hit)) == 1
    assert [record["attempt"][1] for record in fed.ledger()][hit] == epochs[1]
    aborted = len(fed.appended()) - 2 * BATCH
    if (
        moment in SENT_BEFORE
    ):  # I5: what was sent is there, and nobody who reads committed records ever sees it
        assert aborted == BATCH
    else:
        assert 0 <= aborted <= BATCH


@pytest.mark.parametrize("moment", ANY_ERROR)
def test_any_other_error_ends_the_run_and_the_next_start_is_exact(
    pipeline: Pipeline, at_step: Any, moment: str
):
    pipeline.feed(2 * BATCH)
    step, phase = moment.split()
    injected = RuntimeError(f"injected at {moment}")
    if step == "abort":
        at_step(events.CHECK, "started", ValueError("the reason for the abort"))
    at_step(step, phase, injected)
    if (
        step == "lease"
    ):  # told to the task, which ends the attempt: the epoch may be lost, the batch is not
        pipeline.run()
    else:
        query = pipeline.failing_run()
        assert str(injected) in str(query.exception())
        assert len(pipeline.visible()) == 0
        pipeline.run()
    pipeline.assert_exactly_once(ledger_records=2)


def test_the_attempts_end_and_the_error_keeps_its_type(
    pipeline: Pipeline, steps: list[events.Event]
):
    pipeline.feed(BATCH)
    stop = events.probe(_always(events.CHECK, SendFailed("again and again", next_step="nothing")))
    try:
        error = pipeline.refused(batch_attempts=2)
    finally:
        stop()
    assert type(error) is SendFailed
    assert len(attempts_of(steps, 0)) == 2
    assert pipeline.visible() == []
    assert len(pipeline.appended()) == 2 * BATCH
    assert pipeline.open_transactions() == []
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)


def test_one_attempt_is_one_attempt(pipeline: Pipeline, at_step: Any, steps: list[events.Event]):
    pipeline.feed(BATCH)
    at_step(events.SEND, "finished", SendFailed("once", next_step="nothing"))
    assert type(pipeline.refused(batch_attempts=1)) is SendFailed
    assert len(attempts_of(steps, 0)) == 1
    pipeline.run(batch_attempts=1)
    pipeline.assert_exactly_once(ledger_records=1)


def test_an_error_of_the_data_is_not_tried_again(
    pipeline: Pipeline, at_step: Any, steps: list[events.Event]
):
    pipeline.feed(BATCH)
    at_step(events.SEND, "started", RecordTooLarge("injected", next_step="nothing"))
    assert type(pipeline.refused()) is RecordTooLarge
    assert len(attempts_of(steps, 0)) == 1


def _always(step: str, error: OncewardError) -> Any:
    def probe(event: events.Event) -> None:
        if (event.step, event.phase) == (step, "started"):
            raise error

    return probe


def fails_once(rows: DataFrame, flag: Path, at: str, *, after: Path | None = None) -> DataFrame:
    """:func:`copy`, but the value ``at`` raises as long as ``flag`` does not exist, and not before
    ``after`` does.
    """
    path, wait_for = str(flag), str(after) if after else "/"

    @udf("binary")
    def maybe_fail(value: bytes) -> bytes:
        if bytes(value) == at.encode() and not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT))
            deadline = time.monotonic() + 60
            while not os.path.exists(wait_for) and time.monotonic() < deadline:
                time.sleep(0.05)
            raise ValueError("this record hurts, once")
        return bytes(value)

    return rows.withColumn("value", maybe_fail("value")).selectExpr(
        "key", "concat_ws(':', partition, offset, CAST(value AS STRING)) AS value"
    )


@pytest.mark.fault("task-raises")
def test_a_task_that_fails_before_it_sent_anything(any_pipeline: Pipeline, tmp_path: Path):
    """In local mode Spark gives a task one attempt only, so the query fails and the next start is
    exact.
    """
    any_pipeline.feed(2 * BATCH)
    flag = tmp_path / "hurt"
    query = any_pipeline.failing_run(
        lambda rows: fails_once(rows, flag, f"value-{BATCH + 3}"), driver_records=0
    )
    assert flag.exists()
    assert "this record hurts, once" in str(query.exception())
    any_pipeline.run(lambda rows: fails_once(rows, flag, "no such value"), driver_records=0)
    any_pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.fault("task-raises")
def test_a_task_that_fails_when_something_is_sent(
    any_pipeline: Pipeline, tmp_path: Path, at_step: Any
):
    """Part of the batch is appended when the task dies; it must never be seen."""
    records = [(b"key-%d" % n, b"%d-" % n + b"x" * 30_000) for n in range(160)]
    records += [(b"key-%d" % n, b"value-%d" % n) for n in range(160, 200)]
    any_pipeline.feed(records)
    flag, sent = tmp_path / "hurt", tmp_path / "sent"
    at_step(events.LEASE, "finished", lambda _: sent.touch())
    frame = any_pipeline.frame(max_offsets_per_trigger=1000)
    slices = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = any_pipeline.spark.conf.get(slices)
    any_pipeline.spark.conf.set(slices, "20")
    try:
        query = any_pipeline.start(
            lambda rows: fails_once(rows, flag, "value-199", after=sent),
            frame=frame,
            held_bytes=1 << 20,
            driver_records=0,
        )
        error = any_pipeline.ended(query)
    finally:
        any_pipeline.spark.conf.set(slices, usual)
    assert flag.exists()
    if error:  # whether the task died with a lease in its hands or without decides who tries again
        assert "this record hurts, once" in error
        assert any_pipeline.visible() == []
        any_pipeline.run(frame=frame)
    any_pipeline.assert_exactly_once(ledger_records=1)
    assert len(any_pipeline.appended()) > 200
