"""Run one command in a session of its own that never outlives the process that asked for it.

A script: it imports nothing of ours. Started by :mod:`onceward_testing.guarded_process`, one guard
a command, with ``python -I -S process_guard.py [--leave-the-rest] <owner's pid> <folder> <command
…>``. It prints the command's pid, waits, and exits as the command did, with 128 + n if signal n
ended it. Then every process that the command has left in its session is killed, unless
``--leave-the-rest`` says that it goes on, as it does where a driver is killed alone.

When the owner ends in whatever way (also by SIGKILL), the whole session is killed: also what is
stopped, and Python workers, which have process groups of their own; and ``folder`` is removed, if
one is named.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

PARENT_CHECK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1  # prctl(2)


def session_members(session: int) -> list[int]:
    """Return the living processes of a session. Empty where there is no ``/proc`` (macOS)."""
    try:
        return [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if _is_member(pid, session)
        ]
    except FileNotFoundError:
        return []


def _is_member(pid: int, session: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[3]) == session and fields[0] not in "ZX"


def end_session(session: int) -> None:
    """Send SIGKILL to each process of the session until there is none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    while left := session_members(session):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def die_with_the_guard() -> None:
    """Ask the kernel, in the child before it becomes the command, for SIGKILL when the guard's
    main thread ends."""
    with contextlib.suppress(
        OSError, AttributeError
    ):  # no prctl outside Linux: the owner's two signs still hold
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_until_owner_is_gone(owner: int) -> None:
    """Return once stdin has ended or the owner is no longer our parent.

    Each sign alone has a gap: a forked copy of the owner keeps the other end of stdin open, and a
    thread of the owner that started us and ended changes nothing about the parent.
    """
    while os.getppid() == owner:
        readable, _, _ = select.select([sys.stdin], [], [], PARENT_CHECK_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 64):
            return


def main(owner: int, folder: str, command: list[str], *, leave_the_rest: bool = False) -> int:
    """Run ``command`` until it ends or the owner does; return the status to exit with."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=die_with_the_guard,
        start_new_session=True,
    )
    print(child.pid, flush=True)  # noqa: T201  the owner reads it
    orphaned = threading.Event()

    def watch() -> None:
        wait_until_owner_is_gone(owner)
        orphaned.set()
        end_session(child.pid)

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    if orphaned.is_set() or not leave_the_rest:
        end_session(child.pid)
    if orphaned.is_set() and folder:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the cluster's folder goes with the last node in it
            os.rmdir(os.path.dirname(folder))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    arguments = sys.argv[1:]
    leave = arguments[0] == "--leave-the-rest"
    arguments = arguments[leave:]
    sys.exit(main(int(arguments[0]), arguments[1], arguments[2:], leave_the_rest=leave))
