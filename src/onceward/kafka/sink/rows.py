"""A task's rows on the way to their partitions: put there as they come, held back, then encoded.

Runs in executor tasks and, for small batches, in the driver. Called by :mod:`tasks`, :mod:`plain`
and :mod:`driver_path`, with the Arrow batches that Spark hands over (columns as made by
:mod:`columns`).

Memory: what is held is there twice for a moment, as rows and as record batches; everything else
works on a few mebibytes at a time, however large an Arrow batch is and however many rows are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward import surroundings
from onceward.errors import InvalidColumn, PartitionMissing, RecordTooLarge
from onceward.ids import TopicPartition, topic_name
from onceward.kafka.records.batch import Fragment, encode_runs
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.partitioner import assign_partitions, group_by_partition
from onceward.kafka.sink.columns import TIMESTAMP_MS
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings

_PIECE_BYTES = 4 << 20
"""Rows are put to their partitions, and partitions encoded, in pieces of about so many bytes:
enough to pay for the calls, little enough that what they need in between (several times as much)
does not count."""

_MOST_TOGETHER_BYTES = 256 << 20
"""Most that is encoded at once of one partition: an Arrow column ends at 2 GiB."""

_NO_TIMESTAMP = -1
"""Of a record that has none (``RecordBatch.NO_TIMESTAMP``)."""


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in slices of a few mebibytes that share its memory; none if it is empty."""
    rows = batch.num_rows
    step = max(1, rows * _PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


class HeldRows:
    """Takes rows, gives them back as fragments by partition, in the order in which they came.

    :param topic: where all rows go, or None to follow the ``topic`` column.
    :param count_records: how many partitions a topic has; raises for a topic that may not be
        written (see :func:`partition_counts`).
    :param first: where null keys begin to spread, different in each task.
    """

    def __init__(
        self,
        topic: str | None,
        count_records: Callable[[str], int],
        producer: ProducerSettings,
        first: int,
    ) -> None:
        self._topic = topic
        self._count_of = count_records
        self._producer = producer
        self._next_null_key = first
        # not yet put to their partitions
        self._fresh: list[pa.RecordBatch] = []
        self._fresh_bytes = 0
        self._held: dict[TopicPartition, list[RecordColumns]] = {}
        self.held_bytes = 0
        """Bytes held back, about."""
        self.topics: set[str] = set()
        """That rows went to."""
        self.oldest_ms: dict[str, int] = {}
        """By topic, the oldest of the timestamps that rows brought with them."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold one Arrow batch, and now and then put to their partitions what has come.

        :raises InvalidColumn: a null topic, or a timestamp before 1970.
        :raises PartitionMissing, TopicMissing, InvalidTopicName: a row names what does not exist.
        """
        for piece in pieces(batch):
            self._fresh.append(piece)
            self._fresh_bytes += piece.nbytes
            self.held_bytes += piece.nbytes
            if self._fresh_bytes >= _PIECE_BYTES:
                self._put_to_partitions()

    def _put_to_partitions(self) -> None:
        fresh, self._fresh, self._fresh_bytes = self._fresh, [], 0
        if not fresh:
            return
        table = _without_no_timestamp(pa.Table.from_batches(fresh).combine_chunks())
        for batch in table.to_batches():
            for topic, rows in self._by_topic(batch):
                self.topics.add(topic)
                self._look_at_timestamps(topic, rows)
                columns = _columns(rows)
                for partition, part in group_by_partition(
                    columns, self._partitions(topic, columns, rows)
                ):
                    self._held.setdefault(TopicPartition(topic, partition), []).append(part)

    def _look_at_timestamps(self, topic: str, rows: pa.RecordBatch) -> None:
        oldest = (
            pc.min(rows.column(TIMESTAMP_MS)).as_py()
            if TIMESTAMP_MS in rows.schema.names
            else None
        )
        if oldest is None:
            return
        if oldest < 0:
            raise InvalidColumn(
                "column 'timestamp' holds a time before 1970, which a Kafka record cannot carry",
                next_step="filter or correct these rows, or set the timestamp to null for the "
                "time of writing",
            )
        self.oldest_ms[topic] = min(oldest, self.oldest_ms.get(topic, oldest))

    def encode(self) -> dict[TopicPartition, list[Fragment]]:
        """Encode all rows held, as fragments by partition; holds nothing afterwards. Raises as
        :meth:`add`, too. :raises RecordTooLarge: a record is larger than ``max.request.size``."""
        self._put_to_partitions()
        held, self._held, self.held_bytes = self._held, {}, 0
        fragments: dict[TopicPartition, list[Fragment]] = {}
        for group in _groups(held):
            # Partition by partition, so that record batches are as full as what is held allows.
            columns = RecordColumns.concat([part for _, parts in group for part in parts])
            ends = np.cumsum([sum(map(len, parts)) for _, parts in group]).tolist()
            partitions = [partition for partition, _ in group]
            for partition, some in zip(
                partitions, self._encode_runs(columns, ends, partitions), strict=True
            ):
                fragments.setdefault(partition, []).extend(some)
        return fragments

    def _encode_runs(
        self, columns: RecordColumns, ends: list[int], partitions: list[TopicPartition]
    ) -> list[list[Fragment]]:
        producer = self._producer
        try:
            return encode_runs(
                columns,
                ends,
                codec=producer.codec,
                batch_bytes=producer.batch_bytes,
                record_bytes=producer.max_request_bytes,
                now_ms=surroundings.wall_clock_ns() // 1_000_000,
                compression_level=producer.compression_level,
            )
        except RecordTooLarge as error:
            # the encoder does not know what the bytes are for
            topics = sorted({partition.topic for partition in partitions})
            raise RecordTooLarge(
                f"topic {', '.join(map(repr, topics))}: {error.message}",
                next_step=error.next_step,
                details={**error.details, "topic": topics[0] if len(topics) == 1 else topics},
            ) from None

    def _by_topic(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            return [(self._topic, batch)]
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidColumn(
                "column 'topic' is null in some rows",
                next_step="filter these rows out, fill the column, or pass topic= to KafkaSink",
            )
        return [(str(name), batch.filter(pc.equal(topics, name))) for name in pc.unique(topics)]

    def _partitions(
        self, topic: str, columns: RecordColumns, batch: pa.RecordBatch
    ) -> npt.NDArray[np.int32]:
        count = self._count_of(topic)
        numbers = assign_partitions(columns.key, len(columns), count, self._next_null_key)
        self._next_null_key = (self._next_null_key + len(columns)) % count
        if "partition" not in batch.schema.names:
            return numbers
        column = batch.column("partition")
        explicit = column.fill_null(-1).to_numpy(zero_copy_only=False)
        has_partition = column.is_valid().to_numpy(zero_copy_only=False)
        bad = has_partition & ((explicit < 0) | (explicit >= count))
        if bad.any():
            raise PartitionMissing(
                f"column 'partition' names partition {int(explicit[bad][0])} of topic {topic!r}, "
                f"which has partitions 0 to {count - 1}",
                next_step="correct the column, or leave it null to let the key decide",
                details={"topic": topic, "partition": int(explicit[bad][0])},
            )
        return np.where(has_partition, explicit, numbers).astype(np.int32, copy=False)


def _groups(
    held: dict[TopicPartition, list[RecordColumns]],
) -> Iterator[list[tuple[TopicPartition, list[RecordColumns]]]]:
    """Yield ``held`` a few mebibytes at a time, partitions whole if not huge; takes it out."""
    group: list[tuple[TopicPartition, list[RecordColumns]]] = []
    size = 0
    for partition in list(held):
        parts: list[RecordColumns] = []
        group.append((partition, parts))
        for part in held.pop(partition):
            if parts and size + part.nbytes > _MOST_TOGETHER_BYTES:
                yield group
                parts, size = [], 0
                group = [(partition, parts)]
            parts.append(part)
            size += part.nbytes
        if size >= _PIECE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def partition_counts(
    client: KafkaClient, known: Mapping[str, int], ledger_topic: str
) -> Callable[[str], int]:
    """Return a function from a topic to how many partitions it has: as the driver ``known`` it,
    else by asking the cluster once a task. The function returned raises InvalidTopicName,
    TopicMissing, or InvalidColumn for the ledger topic, whose partitions belong to the ledger
    records."""
    counts = dict(known)

    def count_records(topic: str) -> int:
        if topic not in counts:
            if topic == ledger_topic:
                raise InvalidColumn(
                    f"column 'topic' names {topic!r}, the ledger topic",
                    next_step="write records to a topic of their own",
                )
            counts[topic] = len(client.topic_partitions([topic_name(topic)])[topic])
        return counts[topic]

    return count_records


def _without_no_timestamp(table: pa.Table) -> pa.Table:
    """Replace Kafka's NO_TIMESTAMP by null, the time of writing.

    Records of before Kafka 0.10, and of producers that send none, have it, and so has what copies
    ``timestamp`` of them.
    """
    if TIMESTAMP_MS not in table.column_names:
        return table
    times = table.column(TIMESTAMP_MS)
    there = pc.if_else(pc.equal(times, _NO_TIMESTAMP), None, times)
    return table.set_column(table.column_names.index(TIMESTAMP_MS), TIMESTAMP_MS, there)


def _columns(batch: pa.RecordBatch) -> RecordColumns:
    present = set(batch.schema.names)
    return RecordColumns.of(
        batch.column("value"),
        key=batch.column("key") if "key" in present else None,
        headers=batch.column("headers") if "headers" in present else None,
        timestamp=batch.column(TIMESTAMP_MS) if TIMESTAMP_MS in present else None,
    )
