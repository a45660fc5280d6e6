"""The ledger as a compacted Kafka topic: where a pipeline's record lies, how it is read and how it is made ready.

Called by ``sinks.kafka`` and ``sources.kafka``; runs in the driver. Writing is not here: the record is appended inside
the batch's own transaction, by whoever holds it (:func:`record_to_append` makes what to append).

Key: the pipeline id. Value: :mod:`onceward.ledger.record` as JSON. Partition: where Kafka's default partitioner puts
the key, so that any client finds it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa

from onceward.errors import AccessDenied, ConfigurationError, TopicMissing
from onceward.ids import PipelineId, TopicPartition
from onceward.ledger.record import LedgerRecord, decode, encode
from onceward.records.batch import Fragment, encode_fragments
from onceward.records.columns import RecordColumns
from onceward.records.compression import Codec
from onceward.records.partitioner import partition_of_keys
from onceward.wire.client import KafkaClient
from onceward.wire.reads import newest_committed

log = logging.getLogger(__name__)

DEFAULT_TOPIC = "onceward-ledger"
PARTITIONS = 16
_LARGEST_RECORD_BYTES = 8 << 20
_COMPRESS_ABOVE_BYTES = 16 << 10
_TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(_LARGEST_RECORD_BYTES),
    # The active segment is not compacted, and every start reads it whole.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


class Ledger:
    """The ledger records of one pipeline in one topic."""

    def __init__(self, client: KafkaClient, topic: str, pipeline: PipelineId) -> None:
        self._client = client
        self._home: TopicPartition | None = None
        self._partitions = 0
        self.topic = topic
        self.pipeline = pipeline

    def ensure_topic(self) -> None:
        """Create the topic when it is missing; refuse one that would forget records.

        :raises ConfigurationError: its ``cleanup.policy`` deletes by age or size.
        :raises AccessDenied: it is missing and may not be created; naming what to grant.
        """
        try:
            self._client.topic_partitions([self.topic])
        except TopicMissing:
            log.info("creating ledger topic %s", self.topic)
            self._client.create_topic(self.topic, PARTITIONS, configs=_TOPIC_CONFIGS)
        try:
            policy = self._client.topic_config(self.topic)
        except AccessDenied as denied:
            log.warning("cannot check that ledger topic %s keeps its records: %s", self.topic, denied)
            return
        cleanup = policy.get("cleanup.policy") or ""
        if "delete" in cleanup:
            raise ConfigurationError(
                f"the ledger topic {self.topic} has cleanup.policy={cleanup}: Kafka would delete records that "
                "exactly-once rests on",
                next_step=f"set cleanup.policy=compact on {self.topic} (kafka-configs --alter)",
            )
        self._warn_if_thin(int(policy.get("min.insync.replicas") or 1))

    def _warn_if_thin(self, in_sync: int) -> None:
        replicas = self._client.replication_factor(self.topic)
        if replicas < 3 or in_sync < 2:
            log.warning(
                "ledger topic %s has replication factor %d and min.insync.replicas %d; below 3 and 2 the loss of one "
                "broker can stop the pipeline or lose its record",
                self.topic,
                replicas,
                in_sync,
            )

    def partition(self) -> TopicPartition:
        """Where this pipeline's records are appended; looked up once."""
        if self._home is None:
            self._partitions = len(self._client.topic_partitions([self.topic])[self.topic])
            self._home = TopicPartition(self.topic, self._home_of(self._partitions))
        return self._home

    def glance(self) -> LedgerRecord | None:
        """The newest committed record, or None when that cannot be told without waiting for an open transaction."""
        return self._newest(decided_only=True)

    def newest(self) -> LedgerRecord | None:
        """The newest committed record, or None when there is none, or no topic.

        The key's place moves when somebody adds partitions to the topic. A record says how many there were when it was
        written; they never get fewer, so one that counts as many as now is the newest. Else all partitions are read.

        :raises LedgerUnreadable: the record cannot be understood, or stays undecided.
        """
        return self._newest(decided_only=False)

    def _newest(self, *, decided_only: bool) -> LedgerRecord | None:
        try:
            partitions = self._client.topic_partitions([self.topic])[self.topic]
        except TopicMissing:
            return None
        home = self._home_of(len(partitions))
        found = self._newest_in(home, decided_only)
        if found is not None and found.ledger_partitions == len(partitions):
            return found
        others = [self._newest_in(partition, decided_only) for partition in sorted(partitions) if partition != home]
        known = [record for record in (found, *others) if record is not None]
        return max(known, key=lambda record: record.sequence, default=None)

    def _newest_in(self, partition: int, decided_only: bool) -> LedgerRecord | None:
        key = self.pipeline.encode()
        value = newest_committed(self._client, self.topic, partition, key, decided_only=decided_only)
        where = f"{self.topic}-{partition}, key {self.pipeline!r}"
        return None if value is None else decode(value, where=where)

    def _home_of(self, partitions: int) -> int:
        return int(partition_of_keys(_one(self.pipeline.encode()), partitions)[0])

    def record_to_append(self, record: LedgerRecord) -> Fragment:
        """``record`` as one fragment for :meth:`partition`; compressed when it is large (thousands of partitions)."""
        self.partition()
        value = encode(replace(record, ledger_partitions=self._partitions))
        columns = RecordColumns.of(_one(value), key=_one(self.pipeline.encode()))
        codec = Codec.GZIP if len(value) > _COMPRESS_ABOVE_BYTES else Codec.NONE
        (fragment,) = encode_fragments(
            columns, codec=codec, batch_bytes=_LARGEST_RECORD_BYTES, now_ms=record.committed_at_ms
        )
        return fragment


def _one(value: bytes) -> Any:
    return pa.array([value], pa.binary())
