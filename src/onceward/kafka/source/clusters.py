"""The Kafka clusters that this process has sources on, and how to talk to them. Driver only.

``kafka_source`` notes each; sinks whose target is not Kafka ask here for a client, to see that a
source is still the same (:mod:`onceward.kafka.source.identity`). Of a source that was defined
without ``kafka_source`` nothing is known.
"""

from __future__ import annotations

from dataclasses import replace

from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.spark.batch.query import KafkaSource

_known: dict[frozenset[str], ClientSettings | None] = {}


def remember(settings: ClientSettings) -> None:
    """Remember ``settings`` for the cluster that they name. Where there are two logins nobody can
    tell whose source it is, and nothing is known of it.
    """
    servers = frozenset(settings.bootstrap_servers)
    known = _known.setdefault(servers, settings)
    if known is not None and replace(known, client_id=settings.client_id) != settings:
        _known[servers] = None


def client_for(source: KafkaSource) -> KafkaClient | None:
    """Return a client of the cluster that ``source`` reads from, shared by all who ask."""
    settings = _known.get(source.bootstrap_servers)
    return None if settings is None else KafkaClient.shared(settings)
