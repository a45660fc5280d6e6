"""Fenced, or only timed out? The broker answers both with the same codes; this tells them apart.

No I/O. Called by ``kafka.wire.transactions.transaction`` with what ``DescribeTransactions`` says.

When a transaction is open longer than ``transaction.timeout.ms``, the coordinator raises the epoch
by exactly one and aborts (``TransactionCoordinator.abortTimedOutTransactions``,
``TransactionMetadata.prepareFenceProducerEpoch``; checked on 3.9.1 and 4.3.1). A takeover of an
open transaction begins in the same way, but then takes a further epoch for itself. So the epoch
after ours together with an abort is nobody's yet: claiming it with ``InitProducerId`` and that
identity is refused as soon as somebody newer has come (KIP-360), and can never fence them.

Where nothing of ours was open, though, a takeover has that very epoch, and a transaction that it
has aborted itself looks the same. What it has asked for tells it: the coordinator keeps the
timeout of the last ``InitProducerId`` that it has carried out
(``TransactionMetadata.prepareIncrementProducerEpoch``), and an abort changes nothing about it.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from onceward import surroundings
from onceward.ids import ProducerIdentity
from onceward.kafka.wire.transactions.coordinator import TransactionDescription

_ABORTING = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")


class Fencing(Enum):
    """Why the coordinator refuses our identity."""

    ABORTED_FOR_US = (
        "the coordinator aborted our transaction, and nobody has taken the transactional id since"
    )
    STILL_OURS = "the coordinator holds our own identity as the current one"
    TAKEN_OVER = "somebody else holds the transactional id"
    NOT_KNOWN = "the coordinator did not say in time who holds the transactional id"


def shortest_timeout(timeout_ms: int) -> int:
    """The least that a claim of our own next epoch asks for, where the settings say
    ``timeout_ms``; see ``Holder.gave_us``. A takeover asks for all of it, a claim for less.
    """
    return timeout_ms - max(1, timeout_ms // 100)


class AskedFor:
    """The timeouts that we have asked for. By them what was done for our sake is told from a
    takeover, which asks for that of the settings.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._given_ms = timeout_ms  # with our identity
        self._earlier_ms: list[int] = []
        self.unanswered_ms: list[int] = []
        """By claims of the epoch after ours without an answer, so far: one may have been carried
        out, or be yet.
        """

    def by_a_claim(self, timeout_ms: int) -> int:
        """What a claim of our next epoch asks for, where the settings say ``timeout_ms``: hardly
        any other request has the same. It counts as unanswered from now on.
        """
        self.unanswered_ms.append(
            shortest_timeout(timeout_ms) + surroundings.random_below(max(1, timeout_ms // 100))
        )
        return self.unanswered_ms[-1]

    def given(self, timeout_ms: int | None) -> None:
        """We have another identity, and asked for this. None: by ``EndTxn``, which leaves the
        timeout as it is.
        """
        if timeout_ms is not None:
            self._given_ms, self._earlier_ms = timeout_ms, []
        # A claim that follows the epoch before ours passes for a repetition when it comes late:
        # ours gets its timeout.
        self._earlier_ms += self.unanswered_ms
        self.unanswered_ms = []

    @property
    def ours_ms(self) -> set[int]:
        """Under any other timeout our identity, or the epoch after it, was given to somebody else
        since.
        """
        return {self._given_ms, *self.unanswered_ms, *self._earlier_ms}


class Ours(NamedTuple):
    """What we know of our own side when our identity is refused."""

    identity: ProducerIdentity
    took_part: bool
    """Anything of ours may have been open at the coordinator. If not, it had nothing to abort for
    us: a newer owner got the very next epoch, and the transaction that was aborted under it is the
    owner's.
    """
    asked_ms: Collection[int]
    """:attr:`AskedFor.ours_ms`."""


def judge(ours: Ours, found: TransactionDescription) -> Fencing:
    """What ``found`` says about an identity of ours that was refused."""
    if found.identity == ours.identity:
        return Fencing.STILL_OURS
    next_epoch = ours.identity._replace(epoch=ours.identity.epoch + 1)
    for_us = ours.took_part and found.timeout_ms in ours.asked_ms
    if for_us and found.identity == next_epoch and found.state in _ABORTING:
        return Fencing.ABORTED_FOR_US
    return Fencing.TAKEN_OVER
