"""Runs the job life after life: starts it, has it killed as planned, starts it again, and says
what happens.

Called by :mod:`onceward_testing.demo.play`, in the demo's main thread. It learns of the job's
doings in three ways that do not depend on the sink: Spark's checkpoint folder, what is visible of
the output, and the file of fired fault points; the job's own news are for the telling (and for the
moment of one kill), never for the verdict.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onceward import events
from onceward_testing.demo.checkpoint import newest_batch, query_progress
from onceward_testing.demo.feed import Feed
from onceward_testing.demo.invalid import DemoInvalid
from onceward_testing.demo.job_news import News
from onceward_testing.demo.job_process import DemoJob
from onceward_testing.demo.kill_plan import Kill
from onceward_testing.demo.outputs.output import Tail
from onceward_testing.demo.screen import Screen
from onceward_testing.demo.settings import DemoSettings, JobSettings
from onceward_testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE, fired_faults

_LISTEN_SECONDS = 0.02
_STOP_SECONDS = 60
_LAST_WORDS_SECONDS = 0.3
_OUTPUT_SETTLES_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Killed:
    """A kill that happened: ``unfinished_batch`` is the one that Spark had begun and not finished,
    if any.
    """

    kill: Kill
    at_seconds: float
    unfinished_batch: int | None


class JobLives:
    """One demo run's lives of the job."""

    def __init__(
        self,
        settings: DemoSettings,
        job: JobSettings,
        screen: Screen,
        feed: Feed,
        tail: Tail,
    ) -> None:
        self._settings = settings
        self._job_settings = job
        self._screen = screen
        self._feed = feed
        self._tail = tail
        self._checkpoint = Path(job.checkpoint)
        self._fired = Path(job.folder) / "faults-fired"
        self._log = Path(job.folder) / "job.log"
        self._lives: list[DemoJob] = []
        self._killed: list[Killed] = []
        self._down_since: float | None = None

    def run(self, plan: tuple[Kill, ...]) -> list[Killed]:
        """Carry out ``plan``, then let the job live until it has written everything, and stop it.

        :raises DemoInvalid: a kill did not happen, the job ended by itself, or it took too long.
        """
        try:
            for number, kill in enumerate(plan, start=1):
                self._live_until_killed(number, kill)
            self._feed.release()
            self._live_to_the_end()
        finally:
            for life in self._lives:
                life.bury()
        return self._killed

    @property
    def batches(self) -> int:
        """Batches in Spark's commit log."""
        newest = newest_batch(self._checkpoint / "commits")
        return 0 if newest is None else newest + 1

    def _live_until_killed(self, number: int, kill: Kill) -> None:
        job = self._start(kill)
        due = self._trigger(kill)
        while job.status is None:
            news = self._listen(job)
            if self._feed.is_through(self._checkpoint):
                raise DemoInvalid(
                    f"kill {number} ({kill.where}) never happened: the job finished first",
                    next_step="use more --records, or more --seconds",
                )
            if due(news):
                job.kill()
        self._record(number, kill, job)

    def _live_to_the_end(self) -> None:
        job = self._start(None)
        while not self._feed.is_through(self._checkpoint):
            self._listen(job)
            if job.status is not None:
                raise self._ended_by_itself(job)
        self._screen.say("everything is written; stopping the job")
        if job.stop(_STOP_SECONDS) != 0:
            raise self._ended_by_itself(job)
        self._show_progress()

    def _start(self, kill: Kill | None) -> DemoJob:
        self._fired.unlink(
            missing_ok=True
        )  # a fault fires once as long as it stands there, and a plan may repeat it
        environment = {
            FAULTS_VARIABLE: kill.fault if kill else "",
            FIRED_VARIABLE: str(self._fired),
        }
        what = "starting the job" if not self._lives else "starting the job again"
        self._screen.say(f"{what}{f', to be killed {kill.where}' if kill else ', for good'}")
        job = DemoJob(self._job_settings, environment, self._log)
        self._lives.append(job)
        return job

    def _trigger(self, kill: Kill) -> Callable[[News | None], bool]:
        """A function that is asked again and again, with the newest news, whether to kill now."""
        if kill.trigger == "after_the_start":
            began = time.monotonic()
            return lambda _news: time.monotonic() >= began + kill.delay_s
        if kill.trigger == "after_a_commit":
            return _AfterACommit(kill.delay_s)
        if kill.trigger == "output_grows":
            begun = newest_batch(self._checkpoint / "offsets")
            return _OutputGrows(self._checkpoint, self._tail, -1 if begun is None else begun)
        return lambda _news: False  # the job does it itself

    def _listen(self, job: DemoJob, timeout_s: float = _LISTEN_SECONDS) -> News | None:
        news = job.next_news(timeout_s)
        if news is not None:
            self._hear(news)
        self._show_progress()
        limit_s = self._settings.limit_seconds * (1 + (self._settings.kills or 0) / 10)
        if self._screen.seconds > limit_s:
            raise DemoInvalid(
                f"not done after {limit_s:g} s\n{job.log_tail()}",
                next_step="look at the job's log above",
            )
        return news

    def _hear(self, news: News) -> None:
        if news.what == "running" and len(self._lives) == 1:
            self._screen.say(f"the query runs; {self._feed.begins}")
            self._feed.start()
        if news.what == "started again":
            self._screen.say(
                "a schema that the query did not know: it is asked for, and the query goes on "
                "with it"
            )
        if news.is_step(events.REPLAY, "finished"):
            self._back(
                f"batch {news.batch_id} is in the ledger already: replayed for its state, nothing "
                f"sent"
            )
        elif news.is_step(events.COMMIT, "finished"):
            again = self._killed and news.batch_id == self._killed[-1].unfinished_batch
            how = "run again and committed" if again else "committed"
            self._back(f"batch {news.batch_id} {how}{_as_who(news)}")
        elif news.is_step(events.ABORT, "started"):
            self._screen.say(f"batch {news.batch_id} is being aborted and will run again")
        elif news.what == "running" and not self._settings.exactly_once:
            self._back("Spark runs the unfinished batch again, and writes its records once more")

    def _back(self, how: str) -> None:
        if self._down_since is not None:
            down = self._screen.seconds - self._down_since
            self._down_since = None
            self._screen.say(f"back after {down:.1f} s: {how}", "green")

    def _record(self, number: int, kill: Kill, job: DemoJob) -> None:
        while (news := job.next_news(_LAST_WORDS_SECONDS)) is not None:
            self._hear(news)
        if job.status != -signal.SIGKILL:
            raise self._ended_by_itself(job)
        if kill.fault and kill.fault not in {entry.fault for entry in fired_faults(self._fired)}:
            raise DemoInvalid(
                f"fault {kill.fault} never fired, yet the job was killed", next_step="run it again"
            )
        begun, finished = (newest_batch(self._checkpoint / log) for log in ("offsets", "commits"))
        unfinished = begun if begun is not None and begun != finished else None
        self._killed.append(Killed(kill, self._screen.seconds, unfinished))
        self._down_since = self._screen.seconds
        batch = f"batch {unfinished} unfinished" if unfinished is not None else "between batches"
        self._screen.say(
            f"kill -9, number {number}: {kill.where} ({batch}). "
            f"{kill.meaning[:1].upper()}{kill.meaning[1:]}".rstrip(),
            "red",
        )

    def _show_progress(self) -> None:
        self._screen.advance(self._feed.written_words, self._feed.sent, self._feed.planned)
        self._screen.advance(self._feed.visible_words, self._tail.visible, self._feed.to_be_seen)

    def _ended_by_itself(self, job: DemoJob) -> DemoInvalid:
        return DemoInvalid(
            f"the job ended by itself with status {job.status}\n--- the end of its log "
            f"---\n{job.log_tail()}",
            next_step="read the error above",
        )


