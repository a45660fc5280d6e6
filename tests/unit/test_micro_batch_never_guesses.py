"""The nine steps over a target that fails where it is told to: what is tried again, what ends the query, what is asked.

The target keeps a ledger and an output in memory, with the same meaning of commit, doubt and fencing as a real one;
after every story the output must hold each batch once at most, and exactly if the ledger does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onceward import events
from onceward.engine import micro_batch
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, NoWitness, Prepared, Target, Write
from onceward.errors import (
    BatchChanged,
    BatchFailed,
    BatchNotWritten,
    BrokerUnreachable,
    CheckpointReplaced,
    CheckpointRewound,
    CommitInDoubt,
    ComputationsMixed,
    Fenced,
    LedgerBehind,
    LedgerOutdated,
    LedgerUnreadable,
    OncewardError,
    RecordTooLarge,
    SendFailed,
    SourceDataLost,
    SourceTopicReplaced,
    TransactionTimedOut,
    Unfinished,
    UnsupportedQuery,
)
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.ledger.admission import Resume
from onceward.ledger.record import FrameWritten, LedgerRecord, Output, State
from onceward.spark.handed_over import HandedOver, Note
from onceward.spark.query import History, RunningBatch

QUERY = "3b6c0de1-0000-4000-8000-000000000001"
RETRIABLE = SendFailed("lost", next_step="nothing")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "_FIRST_PAUSE_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def frames_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "count_rows", lambda frames: [frame.count() for frame in frames])


class MemoryTarget(Target):
    """Output and ledger in lists. ``plan`` maps a method's name to what its successive calls raise (None: nothing);
    ``commit_is_carried_out`` says what becomes of a commit that raises."""

    def __init__(self, **plan: list[BaseException | None]) -> None:
        self.plan = plan
        self.commit_is_carried_out = False
        self.calls: list[str] = []
        self.output: list[int] = []
        self.ledger: list[LedgerRecord] = []
        self.published: list[int] = []
        self.decides = State.FINISHED
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
        self.ledger[-1] = replace(record, state=State.FINISHED)
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
        return Prepared({"memory": Output("memory", 1, len(self.rows), None)}, state=self._target.decides)

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
    number: int, query: str = QUERY, *, run: str | None = None, history: History | None = None, stateful: bool = False
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
        history=history,
    )


def write(*frames: Frame, where: str | None = "out") -> list[Write]:
    return [Write(frame, where) for frame in frames]  # type: ignore[arg-type]


def batches(
    target: Target, attempts: int = 3, resume: Resume = "checkpoint", failed: BatchId | None = None
) -> MicroBatches:
    return MicroBatches(target, SinkPolicy(PipelineId("p"), resume=resume, batch_attempts=attempts), failed)


def process(target: Target, number: int = 0, attempts: int = 3) -> None:
    """Batch ``number`` as the first of a new process."""
    batches(target, attempts).process(write(Frame()), running(number))


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
    assert target.calls.count("abort") == (0 if step == "begin" else 2), "what was not begun needs no abort"
    assert target.calls.count("commit") == 1


@pytest.mark.parametrize("step", ["begin", "write", "stage"])
@pytest.mark.parametrize("error", [RecordTooLarge("big"), ValueError("bug"), KeyboardInterrupt(), Fenced("newer")])
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
    with pytest.raises(SendFailed):
        process(target, attempts=3)
    assert target.calls.count("write") == 3
    assert_once(target)


def test_being_fenced_while_aborting_is_what_the_query_ends_with():
    target = MemoryTarget(write=[RETRIABLE], abort=[Fenced("newer")])
    with pytest.raises(Fenced) as caught:
        process(target)
    assert caught.value.__cause__ is RETRIABLE
    assert target.calls.count("write") == 1


@pytest.mark.parametrize("failure", [BrokerUnreachable("nobody"), TransactionTimedOut("late"), OncewardError("state")])
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
def test_after_a_commit_that_failed_but_was_carried_out_nothing_is_repeated(failure: Callable[[], BaseException]):
    target = MemoryTarget(commit=[failure()])
    target.commit_is_carried_out = True
    process(target)
    assert "abort" not in target.calls, "an abort after a commit could hit the next transaction"
    assert target.calls.count("write") == 1
    assert_once(target, 0)


@pytest.mark.parametrize("failure", COMMIT_FAILURES[:4], ids=lambda make: type(make()).__name__)
def test_after_a_commit_that_failed_and_was_not_carried_out_the_batch_runs_again(failure: Callable[[], BaseException]):
    target = MemoryTarget(commit=[failure()])
    process(target)
    assert target.calls.count("settle") == 1
    assert_once(target, 0)


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("unsettled", [BrokerUnreachable("nobody"), TransactionTimedOut("late"), OncewardError("?")])
def test_a_doubt_that_cannot_be_settled_ends_the_query_and_is_never_tried_again(
    unsettled: OncewardError, carried_out: bool
):
    """Whoever runs the batch again here may write it twice: settling failed, but the commit may have been made."""
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
    """Same batch, same sequence, other identity: an heir ran it after our doubt; we may not claim it."""
    target = MemoryTarget(commit=[CommitInDoubt("no answer")])
    work = batches(target, attempts=1)

    def heir(event: events.Event) -> None:
        if (event.step, event.phase) == (events.COMMIT, "failed"):
            record = LedgerRecord(PipelineId("p"), 0, BatchId(QUERY, 0), running(0).sources, AttemptId(7, 99), {}, 0)
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
    """A predecessor may commit its last batch after the peek: only what is read after fencing is final."""

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
    """``foreachBatch(lambda df, i: (sink(a, i), sink(b, i)))``: the ledger would call the second one a replay."""
    target = MemoryTarget()
    work = batches(target)
    work.process(write(Frame()), running(0))
    second = Frame()
    with pytest.raises(UnsupportedQuery, match="twice"):
        work.process(write(second), running(0))
    assert second.replayed == 0
    assert_once(target, 0)


# --- what comes after the decision ---------------------------------------------------------------------------------


def two_phase(**plan: list[BaseException | None]) -> MemoryTarget:
    target = MemoryTarget(**plan)
    target.decides = State.DECIDED
    return target


def test_what_is_decided_is_published_before_spark_hears_of_it():
    target = two_phase()
    work = batches(target)
    for number in range(2):
        work.process(write(Frame()), running(number))
    assert target.calls == ["peek", "open", *["begin", "write", "stage", "commit", "finish"] * 2]
    assert target.published == [0, 1]
    assert [record.state for record in target.ledger] == [State.FINISHED] * 2


@pytest.mark.parametrize("failure", [Unfinished("later"), KeyboardInterrupt(), ValueError("a bug"), BatchFailed("?")])
def test_what_could_not_be_published_is_published_first_thing_after_the_restart(failure: BaseException):
    """Whatever publishing meets, and whatever it says of trying again: the batch is decided and never runs again."""
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
    target = two_phase(finish=[Unfinished("later"), Unfinished("later")])
    work = batches(target)
    for number in (0, 1):  # a function that keeps errors to itself
        with pytest.raises(Unfinished):
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
    """The sink was changed from one that publishes to one that commits by itself, on the same ledger."""
    target = two_phase(finish=[Unfinished("later")])
    with pytest.raises(Unfinished):
        process(target)

    class Atomic(MemoryTarget):
        finish = Target.finish

    changed = Atomic()
    changed.ledger = target.ledger
    for number in (0, 1):
        with pytest.raises(LedgerUnreadable, match="another sink"):
            process(changed, number)
    assert changed.output == []
    process(target)  # the advice: once more with the sink that wrote it
    process(changed, 1)
    assert changed.output == [1]


def test_a_batch_is_published_even_if_its_source_is_no_longer_the_same():
    class Replaced(NoWitness):
        def begin(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
            raise SourceTopicReplaced("it was created again")

    target = two_phase(finish=[Unfinished("later")])
    with pytest.raises(Unfinished):
        process(target)
    target.witness = Replaced()
    with pytest.raises(SourceTopicReplaced):
        process(target)
    assert target.published == [0]


def test_what_a_batch_reads_is_asked_for_before_it_is_written():
    class Replaced(NoWitness):
        def before(self, running: RunningBatch) -> None:
            raise SourceTopicReplaced("it was created again")

    target = two_phase()
    target.witness = Replaced()
    with pytest.raises(SourceTopicReplaced):
        process(target)
    assert "begin" not in target.calls


def test_a_query_that_is_refused_leaves_the_publishing_to_who_is_not():
    """A look at the ledger shows that the batch is another checkpoint's: nobody is fenced, nothing is published."""
    target = two_phase(finish=[Unfinished("later")])
    with pytest.raises(Unfinished):
        process(target)
    with pytest.raises(CheckpointReplaced) as refused:
        batches(target).process(write(Frame()), running(0, "another-query"))
    assert "not published yet" in refused.value.next_step
    assert target.published == []


