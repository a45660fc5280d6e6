"""Which partition a record goes to: where every other Kafka client with the Java partitioner puts
the same key.

Called by the Kafka sink's tasks (executor). Nothing loops over records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.murmur2 import murmur2

Partitions = npt.NDArray[np.int32]


def partition_of_keys(key: Any, partition_count: int) -> Partitions:
    """For each key ``toPositive(murmur2(key)) % partition_count``
    (``BuiltInPartitioner.partitionForKey``).

    The row of a null key holds some valid partition that means nothing; the caller masks it.
    """
    positive = murmur2(key) & np.uint32(0x7FFF_FFFF)
    partitions: Partitions = (positive % np.uint32(partition_count)).astype(np.int32)
    return partitions


def assign_partitions(key: Any, rows: int, partition_count: int, first: int) -> Partitions:
    """A partition for each of ``rows`` records: by key, and in turn for records without one.

    ``key`` is a binary array or None (no keys at all). Records without a key go round all
    partitions, the first of them to ``first % partition_count``, so that counts differ by one at
    most. A task passes another ``first`` than its neighbours, and moves it on by the rows it
    placed, to keep small batches even too.
    """
    if key is None:
        return _in_turn(rows, partition_count, first)
    partitions = partition_of_keys(key, partition_count)
    if key.null_count:
        without_key = key.is_null().to_numpy(zero_copy_only=False)
        partitions[without_key] = _in_turn(key.null_count, partition_count, first)
    return partitions


@dataclass(frozen=True, slots=True)
class Run:
    """Rows ``start`` up to ``end``, all of one partition."""

    partition: int
    start: int
    end: int


def order_by_partition(
    columns: RecordColumns, partitions: npt.NDArray[Any]
) -> tuple[RecordColumns, list[Run]]:
    """``columns`` reordered so that each partition's rows lie together, and where they lie.

    Partitions ascend, each has at least one row, and input order is kept inside each. Rows that
    all belong to one partition are not copied.
    """
    order, runs = _order(partitions)
    return (columns if order is None else columns.take(order)), runs


def group_by_partition(
    columns: RecordColumns, partitions: npt.NDArray[Any]
) -> list[tuple[int, RecordColumns]]:
    """The rows of each partition that has any, in input order, partitions ascending.

    Each has memory of its own, which is free when it is dropped (rows that all belong to one
    partition are not copied).
    """
    order, runs = _order(partitions)
    if order is None:
        return [(run.partition, columns) for run in runs]
    return [(run.partition, columns.take(order[run.start : run.end])) for run in runs]


def _order(partitions: npt.NDArray[Any]) -> tuple[npt.NDArray[Any] | None, list[Run]]:
    """Row numbers sorted by partition, or None where they are in order because there is one
    partition at most.
    """
    if len(partitions) == 0:
        return None, []
    counts = np.bincount(partitions)
    last = len(counts) - 1
    if counts[last] == len(partitions):
        return None, [Run(last, 0, len(partitions))]
    # NumPy sorts 16-bit integers by radix: linear, and stable.
    narrow = partitions.astype(np.uint16 if last < 1 << 16 else np.uint32, copy=False)
    ends = np.cumsum(counts)
    starts = ends - counts
    runs = [Run(int(p), int(starts[p]), int(ends[p])) for p in np.flatnonzero(counts)]
    return np.argsort(narrow, kind="stable"), runs


def _in_turn(rows: int, partition_count: int, first: int) -> Partitions:
    start = first % partition_count
    return (np.arange(start, start + rows, dtype=np.int64) % partition_count).astype(np.int32)
