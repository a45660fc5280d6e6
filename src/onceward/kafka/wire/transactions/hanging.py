"""Which of the transactions that hold a partition's readers up *hang*: nobody will end them.

One rule for what is listed and what is aborted by a marker, as ``kafka-transactions.sh
find-hanging`` has it: no coordinator has the partition in a transaction of that producer, and its
last record is older than any transaction may be. Leaders are asked before the coordinators and
again behind them, because one that ends in between is nobody's any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from onceward import surroundings
from onceward.errors import BrokerUnreachable
from onceward.ids import TopicPartition
from onceward.kafka.wire.client import NO_LEADER, KafkaClient
from onceward.kafka.wire.transactions.errors import brokers_limit
from onceward.kafka.wire.transactions.listing import (
    OpenProducer,
    describe_transaction,
    list_transactions,
    open_producers,
)

_KAFKAS_LIMIT_MS = 900_000
_LOG = "__transaction_state"


@dataclass(frozen=True, slots=True)
class Holder:
    """A producer that holds readers up, and the transactional id whose coordinator has it so.

    ``young_ms``: without an owner, for how long it may still be one whose coordinator is moving.
    """

    producer: OpenProducer
    owner: str | None
    young_ms: int

    @property
    def hangs(self) -> bool:
        """Return whether nothing but a marker will end it."""
        return self.owner is None and self.young_ms == 0


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
    owners = _owners(client, {producer_id for _, producer_id, _ in before})
    limit_ms = int(brokers_limit(client)[0] or _KAFKAS_LIMIT_MS)
    after = open_producers(client, {where for where, _, _ in before})
    now_ms = surroundings.wall_clock_ns() // 1_000_000
    return [
        Holder(
            each,
            owners.get((each.identity.producer_id, each.partition)),
            max(0, each.last_write_ms + limit_ms - now_ms),
        )
        for each in after
        if _key(each) in before
    ]


def _key(producer: OpenProducer) -> tuple[TopicPartition, int, int]:
    return producer.partition, producer.identity.producer_id, producer.start_offset


def _owners(
    client: KafkaClient, producer_ids: Collection[int]
) -> dict[tuple[int, TopicPartition], str]:
    """Return the ids that have a partition in a transaction of these producers, in any state: one
    that is being committed is still open in the partitions left."""
    leaders = client.topic_partitions([_LOG])[_LOG]
    if NO_LEADER in leaders.values():
        raise BrokerUnreachable(
            f"{_LOG} has partitions without a leader, whose transactions no coordinator knows",
            next_step="wait until its brokers are back, and ask again",
        )
    found: dict[tuple[int, TopicPartition], str] = {}
    for name, producer_id, _ in list_transactions(client):
        if producer_id in producer_ids:
            described = describe_transaction(client, name)
            for where in described.partitions if described else ():
                found[producer_id, where] = name
    return found
