"""Words about records: what is appended, and what readers are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, stamp
from onceward.kafka.records.compression import Codec
from onceward.kafka.wire.appends.produce_frame import ProduceFrame
from onceward.kafka.wire.reads.committed import fetch_request
from simulation.model_check.asking import PASSING, Asking
from simulation.world.kafka.record_bytes import HEADER, HEADER_BYTES, records
from support.varints import varint


class RecordWords(Asking):
    """Of each what is asked; of the answer what can be compared."""

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
        """One batch. With ``name`` in its transaction. Said: the code, and the offset of its first
        record.
        """
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
        self,
        who: ProducerIdentity,
        batches: Sequence[tuple[str, int, int]],
        *,
        name: str,
        sequence: int = 0,
    ) -> None:
        """A batch for each ``(topic, partition, count)``, one request for each leader."""
        by_node: dict[int, list[tuple[str, int, int]]] = {}
        for topic, partition, count in batches:
            node = self.side.known_leader(self.real(topic), partition)
            by_node.setdefault(node, []).append((topic, partition, count))
        version = 12 if self.side.transaction_version == 2 else 11
        told = []
        for node, mine in sorted(by_node.items()):
            frame = ProduceFrame(
                {
                    TopicPartition(self.real(topic), partition): stamp(
                        _fragment(count, 10, None, self.side.now_ms()),
                        who,
                        sequence,
                        transactional=True,
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

    def read(
        self, topic: str, partition: int = 0, offset: int = 0, *, committed: bool = False
    ) -> None:
        """Everything from ``offset`` on, batch by batch, with the ends and what was aborted."""
        where = TopicPartition(self.real(topic), partition)
        request = fetch_request(where, offset, 0, read_committed=committed)
        answer = self._ask(
            request, ("leader", where), lambda a: [a.responses[0].partitions[0].error_code]
        )
        found = answer.responses[0].partitions[0]
        batches = [self._batch(head, body) for head, body in _batches(bytes(found.records or b""))]
        aborted = sorted(
            [self.producer(each.producer_id), each.first_offset]
            for each in found.aborted_transactions or ()
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
        base, _, _, _, _, attributes, last, _, _, producer, epoch, sequence, count = HEADER.unpack(
            head
        )
        kind = "data"
        if attributes & 0x20:
            key = next(iter(records(head, body)))[2][0] or b""
            kind = {0: "abort", 1: "commit"}[key[3]]
        told = "transactional" if attributes & 0x10 else ""
        return [base, base + last, kind, told, self.producer(producer), epoch, sequence, count]

    def ends(self, topic: str, partition: int = 0) -> None:
        """Earliest offset, high watermark and last stable offset (``ListOffsets``)."""
        earliest = self._end(topic, partition, time_ms=-2)
        self.say(
            "ends",
            topic,
            earliest,
            self._end(topic, partition),
            self._end(topic, partition, committed=True),
        )

    def _end(
        self, topic: str, partition: int, *, committed: bool = False, time_ms: int = -1
    ) -> int:
        where = TopicPartition(self.real(topic), partition)
        kind = ListOffsetsRequest.ListOffsetsTopic
        wanted = kind.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=time_ms
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed),
            topics=[kind(name=where.topic, partitions=[wanted])],
            min_version=2,
            max_version=7,
        )
        answer = self._ask(
            request, ("leader", where), lambda a: [a.topics[0].partitions[0].error_code]
        )
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0, found.error_code
        return int(found.offset)


def _produced(answer: Any) -> list[int]:
    return [p.error_code for t in answer.responses for p in t.partition_responses]


def _fragment(count: int, size: int, key: bytes | None, now_ms: int) -> Fragment:
    """Records that differ in nothing, in Kafka's own encoding, by hand.

    Of now: brokers forget producers by the time of their records, and begin a segment where it
    leaps.
    """
    body = bytearray()
    for delta in range(count):
        value = b"v" * size
        record = b"\0\0" + varint(delta)
        record += varint(-1) if key is None else varint(len(key)) + key
        record += varint(len(value)) + value + b"\0"
        body += varint(len(record)) + record
    return Fragment(bytes(body), count, Codec.NONE, now_ms, now_ms, None)  # type: ignore[arg-type]


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
