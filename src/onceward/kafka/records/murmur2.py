"""Kafka's 32-bit murmur2 over a whole column of keys
(``org.apache.kafka.common.utils.Utils.murmur2``).

Called by ``kafka.records.partitioner``; runs in executor tasks. The loop is over the four-byte
words of the longest key: step i mixes word i of every key that has one. Keys are walked in order
of length, so that "every key that has one" is a tail of the column and any mix of lengths costs
the same as one length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.kafka.records.columns import offsets_of

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_MASK = 0xFFFF_FFFF
_TOO_FEW = 16  # below this many keys a step over the column costs more than plain integers do

Hashes = npt.NDArray[np.uint32]
_Offsets = npt.NDArray[np.int64]


def murmur2(key: Any) -> Hashes:
    """The hash of each key of a binary array, as unsigned 32-bit numbers; a null key hashes as an
    empty one.
    """
    if len(key) == 0:
        return np.empty(0, np.uint32)
    offsets = offsets_of(key).astype(np.int64)
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
    """Element i is the little-endian word of the bytes from ``start + i``; the last words run into
    zeros.
    """
    padded = np.zeros(end - start + 4, np.uint8)
    if end > start:
        padded[: end - start] = np.frombuffer(buffer, np.uint8, end - start, start)
    words: npt.NDArray[np.uint32] = np.ndarray(end - start + 1, "<u4", padded.data, strides=(1,))
    return words


def _by_length(words: npt.NDArray[np.uint32], starts: _Offsets, lengths: _Offsets) -> Hashes:
    """The hashes of keys given in order of length, shortest first."""
    hashes = _SEED ^ lengths.astype(np.uint32)
    whole_words = lengths >> 2
    most = int(whole_words[-1])
    firsts = np.searchsorted(
        whole_words, np.arange(1, most + 1)
    )  # per step: the first key that has its word
    for step, first in enumerate(firsts.tolist()):
        if len(lengths) - first < _TOO_FEW and most - step > _TOO_FEW:
            for row in range(first, len(lengths)):
                begin, end = (
                    int(starts[row]) + 4 * step,
                    int(starts[row]) + 4 * int(whole_words[row]),
                )
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
    """The last one to three bytes of each key mixed in, and the final avalanche."""
    if left.any():
        rest = words[ends] & ((np.uint32(1) << (left * 8).astype(np.uint32)) - np.uint32(1))
        hashes = np.where(left > 0, (hashes ^ rest) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes
