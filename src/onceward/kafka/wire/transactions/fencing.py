"""Fenced, or only timed out? The broker answers both with the same codes; this tells them apart.

No I/O. Called by ``kafka.wire.transactions.transaction`` with what ``DescribeTransactions`` says.

When a transaction is open longer than ``transaction.timeout.ms``, the coordinator raises the epoch
by one and aborts (``TransactionCoordinator.abortTimedOutTransactions``,
``TransactionMetadata.prepareFenceProducerEpoch``; checked on 3.9.1 and 4.3.1); by two on Kafka
4.0.0 (KAFKA-19367). A takeover of an open transaction begins in the same way, but then takes a
further epoch for itself. So an epoch after ours together with an abort is nobody's yet: claiming
it with ``InitProducerId`` and that identity is refused as soon as somebody newer has come
(KIP-360), and can never fence them.

Where nothing of ours was open, though, a takeover has that very epoch, and a transaction that it
has aborted itself looks the same. What it has asked for tells it: the coordinator keeps the
timeout of the last ``InitProducerId`` that it has carried out
(``TransactionMetadata.prepareIncrementProducerEpoch``), and an abort changes nothing about it. So
hardly any two requests of ours ask for the same.

Errors of a transaction, with the settings that they depend on. Called by :mod:`transaction`, and
by the sink for a transaction whose time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import NamedTuple

from onceward import patience, surroundings
from onceward.errors import (
    AccessDenied,
    BatchFailed,
    BrokerUnreachable,
    Fenced,
    OncewardError,
    ResourceError,
    TransactionTimedOut,
    TransactionTimeoutTooLarge,
)
from onceward.ids import ProducerIdentity
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused, Unanswered
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.transactions.coordinator import (
    TransactionCoordinator,
    TransactionDescription,
)

# org.apache.kafka.coordinator.transaction.TransactionState
_EMPTY, _ONGOING, _COMPLETE_ABORT = "Empty", "Ongoing", "CompleteAbort"
_TRANSACTIONAL_ID_NOT_FOUND = 105
# a takeover that has aborted our transaction asks again every 0.1 s until it has the id
_TAKEOVER_MS = 5_000
_TAKEOVER_POLL_SECONDS = 0.2


_ABORTING = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")


class Fencing(Enum):
    """Reasons why the coordinator refuses our identity."""

    ABORTED_FOR_US = (
        "the coordinator aborted our transaction, and nobody has taken the transactional id since"
    )
    STILL_OURS = "the coordinator holds our own identity as the current one"
    TAKEN_OVER = "somebody else holds the transactional id"
    NOT_KNOWN = "the coordinator did not say in time who holds the transactional id"


def shortest_timeout(timeout_ms: int) -> int:
    """Return the least that we ask for, where the settings say ``timeout_ms``."""
    return timeout_ms - 2 * _hundredth(timeout_ms)


def _hundredth(timeout_ms: int) -> int:
    return max(1, timeout_ms // 100)


class RequestedTimeouts:
    """The timeouts that we have asked for. By them what was done for our sake is told from a
    takeover: one of these asks for 99 to 100 % of that of the settings, a claim of our own next
    epoch (``IdOwner.granted_to_us``) for less, which the brokers have allowed then."""

    def __init__(self, timeout_ms: int) -> None:
        self._given_ms = timeout_ms  # with our identity
        self._earlier_ms: list[int] = []
        self.unanswered_ms: list[int] = []
        """By claims of the epoch after ours without an answer, so far: one may have been carried
        out, or be yet."""

    def takeover_ms(self, timeout_ms: int) -> int:
        """Return the timeout for a takeover, where the settings say ``timeout_ms``: one that is
        made at another moment hardly has the same."""
        now_us = surroundings.wall_clock_ns() // 1_000
        return timeout_ms - now_us % _hundredth(timeout_ms)

    def next_claim_ms(self, timeout_ms: int) -> int:
        """Return the timeout for a claim of our next epoch, where the settings say ``timeout_ms``:
        hardly any other request has the same. It counts as unanswered from now on."""
        self.unanswered_ms.append(
            shortest_timeout(timeout_ms) + surroundings.random_below(_hundredth(timeout_ms))
        )
        return self.unanswered_ms[-1]

    def granted(self, timeout_ms: int | None) -> None:
        """Record our new identity and its timeout; None: ``EndTxn``, which keeps the timeout."""
        if timeout_ms is not None:
            self._given_ms, self._earlier_ms = timeout_ms, []
        # A claim that follows the epoch before ours passes for a repetition when it comes late:
        # ours gets its timeout.
        self._earlier_ms += self.unanswered_ms
        self.unanswered_ms = []

    @property
    def ours_ms(self) -> set[int]:
        """The timeouts of our own requests: under any other one our identity, or the epoch after
        it, was given to somebody else since."""
        return {self._given_ms, *self.unanswered_ms, *self._earlier_ms}


class OwnTransaction(NamedTuple):
    """Our own side, when our identity is refused."""

    identity: ProducerIdentity
    took_part: bool
    """Anything of ours may have been open at the coordinator. If not, it had nothing to abort for
    us: a newer owner got the very next epoch, and the transaction aborted under it is theirs."""
    asked_ms: Collection[int]
    """:attr:`RequestedTimeouts.ours_ms`."""
    twice: bool = False
    """Its end may have raised the epoch by two: of version 2, with partitions or offsets."""


def classify(ours: OwnTransaction, found: TransactionDescription) -> Fencing:
    """Return what ``found`` says about an identity of ours that was refused."""
    if found.identity == ours.identity:
        return Fencing.STILL_OURS
    for_us = ours.took_part and found.timeout_ms in ours.asked_ms
    raised = found.identity.epoch - ours.identity.epoch
    is_next = _is_next(found.identity, ours.identity) and raised <= 1 + ours.twice
    if for_us and is_next and found.state in _ABORTING:
        return Fencing.ABORTED_FOR_US
    return Fencing.TAKEN_OVER


def _is_next(found: ProducerIdentity, ours: ProducerIdentity) -> bool:
    return found.producer_id == ours.producer_id and found.epoch - ours.epoch in (1, 2)


class IdOwner:
    """Owner of a transactional id, as its coordinator tells it: ``DescribeTransactions`` (KIP-664;
    brokers from 3.0 on). Asked where a refusal may have several reasons, and before a request that
    could disturb somebody newer.

    :param patience_ms: tells how long a takeover is waited for that seems to be under way.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        patience_ms: Callable[[], int],
        request_timeout_ms: int,
    ) -> None:
        self._coordinator = coordinator
        self._patience_ms = patience_ms
        self._request_timeout_ms = request_timeout_ms

    def is_unknown(self) -> bool:
        """Return whether the coordinator says that it does not know the id."""
        try:
            self._describe()
        except Refused as refused:
            return refused.code == _TRANSACTIONAL_ID_NOT_FOUND
        except (Unanswered, ResourceError):
            # Nobody answers: the transaction's own requests will be answered, or not
            return False
        return False

    def newer_owner(
        self, ours: ProducerIdentity, outdated: Callable[[], bool]
    ) -> Exception | None:
        """Return why we think that somebody else has a transaction open, or the last word; None:
        nobody, as far as is known.

        Asked before ``InitProducerId`` with our own identity. Such a request is refused when our
        epoch is old, but not at once: the coordinator compares epochs only where nothing is open.
        While the newer owner's transaction is ``Ongoing`` it first aborts that under a raised
        epoch (``TransactionCoordinator.prepareInitProducerIdTransit``; checked on 3.9.1 and
        4.3.1), and both would stop. And a coordinator that has forgotten the id gives it to
        whoever asks first, old copy or new.

        :param outdated: has somebody written since we did? Asked where the id is forgotten.
        """
        try:
            found = self._describe()
        except Refused as refused:
            # Brokers before 3.0 cannot tell: the request itself will be answered.
            return refused if refused.code == _TRANSACTIONAL_ID_NOT_FOUND and outdated() else None
        except (Unanswered, ResourceError):
            # Nobody answers: the request itself will be answered, or not
            return None
        if found.state == _ONGOING and found.identity != ours:
            return RuntimeError(f"{found.identity} has a transaction open")
        return None

    def aborted_for_us(self, ours: OwnTransaction) -> Iterator[ProducerIdentity]:
        """Yield the identity under which the coordinator has aborted our transaction, and that
        nobody has; once more if that has moved, as Kafka 4.0.0 raises the epoch also with the end
        of the abort. None where there is a newer owner.

        :raises BrokerUnreachable: nobody can be asked.
        """
        claimed = None
        while found := self._describe_if_allowed("recover() before the next transaction"):
            if found.identity == claimed or classify(ours, found) is not Fencing.ABORTED_FOR_US:
                return
            yield (claimed := found.identity)

    def refusal_reason(self, ours: OwnTransaction) -> Fencing:
        """Return why our identity was refused. :raises BrokerUnreachable: nobody can be asked."""
        found = self._describe_if_allowed("recover() before the next transaction")
        # Brokers before 3.0 cannot tell, and a wrong guess here must be the safe one.
        return Fencing.TAKEN_OVER if found is None else classify(ours, found)

    def granted_to_us(
        self, ours: ProducerIdentity, unanswered_ms: Collection[int]
    ) -> ProducerIdentity | None:
        """Return the epoch that an unanswered claim was given, after a later one was refused, if
        it was carried out and nobody has come since; None: not so, or not known.

        A coordinator that has forgotten the transactional id gives a new producer id, from epoch 0
        on, to whoever asks. (Of three claims without an answer that were all carried out the last
        is not recognised, which is safe.)

        :param unanswered_ms: the timeouts of these requests, as nobody else asks for them.
        :raises BrokerUnreachable: nobody can be asked.
        """
        if not unanswered_ms:
            return None
        found = self._describe_if_allowed()
        if found is None:
            return None
        # 1. a claim of our next epoch is carried out, and its answer is lost with the coordinator;
        # 2. the next coordinator does not know which epoch came before, and refuses the repeated
        #    claim like a zombie's;
        # 3. so each claim asks for a transaction timeout of its own, by which DescribeTransactions
        #    shows whose the newer epoch is. A takeover raises the epoch by one, or by two where a
        #    transaction was open. Whoever has used the epoch got the answer, which we did not.
        if found.timeout_ms not in unanswered_ms or found.state != _EMPTY:
            return None
        # The coordinator had forgotten the id, or its epochs were used up.
        if found.identity.producer_id != ours.producer_id:
            return found.identity if found.identity.epoch == 0 else None
        return found.identity if _is_next(found.identity, ours) else None

    def wait_for_takeover(self, ours: OwnTransaction) -> Fencing:
        """Wait, after our transaction was aborted before its time, for somebody newer to have the
        id.

        A takeover begins with that abort, and has an epoch of its own as soon as the markers are
        written. Or the request of an *older* copy crossed ours (see :meth:`newer_owner`): that one
        is refused afterwards, and nobody comes. Should a takeover be slower than we wait, it takes
        the id from us later: safe.
        """
        deadline, aborted = Deadline(self._patience_ms()), False
        while not deadline.passed:
            try:
                found = self._describe()
            except (Refused, Unanswered, ResourceError):
                return Fencing.TAKEN_OVER  # the safe guess
            if (why := classify(ours, found)) is not Fencing.ABORTED_FOR_US:
                return why
            if found.state == _COMPLETE_ABORT and not aborted:
                deadline, aborted = Deadline(_TAKEOVER_MS), True
            patience.pause(_TAKEOVER_POLL_SECONDS)
        return Fencing.ABORTED_FOR_US if aborted else Fencing.TAKEN_OVER

    def _describe_if_allowed(self, next_step: str = "") -> TransactionDescription | None:
        """Describe the id; None where brokers do not tell; BrokerUnreachable if none answers."""
        try:
            return self._describe()
        except Unanswered as unanswered:
            raise unanswered.as_error(next_step) from None
        except BrokerUnreachable:
            raise
        except (Refused, ResourceError):
            return None

    def _describe(self) -> TransactionDescription:
        return self._coordinator.describe(
            Deadline(min(self._patience_ms(), self._request_timeout_ms))
        )