def test_what_a_rewound_query_has_decided_is_published_by_its_heir():
    """Its own query cannot be started once more on such a checkpoint; the advice must be one that can be followed."""
    target = two_phase(finish=[None, Unfinished("later")])
    process(target, 0)
    with pytest.raises(Unfinished):
        process(target, 1)
    with pytest.raises(CheckpointRewound) as refused:
        process(target, 0)
    assert "start the query that wrote" not in refused.value.next_step
    assert "whichever start is admitted publishes it first of all" in refused.value.next_step
    assert target.published == [0]
    anew = replace(running(0, "another-query"), sources=(SourceRange(20, 30),))
    batches(target, resume="ledger").process(write(Frame()), anew)
    assert target.published == [0, 1, 0], "the old one first, then the first of the new query"


# --- what a user's own function may do -----------------------------------------------------------------------------


def test_several_frames_are_one_commit():
    target = MemoryTarget()
    batches(target).process(write(Frame(2), Frame(3)), running(0))
    assert target.calls.count("commit") == 1
    assert target.ledger[0].frames == (FrameWritten("out", 2), FrameWritten("out", 3))


def test_a_second_sink_in_the_same_run_is_refused():
    """It has a target of its own, and finds in the ledger what the first one committed a moment ago."""
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0, run="r"))
    with pytest.raises(UnsupportedQuery, match="twice"):
        batches(target).process(write(Frame()), running(0, run="r"))
    assert_once(target, 0)


