"""Keeps the pipelines' driver alive: starts it after every death, with fault points of its own for
each life.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from onceward_testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE
from onceward_testing.job_messages import MessageReader
from onceward_testing.job_process import JobProcess, spark_home

from .job import JobSettings
from .plan import step_errors
from .scatter import FUNCTIONS
from .state import SoakFolder, State

_SAME_END_AT_MOST = 5
_STOP_SECONDS = 90
_WATCH_SECONDS = 0.02


class StoppedForGood(Exception):
    """The driver ends by itself again and again with nothing committed between."""


class Supervisor:
    """The lives of the driver, one after the other."""

    def __init__(
        self, folder: SoakFolder, state: State, bootstrap_servers: str, max_offsets: int
    ) -> None:
        self._folder = folder
        self._state = state
        self._servers = bootstrap_servers
        self._max_offsets = max_offsets
        self._driver: JobProcess | None = None
        self._life: Path | None = None
        self._news: MessageReader | None = None
        self._ends_in_vain = 0
        self.commits = 0
        self.last_commit = time.monotonic()

    @property
    def driver(self) -> JobProcess | None:
        """The life that runs, if one does."""
        return self._driver if self._driver is not None and self._driver.status is None else None

    def tick(self, *, with_errors: bool = True) -> None:
        """Listen; and start the driver when it is dead."""
        self._listen()
        if self.driver is None:
            self._bury()
            self._start(with_errors)

    def some_have_sent(self, patience_s: float) -> bool:
        """Wait until a task of *scatter* sends something, from now on; False if none does, or no
        driver is there.
        """
        if self._life is None or not (self._life / "news.jsonl").exists():
            return False
        with (self._life / "news.jsonl").open("rb") as news:
            news.seek(0, os.SEEK_END)
            deadline = time.monotonic() + patience_s
            while self.driver is not None and time.monotonic() < deadline:
                if b'"what": "sent"' in news.read():
                    return True
                time.sleep(_WATCH_SECONDS)
        return False

    def calm(self) -> None:
        """No more errors in the steps of the life that runs."""
        if self.driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.driver.pid, signal.SIGUSR1)

    def stop(self) -> int | None:
        """Ask the driver to end, as a deployment would; its status."""
        status = self._driver.stop(_STOP_SECONDS) if self._driver is not None else None
        self._listen()
        self._driver = None
        self._tidy()
        return status

    def log_tail(self) -> str:
        return self._driver.log_tail() if self._driver is not None else ""

    def _start(self, with_errors: bool) -> None:
        number = self._state.lives
        self._state.lives += 1
        self._folder.save(self._state)
        life = self._life = self._folder.life(number)
        self._news = MessageReader(life / "news.jsonl")
        settings = JobSettings(
            bootstrap_servers=self._servers,
            folder=str(life),
            checkpoints=str(self._folder.checkpoints),
            news=str(life / "news.jsonl"),
            max_offsets=self._max_offsets,
            trigger_seconds=0.2,
            driver_records=0
            if number % 2
            else 10_000,  # every other life writes also small batches by tasks
            scatter=tuple(FUNCTIONS)[number % len(FUNCTIONS)],
        )
        environment = {
            "SPARK_HOME": str(spark_home(life)),
            "TMPDIR": str(life / "tmp"),
            "PYTHONPATH": str(Path(__file__).parents[1]),
            FAULTS_VARIABLE: ";".join(step_errors(self._state.seed, number))
            if with_errors
            else "",
            FIRED_VARIABLE: str(life / "fired.jsonl"),
        }
        (life / "tmp").mkdir()
        command = [sys.executable, "-m", "soak.job", settings.to_json()]
        self._driver = JobProcess(
            command, folder=life, log=life / "driver.log", environment=environment, sweep=True
        )

    def _bury(self) -> None:
        if self._driver is None:
            return
        status = self._driver.status
        if status == -signal.SIGKILL:
            self._ends_in_vain = 0
        else:
            end = self._news_of("ended")[-1:]
            self._folder.note("driver-ended", life=self._state.lives - 1, status=status, end=end)
            self._ends_in_vain += 1
            if self._ends_in_vain >= _SAME_END_AT_MOST:
                raise StoppedForGood(f"status {status}: {end}\n{self.log_tail()}")
        self._tidy()

    def _tidy(self) -> None:
        """Spark's scratch files; the log and the news stay."""
        if self._life is not None:
            for name in ("spark-home", "local", "tmp", "warehouse", "metastore_db", "artifacts"):
                shutil.rmtree(self._life / name, ignore_errors=True)

    def _listen(self) -> None:
        """Count what was committed since the last time."""
        if self._news is None:
            return
        committed = sum(map(_is_commit, self._news.read()))
        if committed:
            self.commits += committed
            self.last_commit = time.monotonic()
            self._ends_in_vain = 0

    def _news_of(self, what: str) -> list[dict[str, Any]]:
        assert self._life is not None
        return [
            told
            for told in MessageReader(self._life / "news.jsonl").read()
            if told["what"] == what
        ]


def _is_commit(told: dict[str, Any]) -> bool:
    return told["what"] == "step" and (told["step"], told["phase"]) == ("commit", "finished")
