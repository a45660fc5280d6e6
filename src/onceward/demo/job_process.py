"""One life of the job: start, listen, ``kill -9``, stop. Runs in the supervisor's process."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from onceward.demo.job_news import News, heard
from onceward.demo.settings import JobSettings

_STOP_SECONDS = 60
_ORPHAN_SECONDS = 20
_TAIL_CHARACTERS = 3_000
_CLOCK_SLACK_SECONDS = 1.0


class JobProcess:
    """The job in a session of its own: one SIGKILL to its group ends driver and JVM in the same instant."""

    def __init__(self, settings: JobSettings, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._ended_at: float | None = None
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onceward.demo.job", settings.to_json()],
                stdin=subprocess.PIPE,  # the job's lifeline: see onceward.demo.lifeline
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                cwd=settings.folder,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, name="job-news", daemon=True).start()

    @property
    def status(self) -> int | None:
        """None while it runs, else its exit status; minus the signal's number if one ended it."""
        status = self._process.poll()
        if status is not None and self._ended_at is None:
            self._ended_at = time.time()
        return status

    def next_news(self, timeout_s: float) -> News | None:
        """What the job told next, None if nothing within ``timeout_s``."""
        try:
            return self._news.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def kill(self) -> None:
        """``kill -9`` the whole group. Returns when the driver is gone."""
        if self.status is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """Ask it to end, kill it if it does not within a minute; its exit status."""
        if self.status is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.wait()

    def bury(self) -> None:
        """See to it that no process of the job's session is left: workers end by themselves, the rest is killed."""
        self.kill()
        deadline = time.monotonic() + _ORPHAN_SECONDS
        while left := self._left_over():
            if time.monotonic() > deadline:
                _kill_all(left)
            time.sleep(0.05)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _left_over(self) -> list[psutil.Process]:
        """Living processes of the job's session. Ones younger than the job's end are strangers: numbers are reused."""
        ended_at = self._ended_at or time.time()
        session = self._process.pid
        return [process for process in psutil.process_iter() if _is_member(process, session, ended_at)]

    def log_tail(self) -> str:
        """The end of what the job wrote to stderr."""
        return self._log.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    def _listen(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101  a pipe was asked for
        with stdout:
            for line in stdout:
                news = heard(line)
                if news is not None:
                    self._news.put(news)


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _is_member(process: psutil.Process, session: int, born_before: float) -> bool:
    try:
        if os.getsid(process.pid) != session or process.create_time() > born_before + _CLOCK_SLACK_SECONDS:
            return False
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False  # gone meanwhile, or not ours
