"""The way in: a cluster that answers Onceward's own requests, and the truth about it for judges.
See the package.

``receive`` takes the very objects that the product's code has built. Nothing waits here: what
takes time is asked of the :class:`~simulation.world.kafka.around.Surroundings`, which call back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceward.kafka.wire.appends.produce_frame import ProduceFrame
from simulation.world.kafka import admin, produce, reads, transaction_requests
from simulation.world.kafka.around import Surroundings
from simulation.world.kafka.broker import Broker, Health, Held
from simulation.world.kafka.coordinator import Coordinator
from simulation.world.kafka.faulty import FaultyAnswers
from simulation.world.kafka.groups import GroupCoordinator
from simulation.world.kafka.nodes import Nodes
from simulation.world.kafka.partition import NOBODY, Led, Partition
from simulation.world.kafka.producers import ProducerState, marker_refused
from simulation.world.kafka.settings import (
    OFFSETS_TOPIC,
    OLD,
    STATE_TOPIC,
    ClusterSettings,
    newest_versions,
)
from simulation.world.kafka.topics import Topic, Topics
from simulation.world.kafka.transactions import Where
from simulation.world.kafka.truth import Truth

Reply = Callable[[Any], None]
Handler = Callable[[Any, Broker, int, Any, Reply], None]

HANDLERS: Mapping[type, tuple[str, Handler]] = {
    ProduceFrame: ("Produce", produce.produce),
    FetchRequest: ("Fetch", reads.fetch),
    ListOffsetsRequest: ("ListOffsets", reads.list_offsets),
    DescribeProducersRequest: ("DescribeProducers", reads.describe_producers),
    MetadataRequest: ("Metadata", admin.metadata),
    OffsetFetchRequest: ("OffsetFetch", transaction_requests.offset_fetch),
    FindCoordinatorRequest: ("FindCoordinator", admin.find_coordinator),
    ApiVersionsRequest: ("ApiVersions", admin.api_versions),
    CreateTopicsRequest: ("CreateTopics", admin.create_topics),
    InitProducerIdRequest: ("InitProducerId", transaction_requests.init_producer_id),
    AddPartitionsToTxnRequest: ("AddPartitionsToTxn", transaction_requests.add_partitions),
    AddOffsetsToTxnRequest: ("AddOffsetsToTxn", transaction_requests.add_offsets),
    EndTxnRequest: ("EndTxn", transaction_requests.end_txn),
    TxnOffsetCommitRequest: ("TxnOffsetCommit", transaction_requests.txn_offset_commit),
    DescribeConfigsRequest: ("DescribeConfigs", admin.describe_configs),
    DescribeTransactionsRequest: ("DescribeTransactions", transaction_requests.describe),
}
_PRODUCER_BLOCK = 1_000  # ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``


class Cluster(Nodes, Topics, Truth):
    """See the module.

    :param transaction_version: the finalised level of ``transaction.version``; 3.9.1 has none but
        speaks version 1.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        brokers: int = 3,
        transaction_version: int = 2,
        settings: ClusterSettings | None = None,
    ) -> None:
        self.around = around
        self.settings = settings or ClusterSettings()
        self.old = self.settings.version == OLD
        self.transaction_version = 1 if self.old else transaction_version
        self.versions = newest_versions(self.settings.version)
        self.brokers = {node: Broker(node) for node in range(1, brokers + 1)}
        self.node_ids = list(self.brokers)
        self.health = Health(around)
        self.marker_lags = around.is_on("lag:markers")
        self.verify_lags = around.is_on("lag:verify")
        self.slow_state_log = around.is_on("kafka:state log slow")
        self.short_fetches = around.is_on("kafka:short fetch")
        self.cluster_id = "simulated-cluster"
        self.no_id = UUID(int=0)
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[Where, Partition] = {}
        self.unheard: dict[str, dict[int, int]] = {}
        """Topic → node → until when (ms) it has not heard of it."""
        self.late: dict[Where, dict[int, tuple[int, int]]] = {}
        """Partition → node → until when (ms) it has not heard of the new leader, and whom it
        believes in.
        """
        self.coordinators: dict[Led, Coordinator] = {}
        self.group_coordinators: dict[Led, GroupCoordinator] = {}
        self._homes: dict[str, Partition] = {}
        self._group_homes: dict[str, Partition] = {}
        self._negotiated: dict[tuple[type, int | None, int | None], int] = {}
        self._next_block = 0
        self._topics_made = 0
        self.ids_forgotten = 0
        """How often a transactional id has expired."""
        self.begins_at = 0
        """Where replicas are placed first: ``StripedReplicaPlacer`` draws it for each topic."""
        min_isr = self.settings.internal_min_isr or (2 if brokers >= 3 else 1)
        for name, count in (
            (STATE_TOPIC, self.settings.transaction_state_partitions),
            (OFFSETS_TOPIC, self.settings.offsets_partitions),
        ):
            topic = self._make_topic(
                name, count, min(3, brokers), min_isr, {"cleanup.policy": "compact"}, internal=True
            )
            for partition in topic.partitions:
                partition.on_leader = self._coordinators_move
                self._coordinators_move(partition)
        faults = FaultyAnswers(around)
        self._faults = faults if faults.any else None

    # ── requests ──

    def negotiate(self, request: Any) -> int:
        """The version that both sides speak (kafka-python's ``BrokerVersionData.api_version``).

        :raises kafka.errors.IncompatibleBrokerVersion: there is none.
        """
        api = HANDLERS[type(request)][0]
        lowest, highest = request._min_version or 0, request._max_version
        newest = self.versions[api]
        version = newest if highest is None or highest > newest else highest
        if version < lowest:
            raise kafka_errors.IncompatibleBrokerVersion(
                f"{api}: {lowest} is needed, and {newest} is the newest here"
            )
        return int(version)

    def receive(self, node: int | str, client: str, request: Any, reply: Reply) -> None:
        """A request arrives at a node. ``reply`` is called once, with the answer or None: the
        connection broke.

        :raises kafka.errors.IncompatibleBrokerVersion: before anything else, as kafka-python does
            at the client's side.
        """
        api, handler = HANDLERS[request.__class__]
        asked = (request.__class__, request._min_version, request._max_version)
        version = self._negotiated.get(asked)
        if version is None:
            version = self._negotiated[asked] = self.negotiate(request)
        broker = self.brokers.get(node)  # type: ignore[arg-type]
        if broker is None:
            broker = self.brokers[
                int(str(node).rpartition("-")[2])
            ]  # a bootstrap server, by its number
        if not broker.up:
            reply(None)
            return
        if self._faults is not None:
            reply_or_done = self._faults.befall(self, api, broker, version, request, reply)
            if reply_or_done is None:
                return
            reply = reply_or_done
        handler(self, broker, version, request, reply)

    def silent(self, broker: Broker, reply: Reply) -> None:
        """Nobody answers, until the connection breaks."""
        Held(broker, reply)

    # ── who coordinates what ──

    def home_of(self, name: str) -> Partition:
        """``TransactionStateManager.partitionFor``."""
        home = self._homes.get(name)
        if home is None:
            count = self.settings.transaction_state_partitions
            home = self._homes[name] = self.partitions[STATE_TOPIC, java_hash(name) % count]
        return home

    def group_home_of(self, group: str) -> Partition:
        """``GroupCoordinatorService.partitionFor``."""
        home = self._group_homes.get(group)
        if home is None:
            count = self.settings.offsets_partitions
            home = self._group_homes[group] = self.partitions[
                OFFSETS_TOPIC, java_hash(group) % count
            ]
        return home

    def coordinator_at(self, name: str, broker: Broker) -> Coordinator | None:
        """The coordinator of an id, if it is ``broker`` as far as that knows."""
        led = self.home_of(name).led_by(broker.node)
        return None if led is None else self.coordinators[led]

    def group_coordinator_at(self, group: str, broker: Broker) -> GroupCoordinator | None:
        led = self.group_home_of(group).led_by(broker.node)
        return None if led is None else self.group_coordinators[led]

    def coordinator_for(self, name: str, asking: Broker) -> Coordinator | int:
        """The coordinator of an id as another broker finds it, or the error with which it comes
        back.
        """
        home = self.home_of(name)
        if self.health.well and not self.late:
            led = home.led
            return 15 if led is None else self.coordinators[led]
        leader = self.leader_seen_by(asking, home)
        if leader == NOBODY or self.brokers[leader].fenced:
            return 15
        other = self.brokers[leader]
        if not other.up or (leader != asking.node and (asking.isolated or other.isolated)):
            return 13
        led = home.led_by(leader)
        return 16 if led is None else self.coordinators[led]

    def _coordinators_move(self, partition: Partition) -> None:
        """``onElection`` and ``onResignation``. Whoever does not know that he is deposed goes
        on.
        """
        transactions = partition.topic == STATE_TOPIC
        known: dict[Led, Any] = self.coordinators if transactions else self.group_coordinators  # type: ignore[assignment]
        current = [partition.led, *partition.stale.values()]
        for led in [
            led
            for led, each in known.items()
            if each.partition is partition and led not in current
        ]:
            known.pop(led).resign()
        led = partition.led
        if led is not None and led not in known:
            made = (
                Coordinator(self, partition, led)
                if transactions
                else GroupCoordinator(self, partition, led)
            )
            known[led] = made
            made.load()

    # ── for coordinators and leaders ──

    def new_producer(self, node: int) -> int:
        """``ProducerIdManager``: each broker has a block of ids."""
        broker = self.brokers[node]
        if broker.next_producer == broker.producers_end:
            broker.next_producer = self._next_block
            self._next_block += _PRODUCER_BLOCK
            broker.producers_end = self._next_block
        broker.next_producer += 1
        return broker.next_producer - 1

    def forgets(self, state: ProducerState) -> bool:
        """Has a producer been silent for so long that partitions forget it
        (``isProducerExpired``)?
        """
        return self.around.now_ms() - state.last_ms >= self.settings.producer_id_expiration_ms

    def write_marker(
        self,
        where: Where,
        producer: int,
        epoch: int,
        commit: bool,
        coordinator_epoch: int,
        version: int,
    ) -> int | tuple[Partition, Led]:
        """``WriteTxnMarkers`` to the leader of one partition: how it went, or whose
        acknowledgement is awaited.
        """
        partition = self.partitions.get(where)
        if partition is None:
            return (
                0  # deleted meanwhile: there is nothing to mark (``addTxnMarkersToBrokerQueue``)
            )
        led = partition.led
        if led is None or not (self.health.well or self.brokers[led.node].well):
            return 6
        if len(partition.isr) < partition.min_isr:
            return 19
        log = led.log
        refused = marker_refused(
            log.producers.get(producer), epoch, coordinator_epoch, version, self.old
        )
        if refused:
            return refused
        entry = log.end_transaction(
            producer, epoch, commit, coordinator_epoch, led.epoch, self.around.now_ms()
        )
        if where[0] == OFFSETS_TOPIC:
            self.group_coordinators[led].marked(entry)
        return 0 if partition.appended(led) else (partition, led)

    def known_groups(self) -> Iterable[str]:
        """Groups that have committed anything."""
        return sorted(
            {group for each in self.group_coordinators.values() for group in each.offsets}
        )


def java_hash(text: str) -> int:
    """``Utils.abs(String.hashCode())``."""
    value = 0
    for unit in text:
        value = (value * 31 + ord(unit)) & 0xFFFFFFFF
    value = value - (1 << 32) if value & 0x80000000 else value
    return 0 if value == -(1 << 31) else abs(value)
