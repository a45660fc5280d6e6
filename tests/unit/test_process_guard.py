"""The guard lets no child outlive its owner. Here the child is `sleep`; brokers are behind the
same guard.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from onceward_testing import process_guard

LONG_SLEEP = ["sleep", "300"]


def start_guard(folder: Path, *command: str) -> subprocess.Popen[str]:
    """The guard as this process's child: this process is the owner."""
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            process_guard.__file__,
            str(psutil.Process().pid),
            str(folder),
            *command,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def eventually(holds: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cluster" / "node"
    folder.mkdir(parents=True)
    (folder / "data").write_text("x")
    return folder


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 128 + signal.SIGKILL)]
)
def test_it_ends_as_its_child_ends_and_keeps_the_data(folder: Path, script: str, status: int):
    with start_guard(folder, "sh", "-c", script) as guard:
        assert guard.stdin is not None
        assert guard.wait(30) == status
    assert (folder / "data").exists()


def test_it_announces_its_child(folder: Path):
    with start_guard(folder, *LONG_SLEEP) as guard:
        assert guard.stdout is not None
        child = psutil.Process(int(guard.stdout.readline()))
        assert child.ppid() == guard.pid
        child.kill()


def test_the_end_of_stdin_ends_child_guard_and_data(folder: Path):
    with start_guard(folder, *LONG_SLEEP) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        child = psutil.Process(int(guard.stdout.readline()))
        guard.stdin.close()
        guard.wait(30)
    assert not child.is_running()
    assert not folder.parent.exists()


OWNER = textwrap.dedent(
    """
    import os, signal, subprocess, sys
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), *sys.argv[2:]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    child = guard.stdout.readline().strip()
    copy = os.fork()  # holds the guard's stdin open, and lives on
    if copy == 0:
        signal.pause()
    print(guard.pid, child, copy, flush=True)
    signal.pause()
    """
)


def test_a_killed_owner_is_noticed_although_a_forked_copy_of_it_holds_the_pipe(folder: Path):
    command = [sys.executable, "-c", OWNER, process_guard.__file__, str(folder), *LONG_SLEEP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        guard, child, copy = (psutil.Process(int(pid)) for pid in owner.stdout.readline().split())
        try:
            owner.kill()
            assert eventually(lambda: not child.is_running())
            assert eventually(lambda: not guard.is_running())
            assert copy.is_running()
            assert not folder.parent.exists()
        finally:
            for process in (copy, child, guard):
                if process.is_running():
                    process.kill()