def test_a_second_try_after_doubt_is_a_replay():
    """``CommitInDoubt`` reached the user's function, which tries again: what this run committed is no other call's."""
    target = MemoryTarget(commit=[CommitInDoubt("no answer")], settle=[BrokerUnreachable("nobody")])
    target.commit_is_carried_out = True
    with pytest.raises(CommitInDoubt):
        batches(target).process(write(Frame()), running(0, run="r"))
    batches(target, failed=BatchId(QUERY, 0)).process(write(Frame()), running(0, run="r"))
    assert_once(target, 0)


def committed(*frames: Frame) -> MemoryTarget:
    target = MemoryTarget()
    batches(target).process(write(*frames), running(0))
    return target


@pytest.mark.parametrize("now", [[Frame(5), Frame(0)], [Frame(4)], [Frame(2), Frame(3)], []], ids=len)
def test_a_replay_without_new_rows_sends_nothing(now: list[Frame]):
    target = committed(Frame(5))
    batches(target).process(write(*now), running(0))
    assert_once(target, 0)


@pytest.mark.parametrize("now", [[Frame(5), Frame(1)], [Frame(6)]], ids=["more frames", "more rows"])
def test_rows_that_a_committed_batch_lacks_are_named(now: list[Frame], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(micro_batch, "is_deterministic", lambda frame: True)
    target = committed(Frame(5))
    with pytest.raises(BatchChanged, match="committed with 5 records for out"):
        batches(target).process(write(*now), running(0))
    batches(target, resume="keep").process(write(*now), running(0))
    assert_once(target, 0)


def test_rows_that_differ_by_chance_are_left():
    target = committed(Frame(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(micro_batch, "is_deterministic", lambda frame: False)
        batches(target).process(write(Frame(6)), running(0))
    assert_once(target, 0)


def test_complete_writes_the_frames_that_are_missing():
    target = committed(Frame(5))
    both = write(Frame(5)) + write(Frame(7), where="other")
    batches(target, resume="complete").process(both, running(0))
    assert_once(target, 0, 0)
    assert [record.sequence for record in target.ledger] == [0, 1]
    assert target.ledger[1].supplement
    assert target.ledger[1].frames == (FrameWritten("out", 5), FrameWritten("other", 7))
    batches(target, resume="complete").process(both, running(0))  # and once only
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


class Notes(HandedOver):
    """Those of a checkpoint, in memory; on a real file system: ``tests/spark/test_what_a_function_may_do.py``."""

    def __init__(self, *notes: Note, others: tuple[str, ...] = ()) -> None:
        self.files = {(note.batch_id, note.run_id): note for note in notes}
        self._others = others

    def _all(self) -> list[Note]:
        return sorted(self.files.values())

    def give(self, batch_id: int, run_id: str) -> None:
        self.files.setdefault((batch_id, run_id), Note(batch_id, run_id))

    def failed(self, note: Note) -> None:
        self.files[note.batch_id, note.run_id] = note

    def forget(self, note: Note) -> None:
        del self.files[note.batch_id, note.run_id]

    def _read(self, note: Note) -> Note | None:
        return self.files.get((note.batch_id, note.run_id))

    def others(self, since: int) -> tuple[str, ...]:
        self.asked_since = since
        return self._others


class Log:
    """What Spark's checkpoint says of the batches of :func:`running`, and our notes beside it."""

    checkpoint = "/checkpoint"

    def __init__(
        self,
        *notes: Note,
        dropped: bool = False,
        from_batch_0: bool = False,
        executed: tuple[int, ...] = (),
        others: tuple[str, ...] = (),
    ) -> None:
        self.book = Notes(*notes, others=others)
        self.dropped = dropped
        self._from_batch_0 = from_batch_0
        self._executed = set(executed)

    def ends(self, batch_id: int) -> tuple[Any, ...] | None:
        return None if self.dropped else (batch_id * 10 + 10,)

    def began_with_batch_0(self, batch_id: int) -> bool:
        return self._from_batch_0

    def executed(self) -> set[int]:
        return self._executed

    def handed_over(self) -> HandedOver:
        return self.book


@pytest.mark.parametrize("new_process", [False, True])
def test_a_function_may_skip_batches(new_process: bool):
    target = MemoryTarget()
    work = batches(target)
    work.process(write(Frame()), running(0))
    (batches(target) if new_process else work).process(write(Frame()), running(5, history=Log()))
    assert_once(target, 0, 5)


def test_nothing_is_refused_for_a_ledger_that_is_outdated():
    """A batch behind a gap, as it looks to a run that read the ledger from a broker that no longer led it."""
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


def test_the_first_batches_may_be_skipped_too():
    target = MemoryTarget()
    with pytest.raises(LedgerBehind):
        batches(target).process(write(Frame()), running(3, history=Log()))
    batches(target).process(write(Frame()), running(3, history=Log(from_batch_0=True)))
    assert_once(target, 3)


def test_a_gap_that_nothing_vouches_for_is_refused():
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0))
    with pytest.raises(LedgerBehind):
        batches(target).process(write(Frame()), running(5, history=Log(dropped=True)))
    assert_once(target, 0)


@pytest.mark.parametrize("first", [False, True])
def test_a_batch_whose_error_was_kept_is_named(first: bool):
    target = MemoryTarget()
    if not first:
        batches(target).process(write(Frame()), running(0))
    log = Log(Note(1, "earlier", "RecordTooLarge: big"), from_batch_0=True)
    with pytest.raises(BatchNotWritten, match=r"batch 1 .*RecordTooLarge"):
        batches(target).process(write(Frame()), running(2, history=log))
    assert_once(target, *([] if first else [0]))


@pytest.mark.parametrize("new_process", [False, True])
def test_a_batch_that_lacks_refused_rows_is_named_at_the_next(new_process: bool):
    target = MemoryTarget()
    work = batches(target)
    work.process(write(Frame()), running(0))
    work = batches(target) if new_process else work
    log = Log(Note(0, "earlier", "UnsupportedQuery: called twice", lacking=True))
    with pytest.raises(BatchNotWritten, match=r"rows of batch 0 .*called twice"):
        work.process(write(Frame()), running(1, history=log))
    assert_once(target, 0)


def test_a_try_that_failed_before_is_settled_by_the_batch():
    """The first batch's, too, and that of one that is replayed: what is mended must not be held against the next."""
    for failed in (Note(0, "earlier", "SendFailed: lost"), Note(0, "earlier", "called twice", lacking=True)):
        target = MemoryTarget()
        batches(target).process(write(Frame()), running(0))
        for log in (Log(failed), Log(failed, from_batch_0=True)):
            work = batches(target if log.began_with_batch_0(0) else MemoryTarget())
            for number in range(3):
                work.process(write(Frame()), running(number, run="this", history=log))
            assert log.book.notes(-1, 9) == [Note(1, "this"), Note(2, "this")]


def test_what_this_run_refused_is_not_settled_by_its_other_calls():
    target, log = MemoryTarget(), Log(Note(0, "this", "two sinks", lacking=True))
    work = batches(target)
    work.process(write(Frame()), running(0, run="this", history=log))
    with pytest.raises(BatchNotWritten, match="two sinks"):
        work.process(write(Frame()), running(1, run="this", history=log))


def test_a_note_is_settled_when_the_batch_is_written_and_not_before():
    """An older copy's note of a batch that its function kept back; a newer copy is offered it, and dies in it."""
    target, log = MemoryTarget(), Log(Note(1, "older", "SendFailed: lost"))
    batches(target).process(write(Frame()), running(0))
    target.plan["write"] = [RecordTooLarge("as if killed", next_step="nothing")]
    with pytest.raises(RecordTooLarge):
        batches(target).process(write(Frame()), running(1, run="newer", history=log))
    assert log.book.notes(-1, 9) == [Note(1, "newer"), Note(1, "older", "SendFailed: lost")]
    with pytest.raises(BatchNotWritten, match="SendFailed"):
        batches(target).process(write(Frame()), running(2, run="third", history=log))


@pytest.mark.parametrize("lost", [1, 3])
def test_a_ledger_that_lost_its_end_is_no_function_that_skips(lost: int):
    """Output and ledger went back together, a cluster restored from a backup say; the checkpoint did not."""
    target, log = MemoryTarget(), Log(from_batch_0=True)
    work = batches(target)
    for number in range(4):
        work.process(write(Frame()), running(number, history=log))
    del target.ledger[-lost:]
    with pytest.raises(LedgerBehind, match="before it was handed over") as refused:
        batches(target).process(write(Frame()), running(4, history=log))
    assert f"commits/{4 - lost}" in refused.value.next_step
    assert log.book.asked_since == 4 - lost, "who else would be rewound by that"


def test_a_replay_keeps_the_note_that_tells_of_a_ledger_that_loses_its_end():
    target, log = MemoryTarget(), Log()
    work = batches(target)
    for number in range(5):
        work.process(write(Frame()), running(number, run="one", history=log))
    lost = RuntimeError("the source is away")
    with pytest.raises(RuntimeError):
        batches(target).process(write(Frame(error=lost)), running(4, run="two", history=log))
    del target.ledger[2:]  # the cluster comes back from a backup
    with pytest.raises(LedgerBehind):
        batches(target).process(write(Frame()), running(4, run="three", history=log))


@pytest.mark.parametrize(
    ("again", "deterministic"),
    [((110, 5), False), ((90, 5), False), ((5,), True), ((90,), False)],
    ids=["more by chance", "fewer by chance", "only what was refused", "fewer, and nothing else"],
)
def test_rows_that_are_known_to_be_missing_are_not_made_up_for_by_chance(
    monkeypatch: pytest.MonkeyPatch, again: tuple[int, ...], deterministic: bool
):
    """A sum says nothing of which rows these are. Nor is the note forgotten."""
    monkeypatch.setattr(micro_batch, "is_deterministic", lambda _: deterministic)
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame(100)), running(0, run="one", history=log))
    log.book.failed(Note(0, "one", "UnsupportedQuery: called twice", lacking=True))
    frames = write(*(Frame(records) for records in again))
    for _ in range(2):
        with pytest.raises(BatchChanged):
            batches(target, resume="complete").process(frames, running(0, run="two", history=log))
    with pytest.raises(BatchNotWritten):
        batches(target).process(write(Frame()), running(1, run="three", history=log))
    batches(target, resume="keep").process(frames, running(0, run="four", history=log))
    batches(target).process(write(Frame()), running(1, run="five", history=log))


