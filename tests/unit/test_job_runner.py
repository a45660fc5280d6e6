"""``onceward run`` in virtual time: delays and end of each restart strategy, under a job that
fails *n* times, and what becomes of signals.
"""

from __future__ import annotations

import errno
import math
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from onceward import durable, events, surroundings
from onceward.cli.run import Restart, restart_strategy
from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.operate import run_job
from onceward.operate.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from onceward.operate.run_job import COMMITTED, REPLAYED
from onceward.operate.runner import JobRunner

KILLED = -signal.SIGKILL


class Clock:
    """Virtual time, and a queue of signals that come at a time."""

    def __init__(self, signals: list[float]) -> None:
        self.now = 0.0
        self._signals = list(signals)
        self.pauses: list[float] = []

    def put(self, number: int) -> None:
        raise AssertionError("no real signal is sent here")

    def get(self, timeout: float) -> int:
        if timeout > 0.5:
            self.pauses.append(timeout)
        if self._signals and self._signals[0] <= self.now + timeout:
            self.now = max(self.now, self._signals.pop(0))
            return signal.SIGTERM
        self.now += timeout
        raise queue.Empty


class Child:
    """A process of the job that ends after ``seconds`` with ``ending``, or as it answers."""

    def __init__(
        self,
        clock: Clock,
        ending: int = 1,
        seconds: float = 1,
        *,
        commits: bool = True,
        replays: bool = False,
        answers: tuple[int | None, ...] = (),
        cannot_start: bool = False,
    ) -> None:
        self._clock = clock
        self.pid = 1
        self._ending, self._seconds = ending, seconds
        self._told = COMMITTED * commits + REPLAYED * replays
        self._answers = list(answers)
        self.killed = False
        self.asked = 0
        self.cannot_start = cannot_start
        self.worked: bool | None = None
        self.failing_since: float | None = None
        self.patience: float | None = None

    def begin(self) -> Child:
        self._ends_at = self._clock.now + self._seconds
        return self

    def status(self) -> int | None:
        return self._ending if self._clock.now >= self._ends_at else None

    def reap_orphans(self) -> None:
        """Nothing is left behind."""

    def told(self) -> bytes:
        return self._told

    def ask_to_end(self) -> None:
        self.asked += 1
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            self._ending, self._ends_at = answer, self._clock.now

    def kill(self) -> None:
        self.killed = True
        self._ending, self._ends_at = KILLED, self._clock.now

    def close(self, patience_s: float) -> None:
        self.patience = patience_s


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs children one after the other; returns status, pauses and children."""

    def go(
        strategy: Any, *lives: dict[str, Any], signals: tuple[float, ...] = ()
    ) -> tuple[int, list[float], list[Child]]:
        clock = Clock(list(signals))
        children = [Child(clock, **life) for life in lives]
        left = list(children)

        def start(arguments: list[str], *, worked: bool, failing_since: float | None) -> Child:
            child = left.pop(0)
            child.worked, child.failing_since = worked, failing_since
            if child.cannot_start:
                clock.now += 1
                raise BlockingIOError("Resource temporarily unavailable")
            return child.begin()

        monkeypatch.setattr(surroundings, "monotonic", lambda: clock.now)
        monkeypatch.setattr(surroundings, "wall_clock", lambda: 1_000.0 + clock.now)
        monkeypatch.setattr(surroundings, "SimpleQueue", lambda: clock)
        monkeypatch.setattr(surroundings, "jitter", lambda low, high: 0.5)
        monkeypatch.setattr("onceward.operate.runner.ChildJob", start)
        status = JobRunner(["job.py"], strategy).run()
        started = children[: len(children) - len(left)]
        return status, [round(pause, 3) for pause in clock.pauses], started

    return go


FAILS = {"ending": 75}
ENDS = {"ending": 0}


@pytest.mark.parametrize(
    ("strategy", "failures", "pauses", "status"),
    [
        (NoRestart(), 1, [], 75),
        (FixedDelay(attempts=3, delay_s=7), 3, [7, 7, 7], 0),
        (FixedDelay(attempts=3, delay_s=7), 4, [7, 7, 7], 75),
        (FixedDelay(delay_s=7), 6, [7] * 6, 0),
        (ExponentialDelay(multiplier=2, max_s=10, jitter=0), 6, [1, 2, 4, 8, 10, 10], 0),
        (ExponentialDelay(multiplier=2, jitter=0, attempts=2), 3, [1, 2], 75),
        (FailureRate(max_failures=2, interval_s=60, delay_s=3), 3, [3, 3], 75),
        (FailureRate(max_failures=2, interval_s=5, delay_s=3), 6, [3] * 6, 0),
    ],
    ids=str,
)
def test_each_strategy_has_its_delays_and_its_end(
    run: Any, strategy: Any, failures: int, pauses: list[float], status: int
):
    ended, waited, children = run(strategy, *[FAILS] * failures, ENDS)
    assert (ended, waited) == (status, pauses)
    assert len(children) == failures + (status == 0)


@pytest.mark.parametrize("ending", [1, 2, 3, 75, 137, KILLED, -signal.SIGSEGV])
def test_what_may_pass_is_started_again(run: Any, ending: int):
    status, _, children = run(FixedDelay(delay_s=1), {"ending": ending}, ENDS)
    assert (status, len(children)) == (0, 2)


@pytest.mark.parametrize("ending", [0, 64, 78, 79])
def test_what_is_final_is_not(run: Any, ending: int):
    status, pauses, children = run(FixedDelay(delay_s=1), {"ending": ending}, ENDS)
    assert (status, pauses, len(children)) == (ending, [], 1)


@pytest.mark.parametrize(("ending", "status"), [(75, 75), (1, 1), (KILLED, 137)])
def test_the_last_failures_status_is_the_runners(run: Any, ending: int, status: int):
    assert run(NoRestart(), {"ending": ending})[0] == status


def test_without_a_batch_in_between_pauses_grow_whatever_the_strategy(run: Any):
    stuck = {"ending": 1, "commits": False}
    _, pauses, _ = run(FixedDelay(delay_s=1), *[stuck] * 5, FAILS, ENDS)
    assert pauses == [1, 1, 2, 4, 8, 1]


def test_a_replay_is_no_progress_but_says_that_the_pipeline_has_worked(run: Any):
    """Of a batch that is in the ledger, where Spark's own log of it cannot be written."""
    replays = {"ending": 75, "commits": False, "replays": True}
    _, pauses, children = run(FixedDelay(delay_s=1), *[replays] * 5, ENDS)
    _, none, _ = run(FixedDelay(delay_s=1), *[{"ending": 75, "commits": False}] * 5, ENDS)
    assert pauses == none
    assert pauses[-1] > 1
    assert [child.worked for child in children] == [False, *[True] * 5]
    since = [child.failing_since for child in children]
    assert since == [None, *[1_000.0] * 5]


