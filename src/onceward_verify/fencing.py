"""Producer ids and epochs: visible records have those of the batch they belong to (I7, I5).

None of an aborted attempt shares them; a transaction has one epoch; what is visible has a commit
marker behind it.

No consumer is shown producer ids and epochs, so they are read off the brokers' log segments
(KIP-98): the headers of record batches, and what control records say. Reads format 2, the only one
that transactions have (Kafka 0.11 and later); records themselves are not decoded. Files may grow
while they are read: a batch that is not complete yet is the end.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from crc32c import crc32c

from onceward_verify.chain import BatchChain
from onceward_verify.cluster import Where
from onceward_verify.findings import CannotTell, Findings, place
from onceward_verify.ledger import LedgerBatch
from onceward_verify.outputs import Reading

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta,
# baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, recordsCount
# (DefaultRecordBatch).
_HEADER = struct.Struct(">qiibIhiqqqhii")
# batchLength counts what follows it
_LENGTH_ENDS_AT = 12
# Attributes and everything after
_CRC_STARTS_AT = 21
_TRANSACTIONAL, _CONTROL = 0x10, 0x20

Marker = Literal["commit", "abort"]
Identity = tuple[int, int]
"""Producer id and epoch."""
_MARKERS: dict[int, Marker] = {0: "abort", 1: "commit"}


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Header of one record batch. ``marker`` is set for a control batch; offsets are inclusive."""

    first: int
    last: int
    records: int
    producer_id: int
    epoch: int
    transactional: bool
    marker: Marker | None

    @property
    def identity(self) -> Identity:
        """Producer id and epoch."""
        return self.producer_id, self.epoch

    def place(self, where: Where) -> str:
        """Return the place of the batch in its partition."""
        return place(*where, self.first, self.last)


def replica_folder(
    log_dirs: Iterable[Path], topic: str, partition: int, leader: int
) -> Path | None:
    """Return the leader's folder of the partition, or else the one with the longest log."""
    found = [
        folder for log_dir in log_dirs if (folder := log_dir / f"{topic}-{partition}").is_dir()
    ]
    of_leader = [folder for folder in found if _node_id(folder.parent) == leader]
    return max(of_leader or found, key=_length, default=None)


