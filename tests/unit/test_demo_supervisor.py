"""The demo's supervisor: what it takes for a proof, and what it refuses; and that no job outlives
it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onceward import events
from onceward_testing import job_process, process_guard
from onceward_testing.demo import supervisor
from onceward_testing.demo.input import DemoInput
from onceward_testing.demo.kill_plan import Kill
from onceward_testing.demo.report import Screen
from onceward_testing.demo.settings import DemoJobSettings, DemoSettings
from onceward_testing.demo.supervisor import (
    DemoInvalid,
    Message,
    OutputGrows,
    QueryProgress,
    Supervisor,
    query_progress,
)
from onceward_testing.faults import FAULTS_VARIABLE
from onceward_testing.job_process import JobProcess

FAULT = "commit:finished:1:kill"
FAULT_KILL = Kill("after the commit", "fault_point", fault=FAULT)
RANDOM_KILL = Kill("at random", "after_a_commit", delay_s=0.0)
COMMIT: Message = {
    "what": "step",
    "step": events.COMMIT,
    "phase": "finished",
    "batch_id": 0,
    "epoch": 1,
}
END_MS = 100_000


class _Input(DemoInput):
    begins, unit_written, unit_visible = "it begins", "written", "visible"
    planned = to_be_visible = 1
    released = False

    def start(self) -> None:
        pass

    def release(self) -> None:
        self.released = True

    def is_through(self, checkpoint: Path) -> bool:
        return query_progress(checkpoint) == QueryProgress(0, END_MS)

    def _write_all(self) -> None:
        pass


class _Visible:
    rows = 0


class _Job:
    """A job whose run is scripted: messages, then perhaps an end of its own, or a finished
    checkpoint."""

    def __init__(
        self,
        folder: Path,
        messages: list[Message],
        status: int | None,
        *,
        fires: bool,
        finishes: bool,
    ):
        with (folder / "messages.jsonl").open("a") as file:
            file.writelines(json.dumps(message) + "\n" for message in messages)
        self._folder, self._status = folder, status
        self._fires, self._finishes = fires, finishes
        self._status_now: int | None = None
        self.asked = 0
        self.ended = False

    @property
    def status(self) -> int | None:
        self.asked += 1
        if self.asked == 2:  # its messages were read
            if self._fires:
                line = {"fault": FAULT, "pid": 1, "fired_at_ms": 1, "ids": {}}
                (self._folder / "faults-fired").write_text(json.dumps(line) + "\n")
            if self._finishes:
                _finish_batch(self._folder / "checkpoint", watermark_ms=END_MS)
            self._status_now = self._status_now or self._status
        return self._status_now

    def kill(self) -> None:
        self._status_now = -signal.SIGKILL

    def stop(self, patience_s: float) -> int:
        return 0

    def end_all(self) -> None:
        self.ended = True

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
        self.input = _Input()
        self.jobs: list[_Job] = []
        self.armed: list[str] = []
        self._scripts: list[dict[str, Any]] = []
        monkeypatch.setattr(supervisor, "JobProcess", self._start)
        monkeypatch.setattr(supervisor, "spark_home", lambda folder: folder)

    def script(
        self,
        *messages: Message,
        status: int | None = None,
        fires: bool = False,
        finishes: bool = False,
    ) -> None:
        self._scripts.append(
            {"messages": list(messages), "status": status, "fires": fires, "finishes": finishes}
        )

    def run(self, *plan: Kill) -> list[Kill]:
        job = DemoJobSettings("a:1", str(self.folder))
        settings = DemoSettings(limit_seconds=30)
        with Screen(quiet=True) as screen:
            return Supervisor(settings, job, screen, self.input, _Visible()).run(plan)  # type: ignore[arg-type]

    def _start(self, _command: list[str], *, environment: dict[str, str], **_where: Path) -> _Job:
        self.armed.append(environment[FAULTS_VARIABLE])
        self.jobs.append(_Job(self.folder, **self._scripts[len(self.jobs)]))
        return self.jobs[-1]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Stage:
    return _Stage(tmp_path, monkeypatch)


def test_every_planned_kill_has_a_life_of_its_own_and_the_last_life_ends_well(
    stage: _Stage,
) -> None:
    stage.script(COMMIT, status=-signal.SIGKILL, fires=True)
    stage.script(COMMIT)
    stage.script(COMMIT, finishes=True)
    killed = stage.run(FAULT_KILL, RANDOM_KILL)
    assert killed == [FAULT_KILL, RANDOM_KILL]
    assert stage.armed == [FAULT, "", ""]
    assert stage.input.released
    assert all(job.ended for job in stage.jobs)


def test_a_fault_that_never_fired_makes_the_run_invalid(stage: _Stage) -> None:
    stage.script(COMMIT, status=-signal.SIGKILL, fires=False)
    with pytest.raises(DemoInvalid, match="never fired"):
        stage.run(FAULT_KILL)
    assert all(job.ended for job in stage.jobs)


def test_a_fault_that_a_plan_repeats_fires_in_each_life(stage: _Stage) -> None:
    stage.script(COMMIT, status=-signal.SIGKILL, fires=True)
    stage.script(COMMIT, status=-signal.SIGKILL, fires=False)
    with pytest.raises(DemoInvalid, match="never fired"):
        stage.run(FAULT_KILL, FAULT_KILL)


def test_a_job_that_finishes_before_its_kill_makes_the_run_invalid(stage: _Stage) -> None:
    stage.script(finishes=True)
    with pytest.raises(DemoInvalid, match="finished first"):
        stage.run(FAULT_KILL)


@pytest.mark.parametrize("plan", [(FAULT_KILL,), ()])
def test_a_job_that_ends_by_itself_makes_the_run_invalid_and_its_last_words_are_told(
    stage: _Stage, plan: tuple[Kill, ...]
) -> None:
    stage.script(status=1)
    with pytest.raises(DemoInvalid, match="its last words"):
        stage.run(*plan)
    assert not stage.input.released or not plan


def test_a_job_dies_with_the_demo_that_started_it(tmp_path: Path) -> None:
    job = (
        "import subprocess, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); "
        "time.sleep(600)"
    )
    demo = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from onceward_testing.job_process import JobProcess\n"
        f"folder = Path({str(tmp_path)!r}); command = [sys.executable, '-c', {job!r}]\n"
        "print(JobProcess(command, folder=folder, log=folder / 'log').pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", demo], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        session = int(started.stdout.readline())
        deadline = time.monotonic() + 60
        while "up" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(process_guard.session_members(session)) == 2
        started.kill()
    while (left := process_guard.session_members(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


def test_output_that_grows_is_due_only_after_the_interrupted_batch_is_finished(
    tmp_path: Path,
) -> None:
    visible = _Visible()
    visible.rows = 10
    due = OutputGrows(tmp_path, visible, begun=0)  # type: ignore[arg-type]
    visible.rows = 20  # the interrupted batch is written again
    assert not due([])
    _finish_batch(tmp_path, watermark_ms=0)
    deadline = time.monotonic() + 60
    while due.rows_before is None and time.monotonic() < deadline:
        assert not due([])
    visible.rows = 21
    assert due([])


def test_a_job_ends_with_a_worker_that_left_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's worker daemon makes a process group of its own, so a signal to the job's group
    does not reach it."""
    monkeypatch.setattr(job_process, "_ORPHAN_SECONDS", 0)
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '600'], process_group=0); "
        "time.sleep(600)"
    )
    job = JobProcess([sys.executable, "-c", script], folder=tmp_path, log=tmp_path / "log")
    deadline = time.monotonic() + 60
    # Not as soon as it is there: until it has left the group, the signal reaches it as well
    while (
        len({os.getpgid(each.pid) for each in job.members()}) < 2 and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    job.kill()
    assert len(job.members()) == 1
    job.end_all()
    assert job.status == -signal.SIGKILL
    assert job.members() == []
