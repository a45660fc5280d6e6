"""The offsets of Kafka sources that lie on the cluster which the sink writes to. Driver only;
called by :mod:`target`.

They are committed within the transaction, for consumer group ``pipeline_id``; and they betray a
ledger that has lost records: offsets and ledger record commit together, so that the group never is
ahead of the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from onceward.engine.ledger.admission import Resume, is_kafka_offset
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import LedgerBehind
from onceward.ids import PipelineId, SourceRange, TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.offsets import committed_offsets
from onceward.spark.batch.query import KafkaSource, RunningBatch

_NOTE = "batch "
"""How the metadata of our offsets begin: offsets that somebody moved by hand have none, and prove
nothing.
"""


class GroupOffsets:
    """The pipeline's consumer group, during one run."""

    def __init__(self, client: KafkaClient, pipeline: PipelineId, ledger_topic: str) -> None:
        self._client = client
        self._pipeline = pipeline
        self._ledger_topic = ledger_topic
        self._at_home: set[frozenset[str]] = set()

    def client_of(self, source: KafkaSource) -> KafkaClient | None:
        """The sink's own client, for a source that lies on the same cluster.

        Once known it stays so: a broker that is down is not among the cluster's addresses.
        """
        servers = source.bootstrap_servers
        if servers not in self._at_home and self._client.is_served_by(servers):
            self._at_home.add(servers)
        return self._client if servers in self._at_home else None

    def of(self, running: RunningBatch) -> dict[TopicPartition, int]:
        """Where the batch ends: what its transaction commits for the group. Another cluster's
        cannot be in it.
        """
        return _least(source.end for source in self._home(running).values())

    def note(self, running: RunningBatch) -> str:
        """The metadata that go with :meth:`of`."""
        return f"{_NOTE}{running.batch.batch_id}"

    def refuse_a_ledger_that_forgot(
        self, running: RunningBatch, newest: LedgerRecord | None, resume: Resume
    ) -> None:
        """At the start of a run, when nobody else can commit any more: does the group fit the
        ledger?

        Of the ledger's sources only those at home count: another cluster may have topics of the
        same names.

        :raises LedgerBehind: the group has been committed further than the ledger goes.
        """
        home = self._home(running)
        if not home:
            return
        committed = committed_offsets(self._client, self._pipeline, note=_NOTE)
        if newest is not None:
            known = _least(
                source.end for index, source in enumerate(newest.sources) if index in home
            )
        elif resume in (
            "adopt",
            "keep",
        ):  # a chain is begun on purpose; admission says whether it may be
            known = _least(source.start for source in home.values())
        else:
            known = dict.fromkeys(committed, -1)  # no chain has begun, so nothing can be committed
        ahead = {p: offset for p, offset in committed.items() if p in known and offset > known[p]}
        if ahead:
            raise LedgerBehind(
                f"consumer group {self._pipeline} was committed by this pipeline up to "
                f"{_text(ahead)}, but "
                f"{'the ledger ends before' if newest else 'there is no ledger record'}: the "
                f"ledger topic "
                f"{self._ledger_topic} was deleted, truncated or restored from an older copy",
                next_step="restore the ledger topic; or, if the checkpoint's next batch begins at "
                "the group's offsets "
                f"(kafka-consumer-groups --describe --group {self._pipeline}), start once with "
                f'resume="adopt" while '
                "the ledger is empty; or, to begin anew on purpose, use a new pipeline_id",
                details={
                    "group": self._pipeline,
                    "committed": {str(p): o for p, o in ahead.items()},
                },
            )

    def _home(self, running: RunningBatch) -> dict[int, SourceRange]:
        kafka = running.kafka_sources
        return {s.index: running.sources[s.index] for s in kafka if self.client_of(s) is not None}


def _least(positions: Iterable[object]) -> dict[TopicPartition, int]:
    """Kafka offsets by partition; of several sources that read one partition, the one furthest
    behind.
    """
    offsets: dict[TopicPartition, int] = {}
    for position in positions:
        if isinstance(position, Mapping) and is_kafka_offset(position):
            for topic, partitions in position.items():
                for number, offset in partitions.items():
                    key = TopicPartition(topic, int(number))
                    offsets[key] = min(offset, offsets.get(key, offset))
    return offsets


def _text(offsets: Mapping[TopicPartition, int], limit: int = 20) -> str:
    shown = dict(sorted((str(partition), offset) for partition, offset in offsets.items())[:limit])
    return json.dumps(shown) + (" …" if len(offsets) > limit else "")
