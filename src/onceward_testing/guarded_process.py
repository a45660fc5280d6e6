"""A process behind a guard: it never outlives the process that started it, however that one ends.

Used by every server of :mod:`onceward_testing` and, as
:class:`~onceward_testing.job_process.JobProcess`, by tests and demos that kill jobs. The guard is
:mod:`onceward_testing.process_guard`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceward_testing import process_guard


class GuardedProcess:
    """A process that runs from when this object is made, in a session and a process group of its
    own. Not thread safe.

    :param log: takes what it prints.
    :param removed_with_us: a folder that the guard removes when we end without having ended the
        process.
    :param environment: variables on top of this process's own; None as a value takes one away.
    :param leave_the_rest: what the process leaves in its session when it ends goes on, until we
        end. By default the guard kills it at once.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        removed_with_us: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        leave_the_rest: bool = False,
    ) -> None:
        # -I -S: the guard needs nothing but the standard library, and starts in 20 ms without
        # site-packages.
        guard = [
            sys.executable,
            "-I",
            "-S",
            process_guard.__file__,
            *["--leave-the-rest"][:leave_the_rest],
        ]
        variables = {**os.environ, **(environment or {})}
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [*guard, str(os.getpid()), str(removed_with_us or ""), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=cwd,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,  # Ctrl-C is for the owner, which then stops us in order
            )
        assert self._guard.stdout is not None  # noqa: S101 — asked for above
        self.pid = int(self._guard.stdout.readline() or 0)
        """Number of the process, its session and its process group; 0: it could not even be
        started."""
        if not self.pid:
            self._guard.wait()  # so that nobody signals process group 0, which is our own

    @property
    def running(self) -> bool:
        """Return whether the process exists (also while suspended)."""
        return self.status is None

    @property
    def status(self) -> int | None:
        """Return its exit status, or minus the number of the signal that ended it; None while it
        runs."""
        status = self._guard.poll()
        return status if status is None or status <= 128 else 128 - status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, as long as its guard stands: later its pid may be
        anybody's."""
        if self.pid and self.running:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(self.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return its exit status, once it has one. :raises TimeoutError: it has none in time."""
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s") from late
        status = self.status
        assert status is not None  # noqa: S101 — it has ended
        return status

    def end(self, timeout_s: float) -> None:
        """Wait for it to end, which it has been told to; SIGKILL after ``timeout_s``.

        Leaves no zombie and no open pipe.
        """
        try:
            self.wait(timeout_s)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            self.wait(10)
        self.close()

    def close(self) -> None:
        """Close the guard's pipes, which ends whatever is left of the process's session if the
        guard still stands."""
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
