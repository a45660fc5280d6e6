"""The newest committed value of a key in one partition: how the ledger is read.

Runs in the driver. Called by ``ledger.topic``.

Read-committed consumers stop at the first open transaction of *anybody* in the partition. A pipeline must not wait for
other pipelines whose records happen to share its ledger partition, so this reads everything up to the high watermark
and follows the transaction markers itself: what a producer wrote counts once its commit marker has been read, and is
dropped at its abort marker.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import FetchRequest

from onceward.errors import LedgerUnreadable
from onceward.ids import TopicPartition
from onceward.records.reader import ControlType, CorruptRecords, RecordBatch, read_batches
from onceward.wire.acls import Kind
from onceward.wire.client import KafkaClient
from onceward.wire.connections import ConnectionLost
from onceward.wire.conversation import Refused, Unanswered, converse, raise_as_error
from onceward.wire.deadline import Backoff, Deadline
from onceward.wire.error_table import Api
from onceward.wire.offsets import EARLIEST, LATEST, committed_offsets, list_offsets

__all__ = ["EARLIEST", "LATEST", "committed_offsets", "list_offsets", "newest_committed"]

_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT_MS = 200
_CONSUMER = -1  # replica id of a client that is no broker
_READ_UNCOMMITTED = 0
_EMPTY_ANSWERS = 3


def newest_committed(
    client: KafkaClient,
    topic: str,
    partition: int,
    key: bytes,
    *,
    decided_only: bool = False,
    timeout_ms: int = 60_000,
) -> bytes | None:
    """The value of the newest committed record with ``key``; None if there is none, or it is a tombstone.

    Reads from the log's start to the high watermark as of the call. Records of ``key`` in a transaction that is still
    open there are waited for, as long as the transaction takes to end. The owner of the key has no open transaction
    after ``InitProducerId``, so that it waits for markers at most.

    :param decided_only: do not wait: None when there is such a record, because it may turn out to be the newest.
    :param timeout_ms: how long to go on without any progress.
    :raises LedgerUnreadable: undecided after ``timeout_ms``, or the log is damaged; names partition and key.
    :raises BrokerUnreachable, TopicMissing, AccessDenied: …
    """
    where = TopicPartition(topic, partition)
    deadline = Deadline(timeout_ms)
    end = list_offsets(client, [where], LATEST)[where]
    reader = _PartitionReader(client, where)
    found = _NewestOf(key)
    backoff = Backoff()
    if reader.position >= end:
        # Nothing to read; asked all the same, so that who may not read hears so now and not at the first restart.
        reader.read(wait_ms=0)
        return None
    while reader.position < end or (found.undecided and not decided_only):
        batches = reader.read()
        for batch in batches:
            found.read(batch)
        settled = (decided_only or not found.undecided) and reader.sees(end)
        if settled and not batches and reader.position < end and reader.empty_answers >= _EMPTY_ANSWERS:
            break  # compaction removed the rest: the last records were those of aborted transactions
        if deadline.passed:
            raise LedgerUnreadable(
                f"{where} could not be read to a decision about key {key.decode(errors='replace')!r} within "
                f"{timeout_ms} ms: position {reader.position}, end {end}, open transactions of producers "
                f"{sorted(found.undecided)}",
                next_step="end or wait for the open transaction (kafka-transactions.sh describe), then run again",
            )
        if batches:
            deadline = Deadline(timeout_ms)  # a long log is no reason to give up, a stuck one is
        else:
            backoff.wait(deadline)
    return None if found.undecided else found.value


class _NewestOf:
    """Follows data and markers of a partition in offset order; pure."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.value: bytes | None = None
        self._offset = -1
        self._held: dict[int, tuple[int, bytes | None]] = {}

    @property
    def undecided(self) -> set[int]:
        """Producers that wrote the key in a transaction whose marker has not been read."""
        return set(self._held)

    def read(self, batch: RecordBatch) -> None:
        if batch.is_control:
            held = self._held.pop(batch.producer_id, None)
            if held and batch.control_type == ControlType.COMMIT:
                self._accept(*held)
            return
        for record in batch.records:
            if record.key == self._key:
                if batch.is_transactional:
                    self._held[batch.producer_id] = (record.offset, record.value)
                else:
                    self._accept(record.offset, record.value)

    def _accept(self, offset: int, value: bytes | None) -> None:
        if offset > self._offset:
            self._offset, self.value = offset, value


class _PartitionReader:
    """Fetches one partition from its start on, whole batches at a time."""

    def __init__(self, client: KafkaClient, partition: TopicPartition) -> None:
        self._client = client
        self._partition = partition
        self.position = list_offsets(client, [partition], EARLIEST)[partition]
        self.empty_answers = 0
        self._high_watermark = -1

    def sees(self, end: int) -> bool:
        """Whether the leader that answered last has everything up to ``end``.

        After an election the new leader's high watermark lags until its followers have fetched; until then it answers
        with nothing although there is something.
        """
        return self._high_watermark >= end

    def read(self, wait_ms: int = _FETCH_WAIT_MS) -> list[RecordBatch]:
        """The next batches, possibly none; ``position`` moves past them."""
        try:
            answer = converse(
                Api.FETCH,
                str(self._partition),
                lambda left_ms: self._send(left_ms, wait_ms),
                lambda fetched: [fetched.error_code, fetched.responses[0].partitions[0].error_code],
                Deadline(self._client.settings.request_timeout_ms),
                refresh=lambda: self._client.forget_leaders([self._partition.topic]),
                resources={Kind.TOPIC: self._partition.topic},
            )
        except (Refused, Unanswered) as outcome:
            raise_as_error(outcome)
        self._high_watermark = answer.responses[0].partitions[0].high_watermark
        records = answer.responses[0].partitions[0].records
        if not records and not answer.throttle_time_ms:  # a throttled answer is empty, too
            self.empty_answers += 1
        try:
            # The first batch may begin before the position that was asked for.
            batches = [b for b in read_batches(records or b"") if b.last_offset >= self.position]
        except CorruptRecords as corrupt:
            raise LedgerUnreadable(
                f"{self._partition} holds damaged records near offset {self.position}: {corrupt}",
                next_step="restore the partition from a replica or backup",
            ) from corrupt
        if batches:
            self.empty_answers = 0
            self.position = batches[-1].last_offset + 1
        return batches

    def _send(self, left_ms: float, wait_ms: int) -> Any:
        node = self._client.leader_of(self._partition)
        if node < 0:
            self._client.forget_leaders([self._partition.topic])
            raise ConnectionLost(f"{self._partition} has no leader")
        wanted = FetchRequest.FetchTopic.FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=-1,
            fetch_offset=self.position,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=_FETCH_BYTES,
        )
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=_READ_UNCOMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=self._partition.topic, partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            max_version=12,
        )
        return self._client.call(request, node, left_ms)
