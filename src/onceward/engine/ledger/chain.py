"""The chain of decided batches of one pipeline: the interface of every store of the ledger.

Implemented by :mod:`onceward.kafka.ledger.chain`, :mod:`onceward.files.ledger` and
:mod:`onceward.sql.ledger.table`; called by targets, in the driver, from the query's own thread.
One object is one owner, or would like to be. What all stores owe:

* one owner at a time: after :meth:`Chain.take`, no older owner can append anything, and what is
  read then is final;
* compare-and-set: a record is appended behind the very record that its batch was admitted by, or
  not at all;
* an append is durable when it returns; where it is not known whether it happened, it raises
  :class:`~onceward.errors.CommitInDoubt`, and :meth:`Chain.settle` finds out: it fences before it
  reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from onceward import surroundings
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import Fenced, LedgerBehind, LedgerOutdated
from onceward.ids import AttemptId, PipelineId


class Chain(ABC):
    """One owner's chain. Any method may raise ``Fenced``: a newer owner has taken the chain."""

    owners_grow: ClassVar[bool] = False
    """Of two attempts of the chain, that with the smaller ``owner`` is of the older one."""

    last: LedgerRecord | None = None
    """The newest record, as far as this owner has read or written it."""
    noted: LedgerRecord | None = None
    """What :meth:`progress` was last to write: it is so, written or not."""

    @abstractmethod
    def peek(self) -> LedgerRecord | None:
        """Return the newest record without disturbing anybody; None if there is none, or it is not
        certain. It may be outdated by the time it returns."""

    def read(self) -> LedgerRecord | None:
        """Return what :meth:`peek` does, once it is certain. :raises LedgerUndecided: it is not,
        while a transaction is open."""
        return self.peek()

    def must_be_there(self) -> None:  # noqa: B027 — only a folder can be replaced
        """Raise LedgerUnreachable unless the store has the chain that an earlier batch left."""

    @abstractmethod
    def take(self) -> LedgerRecord | None:
        """Become the owner; then read the newest record, which is final."""

    @abstractmethod
    def newest(self) -> LedgerRecord | None:
        """Read the newest record anew. As the owner. :raises LedgerBehind: it is older than one
        that this owner has seen."""

    @abstractmethod
    def identity(self) -> str:
        """Return what tells this chain from every other, also from a deleted one in its place. As
        the owner. A copy has the same, wherever it is moved (in Kafka: within the cluster, and as
        long as the topic is)."""

    @abstractmethod
    def begin(self, newest: LedgerRecord | None) -> AttemptId:
        """Return the name of a fresh attempt. As the owner.

        :param newest: what the owner takes for the newest record.
        :raises LedgerBehind: that record is gone.
        """

    @abstractmethod
    def append(self, record: LedgerRecord) -> None:
        """Append ``record``, by the attempt that was begun last, behind the newest one: the
        decision.

        :raises CommitInDoubt: it may or may not be there; :meth:`settle`.
        :raises OncewardError: it is not there.
        """

    def progress(self, record: LedgerRecord) -> LedgerRecord:
        """Replace the newest record by ``record``, of the same sequence, in another state; as it
        was written. Where it is in doubt nothing is lost: what is undone is done once more."""
        self.noted = record
        self.append(record)
        return record

    def abort(self) -> None:  # noqa: B027 — to most stores an attempt is but a name
        """Give up the attempt that was begun. Safe in any state but after an append in doubt."""

    @abstractmethod
    def settle(self) -> LedgerRecord | None:
        """End all doubt: afterwards a late append can no longer arrive. Returns the newest record.
        :raises LedgerBehind: it is older than one that this owner has seen."""

    @abstractmethod
    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        """Return the records that are kept, newest first; of a batch decided and finished both."""

    def close(self) -> None:  # noqa: B027 — not every store holds something
        """Give back connections. Never raises."""


@dataclass(frozen=True)
class LedgerPlace:
    """Where a ledger is: equal ones are one place.

    :param names: what tells it from others.
    :param options: by which an ``onceward`` command names it, without passwords, for a shell.
    """

    names: tuple[Hashable, ...]
    options: str = field(default="", compare=False)

    def __str__(self) -> str:
        return str(self.names)