def test_a_refusal_in_a_batch_without_rows_is_not_held_against_later_ones():
    target, log = MemoryTarget(), Log(executed=(0, 1, 2, 3, 4))
    batches(target).process(write(Frame()), running(0, run="one", history=log))
    log.book.failed(Note(1, "one", "UnsupportedQuery: in a thread", lacking=True))
    mended = batches(target)
    for number in (2, 3, 4):  # batch 1 ran again, and there was nothing to hand over
        mended.process(write(Frame()), running(number, run="two", history=log))


def test_a_thread_that_is_refused_while_the_batch_is_written_is_not_forgotten():
    log = Log(Note(0, "this", "SendFailed: lost"))
    refused = Note(0, "this", "UnsupportedQuery: in a thread", lacking=True)

    class Threads(MemoryTarget):
        def call(self, name: str) -> None:
            if name == "write":
                log.book.failed(refused)
            super().call(name)

    batches(Threads()).process(write(Frame()), running(0, run="this", history=log))
    assert log.book.notes(-1, 9) == [refused]


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_long_gap_is_believed_where_nothing_was_handed_over(failed_before: bool):
    """Spark's offset log reaches back a hundred batches; alerts may be rarer."""
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame()), running(0, run="first", history=log))
    log.dropped = True
    run = "first" if failed_before else "second"
    batches(target, failed=BatchId(QUERY, 500)).process(write(Frame()), running(500, run=run, history=log))
    assert_once(target, 0, 500)


