"""The contract of every sink: what the engine relies on in every target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from onceward import events
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    CommitInDoubt,
    Fenced,
    SendFailed,
)
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

_STEPS = (events.OPEN, events.ADMIT, events.SEND, events.COMMIT, events.FINISH)


class SinkContract:
    """The contract on which the engine relies in every target.

    A subclass has the fixture ``kit``.
    """

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
        successor = Process(kit).open()
        assert successor.newest is not None
        assert successor.newest.records == kit.copies * len(FIRST)
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
        successor = Process(kit).open()
        assert successor.newest == dead.newest
        assert_holds(kit, FIRST, 0)
        successor.commit(SECOND)
        assert_holds(kit, FIRST + SECOND, 1)

    def test_closing_decides_nothing_and_may_be_repeated(self, kit: SinkKit) -> None:
        process = Process(kit).open()
        process.commit(FIRST)
        process.stage(kit.frame(SECOND))
        process.target.close()
        process.target.close()
        assert kit.visible() == Counter(FIRST)
        successor = Process(kit).open()
        successor.commit(SECOND)
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

    @pytest.mark.parametrize("successor_has", ["committed", "an attempt open"])
    @pytest.mark.parametrize("step", ["begin", "write", "stage", "commit"])
    def test_a_zombie_is_fenced_and_leaves_the_newer_owner_alone(
        self, kit: SinkKit, step: str, successor_has: str
    ) -> None:
        zombie = Process(kit).open()
        zombie.commit(FIRST)
        if step == "write":
            zombie.begin()
        elif step == "stage":
            zombie.write(kit.frame(["zombie"]))
        elif step == "commit":
            zombie.stage(kit.frame(["zombie"]))
        successor = Process(kit).open()
        if successor_has == "committed":
            successor.commit(SECOND)
        else:
            successor.stage(kit.frame(SECOND))
        with pytest.raises(Fenced):
            self._go_on(zombie, step)
        if zombie.begun is not None:
            with suppress(Fenced):  # what the engine does next
                zombie.begun.abort()
        if successor_has == "an attempt open":
            successor.attempt.commit()
            Process(kit).open()
        assert_holds(kit, FIRST + SECOND, 1)

    def _go_on(self, zombie: Process, step: str) -> None:
        """Go on from ``step`` to the commit; where the target fences writers, the first of it has
        to raise."""
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

    def test_a_zombie_that_settles_its_doubt_is_fenced_and_fences_nobody(
        self, kit: SinkKit
    ) -> None:
        zombie = Process(kit).open()
        zombie.stage(kit.frame(["zombie"]))
        with kit.unanswered(zombie.target, carried_out=False), pytest.raises(CommitInDoubt):
            zombie.attempt.commit()
        successor = Process(kit).open()
        successor.stage(kit.frame(FIRST))
        with pytest.raises(Fenced):
            zombie.target.settle()
        successor.attempt.commit()
        Process(kit).open()
        assert_holds(kit, FIRST, 0)

    @pytest.mark.parametrize("phase", ["started", "finished"])
    @pytest.mark.parametrize("step", _STEPS)
    def test_overtaken_at_any_step(self, kit: SinkKit, step: str, phase: str) -> None:
        """Let a newer copy write the same batch."""
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
