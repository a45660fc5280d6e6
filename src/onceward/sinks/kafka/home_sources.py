"""The Kafka sources that lie on the cluster which the sink writes to: what can be known and kept for these alone.

Driver only; called by :mod:`target`. Three things: their offsets are committed within the transaction, for consumer
group ``pipeline_id``; those offsets betray a ledger that has lost records; and their topics' ids betray a topic that
was deleted and created again, in which the checkpoint's offsets name other records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from onceward.errors import LedgerBehind, SourceTopicReplaced
from onceward.ids import PipelineId, SourceRange, TopicPartition
from onceward.ledger.admission import Resume, is_kafka_offset
from onceward.ledger.record import LedgerRecord
from onceward.spark.query import RunningBatch
from onceward.wire.client import KafkaClient
from onceward.wire.reads.offsets import committed_offsets

_NOTE = "batch "
"""How the metadata of our offsets begin: offsets that somebody moved by hand have none, and prove nothing."""


class HomeSources:
    """What is remembered of the sources during one run."""

    def __init__(self, client: KafkaClient, pipeline: PipelineId, ledger_topic: str) -> None:
        self._client = client
        self._pipeline = pipeline
        self._ledger_topic = ledger_topic
        self._topic_ids: dict[str, str] = {}
        self._at_home: set[frozenset[str]] = set()

    def begin(self, running: RunningBatch, newest: LedgerRecord | None, resume: Resume) -> None:
        """At the start of a run, when nobody else can commit any more: do group and topics fit the ledger?

        :raises LedgerBehind: the group has been committed further than the ledger goes.
        :raises SourceTopicReplaced: …
        """
        home = self._home_by_index(running)
        if not home:
            return
        self._refuse_a_ledger_that_forgot(home, newest, resume)
        self._topic_ids = dict(newest.topic_ids) if newest else {}
        self.topic_ids(running)

    def offsets(self, running: RunningBatch) -> dict[TopicPartition, int]:
        """Where the batch ends: what its transaction commits for the group. Another cluster's cannot be in it."""
        return _least(source.end for source in self._home(running))

    def note(self, running: RunningBatch) -> str:
        """The metadata that go with :meth:`offsets`."""
        return f"{_NOTE}{running.batch.batch_id}"

    def topic_ids(self, running: RunningBatch) -> dict[str, str]:
        """The ids of the topics of the batch, for its ledger record. Asked for after the batch was read.

        Ids never come back: as it is the same now as in the ledger, it was the same while the batch was read.

        :raises SourceTopicReplaced: a topic is not the one that the ledger speaks of.
        """
        topics = {partition.topic for partition in self.offsets(running)}
        found = self._client.topic_ids(topics) if topics else {}
        replaced = sorted(name for name, known in self._topic_ids.items() if found.get(name, known) != known)
        if replaced:
            raise SourceTopicReplaced(
                f"source topic {', '.join(replaced)} was deleted and created again: its id is "
                f"{', '.join(found[name] for name in replaced)}, and the ledger ends in "
                f"{', '.join(self._topic_ids[name] for name in replaced)}; the checkpoint's offsets name other records",
                next_step="to read the new topic from its beginning, start with a new pipeline_id, a new checkpoint "
                'and kafka_source(starting="earliest"); if it holds the old records at their old offsets, start with a '
                'new pipeline_id on this checkpoint, once with resume="adopt"',
                details={"topics": replaced},
            )
        # Only what the batch reads: a topic that a pattern no longer finds may come back as another one.
        self._topic_ids = {name: known for name, known in self._topic_ids.items() if name in topics} | found
        return found

    def _home(self, running: RunningBatch) -> list[SourceRange]:
        return list(self._home_by_index(running).values())

    def _home_by_index(self, running: RunningBatch) -> dict[int, SourceRange]:
        kafka = running.kafka_sources
        return {s.index: running.sources[s.index] for s in kafka if self._is_at_home(s.bootstrap_servers)}

    def _is_at_home(self, servers: frozenset[str]) -> bool:
        """Once known it stays so: a broker that is down is not among the cluster's addresses."""
        if servers not in self._at_home and self._client.is_served_by(servers):
            self._at_home.add(servers)
        return servers in self._at_home

    def _refuse_a_ledger_that_forgot(
        self, home: Mapping[int, SourceRange], newest: LedgerRecord | None, resume: Resume
    ) -> None:
        """Offsets and ledger record commit together, so that the group never is ahead of the ledger.

        Of the ledger's sources only those at home count: another cluster may have topics of the same names.
        """
        committed = committed_offsets(self._client, self._pipeline, note=_NOTE)
        if newest is not None:
            known = _least(source.end for index, source in enumerate(newest.sources) if index in home)
        elif resume in ("adopt", "keep"):  # a chain is begun on purpose; admission says whether it may be
            known = _least(source.start for source in home.values())
        else:
            known = dict.fromkeys(committed, -1)  # no chain has begun, so nothing can be committed
        ahead = {p: offset for p, offset in committed.items() if p in known and offset > known[p]}
        if ahead:
            raise LedgerBehind(
                f"consumer group {self._pipeline} was committed by this pipeline up to {_text(ahead)}, but "
                f"{'the ledger ends before' if newest else 'there is no ledger record'}: the ledger topic "
                f"{self._ledger_topic} was deleted, truncated or restored from an older copy",
                next_step="restore the ledger topic; or, if the checkpoint's next batch begins at the group's offsets "
                f'(kafka-consumer-groups --describe --group {self._pipeline}), start once with resume="adopt" while '
                "the ledger is empty; or, to begin anew on purpose, use a new pipeline_id",
                details={"group": self._pipeline, "committed": {str(p): o for p, o in ahead.items()}},
            )


def _least(positions: Iterable[object]) -> dict[TopicPartition, int]:
    """Kafka offsets by partition; of several sources that read one partition, the one furthest behind."""
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
