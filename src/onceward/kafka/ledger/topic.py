"""The ledger as a compacted Kafka topic: where a pipeline's record lies, how it is read and how it
is made ready. Called by ``kafka.sink`` and ``kafka.source.source``; runs in the driver. Writing is
not here: the record is appended inside the batch's own transaction, by whoever holds it
(:func:`record_to_append` makes what to append).

Key: the pipeline id. Value: :mod:`onceward.engine.ledger.record` as JSON. Partition: where Kafka's
default partitioner puts the key, so that any client finds it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from onceward import patience, surroundings
from onceward.engine.ledger.record import LedgerRecord, RecordState, decode, encode
from onceward.errors import (
    AccessDenied,
    ConfigurationError,
    LedgerUnreadable,
    OncewardError,
    ServerMisconfigured,
    TopicMissing,
    UnsupportedBroker,
)
from onceward.ids import PipelineId, ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, encode_fragments
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec
from onceward.kafka.records.partitioner import partition_of_keys
from onceward.kafka.records.reader import Record, RecordBatch
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.key_reader import KeyReader

log = logging.getLogger(__name__)

DEFAULT_TOPIC = "onceward-ledger"
PARTITIONS = 16
_REPLICAS = 3
_LARGEST_RECORD_BYTES = 8 << 20
_COMPRESS_ABOVE_BYTES = 16 << 10
_PARTITIONS = "ledger_partitions"
"""In the record's JSON: how many the topic had then. They never get fewer."""
_REQUIRED = {"cleanup.policy": "compact"}
_WISHES: Mapping[str, tuple[str, ...]] = {
    # of thousands of partitions
    "max.message.bytes": (str(_LARGEST_RECORD_BYTES),),
    # The active segment is not compacted, and every start reads it whole. Confluent Cloud takes no
    # less than 50 MiB.
    "segment.bytes": (str(16 << 20), str(50 << 20)),
    "min.cleanable.dirty.ratio": ("0.1",),
}
"""Asked for, the best value first, and left out where the cluster refuses them."""
_INVALID_CONFIG, _POLICY_VIOLATION = 40, 44
_LOOK_SECONDS = 600
_PATIENCE_MS = 5_000
"""So long a later look may take: the batch can do without the answer."""


class FoundRecord(NamedTuple):
    """A record, and how many partitions the topic had when it was written (0: unknown)."""

    record: LedgerRecord
    partitions: int


