"""The side of a database sink whose tasks prepare transactions (``xa=True``). Driver only.

On top of all two-phase targets (:mod:`onceward.engine.two_phase`), in the order of a batch:

1. At the start: does the server keep prepared transactions, does the table fit? What is prepared
   and was never decided is rolled back before the first attempt, of this chain: what another
   ledger's pipeline of the same id has prepared may be decided there, and is told of in the log.
2. Each task writes straight into the table, in a transaction of its own, with the row that marks
   it, and prepares it.
3. The ledger record names the transactions: the decision. Then each is committed.
4. Markers of the batch before are removed before the next attempt.

What if a task that was given up prepares its transaction late, when its attempt is aborted, or
decided without it? Nothing names it. It holds locks until it is rolled back: by the attempt's
abort, once the batch is finished, before the run's next attempt, or by the next start. Where the
ledger's owners grow, a run's next attempt finds those of older copies, too.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import ExitStack
from typing import Any

from onceward import events
from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.engine.target import Write, event_ids
from onceward.engine.task_writer import OpenTaskWriter, OpenWriter
from onceward.engine.two_phase import MarkedTarget, TwoPhaseAttempt, drop_all
from onceward.errors import OncewardError, PreparedDataLost, SendFailed, TargetUnreachable
from onceward.ids import AttemptId
from onceward.spark.batch.query import RunningBatch
from onceward.sql.sink import dialect as names
from onceward.sql.sink.prepared import PreparedTransactions
from onceward.sql.sink.run import DatabaseSinkSettings

log = logging.getLogger(__name__)

KIND = "prepared"
"""Of a ledger record's output: as of ``two_phase``, with the ``table``; its committables are names
of prepared transactions.
"""

_MARKED = "markers_stay"
"""In an output's data: markers of the batch stay until the next one is finished."""
_ELSEWHERE = "elsewhere"
"""In an output's data, for the checker: the table may be in another database than the ledger."""

_LOOK_BACK = 100
# Batches before the newest one whose markers a run that died may have left
_MARKED_BEFORE = 2
_REMEMBERED = 16
"""Attempts of a run whose tasks are looked for when late; all others at the next start."""


