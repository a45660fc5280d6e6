"""A task's rows on the way to their partitions. Runs in executor tasks.

Called by :mod:`tasks` and :mod:`plain` with the Arrow batches that Spark hands over (columns as made by
:mod:`columns`). Rows are gathered until a chunk is worth cutting up, cut by target partition, and held as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import BadColumn, PartitionMissing
from onceward.ids import TopicPartition, topic_name
from onceward.records.columns import RecordColumns
from onceward.records.partitioner import assign_partitions, group_by_partition
from onceward.sinks.kafka.columns import TIMESTAMP_MS
from onceward.wire.client import KafkaClient

_CHUNK_ROWS = 100_000
_CHUNK_BYTES = 16 << 20


class Router:
    """Takes rows, gives them back by partition, in the order in which they came.

    :param topic: where all rows go, or None to follow the ``topic`` column.
    :param count_of: how many partitions a topic has; raises for a topic that may not be written (see
        :func:`partition_counts`).
    :param first: where null keys begin to spread, different in each task.
    """

    def __init__(self, topic: str | None, count_of: Callable[[str], int], first: int) -> None:
        self._topic = topic
        self._count_of = count_of
        self._next_null_key = first
        self._chunk: list[pa.RecordBatch] = []
        self._chunk_rows = 0
        self._chunk_bytes = 0
        self._held: dict[TopicPartition, list[RecordColumns]] = {}
        self._routed_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes held back, about."""
        return self._routed_bytes + self._chunk_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Take one Arrow batch.

        :raises BadColumn: a null topic, or a timestamp before 1970.
        :raises PartitionMissing, TopicMissing, InvalidTopicName: a row names what does not exist.
        """
        if batch.num_rows == 0:
            return
        self._chunk.append(batch)
        self._chunk_rows += batch.num_rows
        self._chunk_bytes += batch.nbytes
        if self._chunk_rows >= _CHUNK_ROWS or self._chunk_bytes >= _CHUNK_BYTES:
            self._cut()

    def take(self) -> dict[TopicPartition, RecordColumns]:
        """All rows held, by partition; holds nothing afterwards."""
        self._cut()
        held, self._held = self._held, {}
        self._routed_bytes = 0
        return {partition: RecordColumns.concat(parts) for partition, parts in sorted(held.items())}

    def _cut(self) -> None:
        if not self._chunk:
            return
        table = pa.Table.from_batches(self._chunk).combine_chunks()
        self._chunk, self._chunk_rows, self._chunk_bytes = [], 0, 0
        for batch in table.to_batches():  # one batch, but for columns above Arrow's 2 GiB
            for topic, rows in self._by_topic(batch):
                self._route(topic, rows)

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

    def _route(self, topic: str, batch: pa.RecordBatch) -> None:
        count = self._count_of(topic)
        columns = _columns(batch)
        partitions = self._partitions(topic, count, columns, batch)
        for partition, rows in group_by_partition(columns, partitions):
            self._held.setdefault(TopicPartition(topic, partition), []).append(rows)
        self._routed_bytes += columns.nbytes

    def _partitions(
        self, topic: str, count: int, columns: RecordColumns, batch: pa.RecordBatch
    ) -> npt.NDArray[np.int32]:
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
    columns = RecordColumns.of(
        batch.column("value"),
        key=batch.column("key") if "key" in present else None,
        headers=batch.column("headers") if "headers" in present else None,
        timestamp=batch.column(TIMESTAMP_MS) if TIMESTAMP_MS in present else None,
    )
    if TIMESTAMP_MS in present and (pc.min(batch.column(TIMESTAMP_MS)).as_py() or 0) < 0:
        raise BadColumn(
            "column 'timestamp' holds a time before 1970, which a Kafka record cannot carry",
            next_step="filter or correct these rows, or set the timestamp to null for the time of writing",
        )
    return columns