def _as_who(news: News) -> str:
    """By which of the pipeline's attempts, in its target's words."""
    if "epoch" in news.details:
        return f" under epoch {news.details['epoch']}"
    return f" as {news.details['attempt']}" if "attempt" in news.details else ""


class _AfterACommit:
    """Due some time after this life's first commit."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: float | None = None

    def __call__(self, news: News | None) -> bool:
        if self._due is None and news is not None and news.is_step(events.COMMIT, "finished"):
            self._due = time.monotonic() + self._delay_s
        return self._due is not None and time.monotonic() >= self._due


class _OutputGrows:
    """Due when records show up in the output that belong to a batch after ``begun``.

    Not while the batch that was interrupted last is written again: that one is a duplicate
    already.
    """

    def __init__(self, checkpoint: Path, tail: Tail, begun: int) -> None:
        self._checkpoint = checkpoint
        self._tail = tail
        self._begun = begun
        self._settled_at: float | None = None
        self._visible: int | None = None

    def __call__(self, _news: News | None) -> bool:
        if self._visible is not None:
            return self._tail.visible > self._visible
        progress = query_progress(self._checkpoint)
        if self._settled_at is None:
            if self._begun < 0 or (progress is not None and progress.batch_id >= self._begun):
                self._settled_at = time.monotonic() + _OUTPUT_SETTLES_SECONDS
        elif time.monotonic() >= self._settled_at:
            self._visible = self._tail.visible
        return False
