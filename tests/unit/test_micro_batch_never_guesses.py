"""The nine steps over a target that fails where it is told to: what is tried again, what ends the
query, what is asked.

The target keeps a ledger and an output in memory, with the same meaning of commit, doubt and
fencing as a real one; after every story the output must hold each batch once at most, and exactly
if the ledger does.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceward import durable, events
from onceward.engine import micro_batch
from onceward.engine.calls import gate
from onceward.engine.calls import journal as journal_module
from onceward.engine.calls import replay as replay_module
from onceward.engine.calls.journal import CallMemory, FailedCall, FailureKind, Journal
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.record import FrameWritten, LedgerRecord, Output, RecordState
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import (
    Attempt,
    Prepared,
    SourceIdentity,
    Target,
    Write,
)
from onceward.errors import (
    BatchChanged,
    BatchFailed,
    BatchNotWritten,
    BrokerUnreachable,
    CheckpointReplaced,
    CheckpointRewound,
    CheckpointUnreachable,
    CommitInDoubt,
    ComputationsMixed,
    Fenced,
    LedgerBehind,
    LedgerOutdated,
    LedgerUnreadable,
    OncewardError,
    PublishIncomplete,
    RecordTooLarge,
    Recovery,
    SendFailed,
    SourceDataLost,
    SourceTopicReplaced,
    StateOfFailedAttempt,
    TransactionTimedOut,
    UnsupportedQuery,
)
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.spark.batch.query import History, RunningBatch
from support.errors import raises

QUERY = "3b6c0de1-0000-4000-8000-000000000001"
RETRIABLE = SendFailed("lost", next_step="nothing")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "_FIRST_PAUSE_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def frames_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        replay_module, "count_rows", lambda frames: [frame.count() for frame in frames]
    )


class MemoryTarget(Target):
    """Output and ledger in lists. ``plan`` maps a method's name to what its successive calls raise
    (None: nothing); ``commit_is_carried_out`` says what becomes of a commit that raises.
    """

    def __init__(self, **plan: list[BaseException | None]) -> None:
        self.plan = plan
        self.commit_is_carried_out = False
        self.calls: list[str] = []
        self.output: list[int] = []
        self.ledger: list[LedgerRecord] = []
        self.published: list[int] = []
        self.decides = RecordState.FINISHED
        self._epoch = 0
        self.attempt: MemoryAttempt | None = None

    def call(self, name: str) -> None:
        self.calls.append(name)
        errors = self.plan.get(name)
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    def newest(self) -> LedgerRecord | None:
        return self.ledger[-1] if self.ledger else None

    def peek(self) -> LedgerRecord | None:
        self.call("peek")
        return self.newest()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        self.call("open")
        self.attempt = None
        return self.newest()

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> MemoryAttempt:
        self.call("begin")
        assert self.attempt is None, "an attempt was begun while another was open"
        assert newest == self.newest(), "the engine lost sight of the ledger"
        self._epoch += 1
        self.attempt = MemoryAttempt(self, AttemptId(7, self._epoch))
        return self.attempt

    def finish(self, record: LedgerRecord) -> LedgerRecord:
        self.call("finish")
        self.published.append(record.batch.batch_id)
        self.ledger[-1] = replace(record, state=RecordState.FINISHED)
        return self.ledger[-1]

    def carry_out(self) -> None:
        assert self.attempt is not None
        self.output += self.attempt.rows
        self.ledger.append(self.attempt.record)
        self.attempt = None

    def settle(self) -> LedgerRecord | None:
        self.attempt = None
        self.call("settle")
        return self.newest()

    def close(self) -> None:
        self.calls.append("close")


class MemoryAttempt(Attempt):
    def __init__(self, target: MemoryTarget, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self.rows: list[int] = []
        self._target = target

    def write(self, write: Write, running: RunningBatch) -> int:
        self.rows = [running.batch.batch_id]
        self._target.call("write")
        rows: int = write.frame.rows  # type: ignore[attr-defined]
        return rows

    def prepared(self) -> Prepared:
        return Prepared(
            {"memory": Output("memory", 1, len(self.rows), None)}, state=self._target.decides
        )

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        self._target.call("stage")
        super().stage(record, running)

    def commit(self) -> None:
        try:
            self._target.call("commit")
        except BaseException:
            if self._target.commit_is_carried_out:
                self._target.carry_out()
            raise
        self._target.carry_out()

    def abort(self) -> None:
        self._target.call("abort")
        self._target.attempt = None


class Frame:
    """A frame that is only ever counted: what a replay does with it."""

    def __init__(self, rows: int = 1, error: Exception | None = None) -> None:
        self.rows = rows
        self.error = error
        self.replayed = 0

    def count(self) -> int:
        self.replayed += 1
        if self.error is not None:
            raise self.error
        return self.rows


_runs = itertools.count()


def running(
    number: int,
    query: str = QUERY,
    *,
    run: str | None = None,
    history: History | None = None,
    stateful: bool = False,
    computes_once: bool = False,
) -> RunningBatch:
    """Batch ``number``; unless it is said which, each in a run of its own."""
    return RunningBatch(
        batch=BatchId(query, number),
        run_id=run or f"run-{next(_runs)}",
        name="",
        sources=(SourceRange(number * 10, number * 10 + 10),),
        kafka_sources=(),
        stateful=stateful,
        input_records=None,
        computes_once=computes_once,
        history=history,
    )


def write(*frames: Frame, where: str | None = "out") -> list[Write]:
    return [Write(frame, where) for frame in frames]  # type: ignore[arg-type]


def batches(
    target: Target,
    attempts: int = 3,
    resume: Resume = "checkpoint",
    failed: BatchId | None = None,
    failures: Journal | None = None,
    skipped: SkippedBatches = "refuse",
    identity: SourceIdentity | None = None,
) -> MicroBatches:
    policy = SinkPolicy(
        PipelineId("p"), resume=resume, batch_attempts=attempts, skipped_batches=skipped
    )
    return MicroBatches(target, policy, failed, failures, identity)


def process(
    target: Target, number: int = 0, attempts: int = 3, identity: SourceIdentity | None = None
) -> None:
    """Batch ``number`` as the first of a new process."""
    batches(target, attempts, identity=identity).process(write(Frame()), running(number))


def assert_once(target: MemoryTarget, *numbers: int) -> None:
    assert target.output == list(numbers)
    assert [record.batch.batch_id for record in target.ledger] == list(numbers)


def test_the_steps_come_in_order():
    target = MemoryTarget()
    work = batches(target)
    for number in range(2):
        work.process(write(Frame()), running(number))
    assert target.calls == ["peek", "open", *["begin", "write", "stage", "commit"] * 2]
    assert_once(target, 0, 1)
    assert [record.sequence for record in target.ledger] == [0, 1]


@pytest.mark.parametrize("step", ["begin", "write", "stage"])
def test_a_retriable_error_before_the_commit_is_aborted_and_tried_again(step: str):
    target = MemoryTarget(**{step: [RETRIABLE, RETRIABLE]})
    process(target)
    assert_once(target, 0)
    assert target.calls.count("abort") == (0 if step == "begin" else 2), (
        "what was not begun needs no abort"
    )
    assert target.calls.count("commit") == 1


@pytest.mark.parametrize("step", ["begin", "write", "stage"])
@pytest.mark.parametrize(
    "error", [RecordTooLarge("big"), ValueError("bug"), KeyboardInterrupt(), Fenced("newer")]
)
def test_any_other_error_before_the_commit_is_aborted_and_raised(step: str, error: BaseException):
    target = MemoryTarget(**{step: [error]})
    with pytest.raises(type(error)):
        process(target)
    assert_once(target)
    assert target.calls[-2:] == (["open", "begin"] if step == "begin" else [step, "abort"])
    process(target)
    assert_once(target, 0)


def test_attempts_are_counted():
    target = MemoryTarget(write=[RETRIABLE] * 3)
    with pytest.raises(SendFailed) as caught:
        process(target, attempts=3)
    assert caught.value.next_step.startswith("start the query again"), (
        "this run does not try it any more"
    )
    assert target.calls.count("write") == 3
    assert_once(target)


def test_being_fenced_while_aborting_is_what_the_query_ends_with():
    target = MemoryTarget(write=[RETRIABLE], abort=[Fenced("newer")])
    with pytest.raises(Fenced) as caught:
        process(target)
    assert caught.value.__cause__ is RETRIABLE
    assert target.calls.count("write") == 1


@pytest.mark.parametrize(
    "failure", [BrokerUnreachable("nobody"), TransactionTimedOut("late"), OncewardError("state")]
)
def test_an_abort_that_fails_is_settled_before_the_next_attempt(failure: OncewardError):
    target = MemoryTarget(write=[RETRIABLE], abort=[failure])
    process(target)
    assert target.calls[3:7] == ["write", "abort", "settle", "begin"]
    assert_once(target, 0)


def test_a_fenced_commit_is_not_asked_about():
    target = MemoryTarget(commit=[Fenced("newer")])
    with pytest.raises(Fenced):
        process(target)
    assert "settle" not in target.calls
    assert "abort" not in target.calls
    assert_once(target)


COMMIT_FAILURES: list[Callable[[], BaseException]] = [
    lambda: CommitInDoubt("no answer"),
    lambda: BatchFailed("refused"),
    lambda: TransactionTimedOut("late"),
    lambda: BrokerUnreachable("nobody"),
    lambda: ValueError("a bug"),
    KeyboardInterrupt,
]


@pytest.mark.parametrize("failure", COMMIT_FAILURES, ids=lambda make: type(make()).__name__)
def test_after_a_commit_that_failed_but_was_carried_out_nothing_is_repeated(
    failure: Callable[[], BaseException],
):
    target = MemoryTarget(commit=[failure()])
    target.commit_is_carried_out = True
    process(target)
    assert "abort" not in target.calls, "an abort after a commit could hit the next transaction"
    assert target.calls.count("write") == 1
    assert_once(target, 0)


@pytest.mark.parametrize("failure", COMMIT_FAILURES[:4], ids=lambda make: type(make()).__name__)
def test_after_a_commit_that_failed_and_was_not_carried_out_the_batch_runs_again(
    failure: Callable[[], BaseException],
):
    target = MemoryTarget(commit=[failure()])
    process(target)
    assert target.calls.count("settle") == 1
    assert_once(target, 0)


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize(
    "unsettled", [BrokerUnreachable("nobody"), TransactionTimedOut("late"), OncewardError("?")]
)
def test_a_doubt_that_cannot_be_settled_ends_the_query_and_is_never_tried_again(
    unsettled: OncewardError, carried_out: bool
):
    """Whoever runs the batch again here may write it twice: settling failed, but the commit may
    have been made.
    """
    target = MemoryTarget(commit=[CommitInDoubt("no answer")], settle=[unsettled])
    target.commit_is_carried_out = carried_out
    with pytest.raises(CommitInDoubt) as caught:
        process(target)
    assert caught.value.next_step
    assert target.calls.count("write") == 1
    process(target)  # the next start asks the ledger
    assert_once(target, 0)


def test_a_doubt_whose_settling_finds_a_newer_owner_ends_fenced():
    target = MemoryTarget(commit=[CommitInDoubt("no answer")], settle=[Fenced("newer")])
    with pytest.raises(Fenced):
        process(target)


def test_the_record_of_another_owner_is_not_taken_for_ours():
    """Same batch, same sequence, other identity: an heir ran it after our doubt; we may not claim
    it.
    """
    target = MemoryTarget(commit=[CommitInDoubt("no answer")])
    work = batches(target, attempts=1)

    def heir(event: events.Event) -> None:
        if (event.step, event.phase) == (events.COMMIT, "failed"):
            record = LedgerRecord(
                PipelineId("p"), 0, BatchId(QUERY, 0), running(0).sources, AttemptId(7, 99), {}, 0
            )
            target.ledger.append(record)

    stop = events.probe(heir)
    try:
        with pytest.raises(OncewardError):
            work.process(write(Frame()), running(0))
    finally:
        stop()
    assert target.output == []


def test_a_committed_batch_is_replayed_without_an_attempt():
    target = MemoryTarget()
    process(target)
    del target.calls[:]
    frame = Frame()
    batches(target).process(write(frame), running(0))
    assert frame.replayed == 1
    assert target.calls == ["peek", "open"]
    assert_once(target, 0)


def test_a_batch_that_will_be_refused_fences_nobody():
    target = MemoryTarget()
    process(target)
    del target.calls[:]
    with pytest.raises(CheckpointReplaced):
        batches(target).process(write(Frame()), running(0, query="another"))
    assert target.calls == ["peek"]


def test_what_was_committed_between_peek_and_open_counts():
    """A predecessor may commit its last batch after the peek: only what is read after fencing is
    final.
    """

    class Overtaken(MemoryTarget):
        def open(self, running: RunningBatch) -> LedgerRecord | None:
            other.process(write(Frame()), replace(running, run_id="the predecessor's"))
            self.output, self.ledger = predecessor.output, predecessor.ledger
            return super().open(running)

    predecessor = MemoryTarget()
    other = batches(predecessor)
    target = Overtaken()
    frame = Frame()
    batches(target).process(write(frame), running(0))
    assert frame.replayed == 1
    assert target.output == [0]


def test_opening_is_repeated_when_it_failed():
    target = MemoryTarget(open=[BrokerUnreachable("nobody")])
    work = batches(target)
    with pytest.raises(BrokerUnreachable):
        work.process(write(Frame()), running(0))
    work.process(write(Frame()), running(0))
    assert target.calls.count("open") == 2
    assert_once(target, 0)


def test_a_second_call_for_the_same_batch_is_refused_not_dropped():
    """``foreachBatch(lambda df, i: (sink(a, i), sink(b, i)))``: the ledger would call the second
    one a replay.
    """
    target = MemoryTarget()
    work = batches(target)
    work.process(write(Frame()), running(0))
    second = Frame()
    with raises(UnsupportedQuery, batch_id=0):
        work.process(write(second), running(0))
    assert second.replayed == 0
    assert_once(target, 0)


# --- what comes after the decision ---------------------------------------------------------------


def two_phase(**plan: list[BaseException | None]) -> MemoryTarget:
    target = MemoryTarget(**plan)
    target.decides = RecordState.DECIDED
    return target


def test_what_is_decided_is_published_before_spark_hears_of_it():
    target = two_phase()
    work = batches(target)
    for number in range(2):
        work.process(write(Frame()), running(number))
    assert target.calls == ["peek", "open", *["begin", "write", "stage", "commit", "finish"] * 2]
    assert target.published == [0, 1]
    assert [record.state for record in target.ledger] == [RecordState.FINISHED] * 2


@pytest.mark.parametrize(
    "failure",
    [PublishIncomplete("later"), KeyboardInterrupt(), ValueError("a bug"), BatchFailed("?")],
)
def test_what_could_not_be_published_is_published_first_thing_after_the_restart(
    failure: BaseException,
):
    """Whatever publishing meets, and whatever it says of trying again: the batch is decided and
    never runs again.
    """
    target = two_phase(finish=[failure, failure])
    for _ in range(2):
        with pytest.raises(type(failure)):
            process(target)
    assert target.published == []
    process(target)
    assert target.published == [0]
    assert target.calls.count("write") == 1
    assert "abort" not in target.calls
    process(target, 1)
    assert target.published == [0, 1]
    assert_once(target, 0, 1)


def test_in_the_same_run_a_later_batch_waits_for_it_too():
    target = two_phase(finish=[PublishIncomplete("later"), PublishIncomplete("later")])
    work = batches(target)
    for number in (0, 1):  # a function that keeps errors to itself
        with pytest.raises(PublishIncomplete):
            work.process(write(Frame()), running(number))
    assert [record.batch.batch_id for record in target.ledger] == [0]
    work.process(write(Frame()), running(1))
    assert target.published == [0, 1]


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_decision_in_doubt_is_published_if_it_was_made(carried_out: bool):
    target = two_phase(commit=[CommitInDoubt("no answer")])
    target.commit_is_carried_out = carried_out
    process(target)
    assert target.published == [0]
    assert target.calls.count("write") == (1 if carried_out else 2)
    assert_once(target, 0)


def test_what_another_sink_has_decided_and_not_published_stops_this_one():
    """The sink was changed from one that publishes to one that commits by itself, on the same
    ledger.
    """
    target = two_phase(finish=[PublishIncomplete("later")])
    with pytest.raises(PublishIncomplete):
        process(target)

    class Atomic(MemoryTarget):
        finish = Target.finish

    changed = Atomic()
    changed.ledger = target.ledger
    for number in (0, 1):
        with raises(LedgerUnreadable, batch_id=0):
            process(changed, number)
    assert changed.output == []
    process(target)  # the advice: once more with the sink that wrote it
    process(changed, 1)
    assert changed.output == [1]


def test_a_batch_is_published_even_if_its_source_is_no_longer_the_same():
    class Replaced(SourceIdentity):
        def start(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
            raise SourceTopicReplaced("it was created again")

    target = two_phase(finish=[PublishIncomplete("later")])
    with pytest.raises(PublishIncomplete):
        process(target)
    with pytest.raises(SourceTopicReplaced):
        process(target, identity=Replaced())
    assert target.published == [0]


def test_what_a_batch_reads_is_asked_for_before_it_is_written():
    class Replaced(SourceIdentity):
        def check_parts(self, running: RunningBatch) -> None:
            raise SourceTopicReplaced("it was created again")

    target = two_phase()
    with pytest.raises(SourceTopicReplaced):
        process(target, identity=Replaced())
    assert "begin" not in target.calls


def test_a_query_that_is_refused_leaves_the_publishing_to_who_is_not():
    """A look at the ledger shows that the batch is another checkpoint's: nobody is fenced, nothing
    is published.
    """
    target = two_phase(finish=[PublishIncomplete("later")])
    with pytest.raises(PublishIncomplete):
        process(target)
    with pytest.raises(CheckpointReplaced) as refused:
        batches(target).process(write(Frame()), running(0, "another-query"))
    assert "not published yet" in refused.value.next_step
    assert target.published == []


def test_what_a_rewound_query_has_decided_is_published_by_its_heir():
    """Its own query cannot be started once more on such a checkpoint; the advice must be one that
    can be followed.
    """
    target = two_phase(finish=[None, PublishIncomplete("later")])
    process(target, 0)
    with pytest.raises(PublishIncomplete):
        process(target, 1)
    with pytest.raises(CheckpointRewound) as refused:
        process(target, 0)
    assert "start the query that wrote" not in refused.value.next_step
    assert "whichever start is admitted publishes it first of all" in refused.value.next_step
    assert target.published == [0]
    anew = replace(running(0, "another-query"), sources=(SourceRange(20, 30),))
    batches(target, resume="ledger").process(write(Frame()), anew)
    assert target.published == [0, 1, 0], "the old one first, then the first of the new query"


# --- what a user's own function may do -----------------------------------------------------------


def test_several_frames_are_one_commit():
    target = MemoryTarget()
    batches(target).process(write(Frame(2), Frame(3)), running(0))
    assert target.calls.count("commit") == 1
    assert target.ledger[0].frames == (FrameWritten("out", 2), FrameWritten("out", 3))


def test_a_second_sink_in_the_same_run_is_refused():
    """It has a target of its own, and finds in the ledger what the first one committed a moment
    ago.
    """
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0, run="r"))
    with raises(UnsupportedQuery, batch_id=0):
        batches(target).process(write(Frame()), running(0, run="r"))
    assert_once(target, 0)


def test_a_second_try_after_doubt_is_a_replay():
    """``CommitInDoubt`` reached the user's function, which tries again: what this run committed is
    no other call's.
    """
    target = MemoryTarget(
        commit=[CommitInDoubt("no answer")], settle=[BrokerUnreachable("nobody")]
    )
    target.commit_is_carried_out = True
    with pytest.raises(CommitInDoubt):
        batches(target).process(write(Frame()), running(0, run="r"))
    batches(target, failed=BatchId(QUERY, 0)).process(write(Frame()), running(0, run="r"))
    assert_once(target, 0)


def committed(*frames: Frame) -> MemoryTarget:
    target = MemoryTarget()
    batches(target).process(write(*frames), running(0))
    return target


@pytest.mark.parametrize(
    "now", [[Frame(5), Frame(0)], [Frame(4)], [Frame(2), Frame(3)], []], ids=len
)
def test_a_replay_without_new_rows_sends_nothing(now: list[Frame]):
    target = committed(Frame(5))
    batches(target).process(write(*now), running(0))
    assert_once(target, 0)


@pytest.mark.parametrize(
    "now", [[Frame(5), Frame(1)], [Frame(6)]], ids=["more frames", "more rows"]
)
def test_rows_that_a_committed_batch_lacks_are_named(
    now: list[Frame], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replay_module, "is_repeatable", lambda frame: True)
    target = committed(Frame(5))
    with raises(BatchChanged, batch_id=0):
        batches(target).process(write(*now), running(0))
    batches(target, resume="skip_missing").process(write(*now), running(0))
    assert_once(target, 0)


def test_rows_that_differ_by_chance_are_left():
    target = committed(Frame(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_module, "is_repeatable", lambda frame: False)
        batches(target).process(write(Frame(6)), running(0))
    assert_once(target, 0)


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("stateful", [True, False])
def test_state_that_is_computed_again_by_chance_is_named(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    repeatable: bool,
    stateful: bool,
):
    """As many rows as were committed say nothing of what is in the state."""
    monkeypatch.setattr(replay_module, "is_repeatable", lambda frame: repeatable)
    target = MemoryTarget()
    for _ in range(2):
        batches(target).process(write(Frame(5)), running(0, stateful=stateful))
    assert_once(target, 0)
    assert ("state and output may disagree" in caplog.text) == (stateful and not repeatable)


def test_a_dead_letter_that_can_be_read_now_is_never_chance(monkeypatch: pytest.MonkeyPatch):
    """The state would have its record as well, and whoever feeds it back once more."""
    monkeypatch.setattr(replay_module, "is_repeatable", lambda frame: False)
    target = MemoryTarget()

    def letters(good: int, aside: int) -> list[Write]:
        dead = Write(Frame(aside), "dead", set_aside=True)  # type: ignore[arg-type]
        return [*write(Frame(good)), dead]

    batches(target).process(letters(5, 2), running(0, stateful=True))
    with pytest.raises(BatchChanged):
        batches(target).process(letters(5, 1), running(0, stateful=True))


@pytest.mark.parametrize(("again", "stops"), [(("out", "b"), False), (("out", "c"), True)])
def test_a_frame_that_was_empty_by_chance_is_no_new_frame(
    monkeypatch: pytest.MonkeyPatch, again: tuple[str, str], stops: bool
):
    monkeypatch.setattr(replay_module, "is_repeatable", lambda frame: False)
    target = MemoryTarget()
    batches(target).process(write(Frame(5)) + write(Frame(0), where="b"), running(0))
    now = [*write(Frame(5), where=again[0]), *write(Frame(3), where=again[1])]
    with pytest.raises(BatchChanged) if stops else contextlib.nullcontext():
        batches(target).process(now, running(0))
    assert_once(target, 0)


def test_complete_writes_the_frames_that_are_missing():
    target = committed(Frame(5))
    both = write(Frame(5)) + write(Frame(7), where="other")
    batches(target, resume="write_missing").process(both, running(0))
    assert_once(target, 0, 0)
    assert [record.sequence for record in target.ledger] == [0, 1]
    assert target.ledger[1].supplement
    assert target.ledger[1].frames == (FrameWritten("out", 5), FrameWritten("other", 7))
    batches(target, resume="write_missing").process(both, running(0))  # and once only
    work = batches(target)
    work.process(write(Frame()), running(1))
    assert_once(target, 0, 0, 1)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_replay_whose_source_has_expired(stateful: bool):
    """Without state there is nothing to repeat; with state the query cannot go on without it."""
    target = committed(Frame(5))
    gone = Frame(5, SourceDataLost("gone"))
    if stateful:
        with pytest.raises(SourceDataLost):
            batches(target).process(write(gone), running(0, stateful=True))
    else:
        batches(target).process(write(gone), running(0))
    assert gone.replayed == 1
    assert_once(target, 0)


@pytest.mark.parametrize("aside", [False, True], ids=["nothing", "dead letters"])
def test_a_batch_of_which_nothing_is_written_has_its_state_computed_in_its_attempt(
    monkeypatch: pytest.MonkeyPatch, aside: bool
):
    """Else Spark would commit it all the same, and the next one would find no state."""
    target, frame = MemoryTarget(compute=[RETRIABLE]), Frame(3)
    monkeypatch.setattr(micro_batch.spark_jobs, "compute", lambda *_: target.call("compute"))
    monkeypatch.setattr(replay_module, "is_repeatable", lambda frame: True)
    writes = [Write(Frame(0), "dead", set_aside=True)] if aside else []  # type: ignore[arg-type]

    def stateful(number: int) -> RunningBatch:
        return replace(running(number, stateful=True), frame=frame)  # type: ignore[arg-type]

    batches(target).process(writes, stateful(0))
    sent = ["write"] if aside else []
    assert target.calls[2:] == [
        *["begin", "compute", "abort"],
        *["begin", "compute", *sent, "stage", "commit"],
    ]
    assert [each.frames for each in target.ledger] == [(FrameWritten("dead", 0),) if aside else ()]
    batches(target).process(writes, stateful(0))
    assert (target.calls.count("compute"), frame.replayed) == (2, 1), "once, in the replay"
    with pytest.raises(BatchNotWritten):
        batches(target).process(writes, stateful(2))
    batches(target).process(writes, replace(stateful(1), stateful=False))
    batches(target).process(write(Frame()), stateful(2))
    assert (target.calls.count("compute"), frame.replayed) == (2, 1)


class Log:
    """What Spark says of the batches of :func:`running`: unless it is said otherwise, this is the
    first of its run.
    """

    checkpoint = "/checkpoint"

    def __init__(self, *, dropped: bool = False, first: bool = True) -> None:
        self.dropped = dropped
        self._first = first

    def ends(self, batch_id: int) -> tuple[Any, ...] | None:
        return None if self.dropped else (batch_id * 10 + 10,)

    def first_of_run(self) -> bool:
        return self._first


class Files:
    """Beside a checkpoint, in memory; on a real file system:
    ``tests/spark/test_what_a_function_may_do.py``.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.calls = 0

    def read(self) -> dict[str, str]:
        self.calls += 1
        return dict(self.texts)

    def write(self, name: str, text: str) -> None:
        self.calls += 1
        self.texts[name] = text

    def remove(self, name: str) -> None:
        self.calls += 1
        self.texts.pop(name, None)

    def of(self, run: str) -> Journal:
        """As a new process of the run has them."""
        return Journal(PipelineId("p"), run, self)

    def left(
        self, number: int, run: str, error: str, kind: FailureKind = FailureKind.FAILED
    ) -> Files:
        self.of(run).add(FailedCall(number, kind, error, run))
        return self


