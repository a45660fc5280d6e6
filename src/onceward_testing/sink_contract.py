"""The contract of every sink, as tests that you run against a sink of your own.

::

    from onceward_testing.sink_contract import TwoPhaseContract, TwoPhaseKit

    class TestMySink(TwoPhaseContract):
        @pytest.fixture
        def kit(self, spark, tmp_path):
            ledger = ow.FolderLedger(tmp_path / "ledger")
            return TwoPhaseKit(
                spark,
                lambda: MySink(pipeline_id="p", ledger=ledger, folder=tmp_path / "out"),
                visible=lambda: Counter(values_that_a_reader_finds(tmp_path / "out")),
            )

``kit`` makes the sink as a new process of its pipeline would, and tells what a reader of the
target finds; read that with something that is not the sink. The frames have one column, ``value``,
a string. Each test has a kit, a pipeline and a target of its own.

The contract: whatever fails, and wherever a process dies, loses an answer or is overtaken by a
newer copy, in the end the target shows every batch exactly once, all of it or nothing, and the
ledger says the same.

:class:`SinkContract` is for any :class:`~onceward.engine.target.Target`; :class:`TwoPhaseContract`
adds what a ``TwoPhaseCommitSink`` owes besides.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
from pyspark import cloudpickle

from onceward import events
from onceward.custom import two_phase
from onceward.custom.two_phase import TwoPhaseCommitSink
from onceward.engine.ledger.chain import Chain
from onceward.engine.ledger.record import LedgerRecord, State
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Target, Write
from onceward.engine.two_phase import CommitResult, TwoPhaseTarget, as_json
from onceward.errors import (
    AdmissionRefused,
    CommitInDoubt,
    Fenced,
    OncewardError,
    PreparedDataLost,
    PublishIncomplete,
    SendFailed,
)
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange, pipeline_id
from onceward.spark.batch.query import RunningBatch

FIRST = ["a", "b", "c", "d", "e", "f", "g"]
SECOND = ["h", "i", "j"]

_CERTAIN_SECONDS = 10.0  # until a look at the ledger tells what is there

_QUERY = "3b6c0de1-0000-4000-8000-000000000001"
_STEPS = (events.OPEN, events.ADMIT, events.SEND, events.COMMIT, events.FINISH)


class Died(BaseException):
    """Stands for the death of the process: nobody catches it."""


class SinkKit(ABC):
    """One target of one pipeline, and the ledger that goes with it."""

    pipeline: PipelineId
    fences_writers = False
    """Is a zombie refused while it writes? Else it is when it commits, which is early enough."""
    copies = 1
    """How many output records the target makes of a row."""

    @abstractmethod
    def new_target(self) -> Target:
        """The target as a new process of the pipeline would make it. Closed by :meth:`close`."""

    @abstractmethod
    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        """Rows for the target, one a value, written by so many tasks."""

    def failing(self, values: Sequence[str]) -> Any:
        """The same, of a plan whose tasks raise ``ValueError("this plan hurts")`` after their
        rows."""

        def raise_at_the_end(batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches
            raise ValueError("this plan hurts")

        frame = self.frame(values)
        return frame.mapInArrow(raise_at_the_end, frame.schema)

    @abstractmethod
    def visible(self) -> Counter[str]:
        """The values that a reader of the target finds."""

    @abstractmethod
    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        """Inside, no commit of ``target``'s gets an answer, whether it is carried out or never
        arrives."""

    @abstractmethod
    def close(self) -> None:
        """Close all targets. May be called more than once."""


def batch(number: int) -> RunningBatch:
    """Batch ``number`` of a query over a source that counts; each call is another run of it."""
    return RunningBatch(
        batch=BatchId(_QUERY, number),
        run_id=str(uuid.uuid4()),
        name="contract",
        sources=(SourceRange(number * 10, number * 10 + 10),),
        kafka_sources=(),
        stateful=False,
        input_records=None,
    )


class Process:
    """One process of the pipeline: it goes the engine's way one step at a time, and can be left
    anywhere."""

    def __init__(self, kit: SinkKit) -> None:
        self.kit = kit
        self.target = kit.new_target()
        self.newest: LedgerRecord | None = None
        self.begun: Attempt | None = None

    @property
    def attempt(self) -> Attempt:
        """The one that was begun last."""
        assert self.begun is not None
        return self.begun

    def open(self) -> Process:
        self.newest = self.target.open(self.next_batch())
        return self.finish()

    def finish(self) -> Process:
        if self.newest is not None and self.newest.state is State.DECIDED:
            self.newest = self.target.finish(self.newest)
        return self

    def begin(self) -> Attempt:
        self.begun = self.target.begin(self.newest, self.next_batch())
        return self.begun

    def write(self, *frames: Any) -> tuple[int, ...]:
        attempt = self.begin()
        return tuple(attempt.write(Write(frame), self.next_batch()) for frame in frames)

    def stage(self, *frames: Any) -> LedgerRecord:
        """Everything but the commit."""
        self.write(*frames)
        return self.stage_what_is_written()

    def stage_what_is_written(self) -> LedgerRecord:
        prepared, running = self.attempt.prepared(), self.next_batch()
        sequence = 0 if self.newest is None else self.newest.sequence + 1
        record = LedgerRecord(
            pipeline=self.kit.pipeline,
            sequence=sequence,
            batch=running.batch,
            sources=running.sources,
            attempt=self.attempt.id,
            outputs=prepared.outputs,
            committed_at_ms=1_700_000_000_000,
            state=prepared.state,
        )
        self.attempt.stage(record, running)
        return record

    def decide(self, values: Sequence[str]) -> LedgerRecord:
        """Everything but what comes after the decision."""
        record = self.stage(self.kit.frame(values))
        self.attempt.commit()
        self.newest = record
        return record

    def commit(self, values: Sequence[str]) -> LedgerRecord:
        self.decide(values)
        self.finish()
        assert self.newest is not None
        return self.newest

    def next_batch(self) -> RunningBatch:
        return batch(0 if self.newest is None else self.newest.batch.batch_id + 1)


def run_batch(kit: SinkKit, number: int, values: Sequence[str], attempts: int = 3) -> Target:
    """Batch ``number`` as the first of a new process, by the engine itself."""
    target = kit.new_target()
    policy = SinkPolicy(kit.pipeline, batch_attempts=attempts)
    MicroBatches(target, policy).process([Write(kit.frame(values))], batch(number))
    return target


def assert_holds(kit: SinkKit, values: Sequence[str], newest: int | None) -> None:
    """A reader finds exactly ``values``, and the newest ledger record is number ``newest``."""
    assert kit.visible() == Counter(values)
    found = kit.new_target().peek() if newest is None else certain(lambda: kit.new_target().peek())
    assert (None if found is None else found.sequence) == newest


def certain(peek: Callable[[], LedgerRecord | None]) -> LedgerRecord | None:
    """What a look at a ledger tells that has a record; at first it may tell nothing: Kafka answers
    a commit before all partitions know of it."""
    ends = time.monotonic() + _CERTAIN_SECONDS
    while (found := peek()) is None and time.monotonic() < ends:
        time.sleep(0.05)
    return found


@contextmanager
def fault(step: str, phase: str, what: BaseException | Callable[[], object]) -> Iterator[None]:
    """Once, when ``step`` of a batch is ``phase``: raise ``what``, or call it."""
    waiting = [what]

    def probe(event: events.Event) -> None:
        if waiting and (event.step, event.phase) == (step, phase):
            happening = waiting.pop()
            if isinstance(happening, BaseException):
                raise happening
            happening()

    stop = events.probe(probe)
    try:
        yield
    finally:
        stop()
    assert not waiting, f"the batch never came to {step}:{phase}"


class SinkContract:
    """What the engine relies on in every target. A subclass has the fixture ``kit``."""

    @pytest.fixture(autouse=True)
    def _closed(self, kit: SinkKit) -> Iterator[None]:
        yield
        kit.close()

    # one batch after the other

    def test_nothing_is_there_before_the_first_batch(self, kit: SinkKit) -> None:
        process = Process(kit)
        assert process.target.peek() is None
        assert process.open().newest is None
        assert_holds(kit, [], None)

    def test_nothing_is_visible_before_the_commit_and_all_of_it_after(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        process.stage(kit.frame(FIRST))
        assert_holds(kit, [], None)
        process.attempt.commit()
        heir = Process(kit).open()
        assert heir.newest is not None
        assert heir.newest.records == kit.copies * len(FIRST)
        assert_holds(kit, FIRST, 0)

    def test_the_ledger_counts_every_row(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        assert process.commit(FIRST * 10).records == kit.copies * 70
        assert_holds(kit, FIRST * 10, 0)

    def test_several_frames_are_one_attempt(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        frames = [kit.frame(part) for part in (FIRST, [], FIRST, SECOND)]
        assert process.write(*frames) == (7, 0, 7, 3)
        record = process.stage_what_is_written()
        assert record.records == kit.copies * 17
        assert_holds(kit, [], None)
        process.attempt.commit()
        Process(kit).open()
        assert_holds(kit, FIRST + FIRST + SECOND, 0)

    def test_a_batch_without_frames_is_a_ledger_record_alone(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        process.stage()
        process.attempt.commit()
        assert_holds(kit, [], 0)

    def test_an_empty_batch_is_a_ledger_record_alone(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        assert process.commit([]).records == 0
        assert_holds(kit, [], 0)
        process.commit(FIRST)
        assert_holds(kit, FIRST, 1)

    def test_batch_follows_batch_and_each_attempt_has_a_name_of_its_own(
        self, kit: SinkKit
    ) -> None:
        process = Process(kit).open()
        records = [
            process.commit([f"{number}-{value}" for value in SECOND]) for number in range(4)
        ]
        assert len({record.attempt for record in records}) == 4
        assert_holds(kit, [f"{number}-{value}" for number in range(4) for value in SECOND], 3)

    # what is not decided

    def test_a_plan_that_fails_takes_all_frames_along(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        with pytest.raises(Exception, match="this plan hurts"):
            process.write(kit.frame(FIRST), kit.failing(SECOND))
        process.attempt.abort()
        assert_holds(kit, [], None)
        process.commit(FIRST)
        assert_holds(kit, FIRST, 0)

    @pytest.mark.parametrize("reached", ["begin", "write", "stage"])
    def test_an_aborted_attempt_leaves_nothing(self, kit: SinkKit, reached: str) -> None:
        process = Process(kit).open()
        getattr(process, reached)(*([] if reached == "begin" else [kit.frame(FIRST)]))
        process.attempt.abort()
        process.attempt.abort()
        assert_holds(kit, [], None)
        process.commit(SECOND)
        assert_holds(kit, SECOND, 0)

    @pytest.mark.parametrize("reached", ["begin", "write", "stage"])
    def test_what_a_dead_process_left_undecided_never_becomes_true(
        self, kit: SinkKit, reached: str
    ) -> None:
        dead = Process(kit).open()
        dead.commit(FIRST)
        getattr(dead, reached)(*([] if reached == "begin" else [kit.frame(SECOND)]))
        heir = Process(kit).open()
        assert heir.newest == dead.newest
        assert_holds(kit, FIRST, 0)
        heir.commit(SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_closing_decides_nothing_and_may_be_repeated(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        process.commit(FIRST)
        process.stage(kit.frame(SECOND))
        process.target.close()
        process.target.close()
        assert kit.visible() == Counter(FIRST)
        heir = Process(kit).open()
        heir.commit(SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_a_target_that_was_never_opened_closes(self, kit: SinkKit) -> None:
        kit.new_target().close()

    # what is in doubt

    def test_a_commit_without_an_answer_that_was_carried_out(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        process.commit(FIRST)
        record = process.stage(kit.frame(SECOND))
        with kit.unanswered(process.target, carried_out=True), pytest.raises(CommitInDoubt):
            process.attempt.commit()
        process.newest = process.target.settle()
        assert process.newest == record
        process.finish()
        assert_holds(kit, FIRST + SECOND, 1)
        process.commit(["z"])
        assert_holds(kit, [*FIRST, *SECOND, "z"], 2)

    def test_a_commit_without_an_answer_that_never_arrived(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        first = process.commit(FIRST)
        process.stage(kit.frame(SECOND))
        with kit.unanswered(process.target, carried_out=False), pytest.raises(CommitInDoubt):
            process.attempt.commit()
        assert process.target.settle() == first
        assert_holds(kit, FIRST, 0)
        process.commit(SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    @pytest.mark.parametrize("carried_out", [True, False])
    def test_the_engine_finds_out_and_writes_once(self, kit: SinkKit, carried_out: bool) -> None:
        target = run_batch(kit, 0, FIRST)
        with kit.unanswered(target, carried_out=carried_out):
            batches = MicroBatches(target, SinkPolicy(kit.pipeline, batch_attempts=1))
            with suppress(Exception):
                batches.process([Write(kit.frame(SECOND))], batch(1))
        run_batch(kit, 1, SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    # a newer copy

    @pytest.mark.parametrize("heir_has", ["committed", "an attempt open"])
    @pytest.mark.parametrize("step", ["begin", "write", "stage", "commit"])
    def test_a_zombie_is_fenced_and_leaves_its_heir_alone(
        self, kit: SinkKit, step: str, heir_has: str
    ) -> None:
        zombie = Process(kit).open()
        zombie.commit(FIRST)
        if step == "write":
            zombie.begin()
        elif step == "stage":
            zombie.write(kit.frame(["zombie"]))
        elif step == "commit":
            zombie.stage(kit.frame(["zombie"]))
        heir = Process(kit).open()
        if heir_has == "committed":
            heir.commit(SECOND)
        else:
            heir.stage(kit.frame(SECOND))
        with pytest.raises(Fenced):
            self._go_on(zombie, step)
        if zombie.begun is not None:
            with suppress(Fenced):  # what the engine does next
                zombie.begun.abort()
        if heir_has == "an attempt open":
            heir.attempt.commit()
            Process(kit).open()
        assert_holds(kit, FIRST + SECOND, 1)

    def _go_on(self, zombie: Process, step: str) -> None:
        """From ``step`` to the commit; where the target fences writers, the first of it has to
        raise."""
        if step == "begin":  # may be silent where it costs no round trip
            zombie.begin()
        attempt = zombie.attempt
        if step in ("begin", "write"):
            attempt.write(Write(zombie.kit.frame(["zombie"])), zombie.next_batch())
            assert not zombie.kit.fences_writers, "a zombie has written"
        if step != "commit":
            zombie.stage_what_is_written()
            assert not zombie.kit.fences_writers, "a zombie has staged"
        attempt.commit()

    def test_a_zombie_that_settles_its_doubt_is_fenced_and_does_not_fence_its_heir(
        self, kit: SinkKit
    ) -> None:
        zombie = Process(kit).open()
        zombie.stage(kit.frame(["zombie"]))
        with kit.unanswered(zombie.target, carried_out=False), pytest.raises(CommitInDoubt):
            zombie.attempt.commit()
        heir = Process(kit).open()
        heir.stage(kit.frame(FIRST))
        with pytest.raises(Fenced):
            zombie.target.settle()
        heir.attempt.commit()
        Process(kit).open()
        assert_holds(kit, FIRST, 0)

    @pytest.mark.parametrize("phase", ["started", "finished"])
    @pytest.mark.parametrize("step", _STEPS)
    def test_overtaken_at_any_step(self, kit: SinkKit, step: str, phase: str) -> None:
        """By a newer copy that writes the same batch."""
        run_batch(kit, 0, FIRST)
        refused = False
        with fault(step, phase, lambda: run_batch(kit, 1, SECOND)):
            try:
                run_batch(kit, 1, SECOND)
            except Fenced:
                refused = True
        if (step, phase) == (events.COMMIT, "finished"):
            pass  # decided; what is left to publish is the newer copy's
        else:
            assert refused is (step != events.FINISH and (step, phase) != (events.OPEN, "started"))
        assert_holds(kit, FIRST + SECOND, 1)

    def test_a_peek_disturbs_nobody(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        first = process.commit(FIRST)
        process.stage(kit.frame(SECOND))
        onlooker = kit.new_target()
        assert onlooker.peek() in (first, None), (
            "an attempt that is open is nobody's newest record"
        )
        onlooker.close()
        process.attempt.commit()
        Process(kit).open()
        assert_holds(kit, FIRST + SECOND, 1)

    # faults at every step

    @pytest.mark.parametrize("phase", ["started", "finished"])
    @pytest.mark.parametrize("step", _STEPS)
    @pytest.mark.parametrize(
        "what", [SendFailed("lost on purpose"), Died()], ids=["error", "death"]
    )
    def test_a_fault_at_any_step_neither_loses_nor_repeats(
        self, kit: SinkKit, step: str, phase: str, what: BaseException
    ) -> None:
        run_batch(kit, 0, FIRST)
        with fault(step, phase, what), suppress(SendFailed, Died):
            run_batch(kit, 1, SECOND)
        run_batch(kit, 1, SECOND)  # Spark offers the batch again, whatever became of it
        run_batch(kit, 2, ["z"])
        assert_holds(kit, [*FIRST, *SECOND, "z"], 2)


class TwoPhaseKit(SinkKit):
    """For a sink that subclasses ``TwoPhaseCommitSink``.

    :param spark: a session.
    :param new_sink: the sink as a new process of its pipeline would build it, always with the same
        ledger and target.
    :param visible: the values that a reader of the target finds.
    :param forgets: the target drops by itself what was never committed, so that ``recover()`` has
        nothing to list.
    """

    def __init__(
        self,
        spark: Any,
        new_sink: Callable[[], TwoPhaseCommitSink],
        visible: Callable[[], Counter[str]],
        *,
        forgets: bool = False,
    ) -> None:
        self.forgets = forgets
        self._spark = spark
        self._new_sink = new_sink
        self._visible = visible
        self._targets: list[Target] = []
        sink = new_sink()
        self.pipeline = sink._policy.pipeline
        for kind in type(sink).__mro__:  # workers cannot import a module of tests
            module = sys.modules.get(kind.__module__)
            if module is not None and not kind.__module__.startswith(
                ("onceward.", "builtins", "abc")
            ):
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

    def new_target(self) -> TwoPhaseTarget:
        return self.target_of(self._new_sink())

    def target_of(self, sink: TwoPhaseCommitSink) -> TwoPhaseTarget:
        target = sink.new_target()
        assert isinstance(target, TwoPhaseTarget)
        self._targets.append(target)
        return target

    def sink(self) -> TwoPhaseCommitSink:
        """One more, for a test that breaks it."""
        return self._new_sink()

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        return self._spark.createDataFrame(
            [(value,) for value in values], "value string"
        ).repartition(tasks)

    def visible(self) -> Counter[str]:
        return self._visible()

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, TwoPhaseTarget)
        return lost_append(target.chain, carried_out=carried_out)

    def close(self) -> None:
        for target in self._targets:
            target.close()


@contextmanager
def lost_append(chain: Chain, *, carried_out: bool) -> Iterator[None]:
    """Inside, no append to ``chain`` gets an answer, whether it is carried out or never
    arrives."""
    append = chain.append

    def losing(record: LedgerRecord) -> None:
        if carried_out:
            append(record)
        raise CommitInDoubt("lost on purpose")

    chain.append = losing  # type: ignore[method-assign]
    try:
        yield
    finally:
        chain.append = append  # type: ignore[method-assign]


class _InTheDriver:
    """A sink of which something is replaced, in the driver alone: tasks get the sink itself."""

    def __init__(self, sink: TwoPhaseCommitSink) -> None:
        self.sink = sink
        self.committable_version = sink.committable_version
        self.commit: Callable[[Any], CommitResult | None] = sink.commit
        self.abort: Callable[[Any], object] = sink.abort
        self.recover: Callable[[], Any] = sink.recover
        self.begin, self.upgrade = sink.begin, sink.upgrade

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.sink,)


def _itself(sink: TwoPhaseCommitSink) -> TwoPhaseCommitSink:
    return sink


Breaking = Callable[[Any, Callable[[Any], CommitResult | None]], CommitResult | None]


def _dies(record: LedgerRecord) -> LedgerRecord:
    raise Died


class TwoPhaseContract(SinkContract):
    """What a ``TwoPhaseCommitSink`` owes besides: idempotent commits, and nothing but what was
    decided."""

    def _broken(
        self, kit: TwoPhaseKit, breaking: Breaking, timeout_s: float = 5.0
    ) -> tuple[Callable[[], TwoPhaseTarget], list[Any]]:
        """Targets whose sink's commits go through ``breaking``, and the committables that it is
        called with."""
        called: list[Any] = []

        def new_target() -> TwoPhaseTarget:
            committer = _InTheDriver(kit.sink())
            commit = committer.sink.commit

            def broken(committable: Any) -> CommitResult | None:
                called.append(committable)
                return breaking(committable, commit)

            committer.commit = broken
            target = kit.target_of(committer.sink)
            target.committer = committer  # type: ignore[assignment]
            target.commit_timeout_s = timeout_s
            return target

        return new_target, called

    def _process(
        self, kit: TwoPhaseKit, target: TwoPhaseTarget, number: int, values: Sequence[str]
    ) -> None:
        MicroBatches(target, SinkPolicy(kit.pipeline)).process(
            [Write(kit.frame(values))], batch(number)
        )

    def test_what_a_neighbour_has_prepared_in_the_target_stays(
        self, kit: TwoPhaseKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another pipeline writes to the same target, and has died between its decision and its
        commit. Prepare under ``task.name``, or below ``self.pipeline_id``."""
        neighbour = pipeline_id("a-neighbour")

        def another() -> TwoPhaseTarget:
            with monkeypatch.context() as patch:
                patch.setattr(two_phase, "checked_pipeline_id", lambda _: neighbour)
                sink = kit.sink()
            if getattr(sink, "_policy", None) is None or sink._policy.pipeline != neighbour:
                pytest.skip("the sink of this kit is no TwoPhaseCommitSink")
            return kit.target_of(sink)

        dying = another()
        dying.finish = _dies  # type: ignore[method-assign]
        with pytest.raises(Died):
            MicroBatches(dying, SinkPolicy(neighbour)).process([Write(kit.frame(FIRST))], batch(0))
        run_batch(kit, 0, SECOND)
        run_batch(kit, 1, SECOND)
        MicroBatches(another(), SinkPolicy(neighbour)).process([Write(kit.frame(FIRST))], batch(0))
        assert kit.visible() == Counter(FIRST + SECOND + SECOND)

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_commit_that_fails_is_repeated(self, kit: TwoPhaseKit, moment: str) -> None:
        """Before it has done anything, and after: then its answer was lost."""
        failed: set[str] = set()

        def failing_once(
            committable: Any, commit: Callable[[Any], CommitResult | None]
        ) -> CommitResult | None:
            name = json.dumps(committable)
            if name in failed:
                return commit(committable)
            failed.add(name)
            if moment == "after":
                commit(committable)
            raise OSError("lost on purpose")

        new_target, called = self._broken(kit, failing_once)
        self._process(kit, new_target(), 0, FIRST)
        assert len(called) == 2 * len(failed)
        assert_holds(kit, FIRST, 0)

    @pytest.mark.parametrize("done", [0, 1, 2])
    def test_a_death_among_the_commits_is_made_good_at_the_next_start(
        self, kit: TwoPhaseKit, done: int
    ) -> None:
        counting = itertools.count()

        def dying(
            committable: Any, commit: Callable[[Any], CommitResult | None]
        ) -> CommitResult | None:
            number = next(counting)
            if number == done:
                raise Died
            commit(committable)
            if number + 1 == done:
                raise Died
            return CommitResult.DONE

        run_batch(kit, 0, FIRST)
        new_target, called = self._broken(kit, dying)
        died = False
        try:
            self._process(kit, new_target(), 1, SECOND)
        except Died:
            died = True
        assert died or done > len(called), "nothing was committed after the decision"
        heir = Process(kit)
        heir.open()
        assert_holds(kit, FIRST + SECOND, 1)
        heir.commit(["z"])
        assert_holds(kit, [*FIRST, *SECOND, "z"], 2)

    def test_a_commit_of_what_is_done_changes_nothing(self, kit: TwoPhaseKit) -> None:
        committed: list[Any] = []

        def noting(
            committable: Any, commit: Callable[[Any], CommitResult | None]
        ) -> CommitResult | None:
            committed.append(committable)
            return commit(committable)

        new_target, _ = self._broken(kit, noting)
        self._process(kit, new_target(), 0, FIRST)
        sink = kit.sink()
        answers = {sink.commit(json.loads(json.dumps(committable))) for committable in committed}
        assert answers <= {None, CommitResult.DONE, CommitResult.ALREADY_DONE}
        assert_holds(kit, FIRST, 0)

    def test_what_is_to_be_done_later_stays_decided_until_it_is_done(
        self, kit: TwoPhaseKit
    ) -> None:
        new_target, called = self._broken(
            kit, lambda committable, commit: CommitResult.RETRY_LATER, 0.3
        )
        with pytest.raises(PublishIncomplete):
            self._process(kit, new_target(), 0, FIRST)
        assert len(called) > len({json.dumps(committable) for committable in called}), (
            "it was tried once only"
        )
        with pytest.raises(PublishIncomplete):  # and at the next start, before anything else
            self._process(kit, new_target(), 0, FIRST)
        run_batch(kit, 0, FIRST)
        run_batch(kit, 1, SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_what_is_lost_is_said_and_never_passed_over(self, kit: TwoPhaseKit) -> None:
        new_target, _ = self._broken(kit, lambda committable, commit: CommitResult.LOST)
        for _ in range(2):
            with pytest.raises(PreparedDataLost):
                self._process(kit, new_target(), 0, FIRST)
        run_batch(kit, 0, FIRST)  # somebody has restored it
        assert_holds(kit, FIRST, 0)

    def test_the_start_leaves_what_is_decided_and_nothing_else(self, kit: TwoPhaseKit) -> None:
        """Prepared by a process that died, then decided by another that died before it could
        publish."""
        dead = Process(kit).open()
        dead.stage(kit.frame(["never decided"]))
        assert kit.forgets or list(kit.sink().recover()), "what is prepared is not listed"
        never = as_json(list(kit.sink().recover()))
        Process(kit).open().decide(FIRST)
        prepared = as_json(list(kit.sink().recover()))
        assert not [one for one in prepared if one in never], (
            "what was never decided is still there"
        )
        third = Process(kit)
        committer, aborted = _InTheDriver(kit.sink()), list[Any]()
        committer.abort = aborted.append
        target = kit.target_of(committer.sink)
        target.committer = committer  # type: ignore[assignment]
        third.target = target
        third.open().begin()
        assert aborted == [], "it was asked to drop what is decided"
        assert list(kit.sink().recover()) == []
        assert_holds(kit, FIRST, 0)
        run_batch(kit, 1, SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_a_start_that_is_refused_drops_nothing(self, kit: TwoPhaseKit) -> None:
        """It may have another ledger, or another checkpoint: what that knows nothing of, somebody
        else has decided."""
        Process(kit).open().stage(kit.frame(FIRST))
        prepared = list(kit.sink().recover())
        assert prepared or kit.forgets, "what is prepared is not listed"
        with pytest.raises(AdmissionRefused):
            run_batch(kit, 1, SECOND)  # batch 0 is not in the ledger
        assert list(kit.sink().recover()) == prepared
        run_batch(kit, 0, SECOND)
        assert list(kit.sink().recover()) == []
        assert_holds(kit, SECOND, 0)

    def test_when_the_start_looks_through_no_older_copy_can_decide_any_more(
        self, kit: TwoPhaseKit
    ) -> None:
        """Else what was just dropped could be decided a moment later."""
        old = Process(kit).open()
        old.stage(kit.frame(["too late"]))
        committer = _InTheDriver(kit.sink())
        abort, asked = committer.sink.abort, []

        def too_late(committable: Any) -> None:
            asked.append(committable)
            with pytest.raises(Fenced):
                old.attempt.commit()
            abort(committable)

        committer.abort = too_late
        target = kit.target_of(committer.sink)
        target.committer = committer  # type: ignore[assignment]
        self._process(kit, target, 0, FIRST)
        assert asked or kit.forgets, "nothing was dropped"
        assert_holds(kit, FIRST, 0)

    def test_what_an_older_copy_publishes_while_a_start_looks_through_stays(
        self, kit: TwoPhaseKit
    ) -> None:
        old = Process(kit).open()
        old.stage(kit.frame(FIRST))
        committer = _InTheDriver(kit.sink())
        recover = committer.sink.recover
        listed: list[Any] = []

        def and_then_it_is_published() -> list[Any]:
            found = list(recover())
            if not listed:
                old.attempt.commit()
                old.newest = old.attempt.record
                old.finish()
            listed.append(found)
            return found

        aborted: list[Any] = []
        committer.recover, committer.abort = and_then_it_is_published, aborted.append
        target = kit.target_of(committer.sink)
        target.committer = committer  # type: ignore[assignment]
        newest = target.open(batch(1))
        assert newest is not None
        target.begin(newest, batch(1)).abort()
        assert listed
        assert aborted == [], "it was asked to drop what is published"
        Process(kit).open()
        assert_holds(kit, FIRST, 0)

    @pytest.mark.parametrize("heir_has", ["decided", "prepared"])
    def test_a_start_that_is_overtaken_drops_nothing_of_its_heirs(
        self, kit: TwoPhaseKit, heir_has: str
    ) -> None:
        """It has looked through what is prepared, and then stood still while a newer copy went
        on."""
        zombie = kit.target_of(kit.sink())
        heir = Process(kit)
        take = zombie.chain.take

        def and_stand_still() -> LedgerRecord | None:
            newest = take()
            heir.open()
            if heir_has == "decided":
                heir.decide(FIRST)
            else:
                heir.stage(kit.frame(FIRST))
            return newest

        zombie.chain.take = and_stand_still  # type: ignore[method-assign]
        zombie.open(batch(0))
        if heir_has == "prepared":
            heir.attempt.commit()
        begin = zombie.chain.begin

        def begin_unasked(newest: LedgerRecord | None) -> AttemptId:
            """A chain need not look whose it is before it names an attempt."""
            with suppress(OncewardError):
                return begin(newest)
            return AttemptId(0, 1)

        zombie.chain.begin = begin_unasked  # type: ignore[method-assign]
        late = Process(kit)
        late.target = zombie
        with pytest.raises(Fenced):
            late.decide(["zombie"])
        Process(kit).open()
        assert_holds(kit, FIRST, 0)

    def test_what_failed_is_dropped_at_once(self, kit: TwoPhaseKit) -> None:
        """Not only at the next start: it may hold locks."""
        target = run_batch(kit, 0, FIRST)
        with kit.unanswered(target, carried_out=False), pytest.raises(OncewardError):
            MicroBatches(target, SinkPolicy(kit.pipeline, batch_attempts=1)).process(
                [Write(kit.frame(SECOND))], batch(1)
            )
        assert list(kit.sink().recover()) == []
        with fault(events.SEND, "finished", SendFailed("lost on purpose")), suppress(SendFailed):
            run_batch(kit, 1, SECOND, attempts=1)
        assert list(kit.sink().recover()) == []
        run_batch(kit, 1, SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_what_is_lost_after_the_start_is_not_passed_over_by_keep(
        self, kit: TwoPhaseKit
    ) -> None:
        """``resume="skip_missing"`` is for what an earlier run has decided, which somebody has looked
        at."""
        new_target, _ = self._broken(kit, lambda committable, commit: CommitResult.LOST)

        def keeping() -> TwoPhaseTarget:
            target = new_target()
            target._policy = SinkPolicy(kit.pipeline, resume="skip_missing")
            return target

        with pytest.raises(PreparedDataLost):
            self._process(kit, keeping(), 0, FIRST)
        batches = MicroBatches(keeping(), SinkPolicy(kit.pipeline, resume="skip_missing"))
        batches.process([Write(kit.frame(FIRST))], batch(0))  # another run, of which it was asked
        with pytest.raises(PreparedDataLost):
            batches.process([Write(kit.frame(SECOND))], batch(1))

    def test_an_abort_may_be_repeated(self, kit: TwoPhaseKit) -> None:
        process = Process(kit).open()
        record = process.stage(kit.frame(FIRST))
        (output,) = record.outputs.values()
        sink = kit.sink()
        for committable in [*output.data["committables"], *output.data["committables"]]:
            sink.abort(committable)
        assert list(sink.recover()) == []
        Process(kit).open()
        run_batch(kit, 0, SECOND)
        assert_holds(kit, SECOND, 0)
