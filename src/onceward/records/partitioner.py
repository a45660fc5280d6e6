"""Which partition a record goes to: where every other Kafka client with the Java partitioner puts the same key.

Called by the Kafka sink's tasks (executor). Nothing loops over records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.records.columns import RecordColumns
from onceward.records.murmur2 import murmur2

Partitions = npt.NDArray[np.int32]


def partition_of_keys(key: Any, partition_count: int) -> Partitions:
    """For each key ``toPositive(murmur2(key)) % partition_count`` (``BuiltInPartitioner.partitionForKey``).

    The row of a null key holds some valid partition that means nothing; the caller masks it.
    """
    positive = murmur2(key) & np.uint32(0x7FFF_FFFF)
    partitions: Partitions = (positive % np.uint32(partition_count)).astype(np.int32)
    return partitions


def assign_partitions(key: Any, rows: int, partition_count: int, first: int) -> Partitions:
    """A partition for each of ``rows`` records: by key, and in turn for records without one.

    ``key`` is a binary array or None (no keys at all). Records without a key go round all partitions, the first of
    them to ``first % partition_count``, so that counts differ by one at most. A task passes another ``first`` than
    its neighbours, and moves it on by the rows it placed, to keep small batches even too.
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


def order_by_partition(columns: RecordColumns, partitions: npt.NDArray[Any]) -> tuple[RecordColumns, list[Run]]:
    """``columns`` reordered so that each partition's rows lie together, and where they lie.

    Partitions ascend, each has at least one row, and input order is kept inside each. Rows that all belong to one
    partition are not copied.
    """
    if len(columns) == 0:
        return columns, []
    counts = np.bincount(partitions)
    last = len(counts) - 1
    if counts[last] == len(columns):
        return columns, [Run(last, 0, len(columns))]
    # NumPy sorts 16-bit integers by radix: linear, and stable.
    narrow = partitions.astype(np.uint16 if last < 1 << 16 else np.uint32, copy=False)
    ordered = columns.take(np.argsort(narrow, kind="stable"))
    ends = np.cumsum(counts)
    starts = ends - counts
    return ordered, [Run(int(p), int(starts[p]), int(ends[p])) for p in np.flatnonzero(counts)]


def group_by_partition(columns: RecordColumns, partitions: npt.NDArray[Any]) -> list[tuple[int, RecordColumns]]:
    """The rows of each partition that has any, as slices; see :func:`order_by_partition`."""
    ordered, runs = order_by_partition(columns, partitions)
    return [(run.partition, ordered.slice(run.start, run.end - run.start)) for run in runs]


def _in_turn(rows: int, partition_count: int, first: int) -> Partitions:
    start = first % partition_count
    return (np.arange(start, start + rows, dtype=np.int64) % partition_count).astype(np.int32)