def go(
    target: MemoryTarget,
    files: Files,
    number: int,
    run: str,
    *frames: Frame,
    log: Log | None = None,
    **options: Any,
) -> None:
    """That batch as the first of a new process, in that run."""
    work = batches(target, failures=files.of(run), **options)
    work.process(write(*(frames or (Frame(),))), running(number, run=run, history=log or Log()))


def test_nothing_is_written_of_batches_that_go_well_and_files_are_looked_for_once_a_run():
    target, files = MemoryTarget(), Files()
    work = batches(target, failures=files.of("run"))
    for number in range(20):
        work.process(write(Frame()), running(number, run="run", history=Log()))
    assert (files.calls, files.texts) == (1, {})


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("new_process", [False, True])
def test_a_gap_is_refused_and_says_what_to_do(new_process: bool, first: bool):
    target = MemoryTarget()
    work = batches(target)
    work.process(write(Frame()), running(0))
    with raises(BatchNotWritten, batch_id=5) as refused:
        (batches(target) if new_process else work).process(
            write(Frame()), running(5, history=Log(first=first))
        )
    assert "call the sink for every batch, also for an empty one" in refused.value.next_step
    assert 'resume="skip_missing"' in refused.value.next_step
    # the advice: the function is mended, and the batch runs again as the first of a start
    batches(target, resume="skip_missing").process(write(Frame()), running(5, history=Log()))
    batches(target).process(write(Frame()), running(6, history=Log()))
    assert_once(target, 0, 5, 6)


