"""Runs a job's file as Python would, and ends with a status that says why. In the job's process.

``python -m onceward.operate.run_job job.py …``, started by :mod:`onceward.operate.runner`. SIGTERM
is answered from the first line on, and an error that leaves the file becomes a status. By a socket
the runner learns that a batch was committed, and the job that its runner is gone.
"""

from __future__ import annotations

import atexit
import os
import runpy
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from onceward import events, surroundings
from onceward.operate import stopping
from onceward.operate.exit_status import exit_status, find_error

SOCKET, WORKED = "ONCEWARD_RUN_SOCKET", "ONCEWARD_RUN_WORKED"
"""Environment variables for the job: the socket's file descriptor, and whether an earlier process
of this runner has committed a batch.
"""
_END_SECONDS = 30.0


class RunnerLink:
    """The job's end of the socket to its runner."""

    def __init__(self) -> None:
        self.worked_before = bool(os.environ.pop(WORKED, ""))
        self._socket = socket.socket(fileno=int(os.environ.pop(SOCKET)))
        self._socket.set_inheritable(False)
        self._listen_no_more = events.probe(self._hear)
        threading.Thread(target=self._watch, name="onceward-runner", daemon=True).start()

    def _hear(self, event: events.Event) -> None:
        if (event.step, event.phase) == (events.FINISH, "finished"):
            self.worked_before = True
            self._listen_no_more()
            # One byte fits into the socket's buffer, whatever the runner does
            with suppress(OSError):
                self._socket.send(b".")

    def _watch(self) -> None:
        # The runner sends nothing: this returns when it ends
        with suppress(OSError):
            self._socket.recv(1)
        stopping.request()


def main(arguments: list[str]) -> None:
    """Run the job ``arguments[0]``; what follows are its own arguments."""
    link = RunnerLink()
    keep_status()
    stopping.answer_sigterm()
    job = arguments[0]
    sys.argv[:] = arguments
    # As Python has it: sys.flags.safe_path is new in 3.11
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(job).resolve().parent)
    try:
        runpy.run_path(job, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            _end_soon(ended.code if isinstance(ended.code, int) else 1)
        raise
    except BaseException as error:  # noqa: BLE001 — becomes a status
        status = exit_status(error, worked_before=link.worked_before)
        # What is not printed, on a full disk, changes nothing about how the job has ended
        with suppress(Exception):
            _print(error, job)
        _end_soon(status)
        raise SystemExit(status) from None


def _print(error: BaseException, job: str) -> None:
    """Print the error: of ours the place in the job and a paragraph, of others the traceback."""
    ours = find_error(error)
    if ours is None:
        traceback.print_exception(error)
        return
    places = [at for at in traceback.extract_tb(error.__traceback__) if at.filename == job]
    place = f"{job}:{places[-1].lineno}: " if places else ""
    print(f"{place}{type(ours).__name__}: {ours}", file=sys.stderr)  # noqa: T201


def keep_status() -> None:
    """Let this process end with its own status, and not with 120, as Python has it where stdout or
    stderr cannot be written at the end: a full disk, a pipe whose reader is gone.
    """

    def flush() -> None:
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:  # noqa: BLE001, PERF203 — whatever the job has put there
                setattr(sys, name, None)

    # What is registered first runs last
    atexit.register(flush)


def _end_soon(status: int) -> None:
    """A job that has failed must not seem to run, whatever its threads still wait for."""

    def end() -> None:
        surroundings.sleep(_END_SECONDS)
        os._exit(status)

    threading.Thread(target=end, name="onceward-end", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
