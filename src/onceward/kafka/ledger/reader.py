"""All chains of one ledger topic, for whoever looks at them again and again: each record is
fetched once.

Called by :class:`onceward.kafka.ledger.chain.KafkaLedger` for commands and dashboards; no batch
rests on it, which asks :class:`onceward.kafka.ledger.topic.LedgerTopic`. Nobody is waited for: a
record counts once the marker of its transaction has been read, and an open transaction of one
pipeline hides no record of another.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from onceward import surroundings
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import AccessDenied, BrokerUnreachable, TopicMissing
from onceward.ids import PipelineId, TopicPartition
from onceward.kafka.ledger.topic import (
    FoundRecord,
    age,
    found_record,
    is_its_writers,
    key_partition,
)
from onceward.kafka.records.reader import ControlType, Record, RecordBatch
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.reads.committed import EMPTY_ANSWERS
from onceward.kafka.wire.reads.key_reader import PartitionReader
from onceward.kafka.wire.reads.offsets import LATEST, list_offsets

log = logging.getLogger(__name__)

_KEPT = 200
_ELSEWHERE_MS = 5_000
_STUCK_MS = 30_000
_METADATA_AGE_SECONDS = 1.0
"""One look at fifty pipelines asks once."""


class LedgerTopicReader:
    """Reads a ledger topic on from where it was read to; one thread at a time. It keeps as many
    records of a pipeline as were asked for at most, two hundred at least."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._topic_id, self._asked_at = "", -math.inf
        self._limit = _KEPT
        self._places: dict[int, _Place] = {}
        self._lock = threading.Lock()

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines whose newest committed record is no tombstone, sorted; none where
        the topic is missing. :raises AccessDenied, BrokerUnreachable, LedgerUnreadable: …"""
        with self._lock:
            try:
                self._read_on(range(self._partitions()))
            except TopicMissing:
                self._places.clear()
            keys = {key for place in self._places.values() for key in place.living}
        return sorted(PipelineId(key.decode(errors="replace")) for key in keys)

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        """Return the last records of the pipeline that compaction has left, newest first. Its
        place moves when somebody adds partitions to the topic, so the others are read where its
        own does not have so many; what does not answer there is passed over.

        :raises LedgerUnreadable: one cannot be understood.
        :raises AccessDenied, BrokerUnreachable: …
        """
        key = pipeline.encode()
        with self._lock:
            if limit > self._limit:
                self._limit = limit
                self._places.clear()
            try:
                count = self._partitions(_METADATA_AGE_SECONDS)
                home = key_partition(key, count)
                self._read_on([home])
            except TopicMissing:
                self._places.clear()
                return []
            found = self._found(home, key, limit)
            is_whole = len(found) >= limit or (found and found[0].record.sequence == 0)
            if count > 1 and not (is_whole and found[-1].partitions == count):
                for number in sorted(set(range(count)) - {home}):
                    found += self._elsewhere(number, key, limit)
                found.sort(key=age)
        return [each.record for each in found[: -limit - 1 : -1]]

    def looking(self) -> AbstractContextManager[None]:
        """Do nothing: its client keeps connections itself."""
        return nullcontext()

    def _elsewhere(self, number: int, key: bytes, limit: int) -> list[FoundRecord]:
        """Return what was written before the key's place moved; nothing, where nobody answers."""
        try:
            self._read_on([number], _ELSEWHERE_MS)
        except (AccessDenied, BrokerUnreachable) as error:
            log.debug("passed over: %s", error.message)
            return []
        return self._found(number, key, limit)

    def _found(self, number: int, key: bytes, limit: int) -> list[FoundRecord]:
        where = f"{TopicPartition(self._topic, number)}, key {key.decode()!r}"
        values = list(self._places[number].values.get(key, ()))[-limit:]
        return [found_record(value, where) for value in values]

    def _partitions(self, age_s: float = 0.0) -> int:
        """Return how many there are, as of ``age_s`` ago at most. :raises TopicMissing: …"""
        now = surroundings.monotonic()
        if now - self._asked_at >= age_s:
            topic_id = self._client.topic_ids([self._topic]).get(self._topic, "")
            if topic_id != self._topic_id:
                self._places.clear()
            self._topic_id, self._asked_at = topic_id, now
        return len(self._client.known_leaders(self._topic))

    def _read_on(self, partitions: Iterable[int], timeout_ms: int | None = None) -> None:
        where = {number: TopicPartition(self._topic, number) for number in partitions}
        ends = list_offsets(self._client, where.values(), LATEST, timeout_ms=timeout_ms)
        for number, partition in where.items():
            place = self._places.get(number)
            if place is None or place.log.position > ends[partition]:
                reader = PartitionReader(self._client, partition)
                place = self._places[number] = _Place(reader, self._limit)
            try:
                place.read_to(ends[partition])
            except BaseException:
                # Its log may have been cut at the front, say: the next look begins there
                del self._places[number]
                raise


class _Place:
    """One partition as far as it has been read. Records are bytes until somebody wants them."""

    def __init__(self, log: PartitionReader, limit: int) -> None:
        self.log = log
        self.values: defaultdict[bytes, deque[bytes]] = defaultdict(lambda: deque(maxlen=limit))
        self.living: set[bytes] = set()
        self._open: defaultdict[int, list[tuple[Record, bool]]] = defaultdict(list)

    def read_to(self, end: int) -> None:
        deadline, backoff = Deadline(_STUCK_MS), Backoff()
        while self.log.position < end:
            batches = self.log.read()
            for batch in batches:
                self._take(batch)
            if batches:
                deadline = Deadline(_STUCK_MS)
            elif self.log.sees(end) and self.log.empty_answers >= EMPTY_ANSWERS:
                # Compaction has removed the rest
                self.log.position = end
            elif deadline.passed:
                raise BrokerUnreachable(
                    f"{self.log.partition} has records up to offset {end}, and its leader shows "
                    f"nothing from {self.log.position} on for {_STUCK_MS // 1000} s",
                    next_step="check the brokers that hold the partition, then look again",
                )
            else:
                backoff.wait(deadline)

    def _take(self, batch: RecordBatch) -> None:
        if batch.is_control:
            found = self._open.pop(batch.producer_id, [])
            if batch.control_type == ControlType.COMMIT:
                self._accept(found)
            return
        found = [(record, is_its_writers(batch, record)) for record in batch.records]
        if batch.is_transactional:
            self._open[batch.producer_id] += found
        else:
            self._accept(found)

    def _accept(self, found: Iterable[tuple[Record, bool]]) -> None:
        for record, is_ours in found:
            if record.key is None:
                continue
            key = bytes(record.key)
            if record.value is None:
                self.living.discard(key)
                continue
            self.living.add(key)
            if is_ours:
                self.values[key].append(bytes(record.value))
