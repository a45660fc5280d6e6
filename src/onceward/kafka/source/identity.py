"""Identity of Kafka topics: a topic that was deleted and created again has another id. Driver
only.

Loaded by :func:`onceward.engine.source_identity.source_identity`, called for every batch. In a
topic that was created again the checkpoint's offsets name other records: Spark would read on
there, or take the missing ones for lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.source_identity import ClientFor
from onceward.errors import SourceTopicReplaced
from onceward.ids import SourceRange, is_kafka_offset
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.spark.batch.query import KafkaSource, RunningBatch

_known: dict[frozenset[str], ClientSettings | None] = {}
_sinks: dict[frozenset[str], ClientSettings] = {}


def remember(settings: ClientSettings) -> None:
    """Remember ``settings`` for the cluster that they name. Where there are two logins nobody can
    tell whose source it is, and nothing is known of it.
    """
    servers = frozenset(settings.bootstrap_servers)
    known = _known.setdefault(servers, settings)
    if known is not None and replace(known, client_id=settings.client_id) != settings:
        _known[servers] = None


def known_client(source: KafkaSource) -> KafkaClient | None:
    """Return a client of the cluster that ``source`` reads from, shared by all who ask."""
    settings = _known.get(source.bootstrap_servers)
    return None if settings is None else KafkaClient.shared(settings)


def known_settings(servers: frozenset[str]) -> ClientSettings | None:
    """Return settings for the cluster: those of ``kafka_source``, else those of a sink there."""
    return _known.get(servers) or _sinks.get(servers)


def remember_sink(servers: frozenset[str], settings: ClientSettings) -> None:
    """Remember that a sink with ``settings`` writes to the cluster that ``servers`` name."""
    _sinks[servers] = settings


class KafkaSourceIdentity:
    """One for each run of a query. The identity of a source is ``{topic: topic id}``, of the
    topics that it reads.

    :param client_for: None: a client for each cluster that ``kafka_source`` reads from.
    """

    def __init__(self, client_for: ClientFor | None = None) -> None:
        self._client_for = client_for or known_client
        self._known: dict[int, dict[str, str]] = {}

    def start(self, running: RunningBatch, newest: LedgerRecord | None) -> None:
        """Compare the topics with those of the ledger's newest record, before the first batch of a
        run.

        :raises SourceTopicReplaced: as :meth:`identify`.
        """
        identities = [source.identity for source in newest.sources] if newest else []
        self._known = {
            i: dict(each) for i, each in enumerate(identities) if isinstance(each, Mapping)
        }
        self.identify(running)

    def check_new_parts(self, running: RunningBatch) -> None:
        """Identify the topics that no batch before has read.

        :raises SourceTopicReplaced: as :meth:`identify`.
        """
        # 1. A topic appears in mid-run, and this batch reads it.
        # 2. It is deleted and created again while the batch reads.
        # 3. Identified only now, the ledger would name the second topic, with the offsets of the
        #    first.
        for source in running.kafka_sources:
            if (
                source_topics(running.sources[source.index])
                - self._known.get(source.index, {}).keys()
            ):
                self.identify(running)
                return

    def identify(self, running: RunningBatch) -> tuple[Any, ...]:
        """Return the ids of the topics. Ids never come back: those that are still the ledger's
        were so during the read.

        :raises SourceTopicReplaced: a topic is not the one that the ledger speaks of.
        """
        wanted: dict[KafkaClient, set[str]] = {}
        for source in running.kafka_sources:
            if (client := self._client_for(source)) is not None:
                wanted.setdefault(client, set()).update(
                    source_topics(running.sources[source.index])
                )
        ids = {client: client.topic_ids(topics) for client, topics in wanted.items() if topics}
        found: list[Any] = [None] * len(running.sources)
        for source in running.kafka_sources:
            topics = source_topics(running.sources[source.index])
            client = self._client_for(source)
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


def source_topics(source: SourceRange) -> set[str]:
    """Return the topics that the batch has offsets of."""
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
            "records",
            next_step="to read the new topic from its beginning, start with a new pipeline_id, a "
            'new checkpoint and kafka_source(starting="earliest"); if it holds the old records at '
            "their old offsets, start with a new pipeline_id on this checkpoint, once with "
            'resume="adopt"',
            details={"topics": replaced},
        )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