def test_keep_is_for_what_an_earlier_run_left_out_and_not_for_what_this_one_goes_on_leaving_out():
    target = MemoryTarget()
    work = batches(target, resume="skip_missing")
    work.process(write(Frame()), running(0))
    with pytest.raises(BatchNotWritten):
        work.process(write(Frame()), running(2, history=Log(first=False)))


def test_the_first_batches_of_all_may_not_be_left_out_either():
    target = MemoryTarget()
    with raises(BatchNotWritten, batch_id=3) as refused:
        batches(target).process(write(Frame()), running(3, history=Log(first=False)))
    assert 'resume="adopt"' in refused.value.next_step
    batches(target, resume="adopt").process(write(Frame()), running(3, history=Log()))
    assert_once(target, 3)


def test_a_ledger_that_was_lost_is_no_function_that_skips():
    for skipped in ("refuse", "allow"):
        with pytest.raises(LedgerBehind):
            batches(MemoryTarget(), skipped=skipped).process(
                write(Frame()), running(3, history=Log())
            )


@pytest.mark.parametrize("new_process", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_skipping_is_the_functions_decision_where_it_is_allowed(new_process: bool, dropped: bool):
    """For longer than Spark's offset log reaches back; alerts may be rare."""
    target = MemoryTarget()
    work = batches(target, skipped="allow")
    work.process(write(Frame()), running(200, history=Log(first=False)))
    work = batches(target, skipped="allow") if new_process else work
    work.process(write(Frame()), running(700, history=Log(dropped=dropped)))
    assert_once(target, 200, 700)


def test_offsets_that_contradict_a_gap_are_refused_where_skipping_is_allowed():
    target = MemoryTarget()
    work = batches(target, skipped="allow")
    work.process(write(Frame()), running(0))
    log = Log()
    log.ends = lambda batch_id: (11,)  # type: ignore[method-assign]
    with pytest.raises(CheckpointRewound):
        work.process(write(Frame()), running(5, history=log))


@pytest.mark.parametrize("lost", [1, 3])
def test_a_ledger_that_lost_its_end_is_found_by_the_gap(lost: int):
    """Output and ledger went back together, a cluster restored from a backup say; the checkpoint
    did not.
    """
    target = MemoryTarget()
    work = batches(target)
    for number in range(4):
        work.process(write(Frame()), running(number))
    del target.ledger[-lost:]
    with raises(BatchNotWritten, batch_id=4):
        batches(target).process(write(Frame()), running(4, history=Log()))


@pytest.mark.parametrize(("stateful", "lost"), [(True, 1), (True, 3), (False, 3)])
def test_state_of_later_batches_does_not_go_back_with_sparks_logs(stateful: bool, lost: int):
    target = MemoryTarget()
    work = batches(target)
    for number in range(4):
        work.process(write(Frame()), running(number, stateful=stateful))
    del target.ledger[-lost:]
    with raises(BatchNotWritten) as refused:
        batches(target).process(write(Frame()), running(4, history=Log(), stateful=stateful))
    goes_back = not stateful or lost == 1
    assert (f"move away from /checkpoint the files commits/{4 - lost}" in
            refused.value.next_step) is goes_back  # fmt: skip
    assert ("the state there is of later batches" in refused.value.next_step) is not goes_back


def test_nothing_is_refused_for_a_ledger_that_is_outdated():
    """A batch behind a gap, as it looks to a run that read the ledger from a broker that no longer
    led it.
    """
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0))
    asked = []

    def confirm() -> None:
        asked.append(len(target.ledger))
        raise LedgerOutdated("the ledger goes on behind batch 0")

    target.confirm = confirm  # type: ignore[method-assign]
    with pytest.raises(LedgerOutdated):
        batches(target).process(write(Frame()), running(5, history=Log(dropped=True)))
    assert asked == [1]


