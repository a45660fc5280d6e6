"""Transactions of any client, as brokers know them: listed, described, and ended from outside.

KIP-664. Called by :mod:`onceward.operate`, the command line, and :mod:`.markers`. A transaction is
known in two places, and they may differ: its coordinator has the transactional id, state, start
and timeout; each leader has the producer that holds its last stable offset. One that a leader
holds open and no coordinator knows of *hangs*: nothing but :func:`end_in_partition` ends it.

One rule for what is listed and what is aborted by a marker, as ``kafka-transactions.sh
find-hanging`` has it: no coordinator has the partition in a transaction of that producer, and its
last record is older than any transaction may be. Leaders are asked before the coordinators and
again behind them, because one that ends in between is nobody's any more.

One that hangs may have been *committed*: coordinators of Kafka 4.3 pass over a partition that has
no leader when they write the markers (KAFKA-20734). An abort would take away what is
decided, so whose coordinator says that it committed a transaction of that producer and epoch is
ended by a commit marker, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from onceward import surroundings
from onceward.errors import BrokerUnreachable, ResourceError
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.client import NO_LEADER, KafkaClient
from onceward.kafka.wire.conversation import Answered, Refused, asked, raised_as_errors
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api
from onceward.kafka.wire.reads.offsets import named
from onceward.kafka.wire.transactions.coordinator import (
    TransactionCoordinator,
    TransactionDescription,
)
from onceward.kafka.wire.transactions.fencing import brokers_limit

ONGOING, ENDING = "Ongoing", ("PrepareCommit", "PrepareAbort")
COMMITTED, _ABORTED = "CompleteCommit", "CompleteAbort"
_NO_SUCH_ID = 105
_NOTHING_OPEN = -1
_KAFKAS_LIMIT_MS = 900_000
_LOG = "__transaction_state"


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with a transaction open in one partition (``DescribeProducersResponse``).
    ``last_write_ms`` is of its last record, ``coordinator_epoch`` of its last marker, else -1."""

    partition: TopicPartition
    identity: ProducerIdentity
    start_offset: int
    last_write_ms: int
    coordinator_epoch: int