def test_an_earlier_runs_failure_is_no_loss_where_this_run_had_nothing_to_hand_over():
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0))
    log = Log(Note(1, "earlier", "SendFailed: lost"), executed=(0, 1, 2))
    batches(target).process(write(Frame()), running(3, history=log))
    assert_once(target, 0, 3)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("error", ["RecordTooLarge: big", ""])
def test_what_an_earlier_run_did_not_write_may_be_left_out_on_purpose(first: bool, error: str):
    target = MemoryTarget()
    if not first:
        batches(target).process(write(Frame()), running(0))
    log = Log(Note(1, "earlier", error), dropped=True)
    work = batches(target, resume="keep")
    work.process(write(Frame()), running(2, run="this", history=log))
    log.book.failed(Note(3, "this", "RecordTooLarge: again"))
    with pytest.raises(BatchNotWritten, match="again"):  # but not what this one does not write
        work.process(write(Frame()), running(4, run="this", history=log))


def test_rows_that_an_earlier_batch_lacks_are_not_forgotten():
    """A thread that its function did not wait for is refused after the next batch was admitted."""
    target, log = MemoryTarget(), Log()
    work = batches(target)
    for number in (0, 1):
        work.process(write(Frame()), running(number, run="this", history=log))
    log.book.failed(Note(0, "this", "UnsupportedQuery: a thread", lacking=True))
    with pytest.raises(BatchNotWritten, match="rows of batch 0 ") as refused:
        work.process(write(Frame()), running(2, run="this", history=log))
    assert "commits/" not in refused.value.next_step, "batch 1 cannot be written twice"
    batches(target, resume="keep").process(write(Frame()), running(2, run="another", history=log))
    batches(target).process(write(Frame()), running(3, run="a third", history=log))
    assert_once(target, 0, 1, 2, 3)