class LedgerReader(Protocol):
    """Looks at the chains of a ledger, and disturbs nobody."""

    @abstractmethod
    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a chain here, sorted."""

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        """Return the last records that are kept, newest first."""

    def looking(self) -> AbstractContextManager[None]:
        """Keep connections in the block, which is one look: they are not opened for each chain.
        Between two looks another server may have become the one to ask."""


class Ledger(LedgerReader, ABC):
    """The settings of a ledger, which users hand to a sink. Equal ones name the same place."""

    @abstractmethod
    def chain(self, pipeline: PipelineId) -> Chain:
        """Return the chain of ``pipeline``, for one run of its query. Nothing is connected yet."""

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        """Return the last records that are kept, newest first, for whoever only looks: nobody is
        disturbed or waited for, and they may be outdated by the time it returns."""
        with closing(self.chain(pipeline)) as chain:
            return list(chain.history(limit))

    def reader(self) -> LedgerReader:
        """Return what to look with again and again, at the price of what is new."""
        return self

    def looking(self) -> AbstractContextManager[None]:
        """Keep nothing (:class:`LedgerReader`): what is opened is closed with each answer."""
        return nullcontext()

    @property
    @abstractmethod
    def where(self) -> LedgerPlace:
        """The place: two sinks with equal ones keep their chains in one ledger."""


def new_owner() -> int:
    """Return a name for a new owner of a chain: larger than those before, with 16 random bits."""
    # The bits make it unique: owners of a chain that was deleted, or restored from an older copy,
    # must not come back.
    return surroundings.wall_clock_ns() // 1_000_000 << 16 | surroundings.random_bits(16)


def takeover_error(pipeline: PipelineId, where: str) -> Fenced:
    """Return the error of an owner whose chain was taken over."""
    return Fenced(
        f"a newer copy of pipeline {pipeline} has taken its chain in {where}",
        next_step="leave this copy stopped; if two are running by mistake, give one another "
        "pipeline_id",
    )


def takeover_lost_error(
    chain: Chain, pipeline: PipelineId, where: str, how: str
) -> LedgerOutdated:
    """Return the error of an owner whose own takeover is gone, or what it has noted of publishing
    the newest batch, and no batch with it. :param how: what can have led to it."""
    lost = LedgerOutdated(
        f"the chain of pipeline {pipeline} in {where} has all batches, and no longer what its "
        f"owner has written since: {how}",
        next_step="nothing; the chain is taken and read anew. If it repeats, see that all copies "
        "of the pipeline have one database, and machines whose clocks agree",
        details={"pipeline": pipeline},
    )
    lost.known = as_far_as_known(chain.last, chain.noted)
    return lost


def as_far_as_known(found: LedgerRecord | None, known: LedgerRecord | None) -> LedgerRecord | None:
    """Return the newest record of a chain that was taken anew, with what its owner knows to be
    published of that batch.

    :param found: in the chain.
    :param known: by an owner of this process, whose notes were lost with its takeover: without
        them rows would be delivered again.
    :raises LedgerBehind: the chain ends before it.
    """
    if known is None:
        return found
    if found is None or found.sequence < known.sequence:
        ends = "is empty now" if found is None else f"now ends with {found.sequence}"
        what = f"ended with sequence {known.sequence} and {ends}: a failover, or an older copy"
        raise cut_off_error(known.pipeline, "the ledger", what)
    if (found.sequence, found.decided or found.attempt) != (
        known.sequence,
        known.decided or known.attempt,
    ):
        return found
    return replace(
        found,
        outputs={
            name: max(
                output,
                known.outputs.get(name, output),
                key=lambda one: (one.is_published, one.delivered),
            )
            for name, output in found.outputs.items()
        },
    )


def cut_off_error(pipeline: PipelineId, where: str, what: str) -> LedgerBehind:
    """Return the error of a chain that no longer ends as its owner left it, shown by ``what``."""
    return LedgerBehind(
        f"the chain of pipeline {pipeline} in {where} {what}, while this query was running",
        next_step="where the output has lost the same (one backup, or one failover), start the "
        "query again: the error of its first batch says how to go back; else restore the ledger, "
        "or find out from the output how far it goes, and begin anew under a new pipeline_id",
    )
