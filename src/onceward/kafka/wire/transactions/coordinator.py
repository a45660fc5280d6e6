"""The conversation with a transaction coordinator: one method a request, no decisions about the
transaction. Called by ``kafka.wire.transactions.transaction`` (driver)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.admin import metadata_request
from onceward.kafka.wire.client import CoordinatorKind, KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import Answered, Code, converse
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api

# Of a request, a quarter of what a log takes by default; and of a record beside its names
_OFFSETS_BYTES, _OFFSET_BYTES = 256 << 10, 60

NOBODY = ProducerIdentity(-1, -1)
"""In ``InitProducerId``: whoever holds the transactional id, take it from them."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """Answer of ``DescribeTransactions`` (KIP-664); ``state`` as ``TransactionState`` has it."""

    identity: ProducerIdentity
    state: str
    timeout_ms: int = 0
    """As the last ``InitProducerId`` that was carried out had it."""
    started_at_ms: int | None = None
    """Milliseconds since 1970; None while nothing is open."""
    partitions: tuple[TopicPartition, ...] = ()
    """Those of the transaction that is open."""
    transactional_id: str = ""
    coordinator: int = -1
    """Its node, where it was asked for."""


class Leader(NamedTuple):
    """A partition's leader, and its epoch (KIP-320; -1 of brokers before 2.1)."""

    node_id: int
    epoch: int


