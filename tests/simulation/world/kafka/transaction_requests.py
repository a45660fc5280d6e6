"""Requests about transactions and about the offsets of groups, from ``KafkaApis`` to their
coordinators.

Sources: ``KafkaApis`` (``handleInitProducerIdRequest``, ``handleAddPartitionsToTxnRequest``,
``handleAddOffsetsToTxnRequest``, ``handleEndTxnRequest``, ``handleTxnOffsetCommitRequest``,
``handleOffsetFetchRequest``, ``handleDescribeTransactionsRequest``);
``CoordinatorPartitionWriter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from simulation.world.kafka import groups
from simulation.world.kafka.answers import (
    Answer,
    Coded,
    Identified,
    OfPartition,
    OfTopic,
    OfTopics,
)
from simulation.world.kafka.broker import Broker, Held
from simulation.world.kafka.groups import GroupCoordinator
from simulation.world.kafka.produce import UNKNOWN_TOPIC
from simulation.world.kafka.producers import INVALID_PRODUCER_EPOCH, Verification
from simulation.world.kafka.settings import OFFSETS_TOPIC
from simulation.world.kafka.transactions import ABORTABLE, FENCED, Metadata, Where

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

TOO_LARGE_METADATA, INVALID_GROUP, NOT_COORDINATOR, INVALID_REQUEST = 12, 24, 16, 42
INVALID_TXN_STATE, INVALID_TIMEOUT, NOT_ATTEMPTED, NOT_FOUND = 48, 50, 55, 105
_BUMPS = 5
"""From this version of ``EndTxn`` and ``TxnOffsetCommit`` on it is transaction version 2
(KIP-890).
"""
_TELLS_ABORTABLE = 4


def init_producer_id(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    name = request.transactional_id
    given = (request.producer_id, request.producer_epoch)
    expected = None if given == (-1, -1) else given
    if -1 in given and expected is not None:
        reply(Identified(INVALID_REQUEST))
    elif name is None:
        reply(Identified(0, cluster.new_producer(broker.node), 0))
    elif not name:
        reply(Identified(INVALID_REQUEST))
    elif not 0 < request.transaction_timeout_ms <= cluster.settings.transaction_max_timeout_ms:
        reply(Identified(INVALID_TIMEOUT))
    else:
        coordinator = cluster.coordinator_at(name, broker)
        if coordinator is None:
            reply(Identified(NOT_COORDINATOR))
            return
        held = holds(broker, reply)
        coordinator.init(
            broker.node,
            name,
            request.transaction_timeout_ms,
            expected,
            lambda code, producer, epoch: held(Identified(code, producer, epoch)),
        )


def add_partitions(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Version 3 and below, one transaction a request."""
    topics = request.v3_and_below_topics
    wanted: list[Where] = [(topic.name, index) for topic in topics for index in topic.partitions]
    known = [
        where in cluster.partitions and not cluster.unheard_of(where[0], broker.node)
        for where in wanted
    ]

    def told(codes: list[int]) -> OfTopics:
        each = iter(codes)
        return OfTopics(
            [
                OfTopic(t.name, [OfPartition(index, next(each)) for index in t.partitions])
                for t in topics
            ]
        )

    if not all(known):
        reply(told([NOT_ATTEMPTED if fine else UNKNOWN_TOPIC for fine in known]))
        return
    name = request.v3_and_below_transactional_id
    coordinator = cluster.coordinator_at(name, broker)
    if coordinator is None:
        reply(told([NOT_COORDINATOR] * len(wanted)))
        return
    held = holds(broker, reply)
    coordinator.add(
        name,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        wanted,
        0,
        lambda code: held(told([code] * len(wanted))),
    )