class LedgerTopic:
    """The ledger records of one pipeline in one topic."""

    def __init__(self, client: KafkaClient, topic: str, pipeline: PipelineId) -> None:
        self._client = client
        self._home: TopicPartition | None = None
        self._partitions = 0
        self._readers: dict[int, KeyReader] = {}
        self._warned_of: set[tuple[TopicPartition, int]] = set()
        self._looked_at = surroundings.monotonic()
        # replicas and how many of them in sync, as they were warned of
        self._thin: tuple[int, int] | None = None
        self.topic = topic
        self.pipeline = pipeline

    def ensure_topic(self) -> None:
        """Create the topic when it is missing; refuse one that would forget records.

        :raises ServerMisconfigured: its ``cleanup.policy`` deletes by age or size.
        :raises AccessDenied: it is missing and may not be created; naming what to grant.
        """
        try:
            self._client.topic_partitions([self.topic])
        except TopicMissing:
            self._create()
        self._looked_at = surroundings.monotonic()
        try:
            policy = self._client.topic_config(self.topic)
        except (AccessDenied, UnsupportedBroker) as denied:
            log.warning(
                "cannot check that ledger topic %s keeps its records: %s", self.topic, denied
            )
            return
        self._check(policy)

    def look_again(self) -> None:
        """Warn, ten minutes after the last look, of settings that the topic has by now and that
        the next start will refuse. The running pipeline's newest record is young, and goes last:
        those of pipelines that rest go first. Never raises an error of ours."""
        now = surroundings.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            with patience.within(_PATIENCE_MS):
                self._check(self._client.topic_config(self.topic))
        except ServerMisconfigured as changed:
            log.warning("%s: %s", self.pipeline, changed)
        except OncewardError as unknown:
            log.debug("whether %s keeps its records is not known: %s", self.topic, unknown)

    def _check(self, policy: Mapping[str, str | None]) -> None:
        cleanup = policy.get("cleanup.policy") or ""
        if "delete" in cleanup:
            raise ServerMisconfigured(
                f"the ledger topic {self.topic} has cleanup.policy={cleanup}: Kafka would delete "
                "records that exactly-once rests on",
                next_step=f"set cleanup.policy=compact on {self.topic} (kafka-configs --alter)",
            )
        self._warn_if_thin(int(policy.get("min.insync.replicas") or 1))

    def _create(self) -> None:
        """Create the topic with three replicas where there are so many brokers; the default may be
        one."""
        replicas = min(_REPLICAS, len(self._client.brokers()))
        # Two of two would let the loss of either broker stop every pipeline, and one of three
        # could lose its record.
        in_sync = 2 if replicas == _REPLICAS else 1
        log.debug(
            "creating ledger topic %s with %d replicas, %d in sync", self.topic, replicas, in_sync
        )
        wishes = {**_WISHES, "min.insync.replicas": (str(in_sync),)}
        best = {name: texts[0] for name, texts in wishes.items()}
        try:
            self._client.create_topic(
                self.topic, PARTITIONS, replication=replicas, configs={**_REQUIRED, **best}
            )
        except (ConfigurationError, AccessDenied) as refusal:
            if refusal.details.get("code") not in (_INVALID_CONFIG, _POLICY_VIOLATION):
                raise
            self._create_with_less(replicas, wishes, refusal)

    def _create_with_less(
        self, replicas: int, wishes: Mapping[str, tuple[str, ...]], refusal: OncewardError
    ) -> None:
        """Create the topic in a managed cluster, asking for each wish alone which of them it
        refuses."""

        create = partial(self._client.create_topic, self.topic, PARTITIONS)

        def takes(replication: int, **wish: str) -> bool:
            try:
                create(replication=replication, configs={**_REQUIRED, **wish}, validate_only=True)
            except (ConfigurationError, AccessDenied) as also:
                log.debug("%s: %s", self.topic, also)
                return False
            return True

        if not takes(replicas):
            # the cluster's own number, of which :meth:`_warn_if_thin` speaks
            replicas = -1
        found = {
            name: next((text for text in texts if takes(replicas, **{name: text})), None)
            for name, texts in wishes.items()
        }
        overrides = {name: text for name, text in found.items() if text is not None}
        text = "ledger topic %s is created with no more than %s: %s"
        log.warning(text, self.topic, overrides, refusal.message)
        create(replication=replicas, configs={**_REQUIRED, **overrides})

    def _warn_if_thin(self, in_sync: int) -> None:
        replicas = self._client.replication_factor(self.topic)
        before, self._thin = self._thin, (replicas, in_sync)
        if (replicas < 3 or in_sync < 2) and self._thin != before:
            log.warning(
                "ledger topic %s has replication factor %d and min.insync.replicas %d; below 3 "
                "and 2 the loss of one broker can stop the pipeline or lose its record",
                self.topic,
                replicas,
                in_sync,
            )

    def partition(self) -> TopicPartition:
        """Return where this pipeline's records are appended; looked up once."""
        if self._home is None:
            self._partitions = len(self._client.topic_partitions([self.topic])[self.topic])
            self._home = TopicPartition(
                self.topic, key_partition(self.pipeline.encode(), self._partitions)
            )
        return self._home

    def peek(self) -> LedgerRecord | None:
        """Return the newest committed record; None where an open transaction may have another."""
        return self._newest(decided_only=True, readers={})

    def newest(self) -> LedgerRecord | None:
        """Return the newest committed record, or None when there is none, or no topic.

        The key's place moves when somebody adds partitions to the topic. A record says how many
        there were when it was written; they never get fewer, so one that counts as many as now is
        the newest. Else all partitions are read.
        A broker that was deposed and does not know it may have answered, so that a newer record is
        missing: whoever writes on the strength of it asks :meth:`newest_before` as well.

        :raises LedgerUnreadable: the record cannot be understood, is not one of this pipeline's,
            or stays undecided.
        """
        self._readers = {}
        return self._newest(decided_only=False, readers=self._readers)

    def newest_before(self, offset: int, identity: ProducerIdentity) -> LedgerRecord | None:
        """Return the newest committed record as it was when ``identity`` appended one at
        ``offset`` of :meth:`partition`.

        Final, see :meth:`KeyReader.newest_before`; one fetch when :meth:`newest` came before. Only
        where the key has moved since the last record (somebody added partitions), that record's
        old place is taken from the last :meth:`newest`.

        :raises LedgerUnreadable, BrokerUnreachable: …
        """
        home = self.partition().partition
        reader = self._readers.get(home) or self._reader(home)
        found = self._decoded(reader, reader.newest_before(offset, identity))
        if found is not None and found.partitions == self._partitions:
            return found.record
        others = (
            self._decoded(other, other.value)
            for place, other in self._readers.items()
            if place != home
        )
        return _newest_record([found, *others])

    def _newest(self, *, decided_only: bool, readers: dict[int, KeyReader]) -> LedgerRecord | None:
        """Read the newest record. ``readers`` gets those that were used, by partition."""
        try:
            partitions = self._client.topic_partitions([self.topic])[self.topic]
        except TopicMissing:
            return None

        def newest_in(partition: int) -> FoundRecord | None:
            reader = readers[partition] = self._reader(partition)
            return self._decoded(reader, reader.newest(decided_only=decided_only))

        home = key_partition(self.pipeline.encode(), len(partitions))
        found = newest_in(home)
        if found is not None and found.partitions == len(partitions):
            return found.record
        newest = _newest_record(
            [
                found,
                *(newest_in(partition) for partition in sorted(partitions) if partition != home),
            ]
        )
        if newest is None and not decided_only:
            self._refuse_what_others_wrote(readers.values())
        return newest

    def _reader(self, partition: int) -> KeyReader:
        return KeyReader(
            self._client,
            TopicPartition(self.topic, partition),
            self.pipeline.encode(),
            is_its_writers,
        )

    def _decoded(self, reader: KeyReader, value: bytes | None) -> FoundRecord | None:
        if (
            reader.strange is not None
            and (place := (reader.where, reader.strange.offset)) not in self._warned_of
        ):
            self._warned_of.add(place)
            log.warning("%s; it is left alone", self._strange(reader, reader.strange))
        if value is None:
            return None
        return found_record(value, f"{reader.where}, key {self.pipeline!r}")

    def _refuse_what_others_wrote(self, readers: Iterable[KeyReader]) -> None:
        """Refuse a ledger with nothing of ours, but of somebody else, which may have made
        compaction remove ours. A tombstone is no record: somebody wants the pipeline forgotten."""
        for reader in readers:
            if reader.strange is not None and reader.strange.value is not None:
                raise LedgerUnreadable(
                    f"{self._strange(reader, reader.strange)}, and there is none that was",
                    next_step="find out who writes to the ledger topic. If it was restored or "
                    "copied from elsewhere, write a tombstone under this key, and if the "
                    "checkpoint's next batch is the one after that record, start once with "
                    'resume="adopt"; or begin anew under a new pipeline_id',
                    details={"partition": str(reader.where), "offset": reader.strange.offset},
                )

    def _strange(self, reader: KeyReader, record: Record) -> str:
        what = "record" if record.value is not None else "tombstone"
        return (
            f"{reader.where} holds a {what} under key {self.pipeline!r} at offset {record.offset} "
            "that was not written in a transaction of the producer that it names, as every record "
            "of a pipeline is"
        )

    def trial_to_append(self, identity: ProducerIdentity) -> Fragment:
        """Return a record that is appended to be aborted: what lies before it is known to whoever
        has it. It names who wrote it, as every record does, or it would pass for a stranger's."""
        return self._fragment(json.dumps({"attempt": list(identity), "trial": True}).encode())

    def record_to_append(self, record: LedgerRecord) -> Fragment:
        """Return ``record`` as one fragment for :meth:`partition`; compressed when it is large
        (thousands of partitions)."""
        self.partition()
        return self._fragment(encode(record, **{_PARTITIONS: self._partitions}))

    def _fragment(self, value: bytes) -> Fragment:
        """Encode a record. Its time is that of writing: brokers refuse one that is older than
        ``message.timestamp.before.max.ms``, and a batch may be delivered long after its decision.
        """
        columns = RecordColumns.of(_one(value), key=_one(self.pipeline.encode()))
        (fragment,) = encode_fragments(
            columns,
            codec=Codec.GZIP if len(value) > _COMPRESS_ABOVE_BYTES else Codec.NONE,
            batch_bytes=_LARGEST_RECORD_BYTES,
            now_ms=surroundings.wall_clock_ns() // 1_000_000,
        )
        return fragment


