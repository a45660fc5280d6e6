"""The records of a partition as read-committed consumers see them, streamed: up to where
everything was decided.

Called by :mod:`onceward.kafka.dead_letters`, from the command line. A transaction that is open
holds the last stable offset, so that reading ends there, and never waits for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from onceward.errors import BrokerUnreachable, ResourceError, SourceDataLost
from onceward.ids import TopicPartition
from onceward.kafka.records.reader import (
    ControlType,
    CorruptRecords,
    Record,
    RecordBatch,
    read_batches,
)
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import Refused, Unanswered, converse, raise_as_error
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.error_table import Api
from onceward.kafka.wire.reads.fetch import fetch_request
from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST, list_offsets

_FETCH_WAIT_MS = 200
_STUCK_MS = 60_000
_EMPTY_ANSWERS = 3
_OFFSET_OUT_OF_RANGE = 1

Skip = Callable[[int], int]
"""From an offset to the next one that is wanted; the same where it is wanted itself."""


def decided_ends(
    client: KafkaClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Per partition its last stable offset as of now: below it every transaction has ended."""
    return list_offsets(client, partitions, LATEST, read_committed=True)


def committed_records(
    client: KafkaClient,
    where: TopicPartition,
    start: int,
    end: int,
    *,
    skip: Skip = lambda offset: offset,
) -> Iterator[Record]:
    """The committed records from ``start`` up to ``end``, one of :func:`decided_ends`, in offset
    order.

    Holds one answer of a broker at a time (about 4 MiB, or one larger record batch). What
    retention removes meanwhile is not there any more, and is passed over.

    :param skip: asked before each fetch, so that stretches that nobody wants are not even read.
    :raises SourceDataLost: the log has become shorter than it was: the topic was created again, or
        truncated.
    :raises BrokerUnreachable: no progress for a minute. :raises TopicMissing, AccessDenied,
        ResourceError: …
    """
    position, stuck, backoff, empty = start, Deadline(_STUCK_MS), Backoff(), 0
    while (position := skip(position)) < end:
        try:
            found = _fetch(client, where, position)
        except Refused as refused:
            if refused.code != _OFFSET_OUT_OF_RANGE:
                raise_as_error(refused)
            position = _after_retention(client, where, position)
            continue
        except Unanswered as unanswered:
            raise_as_error(unanswered)
        batches = _batches(where, position, found.records)
        for record in visible(batches, _aborted(found)):
            if position <= record.offset < end:
                yield record
        if batches:
            position, stuck, backoff, empty = (
                batches[-1].last_offset + 1,
                Deadline(_STUCK_MS),
                Backoff(),
                0,
            )
            continue
        empty += not found.throttle_time_ms  # a throttled answer is empty, too
        if empty >= _EMPTY_ANSWERS and found.last_stable_offset >= end:
            return  # compaction has removed the rest
        if stuck.passed:
            raise BrokerUnreachable(
                f"{where} had committed records up to offset {end}, and its leader shows nothing "
                f"from {position} on "
                f"for {_STUCK_MS // 1000} s",
                next_step="check the brokers that hold the partition, then run again",
            )
        client.forget_leaders([where.topic])  # whoever has no news for us may not lead any more
        backoff.wait(stuck)


def visible(
    batches: Sequence[RecordBatch], aborted: Iterable[tuple[int, int]]
) -> Iterator[Record]:
    """What a read-committed consumer is given of one answer to ``Fetch``. Pure.

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
        elif not (batch.is_transactional and batch.producer_id in aborting):
            yield from batch.records


class _Fetched:
    """What of an answer is needed here."""

    def __init__(self, answer: Any) -> None:
        part = answer.responses[0].partitions[0]
        self.records: Any = part.records or b""
        self.aborted_transactions: Any = part.aborted_transactions or ()
        self.last_stable_offset: int = part.last_stable_offset
        self.throttle_time_ms: int = answer.throttle_time_ms


def _aborted(found: _Fetched) -> list[tuple[int, int]]:
    return [
        (transaction.first_offset, transaction.producer_id)
        for transaction in found.aborted_transactions
    ]


def _fetch(client: KafkaClient, where: TopicPartition, position: int) -> _Fetched:
    def send(left_ms: float) -> Any:
        node = client.leader_of(where)
        if node < 0:
            client.forget_leaders([where.topic])
            raise ConnectionLost(f"{where} has no leader")
        return client.call(
            fetch_request(where, position, _FETCH_WAIT_MS, read_committed=True), node, left_ms
        )

    return _Fetched(
        converse(
            Api.FETCH,
            str(where),
            send,
            lambda fetched: [fetched.error_code, fetched.responses[0].partitions[0].error_code],
            Deadline(client.settings.request_timeout_ms),
            refresh=lambda: client.forget_leaders([where.topic]),
            resources={Kind.TOPIC: where.topic},
        )
    )


def _batches(where: TopicPartition, position: int, records: Any) -> list[RecordBatch]:
    try:
        # The first batch may begin before the position that was asked for.
        return [batch for batch in read_batches(records) if batch.last_offset >= position]
    except CorruptRecords as corrupt:
        raise ResourceError(
            f"{where} holds damaged records near offset {position}: {corrupt.message}",
            next_step=corrupt.next_step,
        ) from corrupt


def _after_retention(client: KafkaClient, where: TopicPartition, position: int) -> int:
    earliest = list_offsets(client, [where], EARLIEST)[where]
    if earliest > position:
        return earliest
    raise SourceDataLost(
        f"{where} had records at offset {position}, and now it has no such offset: the topic was "
        f"created again, or its "
        "log was cut off",
        next_step="run again: what is there now is read from its beginning",
    )
