"""An answer of each kind with nothing in it but an error code, where that request's answers have
it.

Source: ``getErrorResponse`` of each request of kafka-clients.
"""

from __future__ import annotations

from typing import Any

from simulation.world.kafka.answers import (
    Answer,
    Coded,
    FetchAnswer,
    Fetched,
    FetchedTopic,
    Identified,
    OfPartition,
    OfTopic,
    OfTopics,
    ProduceAnswer,
    Produced,
    ProducedTopic,
)

_BUMPS = 5


def refusal(api: str, version: int, request: Any, code: int) -> Any:
    """``request``, refused with ``code``."""
    return _REFUSED[api](version, request, code)


def _produce(version: int, request: Any, code: int) -> ProduceAnswer:
    topics: dict[str, list[Produced]] = {}
    for topic, index in request._batches:
        topics.setdefault(topic, []).append(Produced(index, code, -1))
    return ProduceAnswer([ProducedTopic(topic, parts) for topic, parts in topics.items()])


def _fetch(version: int, request: Any, code: int) -> FetchAnswer:
    return FetchAnswer(
        [
            FetchedTopic(topic.topic, [Fetched(p.partition, code) for p in topic.partitions])
            for topic in request.topics
        ]
    )


def _by_partition(version: int, request: Any, code: int) -> OfTopics:
    return OfTopics(
        [
            OfTopic(topic.name, [OfPartition(p.partition_index, code) for p in topic.partitions])
            for topic in request.topics
        ]
    )


def _add_partitions(version: int, request: Any, code: int) -> OfTopics:
    return OfTopics(
        [
            OfTopic(topic.name, [OfPartition(index, code) for index in topic.partitions])
            for topic in request.v3_and_below_topics
        ]
    )


def _metadata(version: int, request: Any, code: int) -> Answer:
    topics = [
        Answer(error_code=code, name=topic.name, topic_id=None, is_internal=False, partitions=[])
        for topic in request.topics or ()
    ]
    return Answer(
        throttle_time_ms=0,
        error_code=0,
        brokers=[],
        cluster_id="simulated-cluster",
        controller_id=-1,
        topics=topics,
    )


def _find_coordinator(version: int, request: Any, code: int) -> Answer:
    keys = request.coordinator_keys or [request.key]
    return Answer(
        throttle_time_ms=0,
        coordinators=[
            Answer(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
            for key in keys
        ],
    )


def _describe(version: int, request: Any, code: int) -> Answer:
    states = [
        Answer(error_code=code, transactional_id=name, producer_id=0, producer_epoch=0,
        transaction_state="",
               transaction_timeout_ms=0, transaction_start_time_ms=0, topics=[])
        for name in request.transactional_ids
    ]  # fmt: skip
    return Answer(throttle_time_ms=0, transaction_states=states)


def _offset_fetch(version: int, request: Any, code: int) -> Answer:
    groups = [
        Answer(group_id=group.group_id, error_code=code, topics=[]) for group in request.groups
    ]
    return Answer(throttle_time_ms=0, error_code=code, groups=groups)


_REFUSED = {
    "Produce": _produce,
    "Fetch": _fetch,
    "ListOffsets": _by_partition,
    "TxnOffsetCommit": _by_partition,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": lambda version, request, code: Coded(code),
    "EndTxn": lambda version, request, code: (
        Identified(code) if version >= _BUMPS else Coded(code)
    ),
    "InitProducerId": lambda version, request, code: Identified(code),
    "Metadata": _metadata,
    "FindCoordinator": _find_coordinator,
    "DescribeTransactions": _describe,
    "OffsetFetch": _offset_fetch,
    "CreateTopics": lambda version, request, code: Answer(
        throttle_time_ms=0,
        topics=[Answer(name=t.name, error_code=code, error_message=None) for t in request.topics],
    ),
    "DescribeConfigs": lambda version, request, code: Answer(
        throttle_time_ms=0,
        results=[
            Answer(error_code=code, error_message=None, configs=[]) for _ in request.resources
        ],
    ),
}
