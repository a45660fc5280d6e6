"""The long run in short: interrupted by ``kill -9`` it leaves nothing behind; continued, it comes
to its verdicts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from soak.state import SoakFolder, State

TESTS = Path(__file__).parents[1]
PATIENCE_SECONDS = 600

pytestmark = pytest.mark.timeout(2_400)


@contextmanager
def soak(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "soak", "--dir", str(folder), "--rate", "300", *arguments]
    with (folder.parent / "soak.log").open("ab") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(TESTS)}, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def processes_of(folder: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if str(folder) in _command(process)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


def state_of(folder: Path) -> State:
    return SoakFolder(folder).load() or State(0, "")


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_an_interrupted_soak_leaves_no_process_and_is_continued_to_its_verdicts(tmp_path: Path):
    folder, report = tmp_path / "soak", tmp_path / "report.md"
    with soak(folder, "--seed", "5", "--minutes", "30") as first:
        wait_until(
            lambda: state_of(folder).position >= 2 or first.poll() is not None, "no second fault"
        )
        assert first.poll() is None, (tmp_path / "soak.log").read_text()
        assert len(processes_of(folder)) > 5
    wait_until(lambda: not processes_of(folder), "processes outlived the soak")
    minutes = state_of(folder).elapsed_s / 60

    with soak(folder, "--minutes", str(minutes + 1), "--report", str(report)) as second:
        assert second.wait(PATIENCE_SECONDS * 2) == 0, (tmp_path / "soak.log").read_text()[-6_000:]
    assert processes_of(folder) == []
    told = report.read_text()
    assert "in 2 start(s)" in told
    assert "| safety | holds: 0 violations |" in told
    assert "| liveness | holds: 0 violations |" in told
