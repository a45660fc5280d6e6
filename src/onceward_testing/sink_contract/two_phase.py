"""The contract of sinks that subclass ``TwoPhaseCommitSink``, and their kit."""

from __future__ import annotations

import itertools
import json
import sys
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
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Target, Write
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
from onceward.ids import AttemptId, pipeline_id
from onceward_testing.sink_contract.process import (
    FIRST,
    SECOND,
    Died,
    Process,
    SinkKit,
    assert_holds,
    batch,
    fault,
    run_batch,
)
from onceward_testing.sink_contract.sink import SinkContract


class TwoPhaseKit(SinkKit):
    """A kit for a sink that subclasses ``TwoPhaseCommitSink``.

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
        return self.target_for(self._new_sink())

    def target_for(self, sink: TwoPhaseCommitSink) -> TwoPhaseTarget:
        target = sink.new_target()
        assert isinstance(target, TwoPhaseTarget)
        self._targets.append(target)
        return target

    def sink(self) -> TwoPhaseCommitSink:
        """Return one more, for a test that breaks it."""
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
    """Lose answers: inside, no append to ``chain`` gets an answer, whether it is carried out or
    never arrives."""
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
    """The contract of a ``TwoPhaseCommitSink``: besides that of every sink, idempotent commits,
    and nothing but what was decided."""

    def _broken(
        self, kit: TwoPhaseKit, breaking: Breaking, timeout_s: float = 5.0
    ) -> tuple[Callable[[], TwoPhaseTarget], list[Any]]:
        """Return targets whose sink's commits go through ``breaking``, and the committables that
        it is called with."""
        called: list[Any] = []

        def new_target() -> TwoPhaseTarget:
            committer = _InTheDriver(kit.sink())
            commit = committer.sink.commit

            def broken(committable: Any) -> CommitResult | None:
                called.append(committable)
                return breaking(committable, commit)

            committer.commit = broken
            target = kit.target_for(committer.sink)
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
            return kit.target_for(sink)

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
        successor = Process(kit)
        successor.open()
        assert_holds(kit, FIRST + SECOND, 1)
        successor.commit(["z"])
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
        never = as_json(kit.sink().recover(), "recover()")
        Process(kit).open().decide(FIRST)
        prepared = as_json(kit.sink().recover(), "recover()")
        assert not [one for one in prepared if one in never], (
            "what was never decided is still there"
        )
        third = Process(kit)
        committer, aborted = _InTheDriver(kit.sink()), list[Any]()
        committer.abort = aborted.append
        target = kit.target_for(committer.sink)
        target.committer = committer  # type: ignore[assignment]
        third.target = target
        third.open().begin()
        assert aborted == [], "it was asked to drop what is decided"
        assert list(kit.sink().recover()) == []
        assert_holds(kit, FIRST, 0)
        run_batch(kit, 1, SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_a_start_that_is_refused_drops_nothing(self, kit: TwoPhaseKit) -> None:
        """Assume another ledger, or another checkpoint: what that knows nothing of, somebody
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
        """Otherwise what was just dropped could be decided a moment later."""
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
        target = kit.target_for(committer.sink)
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
        target = kit.target_for(committer.sink)
        target.committer = committer  # type: ignore[assignment]
        newest = target.open(batch(1))
        assert newest is not None
        target.begin(newest, batch(1)).abort()
        assert listed
        assert aborted == [], "it was asked to drop what is published"
        Process(kit).open()
        assert_holds(kit, FIRST, 0)

    @pytest.mark.parametrize("successor_has", ["decided", "prepared"])
    def test_a_start_that_is_overtaken_drops_nothing_of_the_newer_owner(
        self, kit: TwoPhaseKit, successor_has: str
    ) -> None:
        """Stop a start after it has listed what is prepared, while a newer copy goes
        on."""
        zombie = kit.target_for(kit.sink())
        successor = Process(kit)
        take = zombie.chain.take

        def and_stand_still() -> LedgerRecord | None:
            newest = take()
            successor.open()
            if successor_has == "decided":
                successor.decide(FIRST)
            else:
                successor.stage(kit.frame(FIRST))
            return newest

        zombie.chain.take = and_stand_still  # type: ignore[method-assign]
        zombie.open(batch(0))
        if successor_has == "prepared":
            successor.attempt.commit()
        begin = zombie.chain.begin

        def begin_unasked(newest: LedgerRecord | None) -> AttemptId:
            """Begin without asking: a chain need not look whose it is before it names an
            attempt."""
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
        """Drop it now, not only at the next start: it may hold locks."""
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
        """``resume="skip_missing"`` is for what an earlier run has decided, which somebody has
        looked at."""
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
