"""What the engine relies on in every atomic target: see ``onceward.engine.target``.

A ``Run`` is one process of the pipeline: it calls the target in the engine's order, one step at a time, so that a test
can stop, lose or overtake it in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from target_kit import TargetKit

from onceward.engine.target import Write
from onceward.errors import CommitInDoubt, Fenced, OncewardError
from onceward.ids import BatchId, ProducerIdentity, SourceRange
from onceward.ledger.record import LedgerRecord, Manifest
from onceward.spark.query import RunningBatch

FIRST = ["a", "b", "c", "d", "e", "f", "g"]
SECOND = ["h", "i", "j"]


def batch(number: int) -> RunningBatch:
    """Batch ``number`` of a query over a source that counts."""
    return RunningBatch(
        batch=BatchId("3b6c0de1-0000-4000-8000-000000000001", number),
        run_id="3b6c0de1-0000-4000-8000-000000000002",
        name="contract",
        sources=(SourceRange(number * 10, number * 10 + 10),),
        kafka_sources=(),
        stateful=False,
        input_records=None,
    )


class Run:
    """One process of the pipeline, at work on its target."""

    def __init__(self, kit: TargetKit) -> None:
        self.kit = kit
        self.target = kit.new_target()
        self.newest: LedgerRecord | None = None

    def open(self) -> Run:
        self.newest = self.target.open(batch(0))
        return self

    def write(self, values: Sequence[str]) -> tuple[ProducerIdentity, Manifest]:
        """Steps up to 6; nothing staged."""
        identity = self.target.begin()
        return identity, self.target.write([Write(self.kit.frame(values))], self.next_batch()).manifest

    def stage(self, values: Sequence[str]) -> LedgerRecord:
        """Everything but the commit."""
        identity, manifest = self.write(values)
        running = self.next_batch()
        sequence = 0 if self.newest is None else self.newest.sequence + 1
        record = LedgerRecord(
            self.kit.pipeline, sequence, running.batch, running.sources, manifest, identity, 1_700_000_000_000
        )
        self.target.stage(record, running)
        return record

    def commit(self, values: Sequence[str]) -> LedgerRecord:
        record = self.stage(values)
        self.target.commit()
        self.newest = record
        return record

    def next_batch(self) -> RunningBatch:
        return batch(0 if self.newest is None else self.newest.batch.batch_id + 1)


def assert_holds(kit: TargetKit, values: Sequence[str], newest: int | None) -> None:
    """An independent reader finds exactly ``values``, and the newest ledger record is number ``newest``."""
    assert kit.visible() == Counter(values)
    assert kit.ledger_sequences()[-1:] == ([] if newest is None else [newest])


def failing(frame: DataFrame) -> DataFrame:
    """A plan whose tasks raise after their first rows."""

    def raise_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("this plan hurts")

    return frame.mapInArrow(raise_at_the_end, frame.schema)


def test_nothing_is_there_before_the_first_batch(kit: TargetKit):
    run = Run(kit)
    assert run.target.glance() is None
    assert run.open().newest is None
    assert_holds(kit, [], None)


def test_nothing_is_visible_before_the_commit_and_all_of_it_after(kit: TargetKit):
    run = Run(kit).open()
    record = run.stage(FIRST)
    assert_holds(kit, [], None)
    run.target.commit()
    assert_holds(kit, FIRST, 0)
    assert Run(kit).target.glance() == record


def test_the_manifest_counts_every_row(kit: TargetKit):
    run = Run(kit).open()
    assert run.commit(FIRST * 10).records == 70
    assert kit.visible() == Counter(FIRST * 10)


def test_several_frames_are_one_attempt(kit: TargetKit):
    run = Run(kit).open()
    identity = run.target.begin()
    written = run.target.write([Write(kit.frame(part)) for part in (FIRST, [], FIRST, SECOND)], run.next_batch())
    assert written.records == (7, 0, 7, 3)
    assert sum(part.count for part in written.manifest.values()) == 17
    running = run.next_batch()
    record = LedgerRecord(kit.pipeline, 0, running.batch, running.sources, written.manifest, identity, 0)
    run.target.stage(record, running)
    assert_holds(kit, [], None)
    run.target.commit()
    assert_holds(kit, FIRST + FIRST + SECOND, 0)


def test_a_frame_that_fails_takes_the_others_along(kit: TargetKit):
    run = Run(kit).open()
    run.target.begin()
    with pytest.raises(Exception, match="this plan hurts"):
        run.target.write([Write(kit.frame(FIRST)), Write(failing(kit.frame(SECOND)))], run.next_batch())
    run.target.abort()
    assert_holds(kit, [], None)
    run.commit(FIRST)
    assert_holds(kit, FIRST, 0)


def test_batch_follows_batch_and_each_has_an_identity_of_its_own(kit: TargetKit):
    run = Run(kit).open()
    records = [run.commit([f"{number}-{value}" for value in SECOND]) for number in range(4)]
    assert len({record.producer for record in records}) == 4
    assert_holds(kit, [f"{number}-{value}" for number in range(4) for value in SECOND], 3)


def test_an_empty_batch_is_a_ledger_record_alone(kit: TargetKit):
    run = Run(kit).open()
    record = run.commit([])
    assert record.records == 0
    assert_holds(kit, [], 0)
    run.commit(FIRST)
    assert_holds(kit, FIRST, 1)


@pytest.mark.parametrize("reached", ["write", "stage"])
def test_an_aborted_attempt_leaves_nothing(kit: TargetKit, reached: str):
    run = Run(kit).open()
    getattr(run, reached)(FIRST)
    run.target.abort()
    assert_holds(kit, [], None)
    assert run.target.glance() is None
    run.commit(SECOND)
    assert_holds(kit, SECOND, 0)


def test_an_abort_after_nothing_is_harmless(kit: TargetKit):
    run = Run(kit).open()
    run.target.abort()
    run.target.begin()
    run.target.abort()
    run.target.abort()
    run.commit(FIRST)
    assert_holds(kit, FIRST, 0)


def test_a_plan_that_fails_leaves_nothing(kit: TargetKit):
    run = Run(kit).open()
    run.target.begin()
    with pytest.raises(Exception, match="this plan hurts"):
        run.target.write([Write(failing(kit.frame(FIRST)))], run.next_batch())
    run.target.abort()
    assert_holds(kit, [], None)
    run.commit(SECOND)
    assert_holds(kit, SECOND, 0)


def test_a_commit_without_an_answer_that_was_carried_out(kit: TargetKit):
    run = Run(kit).open()
    run.commit(FIRST)
    record = run.stage(SECOND)
    with kit.unanswered(run.target, carried_out=True), pytest.raises(CommitInDoubt):
        run.target.commit()
    assert run.target.settle() == record
    assert_holds(kit, FIRST + SECOND, 1)
    run.newest = record
    run.commit(["z"])
    assert_holds(kit, [*FIRST, *SECOND, "z"], 2)


def test_a_commit_without_an_answer_that_never_arrived(kit: TargetKit):
    run = Run(kit).open()
    first = run.commit(FIRST)
    run.stage(SECOND)
    with kit.unanswered(run.target, carried_out=False), pytest.raises(CommitInDoubt):
        run.target.commit()
    assert run.target.settle() == first
    assert_holds(kit, FIRST, 0)
    run.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "not settled"])
def test_an_abort_without_an_answer_is_no_obstacle(kit: TargetKit, carried_out: bool, settled: bool):
    """A commit was never sent, so there is no doubt: the next attempt may begin, settled or not."""
    run = Run(kit).open()
    run.commit(FIRST)
    run.stage(["aborted"])
    with kit.unanswered(run.target, carried_out=carried_out), pytest.raises(OncewardError):
        run.target.abort()
    if settled:
        assert run.target.settle() == run.newest
    run.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


def test_opening_ends_what_a_predecessor_left_open(kit: TargetKit):
    dead = Run(kit).open()
    dead.commit(FIRST)
    dead.stage(SECOND)
    heir = Run(kit).open()
    assert heir.newest == dead.newest
    assert_holds(kit, FIRST, 0)
    heir.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


@pytest.mark.parametrize("heir_has", ["committed", "an attempt open"])
@pytest.mark.parametrize("step", ["begin", "write", "stage", "commit", "abort"])
def test_a_zombie_is_fenced_at_whatever_it_does_next_and_leaves_its_heir_alone(
    kit: TargetKit, step: str, heir_has: str
):
    zombie = Run(kit).open()
    zombie.commit(FIRST)
    manifest: Manifest = {}
    identity = ProducerIdentity(-1, -1)
    if step in ("stage", "abort"):
        identity, manifest = zombie.write(["zombie"])
    elif step == "commit":
        zombie.stage(["zombie"])
    elif step == "write":
        zombie.target.begin()
    heir = Run(kit).open()
    if heir_has == "committed":
        heir.commit(SECOND)
    else:
        heir.stage(SECOND)
    with pytest.raises(Fenced):  # noqa: PT012 — whichever of the steps it is
        if step == "begin":
            # Beginning may be silent where it costs no round trip; writing must not be.
            zombie.target.begin()
            zombie.target.write([Write(kit.frame(["zombie"]))], zombie.next_batch())
        elif step == "write":
            zombie.target.write([Write(kit.frame(["zombie"]))], zombie.next_batch())
        elif step == "stage":
            running = zombie.next_batch()
            record = LedgerRecord(kit.pipeline, 1, running.batch, running.sources, manifest, identity, 0)
            zombie.target.stage(record, running)
        else:
            getattr(zombie.target, step)()
    with pytest.raises(Fenced):  # what the engine does next, and it must stay so
        zombie.target.abort()
    if heir_has == "an attempt open":
        heir.target.commit()
    assert_holds(kit, FIRST + SECOND, 1)


def test_a_zombie_that_settles_its_doubt_is_fenced_and_does_not_fence_its_heir(kit: TargetKit):
    zombie = Run(kit).open()
    zombie.stage(["zombie"])
    with kit.unanswered(zombie.target, carried_out=False), pytest.raises(CommitInDoubt):
        zombie.target.commit()
    heir = Run(kit).open()
    heir.stage(FIRST)
    with pytest.raises(Fenced):
        zombie.target.settle()
    heir.target.commit()
    assert_holds(kit, FIRST, 0)


def test_a_glance_disturbs_nobody(kit: TargetKit):
    run = Run(kit).open()
    first = run.commit(FIRST)
    run.stage(SECOND)
    onlooker = Run(kit)
    assert onlooker.target.glance() in (first, None), "an attempt that is open is nobody's newest record"
    onlooker.target.close()
    run.target.commit()
    assert_holds(kit, FIRST + SECOND, 1)


def test_closing_aborts_nothing_commits_nothing_and_may_be_repeated(kit: TargetKit):
    run = Run(kit).open()
    run.commit(FIRST)
    run.stage(SECOND)
    run.target.close()
    run.target.close()
    assert kit.visible() == Counter(FIRST)
    heir = Run(kit).open()
    assert heir.newest == run.newest
    heir.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


def test_a_target_that_was_never_opened_closes(kit: TargetKit):
    kit.new_target().close()