def key_partition(key: bytes, partitions: int) -> int:
    """Return the partition of a key, where any client's default partitioner puts it."""
    return int(partition_of_keys(_one(key), partitions)[0])


def is_its_writers(batch: RecordBatch, record: Record) -> bool:
    """Return whether the record names the producer that has written it, in a transaction.

    Others may be allowed to write to the topic: a record that a plain producer has put under a
    pipeline's key must not pass for a committed batch. An attempt in this ledger is a producer id
    and its epoch. A transactional id is not in the log, so who takes the trouble to name itself is
    not found out here.
    """
    if not batch.is_transactional or record.value is None:
        return False
    try:
        document = json.loads(record.value)
        # ACLs know topics and no keys, so any writer of the topic may put a record under this key.
        # The producer id and epoch of a transactional batch are those that the coordinator gave.
        return bool(document["attempt"] == [batch.producer_id, batch.producer_epoch])
    except (ValueError, KeyError, TypeError):
        return False


def found_record(value: bytes, where: str) -> FoundRecord:
    """Decode a record. :raises LedgerUnreadable: naming ``where``."""
    return FoundRecord(decode(value, where=where), int(json.loads(value).get(_PARTITIONS, 0)))


def age(each: FoundRecord) -> tuple[int, int, bool]:
    """Return what records of one key are sorted by, wherever they lie."""
    return each.record.sequence, each.partitions, each.record.state is RecordState.FINISHED


def _newest_record(found: Iterable[FoundRecord | None]) -> LedgerRecord | None:
    """Return the newest of records; of one sequence the one where the key came to last: who has
    seen fewer partitions has been replaced by who has seen more."""

    newest = max((each for each in found if each is not None), key=age, default=None)
    return None if newest is None else newest.record


def _one(value: bytes) -> Any:
    return pa.array([value], pa.binary())
