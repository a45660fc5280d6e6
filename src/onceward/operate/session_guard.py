"""Runs one command in a session of its own, and sees to it that nothing of the session outlives
whoever asked for it.

A script, for Linux (``/proc``): it imports nothing of ours. Started by
:mod:`onceward.operate.job_process` with ``python -I -S session_guard.py <command …>``. Prints the
command's pid. When the command ends, or when stdin does (its other end is held by whoever asked,
who may be killed), every process of the session is killed: also one that is stopped, and Python
workers, which have process groups of their own. Exits as the command did, 128 + n if signal n
ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def members(session: int) -> list[int]:
    """The living processes of a session."""
    return [
        pid
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        if _belongs(pid, session)
    ]


def _belongs(pid: int, session: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[3]) == session and fields[0] not in "ZX"


def end_session(session: int) -> None:
    """SIGKILL to each of its processes, until there is none."""
    while left := members(session):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main(command: list[str]) -> int:
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    print(child.pid, flush=True)  # noqa: T201  read by whoever asked

    def when_nobody_wants_it_any_more() -> None:
        while os.read(sys.stdin.fileno(), 64):
            pass
        end_session(child.pid)

    threading.Thread(target=when_nobody_wants_it_any_more, daemon=True).start()
    status = child.wait()
    end_session(child.pid)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