# For what an error would like to say, and can do without
_MOMENT_MS = 5_000

LONGER_OR_SMALLER = (
    "raise transaction.timeout.ms (options= of the sink), up to the brokers' "
    "transaction.max.timeout.ms: this batch stands in Spark's log and keeps its size; "
    "max_offsets_per_trigger makes later ones smaller"
)
"""The next step for a batch that is too large for its transaction."""


def taken_over(transactional_id: str, identity: ProducerIdentity, cause: BaseException) -> Fenced:
    """Return the error of an identity that a newer owner has replaced. Nobody can tell one from a
    late request of our own start, or from an operator's tool."""
    return Fenced(
        f"a newer copy of pipeline {transactional_id} has taken over from {identity} ({cause})",
        next_step="leave this copy stopped; if two are running by mistake, give one another "
        "pipeline_id; if no other copy was started (an operator has ended the transaction by "
        "kafka-transactions.sh forceTerminateTransaction, say), start this one again",
        details=_ids(transactional_id, identity),
    )


def timed_out(
    transactional_id: str,
    identity: ProducerIdentity,
    client: KafkaClient,
    timeout_ms: int,
    open_for_ms: float,
    *,
    by_an_older_copy: bool,
) -> TransactionTimedOut:
    """Return the error of a transaction that the coordinator has aborted, ``by_an_older_copy`` if
    it was too young for its timeout; asks a broker."""
    cause, advice = both_limits(client, timeout_ms), LONGER_OR_SMALLER
    if by_an_older_copy:
        cause = "at the request of an older copy of this pipeline"
        advice = "look for a copy that should not be running"
    return TransactionTimedOut(
        f"the coordinator aborted {identity} of {transactional_id}, which had been open for "
        f"{open_for_ms:.0f} ms ({cause})",
        next_step=f"the batch runs again; if it repeats, {advice}",
        details={
            "transactional_id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "open_for_ms": round(open_for_ms),
        },
    )


