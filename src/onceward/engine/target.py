"""The interface by which a batch's output and its ledger record become true in one step.
Implemented by sinks; called by ``engine.micro_batch`` only, from the query's own thread in the
driver. One target serves one pipeline, batch after batch, by one :class:`Attempt` after the other;
nothing is called concurrently. There are two kinds:

* **atomic**: the target's own commit is the decision, with the ledger record inside (a Kafka
  transaction);
* **two-phase**: the decision is the ledger record, in which what was prepared is named;
  :meth:`Target.finish` then publishes it, as often as it takes (:mod:`onceward.engine.two_phase`).

Identity of a query's sources: detects a source that was deleted and created again. Driver only.
Called by ``engine.micro_batch`` for every batch. Offsets belong to one source, and mean nothing in
another one of the same name. A connector says what tells its sources apart; the engine loads the
connector of those that a batch reads, so that no sink has to know any source.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from onceward import patience
from onceward.engine.ledger.chain import Chain
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.errors import (
    LedgerUnreadable,
    OncewardError,
    PartitionsAdded,
    SendFailed,
    SourceDataLost,
)
from onceward.ids import AttemptId, PipelineId
from onceward.spark.batch.query import KafkaSource, RunningBatch, ended_batch
from onceward.spark.batch.shuffles import Computation

log = logging.getLogger(__name__)

ClientFor = Callable[[KafkaSource], Any]
"""Returns a client of the cluster that a source reads from, or None where there is none."""

_KAFKA = "onceward.kafka.source.identity"
_ASK_MS = 10_000


class SourceIdentity:
    """Compares a batch's sources with those of the ledger. One for each run of a query. By itself
    it knows sources by nothing but their offsets, which may hold their identity."""

    def start(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
        """Begin a run, before its first batch: the ledger ends with ``newest``.
        :raises AdmissionRefused: as :meth:`identify`."""

    def check_parts(self, running: RunningBatch) -> None:
        """Check that the batch leaves out no part of a source that is still there; identify what
        no batch before has read. Called before each attempt.

        :raises AccessDenied, PartitionsAdded: it leaves one out.
        :raises AdmissionRefused: as :meth:`identify`.
        """

    def must_not_go_back(self, running: RunningBatch) -> None:
        """Check that no source goes back behind what was read. Called before each attempt, unless
        somebody has decided that it may. :raises SourceDataLost: one does, and its records may
        still be there."""

    def identify(self, running: RunningBatch) -> tuple[Any, ...]:
        """Return for each source what tells it from others (JSON; None: unknown). Called after the
        batch was read. :raises AdmissionRefused: a source is not the one that the ledger speaks
        of."""
        return (None,) * len(running.sources)

    def explain(self, lost: OncewardError, running: RunningBatch) -> OncewardError:
        """Return what it means that Spark takes records of the batch for lost, or its partitions
        for others: ``lost``, or what the source itself says."""
        return lost


def source_identity(running: RunningBatch, client_for: ClientFor | None) -> SourceIdentity:
    """Return what identifies the sources that ``running`` reads, by ``client_for`` where the
    target's system can be read as well; other sources by their own clients."""
    if not running.kafka_sources:
        return SourceIdentity()
    # By name: an import would load the Kafka client for every query, and point up from the engine
    # to a connector.
    identity: SourceIdentity = importlib.import_module(_KAFKA).KafkaSourceIdentity(client_for)
    return identity


def explain_outside(error: OncewardError, query: StreamingQuery) -> OncewardError:
    """Return ``error``, with which Spark has ended ``query`` outside of the batch's function; or,
    of what it takes for lost, what the source says."""
    if not isinstance(error, SourceDataLost | PartitionsAdded):
        return error
    try:
        running = ended_batch(query)
        if running is None:
            return error
        with patience.within(_ASK_MS):
            return source_identity(running, None).explain(error, running)
    except OncewardError as instead:
        return instead
    except Exception:
        log.debug("what became of the records cannot be found out", exc_info=True)
        return error


BRANCH = "@"
"""Begins the name of a two-phase target's output, and where frames for it go; those of atomic
targets are kinds, tables and topics."""


class SinkPlace(NamedTuple):
    """Where a sink writes.

    :param server: tells it from others, however its address is spelled.
    :param within: a folder with its last ``/``, or a prefix: what begins so is within it.
    """

    server: tuple[object, ...]
    within: str = ""

    def meets(self, other: object) -> bool:
        """Return whether the one is the other, or within it."""
        return (
            isinstance(other, SinkPlace)
            and self.server == other.server
            and (self.within.startswith(other.within) or other.within.startswith(self.within))
        )


class Write(NamedTuple):
    """One frame of a batch and where it goes (a topic, say); None: where the target's settings or
    the rows say. ``set_aside``: the engine's own, of dead letters (``engine.decoding``)."""

    frame: DataFrame
    where: str | None = None
    set_aside: bool = False


def unwritten(writes: Sequence[Write], running: RunningBatch) -> list[DataFrame]:
    """Return the frame of a batch of which nothing is written, where the query keeps state: what
    nobody computes has none, and Spark cannot go on from it. (What is set aside is computed from
    below the state.)"""
    is_written = not all(write.set_aside for write in writes)
    frame = running.frame if running.stateful and not is_written else None
    return [] if frame is None else [frame]


class Prepared(NamedTuple):
    """The outputs of an attempt: all of it durable, none of it visible. ``outputs`` goes into the
    ledger, by the target's name, ``summary`` into the log at DEBUG. ``state`` is DECIDED where
    :meth:`Target.finish` will have something to do. ``values`` go with the event of the commit:
    ``bytes`` of payload, ``too_large``, records that became dead letters."""

    outputs: Mapping[str, Output]
    summary: str = ""
    state: RecordState = RecordState.FINISHED
    values: Mapping[str, Any] = MappingProxyType({})


