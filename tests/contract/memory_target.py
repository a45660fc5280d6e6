"""The smallest target that keeps the contract: output and ledger in lists, decided by one
assignment. No Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onceward import events
from onceward.engine.ledger.record import LedgerRecord, Output
from onceward.engine.target import Attempt, Prepared, Target, Write
from onceward.errors import CommitInDoubt, Fenced
from onceward.ids import AttemptId, pipeline_id
from onceward.spark.batch.query import RunningBatch
from onceward_testing.sink_contract import SinkKit


class Store:
    """What outlives every process: who owns it, and what is decided."""

    def __init__(self) -> None:
        self.owner = 0
        self.decided: tuple[list[str], list[LedgerRecord]] = ([], [])


class Rows:
    """A frame: its rows, and what its plan raises in the end."""

    def __init__(self, values: Sequence[str], error: Exception | None = None) -> None:
        self.values = list(values)
        self.error = error

    def count(self) -> int:
        return len(self.values)


class MemoryTarget(Target):
    """``answers``: is the answer to a commit lost (None: no), after it was carried out or instead
    of that?
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.carried_out: bool | None = None
        self._owner = 0
        self._attempts = 0

    def peek(self) -> LedgerRecord | None:
        records = self.store.decided[1]
        return records[-1] if records else None

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        self.store.owner += 1
        self._owner = self.store.owner
        return self.peek()

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> MemoryAttempt:
        self.must_own()
        self._attempts += 1
        return MemoryAttempt(self, AttemptId(self._owner, self._attempts))

    def must_own(self) -> None:
        if self._owner != self.store.owner:
            raise Fenced("a newer copy has taken over")

    def settle(self) -> LedgerRecord | None:
        self.must_own()
        return self.peek()

    def close(self) -> None:
        pass


class MemoryAttempt(Attempt):
    def __init__(self, target: MemoryTarget, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self._target = target
        self._written: list[str] = []

    def write(self, write: Write, running: RunningBatch) -> int:
        frame: Any = write.frame
        with events.step(events.SEND, batch_id=running.batch.batch_id):
            self._target.must_own()
            self._written += frame.values
            if frame.error is not None:
                raise frame.error
        return len(frame.values)

    def prepared(self) -> Prepared:
        return Prepared({"memory": Output("memory", 1, len(self._written), None)})

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        self._target.must_own()
        super().stage(record, running)

    def commit(self) -> None:
        self._target.must_own()
        store, carried_out = self._target.store, self._target.carried_out
        if carried_out is not False:
            output, records = store.decided
            store.decided = ([*output, *self._written], [*records, self.record])
        if carried_out is not None:
            raise CommitInDoubt("lost on purpose")

    def abort(self) -> None:
        self._written = []


class MemoryKit(SinkKit):
    fences_writers = True

    def __init__(self) -> None:
        self.pipeline = pipeline_id("contract")
        self._store = Store()

    def new_target(self) -> MemoryTarget:
        return MemoryTarget(self._store)

    def frame(self, values: Sequence[str], tasks: int = 2) -> Rows:
        return Rows(values)

    def failing(self, values: Sequence[str]) -> Rows:
        return Rows(values, ValueError("this plan hurts"))

    def visible(self) -> Counter[str]:
        return Counter(self._store.decided[0])

    @contextmanager
    def unanswered(self, target: Target, *, carried_out: bool) -> Iterator[None]:
        assert isinstance(target, MemoryTarget)
        target.carried_out = carried_out
        try:
            yield
        finally:
            target.carried_out = None

    def close(self) -> None:
        pass
