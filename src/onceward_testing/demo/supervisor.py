"""Start the job, kill it as planned, start it again, and show what happens.

Called by :mod:`onceward_testing.demo.run`, in the demo's main thread. It watches the job in three
ways that do not depend on the sink: Spark's checkpoint folder, what is visible of the output, and
the file of fired fault points. The job's own messages are for the screen (and for the moment of
one kill), never for the verdict.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceward import events
from onceward.errors import OncewardError
from onceward_testing.demo.input import DemoInput
from onceward_testing.demo.kill_plan import Kill
from onceward_testing.demo.outputs import VisibleCount
from onceward_testing.demo.report import Screen
from onceward_testing.demo.settings import DemoJobSettings, DemoSettings
from onceward_testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE, fired_faults
from onceward_testing.job_messages import MessageReader
from onceward_testing.job_process import JobProcess, spark_home

_POLL_SECONDS = 0.02
_STOP_SECONDS = 60
_OUTPUT_SETTLES_SECONDS = 0.5

Message = dict[str, Any]


class DemoInvalid(OncewardError):
    """The run did not go as planned (a planned kill never happened, the job ended by itself, time
    ran out): whatever its output looks like, it is no proof."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """``batch_id``: the newest batch in Spark's commit log.

    ``watermark_ms``: the watermark that batch ran with.
    """

    batch_id: int
    watermark_ms: int


def query_progress(checkpoint: Path) -> QueryProgress | None:
    """Return the newest finished batch, None before the first one.

    ``offsets/<batch>`` holds, as lines, ``v1``, a JSON object of batch metadata and one line per
    source; ``commits/<batch>`` exists once Spark has finished the batch (``OffsetSeqLog``,
    ``CommitLog``). Both are renamed into place, so they can be read while the job writes.
    """
    newest = newest_batch(checkpoint / "commits")
    if newest is None:
        return None
    metadata = json.loads((checkpoint / "offsets" / str(newest)).read_text().splitlines()[1])
    return QueryProgress(newest, int(metadata["batchWatermarkMs"]))


def newest_batch(folder: Path) -> int | None:
    """Return the highest batch number in one of the checkpoint's logs."""
    try:
        return max(
            (int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()), default=None
        )
    except FileNotFoundError:
        return None


