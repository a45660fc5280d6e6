"""Who holds a transactional id, as its coordinator tells: ``DescribeTransactions`` (KIP-664;
brokers from 3.0 on).

Runs in the driver. Called by ``kafka.wire.transactions.transaction`` where a refusal may have
several reasons, and before a request that could disturb somebody newer. What an answer means is in
``kafka.wire.transactions.fencing``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from onceward import patience
from onceward.errors import BrokerUnreachable, ResourceError
from onceward.ids import ProducerIdentity
from onceward.kafka.wire.conversation import Refused, Unanswered, raise_as_error
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.transactions.coordinator import (
    TransactionCoordinator,
    TransactionDescription,
)
from onceward.kafka.wire.transactions.fencing import Fencing, Ours, judge

# org.apache.kafka.coordinator.transaction.TransactionState
_EMPTY, _ONGOING, _COMPLETE_ABORT = "Empty", "Ongoing", "CompleteAbort"
_TRANSACTIONAL_ID_NOT_FOUND = 105
_TAKEOVER_MS = (
    5_000  # a takeover that has aborted our transaction asks again every 0.1 s until it has the id
)
_TAKEOVER_POLL_SECONDS = 0.2


class Holder:
    """See the module.

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

    def is_forgotten(self) -> bool:
        """Does the coordinator say that it does not know the id?"""
        try:
            self._describe()
        except Refused as refused:
            return refused.code == _TRANSACTIONAL_ID_NOT_FOUND
        except (Unanswered, ResourceError):
            return False  # nobody answers: the transaction's own requests will be answered, or not
        return False

    def newer_than(self, ours: ProducerIdentity, outdated: Callable[[], bool]) -> Exception | None:
        """Has somebody else a transaction open, or the last word? Why we think so; None: nobody,
        as far as is known.

        Asked before ``InitProducerId`` with our own identity. Such a request is refused when our
        epoch is old, but not at once: the coordinator compares epochs only where nothing is open.
        While the newer owner's transaction is ``Ongoing`` it first aborts that under a raised
        epoch (``TransactionCoordinator.prepareInitProducerIdTransit``; checked on 3.9.1 and
        4.3.1), and both would stop. And a coordinator that has forgotten the id gives it to
        whoever asks first, old copy or new.

        :param outdated: has somebody written since we did? Asked where the coordinator has
            forgotten the id.
        """
        try:
            found = self._describe()
        except Refused as refused:
            # Brokers before 3.0 cannot tell: the request itself will be answered.
            return refused if refused.code == _TRANSACTIONAL_ID_NOT_FOUND and outdated() else None
        except (Unanswered, ResourceError):
            return None  # nobody answers: the request itself will be answered, or not
        if found.state == _ONGOING and found.identity != ours:
            return RuntimeError(f"{found.identity} has a transaction open")
        return None

    def why_refused(self, ours: Ours) -> Fencing:
        """Why an identity of ours was refused.

        :raises BrokerUnreachable: nobody can be asked.
        """
        found = self._told("recover() before the next transaction")
        # Brokers before 3.0 cannot tell, and a wrong guess here must be the safe one.
        return Fencing.TAKEN_OVER if found is None else judge(ours, found)

    def gave_us(
        self, ours: ProducerIdentity, unanswered_ms: Collection[int]
    ) -> ProducerIdentity | None:
        """After a claim of our next epoch was refused, and earlier requests of it got no answer:
        the epoch that one of these was given, if it was carried out and nobody has come since;
        None: not so, or not known.

        A coordinator that was replaced meanwhile no longer knows of which epoch the current one
        was made. But it tells the timeout that was asked for with it, and each claim asks for one
        of its own. Whoever takes over raises the epoch by one, too, or by two where a transaction
        was open, and asks for the timeout of its settings. A coordinator that has forgotten the
        transactional id gives a new producer id, from epoch 0 on, to either. (Of three claims
        without an answer that were all carried out the last is not recognised, which is safe.)

        :param unanswered_ms: the timeouts of these requests, as nobody else asks for them.
        :raises BrokerUnreachable: nobody can be asked.
        """
        if not unanswered_ms:
            return None
        found = self._told()
        if found is None:
            return None
        if (
            found.timeout_ms not in unanswered_ms or found.state != _EMPTY
        ):  # whoever has used it was told of it
            return None
        if (
            found.identity.producer_id != ours.producer_id
        ):  # it had forgotten the id, or used up its epochs
            return found.identity if found.identity.epoch == 0 else None
        # 1. a claim of our next epoch is carried out, and its answer is lost with the coordinator;
        # 2. the next coordinator does not know which epoch came before, and refuses the repeated
        #    claim like a zombie's;
        # 3. so each claim asks for a transaction timeout of its own, by which DescribeTransactions
        #    shows whose the newer epoch is. A takeover raises the epoch by one or two, as a claim
        #    does.
        return found.identity if found.identity.epoch - ours.epoch in (1, 2) else None

    def wait_for_a_newer(self, ours: Ours) -> Fencing:
        """Our transaction was aborted before its time: is somebody newer about to have the id?

        A takeover begins with that abort, and has an epoch of its own as soon as the markers are
        written. Or the request of an *older* copy crossed ours (see :meth:`newer_than`): that one
        is refused afterwards, and nobody comes. Should a takeover be slower than we wait, it takes
        the id from us later: safe.
        """
        deadline, aborted = Deadline(self._patience_ms()), False
        while not deadline.passed:
            try:
                found = self._describe()
            except (Refused, Unanswered, ResourceError):
                return Fencing.TAKEN_OVER  # the safe guess
            if (why := judge(ours, found)) is not Fencing.ABORTED_FOR_US:
                return why
            if found.state == _COMPLETE_ABORT and not aborted:
                deadline, aborted = Deadline(_TAKEOVER_MS), True
            patience.pause(_TAKEOVER_POLL_SECONDS)
        return Fencing.ABORTED_FOR_US if aborted else Fencing.TAKEN_OVER

    def _told(self, next_step: str = "") -> TransactionDescription | None:
        """None: it will not be told. :raises BrokerUnreachable: nobody can be asked."""
        try:
            return self._describe()
        except Unanswered as unanswered:
            raise_as_error(unanswered, next_step)
        except BrokerUnreachable:
            raise
        except (Refused, ResourceError):
            return None

    def _describe(self) -> TransactionDescription:
        return self._coordinator.describe(
            Deadline(min(self._patience_ms(), self._request_timeout_ms))
        )