@pytest.mark.parametrize("where", ["the count", "the supplement"])
def test_a_replay_that_fails_is_not_forgotten(where: str):
    """The batch is in the ledger; what the replay was to complete is not, and the function may keep the error."""
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame()), running(0))
    work = batches(target, attempts=1, resume="complete")
    missing = Frame(error=ZeroDivisionError() if where == "the count" else None)
    target.plan["write"] = [SendFailed("lost", next_step="nothing")] if where == "the supplement" else []
    with pytest.raises((SendFailed, ZeroDivisionError)):
        work.process(write(Frame(), missing), running(0, run="this", history=log))
    with pytest.raises(BatchNotWritten, match="rows of batch 0"):
        batches(target).process(write(Frame()), running(1, run="this", history=log))
    work = batches(target, resume="complete")
    work.process(write(Frame(), Frame()), running(0, run="that", history=log))
    batches(target).process(write(Frame()), running(1, run="that", history=log))
    assert [record.batch.batch_id for record in target.ledger] == [0, 0, 1]


@pytest.mark.parametrize("owner", ["a newer copy", "we", "not known"])
def test_a_failed_replay_of_a_copy_that_was_overtaken_stops_nobody(owner: str):
    """It stood still, and its heir ran the batch again and went on: nobody would settle what it notes then."""
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame()), running(0, run="one", history=log))
    fenced, silent = Fenced("a newer one", next_step="stop"), BrokerUnreachable("nobody answers", next_step="wait")
    target.plan["settle"] = [{"a newer copy": fenced, "we": None, "not known": silent}[owner]]
    with pytest.raises(Fenced if owner == "a newer copy" else ZeroDivisionError):
        batches(target).process(write(Frame(error=ZeroDivisionError())), running(0, run="two", history=log))
    if owner != "a newer copy":
        with pytest.raises(BatchNotWritten, match="rows of batch 0"):
            batches(target).process(write(Frame()), running(1, run="three", history=log))
        return
    batches(target).process(write(Frame()), running(1, run="three", history=log))
    assert_once(target, 0, 1)


