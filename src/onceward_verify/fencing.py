"""Who wrote it? Each visible record batch carries the producer id and epoch of the batch that
tells of it (I7, I5).

And none of an aborted attempt shares them; a transaction has one epoch; what is visible has a
commit marker behind it. Needs the brokers' files (``segments``). Called by ``checker``.

A marker may have the next epoch, because version 2 of the transaction protocol raises it with the
end (KIP-890), so a transaction is everything of one producer id up to its next marker. Markers may
come twice (a coordinator that takes over writes them again), which harms nobody and is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onceward_verify.chain import Chain
from onceward_verify.cluster import Where
from onceward_verify.findings import Findings, place
from onceward_verify.ledger import Batch
from onceward_verify.manifests import Reading
from onceward_verify.segments import Marker, RecordBatch, record_batches

Identity = tuple[int, int]


@dataclass
class Epochs:
    """What was seen, over all partitions."""

    batches: Mapping[int, Batch]
    """The chain, by sequence."""
    producer_ids: frozenset[int]
    owners: Mapping[Identity, int]
    """Sequence by identity."""
    committed: set[Identity] = field(default_factory=set)
    aborted: set[Identity] = field(default_factory=set)
    record_batches: int = 0
    repeated_markers: int = 0

    @staticmethod
    def of(chain: Chain) -> Epochs:
        by_sequence = {batch.sequence: batch for batch in chain.batches}
        owners = {batch.identity: batch.sequence for batch in chain.batches}
        return Epochs(by_sequence, frozenset(producer for producer, _ in owners), owners)

    def facts(self) -> dict[str, int]:
        return {
            "record_batches": self.record_batches,
            "committed_identities": len(self.committed),
            "aborted_identities": len(self.aborted),
            "repeated_markers": self.repeated_markers,
        }


def judge_output(
    where: Where, reading: Reading, folder: Path, epochs: Epochs, findings: Findings
) -> None:
    """Every record batch of one output partition."""
    unended: dict[int, list[RecordBatch]] = {}
    for batch in record_batches(folder):
        # Behind the end nothing is asked for but the markers of what lies before it.
        behind = batch.first >= reading.looked_at.end
        if batch.first < reading.looked_at.start or (behind and batch.producer_id not in unended):
            continue
        if batch.marker is not None:
            written = unended.pop(batch.producer_id, [])
            epochs.repeated_markers += not written
            _transaction(where, written, batch.marker, reading, epochs, findings)
            continue
        if behind:
            continue
        epochs.record_batches += 1
        if batch.transactional:
            unended.setdefault(batch.producer_id, []).append(batch)
        elif reading.log.owner_of(batch.first) is not None and not reading.shared:
            detail = "within a batch, and written outside any transaction"
            findings.anomaly("zombie-write", "I7", place(*where, batch.first, batch.last), detail)
    for written in unended.values():
        for batch in written:
            if reading.log.visible.count_within(batch.first, batch.last):
                detail = "visible, with no marker behind it"
                findings.anomaly(
                    "aborted-read", "I5", place(*where, batch.first, batch.last), detail
                )


def judge_ledger(chain: Chain, where: Where, folder: Path, findings: Findings) -> None:
    """Each ledger record was written by the producer that it names: it is part of the transaction
    it tells of.
    """
    told = {
        batch.ledger_offset: batch for batch in chain.batches if batch.ledger_partition == where[1]
    }
    for written in record_batches(folder):
        for offset in range(written.first, written.last + 1) if written.marker is None else ():
            batch = told.get(offset)
            named = None if batch is None else batch.written_by or batch.identity
            if (
                batch is not None
                and named is not None
                and not (written.transactional and written.identity == named)
            ):
                detail = f"sequence {batch.sequence} names {_text(named)}, and was told of by "
                findings.anomaly(
                    "zombie-write", "I7", batch.place, detail + _text(written.identity)
                )


def _transaction(
    where: Where,
    written: list[RecordBatch],
    marker: Marker,
    reading: Reading,
    epochs: Epochs,
    findings: Findings,
) -> None:
    identities = {batch.identity for batch in written}
    if len(identities) > 1:
        detail = (
            f"one transaction with several epochs: {', '.join(map(_text, sorted(identities)))}"
        )
        findings.anomaly(
            "zombie-write", "I7", place(*where, written[0].first, written[-1].last), detail
        )
    for batch in written:
        if marker == "commit":
            _committed(where, batch, reading, epochs, findings)
        else:
            _aborted(where, batch, reading, epochs, findings)


def _committed(
    where: Where, batch: RecordBatch, reading: Reading, epochs: Epochs, findings: Findings
) -> None:
    at = place(*where, batch.first, batch.last)
    part = reading.log.owner_of(batch.first)
    if part is None or reading.log.owner_of(batch.last) is not part:
        if batch.producer_id in epochs.producer_ids and reading.log.unaccounted.count_within(
            batch.first, batch.last
        ):
            findings.anomaly(
                "zombie-write",
                "I7",
                at,
                f"committed by {_text(batch.identity)}, and no batch tells of it",
            )
        return
    told = epochs.batches[part.sequence].identity
    if batch.identity == told:
        epochs.committed.add(told)
    elif told[0] == batch.producer_id or not reading.shared:
        detail = (
            f"within sequence {part.sequence}, which names {_text(told)}, by "
            f"{_text(batch.identity)}"
        )
        findings.anomaly("zombie-write", "I7", at, detail)


def _aborted(
    where: Where, batch: RecordBatch, reading: Reading, epochs: Epochs, findings: Findings
) -> None:
    at = place(*where, batch.first, batch.last)
    if batch.producer_id in epochs.producer_ids:
        epochs.aborted.add(batch.identity)
    if reading.log.visible.count_within(batch.first, batch.last):
        findings.anomaly(
            "aborted-read", "I5", at, f"visible, and aborted: {_text(batch.identity)}"
        )
    if batch.identity in epochs.owners:
        detail = (
            f"aborted under {_text(batch.identity)}, under which sequence "
            f"{epochs.owners[batch.identity]} committed"
        )
        findings.anomaly("zombie-write", "I7", at, detail)


def _text(identity: Identity) -> str:
    return f"producer {identity[0]} epoch {identity[1]}"
