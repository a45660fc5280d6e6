"""Keeps a job alive: starts it as a child process, and again by a restart strategy when it fails
or is gone. Started by ``onceward run``; has no Spark of its own.

Which failures are followed by a restart says the child's exit status
(:mod:`onceward.operate.run_job`), how often and when the strategy. Restarts within a session
are :func:`onceward.supervise`'s, in the child; these are for what a session does not outlive: a
driver or JVM that was killed, memory that ran out. A process may be killed at any time, because
each start fences what an earlier one left open.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from onceward import surroundings
from onceward.durable import RUN_FOLDER, keep_young
from onceward.ids import FAILING_SINCE
from onceward.operate.restart import Failure, RestartStrategy, least_pause, without_progress
from onceward.operate.run_job import (
    COMMITTED,
    FINAL,
    FINISHED,
    MAY_PASS,
    PATH,
    SOCKET,
    START,
    WORKED,
    describe,
    search_path,
    shell_status,
)

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_REST_SECONDS = 10.0
_YOUNG_SECONDS = 3_600.0


class ChildJob:
    """One process of a job, in a session and a process group of its own."""

    def __init__(
        self, arguments: Sequence[str], *, worked: bool, failing_since: float | None
    ) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            path = os.pathsep.join(search_path())
            more = {SOCKET: str(theirs.fileno()), PATH: path} | ({WORKED: "1"} if worked else {})
            if failing_since is not None:
                more[FAILING_SINCE] = str(failing_since)
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, *arguments],
                env={k: v for k, v in os.environ.items() if k != FAILING_SINCE} | more,
                pass_fds=[theirs.fileno()],
                # Ctrl-C in a terminal reaches the runner only, which passes it on
                start_new_session=True,
            )
        self.pid = self._process.pid

    def status(self) -> int | None:
        """Return how it ended, minus n for the signal n; None while it runs."""
        return self._process.poll()

    def told(self) -> bytes:
        """Return whether it has committed and replayed a batch; asked once, when it has ended."""
        try:
            return self._socket.recv(16)
        except OSError:
            return b""

    def ask_to_end(self) -> None:
        """Send SIGTERM to the job, not to its JVM."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the job and what it has started in its group, its JVM for one."""
        # A group keeps its number from others for as long as it has members, and its leader is
        # or has just been one: the number is not another's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self, patience_s: float) -> None:
        """Let the rest of an ended job end, a JVM's log say; kill it after ``patience_s``."""
        until = surroundings.monotonic() + patience_s
        while self._has_rest():
            if surroundings.monotonic() >= until:
                self.kill()
                break
            surroundings.sleep(_LOOK_SECONDS)
        self._socket.close()

    def reap_orphans(self) -> None:
        """Collect processes that the job has left, where this one is the container's first."""
        if os.getpid() != 1:
            return
        with suppress(ChildProcessError):
            while gone := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if gone.si_pid == self.pid:
                    return
                os.waitpid(gone.si_pid, os.WNOHANG)

    def _has_rest(self) -> bool:
        # In a container this may be process 1, whose children orphans become, of any group
        whose = -1 if os.getpid() == 1 else -self.pid
        with suppress(ChildProcessError):
            while os.waitpid(whose, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class JobRunner:
    """Runs one job until it ends for good.

    :param arguments: the job's file, and what it is given.
    :param stop_timeout_s: a job that was told twice to end, and has not after so long, is killed.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        strategy: RestartStrategy,
        *,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self._arguments = list(arguments)
        self._strategy = strategy
        self._stop_timeout_s = stop_timeout_s
        self._signals: surroundings.SimpleQueue[int] = surroundings.SimpleQueue()
        self._requests = 0
        self._failures: list[Failure] = []
        self._has_worked = False
        self._young_at = surroundings.monotonic()

    def run(self) -> int:
        """Run the job; return the exit status for this process."""
        with tempfile.TemporaryDirectory(
            prefix="onceward-run-", ignore_cleanup_errors=True
        ) as folder:
            os.environ[RUN_FOLDER] = folder
            try:
                return self._run()
            finally:
                del os.environ[RUN_FOLDER]

    def _run(self) -> int:
        before: dict[signal.Signals, Any] = {
            number: signal.signal(number, lambda number, _: self._signals.put(number))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            while True:
                status = self._run_once()
                if self._requests or status in FINAL:
                    break
                pause = self._pause(status)
                if pause is None:
                    return shell_status(status)
                if self._listen(pause):
                    break
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._requests == 1 and status == -signal.SIGTERM:
            # It had not come to its first line, and there was nothing to end
            status = FINISHED
        level = logging.INFO if status == FINISHED else logging.ERROR
        log.log(level, "%s ended: %s", self._arguments[0], describe(status))
        return shell_status(status)

    def _run_once(self) -> int:
        """Run one process of the job; return how it ended."""
        began = surroundings.monotonic()
        try:
            child = ChildJob(
                self._arguments, worked=self._has_worked, failing_since=self._failing_since()
            )
        except OSError as error:
            # Memory or processes are used up, which may be why the one before was killed
            log.warning("%s cannot be started now: %s", self._arguments[0], error)
            self._note(began, progressed=False)
            return MAY_PASS
        log.info("%s is started: process %d", self._arguments[0], child.pid)
        killed_at = float("inf")
        while (status := child.status()) is None:
            child.reap_orphans()
            if self._listen(_LOOK_SECONDS):
                how = "with its batch" if self._requests == 1 else "at once"
                log.info("%s is told to end %s", self._arguments[0], how)
                child.ask_to_end()
                if self._requests == 2:
                    killed_at = surroundings.monotonic() + self._stop_timeout_s
            if surroundings.monotonic() >= killed_at:
                log.warning("%s does not end, and is killed", self._arguments[0])
                child.kill()
                killed_at = float("inf")
        told = child.told()
        self._has_worked = self._has_worked or bool(told)
        child.close(_REST_SECONDS if self._requests < 2 else 0.0)
        self._note(began, progressed=COMMITTED in told)
        return status

    def _note(self, began: float, *, progressed: bool) -> None:
        now, chance = surroundings.monotonic(), surroundings.jitter(0.0, 1.0)
        self._failures.append(Failure(began, now, chance, progressed))

    def _failing_since(self) -> float | None:
        """Return the Unix time since when no start has committed a batch."""
        count = without_progress(self._failures)
        if not count:
            return None
        ago = surroundings.monotonic() - self._failures[-count].started
        return surroundings.wall_clock() - ago

    def _pause(self, status: int) -> float | None:
        """Return the seconds until the next start, or None when there is none."""
        text, failures = f"{self._arguments[0]} ended: {describe(status)}", self._failures
        delay = self._strategy.delay(failures)
        if delay is None:
            end = f"{self._strategy} is used up after {len(failures)} failures"
            log.error("%s. It is not started again: %s", text, end)
            return None
        pause, count = max(delay, least_pause(failures)), without_progress(failures)
        row = f" (failure {count} without a batch in between)" if count > 2 else ""
        log.warning("%s. It is started again in %.1f s%s", text, pause, row)
        return pause

    def _listen(self, seconds: float) -> bool:
        """Wait for so long; return early, and True, when told to end."""
        if surroundings.monotonic() - self._young_at > _YOUNG_SECONDS:
            self._young_at = surroundings.monotonic()
            # In days without a restart nobody else touches the folder
            keep_young()
        try:
            self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        self._requests += 1
        return True
