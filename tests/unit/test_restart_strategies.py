"""When a failed query is started again: the strategies alone, and the loop around them with
queries that are told.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException

import onceward as ow
from onceward import events, patience, surroundings
from onceward.engine.calls import gate, runs
from onceward.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    CheckpointReplaced,
    CheckpointUnreachable,
    ConfigurationError,
    Fenced,
    NewSchemaId,
    OncewardError,
    PartitionsAdded,
    SendFailed,
)
from onceward.ids import PipelineId
from onceward.operate import supervise as supervising
from onceward.operate import waiting
from onceward.operate.restart import Failure, RestartStrategy, least_pause
from onceward.spark.batch.checkpoint_files import PLAN_ANEW
from support.errors import raises


def row(*lives: float, pause: float = 0.0, chance: float = 0.5) -> list[Failure]:
    """Failures after lives of so many seconds, with ``pause`` between them."""
    now, found = 0.0, []
    for life in lives:
        found.append(Failure(now, now + life, chance))
        now += life + pause
    return found


def delays(strategy: RestartStrategy, failures: list[Failure]) -> list[float | None]:
    """What the strategy says after each of them."""
    return [strategy.delay(failures[: number + 1]) for number in range(len(failures))]


def test_no_restart_is_none():
    assert delays(ow.restart.NoRestart(), row(1, 1)) == [None, None]


def test_a_fixed_delay_is_the_same_until_it_is_used_up():
    assert delays(ow.restart.FixedDelay(attempts=2, delay_s=3), row(1, 1000, 1)) == [3, 3, None]
    assert delays(ow.restart.FixedDelay(delay_s=3), row(*[1] * 50))[-1] == 3


def test_an_exponential_delay_grows_to_its_maximum():
    strategy = ow.restart.ExponentialDelay(initial_s=1, max_s=5, multiplier=2, jitter=0)
    assert delays(strategy, row(*[0] * 5)) == [1, 2, 4, 5, 5]
    assert strategy.delay(row(*[0] * 5000)) == 5, "no overflow"


def test_a_stable_time_begins_the_row_anew():
    strategy = ow.restart.ExponentialDelay(
        initial_s=1, max_s=60, multiplier=2, jitter=0, reset_after_s=100, attempts=2
    )
    assert delays(strategy, row(5, 5, 100, 5, 99.9)) == [1, 2, 1, 2, None]


def test_a_pause_is_no_stable_time():
    """Only a query that runs proves anything."""
    strategy = ow.restart.ExponentialDelay(
        initial_s=1, max_s=60, multiplier=2, jitter=0, reset_after_s=100
    )
    assert delays(strategy, row(5, 5, 5, pause=200)) == [1, 2, 4]


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_jitter_spreads_a_pause_by_its_part_and_never_beyond_the_maximum(
    count: int, chance: float, jitter: float
):
    plain = ow.restart.ExponentialDelay(jitter=0).delay(row(*[0] * count))
    spread = ow.restart.ExponentialDelay(jitter=jitter).delay(row(*[0] * count, chance=chance))
    assert plain is not None
    assert spread is not None
    assert plain * (1 - jitter) <= spread <= min(60.0, plain * (1 + jitter))


def test_a_failure_rate_looks_at_an_interval_only():
    strategy = ow.restart.FailureRate(max_failures=2, interval_s=10, delay_s=0.5)
    assert delays(strategy, row(1, 1, 20, 1)) == [0.5, 0.5, 0.5, 0.5]
    assert delays(strategy, row(1, 1, 1)) == [0.5, 0.5, None]


def test_without_progress_pauses_grow_to_minutes():
    without = row(*[1] * 14)
    assert [least_pause(without[: number + 1]) for number in range(11)] == [
        0,
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        300,
    ]
    assert least_pause(row(*[0] * 5000)) == 300, "no overflow"
    progressed = [Failure(0, 1, progressed=True)]
    assert least_pause([*without, *progressed]) == 0
    assert [least_pause([*without, *progressed, *without[:number]]) for number in (1, 2, 3)] == [
        0,
        1,
        2,
    ]
    assert least_pause(row(*[1] * 4, chance=0.0)) < least_pause(row(*[1] * 4, chance=0.9))


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: ow.restart.FixedDelay(attempts=0), "attempts"),
        (lambda: ow.restart.FixedDelay(delay_s=-1), "delay_s"),
        (lambda: ow.restart.ExponentialDelay(initial_s=0), "initial_s"),
        (lambda: ow.restart.ExponentialDelay(initial_s=10, max_s=5), "max_s"),
        (lambda: ow.restart.ExponentialDelay(multiplier=0.5), "multiplier"),
        (lambda: ow.restart.ExponentialDelay(jitter=1.5), "jitter"),
        (lambda: ow.restart.ExponentialDelay(reset_after_s=math.nan), "reset_after_s"),
        (lambda: ow.restart.FailureRate(max_failures=0), "max_failures"),
        (lambda: ow.restart.FailureRate(interval_s=0), "interval_s"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, setting: str):
    with pytest.raises(ConfigurationError, match=setting) as refused:
        make()
    assert setting in refused.value.next_step


class Life:
    """A query as far as the supervisor knows it: it ends with ``error``, well, or when it is
    stopped.

    :param commits: how many batches it commits before it ends.
    """

    id = runId = name = "life"  # noqa: N815 — Spark's name

    def __init__(
        self, error: BaseException | None = None, *, endless: bool = False, commits: int = 0
    ) -> None:
        self.error = error
        self.isActive = endless
        self.commits = commits
        self.seen = False

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
        if isinstance(self.error, Exception):
            raise StreamingQueryException("text only")
        if self.error is not None:
            raise self.error
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False


class Pauses:
    """Stands in for the event that a pause waits for: no time passes, and each pause is written
    down.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    event = Pauses()
    monkeypatch.setattr(surroundings, "Event", lambda: event)
    return event.seconds


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> Any:
    committed: list[int] = []
    ours = OncewardError
    monkeypatch.setattr(
        waiting, "error_of", lambda life: life.error if isinstance(life.error, ours) else None
    )

    def newest_committed(life: Life) -> int | None:
        """The first look of a life comes before its batches, and the last one after them."""
        seen, life.seen = life.seen, True
        if seen or committed:
            committed.extend([0] * life.commits)
            life.commits = 0
        return len(committed) - 1 if committed else None

    monkeypatch.setattr(supervising, "newest_committed", newest_committed)

    def supervise(
        *given: Life | Exception, strategy: RestartStrategy | None = None, **more: Any
    ) -> tuple[int, Any]:
        """How many lives there were, and the last one, or the error that ended it all."""
        left = list(given)

        def start() -> Any:
            life = left.pop(0)
            if isinstance(life, Exception):
                raise life
            return life

        try:
            end: Any = ow.supervise(start, strategy or ow.restart.FixedDelay(delay_s=0), **more)
        except Exception as error:  # noqa: BLE001 — whatever it is, the test looks at it
            end = error
        return len(given) - len(left), end

    return supervise


