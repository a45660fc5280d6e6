"""A process of the pipeline under test, which goes the engine's way step by step and can stop
anywhere.

Used by the contracts beside this module, and by tests of sinks that need more than these.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from onceward import events
from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Target, Write
from onceward.ids import BatchId, PipelineId, SourceRange
from onceward.spark.batch.query import RunningBatch

FIRST = ["a", "b", "c", "d", "e", "f", "g"]
SECOND = ["h", "i", "j"]

_CERTAIN_SECONDS = 10.0  # until a look at the ledger tells what is there

_QUERY = "3b6c0de1-0000-4000-8000-000000000001"


class Died(BaseException):
    """Stands for the death of the process: nobody catches it."""


class SinkKit(ABC):
    """One target of one pipeline, and the ledger that goes with it."""

    pipeline: PipelineId
    fences_writers = False
    """True if a zombie is refused while it writes; otherwise when it commits, which is early
    enough."""
    copies = 1
    """Number of output records that the target makes of a row."""

    @abstractmethod
    def new_target(self) -> Target:
        """Return the target as a new process of the pipeline would make it.

        It is closed by :meth:`close`.
        """

    @abstractmethod
    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        """Return rows for the target, one a value, written by so many tasks."""

    def failing(self, values: Sequence[str]) -> Any:
        """Return rows of a plan whose tasks raise ``ValueError("this plan hurts")`` after their
        rows."""

        def raise_at_the_end(batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches
            raise ValueError("this plan hurts")

        frame = self.frame(values)
        return frame.mapInArrow(raise_at_the_end, frame.schema)

    @abstractmethod
    def visible(self) -> Counter[str]:
        """Return the values that a reader of the target finds."""

    @abstractmethod
    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        """Lose answers: inside, no commit of ``target``'s gets an answer, whether it is carried
        out or never arrives."""

    @abstractmethod
    def close(self) -> None:
        """Close all targets. May be called more than once."""


def batch(number: int) -> RunningBatch:
    """Return batch ``number`` of a query over a source that counts; each call is another run of
    it."""
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
        """Open the target and finish what is decided."""
        self.newest = self.target.open(self.next_batch())
        return self.finish()

    def finish(self) -> Process:
        """Finish the newest batch if it is decided and not published."""
        if self.newest is not None and self.newest.state is RecordState.DECIDED:
            self.newest = self.target.finish(self.newest)
        return self

    def begin(self) -> Attempt:
        """Begin an attempt of the next batch."""
        self.begun = self.target.begin(self.newest, self.next_batch())
        return self.begun

    def write(self, *frames: Any) -> tuple[int, ...]:
        """Begin an attempt and write ``frames``; return their numbers of rows."""
        attempt = self.begin()
        return tuple(attempt.write(Write(frame), self.next_batch()) for frame in frames)

    def stage(self, *frames: Any) -> LedgerRecord:
        """Do everything but the commit."""
        self.write(*frames)
        return self.stage_what_is_written()

    def stage_what_is_written(self) -> LedgerRecord:
        """Stage the ledger record of what the attempt has written."""
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
        """Do everything but what comes after the decision."""
        record = self.stage(self.kit.frame(values))
        self.attempt.commit()
        self.newest = record
        return record

    def commit(self, values: Sequence[str]) -> LedgerRecord:
        """Write, decide and publish ``values`` as the next batch."""
        self.decide(values)
        self.finish()
        assert self.newest is not None
        return self.newest

    def next_batch(self) -> RunningBatch:
        """Return the batch behind the newest one."""
        return batch(0 if self.newest is None else self.newest.batch.batch_id + 1)


def run_batch(kit: SinkKit, number: int, values: Sequence[str], attempts: int = 3) -> Target:
    """Run batch ``number`` as the first of a new process, by the engine itself."""
    target = kit.new_target()
    policy = SinkPolicy(kit.pipeline, batch_attempts=attempts)
    MicroBatches(target, policy).process([Write(kit.frame(values))], batch(number))
    return target


def assert_holds(kit: SinkKit, values: Sequence[str], newest: int | None) -> None:
    """Assert that a reader finds exactly ``values``, and the newest ledger record is number
    ``newest``."""
    assert kit.visible() == Counter(values)
    found = kit.new_target().peek() if newest is None else certain(lambda: kit.new_target().peek())
    assert (None if found is None else found.sequence) == newest


def certain(peek: Callable[[], LedgerRecord | None]) -> LedgerRecord | None:
    """Read a ledger that has a record until it shows one; at first it may show none: Kafka
    answers a commit before all partitions know of it."""
    ends = time.monotonic() + _CERTAIN_SECONDS
    while (found := peek()) is None and time.monotonic() < ends:
        time.sleep(0.05)
    return found


@contextmanager
def fault(step: str, phase: str, what: BaseException | Callable[[], object]) -> Iterator[None]:
    """Raise ``what``, or call it, once, when ``step`` of a batch is ``phase``."""
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