def record_batches(folder: Path) -> Iterator[BatchHeader]:
    """Yield every record batch of a partition's folder, in offset order.

    :raises CannotTell: a batch is corrupt, or of an older format.
    """
    # Named by their first offset, with leading zeros
    for segment in sorted(folder.glob("*.log")):
        if segment.stat().st_size:
            with (
                segment.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                yield from _batches(data, segment)


def _batches(data: mmap.mmap, segment: Path) -> Iterator[BatchHeader]:
    position = 0
    while position + _HEADER.size <= len(data):
        (first, length, _, magic, crc, attributes, last_delta, _, _, producer, epoch, _, count) = (
            _HEADER.unpack_from(data, position)
        )
        end = position + _LENGTH_ENDS_AT + length
        if length <= 0 or end > len(data):
            # Preallocated, or a batch that is still being written
            return
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
        start, position = position + _HEADER.size, end
        if attributes & _CONTROL and not count:
            # Of a producer's last batch the log cleaner keeps the header (RETAIN_EMPTY): a marker
            # of which all data are gone
            continue
        marker = _marker(data, start) if attributes & _CONTROL else None
        transactional = bool(attributes & _TRANSACTIONAL)
        yield BatchHeader(first, first + last_delta, count, producer, epoch, transactional, marker)


def _marker(data: mmap.mmap, position: int) -> Marker | None:
    """Return the type in a control record's key, behind a version, both int16."""
    position = _after_varint(data, position) + 1  # its length, attributes
    # Timestamp delta, offset delta, key length
    for _ in range(3):
        position = _after_varint(data, position)
    (kind,) = struct.unpack_from(">h", data, position + 2)
    return _MARKERS.get(kind)


def _after_varint(data: mmap.mmap, position: int) -> int:
    while data[position] & 0x80:
        position += 1
    return position + 1


def _node_id(log_dir: Path) -> int | None:
    """Return the id of the broker that owns the directory, by the file that it keeps in each."""
    try:
        lines = (log_dir / "meta.properties").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    properties = dict(line.split("=", 1) for line in lines if "=" in line)
    number = properties.get("node.id", properties.get("broker.id", ""))
    return int(number) if number.strip().isdecimal() else None


def _length(folder: Path) -> tuple[str, int]:
    newest = max(folder.glob("*.log"), default=None)
    return ("", 0) if newest is None else (newest.name, newest.stat().st_size)


@dataclass
class Epochs:
    """Identities seen in all partitions."""

    batches: Mapping[int, LedgerBatch]
    """The chain, by sequence."""
    producer_ids: frozenset[int]
    owners: Mapping[Identity, int]
    """Sequence by identity."""
    committed: set[Identity] = field(default_factory=set)
    aborted: set[Identity] = field(default_factory=set)
    record_batches: int = 0
    repeated_markers: int = 0

    @staticmethod
    def from_chain(chain: BatchChain) -> Epochs:
        """Return the identities of a chain, none of them seen yet."""
        by_sequence = {batch.sequence: batch for batch in chain.batches}
        owners = {batch.identity: batch.sequence for batch in chain.batches}
        return Epochs(by_sequence, frozenset(producer for producer, _ in owners), owners)

    def facts(self) -> dict[str, int]:
        """Return the numbers of identities, record batches and repeated markers."""
        return {
            "record_batches": self.record_batches,
            "committed_identities": len(self.committed),
            "aborted_identities": len(self.aborted),
            "repeated_markers": self.repeated_markers,
        }


def check_output(
    where: Where, reading: Reading, folder: Path, epochs: Epochs, findings: Findings
) -> None:
    """Check every record batch of one output partition."""
    unended: dict[int, list[BatchHeader]] = {}
    for batch in record_batches(folder):
        # Behind the end nothing is asked for but the markers of what lies before it.
        behind = batch.first >= reading.scope.end
        if batch.first < reading.scope.start or (behind and batch.producer_id not in unended):
            continue
        if batch.marker is not None:
            # A marker may have the next epoch, because version 2 of the transaction protocol
            # raises it with the end (KIP-890): a transaction is everything of one producer id up
            # to its next marker. Markers may come twice, as a coordinator that takes over writes
            # them again.
            written = unended.pop(batch.producer_id, [])
            epochs.repeated_markers += not written
            _check_transaction(where, written, batch.marker, reading, epochs, findings)
            continue
        if behind:
            continue
        epochs.record_batches += 1
        if batch.transactional:
            unended.setdefault(batch.producer_id, []).append(batch)
        elif reading.log.part_at(batch.first) is not None and not reading.shared:
            detail = "within a batch, and written outside any transaction"
            findings.anomaly("zombie-write", "I7", batch.place(where), detail)
    for written in unended.values():
        for batch in written:
            if reading.log.visible.count_within(batch.first, batch.last):
                detail = "visible, with no marker behind it"
                findings.anomaly("aborted-read", "I5", batch.place(where), detail)


def check_ledger(chain: BatchChain, where: Where, folder: Path, findings: Findings) -> None:
    """Check that each ledger record was written in a transaction of the producer it names."""
    here = [batch for batch in chain.batches if batch.ledger_partition == where[1]]
    batches = {batch.ledger_offset: batch for batch in here}
    for written in record_batches(folder):
        for offset in range(written.first, written.last + 1) if written.marker is None else ():
            batch = batches.get(offset)
            if batch is None:
                continue
            owner = batch.writer or batch.identity
            if not written.transactional or written.identity != owner:
                detail = (
                    f"sequence {batch.sequence} names {_describe(owner)}, "
                    f"and was told of by {_describe(written.identity)}"
                )
                findings.anomaly("zombie-write", "I7", batch.place, detail)


def _check_transaction(
    where: Where,
    written: list[BatchHeader],
    marker: Marker,
    reading: Reading,
    epochs: Epochs,
    findings: Findings,
) -> None:
    identities = sorted({batch.identity for batch in written})
    if len(identities) > 1:
        detail = f"one transaction with several epochs: {', '.join(map(_describe, identities))}"
        at = place(*where, written[0].first, written[-1].last)
        findings.anomaly("zombie-write", "I7", at, detail)
    for batch in written:
        if marker == "commit":
            _check_committed(where, batch, reading, epochs, findings)
        else:
            _check_aborted(where, batch, reading, epochs, findings)


def _check_committed(
    where: Where, batch: BatchHeader, reading: Reading, epochs: Epochs, findings: Findings
) -> None:
    at = batch.place(where)
    part = reading.log.part_at(batch.first)
    if part is None or reading.log.part_at(batch.last) is not part:
        is_visible = reading.log.unaccounted.count_within(batch.first, batch.last)
        if batch.producer_id in epochs.producer_ids and is_visible:
            detail = f"committed by {_describe(batch.identity)}, and no batch tells of it"
            findings.anomaly("zombie-write", "I7", at, detail)
        return
    owner = epochs.batches[part.sequence].identity
    if batch.identity == owner:
        epochs.committed.add(owner)
    elif owner[0] == batch.producer_id or not reading.shared:
        detail = (
            f"within sequence {part.sequence}, which names {_describe(owner)}, by "
            f"{_describe(batch.identity)}"
        )
        findings.anomaly("zombie-write", "I7", at, detail)


def _check_aborted(
    where: Where, batch: BatchHeader, reading: Reading, epochs: Epochs, findings: Findings
) -> None:
    at = batch.place(where)
    if batch.producer_id in epochs.producer_ids:
        epochs.aborted.add(batch.identity)
    if reading.log.visible.count_within(batch.first, batch.last):
        detail = f"visible, and aborted: {_describe(batch.identity)}"
        findings.anomaly("aborted-read", "I5", at, detail)
    if batch.identity in epochs.owners:
        sequence = epochs.owners[batch.identity]
        detail = (
            f"aborted under {_describe(batch.identity)}, under which sequence {sequence} committed"
        )
        findings.anomaly("zombie-write", "I7", at, detail)


def _describe(identity: Identity) -> str:
    return f"producer {identity[0]} epoch {identity[1]}"