@pytest.mark.parametrize("times", [1, 9])
def test_a_replay_compares_numbers_of_one_computation(times: int):
    """An executor is lost between two counts: its rows were drawn again, for another frame."""
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame(2), Frame(0)), running(0, run="one", history=log))
    mixed = iter([ComputationsMixed("lost", next_step="nothing")] * times)

    class Mixed(Frame):
        def count(self) -> int:
            self.replayed += 1
            if (error := next(mixed, None)) is not None:
                raise error
            return self.rows

    second = Mixed(0)
    if times == 1:
        batches(target).process(write(Frame(2), second), running(0, run="two", history=log))
        assert second.replayed == 2
    else:
        with pytest.raises(ComputationsMixed):
            batches(target).process(write(Frame(2), second), running(0, run="two", history=log))
        assert second.replayed == 3  # as often as a batch is tried
    assert_once(target, 0)


def test_a_failed_replay_stops_no_heir_that_is_known_by_the_ledger_alone():
    """Kafka has forgotten the id since, and fences nobody."""
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame()), running(0, run="one", history=log))

    class StandsStill(Frame):
        def count(self) -> int:
            batches(target).process(write(Frame()), running(1, run="heir", history=log))
            raise ZeroDivisionError

    with pytest.raises(Fenced):
        batches(target).process(write(StandsStill()), running(0, run="two", history=log))
    batches(target).process(write(Frame()), running(2, run="next", history=log))
    assert_once(target, 0, 1, 2)


def test_adopting_leaves_out_what_was_handed_over_and_nothing_that_failed():
    log = Log(Note(99, "earlier"))
    batches(MemoryTarget(), resume="adopt").process(write(Frame()), running(100, run="this", history=log))
    log = Log(Note(99, "earlier", "AccessDenied: no"))
    with pytest.raises(BatchNotWritten, match=r"batch 99 .*AccessDenied"):
        batches(MemoryTarget(), resume="adopt").process(write(Frame()), running(100, run="this", history=log))


def test_adopting_does_not_leave_out_what_this_run_failed_with():
    log = Log(Note(100, "this", "AccessDenied: no"))
    with pytest.raises(BatchNotWritten, match=r"batch 100 .*AccessDenied"):
        batches(MemoryTarget(), resume="adopt").process(write(Frame()), running(101, run="this", history=log))


def test_the_advice_does_not_rewind_another_pipeline():
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0))
    log = Log(Note(1, "earlier", "SendFailed: lost"), others=("its-neighbour",))
    with pytest.raises(BatchNotWritten) as refused:
        batches(target).process(write(Frame()), running(2, history=log))
    assert "commits/" not in refused.value.next_step
    assert "its-neighbour" in refused.value.next_step
    log = Log(Note(1, "earlier", "SendFailed: lost"), dropped=True)
    with pytest.raises(BatchNotWritten) as refused:
        batches(target).process(write(Frame()), running(2, history=log))
    assert "commits/" not in refused.value.next_step
    assert "no longer reaches back" in refused.value.next_step


@pytest.mark.parametrize("resume", ["checkpoint", "complete", "keep"])
@pytest.mark.parametrize("lacking", [False, True])
def test_an_expired_replay_does_not_pass_over_rows_that_are_lacking(resume: Resume, lacking: bool):
    target, log = MemoryTarget(), Log()
    batches(target).process(write(Frame()), running(0))
    if lacking:
        log.book.failed(Note(0, "earlier", "called twice", lacking=True))
    gone = write(Frame(error=SourceDataLost("expired", next_step="nothing")))
    work = batches(target, resume=resume)
    if resume == "complete" or (lacking and resume == "checkpoint"):
        with pytest.raises(SourceDataLost, match="lacks rows"):
            work.process(gone, running(0, history=log))
    else:
        work.process(gone, running(0, history=log))
    assert_once(target, 0)


def test_an_expired_replay_with_another_frame_is_refused():
    target = MemoryTarget()
    batches(target).process(write(Frame()), running(0))
    gone = Frame(error=SourceDataLost("expired", next_step="nothing"))
    with pytest.raises(SourceDataLost, match="lacks rows"):
        batches(target).process(write(gone, gone), running(0))