def list_transactions(client: KafkaClient) -> list[tuple[str, int, str]]:
    """Return transactional id, producer id and state of all that this principal may describe.
    :raises BrokerUnreachable: a broker does not answer, so that its ids are not known."""
    found: list[tuple[str, int, str]] = []
    for node in client.brokers():
        answer = client.ask(
            Api.LIST_TRANSACTIONS,
            f"broker {node}",
            partial(ListTransactionsRequest, min_version=0, max_version=1),
            lambda listed: [listed.error_code],
            node_id=node,
        )
        found += [
            (each.transactional_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ]
    return sorted(found)


@raised_as_errors()
def describe_transaction(
    client: KafkaClient, transactional_id: str, *, timeout_ms: int | None = None
) -> TransactionDescription | None:
    """Ask the coordinator; None if it knows none. :raises AccessDenied, BrokerUnreachable: …"""
    deadline = Deadline(timeout_ms or client.settings.request_timeout_ms)
    try:
        found = TransactionCoordinator(client, transactional_id).describe(deadline)
    except Refused as refused:
        if refused.code == _NO_SUCH_ID:
            return None
        raise
    return replace(found, coordinator=client.coordinator(transactional_id, "transaction"))


def open_producers(
    client: KafkaClient,
    partitions: Iterable[TopicPartition],
    *,
    leaders: Mapping[TopicPartition, int] | None = None,
    timeout_ms: int | None = None,
) -> list[OpenProducer]:
    """Return who holds a transaction open in ``partitions``, oldest record first.

    :param leaders: where they are; default: as last heard.
    :param timeout_ms: for each leader; default: ``request.timeout.ms``.

    :raises AccessDenied: Read on the topics is needed.
    :raises BrokerUnreachable: the leader of a partition does not answer, or there is none.
    """
    found = []
    partitions = list(partitions)
    if leaders is None:
        leaders = {where: client.known_leader(where) for where in partitions}
    if lost := [where for where in partitions if leaders.get(where, NO_LEADER) == NO_LEADER]:
        raise BrokerUnreachable(
            f"{', '.join(map(str, lost))}: no leader, which alone knows what is open there",
            next_step="wait until a broker that holds it is back, and ask again",
        )
    by_leader = sorted(partitions, key=lambda p: (leaders[p], p))
    for leader, group in groupby(by_leader, key=leaders.__getitem__):
        topics = named(DescribeProducersRequest.TopicRequest, list(group))
        answer = client.ask(
            Api.DESCRIBE_PRODUCERS,
            f"broker {leader}",
            partial(DescribeProducersRequest, topics=topics),
            lambda answer: [
                Answered(p.error_code, t.name, p.error_message)
                for t in answer.topics
                for p in t.partitions
            ],
            node_id=leader,
            timeout_ms=timeout_ms,
        )
        found += [
            OpenProducer(
                TopicPartition(topic.name, part.partition_index),
                ProducerIdentity(each.producer_id, each.producer_epoch),
                each.current_txn_start_offset,
                each.last_timestamp,
                each.coordinator_epoch,
            )
            for topic in answer.topics
            for part in topic.partitions
            for each in part.active_producers
            if each.current_txn_start_offset != _NOTHING_OPEN
        ]
    return sorted(found, key=lambda each: (each.last_write_ms, each.partition))


@dataclass(frozen=True, slots=True)
class Holder:
    """A producer that holds readers up, and the transactional id whose coordinator has it so.
    ``young_ms``: for how long one without may still be one whose coordinator is moving;
    ``ended``: its transaction, if a coordinator has ended it."""

    producer: OpenProducer
    owner: str | None
    young_ms: int
    ended: TransactionDescription | None = None

    @property
    def hangs(self) -> bool:
        """Return whether nothing but a marker will end it."""
        return self.owner is None and (self.young_ms == 0 or self.ended is not None)

    @property
    def committed_by(self) -> str | None:
        """Return the transactional id whose coordinator has committed it."""
        if self.ended is None or self.ended.state != COMMITTED:
            return None
        return self.ended.transactional_id


def holders(client: KafkaClient, partitions: Iterable[TopicPartition]) -> list[Holder]:
    """Return who held a transaction open in ``partitions`` all the while that coordinators were
    asked, oldest record first.

    :raises AccessDenied: Read on the topics is needed, Describe on transactional ids and on
        ``__transaction_state``.
    :raises BrokerUnreachable: a leader or a coordinator does not answer.
    """
    before = {_key(each) for each in open_producers(client, partitions)}
    if not before:
        return []
    known = _described(client, {producer_id for _, producer_id, _ in before})
    owners = {
        (each.identity.producer_id, where): each.transactional_id
        for each in known
        for where in each.partitions
    }
    limit_ms = int(brokers_limit(client)[0] or _KAFKAS_LIMIT_MS)
    version = client.transaction_version()
    after = open_producers(client, {where for where, _, _ in before})
    now_ms = surroundings.wall_clock_ns() // 1_000_000
    found = []
    for each in after:
        if _key(each) not in before:
            continue
        young_ms = max(0, each.last_write_ms + limit_ms - now_ms)
        judged = [(one, has_ended(one, each, version)) for one in known]
        # The next of an epoch is over by then
        ended = [one for one, is_so in judged if is_so or (is_so is None and not young_ms)]
        owner = owners.get((each.identity.producer_id, each.partition))
        found.append(Holder(each, owner, young_ms, next(iter(ended), None)))
    return found


def _key(producer: OpenProducer) -> tuple[TopicPartition, int, int]:
    return producer.partition, producer.identity.producer_id, producer.start_offset


def has_ended(
    described: TransactionDescription, producer: OpenProducer, version: int
) -> bool | None:
    """Return whether the transaction that is open at the leader is the one that its coordinator
    ended last; None: that cannot be known.

    A client of version 2 has raised the epoch since (KIP-890): one of the same epoch is the next,
    of which a coordinator that is one no longer has not heard. But not one of version 1, which may
    have begun before the cluster took version 2, or speak no other
    (``TransactionMetadata.prepareAbortOrCommit`` goes by the client's).
    """
    ours, theirs = producer.identity, described.identity
    if ours.producer_id != theirs.producer_id or described.state not in (COMMITTED, _ABORTED):
        return False
    if theirs.epoch == ours.epoch:
        return None if version == 2 else True
    return theirs.epoch == ours.epoch + 1


def _described(client: KafkaClient, producer_ids: Collection[int]) -> list[TransactionDescription]:
    """Return what coordinators have of these producers, in any state: one that is being committed
    is still open in the partitions left."""
    leaders = client.topic_partitions([_LOG])[_LOG]
    if NO_LEADER in leaders.values():
        raise BrokerUnreachable(
            f"{_LOG} has partitions without a leader, whose transactions no coordinator knows",
            next_step="wait until its brokers are back, and ask again",
        )
    names = [
        name for name, producer_id, _ in list_transactions(client) if producer_id in producer_ids
    ]
    described = (describe_transaction(client, name) for name in names)
    return [each for each in described if each is not None]


def end_in_partition(
    client: KafkaClient, producer: OpenProducer, *, commit: bool, leader: int | None = None
) -> None:
    """Write a marker for ``producer`` into its partition, an abort marker as
    ``kafka-transactions.sh abort`` does: readers of committed records go on.

    A coordinator that still has the transaction will decide it in the other partitions; in this
    one it stays as it is ended here.

    :raises AccessDenied: ClusterAction on the cluster is needed.
    :raises ResourceError: somebody else has ended it meanwhile.
    """
    kind = WriteTxnMarkersRequest.WritableTxnMarker
    where, sent = producer.partition, False
    leader = client.known_leader(where) if leader is None else leader
    marker = kind(
        producer_id=producer.identity.producer_id,
        producer_epoch=producer.identity.epoch,
        transaction_result=commit,
        topics=[
            kind.WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])
        ],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )

    def is_open() -> bool:
        after = open_producers(client, [where], leaders={where: leader})
        mine = [each for each in after if each.identity == producer.identity]
        return bool(mine) and mine[0].start_offset == producer.start_offset

    def write(left_ms: float) -> Sequence[Any]:
        nonlocal sent
        # Repeated behind an answer that was lost, or that came before all replicas had it, it
        # could end the next transaction of that epoch: no coordinator holds that one up
        if sent and not is_open():
            # It is there
            return ()
        sent = True
        request = WriteTxnMarkersRequest(markers=[marker], min_version=1, max_version=1)
        markers: Sequence[Any] = client.call(request, leader, left_ms).markers
        return markers

    asked(
        Api.WRITE_TXN_MARKERS,
        f"{where}, {producer.identity}",
        write,
        lambda markers: [p.error_code for m in markers for t in m.topics for p in t.partitions],
        Deadline(client.settings.request_timeout_ms),
    )
    if is_open():
        raise ResourceError(
            f"{where} still has the transaction of {producer.identity} open",
            next_step="list the transactions again",
        )
