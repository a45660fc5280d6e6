"""A small reader of Kafka's log segments: the headers of record batches, and what control records
say (KIP-98).

No consumer is shown producer ids and epochs, so they are read off the brokers' files. Reads format
2, the only one that transactions have (Kafka 0.11 and later); records themselves are not decoded.
Files may grow while they are read: a batch that is not whole yet is the end.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crc32c import crc32c

from onceward_verify.findings import CannotTell

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta,
# baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, recordsCount
# (DefaultRecordBatch).
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_ENDS_AT = 12  # batchLength counts what follows it
_CRC_STARTS_AT = 21  # attributes and everything after
_TRANSACTIONAL, _CONTROL = 0x10, 0x20

Marker = Literal["commit", "abort"]
_MARKERS: dict[int, Marker] = {0: "abort", 1: "commit"}


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The header of one record batch. ``marker`` is set for a control batch; offsets are
    inclusive.
    """

    first: int
    last: int
    records: int
    producer_id: int
    epoch: int
    transactional: bool
    marker: Marker | None

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


def replica_folder(
    log_dirs: Iterable[Path], topic: str, partition: int, leader: int
) -> Path | None:
    """The partition's folder below ``log_dirs``: the leader's if it is there, else the one with
    the longest log.
    """
    found = [
        folder for log_dir in log_dirs if (folder := log_dir / f"{topic}-{partition}").is_dir()
    ]
    of_leader = [folder for folder in found if _node_id(folder.parent) == leader]
    return max(of_leader or found, key=_length, default=None)


def record_batches(folder: Path) -> Iterator[RecordBatch]:
    """Every record batch of a partition's folder, in offset order.

    :raises CannotTell: a batch is corrupt, or of an older format.
    """
    for segment in sorted(folder.glob("*.log")):  # named by their first offset, with leading zeros
        if segment.stat().st_size:
            with (
                segment.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                yield from _batches(data, segment)


def _batches(data: mmap.mmap, segment: Path) -> Iterator[RecordBatch]:
    position = 0
    while position + _HEADER.size <= len(data):
        (first, length, _, magic, crc, attributes, last_delta, _, _, producer, epoch, _, count) = (
            _HEADER.unpack_from(data, position)
        )
        end = position + _LENGTH_ENDS_AT + length
        if length <= 0 or end > len(data):
            return  # room that is not filled yet
        if magic != 2:
            raise CannotTell(
                f"{segment} at byte {position}: record format {magic}, not 2",
                next_step="leave out --log-dirs: records of before Kafka 0.11 have no epochs",
            )
        if crc32c(data[position + _CRC_STARTS_AT : end]) != crc:
            raise CannotTell(
                f"{segment} at byte {position}: a record batch does not match its checksum",
                next_step="check the disk, or copy the log directory again while the broker is "
                "stopped",
            )
        marker = _marker(data, position + _HEADER.size) if attributes & _CONTROL else None
        transactional = bool(attributes & _TRANSACTIONAL)
        yield RecordBatch(first, first + last_delta, count, producer, epoch, transactional, marker)
        position = end


def _marker(data: mmap.mmap, position: int) -> Marker | None:
    """What the one record of a control batch says: its key is a version and a type, both int16."""
    position = _after_varint(data, position) + 1  # its length, attributes
    for _ in range(3):  # timestamp delta, offset delta, key length
        position = _after_varint(data, position)
    (kind,) = struct.unpack_from(">h", data, position + 2)
    return _MARKERS.get(kind)


def _after_varint(data: mmap.mmap, position: int) -> int:
    while data[position] & 0x80:
        position += 1
    return position + 1


def _node_id(log_dir: Path) -> int | None:
    """Whose directory it is, by the file that a broker keeps in each."""
    try:
        lines = (log_dir / "meta.properties").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    told = dict(line.split("=", 1) for line in lines if "=" in line)
    number = told.get("node.id", told.get("broker.id", ""))
    return int(number) if number.strip().isdecimal() else None


def _length(folder: Path) -> tuple[str, int]:
    newest = max(folder.glob("*.log"), default=None)
    return ("", 0) if newest is None else (newest.name, newest.stat().st_size)
