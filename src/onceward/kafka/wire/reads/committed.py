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
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.reads.fetch import (
    EMPTY_ANSWERS,
    FETCH_WAIT_MS,
    OFFSET_OUT_OF_RANGE,
    batches_from,
    fetch,
)
from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST, list_offsets

_STUCK_MS = 60_000

Skip = Callable[[int], int]
"""From an offset to the next one that is wanted; the same where it is wanted itself."""


def decided_ends(
    client: KafkaClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return each partition's last stable offset: below it every transaction has ended."""
    return list_offsets(client, partitions, LATEST, read_committed=True)


def committed_records(
    client: KafkaClient,
    where: TopicPartition,
    start: int,
    end: int,
    *,
    skip: Skip = lambda offset: offset,
) -> Iterator[Record]:
    """Return the committed records from ``start`` up to ``end``, one of :func:`decided_ends`, in
    offset order.

    Holds one answer of a broker at a time (about 4 MiB, or one larger record batch). What
    retention removes meanwhile is not there any more, and is passed over.

    :param skip: asked before each fetch, so that stretches that nobody wants are not even read.
    :raises SourceDataLost: the log has become shorter than it was: the topic was created again, or
        truncated.
    :raises BrokerUnreachable: no progress for a minute.
    :raises TopicMissing, AccessDenied, ResourceError: …
    """
    position, stuck, backoff, empty = start, Deadline(_STUCK_MS), Backoff(), 0
    while (position := skip(position)) < end:
        try:
            answer = fetch(client, where, position, wait_ms=FETCH_WAIT_MS, read_committed=True)
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
        for record in visible(batches, aborted_in(part)):
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
        # A throttled answer is empty, too
        empty += not answer.throttle_time_ms
        if empty >= EMPTY_ANSWERS and part.last_stable_offset >= end:
            # Compaction has removed the rest
            return
        if stuck.passed:
            raise BrokerUnreachable(
                f"{where} had committed records up to offset {end}, and its leader shows nothing "
                f"from {position} on for {_STUCK_MS // 1000} s",
                next_step="check the brokers that hold the partition, then run again",
            )
        # Whoever has no news for us may not lead any more
        client.forget_leaders([where.topic])
        backoff.wait(stuck)


def visible(
    batches: Sequence[RecordBatch], aborted: Iterable[tuple[int, int]]
) -> Iterator[Record]:
    """Yield what a read-committed consumer is given of a ``Fetch`` (:func:`with_fates`). Pure."""
    for batch, is_aborted in with_fates(batches, aborted):
        if not is_aborted:
            yield from batch.records


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

    :raises AccessDenied: Read on the topic is needed.
    :raises BrokerUnreachable: …
    """

    answer = fetch(
        client,
        partition,
        position,
        wait_ms=0,
        # says what was aborted
        read_committed=True,
        take_code_as={OFFSET_OUT_OF_RANGE: 0},
    )
    part = answer.responses[0].partitions[0]
    fates = with_fates(read_batches(part.records or b""), aborted_in(part))
    return next(
        (gone for batch, gone in fates if batch.base_offset < position <= batch.last_offset), False
    )


def aborted_in(part: Any) -> Iterator[tuple[int, int]]:
    """Return what :func:`with_fates` wants of a partition's answer."""
    return ((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
