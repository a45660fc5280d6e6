"""``Fetch``, ``ListOffsets`` and ``DescribeProducers``.

Sources: ``ReplicaManager.fetchMessages`` and ``readFromLog``, ``UnifiedLog.read``,
``DelayedFetch``, ``Partition.fetchOffsetForTimestamp``, ``ReplicaManager.activeProducerState``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.world.kafka.answers import (
    AbortedTransaction,
    Answer,
    FetchAnswer,
    Fetched,
    FetchedTopic,
    OfPartition,
    OfTopic,
    OfTopics,
)
from simulation.world.kafka.broker import Broker, Held
from simulation.world.kafka.partition import Led

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, NOT_AVAILABLE_YET = 1, 3, 6, 78
EARLIEST, LATEST = -2, -1
_TELLS_NOT_AVAILABLE = 5


def fetch(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """At once if there is anything to tell, else when the time is up."""
    answer = _fetched(cluster, broker, request)
    if request.max_wait_ms > 0 and not any(
        p.records or p.error_code for t in answer.responses for p in t.partitions
    ):
        held = Held(broker, reply)
        cluster.around.later(
            request.max_wait_ms, lambda: held(_fetched(cluster, broker, request)), "Fetch"
        )
        return
    reply(answer)


def _fetched(cluster: Cluster, broker: Broker, request: Any) -> FetchAnswer:
    committed = request.isolation_level == 1
    topics = []
    for topic in request.topics:
        parts = []
        for wanted in topic.partitions:
            led = _led(cluster, broker, topic.topic, wanted.partition)
            if isinstance(led, int):
                parts.append(Fetched(wanted.partition, led))
            else:
                short = cluster.short_fetches and cluster.around.fires("kafka:short fetch")
                parts.append(
                    _read(led, wanted, committed, 1 if short else wanted.partition_max_bytes)
                )
        topics.append(FetchedTopic(topic.topic, parts))
    return FetchAnswer(topics)


def _read(led: Led, wanted: Any, committed: bool, most_bytes: int) -> Fetched:
    log = led.log
    offset = wanted.fetch_offset
    if not log.start <= offset <= log.end:
        return Fetched(wanted.partition, OUT_OF_RANGE)
    stable = log.stable()
    found = Fetched(wanted.partition, 0, log.high, stable)
    found.log_start_offset = log.start
    found.records, upto = log.read(offset, stable if committed else log.high, most_bytes)
    if committed:
        aborted = log.aborted_in(offset, upto)
        found.aborted_transactions = [
            AbortedTransaction(producer, first) for producer, first in aborted
        ]
    return found


def list_offsets(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Each partition's offset, or its error."""
    committed = request.isolation_level == 1
    topics = []
    for topic in request.topics:
        parts = []
        for wanted in topic.partitions:
            led = _led(cluster, broker, topic.name, wanted.partition_index)
            if isinstance(led, int):
                parts.append(OfPartition(wanted.partition_index, led))
                continue
            code, offset = _offset(led, wanted.timestamp, committed, version)
            parts.append(OfPartition(wanted.partition_index, code, offset))
        topics.append(OfTopic(topic.name, parts))
    reply(OfTopics(topics))


def describe_producers(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Each partition's producers, or its error."""
    reply(
        Answer(
            throttle_time_ms=0,
            topics=[
                Answer(
                    name=topic.name,
                    partitions=[
                        _producers(index, _led(cluster, broker, topic.name, index))
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ],
        )
    )


def _producers(index: int, led: Led | int) -> Answer:
    code, producers = (led, {}) if isinstance(led, int) else (0, led.log.producers)
    return Answer(
        partition_index=index,
        error_code=code,
        error_message=None,
        active_producers=[
            Answer(
                producer_id=producer,
                producer_epoch=state.epoch,
                last_sequence=-1,
                last_timestamp=state.last_ms,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.open_since,
            )
            for producer, state in sorted(producers.items())
        ],
    )


def _offset(led: Led, timestamp: int, committed: bool, version: int) -> tuple[int, int]:
    log = led.log
    if timestamp == EARLIEST:
        return 0, log.start
    if timestamp == LATEST:
        if (
            led.epoch_start > log.high
        ):  # a new leader does not know yet what was committed before him
            return (NOT_AVAILABLE_YET if version >= _TELLS_NOT_AVAILABLE else 5), -1
        return 0, log.stable() if committed else log.high
    for entry in log.entries:
        if entry.time_ms >= timestamp and entry.last < log.high:
            return 0, max(entry.base, log.start)
    return 0, -1


def _led(cluster: Cluster, broker: Broker, topic: str, index: int) -> Led | int:
    partition = cluster.partitions.get((topic, index))
    if partition is None or (cluster.unheard and cluster.unheard_of(topic, broker.node)):
        return UNKNOWN_TOPIC
    return partition.led_by(broker.node) or NOT_LEADER
