"""One life of a streaming job in processes of its own: start it, watch it, kill it, bury it.

For the demo, for tests that kill, and for whoever runs jobs from Python. The job gets a session of
its own, so that one SIGKILL to its process group ends driver and JVM in the same instant, and so
that what Spark starts in groups of their own (Python workers) is found afterwards. Needs psutil
(``onceward[demo]``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from onceward.operate import session_guard

_ORPHAN_SECONDS = 5.0
_BURIAL_SECONDS = 30.0
_POLL_SECONDS = 0.05


class JobProcess:
    """See the module.

    :param command: what to run.
    :param log: the file that takes its stderr, and its stdout unless ``piped``.
    :param environment: variables on top of this process's own; None as a value takes one away.
    :param piped: its stdout is a pipe, :attr:`stdout`.
    :param guarded: a guard stands between: when the job ends, or when we do, in whatever way,
        everything that the job has started is killed at once. Without one, what outlives the
        driver goes on until :meth:`bury`, as it does in life; the job holds the other end of its
        stdin then, and may end with us by watching it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
        piped: bool = False,
        guarded: bool = False,
    ) -> None:
        variables = {**os.environ, **(environment or {})}
        guard = [sys.executable, "-I", "-S", session_guard.__file__] if guarded else []
        self.log = log
        assert not (piped and guarded), "a guard has the pipe for itself"  # noqa: S101 — a mistake of ours
        self._guarded, self._piped = guarded, piped
        self._ended_at: float | None = None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if piped or guarded else output,
                stderr=output,
                cwd=folder,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,  # Ctrl-C is for us alone
            )
        self.pid = int(self.stdout.readline()) if guarded else self._process.pid
        """Of the driver, and of its session and process group."""

    @property
    def stdout(self) -> IO[bytes]:
        """What it prints, where that was ``piped``."""
        assert self._process.stdout is not None  # noqa: S101 — asked for
        return self._process.stdout

    @property
    def status(self) -> int | None:
        """None while it runs (guarded: while anything of it does); else its exit status, and minus
        the number of the signal that ended it.
        """
        status = self._process.poll()
        if status is not None and self._ended_at is None:
            self._ended_at = time.time()
        return status if status is None or not self._guarded or status <= 128 else 128 - status

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status, once it has one. :raises TimeoutError: it has none in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s") from late
        status = self.status
        assert status is not None  # noqa: S101 — it has ended
        return status

    def kill(self) -> None:
        """SIGKILL to driver, JVM and whatever shares their process group, in the same instant;
        returns when the driver is gone, and guarded, when everything is.
        """
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._close_if_over()

    def stop(self, patience_s: float) -> int:
        """SIGTERM to the driver, :meth:`kill` after ``patience_s``; its exit status."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            try:
                self.wait(patience_s)
            except TimeoutError:
                self.kill()
        self._close_if_over()
        return self.wait()

    def suspend(self) -> None:
        """SIGSTOP to the process group."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to it."""
        os.killpg(self.pid, signal.SIGCONT)

    def bury(self) -> None:
        """See to it that nothing of the job is left: workers end by themselves, after a while the
        rest is killed.

        :raises TimeoutError: something cannot even be killed.
        """
        self.kill()
        began = time.monotonic()
        while left := self.members():
            if time.monotonic() - began > _ORPHAN_SECONDS:
                signal_all(left, signal.SIGKILL)
            if time.monotonic() - began > _BURIAL_SECONDS:
                raise TimeoutError(f"left over of process {self.pid}: {left}")
            time.sleep(_POLL_SECONDS)
        self._close()

    def _close_if_over(self) -> None:
        """With a guard nothing is left that could read or write."""
        if self._guarded:
            self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, None if self._piped else self._process.stdout):
            if pipe is not None:  # what is piped is closed by who reads it, to its end
                pipe.close()

    def members(self) -> list[psutil.Process]:
        """Living processes of the job's session. A number is not given away while it has any; when
        the job is gone and its number is a younger process's, they are strangers.
        """
        try:
            stranger = (
                self._ended_at is not None
                and psutil.Process(self.pid).create_time() > self._ended_at
            )
        except psutil.Error:
            stranger = False
        return (
            []
            if stranger
            else [process for process in psutil.process_iter() if _belongs(process, self.pid)]
        )

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs of a local cluster, by their pids."""
        return [
            process
            for process in self.members()
            if "CoarseGrainedExecutorBackend" in _command(process)
        ]

    def python_workers(self) -> list[psutil.Process]:
        """Python worker daemons and the workers that they forked."""
        return [process for process in self.members() if "worker_daemon" in _command(process)]

    def log_tail(self, characters: int = 3_000) -> str:
        """The end of what it wrote to its log, without the JVM's stack frames."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.lstrip().startswith("at "))[
            -characters:
        ]


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """``process`` and everything below it, as a container would hold it."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """``number`` to each that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _belongs(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and bool(process.status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False  # gone meanwhile, or not ours


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
