"""The guard lets nothing outlive its owner. The child here is `sleep`; brokers and jobs have it,
too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from onceward_testing import process_guard

LONG_SLEEP = ["sleep", "300"]


def start_guard(folder: Path, *command: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The guard as this process's child: this process is the owner."""
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            process_guard.__file__,
            *options,
            str(os.getpid()),
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


STOPPED = """
import os, signal, subprocess
subprocess.Popen(["sleep", "300"], process_group=0)
print("up", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_the_owners_end_leaves_nothing_of_the_session_also_what_is_stopped(folder: Path):
    with start_guard(folder, sys.executable, "-c", STOPPED) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        session = int(guard.stdout.readline())
        assert eventually(lambda: psutil.Process(session).status() == psutil.STATUS_STOPPED)
        assert len(process_guard.session_members(session)) == 2
        guard.stdin.close()
        assert guard.wait(30) == 128 + signal.SIGKILL
    assert process_guard.session_members(session) == []


@pytest.mark.parametrize("leave", [False, True])
def test_what_the_command_leaves_behind_is_killed_unless_it_shall_go_on(
    tmp_path: Path, leave: bool
):
    command = ["sh", "-c", "sleep 300 & exit 0"]
    with start_guard(tmp_path, *command, options=["--leave-the-rest"] if leave else []) as guard:
        assert guard.stdout is not None
        session = int(guard.stdout.readline())
        assert guard.wait(30) == 0
    left = process_guard.session_members(session)
    process_guard.end_session(session)
    assert len(left) == leave