def test_a_query_is_started_until_it_ends_well(lives: Any):
    started, last = lives(
        Life(SendFailed("a")),
        BrokerUnreachable("at the start"),
        Life(ValueError()),
        Life(),
        Life(),
    )
    assert isinstance(last, Life)
    assert last.error is None
    assert started == 4


def test_an_error_that_says_stop_is_the_end(lives: Any):
    started, error = lives(Life(SendFailed("a")), Life(Fenced("a newer copy")), Life())
    assert (started, str(error)) == (2, "a newer copy")


def test_the_strategys_word_is_the_end(lives: Any):
    failing = [Life(SendFailed(str(number))) for number in range(4)]
    started, error = lives(*failing, strategy=ow.restart.FixedDelay(attempts=2, delay_s=0))
    assert (started, str(error)) == (3, "2")


@pytest.mark.parametrize(
    "strategy",
    [ow.restart.FixedDelay(delay_s=0.5), ow.restart.FailureRate(1_000, 1, 0.5)],
    ids=["fixed", "rate"],
)
def test_restarts_without_progress_wait_longer_each_time_whatever_the_strategy(
    lives: Any, pauses: list[float], strategy: RestartStrategy
):
    failing = [Life(SendFailed(str(number))) for number in range(8)]
    again = [
        Life(SendFailed("a batch later"), commits=1),
        Life(SendFailed("and no other")),
        Life(),
    ]
    lives(*failing, *again, strategy=strategy)
    grown, after_progress = pauses[:8], pauses[8:]
    assert grown == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 64], rel=0.1)
    assert after_progress == [0.5, 0.5]


def test_a_strategy_may_wait_longer(lives: Any, pauses: list[float]):
    lives(
        *[Life(SendFailed(str(number))) for number in range(4)],
        Life(),
        strategy=ow.restart.FixedDelay(delay_s=1000),
    )
    assert pauses == [1000] * 4


