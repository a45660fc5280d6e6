"""The records of a partition as read-committed consumers see them, streamed: up to where
everything was decided.

Called by :mod:`onceward.kafka.dead_letters`, from the command line. A transaction that is open
holds the last stable offset, so that reading ends there, and never waits for it. Whole record
batches of a partition from one offset on are fetched for ``kafka.wire.reads.key_reader``, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kafka.protocol.consumer import FetchRequest

from onceward.errors import BrokerUnreachable, ResourceError, SourceDataLost, UnsupportedBroker
from onceward.ids import TopicPartition
from onceward.kafka.records.compression import CorruptRecords
from onceward.kafka.records.reader import ControlType, Record, RecordBatch, read_batches
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import asked
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.error_table import Api
from onceward.kafka.wire.reads.offsets import EARLIEST, EARLIEST_LOCAL, list_offsets

FETCH_WAIT_MS = 200
EMPTY_ANSWERS = 3
"""After so many a reader asks again who leads, or believes that there is nothing."""
OFFSET_OUT_OF_RANGE, NOT_LEADER = 1, 6

_FETCH_BYTES = 4 * 1024 * 1024
_REMOTE_WAIT_MS = 10_000


def fetch(
    client: KafkaClient,
    where: TopicPartition,
    position: int,
    *,
    wait_ms: int,
    read_committed: bool,
    out_of_range: int = OFFSET_OUT_OF_RANGE,
) -> Any:
    """Ask the leader until it answers; ``out_of_range``: the code for which it is taken that an
    offset is out of range. :raises OncewardError: what the table has for the outcome."""

    def send(left_ms: float) -> Any:
        node = client.known_leader(where)
        if node < 0:
            client.forget_leaders([where.topic])
            raise ConnectionLost(f"{where} has no leader")
        request = fetch_request(where, position, wait_ms, read_committed=read_committed)
        return client.call(request, node, left_ms)

    def codes(fetched: Any) -> list[int]:
        code = fetched.responses[0].partitions[0].error_code
        return [fetched.error_code, out_of_range if code == OFFSET_OUT_OF_RANGE else code]

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
        fetch_offset=offset,
        partition_max_bytes=_FETCH_BYTES,
    )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        isolation_level=int(read_committed),
        topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[question])],
        min_version=4,
        max_version=12,
    )


_STUCK_MS = 60_000

Skip = Callable[[int], int]
"""From an offset to the next one that is wanted; the same where it is wanted itself."""


def committed_records(
    client: KafkaClient,
    where: TopicPartition,
    start: int,
    end: int,
    *,
    skip: Skip = lambda offset: offset,
) -> Iterator[Record]:
    """Return the committed records from ``start`` up to ``end``, in offset order. Holds one answer
    of a broker at a time (about 4 MiB, or one larger record batch). What retention removes
    meanwhile is not there any more, and is passed over.

    :param end: no further than the last stable offset, below which every transaction has ended.
    :param skip: asked before each fetch, so that stretches that nobody wants are not even read.
    :raises SourceDataLost: the log is shorter than it was: created again, or truncated.
    :raises BrokerUnreachable: no progress for a minute.
    :raises TopicMissing, AccessDenied, ResourceError: …
    """
    position, stuck, backoff, empty = start, Deadline(_STUCK_MS), Backoff(), 0
    wait_ms = FETCH_WAIT_MS
    while (position := skip(position)) < end:
        try:
            answer = fetch(client, where, position, wait_ms=wait_ms, read_committed=True)
        except ResourceError as refused:
            if refused.details.get("code") != OFFSET_OUT_OF_RANGE:
                raise
            position = _after_retention(client, where, position)
            continue
        try:
            batches = batches_from(position, answer)
        except CorruptRecords as corrupt:
            raise ResourceError(
                f"{where} holds damaged records near offset {position}: {corrupt.message}",
                next_step=corrupt.next_step,
            ) from corrupt
        part = answer.responses[0].partitions[0]
        for batch, is_aborted in with_fates(batches, aborted_in(part)):
            for record in () if is_aborted else batch.records:
                if position <= record.offset < end:
                    yield record
        if batches:
            position = batches[-1].last_offset + 1
            stuck, backoff, empty = Deadline(_STUCK_MS), Backoff(), 0
            continue
        # A throttled answer is empty, too
        empty += not answer.throttle_time_ms
        if empty >= EMPTY_ANSWERS and part.last_stable_offset >= end:
            if position >= _first_local(client, where):
                # Compaction has removed the rest
                return
            # In tiered storage, which is slower than a fetch waits (before KIP-1018: than ours)
            empty, wait_ms = 0, _REMOTE_WAIT_MS
        if stuck.passed:
            raise BrokerUnreachable(
                f"{where} had committed records up to offset {end}, and its leader shows nothing "
                f"from {position} on for {_STUCK_MS // 1000} s",
                next_step="check the brokers that hold the partition, then run again",
            )
        # Whoever has no news for us may not lead any more
        client.forget_leaders([where.topic])
        backoff.wait(stuck)


def with_fates(
    batches: Iterable[RecordBatch], aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[RecordBatch, bool]]:
    """Yield each batch of data of one answer to ``Fetch``, and whether its transaction was
    aborted. Pure.

    :param aborted: first offset and producer id of the aborted transactions that the answer has a
        part of. Such a transaction goes on until its marker (``CompletedFetch.nextFetchedRecord``
        of kafka-clients).
    """
    ahead = list(aborted)
    heapq.heapify(ahead)
    aborting: set[int] = set()
    for batch in batches:
        while ahead and ahead[0][0] <= batch.last_offset:
            aborting.add(heapq.heappop(ahead)[1])
        if batch.is_control:
            if batch.control_type == ControlType.ABORT:
                aborting.discard(batch.producer_id)
        else:
            yield batch, batch.is_transactional and batch.producer_id in aborting


def _first_local(client: KafkaClient, where: TopicPartition) -> int:
    """Return the first offset that the leader has itself, and not in tiered storage (KIP-405)."""
    try:
        return list_offsets(client, [where], EARLIEST_LOCAL)[where]
    except UnsupportedBroker:
        return 0


def _after_retention(client: KafkaClient, where: TopicPartition, position: int) -> int:
    earliest = list_offsets(client, [where], EARLIEST)[where]
    if earliest > position:
        return earliest
    raise SourceDataLost(
        f"{where} had records at offset {position}, and now it has no such offset: the topic was "
        "created again, or its log was cut off",
        next_step="run again: what is there now is read from its beginning",
    )


def is_inside_an_aborted_batch(
    client: KafkaClient, partition: TopicPartition, position: int
) -> bool:
    """Return whether ``position`` stands behind a record of an aborted batch, and before another
    one of it: was a consumer given a record of an aborted transaction? Reads one batch.

    Whoever reads committed records passes such batches over whole
    (``CompletedFetch.nextFetchedRecord`` of the Java client), so that it never stands there by
    reading. False as well where the log does not reach any more.

    :raises AccessDenied, BrokerUnreachable: the first without Read on the topic.
    """

    answer = fetch(
        client,
        partition,
        position,
        wait_ms=0,
        # says what was aborted
        read_committed=True,
        out_of_range=0,
    )
    part = answer.responses[0].partitions[0]
    fates = with_fates(read_batches(part.records or b""), aborted_in(part))
    return next(
        (gone for batch, gone in fates if batch.base_offset < position <= batch.last_offset), False
    )


def aborted_in(part: Any) -> Iterator[tuple[int, int]]:
    """Return what :func:`with_fates` wants of a partition's answer."""
    return ((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
