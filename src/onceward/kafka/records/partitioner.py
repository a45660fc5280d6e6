"""Partitioner: puts a key where every other Kafka client with the Java partitioner puts it.

Called by the Kafka sink's tasks (executor). Nothing loops over records: murmur2 loops over the
four-byte words of the longest key, and step i mixes word i of every key that has one. Keys are
walked in order of length, so that "every key that has one" is a tail of the column, and any mix of
lengths costs the same as one length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.kafka.records.columns import RecordColumns, binary_offsets

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_MASK = 0xFFFF_FFFF
# Below this many keys a step over the column costs more than plain integers do
_TOO_FEW = 16

Hashes = npt.NDArray[np.uint32]
_Offsets = npt.NDArray[np.int64]


def murmur2(key: Any) -> Hashes:
    """Return Kafka's 32-bit murmur2 (``org.apache.kafka.common.utils.Utils.murmur2``) of each key
    of a binary array; a null key hashes as an empty one."""
    if len(key) == 0:
        return np.empty(0, np.uint32)
    offsets = binary_offsets(key).astype(np.int64)
    lengths = np.diff(offsets)
    words = _words_at_every_byte(key.buffers()[2], int(offsets[0]), int(offsets[-1]))
    starts = offsets[:-1] - offsets[0]
    if lengths.min() == lengths.max():
        return _by_length(words, starts, lengths)
    order = np.argsort(
        lengths.astype(np.uint16) if lengths.max() < 1 << 16 else lengths, kind="stable"
    )
    hashes = np.empty(len(lengths), np.uint32)
    hashes[order] = _by_length(words, starts[order], lengths[order])
    return hashes


def _words_at_every_byte(buffer: Any, start: int, end: int) -> npt.NDArray[np.uint32]:
    """Return words: element i has the bytes from ``start + i``; the last ones run into zeros."""
    padded = np.zeros(end - start + 4, np.uint8)
    if end > start:
        padded[: end - start] = np.frombuffer(buffer, np.uint8, end - start, start)
    words: npt.NDArray[np.uint32] = np.ndarray(end - start + 1, "<u4", padded.data, strides=(1,))
    return words


def _by_length(words: npt.NDArray[np.uint32], starts: _Offsets, lengths: _Offsets) -> Hashes:
    """Return the hashes of keys given in order of length, shortest first."""
    hashes = _SEED ^ lengths.astype(np.uint32)
    whole_words = lengths >> 2
    most = int(whole_words[-1])
    # per step: the first key that has its word
    firsts = np.searchsorted(whole_words, np.arange(1, most + 1))
    for step, first in enumerate(firsts.tolist()):
        if len(lengths) - first < _TOO_FEW and most - step > _TOO_FEW:
            for row in range(first, len(lengths)):
                start = int(starts[row])
                begin, end = start + 4 * step, start + 4 * int(whole_words[row])
                hashes[row] = _rest_of_one_key(int(hashes[row]), words[begin:end:4])
            break
        mixed = _mixed(words[starts[first:] + 4 * step])
        tail = hashes[first:]
        tail *= _M
        tail ^= mixed
    return _finished(hashes, words, starts + 4 * whole_words, lengths & 3)


def _mixed(words: npt.NDArray[np.uint32]) -> Hashes:
    mixed: Hashes = words * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed


def _rest_of_one_key(hashed: int, words: npt.NDArray[np.uint32]) -> int:
    multiplier = int(_M)
    for mixed in _mixed(words).tolist():
        hashed = (hashed * multiplier & _MASK) ^ mixed
    return hashed


def _finished(
    hashes: Hashes, words: npt.NDArray[np.uint32], ends: _Offsets, left: _Offsets
) -> Hashes:
    """Mix in the last one to three bytes of each key, and return the final avalanche."""
    if left.any():
        rest = words[ends] & ((np.uint32(1) << (left * 8).astype(np.uint32)) - np.uint32(1))
        hashes = np.where(left > 0, (hashes ^ rest) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


Partitions = npt.NDArray[np.int32]


def partition_of_keys(key: Any, partition_count: int) -> Partitions:
    """Return ``toPositive(murmur2(key)) % partition_count`` (``BuiltInPartitioner``) for each key;
    a null key's is valid and means nothing: the caller masks it."""
    positive = murmur2(key) & np.uint32(0x7FFF_FFFF)
    partitions: Partitions = (positive % np.uint32(partition_count)).astype(np.int32)
    return partitions


def assign_partitions(key: Any, rows: int, partition_count: int, first: int) -> Partitions:
    """Return a partition for each of ``rows`` records: by key, and in turn for records without
    one.

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


def group_by_partition(
    columns: RecordColumns, partitions: npt.NDArray[Any]
) -> list[tuple[int, RecordColumns]]:
    """Return each partition's rows in input order, partitions ascending, each with memory of its
    own, which is free when it is dropped (rows of one partition alone are not copied)."""
    if len(partitions) == 0:
        return []
    counts = np.bincount(partitions)
    last = len(counts) - 1
    if counts[last] == len(partitions):
        return [(last, columns)]
    # NumPy sorts 16-bit integers by radix: linear, and stable.
    narrow = partitions.astype(np.uint16 if last < 1 << 16 else np.uint32, copy=False)
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(counts)
    return [
        (int(p), columns.take(order[ends[p] - counts[p] : ends[p]]))
        for p in np.flatnonzero(counts)
    ]


def _in_turn(rows: int, partition_count: int, first: int) -> Partitions:
    start = first % partition_count
    return (np.arange(start, start + rows, dtype=np.int64) % partition_count).astype(np.int32)