class PreparedTarget(MarkedTarget):
    """One run of a query."""

    kind = KIND

    def __init__(self, settings: DatabaseSinkSettings) -> None:
        self._settings = settings
        self.transactions = PreparedTransactions(settings)
        policy = settings.policy
        super().__init__(
            self.transactions,
            settings.decided_in.chain(policy.pipeline),
            policy,
            commit_timeout_s=settings.commit_timeout_s,
        )
        self._begun: deque[AttemptId] = deque(maxlen=_REMEMBERED)
        # Transactions of the newest finished batch that has any; None: not looked for yet
        self._published: list[str] | None = None
        # Their markers stay until the next batch is finished: releases before did not do so
        self._is_marked = True
        # Those before, whose markers may go
        self._older: list[str] = []
        # The session in which the server was asked for the newest batch
        self._asked_in = 0

    def list_prepared(self) -> list[Any]:
        try:
            self.transactions.table()
        except SendFailed as error:
            # Nothing is sent yet, and nothing runs again by itself
            raise TargetUnreachable(
                error.message, next_step="see that the database answers"
            ) from error
        self.transactions.make_markers()
        return super().list_prepared()

    def published_in(self, newest: LedgerRecord) -> list[str]:
        """Return the transactions of the newest finished batch that has any, and of those before
        whose markers may be there.
        """
        if self._published is None:
            of_record = super().published_in
            named: dict[int, tuple[LedgerRecord, list[str]]] = {}
            for record in (newest, *self.chain.history(_LOOK_BACK)):
                if record.sequence <= newest.sequence and (written := of_record(record)):
                    named[record.sequence] = record, written
            (last, self._published), *before = list(named.values()) or [(newest, [])]
            output = last.outputs.get(self.kind)
            self._is_marked = output is not None and bool(output.data.get(_MARKED))
            self._older = [name for _, each in before[:_MARKED_BEFORE] for name in each]
        return [*self._published, *self._older]

    def publish_again(self, newest: LedgerRecord | None) -> None:
        """Commit it also in mid-run: a new session may lead to a server that was promoted.

        :raises PreparedDataLost: it does not have the newest finished batch.
        """
        if newest is None or newest.state is not RecordState.FINISHED:
            return
        decided = self.published_in(newest)
        try:
            listed = self.committer.recover()
        except TargetUnreachable:
            # The session may have broken since the last batch
            listed = self.committer.recover()
        self._again = [name for name in listed if name in decided]
        super().publish_again(newest)
        if self._asked_in != self.transactions.sessions:
            newest_batch = self._published if self._is_marked else None
            lost = self.transactions.unmarked(newest_batch) if newest_batch else []
            self._must_not_be_lost(lost, newest)
            self._asked_in = self.transactions.sessions

    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> PreparedAttempt:
        if newest is None or newest.state is RecordState.FINISHED:
            self._drop_what_came_late(attempt_id.owner if self.chain.owners_grow else None)
            self._remove_markers()
        self._begun.append(attempt_id)
        return PreparedAttempt(self, attempt_id)

    def _drop_what_came_late(self, owner: int | None = None) -> None:
        """Roll back what tasks of earlier batch attempts prepared late: each of those attempts is
        finished or aborted, and their tasks may have gone on.

        :param owner: tasks of older owners, too. Nothing of theirs is decided and not finished,
            and nothing ever will be: but they may have prepared it when this run had looked
            through what was there, and not taken the chain.
        """
        late = tuple(
            names.attempt_prefix(self._policy.pipeline, self.mark, attempt)
            for attempt in self._begun
        )
        if not late and owner is None:
            return
        try:
            found = [
                name
                for name in self.committer.recover()
                if name.startswith(late) or self._is_older(name, owner)
            ]
        except OncewardError as error:
            log.warning(
                "%s: whether a task came late is not known: %s", self._policy.pipeline, error
            )
            return
        # A server that was failed over has prepared again what is published
        late_ones = [name for name in found if name not in (self._published or ())]
        drop_all(self.committer, late_ones, self._policy.pipeline)

    def _is_older(self, name: str, owner: int | None) -> bool:
        theirs = names.owner_in(name, self._policy.pipeline, self.mark)
        return owner is not None and theirs is not None and theirs < owner

    def _remove_markers(self) -> None:
        """Remove markers of batches before the newest finished one, and only those that the ledger
        names: a newer owner needs the markers of what it commits and has not finished.
        """
        older, self._older = self._older, []
        try:
            if older:
                self.transactions.remove_markers(older)
        except OncewardError as error:
            log.warning("%s: some markers are left for now: %s", self._policy.pipeline, error)
            self._older = older

    def finish(self, record: LedgerRecord) -> LedgerRecord:
        try:
            finished = super().finish(record)
        except PreparedDataLost:
            # A newer copy that has finished the batch has removed its markers, and then it is for
            # Fenced to say so.
            self.chain.progress(record)
            raise
        written = super().published_in(finished)
        if self._published is None:
            self.published_in(finished)
        elif written:
            self._older += self._published
            self._published, self._is_marked = written, True
        # Of a fan-out, others may have prepared in the same attempt, and publish later
        if not self.branch:
            self._drop_what_came_late()
        return finished

    def close(self) -> None:
        super().close()
        self.transactions.close()


class PreparedAttempt(TwoPhaseAttempt):
    """One attempt at a batch: transactions of its tasks."""

    target: PreparedTarget

    def _extra_data(self) -> dict[str, Any]:
        settings = self.target._settings
        elsewhere = not settings.is_beside_ledger
        return {"table": str(settings.table), _MARKED: True, _ELSEWHERE: elsewhere}

    def _opening(self, write: Write, running: RunningBatch, frame: int) -> OpenWriter:
        with events.step(events.PLAN, **event_ids(self._policy.pipeline, running), **self.ids):
            landing = self.target.transactions.landing(write.frame.schema, self.target.mark)
        return OpenTaskWriter(landing, self._policy.pipeline, running.batch, self.id, frame)

    def abort(self) -> None:
        """Roll back the attempt's transactions, those that no report has named included: they
        would hold their locks until the next start.
        """
        beginning = names.attempt_prefix(self._policy.pipeline, self.target.mark, self.id)
        with ExitStack() as last:
            last.callback(super().abort)
            try:
                found = [name for name in self._committer.recover() if name.startswith(beginning)]
            except OncewardError as error:
                log.warning(
                    "%s: what tasks of %s have prepared is not known: %s",
                    self._policy.pipeline,
                    self.id,
                    error,
                )
            else:
                self._results = []
                left = drop_all(self._committer, found, self._policy.pipeline)
                self.target._undecided += left