def event_ids(pipeline: PipelineId, running: RunningBatch) -> dict[str, Any]:
    """Return the ids of a batch, for events."""
    return {
        "pipeline": pipeline,
        "query_id": running.batch.query_id,
        "batch_id": running.batch.batch_id,
    }


@contextmanager
def run_again_after(outage: type[OncewardError]) -> Iterator[None]:
    """Raise an ``outage`` inside the block as :class:`~onceward.errors.SendFailed`: before the
    decision nothing has happened, and the batch runs again."""
    try:
        yield
    except outage as error:
        again = f"nothing, the batch runs again; if it repeats, {error.next_step}"
        raise SendFailed(error.message, next_step=again) from error


class Attempt(ABC):
    """One try at one batch. The methods come in this order; :meth:`abort` may come at any time
    before :meth:`commit`."""

    id: AttemptId
    """No other attempt of the pipeline has it."""

    @property
    def ids(self) -> dict[str, Any]:
        """:attr:`id` in the target's own words, for events."""
        return {"attempt": str(self.id)}

    def share(self, computation: Computation) -> None:
        """Share a computation with other targets' attempts at the batch, before :meth:`write`."""
        self._computation = computation

    @abstractmethod
    def write(self, write: Write, running: RunningBatch) -> int:
        """Run the plan of one frame of the batch, once; return how many rows it wrote. They are
        invisible until :meth:`commit`. Every row exactly once, or raise. Called for each frame of
        the batch, one after the other."""

    @abstractmethod
    def prepared(self) -> Prepared:
        """Return the outputs, after the last frame: all is durable that the decision will make
        true. :raises ComputationsMixed: the frames may not be of one computation of the batch."""

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        """Put all that is decided together into the attempt, ``record`` last; or be aborted."""
        self.record = record

    @abstractmethod
    def commit(self) -> None:
        """Decide: :attr:`record` and what it names become true, or neither. :raises CommitInDoubt:
        no answer; it may or may not have happened. The engine calls :meth:`Target.settle`."""

    @abstractmethod
    def abort(self) -> None:
        """Undo the attempt. Safe in any state but after a commit was sent, and more than once."""


def foreign_output_error(record: LedgerRecord) -> LedgerUnreadable:
    """Return the refusal to go on behind a batch that only another sink can publish."""
    kinds = ", ".join(sorted(output.kind for output in record.outputs.values())) or "nothing"
    return LedgerUnreadable(
        f"{record.batch} of pipeline {record.pipeline} is decided and not published yet, and was "
        f"prepared by another sink ({kinds}); going on would leave it out",
        next_step="start the query once more with the sink that wrote it, until its batch is "
        "published; then change the sink, or give the new one a pipeline_id of its own",
        details={"pipeline": record.pipeline, "batch_id": record.batch.batch_id},
    )


class Target(ABC):
    """A place to write to, of one pipeline. Every method may raise
    :class:`onceward.errors.Fenced`: somebody newer owns the pipeline, and the engine stops for
    good. Any other :class:`onceward.errors.OncewardError` that says ``Recovery.RUN_AGAIN`` lets
    the engine abort and run the batch again."""

    chain: Chain
    client_for: ClientFor | None = None
    """Returns the target's own client of the cluster that a source reads from; by it the source is
    identified."""

    @abstractmethod
    def peek(self) -> LedgerRecord | None:
        """Return the newest ledger record, without touching a predecessor that may be alive; None:
        not certain. It may be outdated by the time it returns. A query that will be refused anyway
        must not fence a healthy one first."""

    @abstractmethod
    def open(self, running: RunningBatch) -> LedgerRecord | None:
        """Check what can be checked, fence every predecessor, end what it left undecided, *then*
        read the ledger. After it returns, no earlier owner of the pipeline can decide anything, so
        the record is final. If it is decided and not finished, the engine calls :meth:`finish`
        before anything else."""

    def confirm(self) -> None:  # noqa: B027 — most ledgers are read where they are written
        """Confirm that the record of :meth:`open` or :meth:`settle` is the newest. Before a
        refusal for it. :raises LedgerOutdated: it is not; that batch may be all right."""

    @abstractmethod
    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> Attempt:
        """Return a fresh attempt; nothing of an earlier one can join it. If it raises, nothing is
        open.

        :param newest: what the engine takes for the newest record. Where the target may have
            forgotten the pipeline, and with it whoever would have fenced us, it reads the ledger.
        :raises LedgerBehind: that record is gone.
        """

    def finish(self, record: LedgerRecord) -> LedgerRecord:
        """Publish what ``record`` names, after the decision; return the record as it is then.

        Repeated until it succeeds, at every start if need be, so it does again what may be done
        already; it never aborts anything. Called for decided records only, which atomic targets do
        not write.

        :raises PublishIncomplete: not yet; the query may be started again, and tries again.
        :raises PreparedDataLost: never; a person decides.
        :raises LedgerUnreadable: the record is another sink's.
        """
        raise foreign_output_error(record)

    @abstractmethod
    def settle(self) -> LedgerRecord | None:
        """End all doubt: the last attempt is decided or gone. Return the newest ledger record."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections and threads. Never raises, never aborts anything."""


class AtomicTarget(Target):
    """One whose own commit is the decision, with the ledger's chain in the same system."""

    is_relied_on: bool = False
    """Something is done on the strength of what the ledger says even before the next commit: then
    it is confirmed."""