def test_each_restart_is_said_with_its_error_and_next_step(
    lives: Any, caplog: pytest.LogCaptureFixture
):
    refused = AuthenticationFailed("login\nrefused", next_step="see to the identity provider")
    lives(Life(SendFailed("a"), commits=1), Life(refused), Life(refused), Life())
    said = [record for record in caplog.records if "AuthenticationFailed" in record.getMessage()]
    assert len(said) == 2
    for record in said:
        assert record.levelno == logging.WARNING
        assert "\n" not in record.getMessage()
        assert "login refused. Next: see to the identity provider." in record.getMessage()


def learnt(*ids: int) -> Life:
    return Life(
        NewSchemaId(f"ids {ids}", details={"news": [f"registry {number}" for number in ids]})
    )


def test_what_was_learnt_is_no_failure(lives: Any):
    started, last = lives(
        learnt(1),
        learnt(2, 3),
        Life(SendFailed("a")),
        learnt(4),
        Life(),
        strategy=ow.restart.FixedDelay(1, 0),
    )
    assert isinstance(last, Life)
    assert last.error is None
    assert started == 5


@pytest.mark.parametrize(
    "again", [learnt(1), learnt(), learnt(1, 2)], ids=["again", "nothing", "known"]
)
def test_what_was_learnt_twice_is_a_failure(lives: Any, again: Life):
    started, error = lives(learnt(1, 2), again, Life(), strategy=ow.restart.NoRestart())
    assert isinstance(error, NewSchemaId)
    assert started == 2


def test_a_plan_that_was_built_once_is_told_to_be_built_inside(
    lives: Any, pauses: list[float], caplog: pytest.LogCaptureFixture
):
    """It says the same at each start, which helps nothing: the pauses grow, and the log says
    why.
    """
    started, _ = lives(
        *[learnt(1) for _ in range(6)], Life(), strategy=ow.restart.FixedDelay(delay_s=0)
    )
    assert started == 7
    assert pauses == pytest.approx([0, 1, 2, 4, 8], rel=0.1), "and none before the first restart"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 5
    assert all(
        "build the frame inside the function that you give to ow.supervise" in one for one in said
    )


def test_a_failure_of_sparks_own_that_repeats_says_what_may_be_the_reason(
    lives: Any, caplog: pytest.LogCaptureFixture
):
    lives(*[Life(ValueError("[DELTA_SCHEMA_CHANGED]")) for _ in range(4)], Life())
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["build the frame inside" in one for one in said] == [False, False, True, True]
    assert "failure 4 without a batch in between" in said[-1]


def test_nothing_in_the_words_of_an_error_of_sparks_is_obeyed_by_a_terminal():
    """A record, or a server, may have put it there."""
    error = StreamingQueryException("of a record: \x1b[2J\nand more")
    said = supervising._paragraph(error, is_logged=False)
    assert said == r"StreamingQueryException: of a record: \x1b[2J and more"


def test_learning_waits_for_no_pause(lives: Any):
    started, last = lives(learnt(1), Life(), strategy=ow.restart.FixedDelay(delay_s=1e6))
    assert isinstance(last, Life)
    assert started == 2


def test_a_jvm_that_is_gone_ends_the_supervisor(lives: Any, monkeypatch: pytest.MonkeyPatch):
    """Also where it was killed in a pause: no start of this process could help."""
    monkeypatch.setattr(supervising, "jvm_is_gone", lambda: True)
    started, error = lives(Life(SendFailed("a")), Life())
    assert started == 1
    assert isinstance(error, SendFailed)


def test_a_checkpoint_that_is_away_is_waited_for(lives: Any):
    """Sinks know where queries have committed, for as long as a query is started again."""
    away = Life(CheckpointUnreachable("another query is in its place"))
    assert lives(Life(SendFailed("a"), commits=1), away, Life())[0] == 3
    assert lives(Life(CheckpointReplaced("of query life")), Life())[0] == 1
    with gate.starting_again():
        gate.note_home("checkpoint", "query")
        lives(Life())
        assert gate.home("checkpoint") == "query"
    lives(Life())
    assert gate.home("checkpoint") is None


def test_a_plan_stays_where_another_pipeline_has_committed_its_batch(
    lives: Any, monkeypatch: pytest.MonkeyPatch
):
    forgotten: list[int] = []
    monkeypatch.setattr(runs, "_memories", OrderedDict())
    monkeypatch.setattr(runs, "_chains", OrderedDict())
    monkeypatch.setattr(supervising, "forget_planned", lambda query, n: forgotten.append(n))

    def gone() -> Life:
        return Life(PartitionsAdded("a topic is gone", details={PLAN_ANEW: 3}))

    lives(Life(SendFailed("a"), commits=4), gone(), Life())
    assert forgotten == [3]
    other = PipelineId("the other")
    runs.claim(runs.RunKey("life", ("here", other)), other).committed = 3
    stays = gone()
    lives(Life(SendFailed("a")), stays, Life())
    assert forgotten == [3]
    step = stays.error.next_step  # type: ignore[union-attr]
    assert step.startswith("of the pipelines of the query, the other has committed batch 3")
    assert "leaves this sink out of batch 3" in step


