"""Fetch: whole record batches of one partition, from one offset on.

Called by ``kafka.wire.reads.key_reader`` (all up to the high watermark) and
``kafka.wire.reads.committed`` (what is decided).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka.protocol.consumer import FetchRequest

from onceward.ids import TopicPartition
from onceward.kafka.records.reader import RecordBatch, read_batches
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import asked
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api

FETCH_WAIT_MS = 200
EMPTY_ANSWERS = 3
"""After so many a reader asks again who leads, or believes that there is nothing."""
OFFSET_OUT_OF_RANGE, NOT_LEADER = 1, 6

_FETCH_BYTES = 4 * 1024 * 1024
# Replica id of a client that is no broker
_CONSUMER = -1


def fetch(
    client: KafkaClient,
    where: TopicPartition,
    position: int,
    *,
    wait_ms: int,
    read_committed: bool,
    take_code_as: Mapping[int, int] = MappingProxyType({}),
) -> Any:
    """Ask the leader until it answers, taking codes of the partition for others as
    ``take_code_as`` says. :raises OncewardError: what the table has for the outcome."""

    def send(left_ms: float) -> Any:
        node = client.known_leader(where)
        if node < 0:
            client.forget_leaders([where.topic])
            raise ConnectionLost(f"{where} has no leader")
        request = fetch_request(where, position, wait_ms, read_committed=read_committed)
        return client.call(request, node, left_ms)

    def codes(fetched: Any) -> list[int]:
        code = fetched.responses[0].partitions[0].error_code
        return [fetched.error_code, take_code_as.get(code, code)]

    return asked(
        Api.FETCH,
        str(where),
        send,
        codes,
        Deadline(client.settings.request_timeout_ms),
        refresh=lambda: client.forget_leaders([where.topic]),
        resources={Kind.TOPIC: where.topic},
    )


def batches_from(position: int, answer: Any) -> list[RecordBatch]:
    """Return an answer's batches; the first may begin before ``position``. :raises CorruptRecords:
    …"""
    records = answer.responses[0].partitions[0].records
    return [batch for batch in read_batches(records or b"") if batch.last_offset >= position]


def fetch_request(
    partition: TopicPartition, offset: int, wait_ms: int, *, read_committed: bool
) -> Any:
    """Build a request for whole record batches, of about 4 MiB; the first one comes whole, however
    large it is (KIP-74).

    :param read_committed: nothing beyond the last stable offset, and with it the transactions that
        were aborted (KIP-98); else all up to the high watermark, and nothing is said of
        transactions.
    """
    question = FetchRequest.FetchTopic.FetchPartition(
        partition=partition.partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=_FETCH_BYTES,
    )
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        isolation_level=int(read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[question])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=4,
        max_version=12,
    )
