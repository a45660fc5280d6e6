"""What a sink offers to the engine so that a batch's output and its ledger record commit together.

Implemented in ``sinks``; called by ``engine.micro_batch`` only, from the query's own thread in the driver, in the
order of the methods below. One target serves one pipeline, batch after batch; nothing is called concurrently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame

from onceward.ids import ProducerIdentity
from onceward.ledger.record import LedgerRecord, Manifest
from onceward.spark.query import RunningBatch


class Write(NamedTuple):
    """One frame of a batch and where it goes (a topic, say); None: where the target's settings or the rows say."""

    frame: DataFrame
    where: str | None = None


class Written(NamedTuple):
    """What an attempt has written: the manifest over all its frames, and records and payload bytes of each frame."""

    manifest: Manifest
    records: tuple[int, ...]
    payload_bytes: int = 0


class AtomicTarget(ABC):
    """A place to write that commits output, offsets and ledger record in one atomic step.

    Every method may raise :class:`onceward.errors.Fenced`: somebody newer owns the pipeline, and the engine stops
    for good. Any other :class:`onceward.errors.OncewardError` that says ``Recovery.RUN_AGAIN`` lets the engine abort
    and run the batch again.
    """

    @abstractmethod
    def glance(self) -> LedgerRecord | None:
        """The newest ledger record, without touching a predecessor that may be alive and well; None if not certain.

        It may be outdated by the time it returns. It is there so that a query that will be refused anyway does not
        fence a healthy one first.
        """

    @abstractmethod
    def open(self, running: RunningBatch) -> LedgerRecord | None:
        """Check what can be checked, fence every predecessor, end its open transaction, *then* read the ledger.

        After it returns, no earlier owner of the pipeline can commit anything, so the record is final.
        """

    @abstractmethod
    def begin(self) -> ProducerIdentity:
        """A fresh attempt; nothing of an earlier one can join it. Returns what this attempt writes under.

        A producer id that differs from the one before makes the engine ask for :meth:`newest`: the target may have
        forgotten the pipeline, and with it whoever would have fenced us.
        """

    @abstractmethod
    def newest(self) -> LedgerRecord | None:
        """The newest ledger record. After :meth:`begin` it is final, as after :meth:`open`."""

    @abstractmethod
    def write(self, writes: Sequence[Write], running: RunningBatch) -> Written:
        """Run the plan of each frame once, one after the other, and write its rows, invisible until :meth:`commit`;
        every row exactly once or raise. Called once an attempt, with all frames of the batch."""

    @abstractmethod
    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        """Put source offsets and the ledger record into the attempt, the ledger record last."""

    @abstractmethod
    def commit(self) -> None:
        """Make the attempt visible, all of it.

        :raises CommitInDoubt: no answer; it may or may not be committed. The engine calls :meth:`settle`.
        """

    @abstractmethod
    def settle(self) -> LedgerRecord | None:
        """End all doubt: afterwards the last attempt is committed or gone. Returns the newest ledger record."""

    @abstractmethod
    def abort(self) -> None:
        """Undo the attempt. Safe to call in any state but after a commit that was sent."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections and threads. Never raises, never aborts anything."""