@pytest.mark.parametrize("skipped", ["refuse", "allow"])
@pytest.mark.parametrize("first", [False, True])
def test_a_batch_whose_error_was_kept_is_named(first: bool, skipped: SkippedBatches):
    target, files = MemoryTarget(), Files()
    if not first:
        go(target, files, 0, "earlier", skipped=skipped)
    files.left(1, "earlier", "RecordTooLarge: big")
    for run in ("earlier", "later"):
        with raises(BatchNotWritten) as refused:
            go(target, files, 2, run, skipped=skipped)
        assert "commits/1" in refused.value.next_step
    # the advice: batch 1 runs again
    if not first:
        go(target, files, 1, "rewound", skipped=skipped)
        go(target, files, 2, "rewound", skipped=skipped)
        assert files.texts == {}
        assert_once(target, 0, 1, 2)


def test_a_failed_call_poisons_its_run_also_where_the_ledger_has_the_batch():
    """It was decided, and what comes after the decision failed: Spark has to see the error."""
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "run")
    files.left(0, "run", "PublishIncomplete: later")
    with raises(BatchNotWritten):
        go(target, files, 1, "run")
    go(target, files, 1, "next")
    assert files.texts == {}


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.REPLAY])
def test_a_batch_that_may_lack_rows_is_named_at_the_next(kind: FailureKind):
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "earlier")
    files.left(0, "earlier", "UnsupportedQuery: called twice", kind)
    for run in ("earlier", "later"):
        with raises(BatchNotWritten) as refused:
            go(target, files, 1, run)
        assert 'resume="write_missing"' in refused.value.next_step
    assert_once(target, 0)


