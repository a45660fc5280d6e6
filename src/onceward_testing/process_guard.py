"""Runs one child process and never lets it outlive the process that asked for it. A script: it
imports nothing of ours.

Started by :mod:`onceward_testing.guarded_server`, one guard per server, with ``python -I -S
process_guard.py <parent pid> <folder> <command …>``. The guard prints the child's pid, waits, and
exits with the child's status. When its owner dies in whatever way (also by SIGKILL, which leaves
no time to clean up), the guard kills the child and removes the folder, if one is named.

Two signs of the owner's death are watched, because each alone has a gap: the end of stdin (a pipe
whose other end only the owner holds; a forked copy of the owner keeps it open) and a changed
parent pid (a thread that started us and ended changes nothing there). Where the kernel offers it
(Linux), the child is also told to die with the guard.
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
from collections.abc import Callable

PARENT_CHECK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_the_guard() -> None:
    """In the child, before it becomes the broker: SIGKILL when the guard's main thread (its
    forker) ends.
    """
    with contextlib.suppress(
        OSError, AttributeError
    ):  # no prctl outside Linux; the two signs above still hold
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_until_owner_is_gone(owner: int) -> None:
    """Returns once stdin has ended or the owner is no longer our parent."""
    while os.getppid() == owner:
        readable, _, _ = select.select([sys.stdin], [], [], PARENT_CHECK_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 64):
            return


def kill_when_orphaned(
    child: "subprocess.Popen[bytes]", owner: int, orphaned: threading.Event
) -> Callable[[], None]:
    """The watching thread's work."""

    def watch() -> None:
        wait_until_owner_is_gone(owner)
        orphaned.set()
        child.kill()

    return watch


def main(owner: int, folder: str, command: list[str]) -> int:
    """Runs ``command`` until it ends or the owner does; returns the status to exit with."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_the_guard
    )
    print(child.pid, flush=True)  # noqa: T201  the owner reads it
    orphaned = threading.Event()
    threading.Thread(target=kill_when_orphaned(child, owner, orphaned), daemon=True).start()
    status = child.wait()
    if orphaned.is_set() and folder:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the cluster's folder goes with the last node in it
            os.rmdir(os.path.dirname(folder))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