def test_a_job_tells_its_runner_of_a_replay_and_of_a_commit_once(
    monkeypatch: pytest.MonkeyPatch,
):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    monkeypatch.setenv(run_job.SOCKET, str(theirs.detach()))
    is_gone = threading.Event()
    monkeypatch.setattr("onceward.operate.stopping.request", is_gone.set)
    with ours:
        link = run_job.RunnerLink()
        for step, values, told in (
            (events.FINISH, {"replayed": True}, b"r"),
            (events.FINISH, {"replayed": True}, b""),
            (events.COMMIT, {}, b""),
            # What is published behind it may be so in another process
            (events.COMMIT, {"records": 7}, b"c"),
            (events.FINISH, {"replayed": False}, b""),
        ):
            with events.step(step, pipeline="p", batch_id=7) as found:
                found |= values
            assert link.worked_before
            try:
                assert ours.recv(16) == told
            except BlockingIOError:
                assert told == b""
    assert is_gone.wait(30)


def test_a_process_that_cannot_be_started_now_is_a_failure_as_any_other(run: Any):
    """Memory may be used up, which is why the one before was killed."""
    lives = [{"ending": -9, "commits": False}, *[{"cannot_start": True}] * 2, ENDS]
    status, pauses, children = run(FixedDelay(delay_s=7), *lives)
    assert (status, len(children)) == (0, 4)
    assert pauses == [7, 7, 7]


def test_a_later_process_knows_since_when_none_has_committed(run: Any):
    fails = {"ending": 75, "commits": False}
    _, _, children = run(FixedDelay(delay_s=7), FAILS, fails, fails, ENDS)
    first, *later = [child.failing_since for child in children]
    assert (first, later[0]) == (None, None)
    # That of the first which has committed nothing
    assert later[1] == pytest.approx(later[2])
    assert later[1] > 1_000