class Supervisor:
    """Owner of all runs of the job in one demo."""

    def __init__(
        self,
        settings: DemoSettings,
        job: DemoJobSettings,
        screen: Screen,
        source: DemoInput,
        visible: VisibleCount,
    ) -> None:
        self._settings = settings
        self._job_settings = job
        self._screen = screen
        self._input = source
        self._visible = visible
        self._checkpoint = Path(job.checkpoint)
        self._messages = MessageReader(job.messages)
        self._fired = Path(job.folder) / "faults-fired"
        self._jobs: list[JobProcess] = []
        self._kills: list[Kill] = []
        self._interrupted: int | None = None
        """The batch that Spark had begun and not finished at the last kill, if any."""
        self._down_since: float | None = None

    def run(self, plan: tuple[Kill, ...]) -> list[Kill]:
        """Carry out ``plan``, then let the job run until it has written everything, and stop it.
        Return the kills.

        :raises DemoInvalid: a kill did not happen, the job ended by itself, or it took too long.
        """
        try:
            for number, kill in enumerate(plan, start=1):
                self._run_until_killed(number, kill)
            self._input.release()
            self._run_to_the_end()
        finally:
            for job in self._jobs:
                job.end_all()
        return self._kills

    @property
    def batches(self) -> int:
        """Return the number of batches in Spark's commit log."""
        newest = newest_batch(self._checkpoint / "commits")
        return 0 if newest is None else newest + 1

    def _run_until_killed(self, number: int, kill: Kill) -> None:
        job = self._start(kill)
        is_due = self._trigger(kill)
        while job.status is None:
            messages = self._watch(job)
            if self._input.is_through(self._checkpoint):
                raise DemoInvalid(
                    f"kill {number} ({kill.where}) never happened: the job finished first",
                    next_step="use more --records, or more --seconds",
                )
            if is_due(messages):
                job.kill()
        self._note_kill(number, kill, job)

    def _run_to_the_end(self) -> None:
        job = self._start(None)
        while not self._input.is_through(self._checkpoint):
            self._watch(job)
            if job.status is not None:
                raise _ended_by_itself(job)
        self._screen.say("everything is written; stopping the job")
        if job.stop(_STOP_SECONDS) != 0:
            raise _ended_by_itself(job)
        self._show_progress()

    def _start(self, kill: Kill | None) -> JobProcess:
        # A fault fires once as long as it stands there, and a plan may repeat it.
        self._fired.unlink(missing_ok=True)
        again = " again" if self._jobs else ""
        self._screen.say(
            f"starting the job{again}, {f'to be killed {kill.where}' if kill else 'for good'}"
        )
        folder = Path(self._job_settings.folder)
        job = JobProcess(
            [sys.executable, "-m", "onceward_testing.demo.job", self._job_settings.to_json()],
            folder=folder,
            log=folder / "job.log",
            environment={
                "SPARK_HOME": str(spark_home(folder)),
                FAULTS_VARIABLE: kill.fault if kill else "",
                FIRED_VARIABLE: str(self._fired),
            },
        )
        self._jobs.append(job)
        return job

    def _trigger(self, kill: Kill) -> Callable[[list[Message]], bool]:
        """Return a function that is asked again and again, with the newest messages, whether to
        kill now."""
        if kill.trigger == "after_the_start":
            due = time.monotonic() + kill.delay_s
            return lambda _: time.monotonic() >= due
        if kill.trigger == "after_a_commit":
            return AfterACommit(kill.delay_s)
        if kill.trigger == "output_grows":
            begun = newest_batch(self._checkpoint / "offsets")
            return OutputGrows(self._checkpoint, self._visible, -1 if begun is None else begun)
        return lambda _: False  # the job does it itself

    def _watch(self, job: JobProcess) -> list[Message]:
        time.sleep(_POLL_SECONDS)
        messages = self._messages.read()
        for message in messages:
            self._show(message)
        self._show_progress()
        limit_s = self._settings.longest_seconds
        if self._screen.seconds > limit_s:
            raise DemoInvalid(
                f"not done after {limit_s:g} s\n{job.log_tail()}",
                next_step="look at the job's log above",
            )
        return messages

    def _show(self, message: Message) -> None:
        batch = message.get("batch_id")
        if message["what"] == "running" and len(self._jobs) == 1:
            self._screen.say(f"the query runs; {self._input.begins}")
            self._input.start()
        elif message["what"] == "running" and not self._settings.exactly_once:
            self._back("Spark runs the unfinished batch again, and writes its records once more")
        elif message["what"] == "started again":
            self._screen.say(
                "the query restarts with a schema that the registry has and it did not know"
            )
        elif is_step(message, events.REPLAY, "finished"):
            self._back(
                f"batch {batch} is in the ledger already: replayed for its state, nothing sent"
            )
        elif is_step(message, events.COMMIT, "finished"):
            again = "run again and " if batch is not None and batch == self._interrupted else ""
            self._back(f"batch {batch} {again}committed{_attempt(message)}")
        elif is_step(message, events.ABORT, "started"):
            self._screen.say(f"batch {batch} is being aborted and will run again")

    def _back(self, how: str) -> None:
        if self._down_since is not None:
            down = self._screen.seconds - self._down_since
            self._down_since = None
            self._screen.say(f"back after {down:.1f} s: {how}", "green")

    def _note_kill(self, number: int, kill: Kill, job: JobProcess) -> None:
        for message in self._messages.read():
            self._show(message)
        if job.status != -signal.SIGKILL:
            raise _ended_by_itself(job)
        if kill.fault and kill.fault not in {entry.fault for entry in fired_faults(self._fired)}:
            raise DemoInvalid(
                f"fault {kill.fault} never fired, yet the job was killed", next_step="run it again"
            )
        begun, finished = (newest_batch(self._checkpoint / log) for log in ("offsets", "commits"))
        self._interrupted = begun if begun != finished else None
        self._kills.append(kill)
        self._down_since = self._screen.seconds
        batch = (
            "between batches"
            if self._interrupted is None
            else f"batch {self._interrupted} unfinished"
        )
        meaning = f"{kill.meaning[:1].upper()}{kill.meaning[1:]}"
        self._screen.say(
            f"kill -9, number {number}: {kill.where} ({batch}). {meaning}".rstrip(), "red"
        )

    def _show_progress(self) -> None:
        self._screen.advance(self._input.unit_written, self._input.written, self._input.planned)
        self._screen.advance(
            self._input.unit_visible, self._visible.rows, self._input.to_be_visible
        )


def is_step(message: Message, step: str, phase: str) -> bool:
    """Return whether the job tells that ``step`` of the engine came to ``phase``."""
    return message["what"] == "step" and (message["step"], message["phase"]) == (step, phase)


def _attempt(message: Message) -> str:
    """Name the pipeline's attempt in its target's words."""
    if "epoch" in message:
        return f" under epoch {message['epoch']}"
    return f" as {message['attempt']}" if "attempt" in message else ""


def _ended_by_itself(job: JobProcess) -> DemoInvalid:
    return DemoInvalid(
        f"the job ended by itself with status {job.status}. The end of its log:\n{job.log_tail()}",
        next_step="read the error above",
    )


class AfterACommit:
    """Due some time after the job's first commit since its start."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: float | None = None

    def __call__(self, messages: list[Message]) -> bool:
        if self._due is None and any(
            is_step(message, events.COMMIT, "finished") for message in messages
        ):
            self._due = time.monotonic() + self._delay_s
        return self._due is not None and time.monotonic() >= self._due


class OutputGrows:
    """Due when records show up in the output that belong to a batch after ``begun``.

    Not while the batch that was interrupted last is written again: that one is a duplicate
    already.
    """

    def __init__(self, checkpoint: Path, visible: VisibleCount, begun: int) -> None:
        self._checkpoint = checkpoint
        self._visible = visible
        self._begun = begun
        self._settled_at: float | None = None
        self.rows_before: int | None = None

    def __call__(self, _messages: list[Message]) -> bool:
        if self.rows_before is not None:
            return self._visible.rows > self.rows_before
        progress = query_progress(self._checkpoint)
        if self._settled_at is None:
            if self._begun < 0 or (progress is not None and progress.batch_id >= self._begun):
                self._settled_at = time.monotonic() + _OUTPUT_SETTLES_SECONDS
        elif time.monotonic() >= self._settled_at:
            self.rows_before = self._visible.rows
        return False