def test_a_try_that_failed_before_is_settled_by_the_batch():
    for kind in (FailureKind.FAILED, FailureKind.REPLAY, FailureKind.REFUSED):
        target, files = MemoryTarget(), Files()
        go(target, files, 0, "earlier")
        files.left(0, "earlier", "SendFailed: lost", kind)
        go(target, files, 0, "this")
        assert files.texts == {}, kind
        go(target, files, 1, "this")


def test_what_this_run_refused_is_not_settled_by_its_other_calls():
    target, files = MemoryTarget(), Files()
    files.left(0, "this", "two sinks", FailureKind.REFUSED)
    go(target, files, 0, "this")
    with raises(BatchNotWritten):
        go(target, files, 1, "this")


def test_a_failure_is_settled_when_the_batch_is_written_and_not_before():
    """An older copy's function kept it back; a newer copy is offered the batch, and dies in it."""
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "older")
    files.left(1, "older", "SendFailed: lost")
    target.plan["write"] = [RecordTooLarge("as if killed", next_step="nothing")]
    with pytest.raises(RecordTooLarge):
        go(target, files, 1, "newer")
    with raises(BatchNotWritten, "SendFailed"):
        go(target, files, 2, "third")


def test_a_file_that_was_cut_short_says_as_much_by_its_name():
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "earlier")
    files.left(0, "earlier", "of rows", FailureKind.REFUSED)
    (name, whole) = files.texts.popitem()
    for length in range(len(whole)):
        files.texts[name] = whole[:length]
        with raises(BatchNotWritten):
            go(target, files, 1, "later")
    files.texts = {"0.failed": "", "readme.txt": "not ours", "7-of-another-release": ""}
    go(target, files, 1, "later")


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.REPLAY])
def test_a_copy_that_was_overtaken_stops_no_heir(kind: FailureKind):
    """It stood still, and its heir ran the batch again and went on before it failed."""
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "older")
    heir = batches(target, failures=files.of("heir"))
    heir.process(write(Frame()), running(0, run="heir"))
    files.left(0, "older", "JobFailed: its files are gone", kind)
    heir.process(write(Frame()), running(1, run="heir"))
    go(target, files, 2, "next")
    assert_once(target, 0, 1, 2)


