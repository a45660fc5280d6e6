"""A server's process for the length of a test: it never outlives the process that started it,
however that ends.

Called by :mod:`kafka_node`, :mod:`local_postgres` and :mod:`local_mysql`. Between the server and
us stands a guard (:mod:`onceward_testing.process_guard`), which takes it down when we are gone.
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


class GuardedServer:
    """Runs from when this object is made. Not thread safe.

    :param log: takes what it prints.
    :param removed_with_us: a folder that the guard removes when we end without having ended the
        server.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        removed_with_us: Path | None,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # -I -S: the guard needs nothing but the standard library, and starts in 20 ms without
        # site-packages.
        guard = [
            sys.executable,
            "-I",
            "-S",
            process_guard.__file__,
            str(os.getpid()),
            str(removed_with_us or ""),
        ]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                # Ctrl-C in a terminal is for the owner, which then stops us in order
                start_new_session=True,
            )
        assert self._guard.stdout is not None  # noqa: S101 — asked for above
        self.pid = int(self._guard.stdout.readline() or 0)
        """The server's; 0: it could not even be started."""

    @property
    def running(self) -> bool:
        """Whether the process exists (also while suspended)."""
        return self._guard.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """To the server, as long as its guard stands: later its pid may be anybody's."""
        if self.pid and self.running:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(self.pid, number)

    def end(self, timeout_s: float) -> None:
        """Wait for it to end, which it has been told to; SIGKILL after ``timeout_s``. Leaves no
        zombie and no open pipe.
        """
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._guard.wait(10)
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