def test_no_start_comes_before_a_plan_is_forgotten(lives: Any, monkeypatch: pytest.MonkeyPatch):
    """On a store that stands still the removal would take what is of the next start."""
    monkeypatch.setattr(supervising, "_ASK_SECONDS", 0.1)
    seen: list[str] = []

    def forget(query: Any, number: int) -> None:
        time.sleep(0.5)
        seen.append("forgotten")

    class Next(Life):
        def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
            seen.append("started")
            return super().awaitTermination(timeout)

    monkeypatch.setattr(supervising, "forget_planned", forget)
    lives(Life(PartitionsAdded("a topic is gone", details={PLAN_ANEW: 0})), Next())
    assert seen[:2] == ["forgotten", "started"]


def test_a_plan_that_takes_long_to_be_forgotten_is_waited_for_aloud(
    lives: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(supervising, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr(supervising, "forget_planned", lambda query, number: time.sleep(0.5))
    lives(Life(PartitionsAdded("a topic is gone", details={PLAN_ANEW: 0})), Life())
    said = [line for line in caplog.messages if "waits until offsets/0 is removed" in line]
    assert len(said) == 1
    assert "see that the checkpoint's file system answers" in said[0]


def test_a_plan_that_is_not_forgotten_holds_up_no_end(lives: Any, monkeypatch: pytest.MonkeyPatch):
    told, goes_on = threading.Event(), threading.Event()
    forgotten: list[int] = []

    def forget(query: Any, number: int) -> None:
        told.set()
        goes_on.wait(60)
        forgotten.append(number)

    monkeypatch.setattr(supervising, "forget_planned", forget)
    gone = Life(PartitionsAdded("a topic is gone", details={PLAN_ANEW: 0}))
    try:
        started, error = lives(gone, Life(), stop=told)
        assert forgotten == [], "the end has waited for it"
    finally:
        goes_on.set()
    assert (started, error) == (1, gone.error)


def test_a_context_that_has_stopped_ends_the_supervisor(
    lives: Any, monkeypatch: pytest.MonkeyPatch
):
    """Unless the next start builds another."""
    monkeypatch.setattr(supervising, "context_has_stopped", lambda query: True)
    dead = ValueError("Cannot call methods on a stopped SparkContext")
    away = BrokerUnreachable("away")
    started, error = lives(Life(SendFailed("a")), away, dead, dead, Life())
    assert started == 4
    assert error.__cause__ is dead
    assert isinstance(error, ow.OncewardError)
    assert ow.exit_status(error, worked_before=False) == 75
    built = iter([True, False, False])
    monkeypatch.setattr(supervising, "context_has_stopped", lambda query: next(built))
    assert lives(Life(SendFailed("a")), Life(SendFailed("b")), Life())[0] == 3


def test_what_a_start_raises_that_is_not_ours_is_raised_at_once(lives: Any):
    assert isinstance(lives(ZeroDivisionError(), Life())[1], ZeroDivisionError)


def test_an_interrupt_stops_the_query_and_meets_no_question_to_the_jvm():
    """PySpark answers Ctrl-C in the main thread with a question to the JVM, which must not be in
    the middle of one.
    """
    asking: set[threading.Thread] = set()

    class Endless(Life):
        def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
            asking.add(threading.current_thread())
            time.sleep(min(timeout, 0.1))
            return super().awaitTermination(timeout)

    life = Endless(endless=True)
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    interrupt = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        ow.supervise(lambda: life)  # type: ignore[arg-type, return-value]
    assert not life.isActive
    assert asking
    assert threading.main_thread() not in asking


def test_stop_ends_a_query_and_a_wait(lives: Any):
    stop = threading.Event()
    stop.set()
    assert isinstance(lives(Life(endless=True), stop=stop)[1], Life)
    assert isinstance(
        lives(Life(SendFailed("a")), strategy=ow.restart.FixedDelay(delay_s=3600), stop=stop)[1],
        SendFailed,
    )


def test_a_stop_is_no_restart(lives: Any, caplog: pytest.LogCaptureFixture):
    stop, seen = threading.Event(), list[events.Event]()
    stop.set()
    forget = events.probe(seen.append)
    try:
        lives(Life(SendFailed("a")), strategy=ow.restart.FixedDelay(delay_s=3600), stop=stop)
    finally:
        forget()
    assert events.RESTART not in {event.step for event in seen}
    assert "is started again" not in caplog.text


SINK = ow.KafkaSink(topic="t", pipeline_id="orders", bootstrap_servers="h:1")
OTHER = ow.KafkaSink(topic="u", pipeline_id="audit", bootstrap_servers="h:1")


@pytest.mark.parametrize("pipeline", ["orders", None])
def test_the_pipeline_of_a_query_is_known_before_its_first_batch(
    lives: Any, pipeline: str | None
) -> None:
    """Where it names one sink: of two it may write to one alone."""
    left: list[Any] = [
        BrokerUnreachable("away", next_step="wait"), Life(SendFailed("a")), Life()
    ]  # fmt: skip

    def life(*_: Any) -> Any:
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return left.pop(0)

    starts = {"orders": lambda: life(SINK), None: lambda: life(SINK, OTHER)}
    heard: list[events.Event] = []
    stop = events.watch(heard.append, [events.BEGIN, events.RESTART])
    try:
        ow.supervise(starts[pipeline], ow.restart.FixedDelay(delay_s=0))
    finally:
        stop()
    named = {"pipeline": pipeline} if pipeline else {}
    query = {"query_id": "life", **named}
    assert [(each.step, each.phase, each.ids) for each in heard] == [
        ("begin", "started", named), ("begin", "failed", named), ("restart", "failed", named),
        ("begin", "started", named), ("begin", "finished", query), ("restart", "failed", query),
        ("begin", "started", named), ("begin", "finished", query),
    ]  # fmt: skip


def test_what_sparks_own_start_meets_later_is_a_failure_like_any(lives: Any):
    """A checkpoint's file system that is away: the query fails of it, and so does the start after
    it.
    """
    away = OSError("the checkpoint's file system is away")
    started, last = lives(Life(SendFailed("a")), away, Life())
    assert isinstance(last, Life)
    assert started == 3


@pytest.mark.parametrize("strategy", [ow.restart.NoRestart, "fixed-delay", {"attempts": 3}])
def test_what_is_no_strategy_is_refused_before_anything_starts(lives: Any, strategy: Any):
    started, error = lives(Life(), strategy=strategy)
    assert started == 0
    assert isinstance(error, ConfigurationError)
    assert f"strategy={strategy!r}" in error.message
    assert "ExponentialDelay()" in error.next_step


def test_a_start_without_a_query_is_refused():
    with raises(ConfigurationError):
        ow.supervise(lambda: None)  # type: ignore[arg-type, return-value]


def test_a_query_that_cannot_be_stopped_hides_no_error(lives: Any):
    class Stubborn(Life):
        def stop(self) -> None:
            raise OSError("spark.sql.streaming.stopTimeout")

    _, error = lives(Stubborn(Fenced("a newer copy"), endless=True))
    assert isinstance(error, Fenced)


def test_a_start_that_waits_for_a_broker_ends_when_the_supervisor_is_told_to_stop() -> None:
    stop, begun = threading.Event(), threading.Event()

    def start() -> Any:
        begun.set()
        patience.pause(36_000)

    ended: list[BaseException] = []

    def supervised() -> None:
        try:
            ow.supervise(start, ow.restart.FixedDelay(delay_s=0), stop=stop)
        except OncewardError as error:
            ended.append(error)

    supervisor = threading.Thread(target=supervised, daemon=True)
    supervisor.start()
    assert begun.wait(30)
    stop.set()
    supervisor.join(30)
    assert "told to stop" in str(ended[0])


def test_a_query_that_does_not_stop_is_not_waited_for_without_end(
    lives: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A call of its function that waits for somebody else, say: Spark would wait for it without
    end.
    """
    monkeypatch.setattr(waiting, "_STOP_SECONDS", 0.05)
    for_ever, stop = threading.Event(), threading.Event()
    stop.set()

    class Stuck(Life):
        def stop(self) -> None:
            for_ever.wait()

    started, last = lives(Stuck(endless=True), stop=stop)
    for_ever.set()
    assert started == 1
    assert isinstance(last, Stuck)
    assert "has not after" in caplog.text


def test_a_checkpoint_that_does_not_answer_is_not_waited_for_without_end(
    lives: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervising, "_ASK_SECONDS", 0.05)
    for_ever = threading.Event()
    monkeypatch.setattr(supervising, "newest_committed", lambda query: for_ever.wait())
    started, error = lives(Life(SendFailed("a")), Life(AuthenticationFailed("b")), Life())
    for_ever.set()
    assert started == 2
    assert isinstance(error, AuthenticationFailed), "whether it has worked is not known"
