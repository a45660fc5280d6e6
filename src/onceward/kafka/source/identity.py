"""Is a Kafka topic still the same topic? One that was deleted and created again has another id.
Driver only.

Called by the engine for every batch, as the :class:`~onceward.engine.target.Witness` of a target.
In a topic that was created again the checkpoint's offsets name other records: Spark would read on
there, or take the missing ones for lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onceward.engine.ledger.admission import is_kafka_offset
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import SourceTopicReplaced
from onceward.ids import SourceRange
from onceward.kafka.wire.client import KafkaClient
from onceward.spark.batch.query import KafkaSource, RunningBatch

ClientOf = Callable[[KafkaSource], KafkaClient | None]
"""A client of the cluster that a source reads from; None where there is none, and then nothing is
known.
"""


class KafkaWitness:
    """One for each run of a query. The witness of a source is ``{topic: topic id}``, of the topics
    that it reads.
    """

    def __init__(self, client_of: ClientOf) -> None:
        self._client_of = client_of
        self._known: dict[int, dict[str, str]] = {}

    def begin(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
        """:raises SourceTopicReplaced: …"""
        witnesses = [source.witness for source in newest.sources] if newest else []
        self._known = {
            i: dict(each) for i, each in enumerate(witnesses) if isinstance(each, Mapping)
        }
        self.of(running)

    def before(self, running: RunningBatch) -> None:
        """Who is new has to be known before it is read. A topic that appeared in mid-run, and was
        replaced while this batch read it, would be the second topic in the ledger, and of the
        second topic the offsets that were read of the first one would never be.

        :raises SourceTopicReplaced: …
        """
        for source in running.kafka_sources:
            if topics_of(running.sources[source.index]) - self._known.get(source.index, {}).keys():
                self.of(running)
                return

    def of(self, running: RunningBatch) -> tuple[Any, ...]:
        """Ids never come back: as they are now the same as in the ledger, they were while the
        batch was read.

        :raises SourceTopicReplaced: a topic is not the one that the ledger speaks of.
        """
        wanted: dict[KafkaClient, set[str]] = {}
        for source in running.kafka_sources:
            if (client := self._client_of(source)) is not None:
                wanted.setdefault(client, set()).update(topics_of(running.sources[source.index]))
        ids = {client: client.topic_ids(topics) for client, topics in wanted.items() if topics}
        found: list[Any] = [None] * len(running.sources)
        for source in running.kafka_sources:
            topics = topics_of(running.sources[source.index])
            client = self._client_of(source)
            if client is not None and topics:
                # Only what the batch reads: a topic that a pattern no longer finds may come back
                # as another one.
                known = _only(topics, self._known.get(source.index, {}))
                now = _only(topics, ids[client])
                _refuse_others(known, now)
                found[source.index] = self._known[source.index] = dict(
                    sorted((known | now).items())
                )
        return tuple(found)


def _only(topics: set[str], ids: Mapping[str, str]) -> dict[str, str]:
    return {name: topic_id for name, topic_id in ids.items() if name in topics}


def topics_of(source: SourceRange) -> set[str]:
    """The topics that the batch has offsets of."""
    return set(source.end) if is_kafka_offset(source.end) else set()


def _refuse_others(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    replaced = sorted(
        name for name, topic_id in known.items() if found.get(name, topic_id) != topic_id
    )
    if replaced:
        raise SourceTopicReplaced(
            f"source topic {_joined(replaced)} was deleted and created again: its id is "
            f"{_joined(found[name] for name in replaced)}, and the ledger ends in "
            f"{_joined(known[name] for name in replaced)}; the checkpoint's offsets name other "
            f"records",
            next_step="to read the new topic from its beginning, start with a new pipeline_id, a "
            "new checkpoint "
            'and kafka_source(starting="earliest"); if it holds the old records at their old '
            "offsets, start with a "
            'new pipeline_id on this checkpoint, once with resume="adopt"',
            details={"topics": replaced},
        )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
