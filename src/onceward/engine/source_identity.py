"""Identity of a query's sources: detects a source that was deleted and created again. Driver only.

Called by ``engine.micro_batch`` for every batch. Offsets belong to one source, and mean nothing in
another one of the same name. A connector says what tells its sources apart; the engine loads the
connector of those that a batch reads, so that no sink has to know any source.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql.streaming.query import StreamingQuery

from onceward import patience
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import OncewardError, PartitionsAdded, SourceDataLost
from onceward.spark.batch.query import KafkaSource, RunningBatch, ended_batch

log = logging.getLogger(__name__)

ClientFor = Callable[[KafkaSource], Any]
"""Returns a client of the cluster that a source reads from, or None where there is none."""

_KAFKA = "onceward.kafka.source.identity"
_ASK_MS = 10_000


class SourceIdentity(Protocol):
    """Compares a batch's sources with those of the ledger. One for each run of a query."""

    def start(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
        """Begin a run, before its first batch: the ledger ends with ``newest``.

        :raises AdmissionRefused: as :meth:`identify`.
        """

    def check_parts(self, running: RunningBatch) -> None:
        """Check that the batch leaves out no part of a source that is still there; identify what
        no batch before has read. Called before each attempt.

        :raises AccessDenied, PartitionsAdded: it leaves one out.
        :raises AdmissionRefused: as :meth:`identify`.
        """

    def must_not_go_back(self, running: RunningBatch) -> None:
        """Check that no source goes back behind what was read. Called before each attempt, unless
        somebody has decided that it may.

        :raises SourceDataLost: one does, and its records may still be there.
        """

    def identify(self, running: RunningBatch) -> tuple[Any, ...]:
        """Return for each source what tells it from others (JSON; None: unknown). Called after the
        batch was read.

        :raises AdmissionRefused: a source is not the one that the ledger speaks of.
        """

    def explain(self, lost: OncewardError, running: RunningBatch) -> OncewardError:
        """Return what it means that Spark takes records of the batch for lost, or its partitions
        for others: ``lost``, or what the source itself says.
        """


class UnknownIdentity:
    """Sources known by nothing but their offsets, which may hold their identity."""

    def start(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
        """Remember nothing."""

    def check_parts(self, running: RunningBatch) -> None:
        """Check nothing."""

    def must_not_go_back(self, running: RunningBatch) -> None:
        """Check nothing."""

    def identify(self, running: RunningBatch) -> tuple[Any, ...]:
        """Return None for each source."""
        return (None,) * len(running.sources)

    def explain(self, lost: OncewardError, running: RunningBatch) -> OncewardError:
        """Return the error as it is."""
        return lost


def source_identity(running: RunningBatch, client_for: ClientFor | None) -> SourceIdentity:
    """Return what identifies the sources that ``running`` reads, by ``client_for`` where the
    target's system can be read as well; other sources by their own clients."""
    if not running.kafka_sources:
        return UnknownIdentity()
    # By name: an import would load the Kafka client for every query, and point up from the engine
    # to a connector.
    identity: SourceIdentity = importlib.import_module(_KAFKA).KafkaSourceIdentity(client_for)
    return identity


def explain_outside(error: OncewardError, query: StreamingQuery) -> OncewardError:
    """Return ``error``, with which Spark has ended ``query`` outside of the batch's function; or,
    of what it takes for lost, what the source says.
    """
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