def add_offsets(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    name = request.transactional_id
    coordinator = cluster.coordinator_at(name, broker)
    if coordinator is None:
        reply(Coded(NOT_COORDINATOR))
        return
    home = cluster.group_home_of(request.group_id)
    held = holds(broker, reply)
    coordinator.add(
        name,
        request.producer_id,
        request.producer_epoch,
        [(OFFSETS_TOPIC, home.index)],
        0,
        lambda code: held(Coded(code)),
    )


def end_txn(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    name = request.transactional_id
    coordinator = cluster.coordinator_at(name, broker)
    bumps = version >= _BUMPS
    if coordinator is None:
        reply(Identified(NOT_COORDINATOR) if bumps else Coded(NOT_COORDINATOR))
        return
    held = holds(broker, reply)

    def ended(code: int, producer: int, epoch: int) -> None:
        held(Identified(code, producer, epoch) if bumps else Coded(code))

    producer, epoch = request.producer_id, request.producer_epoch
    coordinator.end(
        broker.node, name, producer, epoch, bool(request.committed), 2 if bumps else 0, ended
    )


def describe(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    states = []
    for name in request.transactional_ids:
        coordinator = cluster.coordinator_at(name, broker)
        now = NOT_COORDINATOR if coordinator is None else coordinator.find(name) or NOT_FOUND
        if not isinstance(now, Metadata):
            states.append(_untold(name, now))
            continue
        states.append(
            Answer(
                error_code=0,
                transactional_id=name,
                transaction_state=now.facts.state,
                transaction_timeout_ms=now.facts.timeout_ms,
                transaction_start_time_ms=now.facts.started_ms,
                producer_id=now.facts.producer,
                producer_epoch=now.facts.epoch,
                topics=_by_topic(now.facts.partitions),
            )
        )
    reply(Answer(throttle_time_ms=0, transaction_states=states))


def _by_topic(partitions: Iterable[Where]) -> list[Answer]:
    indexes: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        indexes.setdefault(topic, []).append(index)
    return [Answer(topic=topic, partitions=found) for topic, found in indexes.items()]


def _untold(name: str, code: int) -> Answer:
    return Answer(
        error_code=code,
        transactional_id=name,
        producer_id=0,
        producer_epoch=0,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        topics=[],
    )


# ── offsets ──


class _Commit:
    """A ``TxnOffsetCommit`` on its way: what is said of each partition, and what is to be
    appended.
    """

    __slots__ = ("accepted", "cluster", "coordinator", "held", "refused", "request", "version")

    def __init__(
        self, cluster: Cluster, version: int, request: Any, held: Callable[[Any], None]
    ) -> None:
        self.cluster, self.version, self.request, self.held = cluster, version, request, held
        self.coordinator: GroupCoordinator | None = None
        self.refused: dict[Where, int] = {}
        self.accepted: list[tuple[str, int, int, str]] = []

    def tell(self, code: int) -> None:
        refused = self.refused
        self.held(
            OfTopics(
                [
                    OfTopic(
                        topic.name,
                        [
                            OfPartition(
                                p.partition_index,
                                refused.get((topic.name, p.partition_index), code),
                            )
                            for p in topic.partitions
                        ],
                    )
                    for topic in self.request.topics
                ]
            )
        )


def txn_offset_commit(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    held = holds(broker, reply)
    commit = _Commit(cluster, version, request, held)
    limit = cluster.settings.offset_metadata_max_bytes
    for topic in request.topics:
        name = topic.name
        for p in topic.partitions:
            where = (name, p.partition_index)
            if where not in cluster.partitions or cluster.unheard_of(name, broker.node):
                commit.refused[where] = UNKNOWN_TOPIC
            elif p.committed_metadata is not None and len(p.committed_metadata) > limit:
                commit.refused[where] = TOO_LARGE_METADATA
            else:
                commit.accepted.append(
                    (name, p.partition_index, p.committed_offset, p.committed_metadata or "")
                )
    if not commit.accepted and TOO_LARGE_METADATA not in commit.refused.values():
        commit.tell(0)
        return
    if not request.group_id:
        commit.tell(INVALID_GROUP)
        return
    coordinator = cluster.group_coordinator_at(request.group_id, broker)
    if coordinator is None:
        commit.tell(NOT_COORDINATOR)
        return
    if coordinator.loading:
        commit.tell(groups.LOADING)
        return
    commit.coordinator = coordinator
    _verified(cluster, broker, commit)


def _verified(cluster: Cluster, broker: Broker, commit: _Commit) -> None:
    """``maybeStartTransactionVerification`` of the partition of ``__consumer_offsets``."""
    request, coordinator = commit.request, commit.coordinator
    assert coordinator is not None
    producer, epoch = request.producer_id, request.producer_epoch
    log = coordinator.led.log
    state = log.producers.get(producer)
    if state is not None:
        if epoch < state.epoch and not cluster.old:
            commit.tell(INVALID_PRODUCER_EPOCH)
            return
        if state.open_since >= 0 and (state.epoch == epoch or cluster.old):
            _append(commit)
            return
    verification = log.verifying.setdefault(
        producer, Verification(-1, epoch, commit.version >= _BUMPS)
    )
    where = (OFFSETS_TOPIC, coordinator.partition.index)

    def told(codes: int | dict[Where, int]) -> None:
        code = codes if isinstance(codes, int) else codes.get(where, 0)
        if code == FENCED:
            code = INVALID_PRODUCER_EPOCH
        elif code == ABORTABLE and commit.version < _TELLS_ABORTABLE:
            code = INVALID_TXN_STATE
        if code:
            commit.tell(groups.answered(code))
        elif coordinator.resigned:
            commit.tell(NOT_COORDINATOR)
        elif log.verifying.get(producer) is not verification and not _is_open(
            log.producers.get(producer), epoch
        ):
            commit.tell(INVALID_TXN_STATE)
        else:
            _append(commit)

    def arrived() -> None:
        if not broker.up:
            return
        transactions = cluster.coordinator_for(request.transactional_id, broker)
        if isinstance(transactions, int):
            told(transactions)
        elif commit.version >= _BUMPS:
            transactions.add(request.transactional_id, producer, epoch, [where], 2, told)
        else:
            told(transactions.verify(request.transactional_id, producer, epoch, [where]))

    lag = cluster.around.lag("verify") if cluster.verify_lags else 0
    if lag <= 0:
        arrived()
    else:
        cluster.around.later(lag, arrived, "AddPartitionsToTxn")


def _is_open(state: Any, epoch: int) -> bool:
    return state is not None and state.open_since >= 0 and state.epoch == epoch


def _append(commit: _Commit) -> None:
    cluster, coordinator, request = commit.cluster, commit.coordinator, commit.request
    assert coordinator is not None
    partition, led = coordinator.partition, coordinator.led
    state = led.log.producers.get(request.producer_id)
    if state is not None and request.producer_epoch < state.epoch:
        if cluster.old:
            coordinator.fail_pending(request.producer_id, request.group_id, commit.accepted)
        commit.tell(INVALID_PRODUCER_EPOCH)
        return
    if not commit.accepted:
        commit.tell(0)
        return
    if led is partition.led and not partition.enough():
        commit.tell(groups.NOT_AVAILABLE)
        return
    log = led.log
    body = (request.group_id, tuple(commit.accepted))
    now_ms = cluster.around.now_ms()
    producer, epoch = request.producer_id, request.producer_epoch
    log.append(None, body, 1, producer, epoch, -1, True, led.epoch, now_ms)
    coordinator.replay(log.entries[-1])
    if partition.appended(led):
        commit.tell(0)
    else:
        timeout_ms = cluster.settings.request_timeout_ms
        partition.wait(led, log.end, timeout_ms, lambda code: commit.tell(groups.answered(code)))


def offset_fetch(
    cluster: Cluster, broker: Broker, version: int, request: Any, reply: Callable[[Any], None]
) -> None:
    """Version 8: a list of groups (KIP-709)."""
    found = []
    for group in request.groups or [Answer(group_id=request.group_id, topics=request.topics)]:
        coordinator = cluster.group_coordinator_at(group.group_id, broker)
        code = (
            NOT_COORDINATOR
            if coordinator is None
            else groups.LOADING
            if coordinator.loading
            else 0
        )
        topics: dict[str, list[OfPartition]] = {}
        if code == 0:
            assert coordinator is not None
            stable = bool(request.require_stable)
            if group.topics is None:
                for topic, index, offset, note, error in coordinator.fetch_all(
                    group.group_id, stable
                ):
                    topics.setdefault(topic, []).append(OfPartition(index, error, offset, note))
            else:
                for wanted in group.topics:
                    for index in wanted.partition_indexes:
                        offset, note, error = coordinator.fetch(
                            group.group_id, wanted.name, index, stable
                        )
                        topics.setdefault(wanted.name, []).append(
                            OfPartition(index, error, offset, note)
                        )
        told = [OfTopic(topic, parts) for topic, parts in topics.items()]
        found.append(Answer(group_id=group.group_id, error_code=code, topics=told))
    reply(Answer(throttle_time_ms=0, error_code=0, groups=found))


def holds(broker: Broker, reply: Callable[[Any], None]) -> Callable[[Any], None]:
    return reply if isinstance(reply, Held) else Held(broker, reply)
