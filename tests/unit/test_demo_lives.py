"""The demo's supervisor: what it takes for a proof, and what it refuses; and that no job outlives
it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import events
from onceward.operate import job_process as processes
from onceward_testing.demo import job_lives, job_process
from onceward_testing.demo.checkpoint import QueryProgress, query_progress
from onceward_testing.demo.feed import Feed
from onceward_testing.demo.invalid import DemoInvalid
from onceward_testing.demo.job_lives import JobLives
from onceward_testing.demo.job_news import News
from onceward_testing.demo.kill_plan import Kill
from onceward_testing.demo.screen import Screen
from onceward_testing.demo.settings import DemoSettings, JobSettings
from onceward_testing.faults import FAULTS_VARIABLE

FAULT = "commit:finished:1:kill"
FAULT_KILL = Kill("after the commit", "fault_point", fault=FAULT)
RANDOM_KILL = Kill("at random", "after_a_commit", delay_s=0.0)
COMMIT = News("step", {"step": events.COMMIT, "phase": "finished", "batch_id": 0, "epoch": 1})
END_MS = 100_000


class _Feed(Feed):
    begins, written_words, visible_words = "it begins", "written", "visible"
    planned = sent = to_be_seen = 1
    released = False

    def start(self) -> None:
        pass

    def release(self) -> None:
        self.released = True

    def stop(self) -> None:
        pass

    def is_through(self, checkpoint: Path) -> bool:
        return query_progress(checkpoint) == QueryProgress(0, END_MS)


class _Tail:
    visible = 0


class _Job:
    """A job whose life is a script: news, then perhaps an end of its own, or a finished
    checkpoint.
    """

    def __init__(
        self, folder: Path, news: list[News], status: int | None, *, fires: bool, finishes: bool
    ) -> None:
        self._folder, self._news, self._status = folder, list(news), status
        self._fires, self._finishes = fires, finishes
        self.status: int | None = None
        self.buried = False

    def next_news(self, _timeout_s: float) -> News | None:
        if self._news:
            return self._news.pop(0)
        if self._fires:
            line = {"fault": FAULT, "pid": 1, "fired_at_ms": 1, "ids": {}}
            (self._folder / "faults-fired").write_text(json.dumps(line) + "\n")
        if self._finishes:
            _finish_batch(self._folder / "checkpoint", watermark_ms=END_MS)
        if self.status is None:
            self.status = self._status
        return None

    def kill(self) -> None:
        self.status = -signal.SIGKILL

    def stop(self, patience_s: float) -> int:
        self.status = 0
        return 0

    def bury(self) -> None:
        self.buried = True

    def log_tail(self) -> str:
        return "its last words"


def _finish_batch(checkpoint: Path, watermark_ms: int) -> None:
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"batchWatermarkMs": watermark_ms})
    (checkpoint / "offsets" / "0").write_text(f"v1\n{metadata}\n{{}}")
    (checkpoint / "commits" / "0").write_text("v1\n{}")


class _Stage:
    """A supervisor whose jobs are scripted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.feed = _Feed()
        self.jobs: list[_Job] = []
        self.armed: list[str] = []
        self._scripts: list[dict[str, Any]] = []
        monkeypatch.setattr(job_lives, "DemoJob", self._start)

    def life(
        self, *news: News, status: int | None = None, fires: bool = False, finishes: bool = False
    ) -> None:
        self._scripts.append(
            {"news": list(news), "status": status, "fires": fires, "finishes": finishes}
        )

    def run(self, *plan: Kill) -> list[job_lives.Killed]:
        job = JobSettings(
            "a:1",
            str(self.folder / "checkpoint"),
            str(self.folder),
            "exactly_once",
            "local[1]",
            20,
        )
        settings = DemoSettings(limit_seconds=30)
        with Screen(quiet=True) as screen:
            supervisor = JobLives(settings, job, screen, self.feed, _Tail())  # type: ignore[arg-type]
            return supervisor.run(plan)

    def _start(self, _settings: JobSettings, environment: dict[str, str], _log: Path) -> _Job:
        self.armed.append(environment[FAULTS_VARIABLE])
        self.jobs.append(_Job(self.folder, **self._scripts[len(self.jobs)]))
        return self.jobs[-1]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Stage:
    return _Stage(tmp_path, monkeypatch)