def test_a_copy_that_is_fenced_in_a_replay_stops_no_heir(monkeypatch: pytest.MonkeyPatch):
    """Its heir has run the batch again and settled it, and died before the next one."""
    monkeypatch.setattr(journal_module, "failed_call", lambda _, number: (number, False))
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "older")
    replaying = CallMemory(closed_at=BatchId(QUERY, 0), was_replay=True, journal=files.of("older"))
    failure = Frame(), 0, Fenced("a newer copy", next_step="stop one"), None, PipelineId("p")
    replaying.fail(failure[2])
    replaying.record_failure(*failure, "older")
    assert replaying.fenced
    go(target, files, 1, "next")
    assert_once(target, 0, 1)


@pytest.mark.parametrize(
    ("again", "deterministic"),
    [((110, 5), False), ((90, 5), False), ((5,), True), ((90,), False)],
    ids=["more by chance", "fewer by chance", "only what was refused", "fewer, and nothing else"],
)
def test_rows_that_are_known_to_be_missing_are_not_made_up_for_by_chance(
    monkeypatch: pytest.MonkeyPatch, again: tuple[int, ...], deterministic: bool
):
    """A sum says nothing of which rows these are. Nor is it forgotten."""
    monkeypatch.setattr(replay_module, "is_repeatable", lambda _: deterministic)
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "one", Frame(100))
    files.left(0, "one", "UnsupportedQuery: called twice", FailureKind.REFUSED)
    frames = [Frame(records) for records in again]
    for _ in range(2):
        with pytest.raises(BatchChanged):
            go(target, files, 0, "two", *frames, resume="write_missing")
    with pytest.raises(BatchNotWritten):
        go(target, files, 1, "three")
    go(target, files, 0, "four", *frames, resume="skip_missing")
    go(target, files, 1, "five")


def test_a_thread_that_is_refused_while_the_batch_is_written_is_not_forgotten():
    files = Files()
    failures = files.of("this")
    refused = FailedCall(0, FailureKind.REFUSED, "UnsupportedQuery: in a thread", "this")

    class Threads(MemoryTarget):
        def call(self, name: str) -> None:
            if name == "write" and FailureKind.REFUSED not in failures.kinds(0):
                failures.add(refused)
            super().call(name)

    target = Threads()
    work = batches(target, failures=failures)
    for number, fails in ((0, False), (1, True)):
        if fails:
            with raises(BatchNotWritten):
                work.process(write(Frame()), running(number, run="this", history=Log()))
        else:
            work.process(write(Frame()), running(number, run="this", history=Log()))
    with raises(BatchNotWritten):
        go(target, files, 1, "next")


