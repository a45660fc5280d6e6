"""An executor dies with the input of tasks that have yet to read it, and what Spark computes again
is not the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pipeline_audit import ask_the_checker, audit, output_rows
from pipeline_lives import JobLife
from pipeline_models import copies
from pipeline_runs import Pipeline

from fault_table import fired
from onceward_testing import LocalKafka
from onceward_testing.job_process import signal_all
from onceward_testing.topic_reader import read_topic
from onceward_testing.verdict import exactly_once

TWO_EXECUTORS = "local-cluster[2,1,1200]"

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.fault("stage-retried-unrepeatable")
def test_tasks_behind_a_lost_shuffle(kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]):
    """One task has sent and finished; one waits on each executor, with its input and without a
    lease; one is to come.

    Then an executor dies with its share of the shuffle. No attempt that has sent is ever repeated.
    """
    pipeline = new_pipeline(
        kafka, query="scatter", function="one-task-first", master=TWO_EXECUTORS
    )
    pipeline.produce(4_000)
    with pipeline.job() as life:
        waiting = life.until(lambda: two_waiting(life), "two tasks that wait")
        fired(life.steps("lease"), "nobody has sent")
        kill_container_of(life, int(waiting[0].read_text()))
        life.go()
        assert life.wait() == 0, life.log_tail()
    fired("FetchFailed" in life.log_tail(1_000_000), "every task found its input")
    each_record_once(pipeline)


@pytest.mark.fault("persisted-blocks-lost")
def test_a_persisted_frame_behind_a_shuffle(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """Blocks and the shuffle behind them are lost between two jobs; every stage is in its first
    attempt.
    """
    pipeline = new_pipeline(kafka, query="scatter", function="persisted", master=TWO_EXECUTORS)
    pipeline.produce(4_000)
    with pipeline.job() as life:
        life.until((Path(life.settings.folder) / "waiting").exists, "a frame that is persisted")
        kill_and_wait(life)
        life.go()
        assert life.wait() == 0, life.log_tail()
    each_record_once(pipeline)


@pytest.mark.fault("persisted-blocks-lost")
def test_a_lot_is_drawn_once(kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]):
    """Two frames of one batch read one persisted lot; an executor dies between the two, and there
    is no shuffle.
    """
    pipeline = new_pipeline(
        kafka, query="two-frames", function="shared-out", hold="send", master=TWO_EXECUTORS
    )
    pipeline.produce(4_000)
    with pipeline.job() as life:
        life.until(lambda: life.steps("send"), "the first frame")
        kill_and_wait(life)
        life.go()
        assert life.wait() == 0, life.log_tail()
    verdict = exactly_once(
        copies(read_topic(kafka.bootstrap_servers, pipeline.source)), output_rows(pipeline)
    )
    assert verdict.holds, verdict
    answer = ask_the_checker(pipeline)
    assert answer["verdict"] == "exactly_once", answer


def each_record_once(pipeline: Pipeline) -> None:
    """Say the model of the workload, and the checker by the names in the records' headers."""
    audit(pipeline)
    answer = ask_the_checker(
        pipeline,
        "--conserves",
        "exactly",
        "--lineage-headers",
        "partition=partition,offset=offset",
    )
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer


def two_waiting(life: JobLife) -> list[Path] | None:
    """Both executors have one task that waits, so that the one before it has ended."""
    found = sorted(
        Path(life.settings.folder).glob("waiting-?"), key=lambda path: path.stat().st_mtime
    )
    return found if len(found) == 2 else None


def kill_container_of(life: JobLife, worker: int) -> None:
    """The executor that the Python worker belongs to, with all of its Python processes."""
    parents = {process.pid for process in psutil.Process(worker).parents()}
    (executor,) = [process for process in life.executors() if process.pid in parents]
    kill(executor)


def kill_and_wait(life: JobLife) -> None:
    """One executor less; whether Spark has noticed is left to chance, as it is outside of
    tests.
    """
    executor = life.executors()[0]
    kill(executor)
    life.until(
        lambda: executor.pid not in [other.pid for other in life.executors()], "a dead executor"
    )


def kill(executor: psutil.Process) -> None:
    for process in [executor, *executor.children(recursive=True)]:
        signal_all([process], signal.SIGKILL)
