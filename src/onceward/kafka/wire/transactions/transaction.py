"""One transactional id and its transactions, one after the other: the driver's side of a batch.
Runs in the driver. Called by the Kafka sink. The identity that it hands out goes to the tasks,
whose appends (``kafka.wire.appends.producer``) join the open transaction; this class opens and
ends it, and knows who holds the id.

It is longer than 500 lines because all its steps share one lock and one state. Three rules, each
against a way to lose or repeat a batch:

* one epoch, one transaction: a late ``Produce`` or ``EndTxn`` can never land in the next one
  (KIP-890);
* after a commit without an answer only that commit is asked again, with the same epoch, and never
  an abort;
* only the first ``InitProducerId`` of a process takes the id from whoever holds it. Every later
  one names the identity that we had (KIP-360), so that an old copy of a pipeline never fences a
  newer one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, NoReturn

from onceward import surroundings
from onceward.errors import BatchFailed, BrokerUnreachable, CommitInDoubt, Fenced, OncewardError
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused, Unanswered, raised_as_errors
from onceward.kafka.wire.deadline import Deadline, Instant
from onceward.kafka.wire.error_table import Meaning
from onceward.kafka.wire.options.settings import LONGEST_TRANSACTION_MS
from onceward.kafka.wire.transactions.coordinator import NOBODY, TransactionCoordinator
from onceward.kafka.wire.transactions.fencing import (
    Fencing,
    IdOwner,
    OwnTransaction,
    RequestedTimeouts,
    brokers_limit,
    refused_early,
    shortest_timeout,
    taken_over,
    timed_out,
    timeout_too_large,
)
from onceward.kafka.wire.transactions.markers import Markers, WasCommitted
from onceward.kafka.wire.transactions.states import TRANSITIONS, State, Step

log = logging.getLogger(__name__)

_GRACE_MS = 10_000
_PATIENCE_MS = 60_000
# Kafka's own default of transaction.timeout.ms, which any broker can be expected to allow
_SAFE_TIMEOUT_MS = 60_000
# After a pause of that length one more request is not felt
_IDLE_MS = 10_000
_TAKEOVER_ATTEMPTS = 5
_INVALID_TXN_STATE = 48
_INVALID_TRANSACTION_TIMEOUT = 50
_TRANSACTION_ABORTABLE = 120


class Transaction:
    """A transactional id and its transactions. Thread safe; steps of different threads take turns.

    :param timeout_ms: ``transaction.timeout.ms``: the coordinator aborts what is open longer.
        None: 15 minutes, or what the brokers allow if that is less.
    :param patience_ms: how long a step is asked again before it fails. The default outlives the
        transaction timeout, after which the coordinator has settled everything that it still can;
        without one it is 70 s.
    :param outdated: has somebody newer written since we did? Asked where the coordinator cannot
        tell: before a claim of an id that it has forgotten (``transactional.id.expiration.ms``),
        or of what was given to us or to somebody.
    :param was_committed: what the ledger says of a transaction that another run has ended.
    """

    def __init__(
        self,
        client: KafkaClient,
        transactional_id: str,
        timeout_ms: int | None,
        *,
        patience_ms: int | None = None,
        outdated: Callable[[], bool] = lambda: False,
        was_committed: WasCommitted = lambda identity: None,
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms or LONGEST_TRANSACTION_MS
        self._may_be_shorter = timeout_ms is None
        self.patience_ms = patience_ms or (timeout_ms or _PATIENCE_MS) + _GRACE_MS
        self.identity: ProducerIdentity = NOBODY
        """The identity of the open transaction, or of the next one."""
        self.version: Literal[1, 2] = 1
        """The transaction protocol (KIP-890), as of when the id was taken or recovered."""
        self.state = State.UNINITIALISED
        self._client, self._outdated = client, outdated
        self._coordinator = TransactionCoordinator(client, transactional_id)
        self._owner = IdOwner(
            self._coordinator, lambda: self.patience_ms, client.settings.request_timeout_ms
        )
        self._markers = Markers(self._coordinator, was_committed)
        self._lock = surroundings.RLock()
        self._epoch_used = False
        self._given_at = Instant.now()
        self._timeouts = RequestedTimeouts(self.timeout_ms)
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        # since when the coordinator may know of the transaction
        self._opened_at: Instant | None = None
        # requests to take the id over that got no answer, and may still arrive
        self._lost_takeovers = 0

    def take_over(self) -> ProducerIdentity:
        """Take the transactional id from whoever holds it, whose open transaction is aborted
        first. Once per process, before the ledger is read.

        :raises TransactionTimeoutTooLarge: naming both settings.
        :raises AccessDenied: …
        :raises BrokerUnreachable: no answer within ``patience_ms``; may be called again.
        """
        with self._step(Step.TAKE_OVER):
            self.version = self._client.transaction_version()
            try:
                for _ in range(_TAKEOVER_ATTEMPTS):
                    self._take_id()
                    if self._still_owns_id():
                        return self.identity
            except BaseException:
                self.state = State.UNINITIALISED
                raise
            self.state = State.UNINITIALISED
            raise BrokerUnreachable(
                f"transactional id {self.transactional_id} was taken away {_TAKEOVER_ATTEMPTS} "
                "times before anything was written: by requests of this run that had gone "
                "unanswered, or by other copies of the pipeline",
                next_step="start again when the transaction coordinator answers in time; if "
                "another copy of the pipeline is running, stop one of the two",
            )

    def _take_id(self) -> None:
        def lost() -> None:
            self._lost_takeovers += 1

        asked_ms = self._timeouts.takeover_ms(self.timeout_ms)
        try:
            identity = self._coordinator.init_producer_id(
                NOBODY, asked_ms, self._deadline(), on_lost=lost
            )
        except Refused as refused:
            self._lower_timeout_or_raise(refused)
            self._take_id()
            return
        self._adopt(identity, asked_ms)

    def _still_owns_id(self) -> bool:
        # 1. a takeover gets no answer and is given up, 2. the next one is answered, 3. a
        # coordinator that was frozen carries out the first: it fences us, for an owner that nobody
        # is. So the id is claimed once more under our own identity, behind what waited with it.
        # That claim is refused if anything came in between, and cannot fence anybody (KIP-360);
        # then the id is taken anew, as if we had been started later. Nothing is read or written
        # before.
        if not self._lost_takeovers:
            return True
        try:
            self._claim_next_epoch(self.identity)
        except Fenced:
            return False
        return True

    def begin(self, first: TopicPartition | None = None) -> ProducerIdentity:
        """Open a transaction under an epoch that no transaction had before; return the identity
        for its writers.

        :param first: the ledger's partition, of which the last marker is looked for before.
        :raises Fenced: a newer owner.
        :raises BrokerUnreachable: no answer; may be called again.
        """
        with self._step(Step.BEGIN):
            self._markers.begin(self.identity, first, self._deadline())
            # KIP-890: a late Produce or EndTxn of the same epoch would land in this transaction.
            # Version 2 got a new epoch with the answer to the last EndTxn; under version 1 we
            # raise it by InitProducerId with our own identity, which can be fenced and never
            # fences (KIP-360). So we do when the coordinator has forgotten us; then under a new
            # producer id.
            if self._epoch_used or self._is_forgotten():
                self._require_no_newer_owner()
                self._claim_next_epoch(self.identity)
            self._added.clear()
            self._groups.clear()
            self._epoch_used = True
            self._opened_at = None
            self.state = State.OPEN
            return self.identity

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Let ``partitions`` take part, before the first record of each; repeating costs nothing.
        Version 2 has no such request: the first ``Produce`` adds the partition.
        :raises TransactionTimedOut, Fenced, AccessDenied, TopicMissing, BatchFailed: …"""
        with self._step(Step.ADD_PARTITIONS):
            missing = set(partitions) - self._added
            if not missing:
                return
            self._opened_at = self._opened_at or Instant.now()
            self._markers.before_joining(missing, self.identity, self._deadline())
            # Noted before it is asked: without an answer they may be part of it, and an abort must
            # end that.
            self._added |= missing
            if self.version == 1:
                with self._refusals_explained():
                    self._coordinator.add_partitions(self.identity, missing, self._deadline())

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        """Make ``offsets`` of a consumer group part of the transaction: visible with its commit,
        or never.

        ``offsets`` are positions to go on from: one above the last offset that was read.
        :raises TransactionTimedOut, Fenced, AccessDenied: the last names the group.
        """
        with self._step(Step.COMMIT_OFFSETS), self._refusals_explained():
            if not offsets:
                return
            self._opened_at = self._opened_at or Instant.now()
            if self.version == 1 and group not in self._groups:
                self._groups.add(group)
                self._coordinator.add_offsets(self.identity, group, self._deadline())
            self._coordinator.commit_offsets(
                self.identity, group, offsets, metadata, self._deadline(), version=self.version
            )

    def commit(self) -> None:
        """Send ``EndTxn(commit)``: the one point at which everything becomes visible together.

        Asked again with the same epoch while there is no answer.
        :raises CommitInDoubt: no answer within ``patience_ms``, or one that leaves open what
            became of an earlier request. :meth:`recover`, then ask the ledger.
        :raises TransactionTimedOut: the coordinator had aborted it; nothing became visible.
        :raises BatchFailed: refused; :meth:`abort`, which ends what may still be open.
        :raises Fenced: a newer owner.
        """
        with self._step(Step.COMMIT):
            if self.version == 1 and not self._added and not self._groups:
                # Nothing took part, so the coordinator knows of no transaction.
                self.state = State.READY
                return
            self.state = State.ENDING
            # 1. EndTxn(commit) is carried out, 2. its answer is lost. An abort now would be
            # refused, or end the next transaction: so only the same commit is sent again, under
            # the same epoch.
            try:
                identity = self._coordinator.end(
                    self.identity, commit=True, deadline=self._deadline(), version=self.version
                )
            except Refused as refused:
                self._raise_commit_refusal(refused)
            except (Unanswered, OncewardError) as error:
                # We may not even connect any more; an earlier request may have arrived.
                self._raise_in_doubt(error)
            except BaseException:
                self.state = State.IN_DOUBT
                raise
            self._ended(identity, commit=True)

    def end_what_hangs(self, ledger: TopicPartition) -> None:
        """Write the marker that the ledger lacks, before :meth:`take_over` or :meth:`recover`."""
        with self._lock:
            self._markers.before_claim(ledger, self._deadline())

    def end_what_was_aborted(self, ledger: TopicPartition) -> None:
        """Write the abort marker that the ledger lacks, after :meth:`take_over`."""
        with self._lock:
            self._markers.after_claim(ledger, self.identity, self._deadline())

    def abort(self) -> None:
        """Send ``EndTxn(abort)``: nothing of the transaction ever becomes visible. Does nothing if
        none is open.

        :raises Fenced: a newer owner.
        :raises BrokerUnreachable: no answer; :meth:`recover` before going on.
        """
        with self._step(Step.ABORT):
            if self.state is State.TIMED_OUT:
                self._recover()
            elif self.version == 1 and not self._added and not self._groups:
                self.state = State.READY
            elif self.state is not State.READY:
                self._abort_open()

    def recover(self) -> None:
        """Go on after :class:`CommitInDoubt` or :class:`TransactionTimedOut` with the next epoch,
        if still ours. When it returns no transaction is open, and what the last one came to stands
        in the ledger.

        :raises Fenced: a newer owner.
        :raises BrokerUnreachable: no answer; may be called again.
        """
        with self._step(Step.RECOVER):
            self._recover()

    def explain(self, refusal: Fenced) -> OncewardError:
        """Return what a task's :class:`Fenced` really means, for the driver to raise in its place.
        A task sees that its epoch was refused; whether by a newer owner or by the transaction
        timeout, only the coordinator knows. The state moves on accordingly."""
        with self._lock:
            # Timed out: another task's first partition has found it out; this task met the same.
            if self.state in (State.OPEN, State.TIMED_OUT):
                return self._fenced_or_timed_out(refusal)
            return refusal

    @property
    def open_for_ms(self) -> float:
        """Milliseconds for which the coordinator may have known of the open transaction: since its
        first partition or offsets were announced to :meth:`add_partitions` or
        :meth:`commit_offsets`. 0 when it cannot know of one."""
        opened_at = self._opened_at
        return 0.0 if opened_at is None or self.state is not State.OPEN else opened_at.age_ms()

    def _abort_open(self) -> None:
        self.state = State.ENDING
        try:
            identity = self._coordinator.end(
                self.identity, commit=False, deadline=self._deadline(), version=self.version
            )
        except Refused as refused:
            if refused.rule.meaning is Meaning.FENCED:
                error = self._fenced_or_timed_out(refused.as_error())
                if isinstance(error, Fenced):
                    raise error from refused
                self._recover()
                return
            if refused.code == _TRANSACTION_ABORTABLE:
                # It was not carried out: whatever is open still is
                self.state = State.IN_DOUBT
                self._recover()
                return
            if refused.rule.meaning is Meaning.ABORT:
                # Nothing is open under this epoch (INVALID_TXN_STATE), or the coordinator has
                # forgotten the id: what was asked for holds. The next begin() takes a fresh epoch.
                self._markers.ended(self.identity, commit=False)
                self.state = State.READY
                return
            self.state = State.IN_DOUBT
            raise
        except Unanswered as unanswered:
            self.state = State.IN_DOUBT
            raise unanswered.as_error("recover() before the next transaction") from None
        except BaseException:
            self.state = State.IN_DOUBT
            raise
        self._ended(identity, commit=False)

    def _raise_commit_refusal(self, refused: Refused) -> NoReturn:
        # INVALID_TXN_STATE is how 4.x answers a commit after it has aborted the transaction for
        # its age; so both that and fencing are looked into.
        suspicious = refused.rule.meaning is Meaning.FENCED or refused.code == _INVALID_TXN_STATE
        error = self._fenced_or_timed_out(refused.as_error()) if suspicious else None
        if isinstance(error, Fenced):
            raise error from refused
        if refused.attempts > 1:
            self._raise_in_doubt(refused)
        if error is not None and self.state is State.TIMED_OUT:
            raise error from refused
        self.state = State.OPEN
        raise BatchFailed(
            str(refused),
            next_step="abort() and run the batch again",
            details={"code": refused.code},
        ) from refused

    def _raise_in_doubt(self, outcome: Refused | Unanswered | OncewardError) -> NoReturn:
        self.state = State.IN_DOUBT
        raise CommitInDoubt(
            f"whether {self.identity} of {self.transactional_id} is committed is not known: "
            f"{outcome}",
            next_step="recover(), then read the ledger",
            details={"transactional_id": self.transactional_id, "identity": list(self.identity)},
        ) from outcome

    def _ended(self, identity: ProducerIdentity, *, commit: bool) -> None:
        self._markers.ended(self.identity, commit=commit)
        # version 2: the next epoch, or at rollover a new producer id
        if identity != self.identity:
            self._adopt(identity, None)
        self.state = State.READY

    def _adopt(self, identity: ProducerIdentity, asked_ms: int | None) -> None:
        self._timeouts.granted(asked_ms)
        self.identity = identity
        self._given_at = Instant.now()
        self._epoch_used = False
        self.state = State.READY

    def _claim_next_epoch(self, ours: ProducerIdentity) -> None:
        timeout_ms = self._timeouts.next_claim_ms(self.timeout_ms)
        try:
            identity = self._coordinator.init_producer_id(ours, timeout_ms, self._deadline())
        except Refused as refused:
            if refused.attempts == 1:
                self._timeouts.unanswered_ms.remove(timeout_ms)
            if refused.rule.meaning is Meaning.FENCED:
                granted = self._owner.granted_to_us(ours, self._timeouts.unanswered_ms)
                # Another copy may have asked for the same timeout, and has written then.
                if granted is None or self._outdated():
                    raise self._fenced(refused) from refused
                log.debug(
                    "%s: %s was given to us, and its answer lost", self.transactional_id, granted
                )
                # It is nobody's as long as this succeeds, and this is refused if somebody comes
                # first.
                self._claim_next_epoch(granted)
                return
            self._lower_timeout_or_raise(refused)
            self._claim_next_epoch(ours)
            return
        self._adopt(identity, timeout_ms)

    def _lower_timeout_or_raise(self, refused: Refused) -> None:
        """Handle a refused ``InitProducerId``. If a timeout that nobody has set was too long, take
        the longest that the brokers allow, from now on; they may be restarted with a lower
        transaction.max.timeout.ms while a pipeline runs. Else raise what the refusal means."""
        if refused.code != _INVALID_TRANSACTION_TIMEOUT:
            raise refused
        if self._may_be_shorter:
            limit, _ = brokers_limit(self._client)
            allowed_ms = min(int(limit), LONGEST_TRANSACTION_MS) if limit else _SAFE_TIMEOUT_MS
            if allowed_ms < self.timeout_ms:
                self.timeout_ms = allowed_ms
                return
        raise timeout_too_large(self._client, self.timeout_ms) from refused

    def _is_forgotten(self) -> bool:
        """Return, after a pause, whether the id has expired, which the first ``Produce`` would
        meet."""
        return self._given_at.age_ms() >= _IDLE_MS and self._owner.is_unknown()

    def _recover(self) -> None:
        version, before = self._client.transaction_version(), self.state
        self._require_no_newer_owner()
        try:
            self._claim_next_epoch(self.identity)
        except Fenced:
            # Version 1 answers so even if the abort was made for our own sake: the coordinator
            # ended the transaction under the next epoch, which is nobody's as long as the claim
            # succeeds. See wire.transactions.fencing.
            # FENCED is for good, and whether it was a takeover is not known yet.
            self.state = before
            for aborted in self._owner.aborted_for_us(self._ours()):
                if self._outdated():
                    continue
                with suppress(Fenced):
                    self._claim_next_epoch(aborted)
                    break
                self.state = before
            else:
                self.state = State.FENCED
                raise
        self.version = version

    def _require_no_newer_owner(self) -> None:
        """Check before ``InitProducerId`` as ourselves. :raises Fenced: somebody else is newer."""
        if (newer := self._owner.newer_owner(self.identity, self._outdated)) is not None:
            raise self._fenced(newer) from newer

    def _fenced_or_timed_out(self, refusal: OncewardError) -> OncewardError:
        # The coordinator bumps the epoch for a takeover, for a transaction timeout, and for a
        # request of an older copy that crossed ours: a producer cannot distinguish them. So it is
        # asked (DescribeTransactions, KIP-664) before we believe that somebody newer is there.
        open_for_ms = 0.0 if self._opened_at is None else self._opened_at.age_ms()
        try:
            why = self._owner.refusal_reason(self._ours())
        except BrokerUnreachable:
            # Nobody to ask: recover() will find out, and is refused if it was a takeover.
            why = Fencing.NOT_KNOWN
        too_young = open_for_ms < shortest_timeout(self.timeout_ms)
        if why is Fencing.ABORTED_FOR_US and too_young:
            why = self._owner.wait_for_takeover(self._ours())
        if why is Fencing.TAKEN_OVER:
            return self._fenced(refusal)
        aborted = why is Fencing.ABORTED_FOR_US
        if not aborted and isinstance(refusal, BatchFailed):
            return refusal
        self.state = State.TIMED_OUT
        if not aborted and too_young:
            return refused_early(
                self.transactional_id, self.identity, self.timeout_ms, refusal, why
            )
        return timed_out(
            self.transactional_id,
            self.identity,
            self._client,
            self.timeout_ms,
            open_for_ms,
            by_an_older_copy=too_young,
        )

    def _ours(self) -> OwnTransaction:
        has_parts = bool(self._added or self._groups)
        took_part, twice = self.version == 2 or has_parts, self.version == 2 and has_parts
        return OwnTransaction(self.identity, took_part, self._timeouts.ours_ms, twice)

    def _fenced(self, cause: BaseException) -> Fenced:
        self.state = State.FENCED
        return taken_over(self.transactional_id, self.identity, cause)

    def _deadline(self) -> Deadline:
        return Deadline(self.patience_ms)

    @contextmanager
    def _step(self, step: Step) -> Iterator[None]:
        """Take turns with other threads, refuse what the state does not allow, and raise outcomes
        of requests as our errors."""
        with self._lock, raised_as_errors():
            if self.state is State.FENCED:
                raise self._fenced(RuntimeError(f"{step.value}() after fencing"))
            if step not in TRANSITIONS[self.state]:
                raise OncewardError(
                    f"{step.value}() is not possible while {self.transactional_id} is "
                    f"{self.state.name}: {self.state.value}",
                    next_step="allowed now: "
                    + (", ".join(s.value for s in TRANSITIONS[self.state]) or "nothing"),
                )
            yield

    @contextmanager
    def _refusals_explained(self) -> Iterator[None]:
        """Find out what a refusal inside the open transaction means."""
        try:
            yield
        except Refused as refused:
            if refused.rule.meaning is Meaning.FENCED or refused.code == _INVALID_TXN_STATE:
                raise self._fenced_or_timed_out(refused.as_error()) from refused
            raise