def test_a_thread_that_is_refused_after_the_next_batch_is_not_forgotten():
    target, files = MemoryTarget(), Files()
    failures = files.of("this")
    work = batches(target, failures=failures)
    for number in (0, 1):
        work.process(write(Frame()), running(number, run="this"))
    failures.add(FailedCall(0, FailureKind.REFUSED, "UnsupportedQuery: a thread", "this"))
    for run in ("this", "another"):
        with raises(BatchNotWritten) as refused:
            go(target, files, 2, run)
        assert "commits/" not in refused.value.next_step, "batch 1 cannot be written twice"
    go(target, files, 2, "another", resume="skip_missing")
    go(target, files, 3, "a third")
    assert_once(target, 0, 1, 2, 3)


@pytest.mark.parametrize("first", [False, True])
def test_what_an_earlier_run_did_not_write_may_be_left_out_on_purpose(first: bool):
    target, files = MemoryTarget(), Files()
    if not first:
        go(target, files, 0, "earlier")
    files.left(1, "earlier", "RecordTooLarge: big")
    go(target, files, 2, "this", resume="skip_missing")
    assert files.texts == {}
    files.left(3, "this", "RecordTooLarge: again")
    with raises(BatchNotWritten):  # but not what this one does not write
        go(target, files, 4, "this", resume="skip_missing")


def test_adopting_leaves_out_nothing_that_failed():
    files = Files().left(99, "earlier", "AccessDenied: no")
    with raises(BatchNotWritten):
        go(MemoryTarget(), files, 100, "this", resume="adopt")
    go(MemoryTarget(), files, 100, "this", resume="skip_missing")


@pytest.mark.parametrize("where", ["the count", "the supplement"])
def test_a_replay_that_fails_is_told_from_a_batch_that_is_not_committed(where: str):
    """The batch is in the ledger; what the replay was to complete is not, and the function may
    keep the error.
    """
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0, run="one"))
    missing = Frame(error=ZeroDivisionError() if where == "the count" else None)
    target.plan["write"] = (
        [SendFailed("lost", next_step="nothing")] if where == "the supplement" else []
    )
    work, again = batches(target, attempts=1, resume="write_missing"), running(0, run="two")
    with pytest.raises((SendFailed, ZeroDivisionError)):
        work.process(write(Frame(), missing), again)
    assert work.is_replay(again)
    assert not batches(target).is_replay(again), "it has not looked"
    work = batches(target, resume="write_missing")
    work.process(write(Frame(), Frame()), running(0, run="that"))
    work.process(write(Frame()), running(1, run="that"))
    assert not work.is_replay(running(1, run="that"))
    assert [record.batch.batch_id for record in target.ledger] == [0, 0, 1]


@pytest.mark.parametrize("times", [1, 9])
def test_a_replay_compares_numbers_of_one_computation(times: int):
    """An executor is lost between two counts: its rows were drawn again, for another frame."""
    target = MemoryTarget()
    batches(target).process(write(Frame(2), Frame(0)), running(0, run="one"))
    mixed = iter([ComputationsMixed("lost", next_step="nothing")] * times)

    class Mixed(Frame):
        def count(self) -> int:
            self.replayed += 1
            if (error := next(mixed, None)) is not None:
                raise error
            return self.rows

    second = Mixed(0)
    if times == 1:
        batches(target).process(write(Frame(2), second), running(0, run="two"))
        assert second.replayed == 2
    else:
        with pytest.raises(ComputationsMixed):
            batches(target).process(write(Frame(2), second), running(0, run="two"))
        assert second.replayed == 3  # as often as a batch is tried
    assert_once(target, 0)


@pytest.mark.parametrize("resume", ["checkpoint", "write_missing", "skip_missing"])
@pytest.mark.parametrize("kind", [None, FailureKind.REFUSED, FailureKind.REPLAY])
def test_an_expired_replay_does_not_pass_over_rows_that_are_lacking(
    resume: Resume, kind: FailureKind | None
):
    target, files = MemoryTarget(), Files()
    go(target, files, 0, "earlier")
    if kind:
        files.left(0, "earlier", "called twice", kind)
    gone = Frame(error=SourceDataLost("expired", next_step="nothing"))
    if resume == "write_missing" or (kind and resume == "checkpoint"):
        with raises(SourceDataLost):
            go(target, files, 0, "this", gone, resume=resume)
    else:
        go(target, files, 0, "this", gone, resume=resume)
    assert_once(target, 0)


def test_an_expired_replay_with_another_frame_is_refused():
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0))
    gone = Frame(error=SourceDataLost("expired", next_step="nothing"))
    with raises(SourceDataLost):
        batches(target).process(write(gone, gone), running(0))


def test_an_attempt_whose_state_spark_would_commit_is_not_followed_by_another():
    """State in checkpoints of format 2 is that of the first attempt of a run."""
    target = MemoryTarget(write=[RETRIABLE])
    with raises(StateOfFailedAttempt) as refused:
        batches(target).process(write(Frame()), running(0, computes_once=True))
    assert refused.value.recovery is Recovery.RESTART
    assert refused.value.__cause__ is RETRIABLE
    assert target.calls.count("write") == 1
    batches(target).process(write(Frame()), running(0, computes_once=True))  # the restart
    assert_once(target, 0)


def test_a_replay_whose_state_spark_would_commit_is_not_counted_twice():
    target = committed(Frame(5))
    mixed = Frame(5, ComputationsMixed("lost", next_step="nothing"))
    with pytest.raises(StateOfFailedAttempt):
        batches(target).process(write(mixed), running(0, computes_once=True))
    assert mixed.replayed == 1


@pytest.mark.parametrize(
    ("then", "now", "outcome", "lacking"),
    [
        # a branch was added to a fan-out, whose deciding sink comes last
        ({"@f": 9, "out": 9}, [("@f", 9), ("@g", 9), ("out", 9)], "MORE_FRAMES", [1]),
        ({"@f": 9, "out": 9}, [("@g", 9), ("out", 9), ("@f", 9)], "MORE_FRAMES", [0]),
        ({"@f": 9, "out": 9}, [("out", 9), ("@f", 9)], "NOTHING_NEW", []),
        ({"@f": 9, "out": 9}, [("@g", 9), ("out", 9)], "OTHER_ROWS", []),
        ({"@f": 9, "out": 9}, [("@f", 8), ("@g", 9), ("out", 9)], "OTHER_ROWS", []),
        # a frame that had no rows says nothing of the order
        ({"@f": 0, "out": 5}, [("@f", 3), ("out", 5)], "MORE_FRAMES", [0]),
        ({"@f": 0, "out": 5}, [("out", 5), ("@f", 3)], "MORE_FRAMES", [1]),
        # which of two frames for one place was committed, their order tells alone
        ({"out": 9}, [("out", 5), ("out", 9)], "OTHER_ROWS", []),
        ({"out": 9}, [("out", 9), ("out", 5)], "MORE_FRAMES", [1]),
    ],
)
def test_frames_for_different_places_are_compared_by_place(
    then: dict[str, int], now: list[tuple[str, int]], outcome: str, lacking: list[int]
) -> None:
    committed = [FrameWritten(where, records) for where, records in then.items()]
    found = replay_module.compare_all(
        committed, [FrameWritten(*frame) for frame in now], [False] * len(now), exactly=True
    )
    assert found == (replay_module.ReplayOutcome[outcome], lacking)


