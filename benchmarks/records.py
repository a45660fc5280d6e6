"""The records that the benchmark makes: seeded, so that every run moves the same bytes. Pure.

A value begins with its record's number, eight bytes big-endian, so that a reader can tell which
records it saw. The rest is random, as little to compress as real binary data. Keys are short and
come from a set large enough to spread evenly over any number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.kafka.records.columns import RecordColumns

NUMBER_BYTES = 8
_DISTINCT_KEYS = 100_000
_HOT = b"hot"
_BLOCK, _BLOCK_BYTES = 50_000, 50_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The same records as columns and as lists."""

    columns: RecordColumns
    keys: list[bytes]
    values: list[bytes]
    now_ms: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.columns.nbytes


def sample(count: int, value_bytes: int, seed: int = 1) -> Sample:
    """``count`` records of ``value_bytes`` each."""
    keys, values = _block(0, count, value_bytes, np.random.default_rng(seed))
    columns = RecordColumns.of(pa.array(values, pa.binary()), key=pa.array(keys, pa.binary()))
    return Sample(columns, keys, values, now_ms=1_700_000_000_000)


def blocks(
    count: int, value_bytes: int, seed: int = 1, *, first: int = 0, hot_share: float = 0.0
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """``count`` records, numbered from ``first`` on, as keys and values, a block at a time;
    ``hot_share`` of them have one key.
    """
    rng = np.random.default_rng(seed)
    block = max(1, min(_BLOCK, _BLOCK_BYTES // value_bytes))
    for start in range(0, count, block):
        keys, values = _block(first + start, min(block, count - start), value_bytes, rng)
        if hot_share:
            hot = (rng.random(len(keys)) < hot_share).tolist()
            keys = [_HOT if is_hot else key for is_hot, key in zip(hot, keys, strict=True)]
        yield keys, values


def numbers_of(values: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The numbers of the records with these values."""
    heads = b"".join([value[:NUMBER_BYTES] for value in values])
    return np.frombuffer(heads, ">i8").astype(np.int64)


def _block(
    first: int, count: int, value_bytes: int, rng: np.random.Generator
) -> tuple[list[bytes], list[bytes]]:
    keys = [b"key-%05d" % number for number in rng.integers(0, _DISTINCT_KEYS, count)]
    rows = np.empty((count, value_bytes), np.uint8)
    rows[:] = np.frombuffer(rng.bytes(count * value_bytes), np.uint8).reshape(count, value_bytes)
    rows[:, :NUMBER_BYTES] = (
        np.arange(first, first + count).astype(">i8").view(np.uint8).reshape(count, NUMBER_BYTES)
    )
    whole = rows.tobytes()
    return keys, [whole[at : at + value_bytes] for at in range(0, len(whole), value_bytes)]