def refused_early(
    transactional_id: str,
    identity: ProducerIdentity,
    timeout_ms: int,
    refusal: OncewardError,
    why: Fencing,
) -> BatchFailed:
    """Return the error of an identity that was refused while it is not known who holds the id."""
    return BatchFailed(
        f"{identity} of {transactional_id} was refused before transaction.timeout.ms={timeout_ms} "
        f"was over, and whether a newer copy has taken over is not known: {why.value} "
        f"({refusal.message})",
        next_step="the batch runs again, and is refused for good if a newer copy has taken over; "
        "if it repeats, see that the brokers answer, the transaction coordinator most of all",
        details=_ids(transactional_id, identity),
    )


def timeout_too_large(client: KafkaClient, timeout_ms: int) -> TransactionTimeoutTooLarge:
    """Return the error of a timeout that the brokers do not allow; asks a broker."""
    limit, theirs = brokers_limit(client)
    return TransactionTimeoutTooLarge(
        f"transaction.timeout.ms={timeout_ms} is above the brokers' {theirs}",
        next_step="lower transaction.timeout.ms (options= of the "
        f"sink){f' to at most {limit}' if limit else ''}, or raise transaction.max.timeout.ms on "
        "the brokers; no transaction was begun, so that nothing has to be undone",
    )


def both_limits(client: KafkaClient, timeout_ms: int) -> str:
    """Return the sink's limit and the brokers', up to which it may be raised; asks a broker."""
    return f"transaction.timeout.ms={timeout_ms}; the brokers' {brokers_limit(client)[1]}"


def brokers_limit(client: KafkaClient) -> tuple[str | None, str]:
    """Ask a broker for ``transaction.max.timeout.ms``; return it, if known, and a text of it."""
    name = "transaction.max.timeout.ms"
    try:
        with patience.within(_MOMENT_MS):
            limit = client.broker_config(timeout_ms=_MOMENT_MS).get(name)
    except AccessDenied:
        return None, f"{name}, which may not be read (DescribeConfigs on the cluster)"
    except OncewardError:
        return None, f"{name}, which no broker has told in time"
    return limit, f"{name}={limit}"


def _ids(transactional_id: str, identity: ProducerIdentity) -> dict[str, object]:
    return {"transactional_id": transactional_id, "identity": list(identity)}