def test_every_planned_kill_has_a_life_of_its_own_and_the_last_life_ends_well(
    stage: _Stage,
) -> None:
    stage.life(COMMIT, status=-signal.SIGKILL, fires=True)
    stage.life(COMMIT)
    stage.life(COMMIT, finishes=True)
    killed = stage.run(FAULT_KILL, RANDOM_KILL)
    assert [one.kill for one in killed] == [FAULT_KILL, RANDOM_KILL]
    assert stage.armed == [FAULT, "", ""]
    assert stage.feed.released
    assert all(job.buried for job in stage.jobs)


def test_a_fault_that_never_fired_makes_the_run_invalid(stage: _Stage) -> None:
    stage.life(COMMIT, status=-signal.SIGKILL, fires=False)
    with pytest.raises(DemoInvalid, match="never fired"):
        stage.run(FAULT_KILL)
    assert all(job.buried for job in stage.jobs)


def test_a_fault_that_a_plan_repeats_fires_in_each_life(stage: _Stage) -> None:
    stage.life(COMMIT, status=-signal.SIGKILL, fires=True)
    stage.life(COMMIT, status=-signal.SIGKILL, fires=False)
    with pytest.raises(DemoInvalid, match="never fired"):
        stage.run(FAULT_KILL, FAULT_KILL)


def test_a_job_that_finishes_before_its_kill_makes_the_run_invalid(stage: _Stage) -> None:
    stage.life(finishes=True)
    with pytest.raises(DemoInvalid, match="finished first"):
        stage.run(FAULT_KILL)


@pytest.mark.parametrize("plan", [(FAULT_KILL,), ()])
def test_a_job_that_ends_by_itself_makes_the_run_invalid_and_its_last_words_are_told(
    stage: _Stage, plan: tuple[Kill, ...]
) -> None:
    stage.life(status=1)
    with pytest.raises(DemoInvalid, match="its last words"):
        stage.run(*plan)
    assert not stage.feed.released or not plan


_DEMO = """
import subprocess, sys, time
job = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""
_JOB = """
import subprocess, sys, time
from onceward_testing.demo.lifeline import die_with_the_demo
die_with_the_demo()
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("alive", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", [subprocess.Popen.kill, subprocess.Popen.terminate])
def test_a_job_dies_with_the_demo_that_started_it(end: Callable[[Any], None]) -> None:
    demo = subprocess.Popen([sys.executable, "-c", _DEMO, _JOB], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo, demo.stdout:
        assert demo.stdout.readline() == "alive\n"
        end(demo)
        # Job and worker hold this stdout too: its end is theirs.
        assert demo.stdout.read() == ""


def test_output_that_grows_is_due_only_after_the_interrupted_batch_is_finished(
    tmp_path: Path,
) -> None:
    tail = _Tail()
    tail.visible = 10
    due = job_lives._OutputGrows(tmp_path, tail, begun=0)  # type: ignore[arg-type]
    tail.visible = 20  # the interrupted batch is written again
    assert not due(None)
    _finish_batch(tmp_path, watermark_ms=0)
    deadline = time.monotonic() + 60
    while due._visible is None and time.monotonic() < deadline:
        assert not due(None)
    tail.visible = 21
    assert due(None)


def test_burying_a_job_ends_a_worker_that_left_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's worker daemon makes a process group of its own, so a signal to the job's group
    does not reach it.
    """
    monkeypatch.setattr(processes, "_ORPHAN_SECONDS", 0)
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setpgid(0, 0)\n"
        "    os.close(1)\n"
        "    time.sleep(600)\n"
        'os.write(1, b\'onceward-demo {"what": "running"}\\n\')\n'
        "time.sleep(600)\n"
    )
    interpreter = (
        tmp_path / "python"
    )  # takes the place of sys.executable: whatever it is asked to run, it runs the script
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(job_process.sys, "executable", str(interpreter))
    settings = JobSettings("a:1", str(tmp_path), str(tmp_path), "exactly_once", "local[1]", 20)
    job = job_process.DemoJob(settings, {}, tmp_path / "log")
    assert job.next_news(60) == News("running")
    assert len(job.members()) == 2
    job.bury()
    assert job.status == -signal.SIGKILL
    assert job.members() == []