class TransactionCoordinator:
    """Requests about one id. All raise ``Refused``, ``Unanswered`` or an error of connecting."""

    def __init__(self, client: KafkaClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id

    def init_producer_id(
        self,
        expected: ProducerIdentity,
        timeout_ms: int,
        deadline: Deadline,
        *,
        on_lost: Callable[[], None] = lambda: None,
    ) -> ProducerIdentity:
        """Send ``InitProducerId``; return a new identity, once any open transaction is ended.

        ``expected`` = :data:`NOBODY` takes over; our own identity continues it and is refused when
        somebody newer came (KIP-360, version 3 of the request). Repeating after a lost answer is
        safe: the coordinator remembers the epoch before
        (``TransactionMetadata.prepareIncrementProducerEpoch``), but not beyond its own death: it
        is not in the log (``TransactionLogValue``), and the one that comes after refuses the
        repetition as if somebody newer had come; see ``IdOwner.granted_to_us``. With
        :data:`NOBODY` every request that arrives, however late, gives the id away once more.

        :param on_lost: called for every request that was given up unanswered: it may arrive.
        """
        answer = self._ask(
            Api.INIT_PRODUCER_ID,
            lambda: InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=expected.producer_id,
                producer_epoch=expected.epoch,
                min_version=3,
                max_version=5,
            ),
            deadline,
            on_lost=on_lost,
        )
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def add_partitions(
        self, identity: ProducerIdentity, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> None:
        """Send ``AddPartitionsToTxn`` v3, the last version meant for clients."""
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                name=topic, partitions=[p.partition for p in group]
            )
            for topic, group in groupby(sorted(partitions), key=lambda p: p.topic)
        ]
        self._ask(
            Api.ADD_PARTITIONS_TO_TXN,
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.epoch,
                v3_and_below_topics=topics,
                max_version=3,
            ),
            deadline,
            codes=lambda a: [
                Answered(p.partition_error_code, t.name)
                for t in a.results_by_topic_v3_and_below
                for p in t.results_by_partition
            ],
            subject=", ".join(str(p) for p in sorted(partitions)),
        )

    def add_offsets(self, identity: ProducerIdentity, group: str, deadline: Deadline) -> None:
        """Send ``AddOffsetsToTxn`` (version 1): ``__consumer_offsets`` joins the transaction."""
        self._ask(
            Api.ADD_OFFSETS_TO_TXN,
            lambda: AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                group_id=group,
                max_version=4,
            ),
            deadline,
            subject=f"group {group}",
            group=group,
        )

    def commit_offsets(
        self,
        identity: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str,
        deadline: Deadline,
        *,
        version: int,
    ) -> None:
        """Send ``TxnOffsetCommit``: v5 adds the group implicitly, up to v4 must not (KIP-890).
        Some at a time: what a request brings is one record batch of ``__consumer_offsets``, which
        has to be within ``max.message.bytes``; Kafka 4 answers UNKNOWN_SERVER_ERROR where it is
        not (``CoordinatorRuntime.append``)."""
        for some in _pieces(sorted(offsets), len(group) + len(metadata)):
            self._ask(
                Api.TXN_OFFSET_COMMIT,
                partial(
                    TxnOffsetCommitRequest,
                    transactional_id=self.transactional_id,
                    group_id=group,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    topics=_offset_topics(some, offsets, metadata),
                    min_version=5 if version == 2 else 0,
                    max_version=5 if version == 2 else 4,
                ),
                deadline,
                codes=lambda a: [
                    Answered(p.error_code, t.name) for t in a.topics for p in t.partitions
                ],
                kind="group",
                group=group,
                subject=f"group {group}",
            )

    def end(
        self, identity: ProducerIdentity, *, commit: bool, deadline: Deadline, version: int
    ) -> ProducerIdentity:
        """Send ``EndTxn`` with the same epoch until it is answered; return the identity to go on
        with: that of the answer with version 5, the same up to version 4."""
        answer = self._ask(
            Api.END_TXN,
            lambda: EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                committed=commit,
                min_version=5 if version == 2 else 0,
                max_version=5 if version == 2 else 4,
            ),
            deadline,
        )
        if version == 2:
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)
        return identity

    def describe(self, deadline: Deadline) -> TransactionDescription:
        """Ask what the coordinator knows of the transactional id."""
        answer = self._ask(
            Api.DESCRIBE_TRANSACTIONS,
            lambda: DescribeTransactionsRequest(transactional_ids=[self.transactional_id]),
            deadline,
            codes=lambda a: [state.error_code for state in a.transaction_states],
        )
        state = answer.transaction_states[0]
        return TransactionDescription(
            ProducerIdentity(state.producer_id, state.producer_epoch),
            state.transaction_state,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
            tuple(TopicPartition(t.topic, p) for t in state.topics for p in sorted(t.partitions)),
            self.transactional_id,
        )

    def leaders(self, topics: Collection[str], deadline: Deadline) -> dict[TopicPartition, Leader]:
        """Ask the coordinator's broker, by whose metadata it acts, for leaders; without topics
        that it does not know, or does not show."""
        answer = self._ask(
            Api.METADATA, lambda: metadata_request(sorted(topics)), deadline, codes=lambda _: ()
        )
        self.client.learn(answer)
        return {
            TopicPartition(topic.name, each.partition_index): Leader(
                each.leader_id, each.leader_epoch
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    def _ask(
        self,
        api: Api,
        build: Callable[[], Any],
        deadline: Deadline,
        *,
        codes: Callable[[Any], Iterable[Code]] = lambda answer: [answer.error_code],
        kind: CoordinatorKind = "transaction",
        group: str | None = None,
        subject: str | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Any:
        client = self.client
        key = group if kind == "group" and group else self.transactional_id
        about = f"transactional id {self.transactional_id}"

        def send(left_ms: float) -> Any:
            node = client.coordinator(key, kind, timeout_ms=left_ms)
            try:
                return client.call(build(), node, left_ms)
            except ConnectionLost:
                on_lost()
                raise

        return converse(
            api,
            f"{subject} of {about}" if subject else about,
            send,
            codes,
            deadline,
            refresh=lambda: client.forget_coordinator(key, kind),
            resources={Kind.TRANSACTIONAL_ID: self.transactional_id, Kind.GROUP: group or ""},
        )


def idempotent_identity(client: KafkaClient) -> ProducerIdentity:
    """Ask any broker for a producer id without transactions, for ``at_least_once``. :raises
    BrokerUnreachable, AccessDenied: the second without IdempotentWrite (before 3.0)."""
    answer = client.ask(
        Api.INIT_PRODUCER_ID,
        "an idempotent producer",
        lambda: InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=2**31 - 1,
            min_version=0,
            max_version=5,
        ),
        lambda given: [given.error_code],
    )
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def _pieces(
    partitions: Sequence[TopicPartition], names_bytes: int
) -> Iterator[list[TopicPartition]]:
    """Yield ``partitions`` as many at a time as one request has offsets of."""
    some: list[TopicPartition] = []
    size = 0
    for where in partitions:
        each = names_bytes + len(where.topic) + _OFFSET_BYTES
        if some and size + each > _OFFSETS_BYTES:
            yield some
            some, size = [], 0
        some.append(where)
        size += each
    yield some


def _offset_topics(
    partitions: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int], metadata: str
) -> list[Any]:
    topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    return [
        topic_type(
            name=topic,
            partitions=[
                topic_type.TxnOffsetCommitRequestPartition(
                    partition_index=p.partition,
                    committed_offset=offsets[p],
                    committed_metadata=metadata,
                )
                for p in group
            ],
        )
        for topic, group in groupby(partitions, key=lambda p: p.topic)
    ]
