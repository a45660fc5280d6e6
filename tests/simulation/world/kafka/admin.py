"""Requests about the cluster itself: ``Metadata``, ``FindCoordinator``, ``ApiVersions``,
``CreateTopics``, ``DescribeConfigs``.

Sources: ``KafkaApis.handleTopicMetadataRequest``, ``KRaftMetadataCache.getTopicMetadata``,
``KafkaApis.handleFindCoordinatorRequest``, ``SimpleApiVersionManager``,
``ReplicationControlManager.createTopics``, ``ConfigHelper.handleDescribeConfigsRequest``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.world.kafka.answers import Answer
from simulation.world.kafka.broker import Broker
from simulation.world.kafka.partition import NOBODY
from simulation.world.kafka.settings import API_KEYS

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

UNKNOWN_TOPIC, NO_LEADER, NOT_AVAILABLE, INVALID_TOPIC = 3, 5, 15, 17
EXISTS, INVALID_PARTITIONS, INVALID_REPLICAS, INVALID_CONFIG = 36, 37, 38, 40
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC, _BROKER = 2, 4


def metadata(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Topics as ``broker`` has heard of them."""
    names = (
        sorted(cluster.topics)
        if request.topics is None
        else [topic.name for topic in request.topics]
    )
    if cluster.health.well and not cluster.late and not cluster.unheard:
        reply(_known_to_all(cluster, broker, names))
        return
    reply(
        _answer(
            cluster, _brokers(cluster, broker), [_topic(cluster, broker, name) for name in names]
        )
    )


def _known_to_all(cluster: Cluster, broker: Broker, names: list[str]) -> Answer:
    """While every node has heard of everything, the same is said of each topic until something
    changes.
    """
    told = cluster.health.told
    topics = []
    for name in names:
        known = told.get(name)
        if known is None:
            known = _topic(cluster, broker, name)
            if name in cluster.topics:
                told[name] = known
        topics.append(known)
    brokers = told.get("")
    if brokers is None:
        brokers = told[""] = _brokers(cluster, broker)
    return _answer(cluster, brokers, topics)


def _brokers(cluster: Cluster, broker: Broker) -> list[Answer]:
    return [
        Answer(node_id=node, host="127.0.0.1", port=9_091 + node, rack=None)
        for node, other in cluster.brokers.items()
        if other is broker or not other.fenced
    ]


def _answer(cluster: Cluster, brokers: list[Answer], topics: list[Answer]) -> Answer:
    return Answer(
        throttle_time_ms=0,
        error_code=0,
        brokers=brokers,
        cluster_id=cluster.cluster_id,
        controller_id=brokers[0].node_id,
        topics=topics,
    )


def _topic(cluster: Cluster, broker: Broker, name: str) -> Answer:
    topic = cluster.topics.get(name)
    if topic is None or cluster.unheard_of(name, broker.node):
        code = UNKNOWN_TOPIC if _is_legal(name) else INVALID_TOPIC
        return Answer(
            error_code=code, name=name, topic_id=cluster.no_id, is_internal=False, partitions=[]
        )
    partitions = []
    for partition in topic.partitions:
        leader = cluster.leader_seen_by(broker, partition)
        partitions.append(
            Answer(
                error_code=NO_LEADER if leader == NOBODY else 0,
                partition_index=partition.index,
                leader_id=leader,
                leader_epoch=partition.epoch
                - (bool(cluster.late) and cluster.is_late(broker, (name, partition.index))),
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=[
                    node for node in partition.replicas if not cluster.brokers[node].up
                ],
            )
        )
    return Answer(
        error_code=0,
        name=name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=partitions,
    )


def _is_legal(name: str) -> bool:
    """``Topic.validate``."""
    return bool(_LEGAL.fullmatch(name)) and name not in (".", "..")


def find_coordinator(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """The leader of the partition of the internal topic that the key belongs to."""
    found = []
    for key in request.coordinator_keys or [request.key]:
        partition = cluster.home_of(key) if request.key_type == 1 else cluster.group_home_of(key)
        node = cluster.leader_seen_by(broker, partition)
        known_to_be_away = node != NOBODY and cluster.brokers[node].fenced and not broker.isolated
        code = NOT_AVAILABLE if node == NOBODY or known_to_be_away else 0
        node = NOBODY if code else node
        place = {"node_id": node, "host": "127.0.0.1", "port": 9_091 + node}
        found.append(Answer(key=key, **place, error_code=code, error_message=None))
    reply(Answer(throttle_time_ms=0, coordinators=found))


def api_versions(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """What this broker speaks, and the features that the cluster has finalised."""
    keys = [
        Answer(api_key=API_KEYS[api], min_version=0, max_version=newest)
        for api, newest in cluster.versions.items()
    ]
    features = [Answer(name="metadata.version", max_version_level=1, min_version_level=1)]
    if cluster.transaction_version >= 1 and not cluster.old:
        level = cluster.transaction_version
        features.append(
            Answer(name="transaction.version", max_version_level=level, min_version_level=level)
        )
    reply(Answer(error_code=0, api_keys=keys, finalized_features=features, throttle_time_ms=0))


def create_topics(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Brokers hand the request on to the controller (KIP-590)."""
    if broker.isolated:
        cluster.silent(broker, reply)
        return
    reply(
        Answer(throttle_time_ms=0, topics=[_created(cluster, topic) for topic in request.topics])
    )


def _created(cluster: Cluster, topic: Any) -> Answer:
    # ``StripedReplicaPlacer``: fenced brokers count, as long as one is not
    able = (
        len(cluster.brokers)
        if any(not broker.fenced for broker in cluster.brokers.values())
        else 0
    )
    replicas = (
        topic.replication_factor
        if topic.replication_factor != -1
        else min(3, len(cluster.brokers))
    )
    settings = {config.name: config.value for config in topic.configs}
    code = 0
    if not _is_legal(topic.name):
        code = INVALID_TOPIC
    elif topic.name in cluster.topics:
        code = EXISTS
    elif topic.num_partitions == 0 or topic.num_partitions < -1:
        code = INVALID_PARTITIONS
    elif not 1 <= replicas <= able:
        code = INVALID_REPLICAS
    elif set(settings) - set(cluster.topic_defaults):
        code = INVALID_CONFIG
    if code == 0:
        cluster.create_topic(
            topic.name, max(1, topic.num_partitions), replicas=replicas, settings=settings
        )
    return Answer(name=topic.name, error_code=code, error_message=None)


def describe_configs(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Settings of topics and of this broker, as far as Onceward asks for them."""
    results = []
    for resource in request.resources:
        code, settings = 0, {}
        if resource.resource_type == _TOPIC:
            topic = cluster.topics.get(resource.resource_name)
            if topic is None:
                code = UNKNOWN_TOPIC
            else:
                settings = {**cluster.topic_defaults, **topic.settings}
        elif resource.resource_type == _BROKER:
            settings = cluster.broker_settings()
        configs = [Answer(name=name, value=value) for name, value in sorted(settings.items())]
        results.append(
            Answer(
                error_code=code,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    reply(Answer(throttle_time_ms=0, results=results))
