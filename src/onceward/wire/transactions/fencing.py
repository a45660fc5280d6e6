"""Fenced, or only timed out? The broker answers both with the same codes; this tells them apart.

Pure. Called by ``wire.transactions.transaction`` with what ``DescribeTransactions`` says.

When a transaction is open longer than ``transaction.timeout.ms``, the coordinator raises the epoch by exactly one and
aborts (``TransactionCoordinator.abortTimedOutTransactions``, ``TransactionMetadata.prepareFenceProducerEpoch``;
checked on 3.9.1 and 4.3.1). A takeover of an open transaction begins in the same way, but then takes a further epoch
for itself. So the epoch after ours together with an abort is nobody's yet: claiming it with ``InitProducerId`` and that
identity is refused as soon as somebody newer has come (KIP-360), and can never fence them.
"""

from __future__ import annotations

from enum import Enum

from onceward.ids import ProducerIdentity
from onceward.wire.transactions.coordinator import TransactionDescription

_ABORTING = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")


class Fencing(Enum):
    """Why the coordinator refuses our identity."""

    ABORTED_FOR_US = "the coordinator aborted our transaction, and nobody has taken the transactional id since"
    STILL_OURS = "the coordinator holds our own identity as the current one"
    TAKEN_OVER = "somebody else holds the transactional id"


def shortest_timeout(timeout_ms: int) -> int:
    """The least that a claim of our own next epoch asks for, where the settings say ``timeout_ms``; see
    ``Holder.gave_us``. A takeover asks for all of it, a claim for less."""
    return timeout_ms - max(1, timeout_ms // 100)


def judge(ours: ProducerIdentity, found: TransactionDescription, *, took_part: bool) -> Fencing:
    """What ``found`` says about an identity of ours that was refused.

    :param took_part: anything of ours may have been open at the coordinator. If not, it had nothing to abort for us: a
        newer owner got the very next epoch, and the transaction that was aborted under it is the owner's.
    """
    if found.identity == ours:
        return Fencing.STILL_OURS
    next_epoch = ProducerIdentity(ours.producer_id, ours.epoch + 1)
    if took_part and found.identity == next_epoch and found.state in _ABORTING:
        return Fencing.ABORTED_FOR_US
    return Fencing.TAKEN_OVER
