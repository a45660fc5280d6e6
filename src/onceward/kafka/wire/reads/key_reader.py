"""The newest committed value of a key in one partition: how the ledger is read. Runs in the
driver. Called by ``ledger.topic``.

Read-committed consumers stop at the first open transaction of *anybody* in the partition. A
pipeline must not wait for other pipelines whose records happen to share its ledger partition, so
this reads everything up to the high watermark and follows the transaction markers itself: what a
producer wrote counts once its commit marker has been read, and is dropped at its abort marker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from onceward.errors import BrokerUnreachable, LedgerUndecided
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.compression import CorruptRecords
from onceward.kafka.records.reader import ControlType, Record, RecordBatch
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.reads.committed import (
    EMPTY_ANSWERS,
    FETCH_WAIT_MS,
    NOT_LEADER,
    OFFSET_OUT_OF_RANGE,
    batches_from,
    fetch,
)
from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST, list_offsets

log = logging.getLogger(__name__)

_CORRUPT_ANSWERS = 3
_SHOWN_MS = 30_000

Believe = Callable[[RecordBatch, Record], bool]
"""Is a record under the key one of those asked for? Others are passed over, committed or not."""


class KeyReader:
    """Reads one key of a partition from the log's start on, and keeps its place in between;
    ``believe`` says which records count, by default all."""

    def __init__(
        self,
        client: KafkaClient,
        where: TopicPartition,
        key: bytes,
        believe: Believe = lambda batch, record: True,
    ) -> None:
        self.where = where
        self._client = client
        self._key = key
        self._believe = believe
        self._log: PartitionReader | None = None
        self.value: bytes | None = None
        """The newest committed value in what has been read."""
        self.strange: Record | None = None
        """The newest record under the key that was read and not believed."""
        # of :attr:`value`
        self._offset = -1
        # By producers that wrote the key in a transaction whose marker has not been read
        self._held: dict[int, tuple[int, bytes | None]] = {}

    def newest(self, *, decided_only: bool = False, timeout_ms: int = 60_000) -> bytes | None:
        """Return the newest committed value of the key; None: there is none, or a tombstone.

        Reads to the high watermark as of the call. Records of the key in a transaction that is
        still open there are waited for, as long as the transaction takes to end. The owner of the
        key has no open transaction after ``InitProducerId``, so that it waits for markers at most.
        What it says was committed, but more may have been: a leader that was deposed and does not
        know it answers as if it still led (``ReplicaManager.fetchMessages`` asks nobody). See
        :meth:`newest_before`.

        :param decided_only: do not wait: None when there is such a record, because it may turn out
            to be the newest.
        :param timeout_ms: how long to go on without any progress.
        :raises LedgerUndecided: after ``timeout_ms``; names partition and key. Or what comes of
            the log is damaged again and again.
        :raises BrokerUnreachable, TopicMissing, AccessDenied: …
        """
        deadline = Deadline(timeout_ms)
        end = list_offsets(self._client, [self.where], LATEST)[self.where]
        log = self._reader()
        backoff = Backoff()
        if log.position >= end and not self._held:
            # Nothing to read; asked all the same, so that who may not read hears so now and not at
            # the first restart.
            log.read(wait_ms=0)
            return self.value
        # EndTxn is answered before the markers are written: right after a restart the last commit
        # may be undecided in the log. Only the markers of this key's own producers are waited for.
        while log.position < end or (self._held and not decided_only):
            behind = log.position >= end
            batches = log.read()
            for batch in batches:
                self._take(batch)
            settled = (decided_only or not self._held) and log.sees(end)
            if (
                settled
                and not batches
                and log.position < end
                and log.empty_answers >= EMPTY_ANSWERS
            ):
                # compaction removed the rest: the last records were those of aborted transactions
                break
            if batches and not behind:
                # A long log is no reason to give up, and neither is a process that stood still
                # while it was read. What others write behind it is no progress.
                deadline = Deadline(timeout_ms)
            elif deadline.passed:
                raise self._undecided(timeout_ms, f"end {end}")
            else:
                backoff.wait(deadline)
        return None if self._held else self.value

    def newest_before(self, offset: int, identity: ProducerIdentity) -> bytes | None:
        """Return the value of the newest committed record before ``offset``, where ``identity``
        has just appended.

        Unlike :meth:`newest` it cannot be outdated. The append was acknowledged by all in-sync
        replicas, and logs that agree about a batch agree about everything before it; so it is read
        from a log that holds this very batch, and whoever answers proves by it that he knows what
        was committed before. A deposed leader does not have it.
        Goes on where the last call has stopped, which is one fetch after :meth:`newest`.

        :raises BrokerUnreachable: nobody has shown that batch within 30 s.
        :raises LedgerUndecided: another transaction with the key is open before it.
        """
        log = self._reader()
        deadline = Deadline(_SHOWN_MS)
        backoff = Backoff()
        while True:
            for batch in log.read(behind=True):
                if batch.base_offset < offset:
                    self._take(batch)
                elif _matches(batch, offset, identity):
                    if self._held:
                        raise self._undecided(_SHOWN_MS, f"our own append at {offset}")
                    return self.value
                else:
                    # a log that went another way
                    break
            if deadline.passed or log.position > offset:
                raise BrokerUnreachable(
                    f"no leader of {self.where} has shown what lies before our append at offset "
                    f"{offset} within {_SHOWN_MS} ms; position {log.position}",
                    next_step="nothing: the batch runs again; if it repeats, check the brokers "
                    "that hold the partition",
                )
            backoff.wait(deadline)

    def _take(self, batch: RecordBatch) -> None:
        if batch.is_control:
            held = self._held.pop(batch.producer_id, None)
            if held and batch.control_type == ControlType.COMMIT:
                self._accept(*held)
            return
        for record in batch.records:
            if record.key == self._key:
                if not self._believe(batch, record):
                    self.strange = record
                elif batch.is_transactional:
                    self._held[batch.producer_id] = (record.offset, record.value)
                else:
                    self._accept(record.offset, record.value)

    def _accept(self, offset: int, value: bytes | None) -> None:
        if offset > self._offset:
            self._offset, self.value = offset, value

    def _reader(self) -> PartitionReader:
        if self._log is None:
            self._log = PartitionReader(self._client, self.where)
        return self._log

    def _undecided(self, timeout_ms: int, end: str) -> LedgerUndecided:
        log = self._reader()
        return LedgerUndecided(
            f"{self.where} could not be read to a decision about key "
            f"{self._key.decode(errors='replace')!r} within {timeout_ms} ms: position "
            f"{log.position}, {end}, open transactions of producers "
            f"{sorted(self._held)}",
            next_step="run again later; if it repeats, look for a broker that is cut off from the "
            "controllers, and for a transaction that hangs: `onceward transactions list --topic "
            f"{self.where.topic}` says so, and whether its coordinator has committed it",
        )


def _matches(batch: RecordBatch, offset: int, identity: ProducerIdentity) -> bool:
    return batch.base_offset == offset and (batch.producer_id, batch.producer_epoch) == identity


class PartitionReader:
    """Fetches one partition from its start on, whole batches at a time."""

    def __init__(self, client: KafkaClient, partition: TopicPartition) -> None:
        self._client = client
        self.partition = partition
        self.position = list_offsets(client, [partition], EARLIEST)[partition]
        self.empty_answers = self._corrupt_answers = 0
        self._high_watermark = -1

    def sees(self, end: int) -> bool:
        """Return whether the leader that answered last has everything up to ``end``. After an
        election the new leader's high watermark lags until its followers have fetched; until then
        it answers with nothing although there is something."""
        return self._high_watermark >= end

    def read(self, wait_ms: int = FETCH_WAIT_MS, *, behind: bool = False) -> list[RecordBatch]:
        """Return the next batches, possibly none, and move ``position`` past them. ``behind``: who
        does not have ``position`` is behind, and somebody else leads: ask who."""

        answer = fetch(
            self._client,
            self.partition,
            self.position,
            wait_ms=wait_ms,
            read_committed=False,
            out_of_range=NOT_LEADER if behind else OFFSET_OUT_OF_RANGE,
        )
        self._high_watermark = answer.responses[0].partitions[0].high_watermark
        records = answer.responses[0].partitions[0].records
        # A throttled answer is empty, too
        if not records and not answer.throttle_time_ms:
            self.empty_answers += 1
            # Whoever has no news for us may not lead any more.
            if self.empty_answers % EMPTY_ANSWERS == 0:
                self._client.forget_leaders([self.partition.topic])
        try:
            batches = batches_from(self.position, answer)
        except CorruptRecords as corrupt:
            self._corrupt_answers += 1
            # There is something, which compaction has not taken
            self.empty_answers = 0
            if self._corrupt_answers < _CORRUPT_ANSWERS:
                # The network's doing, say, or one replica's: another leader may have them whole
                log.warning("asking %s again: %s", self.partition, corrupt.message)
                self._client.forget_leaders([self.partition.topic])
                return []
            raise LedgerUndecided(
                f"{self.partition} holds damaged records near offset {self.position}: "
                f"{corrupt.message}",
                next_step="run again later; if it repeats, restore the partition from a replica "
                "or backup",
            ) from corrupt
        self._corrupt_answers = 0
        if batches:
            self.empty_answers = 0
            self.position = batches[-1].last_offset + 1
        return batches
