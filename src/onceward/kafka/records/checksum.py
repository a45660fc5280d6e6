"""The checksum of what a batch put into one output partition, made so that anyone can recompute
it.

It needs nothing but a Kafka client and a standard CRC-32C (Castagnoli, the one of Kafka's own
record batches). Checksums of consecutive stretches combine without their data: every fragment
carries one, and the driver adds them up in offset order for the ledger's manifest. Called by
``kafka.records.batch`` (executor), the engine's report check and the ledger (driver), and verdicts
(testing).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

_POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli, bit-reversed


class Stretch(NamedTuple):
    """CRC-32C and length in bytes of one stretch of data."""

    crc: int
    length: int

    @staticmethod
    def of(*buffers: Any) -> Stretch:
        """Return the stretch of ``buffers`` (with the buffer protocol), one after the other."""
        crc, length = 0, 0
        for buffer in buffers:
            view = memoryview(buffer)
            crc = crc32c.crc32c(view, crc)
            length += view.nbytes
        return Stretch(crc, length)

    def then(self, following: Stretch) -> Stretch:
        """Return the stretch of this data, then that of ``following``, from the two CRCs alone."""
        return Stretch(
            _shift(self.crc, following.length) ^ following.crc, self.length + following.length
        )


@dataclass(frozen=True, slots=True)
class ContentChecksum:
    """Four stretches over the records of one partition, in offset order.

    * ``lengths``: for each record its key length and value length, both big-endian int32, -1 for
      null;
    * ``keys``, ``values``: all key bytes, all value bytes, one after the other;
    * ``headers``: for each record its headers section as in the record format (zigzag varint
      count, then for each header varint key length, key, varint value length, value); one zero
      byte for a record without headers.

    Equal checksums mean equal content up to the strength of 32-bit CRCs: they find faults, not
    forgers.
    """

    lengths: Stretch
    keys: Stretch
    values: Stretch
    headers: Stretch

    @staticmethod
    def combine(first: ContentChecksum, second: ContentChecksum) -> ContentChecksum:
        """Return the checksum of ``first``'s records followed by ``second``'s."""
        pairs = zip(first.stretches, second.stretches, strict=True)
        return ContentChecksum(*(a.then(b) for a, b in pairs))

    @property
    def stretches(self) -> tuple[Stretch, Stretch, Stretch, Stretch]:
        """Return the four, in the order of the fields."""
        return self.lengths, self.keys, self.values, self.headers

    def hexdigest(self) -> str:
        """Return the four CRCs ``llllllll-kkkkkkkk-vvvvvvvv-hhhhhhhh``, in the fields' order."""
        return "-".join(f"{stretch.crc:08x}" for stretch in self.stretches)


# -- CRC combination ------------------------------------------------------------------------------
# Appending n zero bytes to data multiplies its CRC by x^(8n) modulo the polynomial: a linear map
# of 32 bits, the same that zlib's crc32_combine applies. A map is kept as four tables of 256 (one
# a byte of the CRC), one map a power of two of n, made when first needed.

_Map = tuple[npt.NDArray[np.uint32], ...]


def combine_runs(
    crcs: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64], runs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """What :meth:`ContentChecksum.combine` gives for each of many runs of checksums, all at once.

    :param crcs: one row a checksum, one column a stretch; so ``lengths``.
    :param runs: the number of the run that each row belongs to: 0, 1, 2 … without a gap, each at
        least once, ascending.
    :returns: the CRCs and lengths of each run, one row a run.
    """
    while len(runs) and len(runs) > runs[-1] + 1:
        # Neighbours are joined two by two, so that a run of n takes log2(n) rounds.
        begins = np.concatenate(([True], runs[1:] != runs[:-1]))
        in_run = np.arange(len(runs)) - np.maximum.accumulate(
            np.where(begins, np.arange(len(runs)), 0)
        )
        firsts = np.flatnonzero(in_run % 2 == 0)
        paired = firsts[(firsts + 1 < len(runs)) & ~np.append(begins, True)[firsts + 1]]
        joined, sizes = crcs.copy(), lengths.copy()
        joined[paired] = _shift_all(crcs[paired], lengths[paired + 1]) ^ crcs[paired + 1]
        sizes[paired] += lengths[paired + 1]
        crcs, lengths, runs = joined[firsts], sizes[firsts], runs[firsts]
    return crcs, lengths


def _shift_all(
    crcs: npt.NDArray[np.uint32], zero_bytes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Apply :func:`_shift` to each."""
    shifted: npt.NDArray[np.uint32] = crcs.copy()
    for power in range(int(zero_bytes.max(initial=0)).bit_length()):
        bits = (zero_bytes >> power & 1).astype(bool)
        if bits.any():
            shifted[bits] = _apply(_zero_bytes_map(power), shifted[bits])
    return shifted


def _shift(crc: int, zero_bytes: int) -> int:
    for power in range(zero_bytes.bit_length()):
        if zero_bytes >> power & 1:
            crc = int(_apply(_zero_bytes_map(power), crc))
    return crc


@functools.cache
def _zero_bytes_map(power: int) -> _Map:
    """Return the map of 2**power zero bytes."""
    columns = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if power:
        half = _zero_bytes_map(power - 1)
        columns = _apply(half, _apply(half, columns))
    else:
        for _ in range(8):
            columns = columns >> 1 ^ (columns & 1) * _POLYNOMIAL
    return tuple(_byte_table(columns[at : at + 8]) for at in range(0, 32, 8))


def _apply(tables: _Map, crc: Any) -> Any:
    """Apply a map to one CRC, or to each of an array."""
    a, b, c, d = tables
    return a[crc & 0xFF] ^ b[crc >> 8 & 0xFF] ^ c[crc >> 16 & 0xFF] ^ d[crc >> 24]


def _byte_table(columns: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    table = np.zeros(1, np.uint32)
    # Doubles the table: entries with this bit set are those without it, plus its column
    for column in columns:
        table = np.concatenate([table, table ^ column])
    return table
