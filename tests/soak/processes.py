"""Processes of the soak that may be killed at any moment, each behind a guard."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from . import guard


class GuardedProcess:
    """A command in a session of its own; gone with everything it started when it ends, or when we do."""

    def __init__(self, command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for us alone
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())

    @property
    def status(self) -> int | None:
        """None while anything of it lives; 128 + n if signal n ended it."""
        return self._guard.poll()

    def kill(self) -> None:
        """SIGKILL to its process group in one instant; returns when the whole session is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._guard.wait()
        self._close()

    def end(self, patience_s: float) -> int:
        """SIGTERM, and SIGKILL after ``patience_s``; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            self._guard.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()
        return self._guard.wait()

    def log_tail(self, characters: int = 3_000) -> str:
        """The end of what it printed, without the JVM's stack frames."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.lstrip().startswith("at "))[-characters:]

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()


class Driver(GuardedProcess):
    """One life of the pipelines' driver, with its JVM, its executors' JVMs and Python workers."""

    def executors(self) -> list[list[psutil.Process]]:
        """Each executor as a container would hold it: its JVM, and its Python processes."""
        found = [p for p in self._members() if "CoarseGrainedExecutorBackend" in _command(p)]
        return [[jvm, *_children(jvm)] for jvm in sorted(found, key=lambda process: process.pid)]

    def driver(self) -> list[psutil.Process]:
        """The driver's Python and JVM, without executors."""
        executors = {process.pid for container in self.executors() for process in container}
        return [process for process in self._members() if process.pid not in executors]

    def _members(self) -> Iterable[psutil.Process]:
        for pid in guard.members(self.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                yield psutil.Process(pid)


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """``number`` to each that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []
