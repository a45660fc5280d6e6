"""One transactional id and its transactions, one after the other: the driver's side of a batch.

Runs in the driver. Called by the Kafka sink. The identity that it hands out goes to the tasks,
whose appends (``kafka.wire.appends.producer``) join the open transaction; this class opens and
ends it, and knows who holds the id.

Three rules, each against a way to lose or repeat a batch:

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
from contextlib import contextmanager
from typing import Literal, NoReturn

from onceward import surroundings
from onceward.errors import (
    BatchFailed,
    BrokerUnreachable,
    CommitInDoubt,
    Fenced,
    OncewardError,
    TransactionTimedOut,
    TransactionTimeoutTooLarge,
)
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused, Unanswered, raise_as_error
from onceward.kafka.wire.deadline import Deadline, Instant
from onceward.kafka.wire.error_table import Meaning
from onceward.kafka.wire.options.settings import LONGEST_TRANSACTION_MS
from onceward.kafka.wire.transactions.coordinator import NOBODY, TransactionCoordinator
from onceward.kafka.wire.transactions.fencing import AskedFor, Fencing, Ours, shortest_timeout
from onceward.kafka.wire.transactions.holder import Holder
from onceward.kafka.wire.transactions.states import TRANSITIONS, State, Step

log = logging.getLogger(__name__)

_GRACE_MS = 10_000
_PATIENCE_MS = 60_000
# Kafka's own default of transaction.timeout.ms, which any broker can be expected to allow
_SAFE_TIMEOUT_MS = 60_000
_IDLE_MS = 10_000  # after a pause of that length one more request is not felt
_MOMENT_MS = 5_000  # for what an error would like to say, and can do without
_TAKEOVER_ATTEMPTS = 5
_INVALID_TXN_STATE = 48
_INVALID_TRANSACTION_TIMEOUT = 50
_TRANSACTION_ABORTABLE = 120


LONGER_OR_SMALLER = (
    "raise transaction.timeout.ms (options= of the sink), up to the brokers' "
    "transaction.max.timeout.ms: this batch "
    "stands in Spark's log and keeps its size; max_offsets_per_trigger makes later ones smaller"
)
"""What to do about a batch that is too large for its transaction."""


class Transaction:
    """See the module. Thread safe; steps of different threads take turns.

    :param timeout_ms: ``transaction.timeout.ms``: the coordinator aborts what is open longer.
        None: 15 minutes, or what the brokers allow if that is less.
    :param patience_ms: how long a step is asked again before it fails. The default outlives the
        transaction timeout, after which the coordinator has settled everything that it still can;
        without one it is 70 s.
    :param outdated: has somebody newer written since we did? Asked where the coordinator cannot
        tell: before a claim of an id that it has forgotten (``transactional.id.expiration.ms``),
        or of what was given to us or to somebody.
    """

    def __init__(
        self,
        client: KafkaClient,
        transactional_id: str,
        timeout_ms: int | None,
        *,
        patience_ms: int | None = None,
        outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms or LONGEST_TRANSACTION_MS
        self._may_be_shorter = timeout_ms is None
        self.patience_ms = patience_ms or (timeout_ms or _PATIENCE_MS) + _GRACE_MS
        self.identity: ProducerIdentity = NOBODY
        """The identity of the open transaction, or of the next one."""
        self.version: Literal[1, 2] = 1
        """The transaction protocol in use (KIP-890), as the cluster had it when the id was taken
        or recovered.
        """
        self.state = State.UNINITIALISED
        self._client, self._outdated = client, outdated
        self._coordinator = TransactionCoordinator(client, transactional_id)
        self._holder = Holder(
            self._coordinator, lambda: self.patience_ms, client.settings.request_timeout_ms
        )
        self._lock = surroundings.RLock()
        self._epoch_used = False
        self._given_at = Instant.now()
        self._asked_for = AskedFor(self.timeout_ms)
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._opened_at: Instant | None = (
            None  # since when the coordinator may know of the transaction
        )
        self._adrift = 0  # requests to take the id over that got no answer, and may still arrive

    def take_over(self) -> ProducerIdentity:
        """Take the transactional id from whoever holds it; their open transaction is aborted
        first.

        Once per process, before the ledger is read.

        :raises TransactionTimeoutTooLarge: naming both settings. :raises AccessDenied: …
        :raises BrokerUnreachable: no answer within ``patience_ms``; may be called again.
        """
        with self._step(Step.TAKE_OVER):
            self.version = self._client.transaction_version()
            try:
                for _ in range(_TAKEOVER_ATTEMPTS):
                    self._take_it()
                    if self._kept():
                        return self.identity
            except BaseException:
                self.state = State.UNINITIALISED
                raise
            self.state = State.UNINITIALISED
            raise BrokerUnreachable(
                f"transactional id {self.transactional_id} was taken away {_TAKEOVER_ATTEMPTS} "
                f"times before anything "
                "was written: by requests of this run that had gone unanswered, or by other "
                "copies of the pipeline",
                next_step="start again when the transaction coordinator answers in time; if "
                "another copy of the "
                "pipeline is running, stop one of the two",
            )

    def _take_it(self) -> None:
        def lost() -> None:
            self._adrift += 1

        try:
            identity = self._coordinator.init_producer_id(
                NOBODY, self.timeout_ms, self._deadline(), on_lost=lost
            )
        except Refused as refused:
            if _allows_less(self, refused):
                self._take_it()
                return
            _raise_init_refusal(refused, self._client, self.timeout_ms)
        except Unanswered as unanswered:
            raise_as_error(unanswered)
        self._go_on_as(identity, self.timeout_ms)

    def _kept(self) -> bool:
        """Do we still hold what we have just been given?

        A request that was given up may still arrive. A coordinator that was frozen finds it beside
        the one that it answers, carries out both in any order, and the late one fences us: an
        owner that nobody is. So where one is adrift, the id is claimed once more under our own
        identity, behind what waited with it. That claim is refused if anything came in between,
        and cannot fence anybody (KIP-360). Then the id is taken anew: from ourselves, or from a
        copy that has been started later, exactly as if we had been started later still. Nothing is
        read or written before, so that this is always safe.
        """
        if not self._adrift:
            return True
        try:
            self._claim_next_epoch(self.identity)
        except Fenced:
            return False
        return True

    def begin(self) -> ProducerIdentity:
        """Open a transaction, under an epoch that no transaction had before; the identity for its
        writers.

        Version 2: the epoch came with the answer to the last ``EndTxn``. Version 1:
        ``InitProducerId`` with our own identity raises it. So it does when the coordinator has
        forgotten us meanwhile; then under a new producer id.

        :raises Fenced: a newer owner. :raises BrokerUnreachable: no answer; may be called again.
        """
        with self._step(Step.BEGIN):
            if self._epoch_used or self._forgotten():
                self._leave_a_newer_owner_alone()
                self._claim_next_epoch(self.identity)
            self._added.clear()
            self._groups.clear()
            self._epoch_used = True
            self._opened_at = None
            self.state = State.OPEN
            return self.identity

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Let ``partitions`` take part. Must come before the first record of each; repeating costs
        nothing.

        Version 2 has no such request: the first ``Produce`` adds the partition.

        :raises TransactionTimedOut: … :raises Fenced: … :raises AccessDenied: … :raises
            TopicMissing: …
        """
        with self._step(Step.ADD_PARTITIONS):
            self._opened_at = self._opened_at or Instant.now()
            missing = set(partitions) - self._added
            if missing and self.version == 1:
                with self._refusals_explained():
                    # Noted before it is asked: without an answer they may be part of it, and an
                    # abort must end that.
                    self._added |= missing
                    self._coordinator.add_partitions(self.identity, missing, self._deadline())

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        """Make ``offsets`` of a consumer group part of the transaction: visible with its commit,
        or never.

        ``offsets`` are positions to go on from: one above the last offset that was read.

        :raises TransactionTimedOut: … :raises Fenced: … :raises AccessDenied: naming the group.
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

    def commit(self, *, in_doubt_after_ms: int | None = None) -> None:
        """``EndTxn(commit)``: the one point at which everything becomes visible together.

        Asked again with the same epoch while there is no answer.

        :raises CommitInDoubt: no answer within ``in_doubt_after_ms`` (default ``patience_ms``), or
            one that leaves open what became of an earlier request. :meth:`recover`, then ask the
            ledger.
        :raises TransactionTimedOut: the coordinator had aborted it; nothing became visible.
        :raises BatchFailed: refused; :meth:`abort`, which ends what may still be open.
        :raises Fenced: a newer owner.
        """
        with self._step(Step.COMMIT):
            if self.version == 1 and not self._added and not self._groups:
                self.state = (
                    State.READY
                )  # nothing took part, so the coordinator knows of no transaction
                return
            self.state = State.ENDING
            try:
                identity = self._coordinator.end(
                    self.identity,
                    commit=True,
                    deadline=self._deadline(in_doubt_after_ms),
                    version=self.version,
                )
            except Refused as refused:
                self._raise_commit_refusal(refused)
            except Unanswered as unanswered:
                self._raise_in_doubt(unanswered)
            except (
                OncewardError
            ) as error:  # we may not even connect any more; an earlier request may have arrived
                self._raise_in_doubt(error)
            except BaseException:
                self.state = State.IN_DOUBT
                raise
            self._ended(identity)

    def abort(self) -> None:
        """``EndTxn(abort)``: nothing of the transaction ever becomes visible. Does nothing if none
        is open.

        :raises Fenced: a newer owner. :raises BrokerUnreachable: no answer; :meth:`recover` before
            going on.
        """
        with self._step(Step.ABORT):
            if self.state is State.TIMED_OUT:
                self._recover()
            elif self.version == 1 and not self._added and not self._groups:
                self.state = State.READY
            elif self.state is not State.READY:
                self._abort_open()

    def recover(self) -> None:
        """After :class:`CommitInDoubt` or :class:`TransactionTimedOut`: go on with the next epoch,
        if still ours.

        When it returns no transaction is open, and what the last one came to stands in the ledger.

        :raises Fenced: a newer owner. :raises BrokerUnreachable: no answer; may be called again.
        """
        with self._step(Step.RECOVER):
            self._recover()

    def explain(self, refusal: Fenced) -> OncewardError:
        """What a task's :class:`Fenced` really means, for the driver to raise in its place.

        A task sees that its epoch was refused; whether by a newer owner or by the transaction
        timeout, only the coordinator knows. The state moves on accordingly.
        """
        with self._lock:
            # Timed out: another task's first partition has found that out already; this task met
            # the same.
            if self.state not in (State.OPEN, State.TIMED_OUT):
                return refusal
            return self._fenced_or_timed_out(refusal)

    @property
    def open_for_ms(self) -> float:
        """For how long the coordinator may have known of the open transaction: since its first
        partition or offsets were announced to :meth:`add_partitions` or :meth:`commit_offsets`. 0
        when it cannot know of one.
        """
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
                self.state = State.IN_DOUBT  # it was not carried out: whatever is open still is
                self._recover()
                return
            if refused.rule.meaning is Meaning.ABORT:
                # Nothing is open under this epoch (INVALID_TXN_STATE), or the coordinator has
                # forgotten the id: what was asked for holds. The next begin() takes a fresh epoch.
                self.state = State.READY
                return
            self.state = State.IN_DOUBT
            raise_as_error(refused)
        except Unanswered as unanswered:
            self.state = State.IN_DOUBT
            raise_as_error(unanswered, "recover() before the next transaction")
        except BaseException:
            self.state = State.IN_DOUBT
            raise
        self._ended(identity)

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

    def _ended(self, identity: ProducerIdentity) -> None:
        if (
            identity != self.identity
        ):  # version 2: the next epoch, or at rollover the next producer id
            self._go_on_as(identity, None)
        self.state = State.READY

    def _go_on_as(self, identity: ProducerIdentity, asked_ms: int | None) -> None:
        self._asked_for.given(asked_ms)
        self.identity = identity
        self._given_at = Instant.now()
        self._epoch_used = False
        self.state = State.READY

    def _claim_next_epoch(self, ours: ProducerIdentity) -> None:
        timeout_ms = self._asked_for.by_a_claim(self.timeout_ms)
        try:
            identity = self._coordinator.init_producer_id(ours, timeout_ms, self._deadline())
        except Refused as refused:
            if refused.attempts == 1:
                self._asked_for.unanswered_ms.remove(timeout_ms)
            if refused.rule.meaning is Meaning.FENCED:
                given = self._holder.gave_us(ours, self._asked_for.unanswered_ms)
                if (
                    given is None or self._outdated()
                ):  # another copy may have asked for the same timeout
                    raise self._fenced(refused) from refused
                log.info(
                    "%s: %s was given to us, and its answer lost", self.transactional_id, given
                )
                self._claim_next_epoch(
                    given
                )  # nobody's as long as this succeeds, and refused if somebody comes first
                return
            if _allows_less(self, refused):
                self._claim_next_epoch(ours)
                return
            _raise_init_refusal(refused, self._client, self.timeout_ms)
        except Unanswered as unanswered:
            raise_as_error(unanswered)
        self._go_on_as(identity, timeout_ms)

    def _forgotten(self) -> bool:
        """Has the id expired in a pause, and our next epoch with it? The first ``Produce`` would
        find out, and fail.
        """
        return self._given_at.age_ms() >= _IDLE_MS and self._holder.is_forgotten()

    def _recover(self) -> None:
        version, before = self._client.transaction_version(), self.state
        self._leave_a_newer_owner_alone()
        try:
            self._claim_next_epoch(self.identity)
        except Fenced as fenced:
            # Version 1 answers so even if the abort was made for our own sake: the coordinator
            # ended the transaction under the next epoch, which is nobody's as long as the claim
            # succeeds. See wire.transactions.fencing.
            self.state = (
                before  # FENCED is for good, and whether it was a takeover is not known yet
            )
            if self._holder.why_refused(self._ours()) is not Fencing.ABORTED_FOR_US:
                self.state = State.FENCED
                raise
            try:
                self._claim_next_epoch(self.identity._replace(epoch=self.identity.epoch + 1))
            except Fenced:
                raise fenced from None
        self.version = version

    def _leave_a_newer_owner_alone(self) -> None:
        """Before ``InitProducerId`` with our own identity. :raises Fenced: somebody else has the
        last word.
        """
        if (newer := self._holder.newer_than(self.identity, self._outdated)) is not None:
            raise self._fenced(newer) from newer

    def _fenced_or_timed_out(self, refusal: OncewardError) -> OncewardError:
        open_for_ms = 0.0 if self._opened_at is None else self._opened_at.age_ms()
        try:
            why = self._holder.why_refused(self._ours())
        except BrokerUnreachable:
            why = (
                Fencing.NOT_KNOWN
            )  # nobody to ask: recover() will find out, and is refused if it was a takeover
        too_young = open_for_ms < shortest_timeout(self.timeout_ms)
        if why is Fencing.ABORTED_FOR_US and too_young:
            why = self._holder.wait_for_a_newer(self._ours())
        if why is Fencing.TAKEN_OVER:
            return self._fenced(refusal)
        aborted = why is Fencing.ABORTED_FOR_US
        if not aborted and isinstance(refusal, BatchFailed):
            return refusal
        self.state = State.TIMED_OUT
        if not aborted and too_young:
            return _refused_early(self, refusal, why)
        return _timed_out(self, self._client, open_for_ms, by_an_older_copy=too_young)

    def _ours(self) -> Ours:
        took_part = self.version == 2 or bool(self._added or self._groups)
        return Ours(self.identity, took_part, self._asked_for.ours_ms)

    def _fenced(self, cause: BaseException) -> Fenced:
        self.state = State.FENCED
        # Then a late request of our own start may have been it, which nobody can tell from a newer
        # copy.
        return _taken_over(self, cause, perhaps_by_ourselves=bool(self._adrift))

    def _deadline(self, timeout_ms: int | None = None) -> Deadline:
        return Deadline(self.patience_ms if timeout_ms is None else timeout_ms)

    @contextmanager
    def _step(self, step: Step) -> Iterator[None]:
        """Take turns with other threads, and refuse what the state does not allow."""
        with self._lock:
            if self.state is State.FENCED:
                raise self._fenced(RuntimeError(f"{step.value}() after fencing"))
            if step not in TRANSITIONS[self.state]:
                raise OncewardError(
                    f"{step.value}() is not possible while {self.transactional_id} is "
                    f"{self.state.name}: "
                    f"{self.state.value}",
                    next_step=f"allowed now: "
                    f"{', '.join(s.value for s in TRANSITIONS[self.state]) or 'nothing'}",
                )
            yield

    @contextmanager
    def _refusals_explained(self) -> Iterator[None]:
        """Outcomes of a request inside the open transaction as our errors."""
        try:
            yield
        except Refused as refused:
            if refused.rule.meaning is Meaning.FENCED or refused.code == _INVALID_TXN_STATE:
                raise self._fenced_or_timed_out(refused.as_error()) from refused
            raise_as_error(refused)
        except Unanswered as unanswered:
            raise_as_error(unanswered)


def _taken_over(
    transaction: Transaction, cause: BaseException, *, perhaps_by_ourselves: bool
) -> Fenced:
    alone = "; if no other copy was started, start this one again" if perhaps_by_ourselves else ""
    return Fenced(
        f"a newer copy of pipeline {transaction.transactional_id} has taken over from "
        f"{transaction.identity} ({cause})",
        next_step=f"leave this copy stopped; if two are running by mistake, give one another "
        f"pipeline_id{alone}",
        details={
            "transactional_id": transaction.transactional_id,
            "identity": list(transaction.identity),
        },
    )


def both_limits(client: KafkaClient, timeout_ms: int) -> str:
    """The sink's limit and the brokers', which is how far the first may be raised; asks a
    broker.
    """
    limit = _broker_limit(client, _MOMENT_MS)
    theirs = f"={limit}" if limit else " may not be read (DescribeConfigs on the cluster)"
    return f"transaction.timeout.ms={timeout_ms}; the brokers' transaction.max.timeout.ms{theirs}"


def _timed_out(
    transaction: Transaction, client: KafkaClient, open_for_ms: float, *, by_an_older_copy: bool
) -> TransactionTimedOut:
    cause, advice = both_limits(client, transaction.timeout_ms), LONGER_OR_SMALLER
    if by_an_older_copy:
        cause = "at the request of an older copy of this pipeline"
        advice = "look for a copy that should not be running"
    return TransactionTimedOut(
        f"the coordinator aborted {transaction.identity} of {transaction.transactional_id}, which "
        f"had been open for "
        f"{open_for_ms:.0f} ms ({cause})",
        next_step=f"the batch runs again; if it repeats, {advice}",
        details={
            "transactional_id": transaction.transactional_id,
            "transaction.timeout.ms": transaction.timeout_ms,
            "open_for_ms": round(open_for_ms),
        },
    )


def _refused_early(transaction: Transaction, refusal: OncewardError, why: Fencing) -> BatchFailed:
    return BatchFailed(
        f"{transaction.identity} of {transaction.transactional_id} was refused before "
        f"transaction.timeout.ms="
        f"{transaction.timeout_ms} was over, and whether a newer copy has taken over is not "
        f"known: {why.value} "
        f"({refusal.message})",
        next_step="the batch runs again, and is refused for good if a newer copy has taken over; "
        "if it repeats, see "
        "that the brokers answer, the transaction coordinator most of all",
        details={
            "transactional_id": transaction.transactional_id,
            "identity": list(transaction.identity),
        },
    )


def _raise_init_refusal(refused: Refused, client: KafkaClient, timeout_ms: int) -> NoReturn:
    if refused.code != _INVALID_TRANSACTION_TIMEOUT:
        raise_as_error(refused)
    limit = _broker_limit(client)
    raise TransactionTimeoutTooLarge(
        f"transaction.timeout.ms={timeout_ms} is above the broker's transaction.max.timeout.ms"
        + (f"={limit}" if limit else ", which may not be read (DescribeConfigs on the cluster)"),
        next_step=f"lower transaction.timeout.ms (options= of the "
        f"sink){f' to at most {limit}' if limit else ''}, or "
        "raise transaction.max.timeout.ms on the brokers; no transaction was begun, so that "
        "nothing has to be undone",
    ) from refused


def _allows_less(transaction: Transaction, refused: Refused) -> bool:
    """Was a timeout that nobody has set too long? Then ours is shorter from now on: brokers may be
    restarted with a lower transaction.max.timeout.ms while a pipeline runs.
    """
    if refused.code != _INVALID_TRANSACTION_TIMEOUT or not transaction._may_be_shorter:
        return False
    allowed_ms = _longest_allowed_ms(transaction._client)
    if allowed_ms >= transaction.timeout_ms:
        return False
    transaction.timeout_ms = allowed_ms
    return True


def _longest_allowed_ms(client: KafkaClient) -> int:
    limit = _broker_limit(client)
    return min(int(limit), LONGEST_TRANSACTION_MS) if limit else _SAFE_TIMEOUT_MS


def _broker_limit(client: KafkaClient, timeout_ms: int | None = None) -> str | None:
    """``transaction.max.timeout.ms``, or None without the right to describe the brokers'
    configuration.
    """
    try:
        return client.broker_config(timeout_ms=timeout_ms).get("transaction.max.timeout.ms")
    except OncewardError:
        return None
