"""One run of a streaming job in processes of its own: start it, watch it, kill it, and leave
nothing of it.

For the demo, for tests that kill, and for whoever runs jobs from Python. One SIGKILL to the job's
process group ends driver and JVM in the same instant; what Spark starts in groups of their own
(Python workers) is found by its session. Needs psutil (``onceward[demo]``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from onceward_testing.guarded_process import GuardedProcess

_ORPHAN_SECONDS = 5.0
_SWEEP_SECONDS = 30.0
_POLL_SECONDS = 0.05


class JobProcess(GuardedProcess):
    """The job's driver and all that it starts. None of it outlives this process.

    :param command: what to run.
    :param log: the file that takes its stdout and stderr.
    :param environment: variables on top of this process's own; None as a value takes one away.
    :param sweep: when the driver ends, everything that it has started is killed at once. Without,
        what outlives the driver goes on until :meth:`end_all`, as it does where a driver is killed
        alone.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
        sweep: bool = False,
    ) -> None:
        super().__init__(
            command, log=log, cwd=folder, environment=environment, leave_the_rest=not sweep
        )
        self.log = log
        self._ended_at: float | None = None

    @property
    def status(self) -> int | None:
        """Return its exit status, or minus the number of the signal that ended it; None while it
        runs (with ``sweep``: while anything of it does)."""
        status = super().status
        if status is not None and self._ended_at is None:
            self._ended_at = time.time()
        return status

    def kill(self) -> None:
        """Send SIGKILL to driver, JVM and whatever shares their process group, in the same
        instant; return when the driver is gone, and with ``sweep``, when everything is."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self.close()

    def stop(self, patience_s: float) -> int:
        """Send SIGTERM to the driver, :meth:`kill` it after ``patience_s``; return its exit
        status."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(patience_s)
        except TimeoutError:
            self.kill()
        self.close()
        return self.wait()

    def suspend(self) -> None:
        """Send SIGSTOP to the process group."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to the process group."""
        os.killpg(self.pid, signal.SIGCONT)

    def end_all(self) -> None:
        """Kill the job and see to it that nothing of it is left: workers may end by themselves,
        then they are killed.

        :raises TimeoutError: something cannot even be killed.
        """
        self.kill()
        began = time.monotonic()
        while left := self.members():
            if time.monotonic() - began > _ORPHAN_SECONDS:
                signal_all(left, signal.SIGKILL)
            if time.monotonic() - began > _SWEEP_SECONDS:
                raise TimeoutError(f"left over of process {self.pid}: {left}")
            time.sleep(_POLL_SECONDS)

    def members(self) -> list[psutil.Process]:
        """Return the living processes of the job's session.

        A session's number is not given away while it has members. When the job is gone and its
        number is a younger process's, those in that session are strangers.
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
            else [process for process in psutil.process_iter() if _is_member(process, self.pid)]
        )

    def executors(self) -> list[psutil.Process]:
        """Return the executors' JVMs of a local cluster, by their pids."""
        return [
            process
            for process in self.members()
            if "CoarseGrainedExecutorBackend" in _command_line(process)
        ]

    def log_tail(self, characters: int = 3_000) -> str:
        """Return the end of what it wrote to its log, without the JVM's stack frames."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.lstrip().startswith("at "))[
            -characters:
        ]


def spark_home(folder: Path) -> Path:
    """Make PySpark's own folder available under another name, and return that.

    A local cluster writes its executors' files below ``SPARK_HOME``.
    """
    import pyspark

    home = folder / "spark-home"
    if not home.exists():
        home.mkdir()
        for name in ("bin", "jars", "python", "sbin"):
            (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """Return ``process`` and everything below it, as a container would hold it."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _is_member(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and bool(process.status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False  # gone meanwhile, or not ours


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
