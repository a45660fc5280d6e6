"""Pipelines under ``onceward run``, killed in every way: exact by the checker, and each end has
the status that the page promises.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pipeline_audit import audit, audit_epochs
from pipeline_job import JobSettings
from pipeline_lives import JobLife
from pipeline_runs import Pipeline

from fault_table import fired
from onceward_testing import LocalKafka
from onceward_testing.demo.supervisor import newest_batch
from onceward_testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE
from onceward_testing.job_process import JobProcess, signal_all, spark_home, with_children

pytestmark = pytest.mark.timeout(1_800)

# An open transaction that ends sooner than this was ended by somebody, and not by its age.
LONG_MS = 600_000


class KeptLife(JobLife):
    """A job with its runner, from the runner's start to its end."""

    def __init__(
        self, settings: JobSettings, faults: str, folder: Path, **environment: str
    ) -> None:
        self.settings = settings
        self.armed = [fault for fault in faults.split(";") if fault]
        self._fired = folder / "fired.jsonl"
        armed = {FAULTS_VARIABLE: faults, FIRED_VARIABLE: str(self._fired)} if faults else {}
        job = str(Path(__file__).with_name("kept_job.py"))
        command = [sys.executable, "-m", "onceward", "run", "--restart", "fixed-delay"]
        command += ["--delay", "200 ms", "--stop-timeout", "20 s", job, settings.to_json()]
        JobProcess.__init__(
            self,
            command,
            folder=folder,
            log=folder / "stderr.log",
            environment={"SPARK_HOME": str(spark_home(folder)), **armed, **environment},
        )

    @property
    def drivers(self) -> list[int]:
        """The process ids of the job's drivers, oldest first."""
        return [entry["pid"] for entry in self.news if entry["what"] == "session"]

    def until_driver(self, number: int) -> None:
        """The ``number``-th driver, from 1, has its session."""
        self.until(lambda: len(self.drivers) >= number, f"driver {number}")

    def until_more_commits(self, count: int = 2) -> None:
        before = len(self.steps("commit"))
        self.until(lambda: len(self.steps("commit")) >= before + count, f"{count} more commits")

    @property
    def driver(self) -> psutil.Process:
        """The driver that runs."""
        return psutil.Process(self.drivers[-1])

    def end_all(self) -> None:
        """The runner, and the job, which has a session of its own and would end with its batch."""
        with contextlib.suppress(psutil.NoSuchProcess):
            signal_all(
                [
                    one
                    for child in psutil.Process(self.pid).children()
                    for one in with_children(child)
                ],
                signal.SIGKILL,
            )
        super().end_all()


@contextmanager
def kept(
    pipeline: Pipeline, faults: str = "", environment: dict[str, str] | None = None, **changes: Any
) -> Iterator[KeptLife]:
    pipeline._lives += 1
    folder = pipeline.folder / f"life-{pipeline._lives}"
    folder.mkdir()
    settings = replace(
        pipeline.settings, folder=str(folder), news=str(folder / "news.jsonl"), **changes
    )
    life = KeptLife(settings, faults, folder, **(environment or {}))
    try:
        yield life
    finally:
        life.end_all()


def jvm_below(driver: psutil.Process) -> psutil.Process:
    found = []
    for child in driver.children(recursive=True):
        # workers come and go
        with suppress(psutil.NoSuchProcess):
            if child.name() == "java":
                found.append(child)
    [jvm] = found
    return jvm


def newest_in_commit_log(pipeline: Pipeline) -> int:
    return newest_batch(Path(pipeline.settings.checkpoint) / "commits") or 0


@pytest.mark.fault(
    "run-driver-killed",
    "run-jvm-killed",
    "run-connections-lost",
    "run-terminated",
    "run-ended-at-once",
)
def test_a_job_that_is_killed_in_every_way_comes_back_exact(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    options = {"transaction.timeout.ms": LONG_MS}
    pipeline = new_pipeline(kafka, seconds=0.2, max_offsets=200, options=options)
    began = time.monotonic()
    pipeline.produce(6_000)
    supervised, proxied = {"KEPT_JOB_WAITS": "supervised"}, kafka.proxied_servers
    with kept(pipeline, "commit:finished:2:kill", supervised, bootstrap_servers=proxied) as life:
        life.until_fired()  # between EndTxn and Spark's commit log
        life.until_driver(2)
        life.until_more_commits()
        life.driver.kill()  # the driver alone; its JVM ends by itself
        life.until_driver(3)
        life.until_more_commits()
        jvm_below(life.driver).kill()
        life.until_driver(4)
        life.until_more_commits()
        reset = kafka.proxy.on("EndTxn", client_id=f"*{pipeline.pipeline_id}*").reset()
        fired(reset.wait(60), "no connection was reset")
        life.until_more_commits()
        life.signal(signal.SIGTERM)
        assert life.wait() == 0, life.log_tail()
        assert len(life.drivers) == 4, "a lost connection is for the engine to mend"
        assert life.news[-1]["what"] == "ended"
        assert len(life.steps("replay")) >= 1, "of the batch that Spark had not logged"

    # Mid-batch, in a job that waits as Spark does
    pipeline.produce(2_000)
    before = newest_in_commit_log(pipeline)
    spark = {"KEPT_JOB_WAITS": "as Spark does"}
    with kept(pipeline, "send:started:2:delay=4", spark) as life:
        life.until_fired()
        life.signal(signal.SIGTERM)
        assert life.wait() == 0, life.log_tail()
        assert len(life.steps("commit")) == 2, "the batch that was running, and none after it"
        assert not life.steps("abort")
        assert newest_in_commit_log(pipeline) == before + 2

    # A second signal while a transaction is open, right before its commit
    with kept(pipeline, "ledger:finished:1:delay=100") as life:
        life.until_fired()
        life.signal(signal.SIGTERM)
        life.until(lambda: "asked to stop" in life.log_tail(), "the first signal is heard")
        life.signal(signal.SIGTERM)
        told_at = time.monotonic()
        # its guard tells 143 so
        assert life.wait() == -signal.SIGTERM, life.log_tail()
        assert f"status {128 + signal.SIGTERM}" in life.log_tail()
        assert time.monotonic() - told_at < 20
        assert not life.steps("commit")
    fired(left_open := pipeline.open_partitions(), "no transaction was open when the job ended")

    with kept(pipeline, seconds=None, max_offsets=2_000) as life:
        assert life.wait() == 0, life.log_tail()
    fired(
        1000 * (time.monotonic() - began) < LONG_MS,
        "so slow that transactions may have ended by their age",
    )
    assert left_open
    found = audit(pipeline)
    audit_epochs(pipeline, found)
    fired(found.aborted_records, "nothing was aborted, what was killed?")


@pytest.mark.fault("run-taken-over")
def test_a_job_that_was_taken_over_is_not_started_again(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """Its runner ends with the status of Fenced; started again, it would fence its successor."""
    pipeline = new_pipeline(kafka, max_offsets=2_000)
    pipeline.produce(4_000)
    spark = {"KEPT_JOB_WAITS": "as Spark does"}
    # alive and well, its first batch ready to commit
    with kept(pipeline, environment=spark, hold="ledger") as first:
        first.until(lambda: first.steps("ledger"), "the first copy's ledger record")
        with kept(pipeline) as second:
            assert second.wait() == 0, second.log_tail()
        first.go()
        assert first.wait() == 79, first.log_tail()
    assert len(first.drivers) == 1
    assert "Fenced: a newer copy of pipeline" in first.log_tail()
    assert audit(pipeline).aborted_records == 2_000


def test_a_job_with_state_that_is_hurt_at_random_moments_comes_back_exact(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """What ends a runner is followed by another, as a service manager would have it."""
    seed = random.randrange(1_000_000)
    print("seed", seed)  # noqa: T201  pytest shows it when the test fails
    chance = random.Random(seed)
    pipeline = new_pipeline(any_kafka, query="counts", seconds=0.1, max_offsets=400)
    hurts = ["driver", "jvm", "runner", "term", "twice"]
    for waits in ("supervised", "as Spark does", "by ow.wait"):
        pipeline.produce(4_000)
        with kept(pipeline, environment={"KEPT_JOB_WAITS": waits}) as life:
            for hurt in [*chance.sample(hurts[:2], 2), chance.choice(hurts[2:])]:
                drivers = len(life.drivers)
                life.until_driver(max(1, drivers))
                time.sleep(chance.uniform(0, 6))
                if hurt == "driver":
                    life.driver.kill()
                elif hurt == "jvm":
                    jvm_below(life.driver).kill()
                elif hurt == "runner":
                    driver = life.driver
                    psutil.Process(life.pid).kill()
                    driver.wait(120)
                else:
                    life.signal(signal.SIGTERM)
                    time.sleep(chance.uniform(0.1, 1))
                    if hurt == "twice":
                        life.signal(signal.SIGTERM)
                    status = life.wait()
                    assert status in ((0,) if hurt == "term" else (0, -signal.SIGTERM))
                if hurt in hurts[:2]:
                    life.until_driver(max(1, drivers) + 1)
    with kept(pipeline, seconds=None, max_offsets=4_000) as life:
        assert life.wait() == 0, life.log_tail()
    found = audit(pipeline)
    audit_epochs(pipeline, found)
