"""The chain of decided batches of one pipeline: what every store of the ledger offers. An interface.

Implemented by :mod:`kafka_chain`, :mod:`folder` and :mod:`table`; called by targets, in the driver, from the query's
own thread. One object is one owner, or would like to be. What all stores owe:

* one owner at a time: after :meth:`Chain.take`, no older owner can append anything, and what is read then is final;
* compare-and-set: a record is appended behind the very record that its batch was admitted by, or not at all;
* an append is durable when it returns; if it is not known whether it happened, that is said
  (:class:`~onceward.errors.CommitInDoubt`), and :meth:`Chain.settle` finds out: it fences before it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator

from onceward.ids import AttemptId, PipelineId
from onceward.ledger.record import LedgerRecord


class Chain(ABC):
    """See the module. Every method may raise :class:`onceward.errors.Fenced`: a newer owner has taken the chain."""

    @abstractmethod
    def peek(self) -> LedgerRecord | None:
        """The newest record, disturbing nobody; None if there is none, or it cannot be told at once. It may be
        outdated by the time it returns."""

    @abstractmethod
    def take(self) -> LedgerRecord | None:
        """Become the owner; then read the newest record, which is final."""

    @abstractmethod
    def newest(self) -> LedgerRecord | None:
        """As the owner: the newest record, read anew."""

    @abstractmethod
    def begin(self, newest: LedgerRecord | None) -> AttemptId:
        """As the owner: the name of a fresh attempt.

        :param newest: what the owner takes for the newest record.
        :raises LedgerBehind: that record is gone.
        """

    @abstractmethod
    def append(self, record: LedgerRecord) -> None:
        """The decision: ``record``, by the attempt that was begun last, behind the newest record.

        :raises CommitInDoubt: it may or may not be there; :meth:`settle`.
        :raises OncewardError: it is not there.
        """

    @abstractmethod
    def progress(self, record: LedgerRecord) -> LedgerRecord:
        """Replace the newest record by ``record``, of the same sequence, in another state; as it was written.

        Where it is in doubt nothing is lost: what is undone is done once more.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up the attempt that was begun. Safe in any state but after an append in doubt."""

    @abstractmethod
    def settle(self) -> LedgerRecord | None:
        """End all doubt: afterwards a late append can no longer arrive. Returns the newest record."""

    @abstractmethod
    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        """The last records that are kept, newest first; of a batch that was decided and finished, both."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections. Never raises."""


class Ledger(ABC):
    """Where ledgers are kept: settings, which users build and hand to a sink. Equal ones name the same place."""

    @abstractmethod
    def chain(self, pipeline: PipelineId) -> Chain:
        """The chain of ``pipeline``, for one run of its query. Nothing is connected before it is used."""

    @property
    @abstractmethod
    def where(self) -> Hashable:
        """Names the place: two sinks with equal ones keep their chains in one ledger."""
