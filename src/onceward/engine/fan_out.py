"""Several targets in one batch: one decision, which names the committables of all. Driver only.

Called by ``engine.micro_batch`` as any target is. At most one of the targets is atomic, and then
its commit decides: a Kafka transaction, or one of a database, with the ledger record inside. Else
the ledger record alone decides. The others are two-phase (:mod:`onceward.engine.two_phase`): what
their tasks have prepared is named in that one record, and they publish it after the decision, one
after the other.

A two-phase target does not know the others. It gets a chain of its own, a :class:`Branch`, which
shows it the record as if it were its alone, and merges what it records there into the record of
all. That record is *finished* once each of them is; until then every start goes on publishing. A
target that has published already answers *already done*, or is not asked, where the record could
be updated.

Only the owner of the one chain decides: the chain is taken once, after all targets have listed
what is prepared and before all list it again, and each attempt at a batch has one name for all of
them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

from onceward import patience
from onceward.engine.ledger.chain import Chain
from onceward.engine.ledger.record import PUBLISHED, LedgerRecord, Output, RecordState
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import (
    BRANCH,
    AtomicTarget,
    Attempt,
    Prepared,
    Target,
    Write,
    foreign_output_error,
)
from onceward.engine.two_phase import TwoPhaseTarget, check_chain_exists
from onceward.errors import Fenced, OncewardError
from onceward.ids import AttemptId
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation, Shuffles

log = logging.getLogger(__name__)


class FanOutTarget(Target):
    """One run of a query, writing to several targets.

    :param atomic: the target whose commit decides; None: the ledger record alone does.
    :param branches: the two-phase targets by their names, which the ledger knows them by. Their
        chains are replaced.
    :param chain: the one chain; of ``atomic``, if there is one.
    """

    def __init__(
        self,
        atomic: AtomicTarget | None,
        branches: Mapping[str, TwoPhaseTarget],
        chain: Chain,
        policy: SinkPolicy,
    ) -> None:
        self.chain = chain
        self._policy = policy
        self._atomic = atomic
        self._branches = {
            f"{BRANCH}{name}": Branch(name, target, chain) for name, target in branches.items()
        }
        """By what the record calls their outputs."""
        self._shuffles = Shuffles()
        if self._atomic is not None:
            # What is prepared is dropped, and published, by what the ledger says
            self._atomic.is_relied_on = True
            self.client_for = self._atomic.client_for

    def peek(self) -> LedgerRecord | None:
        return self.chain.peek()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        if self._atomic is None:
            check_chain_exists(self.chain, running, self._policy)
        prepared = {
            output: branch.target.list_prepared() for output, branch in self._branches.items()
        }
        newest = self.chain.take() if self._atomic is None else self._atomic.open(running)
        undone = (
            self._must_be_ours(newest)
            if newest is not None and newest.state is RecordState.DECIDED
            else {}
        )
        records = {
            output: undone.get(output) or replace(own, state=RecordState.FINISHED)
            for output, branch in self._branches.items()
            if newest is not None and (own := branch.own_record(newest)).outputs
        }
        # Each of what is decided stays, whoever lists it: two of the targets may prepare at one
        # place.
        decided = [
            one
            for output, own in records.items()
            for one in self._branches[output].target.decided_in(own)
        ]
        for output, branch in self._branches.items():
            branch.target.find_undecided(prepared[output], records.get(output), running, decided)
        return newest

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> FanOutAttempt:
        # Each of them before any drops what it finds: two may prepare at one place.
        for branch in self._branches.values():
            branch.target.publish_again(None if newest is None else branch.own_record(newest))
        atomic = None if self._atomic is None else self._atomic.begin(newest, running)
        attempt_id = self.chain.begin(newest) if atomic is None else atomic.id
        try:
            attempts = {
                output: branch.target.attempt(
                    attempt_id, None if newest is None else branch.own_record(newest)
                )
                for output, branch in self._branches.items()
            }
        except BaseException:
            (self.chain if atomic is None else atomic).abort()
            raise
        computation = Computation(self._shuffles)
        for attempt in (*attempts.values(), *([] if atomic is None else [atomic])):
            attempt.share(computation)
        return FanOutAttempt(self, attempt_id, atomic, attempts)

    def finish(self, record: LedgerRecord) -> LedgerRecord:
        for output in self._must_be_ours(record):
            branch = self._branches[output]
            try:
                record = branch.publish(record)
            except OncewardError as error:
                self._record_published(branch.record, error)
                raise
        return self.chain.progress(replace(record, state=RecordState.FINISHED))

    def _record_published(self, record: LedgerRecord, error: OncewardError) -> None:
        # The next start may be long after: by then a reader may have taken away what was
        # published, and it would count as lost.
        if not any(
            record.outputs[output].is_published
            for output in self._branches
            if output in record.outputs
        ):
            return
        try:
            self.chain.progress(record)
        except Fenced as fenced:
            raise fenced from error
        except OncewardError as also:
            log.warning(
                "%s: what is published could not be noted: %s", self._policy.pipeline, also
            )

    def _must_be_ours(self, record: LedgerRecord) -> dict[str, LedgerRecord]:
        """Return what each two-phase target has still to publish of the decided ``record``, in
        order. :raises LedgerUnreadable: one that would have to is none of ours."""
        prepared = {name for name in record.outputs if name.startswith(BRANCH)}
        if not prepared or not prepared <= self._branches.keys():
            raise foreign_output_error(record)
        return {
            output: branch.own_record(record)
            for output, branch in self._branches.items()
            if output in prepared and not record.outputs[output].is_published
        }

    def confirm(self) -> None:
        if self._atomic is not None:
            self._atomic.confirm()

    def settle(self) -> LedgerRecord | None:
        return self.chain.settle() if self._atomic is None else self._atomic.settle()

    def close(self) -> None:
        for branch in self._branches.values():
            branch.target.close()
        (self.chain if self._atomic is None else self._atomic).close()


class Branch(Chain):
    """A two-phase target among others, and the chain of all as it sees it: it records progress and
    asks for the owner."""

    record: LedgerRecord
    """Of all, as far as this target has published it."""

    def __init__(self, name: str, target: TwoPhaseTarget, chain: Chain) -> None:
        self.name = name
        self.output = f"{BRANCH}{name}"
        self.target = target
        self._chain = chain
        # Where nobody is atomic, one of them has brought the chain of all
        if target.chain is not chain:
            target.chain.close()
        target.chain = self
        target.branch = name

    def own_record(self, record: LedgerRecord) -> LedgerRecord:
        """Return ``record`` as if it were of this target alone."""
        outputs = {
            output.kind: output for name, output in record.outputs.items() if name == self.output
        }
        return replace(record, outputs=outputs)

    def publish(self, record: LedgerRecord) -> LedgerRecord:
        """Publish what is decided in ``record``; return it as it is then, still *decided*."""
        self.record = record
        self.target.finish(self.own_record(record))
        record = self.record
        output = record.outputs[self.output]
        done = replace(output, data={**output.data, PUBLISHED: True})
        return replace(record, outputs={**record.outputs, self.output: done})

    def progress(self, record: LedgerRecord) -> LedgerRecord:
        (output,) = record.outputs.values()
        merged = replace(self.record, outputs={**self.record.outputs, self.output: output})
        # That this one is finished need not be written: it would be found out anew, and others may
        # not be.
        if record.state is RecordState.DECIDED:
            merged = self._chain.progress(merged)
        self.record = merged
        return replace(self.own_record(merged), state=record.state)

    def newest(self) -> LedgerRecord | None:
        return self._as_own(self._chain.newest())

    def identity(self) -> str:
        return self._chain.identity()

    def settle(self) -> LedgerRecord | None:
        settled = self._chain.settle()
        if settled is not None:
            self.record = settled
        return self._as_own(settled)

    def _as_own(self, record: LedgerRecord | None) -> LedgerRecord | None:
        return None if record is None else self.own_record(record)

    def abort(self) -> None:
        """Do nothing: the fan-out aborts."""

    def close(self) -> None:
        """Do nothing: the fan-out closes."""

    def peek(self) -> LedgerRecord | None:
        return self._as_own(self._chain.peek())

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError(f"branch {self.name} of a fan-out does what the fan-out does for all")

    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        return map(self.own_record, self._chain.history(limit))

    take = begin = append = _refuse


class FanOutAttempt(Attempt):
    """One attempt at a batch, by one attempt of each target; all have its name."""

    def __init__(
        self,
        target: FanOutTarget,
        attempt_id: AttemptId,
        atomic: Attempt | None,
        attempts: Mapping[str, Attempt],
    ) -> None:
        self.id = attempt_id
        self._chain, self._branches = target.chain, target._branches
        self._atomic = atomic
        self._attempts = attempts

    @property
    def ids(self) -> dict[str, Any]:
        return super().ids if self._atomic is None else self._atomic.ids

    def write(self, write: Write, running: RunningBatch) -> int:
        attempt = self._attempts.get(write.where or "", self._atomic)
        # Where no target is atomic, each frame names another one.
        assert attempt is not None  # noqa: S101
        return attempt.write(write, running)

    def prepared(self) -> Prepared:
        outputs: dict[str, Output] = {}
        summaries: list[str] = []
        values: dict[str, Any] = {}
        state = RecordState.FINISHED
        for name, attempt in self._attempts.items():
            prepared = attempt.prepared()
            (outputs[name],) = prepared.outputs.values()
            summaries.append(f"{name}: {prepared.summary}")
            state = state if prepared.state is RecordState.FINISHED else RecordState.DECIDED
        # Last: what fails before has not held it up
        if self._atomic is not None:
            prepared = self._atomic.prepared()
            outputs.update(prepared.outputs)
            summaries.append(prepared.summary)
            values |= prepared.values
        return Prepared(outputs, "; ".join(summaries), state, values)

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        for name, attempt in self._attempts.items():
            attempt.stage(self._branches[name].own_record(record), running)
        if self._atomic is not None:
            self._atomic.stage(record, running)
        super().stage(record, running)

    def commit(self) -> None:
        if self._atomic is None:
            self._chain.append(self.record)
        else:
            self._atomic.commit()

    def abort(self) -> None:
        # All of them: one may be interrupted by the end of the query
        with patience.dropping(), ExitStack() as last_first:
            last_first.callback((self._chain if self._atomic is None else self._atomic).abort)
            for attempt in reversed(list(self._attempts.values())):
                last_first.callback(attempt.abort)
