"""A job's driver, JVM, executors and Python workers: one life of a pipeline, to be watched, killed
and buried.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pipeline_job import FAILED_OTHERWISE, STOPPED_BY_US, JobSettings

from fault_table import invalid
from onceward_testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE, FiredFault, fired_faults
from onceward_testing.job_messages import MessageReader
from onceward_testing.job_process import JobProcess, spark_home

PATIENCE_SECONDS = 400  # for one life of a job, on a machine with other things to do


@dataclass(frozen=True)
class Step:
    """One event of the engine, as the job told it."""

    step: str
    phase: str
    ids: dict[str, Any]
    at: float
    error: str | None = None


class JobLife(JobProcess):
    """The job, armed with faults; what of it outlives its driver goes on, as it does in life."""

    def __init__(self, settings: JobSettings, faults: str, folder: Path) -> None:
        self.settings = settings
        self.armed = [fault for fault in faults.split(";") if fault]
        self._fired = folder / "fired.jsonl"
        environment: dict[str, str | None] = {
            "SPARK_HOME": str(spark_home(folder)),
            FAULTS_VARIABLE: None,
        }
        if faults:
            environment |= {FAULTS_VARIABLE: faults, FIRED_VARIABLE: str(self._fired)}
        self.started_at = time.time()
        command = [
            sys.executable,
            str(Path(__file__).with_name("pipeline_job.py")),
            settings.to_json(),
        ]
        super().__init__(
            command, folder=folder, log=folder / "stderr.log", environment=environment
        )

    @property
    def fired(self) -> list[FiredFault]:
        return fired_faults(self._fired)

    def wait(self, timeout_s: float | None = PATIENCE_SECONDS) -> int:
        """Its exit status. Fails when it does not end in time."""
        try:
            return super().wait(timeout_s)
        except TimeoutError:
            pytest.fail(
                f"the job did not end within {timeout_s} s; "
                f"{self._last_steps()}\n{self.log_tail()}"
            )

    def must_have_fired(self) -> None:
        """A fault that was armed and never happened proves nothing: the test is invalid then."""
        fired = [fault.fault for fault in self.fired]
        missing = [fault for fault in self.armed if fault not in fired]
        if missing:
            self._must_not_have_stopped(f"before {missing}")
            invalid(f"never fired: {missing}; {self._last_steps()}\n{self.log_tail()}")

    def _must_not_have_stopped(self, when: str) -> None:
        """An error of the product is a failure, whatever fault was still to come."""
        stopped = self.status in (STOPPED_BY_US, FAILED_OTHERWISE)
        assert not stopped, f"the query stopped ({self.error}) {when}\n{self.log_tail()}"

    def must_have_been_killed(self) -> None:
        self.must_have_fired()
        assert self.status == -signal.SIGKILL, f"INVALID: status {self.status}\n{self.log_tail()}"

    def until(self, happened: Callable[[], Any], what: str) -> Any:
        """What ``happened`` returns as soon as it is true.

        Fails when the query ends before with an error. INVALID when it ends well before, or
        nothing comes while a fault is still to fire.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := happened()):
            if self.status is not None and not (
                found := happened()
            ):  # it may have come right before the end
                self._must_not_have_stopped(f"before: {what}")
                invalid(f"ended ({self.status}) before: {what}\n{self.log_tail()}")
            if found:
                break
            if time.monotonic() > deadline:
                armed = len(self.fired) < len(self.armed)
                (invalid if armed else pytest.fail)(
                    f"never: {what}; {self._last_steps()}\n{self.log_tail()}"
                )
            time.sleep(0.05)
        return found

    def until_fired(self) -> None:
        self.until(lambda: len(self.fired) >= len(self.armed), f"faults {self.armed}")

    def until_committed(self, batches: int) -> None:
        self.until(lambda: len(self.steps("commit")) >= batches, f"{batches} commits")

    @property
    def news(self) -> list[dict[str, Any]]:
        return MessageReader(self.settings.news).read()

    def steps(self, step: str, phase: str = "finished") -> list[Step]:
        told = (entry for entry in self.news if entry["what"] == "step")
        found = (Step(e["step"], e["phase"], e["ids"], e["at"], e["error"]) for e in told)
        return [event for event in found if (event.step, event.phase) == (step, phase)]

    @property
    def error(self) -> str | None:
        """The type of the error that stopped the query, once it has."""
        return next((entry["error"] for entry in self.news if entry["what"] == "stopped"), None)

    def go(self) -> None:
        """Let the job go on that ``hold`` has stopped."""
        (Path(self.settings.folder) / "go").touch()

    def log_tail(self, characters: int = 6_000) -> str:
        return f"--- the end of the job's log ---\n{super().log_tail(characters)}"

    def _last_steps(self) -> str:
        return f"last news: {self.news[-8:]}"