def test_a_later_process_knows_that_an_earlier_one_has_worked(run: Any):
    stuck = {"ending": 1, "commits": False}
    _, _, children = run(FixedDelay(delay_s=1), stuck, FAILS, stuck, ENDS)
    assert [child.worked for child in children] == [False, False, True, True]


def test_a_folder_that_stays_changes_no_status(run: Any, monkeypatch: pytest.MonkeyPatch):
    """Its file system may be read-only by then."""

    def refuse(*_: Any, onerror: Any = None, onexc: Any = None, **__: Any) -> None:
        try:
            raise OSError(errno.EROFS, "Read-only file system")
        except OSError as error:
            (onexc or onerror)(os.rmdir, "folder", error if onexc else (type(error), error, None))

    monkeypatch.setattr(tempfile._shutil, "rmtree", refuse)  # type: ignore[attr-defined]
    assert run(NoRestart(), {"ending": 79})[0] == 79


def test_what_a_process_has_kept_is_not_old_when_the_next_one_needs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
):
    """Whoever cleans /tmp removes what is ten days old."""
    begin = Child.begin
    ages: list[float] = []

    def kept() -> list[Path]:
        return list(Path(os.environ[durable.RUN_FOLDER]).iterdir())

    def keeping(child: Child) -> Child:
        durable.keep("the checkpoint's place", "a query")
        for path in kept():
            os.utime(path, (0, 0))
        return begin(child)

    monkeypatch.setattr(Child, "begin", keeping)
    monkeypatch.setattr(
        Child, "told", lambda _: ages.extend(each.stat().st_mtime for each in kept()) or b""
    )
    run(NoRestart(), ENDS | {"seconds": 7_300})
    assert ages
    assert min(ages) > 0


def test_one_signal_ends_the_job_with_its_batch_however_long_that_takes(run: Any):
    life = {"ending": 0, "seconds": 3_000}
    status, _, [child] = run(FixedDelay(), life, ENDS, signals=(10,))
    assert (status, child.asked, child.killed) == (0, 1, False)
    assert child.patience > 0


@pytest.mark.parametrize(("answer", "status"), [(0, 0), (75, 75), (-signal.SIGTERM, 0)])
def test_after_a_signal_there_is_no_restart(run: Any, answer: int, status: int):
    """-SIGTERM: the job had not come to its first line."""
    life = {"seconds": 1e9, "answers": (answer,)}
    assert run(FixedDelay(), life, ENDS, signals=(10,))[0] == status


def test_the_second_signal_is_passed_on_and_waits_for_nothing(run: Any):
    life = {"seconds": 1e9, "answers": (None, 143)}
    status, _, [child] = run(FixedDelay(), life, signals=(10, 11))
    assert (status, child.asked, child.killed, child.patience) == (143, 2, False, 0)


def test_a_job_that_does_not_end_is_killed(run: Any):
    life = {"seconds": 1e9}
    status, _, [child] = run(FixedDelay(), life, signals=(10, 11, 12))
    assert (status, child.killed) == (137, True)


def test_a_signal_in_a_pause_ends_the_runner_with_the_last_status(run: Any):
    status, _, children = run(FixedDelay(delay_s=3_600), FAILS, ENDS, signals=(10,))
    assert (status, len(children)) == (75, 1)


@pytest.mark.parametrize(
    ("restart", "given", "strategy"),
    [
        (Restart.NONE, {}, NoRestart()),
        (Restart.EXPONENTIAL_DELAY, {}, ExponentialDelay()),
        (
            Restart.EXPONENTIAL_DELAY,
            {
                "initial-backoff": "500 ms",
                "max-backoff": "2 min",
                "backoff-multiplier": 2.0,
                "reset-backoff-threshold": "1h",
                "jitter-factor": 0.0,
                "attempts-before-reset-backoff": 4,
            },
            ExponentialDelay(0.5, 120, 2.0, 0.0, 3600, 4),
        ),
        (Restart.FIXED_DELAY, {"attempts": 3, "delay": "10"}, FixedDelay(3, 10)),
        (
            Restart.FAILURE_RATE,
            {"max-failures-per-interval": 3, "failure-rate-interval": "5 min", "delay": "1 s"},
            FailureRate(3, 300, 1),
        ),
    ],
    ids=str,
)
def test_settings_have_flinks_names(restart: Restart, given: dict[str, object], strategy: Any):
    assert restart_strategy(restart, given) == strategy


