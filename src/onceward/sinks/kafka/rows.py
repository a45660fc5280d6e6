"""A task's rows on the way to their partitions: held back as they come, then routed and encoded in one go.

Runs in executor tasks, called by :mod:`tasks` and :mod:`plain` with the Arrow batches that Spark hands over (columns as
made by :mod:`columns`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import BadColumn, PartitionMissing, RecordTooLarge
from onceward.ids import TopicPartition, topic_name
from onceward.records.batch import Fragment, encode_partitions
from onceward.records.columns import RecordColumns
from onceward.records.compression import codec_of
from onceward.records.partitioner import assign_partitions
from onceward.sinks.kafka.columns import TIMESTAMP_MS
from onceward.wire.client import KafkaClient
from onceward.wire.settings import ProducerSettings


class HeldRows:
    """Takes rows, gives them back as fragments by partition, in the order in which they came.

    :param topic: where all rows go, or None to follow the ``topic`` column.
    :param count_of: how many partitions a topic has; raises for a topic that may not be written (see
        :func:`partition_counts`).
    :param first: where null keys begin to spread, different in each task.
    """

    def __init__(
        self, topic: str | None, count_of: Callable[[str], int], producer: ProducerSettings, first: int
    ) -> None:
        self._topic = topic
        self._count_of = count_of
        self._producer = producer
        self._next_null_key = first
        self._batches: list[pa.RecordBatch] = []
        self.held_bytes = 0
        """Bytes held back, about."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold one Arrow batch."""
        if batch.num_rows:
            self._batches.append(batch)
            self.held_bytes += batch.nbytes

    def encode(self) -> dict[TopicPartition, list[Fragment]]:
        """All rows held, as fragments by partition; holds nothing afterwards.

        :raises BadColumn: a null topic, or a timestamp before 1970.
        :raises PartitionMissing, TopicMissing, InvalidTopicName: a row names what does not exist.
        :raises RecordTooLarge: one record is larger than ``batch.size``.
        """
        batches, self._batches, self.held_bytes = self._batches, [], 0
        fragments: dict[TopicPartition, list[Fragment]] = {}
        if not batches:
            return fragments
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            for topic, rows in self._by_topic(batch):
                for partition, parts in self._encode_topic(topic, rows):
                    fragments.setdefault(TopicPartition(topic, partition), []).extend(parts)
        return fragments

    def _by_topic(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            return [(self._topic, batch)]
        topics = batch.column("topic")
        if topics.null_count:
            raise BadColumn(
                "column 'topic' is null in some rows",
                next_step="filter these rows out, fill the column, or pass topic= to KafkaSink",
            )
        return [(str(name), batch.filter(pc.equal(topics, name))) for name in pc.unique(topics)]

    def _encode_topic(self, topic: str, batch: pa.RecordBatch) -> list[tuple[int, list[Fragment]]]:
        columns = _columns(batch)
        try:
            return encode_partitions(
                columns,
                self._partitions(topic, columns, batch),
                codec=codec_of(self._producer.compression),
                batch_bytes=self._producer.batch_bytes,
                now_ms=time.time_ns() // 1_000_000,
                compression_level=self._producer.compression_level,
            )
        except RecordTooLarge as error:  # the encoder does not know what the bytes are for
            raise RecordTooLarge(
                f"topic {topic!r}: {error.message}",
                next_step=error.next_step,
                details={**error.details, "topic": topic},
            ) from None

    def _partitions(self, topic: str, columns: RecordColumns, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        count = self._count_of(topic)
        chosen = assign_partitions(columns.key, len(columns), count, self._next_null_key)
        self._next_null_key = (self._next_null_key + len(columns)) % count
        if "partition" not in batch.schema.names:
            return chosen
        wanted = batch.column("partition")
        explicit = wanted.fill_null(-1).to_numpy(zero_copy_only=False)
        given = wanted.is_valid().to_numpy(zero_copy_only=False)
        bad = given & ((explicit < 0) | (explicit >= count))
        if bad.any():
            raise PartitionMissing(
                f"column 'partition' names partition {int(explicit[bad][0])} of topic {topic!r}, which has "
                f"partitions 0 to {count - 1}",
                next_step="correct the column, or leave it null to let the key decide",
                details={"topic": topic, "partition": int(explicit[bad][0])},
            )
        return np.where(given, explicit, chosen).astype(np.int32, copy=False)


def partition_counts(client: KafkaClient, known: Mapping[str, int], ledger_topic: str) -> Callable[[str], int]:
    """How many partitions a topic has: as the driver ``known`` it, else by asking the cluster once a task.

    The function returned raises InvalidTopicName, TopicMissing, or BadColumn for the ledger topic, whose partitions
    belong to the ledger records.
    """
    counts = dict(known)

    def count_of(topic: str) -> int:
        if topic not in counts:
            if topic == ledger_topic:
                raise BadColumn(
                    f"column 'topic' names {topic!r}, the ledger topic",
                    next_step="write records to a topic of their own",
                )
            counts[topic] = len(client.topic_partitions([topic_name(topic)])[topic])
        return counts[topic]

    return count_of


def _columns(batch: pa.RecordBatch) -> RecordColumns:
    present = set(batch.schema.names)
    if TIMESTAMP_MS in present and (pc.min(batch.column(TIMESTAMP_MS)).as_py() or 0) < 0:
        raise BadColumn(
            "column 'timestamp' holds a time before 1970, which a Kafka record cannot carry",
            next_step="filter or correct these rows, or set the timestamp to null for the time of writing",
        )
    return RecordColumns.of(
        batch.column("value"),
        key=batch.column("key") if "key" in present else None,
        headers=batch.column("headers") if "headers" in present else None,
        timestamp=batch.column(TIMESTAMP_MS) if TIMESTAMP_MS in present else None,
    )
