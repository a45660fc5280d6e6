"""One conversation with a cluster: what is asked, and what of each answer can be compared.

Producer ids are named in the order of their appearance, offsets and epochs are as they are: topics and transactional
ids are the conversation's own. What takes an unknown time on real brokers (a new topic, a coordinator that loads,
markers) is waited for and not written down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.records.batch import Fragment, stamp
from onceward.records.compression import Codec
from onceward.wire.appends.produce_frame import ProduceFrame
from onceward.wire.reads.fetch import fetch_request
from simulation.world.kafka.record_bytes import HEADER, HEADER_BYTES, records

PASSING = {3, 5, 6, 13, 14, 15, 16, 72, 75, 78}
"""Codes that a cluster answers with for a moment after topics, leaders and coordinators have come or gone."""
SETTLED = ("Empty", "CompleteCommit", "CompleteAbort")
NOBODY = ProducerIdentity(-1, -1)
TIMEOUT_MS = 60_000

Fact = list[Any]


class Side(Protocol):
    """Who answers."""

    version: str
    transaction_version: int
    nodes: int

    def ask(self, request: Any, where: tuple[str, Any]) -> Any:
        """The answer of the ``("coordinator", id)``, ``("group", name)``, ``("leader", (topic, partition))``,
        ``("node", number)`` or ``("any", None)``; None: the connection broke."""

    def now_ms(self) -> int: ...

    def pause(self, ms: float) -> None:
        """Let time pass, about as much."""

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None: ...
    def delete_topic(self, name: str) -> None: ...
    def delete_records(self, topic: str, partition: int, before: int) -> None: ...
    def leader_of(self, topic: str, partition: int) -> int: ...
    def stop_node(self, node: int) -> None: ...
    def start_node(self, node: int) -> None: ...
    def wait_for_isr(self, topic: str, partition: int, count: int) -> None: ...
    def coordinator_of(self, kind: str, key: str) -> int: ...


class Talk:
    """See the module. What is said goes to :attr:`facts`, one list of plain values an answer."""

    def __init__(self, side: Side, name: str, unique: str) -> None:
        self.side = side
        self.facts: list[Fact] = []
        self._prefix = f"{name}-{unique}-"
        self._producers: dict[int, str] = {-1: "nobody"}

    # ── names ──

    def real(self, name: str) -> str:
        """A topic's, group's or transactional id's name as the cluster has it."""
        return self._prefix + name

    def producer(self, producer_id: int) -> str:
        return self._producers.setdefault(producer_id, f"P{len(self._producers) - 1}")

    def say(self, *fact: Any) -> None:
        self.facts.append(list(fact))

    # ── set-up and surroundings ──

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """A topic, and every leader of it at work."""
        chosen = {key.replace("_", "."): value for key, value in settings.items()}
        self.side.make_topic(self.real(name), partitions, chosen)
        for partition in range(partitions):
            self._end(name, partition)

    def settled(self, name: str) -> None:
        """Every marker of the id's last transaction is written."""
        for _ in range(300):
            state = self._described(name)
            if state[0] == 0 and state[1] in SETTLED:
                return
            if state[0] == 105:
                return
            self.side.pause(20)
        raise AssertionError(f"{name} is still {state}")

    def timed_out(self, name: str) -> None:
        """The transaction timeout has passed, and the coordinator has done what it does about it."""
        for _ in range(600):
            if self._described(name)[1] != "Ongoing":
                self.settled(name)
                return
            self.side.pause(50)
        raise AssertionError(f"{name} does not time out")

    # ── transactions ──

    def init(
        self,
        name: str,
        expected: ProducerIdentity = NOBODY,
        timeout_ms: int = TIMEOUT_MS,
        *,
        retry: bool = False,
        quiet: bool = False,
    ) -> ProducerIdentity:
        """``InitProducerId``. ``retry``: again while it is answered CONCURRENT_TRANSACTIONS, as clients do."""
        request = InitProducerIdRequest(
            transactional_id=self.real(name),
            transaction_timeout_ms=timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
            min_version=3,
            max_version=5,
        )
        passing = PASSING | {51} if retry else PASSING
        answer = self._ask(request, ("coordinator", self.real(name)), lambda a: [a.error_code], passing)
        if not quiet:
            self.say("init", name, answer.error_code, self.producer(answer.producer_id), answer.producer_epoch)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def idempotent(self) -> ProducerIdentity:
        """A producer id without transactions."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=2**31 - 1, min_version=0, max_version=5
        )
        answer = self._ask(request, ("any", None), lambda a: [a.error_code])
        self.say("idempotent", answer.error_code, self.producer(answer.producer_id), answer.producer_epoch)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def join(self, name: str, who: ProducerIdentity, *partitions: tuple[str, int]) -> None:
        """Whatever the cluster's own protocol needs before the first records."""
        if self.side.transaction_version == 1:
            self.add(name, who, *partitions)

    def join_group(self, name: str, who: ProducerIdentity, group: str) -> None:
        if self.side.transaction_version == 1:
            self.add_offsets(name, who, group)

    def add(self, name: str, who: ProducerIdentity, *partitions: tuple[str, int]) -> None:
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.real(name),
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[
                kind(name=self.real(topic), partitions=[partition]) for topic, partition in sorted(partitions)
            ],
            max_version=3,
        )

        def codes(answer: Any) -> list[int]:
            return [
                p.partition_error_code for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition
            ]

        answer = self._ask(request, ("coordinator", self.real(name)), codes, PASSING - {3})
        self.say("add", name, sorted(codes(answer)))

    def add_offsets(self, name: str, who: ProducerIdentity, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.real(name),
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            group_id=self.real(group),
            max_version=4,
        )
        answer = self._ask(request, ("coordinator", self.real(name)), lambda a: [a.error_code])
        self.say("add offsets", name, answer.error_code)

    def commit_offsets(
        self,
        name: str,
        who: ProducerIdentity,
        group: str,
        offsets: dict[tuple[str, int], int],
        *,
        note: str = "",
        version: int | None = None,
    ) -> None:
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        wanted = version or (5 if self.side.transaction_version == 2 else 4)
        request = TxnOffsetCommitRequest(
            transactional_id=self.real(name),
            group_id=self.real(group) if group else "",
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                kind(
                    name=self.real(topic),
                    partitions=[
                        kind.TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=-1,
                            committed_metadata=note,
                        )
                    ],
                )
                for (topic, partition), offset in sorted(offsets.items())
            ],
            min_version=wanted,
            max_version=wanted,
        )

        def codes(answer: Any) -> list[int]:
            return [p.error_code for t in answer.topics for p in t.partitions]

        answer = self._ask(request, ("group", request.group_id), codes, PASSING - {3})
        self.say("commit offsets", name, sorted(codes(answer)))

    def end(
        self,
        name: str,
        who: ProducerIdentity,
        commit: bool,
        *,
        version: int | None = None,
        retry: bool = False,
        quiet: bool = False,
    ) -> ProducerIdentity:
        """``EndTxn``, and the identity to go on with."""
        wanted = version or (5 if self.side.transaction_version == 2 else 4)
        request = EndTxnRequest(
            transactional_id=self.real(name),
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            committed=commit,
            min_version=wanted,
            max_version=wanted,
        )
        passing = PASSING | {51} if retry else PASSING
        answer = self._ask(request, ("coordinator", self.real(name)), lambda a: [a.error_code], passing)
        word = "commit" if commit else "abort"
        if wanted < 5:
            self.say(word, name, answer.error_code)
            return who
        if not quiet:
            self.say(word, name, answer.error_code, self.producer(answer.producer_id), answer.producer_epoch)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch) if answer.error_code == 0 else who

    def describe(self, name: str) -> None:
        """``DescribeTransactions``: state, identity and timeout."""
        code, state, producer, epoch, timeout_ms = self._described(name)
        self.say("describe", name, code, state, self.producer(producer) if code == 0 else "", epoch, timeout_ms)

    def describe_soon(self, name: str) -> None:
        """After the coordinator has had time to write all markers that it can."""
        self.side.pause(1_000)
        self.describe(name)

    def _described(self, name: str) -> tuple[int, str, int, int, int]:
        request = DescribeTransactionsRequest(transactional_ids=[self.real(name)])
        answer = self._ask(
            request, ("coordinator", self.real(name)), lambda a: [s.error_code for s in a.transaction_states]
        )
        found = answer.transaction_states[0]
        if found.error_code:
            return found.error_code, "", -1, -1, 0
        return (
            0,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
        )

    # ── records ──

    def produce(
        self,
        who: ProducerIdentity,
        topic: str,
        sequence: int,
        count: int = 1,
        *,
        partition: int = 0,
        name: str | None = None,
        acks: int = -1,
        version: int | None = None,
        size: int = 10,
        key: bytes | None = None,
        patient: bool = True,
        timeout_ms: int = 30_000,
        transactional: bool | None = None,
    ) -> None:
        """One batch. With ``name`` in its transaction. Said: the code, and the offset of its first record."""
        wanted = version
        if wanted is None:
            wanted = 12 if name is not None and self.side.transaction_version == 2 else 11
        where = TopicPartition(self.real(topic), partition)
        part = stamp(
            _fragment(count, size, key, self.side.now_ms()),
            who,
            sequence,
            transactional=(name is not None) if transactional is None else transactional,
        )
        frame = ProduceFrame(
            {where: part},
            transactional_id=None if name is None else self.real(name),
            acks=acks,
            timeout_ms=timeout_ms,
            min_version=wanted,
            max_version=wanted,
        )
        passing = (PASSING | {51}) if patient else set()
        answer = self._ask(frame, ("leader", where), _produced, passing)
        found = answer.responses[0].partition_responses[0]
        self.say("produce", topic, found.error_code, found.base_offset)

    def produce_many(
        self, who: ProducerIdentity, batches: Sequence[tuple[str, int, int]], *, name: str, sequence: int = 0
    ) -> None:
        """A batch for each ``(topic, partition, count)``, one request for each leader."""
        by_node: dict[int, list[tuple[str, int, int]]] = {}
        for topic, partition, count in batches:
            node = self.side.leader_of(self.real(topic), partition)
            by_node.setdefault(node, []).append((topic, partition, count))
        version = 12 if self.side.transaction_version == 2 else 11
        told = []
        for node, mine in sorted(by_node.items()):
            frame = ProduceFrame(
                {
                    TopicPartition(self.real(topic), partition): stamp(
                        _fragment(count, 10, None, self.side.now_ms()), who, sequence, transactional=True
                    )
                    for topic, partition, count in mine
                },
                transactional_id=self.real(name),
                acks=-1,
                timeout_ms=30_000,
                min_version=version,
                max_version=version,
            )
            answer = self._ask(frame, ("node", node), _produced, PASSING | {51})
            told += [
                [t.name.removeprefix(self._prefix), p.index, p.error_code, p.base_offset]
                for t in answer.responses
                for p in t.partition_responses
            ]
        self.say("produce many", sorted(told))

    def read(self, topic: str, partition: int = 0, offset: int = 0, *, committed: bool = False) -> None:
        """Everything from ``offset`` on, batch by batch, with the ends and what was aborted."""
        where = TopicPartition(self.real(topic), partition)
        request = fetch_request(where, offset, 0, read_committed=committed)
        answer = self._ask(request, ("leader", where), lambda a: [a.responses[0].partitions[0].error_code])
        found = answer.responses[0].partitions[0]
        batches = [self._batch(head, body) for head, body in _batches(bytes(found.records or b""))]
        aborted = sorted(
            [self.producer(each.producer_id), each.first_offset] for each in found.aborted_transactions or ()
        )
        self.say(
            "read committed" if committed else "read",
            topic,
            found.error_code,
            found.high_watermark,
            found.last_stable_offset,
            batches,
            aborted,
        )

    def read_settled(self, topic: str, partition: int = 0) -> None:
        """Both ways, once nothing is open any more."""
        for _ in range(200):
            if self._end(topic, partition) == self._end(topic, partition, committed=True):
                break
            self.side.pause(20)
        self.read(topic, partition)
        self.read(topic, partition, committed=True)

    def _batch(self, head: bytes, body: bytes) -> list[Any]:
        base, _, _, _, _, attributes, last, _, _, producer, epoch, sequence, count = HEADER.unpack(head)
        kind = "data"
        if attributes & 0x20:
            key = next(iter(records(head, body)))[2][0] or b""
            kind = {0: "abort", 1: "commit"}[key[3]]
        told = "transactional" if attributes & 0x10 else ""
        return [base, base + last, kind, told, self.producer(producer), epoch, sequence, count]

    def ends(self, topic: str, partition: int = 0) -> None:
        """Earliest offset, high watermark and last stable offset (``ListOffsets``)."""
        earliest = self._end(topic, partition, time_ms=-2)
        self.say("ends", topic, earliest, self._end(topic, partition), self._end(topic, partition, committed=True))

    def _end(self, topic: str, partition: int, *, committed: bool = False, time_ms: int = -1) -> int:
        where = TopicPartition(self.real(topic), partition)
        kind = ListOffsetsRequest.ListOffsetsTopic
        wanted = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=time_ms)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed),
            topics=[kind(name=where.topic, partitions=[wanted])],
            min_version=2,
            max_version=7,
        )
        answer = self._ask(request, ("leader", where), lambda a: [a.topics[0].partitions[0].error_code])
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0, found.error_code
        return int(found.offset)

    def group(self, name: str, *, stable: bool = True, topics: Sequence[tuple[str, int]] | None = None) -> None:
        """``OffsetFetch``: all offsets of a group, or those that are named."""
        group = self.real(name)
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        named = None
        if topics is not None:
            named = [
                kind.OffsetFetchRequestTopics(name=self.real(topic), partition_indexes=[partition])
                for topic, partition in topics
            ]
        request = OffsetFetchRequest(
            group_id=group,
            topics=None,
            groups=[kind(group_id=group, topics=named)],
            require_stable=stable,
            min_version=8,
            max_version=8,
        )
        answer = self._ask(request, ("group", group), lambda a: [a.groups[0].error_code])
        found = sorted(
            [t.name.removeprefix(self._prefix), p.partition_index, p.committed_offset, p.metadata or "", p.error_code]
            for t in answer.groups[0].topics
            for p in t.partitions
        )
        self.say("group", name, answer.groups[0].error_code, found)

    def group_settled(self, name: str) -> None:
        """Wait until the group's offsets are what they will be: 3.9.1 takes them some time after the marker
        (``GroupCoordinator.scheduleHandleTxnCompletion``)."""
        before: Fact = []
        for _ in range(200):
            self.group(name)
            now = self.facts.pop()
            if now == before and all(each[4] == 0 for each in now[3]):
                return
            before = now
            self.side.pause(300)

    # ── the cluster ──

    def create(self, name: str, partitions: int = 1, replicas: int = -1, **settings: str) -> None:
        configs = [
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name if name.startswith("!") else self.real(name),
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[],
            configs=configs,
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False, min_version=4)
        answer = self._ask(request, ("any", None), lambda a: [t.error_code for t in a.topics])
        self.say("create", name, answer.topics[0].error_code)

    def topic_config(self, name: str, *keys: str) -> None:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name=self.real(name), configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], min_version=1)
        answer = self._ask(request, ("any", None), lambda a: [0], set())
        found = answer.results[0]
        known = {config.name: config.value for config in found.configs}
        self.say("config", name, found.error_code, [known.get(key) for key in keys])

    def metadata(self, name: str) -> None:
        topic = MetadataRequest.MetadataRequestTopic(name=name if name.startswith("!") else self.real(name))
        request = MetadataRequest(
            topics=[topic],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
            min_version=4,
            max_version=12,
        )
        answer = self._ask(request, ("any", None), lambda a: [0], set())
        found = answer.topics[0]
        partitions = [
            [p.partition_index, p.leader_id >= 0, len(p.replica_nodes), len(p.isr_nodes)]
            for p in sorted(found.partitions, key=lambda p: p.partition_index)
        ]
        self.say("metadata", name, found.error_code, partitions)

    def transaction_version(self) -> None:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1", min_version=0)
        answer = self._ask(request, ("any", None), lambda a: [a.error_code])
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features or ()}
        end_txn = {key.api_key: key.max_version for key in answer.api_keys}[26]
        self.say("transaction.version", levels.get("transaction.version", 0), min(end_txn, 5))

    # ── asking ──

    def _ask(
        self,
        request: Any,
        where: tuple[str, Any],
        codes: Callable[[Any], Sequence[int]],
        passing: Collection[int] = frozenset(PASSING),
    ) -> Any:
        """Ask until the answer is one to write down."""
        answer = None
        for _ in range(400):
            answer = self.side.ask(request, where)
            if answer is not None and not any(code in passing for code in codes(answer)):
                return answer
            self.side.pause(50)
        assert answer is not None, f"{request} is never answered"
        return answer


def _produced(answer: Any) -> list[int]:
    return [p.error_code for t in answer.responses for p in t.partition_responses]


def _fragment(count: int, size: int, key: bytes | None, now_ms: int) -> Fragment:
    """Records that differ in nothing, in Kafka's own encoding, by hand.

    Of now: brokers forget producers by the time of their records, and begin a segment where it leaps.
    """
    body = bytearray()
    for delta in range(count):
        value = b"v" * size
        record = b"\0\0" + _varint(delta)
        record += _varint(-1) if key is None else _varint(len(key)) + key
        record += _varint(len(value)) + value + b"\0"
        body += _varint(len(record)) + record
    return Fragment(bytes(body), count, Codec.NONE, now_ms, now_ms, None)  # type: ignore[arg-type]


def _varint(value: int) -> bytes:
    unsigned = (value << 1) ^ (value >> 63)
    out = bytearray()
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    return bytes([*out, unsigned])


def _batches(data: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size > len(data):
            break
        found.append((data[at : at + HEADER_BYTES], data[at + HEADER_BYTES : at + size]))
        at += size
    return found