def test_a_setting_of_another_strategy_is_refused_by_name():
    with pytest.raises(ContradictoryOptions, match="--attempts") as refused:
        restart_strategy(Restart.FAILURE_RATE, {"attempts": 3})
    assert "--restart fixed-delay" in refused.value.next_step
    with pytest.raises(ConfigurationError, match="--delay='soon'"):
        restart_strategy(Restart.FIXED_DELAY, {"delay": "soon"})


@pytest.mark.parametrize(
    ("restart", "given", "step"),
    [
        (Restart.FIXED_DELAY, {"attempts": 0}, "set --attempts to 1 or more, or leave it out"),
        (
            Restart.EXPONENTIAL_DELAY,
            {"jitter-factor": math.inf},
            "set --jitter-factor to a number from 0 to 1",
        ),
    ],
)
def test_a_step_is_in_the_words_of_a_command_line(
    restart: Restart, given: dict[str, object], step: str
):
    with pytest.raises(ConfigurationError) as refused:
        restart_strategy(restart, given)
    assert refused.value.next_step == step


def exits(code: object = None) -> Callable[[str], None]:
    def end(job: str) -> None:
        raise SystemExit(code)

    return end


@pytest.mark.parametrize("requested", [True, False])
@pytest.mark.parametrize(
    ("run_file", "status"),
    [(lambda job: None, 0), (exits(), 0), (exits(0), 0), (exits(3), 3), (exits("why"), 1)],
    ids=["returns", "exits", "exits with 0", "exits with 3", "exits with a text"],
)
def test_threads_hold_up_no_job_that_failed_or_is_to_stop(
    run_file: Callable[[str], None], status: int, requested: bool, monkeypatch: pytest.MonkeyPatch
):
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for name in ("RunnerLink", "keep_status"):
        monkeypatch.setattr(run_job, name, lambda: None)
    monkeypatch.setattr(run_job.stopping, "answer_sigterm", lambda: None)
    monkeypatch.setattr(run_job.stopping, "_is_requested", requested)
    monkeypatch.setattr(run_job, "_run_file", run_file)
    monkeypatch.setattr(run_job, "_END_SECONDS", 0)
    monkeypatch.setattr(os, "_exit", ended.put)
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", ["", *sys.path])
    with suppress(SystemExit):
        run_job.main(["job.py"])
    if status or requested:
        assert ended.get(timeout=30) == status
    else:
        assert "onceward-end" not in [each.name for each in threading.enumerate()]
        assert ended.empty()


def raises(error: BaseException) -> Callable[[str], None]:
    def end(job: str) -> None:
        raise error

    return end


@pytest.mark.parametrize(
    ("execute", "ending"),
    [
        (lambda job: None, None),
        (exits(0), SystemExit),
        (exits(3), SystemExit),
        (raises(ValueError("a query has failed in its last batch")), ValueError),
    ],
    ids=["returns", "exits with 0", "exits with 3", "fails"],
)
def test_a_file_that_waits_for_one_of_its_queries_cuts_off_no_other_one(
    execute: Callable[[str], None], ending: Any, monkeypatch: pytest.MonkeyPatch
):
    """``spark.streams.awaitAnyTermination()`` returns when SIGTERM has ended the first."""
    in_a_batch = [True, True, True]

    def has_queries() -> bool:
        return bool(in_a_batch and in_a_batch.pop())

    monkeypatch.setattr(run_job.stopping, "_is_requested", True)
    monkeypatch.setattr(run_job, "_execute", execute)
    monkeypatch.setattr(run_job, "_has_queries", has_queries)
    monkeypatch.setattr(surroundings, "sleep", lambda seconds: None)
    with pytest.raises(ending) if ending else nullcontext():
        run_job._run_file("job.py")
    assert in_a_batch == []


def test_a_file_that_ends_by_itself_ends_the_job_with_queries_that_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
):
    """As under ``python``: only who was told to stop waits for the end of batches."""
    monkeypatch.setattr(run_job.stopping, "_is_requested", False)
    monkeypatch.setattr(run_job, "_execute", lambda job: None)
    monkeypatch.setattr(run_job, "_has_queries", lambda: True)
    run_job._run_file("job.py")
