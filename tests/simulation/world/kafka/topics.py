"""Topics of the cluster: how they are made, configured, grown and deleted, and who has heard of
them.

Sources: ``ReplicationControlManager``, ``StripedReplicaPlacer``, ``TopicConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from simulation.world.kafka.around import Surroundings
from simulation.world.kafka.broker import Broker, Health
from simulation.world.kafka.compaction import compacted
from simulation.world.kafka.partition import Partition
from simulation.world.kafka.settings import TOPIC_DEFAULTS, ClusterSettings
from simulation.world.kafka.transactions import Where


class Topic:
    """A topic and what it was configured to."""

    __slots__ = ("id", "internal", "name", "partitions", "settings")

    def __init__(
        self, name: str, identity: UUID, settings: dict[str, str], internal: bool
    ) -> None:
        self.name = name
        self.id = identity
        self.settings = settings
        self.internal = internal
        self.partitions: list[Partition] = []


class Topics:
    """The part of the cluster that has to do with topics."""

    around: Surroundings
    brokers: dict[int, Broker]
    health: Health
    settings: ClusterSettings
    node_ids: list[int]
    topics: dict[str, Topic]
    partitions: dict[Where, Partition]
    unheard: dict[str, dict[int, int]]
    late: dict[Where, dict[int, tuple[int, int]]]
    _topics_made: int

    @property
    def topic_defaults(self) -> dict[str, str]:
        """Settings of a topic that nobody has configured."""
        return {
            **TOPIC_DEFAULTS,
            "min.insync.replicas": "2" if len(self.brokers) >= 3 else "1",
            "max.message.bytes": str(self.settings.message_max_bytes),
        }

    def broker_settings(self) -> dict[str, str]:
        return {
            "transaction.max.timeout.ms": str(self.settings.transaction_max_timeout_ms),
            "transactional.id.expiration.ms": str(self.settings.transactional_id_expiration_ms),
            "message.max.bytes": str(self.settings.message_max_bytes),
            "default.replication.factor": str(min(3, len(self.brokers))),
            "min.insync.replicas": self.topic_defaults["min.insync.replicas"],
        }

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replicas: int | None = None,
        min_isr: int | None = None,
        compact: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Brokers hear of it one after the other (``lag("metadata")``)."""
        chosen = dict(settings or {})
        if compact:
            chosen["cleanup.policy"] = "compact"
        if min_isr is not None:
            chosen["min.insync.replicas"] = str(min_isr)
        known = {**self.topic_defaults, **chosen}
        count = replicas or min(3, len(self.brokers))
        topic = self._make_topic(
            name, partitions, count, min(count, int(known["min.insync.replicas"])), chosen
        )
        for partition in topic.partitions:
            partition.max_bytes = int(known["max.message.bytes"])
            partition.compact = "compact" in known["cleanup.policy"]
        self._spread(name)

    def _make_topic(
        self,
        name: str,
        count: int,
        replicas: int,
        min_isr: int,
        settings: dict[str, str],
        *,
        internal: bool = False,
    ) -> Topic:
        self._topics_made += 1
        topic = Topic(name, UUID(int=self._topics_made << 64 | 0x4), settings, internal)
        self.topics[name] = topic
        self._add_partitions(topic, count, replicas, min_isr)
        return topic

    def _add_partitions(self, topic: Topic, count: int, replicas: int, min_isr: int) -> None:
        self.health.told.clear()
        nodes = self.node_ids
        first = self._topics_made + self.begins_at if not topic.internal else 0
        for index in range(len(topic.partitions), count):
            # ``StripedReplicaPlacer``: those that are fenced come last
            striped = [nodes[(first + index + step) % len(nodes)] for step in range(len(nodes))]
            assigned = sorted(striped, key=lambda node: not self.brokers[node].well)[:replicas]
            partition = Partition(
                self.around, self.brokers, self.health, topic.name, index, assigned, min_isr
            )
            topic.partitions.append(partition)
            self.partitions[topic.name, index] = partition

    def add_partitions(self, name: str, count: int) -> None:
        """``CreatePartitions``: from now on it has ``count`` of them."""
        topic = self.topics[name]
        first = topic.partitions[0]
        self._add_partitions(topic, count, len(first.replicas), first.min_isr)
        for partition in topic.partitions:
            partition.max_bytes, partition.compact = first.max_bytes, first.compact

    def delete_topic(self, name: str) -> None:
        """Whoever has something open with a leader is told that he leads no more."""
        self.health.told.clear()
        for partition in self.topics.pop(name).partitions:
            del self.partitions[name, partition.index]
            self.late.pop((name, partition.index), None)
            for led in (partition.led, *partition.stale.values()):
                if led is not None:
                    led.let_go(3)
            partition.led = None
        self.unheard.pop(name, None)

    def delete_records(self, name: str, index: int, before: int) -> None:
        """Retention, or ``DeleteRecords``: never beyond the high watermark."""
        partition = self.partitions[name, index]
        partition.settle()
        partition.log.forget_before(before)

    def compact(self, name: str, index: int, *, markers: bool = False) -> None:
        """The log cleaner passes. ``markers``: also over those that are older than
        ``delete.retention.ms``.
        """
        partition = self.partitions[name, index]
        partition.settle()
        compacted(partition.log, markers=markers)

    def _spread(self, name: str) -> None:
        """The news of a topic."""
        now = self.around.now_ms()
        late = {
            node: now + int(lag)
            for node in self.node_ids
            if (lag := self.around.lag("metadata")) > 0
        }
        if late:
            self.unheard[name] = late

    def unheard_of(self, name: str, node: int) -> bool:
        """Has ``node`` not heard of a topic that there is?"""
        late = self.unheard.get(name)
        if late is None or node not in late:
            return False
        if not self.brokers[node].isolated and self.around.now_ms() >= late[node]:
            del late[node]
            if not late:
                del self.unheard[name]
            return False
        return True