@pytest.mark.parametrize("state", RecordState)
def test_a_run_that_lost_the_ledger_goes_on_with_what_it_knows_to_be_published(
    state: RecordState,
) -> None:
    target = committed(Frame(5))
    none, three = (
        {"out": Output("write_ahead", 1, 5, {"delivered": chunks})} for chunks in (0, 3)
    )
    in_the_ledger = replace(target.ledger[0], state=RecordState.DECIDED, outputs=none)
    counted = replace(in_the_ledger, outputs=three)
    finished: list[LedgerRecord] = []

    class Publishing(MemoryTarget):
        def finish(self, record: LedgerRecord) -> LedgerRecord:
            finished.append(record)
            return super().finish(record)

    for known, goes_on_with in [
        (replace(counted, state=state), counted),
        (replace(counted, outputs=none), in_the_ledger),
        (replace(counted, attempt=AttemptId(9, 9)), in_the_ledger),
        (None, in_the_ledger),
    ]:
        again = Publishing()
        again.ledger = [in_the_ledger]
        policy = SinkPolicy(PipelineId("p"))
        MicroBatches(again, policy, known=known).process(write(Frame()), running(1))
        assert finished.pop() == goes_on_with
        assert again.output == [1]
    behind = MicroBatches(again, SinkPolicy(PipelineId("p")), known=replace(counted, sequence=7))
    with raises(LedgerBehind):
        behind.process(write(Frame()), running(2))


def test_what_spark_takes_for_lost_may_only_have_been_asked_of_the_wrong_broker() -> None:
    """The source itself says so: then the batch runs again."""
    lost = SourceDataLost("out of range", next_step="lengthen the retention")
    target = MemoryTarget(write=[lost, lost, None])

    class Asked(SourceIdentity):
        def explain(self, lost: SourceDataLost, running: RunningBatch) -> OncewardError:
            return BrokerUnreachable(
                "a broker that no longer leads was asked", next_step="nothing"
            )

    batches(target, identity=Asked()).process(write(Frame()), running(0))
    assert_once(target, 0)
    target = MemoryTarget(write=[lost])
    with pytest.raises(SourceDataLost):
        batches(target, identity=SourceIdentity()).process(write(Frame()), running(0))


@pytest.mark.parametrize("passes", [True, False])
def test_a_replay_is_tried_as_often_as_a_batch(passes: bool) -> None:
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0, run="one"))
    away = BrokerUnreachable("away", next_step="nothing; the batch runs again")
    ends = iter([away, away, *[away][passes:]])

    class Away(Frame):
        def count(self) -> int:
            if (error := next(ends, None)) is not None:
                raise error
            return self.rows

    again = batches(target)
    if passes:
        again.process(write(Away()), running(0, run="two"))
    else:
        with pytest.raises(BrokerUnreachable) as unreachable:
            again.process(write(Away()), running(0, run="two"))
        assert unreachable.value.next_step.startswith("start the query again")
    assert_once(target, 0)


@pytest.mark.parametrize("what", ["X", "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"])
def test_a_replay_whose_state_cannot_be_computed_says_that_the_batch_is_written(what: str) -> None:
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0, run="one"))
    details = {"condition": f"KAFKA_DATA_LOSS.{what}"}
    lost = SourceDataLost("out of range", next_step="", details=details)

    class Cut(SourceIdentity):
        def explain(self, lost: SourceDataLost, running: RunningBatch) -> OncewardError:
            return SourceDataLost("cut off", next_step="remove the file offsets/0")

    again = batches(target, identity=Cut())
    with raises(SourceDataLost, "is committed") as refused:
        again.process(write(Frame(error=lost)), running(0, run="two", stateful=True))
    # Topics that the query only does not name are there
    assert refused.value.next_step.startswith("put back into topic=") is (what != "X")


class At(History):
    """Of a query with its checkpoint in one place, as all here."""

    checkpoint = "the place"

    def __init__(self) -> None:
        super().__init__(None)


def test_a_query_in_the_place_of_one_that_has_committed_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that is not mounted is an empty folder, in which Spark begins another query; the
    ledger may be on that disk, too, and know nothing.
    """

    def run(target: Target, number: int, query: str = QUERY, resume: Resume = "checkpoint"):
        frames = write(Frame())
        batches(target, resume=resume).process(frames, running(number, query, history=At()))

    monkeypatch.setattr(gate, "_homes", {})
    target, other = MemoryTarget(), MemoryTarget()
    run(target, 0)
    run(other, 0, "another")
    with gate.starting_again():
        # The ledger has seen it in another process
        run(target, 1)
        for ledger in (target, MemoryTarget()):
            with raises(CheckpointUnreachable) as refused:
                run(ledger, 0, "another")
            assert "query another" in str(refused.value)
            assert ledger.calls[-1] == "peek"
        # Whom the ledger knows is right, whoever has been there
        run(other, 1, "another")
        run(target, 2)
        run(target, 3, "a third", "ledger")
    # Nobody starts queries again
    run(MemoryTarget(), 0, "another")
    # In processes of one `onceward run`, without a supervisor
    monkeypatch.setenv(durable.RUN_FOLDER, str(tmp_path))
    run(target, 4, "a third")
    gate._homes.clear()
    with raises(CheckpointUnreachable):
        run(MemoryTarget(), 0, "another")
    run(target, 5, "a third")


def test_a_source_that_goes_back_may_do_so_where_somebody_has_decided_it() -> None:
    class Back(SourceIdentity):
        def must_not_go_back(self, running: RunningBatch) -> None:
            raise SourceDataLost("it goes back", next_step='start once with resume="adopt"')

    target = MemoryTarget()
    with pytest.raises(SourceDataLost):
        batches(target, identity=Back()).process(write(Frame()), running(0))
    assert target.output == []
    adopting = batches(target, identity=Back(), resume="adopt")
    adopting.process(write(Frame()), running(0))
    assert_once(target, 0)
    # It was decided for the batch that the run began with.
    with pytest.raises(SourceDataLost):
        adopting.process(write(Frame()), running(1))
