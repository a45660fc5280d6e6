"""The nine steps over a target that fails where it is told to: what is tried again, what ends the query, what is asked.

The target keeps a ledger and an output in memory, with the same meaning of commit, doubt and fencing as a real one;
after every story the output must hold each batch once at most, and exactly if the ledger does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceward import events
from onceward.engine import micro_batch
from onceward.engine.micro_batch import BatchPolicy, MicroBatches
from onceward.engine.spark_query import RunningBatch
from onceward.engine.target import AtomicTarget
from onceward.errors import (
    BatchFailed,
    BrokerUnreachable,
    CheckpointReplaced,
    CommitInDoubt,
    Fenced,
    LedgerBehind,
    OncewardError,
    RecordTooLarge,
    SendFailed,
    TransactionTimedOut,
    UnsupportedQuery,
)
from onceward.ids import BatchId, PipelineId, ProducerIdentity, SourceRange
from onceward.ledger.record import LedgerRecord, Manifest

QUERY = "3b6c0de1-0000-4000-8000-000000000001"
RETRIABLE = SendFailed("lost", next_step="nothing")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "_FIRST_PAUSE_SECONDS", 0.0)


class MemoryTarget(AtomicTarget):
    """Output and ledger in lists. ``plan`` maps a method's name to what its successive calls raise (None: nothing);
    ``commit_is_carried_out`` says what becomes of a commit that raises."""

    def __init__(self, **plan: list[BaseException | None]) -> None:
        self.plan = plan
        self.commit_is_carried_out = False
        self.calls: list[str] = []
        self.output: list[int] = []
        self.ledger: list[LedgerRecord] = []
        self.producer_id = 7
        self._epoch = 0
        self._attempt: tuple[list[int], list[LedgerRecord]] | None = None

    def _call(self, name: str) -> None:
        self.calls.append(name)
        errors = self.plan.get(name)
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    def newest(self) -> LedgerRecord | None:
        return self.ledger[-1] if self.ledger else None

    def glance(self) -> LedgerRecord | None:
        self._call("glance")
        return self.newest()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        self._call("open")
        self._attempt = None
        return self.newest()

    def begin(self) -> ProducerIdentity:
        self._call("begin")
        assert self._attempt is None, "an attempt was begun while another was open"
        self._epoch += 1
        self._attempt = ([], [])
        return ProducerIdentity(self.producer_id, self._epoch)

    def write(self, frame: Any, running: RunningBatch) -> Manifest:
        assert self._attempt is not None
        self._attempt[0].append(running.batch.batch_id)
        self._call("write")
        return {}

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        self._call("stage")
        assert self._attempt is not None
        self._attempt[1].append(record)

    def commit(self) -> None:
        try:
            self._call("commit")
        except BaseException:
            if self.commit_is_carried_out:
                self._carry_out()
            raise
        self._carry_out()

    def _carry_out(self) -> None:
        assert self._attempt is not None
        self.output += self._attempt[0]
        self.ledger += self._attempt[1]
        self._attempt = None

    def settle(self) -> LedgerRecord | None:
        self._attempt = None
        self._call("settle")
        return self.newest()

    def abort(self) -> None:
        self._call("abort")
        self._attempt = None

    def close(self) -> None:
        self.calls.append("close")


class Frame:
    """A frame that is only ever written to nowhere: what a replay does with it."""

    def __init__(self) -> None:
        self.replayed = 0

    @property
    def write(self) -> Frame:
        return self

    def format(self, name: str) -> Frame:
        assert name == "noop"
        return self

    def mode(self, name: str) -> Frame:
        return self

    def save(self) -> None:
        self.replayed += 1


def running(number: int, query: str = QUERY) -> RunningBatch:
    return RunningBatch(
        batch=BatchId(query, number),
        run_id="run",
        name="",
        sources=(SourceRange(number * 10, number * 10 + 10),),
        kafka_sources=(),
        stateful=False,
        input_records=None,
    )


def batches(target: AtomicTarget, attempts: int = 3) -> MicroBatches:
    return MicroBatches(target, BatchPolicy(PipelineId("p"), "checkpoint", attempts))


def process(target: AtomicTarget, number: int = 0, attempts: int = 3) -> None:
    """Batch ``number`` as the first of a new process."""
    batches(target, attempts).process(Frame(), running(number))  # type: ignore[arg-type]


def assert_once(target: MemoryTarget, *numbers: int) -> None:
    assert target.output == list(numbers)
    assert [record.batch.batch_id for record in target.ledger] == list(numbers)


def test_the_steps_come_in_order():
    target = MemoryTarget()
    work = batches(target)
    for number in range(2):
        work.process(Frame(), running(number))  # type: ignore[arg-type]
    assert target.calls == ["glance", "open", *["begin", "write", "stage", "commit"] * 2]
    assert_once(target, 0, 1)
    assert [record.sequence for record in target.ledger] == [0, 1]


@pytest.mark.parametrize("step", ["begin", "write", "stage"])
def test_a_retriable_error_before_the_commit_is_aborted_and_tried_again(step: str):
    target = MemoryTarget(**{step: [RETRIABLE, RETRIABLE]})
    process(target)
    assert_once(target, 0)
    assert target.calls.count("abort") == 2
    assert target.calls.count("commit") == 1


@pytest.mark.parametrize("step", ["begin", "write", "stage"])
@pytest.mark.parametrize("error", [RecordTooLarge("big"), ValueError("bug"), KeyboardInterrupt(), Fenced("newer")])
def test_any_other_error_before_the_commit_is_aborted_and_raised(step: str, error: BaseException):
    target = MemoryTarget(**{step: [error]})
    with pytest.raises(type(error)):
        process(target)
    assert_once(target)
    assert target.calls[-2:] == [step, "abort"]
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
            record = LedgerRecord(
                PipelineId("p"), 0, BatchId(QUERY, 0), running(0).sources, {}, ProducerIdentity(7, 99), 0
            )
            target.ledger.append(record)

    stop = events.subscribe(heir)
    try:
        with pytest.raises(OncewardError):
            work.process(Frame(), running(0))  # type: ignore[arg-type]
    finally:
        stop()
    assert target.output == []


def test_a_committed_batch_is_replayed_without_an_attempt():
    target = MemoryTarget()
    process(target)
    del target.calls[:]
    frame = Frame()
    batches(target).process(frame, running(0))  # type: ignore[arg-type]
    assert frame.replayed == 1
    assert target.calls == ["glance", "open"]
    assert_once(target, 0)


def test_a_batch_that_will_be_refused_fences_nobody():
    target = MemoryTarget()
    process(target)
    del target.calls[:]
    with pytest.raises(CheckpointReplaced):
        batches(target).process(Frame(), running(0, query="another"))  # type: ignore[arg-type]
    assert target.calls == ["glance"]


def test_what_was_committed_between_glance_and_open_counts():
    """A predecessor may commit its last batch after the glance: only what is read after fencing is final."""

    class Overtaken(MemoryTarget):
        def open(self, running: RunningBatch) -> LedgerRecord | None:
            other.process(Frame(), running)  # type: ignore[arg-type]
            self.output, self.ledger = predecessor.output, predecessor.ledger
            return super().open(running)

    predecessor = MemoryTarget()
    other = batches(predecessor)
    target = Overtaken()
    frame = Frame()
    batches(target).process(frame, running(0))  # type: ignore[arg-type]
    assert frame.replayed == 1
    assert target.output == [0]


def test_opening_is_repeated_when_it_failed():
    target = MemoryTarget(open=[BrokerUnreachable("nobody")])
    work = batches(target)
    with pytest.raises(BrokerUnreachable):
        work.process(Frame(), running(0))  # type: ignore[arg-type]
    work.process(Frame(), running(0))  # type: ignore[arg-type]
    assert target.calls.count("open") == 2
    assert_once(target, 0)


def test_a_second_call_for_the_same_batch_is_refused_not_dropped():
    """``foreachBatch(lambda df, i: (sink(a, i), sink(b, i)))``: the ledger would call the second one a replay."""
    target = MemoryTarget()
    work = batches(target)
    work.process(Frame(), running(0))  # type: ignore[arg-type]
    second = Frame()
    with pytest.raises(UnsupportedQuery, match="twice"):
        work.process(second, running(0))  # type: ignore[arg-type]
    assert second.replayed == 0
    assert_once(target, 0)


def test_a_new_producer_id_goes_on_where_the_ledger_is_ours():
    target = MemoryTarget()
    work = batches(target)
    for number in range(3):
        target.producer_id += 1
        work.process(Frame(), running(number))  # type: ignore[arg-type]
    assert_once(target, 0, 1, 2)


@pytest.mark.fault("transactional-id-expired")
@pytest.mark.parametrize("began_with", [0, 1])
def test_a_new_producer_id_after_an_heir_has_written_is_the_end(began_with: int):
    """The broker had forgotten us both, so that it fenced nobody: the ledger tells."""
    target = MemoryTarget(write=[RETRIABLE] if began_with == 0 else [])
    work = batches(target)

    def heir() -> None:
        heirs = running(began_with)
        record = LedgerRecord(PipelineId("p"), began_with, heirs.batch, heirs.sources, {}, ProducerIdentity(99, 0), 0)
        target.ledger.append(record)
        target.producer_id = 100

    def while_the_abort_lasts(event: events.Event) -> None:
        if (event.step, event.phase) == (events.ABORT, "started"):
            heir()

    if began_with == 1:
        work.process(Frame(), running(0))  # type: ignore[arg-type]
        heir()
    stop = events.subscribe(while_the_abort_lasts if began_with == 0 else lambda _: None)
    try:
        with pytest.raises(Fenced, match="has written"):
            work.process(Frame(), running(began_with))  # type: ignore[arg-type]
    finally:
        stop()
    assert target.output == list(range(began_with))


def test_a_new_producer_id_over_a_ledger_that_has_lost_our_last_record_is_refused():
    target = MemoryTarget()
    work = batches(target)
    work.process(Frame(), running(0))  # type: ignore[arg-type]
    target.producer_id += 1
    target.ledger.clear()
    with pytest.raises(LedgerBehind):
        work.process(Frame(), running(1))  # type: ignore[arg-type]
    assert target.output == [0]


def test_a_ledger_that_cannot_be_read_under_a_new_producer_id_is_asked_again():
    class Unreadable(MemoryTarget):
        def newest(self) -> LedgerRecord | None:
            self._call("newest")
            return super().newest()

    target = Unreadable()
    work = batches(target)
    work.process(Frame(), running(0))  # type: ignore[arg-type]
    target.producer_id += 1
    target.plan["newest"] = [BrokerUnreachable("nobody")]
    before = target.calls.count("newest")
    work.process(Frame(), running(1))  # type: ignore[arg-type]
    assert target.calls.count("newest") == before + 2
    assert_once(target, 0, 1)
