"""The coordinator aborts a transaction that is open too long: output and progress together. The
batch runs again.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from streaming_pipeline import Pipeline

from onceward import events
from onceward.errors import BatchTimedOut, TransactionTimedOut, TransactionTimeoutTooShort
from onceward_testing import LocalKafka

WAIT_SECONDS = 90


def until_aborted(pipeline: Pipeline) -> Any:
    """An action that waits for the abort marker: until then the output's last stable offset is
    behind.
    """

    def wait(_: events.Event) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while pipeline.open_transactions(pipeline.output):
            assert time.monotonic() < deadline, "the coordinator never aborted the transaction"
            time.sleep(0.1)

    return wait


@pytest.mark.fault("transaction-times-out")
@pytest.mark.parametrize("moment", ["check started", "ledger started", "commit started"])
def test_a_timeout_after_the_output_is_sent(
    any_kafka: LocalKafka, pipeline_on: Any, at_step: Any, steps: list[events.Event], moment: str
):
    pipeline = pipeline_on(any_kafka)
    pipeline.feed(80)
    step, phase = moment.split()
    at_step(step, phase, until_aborted(pipeline), nth=2)
    pipeline.run(options={"transaction.timeout.ms": 4_000})
    pipeline.assert_exactly_once(ledger_records=2)
    reasons = [e.error for e in steps if e.phase == "failed" and e.step != events.ABORT]
    assert any(isinstance(error, TransactionTimedOut) for error in reasons), reasons
    assert len(pipeline.appended()) > 80, (
        "INVALID: nothing had been sent when the transaction timed out"
    )
    planned = [e.ids["batch_id"] for e in steps if (e.step, e.phase) == (events.PLAN, "started")]
    assert planned.count(1) >= 2


@pytest.mark.fault("transaction-times-out")
def test_a_timeout_while_tasks_still_send(
    any_kafka: LocalKafka, pipeline_on: Any, at_step: Any, steps: list[events.Event]
):
    """The first lease is given back, then the transaction is aborted, then the task goes on and is
    refused.
    """
    pipeline = pipeline_on(any_kafka, output_partitions=6)
    pipeline.feed(60)
    at_step(events.LEASE, "finished", until_aborted(pipeline))
    pipeline.run(
        frame=pipeline.frame(max_offsets_per_trigger=100),
        options={"transaction.timeout.ms": 4_000},
    )
    pipeline.assert_exactly_once(ledger_records=1)
    assert [e.ids["batch_id"] for e in steps if (e.step, e.phase) == (events.PLAN, "started")] == [
        0,
        0,
    ]


def held_up(rows: Any, flag: str) -> Any:
    """A copy in which the task of source partition 1 waits as long as there is a file ``flag``."""
    import os

    from pyspark.sql.functions import udf

    @udf("binary")
    def value_in_time(value: bytes, partition: int) -> bytes:
        while partition == 1 and os.path.exists(flag):
            time.sleep(0.1)
        return bytes(value)

    return rows.withColumn("value", value_in_time("value", "partition")).selectExpr(
        "key", "concat_ws(':', partition, offset, CAST(value AS STRING)) AS value"
    )


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("transaction-times-out")
def test_a_batch_too_slow_for_its_transaction(
    kafka: LocalKafka, pipeline_on: Any, tmp_path: Any, steps: list[events.Event]
):
    """One task has sent, the other one computes: nobody sends, so nobody would be refused."""
    pipeline = pipeline_on(kafka)
    pipeline.feed(40)
    flag = tmp_path / "held up"
    flag.touch()
    tasks = {"driver_records": 0, "batch_attempts": 5}

    def slow(rows: Any) -> Any:
        return held_up(rows, str(flag))

    error = pipeline.refused(slow, options={"transaction.timeout.ms": 4_000}, **tasks)
    assert type(error) is TransactionTimeoutTooShort
    for word in (
        "transaction.timeout.ms=4000",
        "transaction.max.timeout.ms=900000",
        "40 source records",
    ):
        assert word in error.message
    assert int(re.search(r"open for (\d+) ms", error.message)[1]) > 4_000
    assert "transaction.max.timeout.ms" in error.next_step
    failures = [type(e.error) for e in steps if (e.step, e.phase) == (events.SEND, "failed")]
    assert failures == [TransactionTimedOut, TransactionTimeoutTooShort]
    assert flag.exists()
    flag.unlink()
    pipeline.run(slow, options={"transaction.timeout.ms": 60_000}, **tasks)  # as the error says
    pipeline.assert_exactly_once(ledger_records=1)


@pytest.mark.lengthy("chaos")
def test_a_timeout_is_not_taken_for_a_takeover_when_attempts_have_run_out(
    any_kafka: LocalKafka, pipeline_on: Any, at_step: Any
):
    pipeline = pipeline_on(any_kafka)
    pipeline.feed(40)
    at_step(events.CHECK, "started", until_aborted(pipeline))
    error = pipeline.refused(options={"transaction.timeout.ms": 4_000}, batch_attempts=1)
    assert type(error) is TransactionTimedOut
    for word in ("transaction.timeout.ms=4000", "transaction.max.timeout.ms=900000"):
        assert word in error.message
    assert int(re.search(r"open for (\d+) ms", error.message)[1]) > 0
    assert pipeline.visible() == []
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)


def slow_once(rows: Any, flag: str) -> Any:
    """A copy whose first task sleeps until it is cancelled, the first time."""
    import os

    from pyspark.sql.functions import udf

    @udf("binary")
    def value_after_a_nap(value: bytes) -> bytes:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return bytes(value)
        time.sleep(120)
        return bytes(value)

    return rows.withColumn("value", value_after_a_nap("value")).selectExpr(
        "key", "concat_ws(':', partition, offset, CAST(value AS STRING)) AS value"
    )


def test_a_batch_that_runs_too_long_is_cancelled_and_tried_again(
    pipeline: Pipeline, tmp_path: Any, steps: list[events.Event]
):
    pipeline.feed(40)
    flag = tmp_path / "slept"
    pipeline.run(lambda rows: slow_once(rows, str(flag)), batch_timeout_s=20)
    assert flag.exists()
    pipeline.assert_exactly_once(ledger_records=1)
    failures = [e.error for e in steps if (e.step, e.phase) == (events.SEND, "failed")]
    assert [type(error) for error in failures] == [BatchTimedOut]


@pytest.mark.lengthy("chaos")
def test_a_batch_that_always_runs_too_long_ends_the_query(pipeline: Pipeline, tmp_path: Any):
    pipeline.feed(40)
    flag = tmp_path / "slept"
    error = pipeline.refused(
        lambda rows: slow_once(rows, str(flag)), batch_timeout_s=3, batch_attempts=1
    )
    assert type(error) is BatchTimedOut
    assert "batch_timeout_s" in error.message
    assert pipeline.visible() == []
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)


@pytest.mark.lengthy("chaos")
def test_a_slow_stage_before_a_shuffle_counts(pipeline: Pipeline, tmp_path: Any):
    """Adaptive execution (Spark 4.1 and later) runs it while the plan's last stage is still being
    decided.
    """
    pipeline.feed(40)
    flag = tmp_path / "slept"
    sink = pipeline.sink(batch_timeout_s=3, batch_attempts=1)
    error = pipeline.refused(
        lambda rows: rows,
        sink=lambda rows, batch: sink(slow_once(rows, str(flag)).repartition(3), batch),
    )
    assert type(error) is BatchTimedOut
    assert pipeline.visible() == []
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)
