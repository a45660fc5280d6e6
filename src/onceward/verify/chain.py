"""Do the ledger's records make one chain? Sequences without gap or fork, positions that join and never go back (I6).

Also: one producer identity per batch, epochs that only rise (I7), and output that only grows. Pure functions of the
batches as told; called by ``checker``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.verify.findings import Findings, place
from onceward.verify.ledger import Batch, Part, Span, kafka_position


@dataclass(frozen=True)
class Chain:
    """The batches in order of their sequence numbers, each number once.

    ``covered``: those after the last stretch that compaction has taken away. ``from_the_beginning``: nothing came
    before them, so that whatever else is visible has no excuse.
    """

    batches: tuple[Batch, ...]
    covered: tuple[Batch, ...]
    from_the_beginning: bool


def one_chain(read: Sequence[Batch], findings: Findings) -> Chain:
    """The chain that ``read`` (in the order of the ledger's partitions and offsets) makes; its faults are noted."""
    batches = _each_once(read, findings)
    _in_order(read, findings)
    covered_from = 0
    for index, (before, after) in enumerate(itertools.pairwise(batches), start=1):
        if after.sequence == before.sequence + 1:
            _joins(before, after, findings)
        elif after.ledger_partition == before.ledger_partition:
            _gap(before, after, findings)
        else:
            # The ledger topic got more partitions, so that the key moved; compaction keeps the newest of each.
            covered_from = index
            findings.gone(
                f"batches of sequence {before.sequence + 1} to {after.sequence - 1}: compacted away when the "
                "pipeline's place in the ledger moved"
            )
        _never_back(before, after, findings)
    for batch in batches:
        _moves_forward(batch, findings)
    _one_identity_each(batches, findings)
    _output_only_grows(batches, findings)
    return _chain(batches, covered_from, findings)


def _chain(batches: list[Batch], covered_from: int, findings: Findings) -> Chain:
    if not batches:
        return Chain((), (), from_the_beginning=False)
    oldest = batches[0]
    if oldest.sequence > 0:
        findings.gone(f"batches before sequence {oldest.sequence}: the ledger does not have them any more")
    elif oldest.batch_id > 0:
        findings.cannot_judge(f"what was written before batch {oldest.batch_id}, with which the ledger begins")
    whole = covered_from == 0 and oldest.sequence == 0 and oldest.batch_id == 0
    return Chain(tuple(batches), tuple(batches[covered_from:]), whole)


def _each_once(read: Sequence[Batch], findings: Findings) -> list[Batch]:
    by_sequence: dict[int, Batch] = {}
    for batch in read:
        other = by_sequence.setdefault(batch.sequence, batch)
        if other is not batch:
            detail = f"sequence {batch.sequence} is already told at {other.place}"
            findings.anomaly("ledger-fork", "I6", batch.place, detail)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def _in_order(read: Sequence[Batch], findings: Findings) -> None:
    highest: dict[int, int] = {}
    for batch in read:
        reached = highest.get(batch.ledger_partition, -1)
        if batch.sequence < reached:
            detail = f"sequence {batch.sequence} comes after sequence {reached}"
            findings.anomaly("non-monotonic", "I6", batch.place, detail)
        highest[batch.ledger_partition] = max(reached, batch.sequence)


def _gap(before: Batch, after: Batch, findings: Findings) -> None:
    missing = f"{before.sequence + 1}"
    if after.sequence > before.sequence + 2:
        missing += f" to {after.sequence - 1}"
    findings.anomaly("ledger-gap", "I6", after.place, f"no record of sequence {missing} before {after.sequence}")


def _joins(before: Batch, after: Batch, findings: Findings) -> None:
    """``after`` begins where ``before`` ended: nothing of the source is skipped."""
    if len(before.spans) != len(after.spans):
        detail = f"sequence {after.sequence} has {len(after.spans)} sources, the one before {len(before.spans)}"
        findings.anomaly("ledger-gap", "I6", after.place, detail)
        return
    for number, (done, now) in enumerate(zip(before.spans, after.spans, strict=True)):
        ended, begins = kafka_position(done.end), kafka_position(now.start)
        if ended is None or begins is None:
            if done.end != now.start:
                detail = f"source {number} ended at {done.end} and goes on at {now.start} in sequence {after.sequence}"
                findings.anomaly("ledger-gap", "I6", after.place, detail)
            continue
        for partition, offset in ended.items():
            begin = begins.get(partition)
            if begin is None:
                detail = f"sequence {after.sequence} does not go on where {before.sequence} ended"
                findings.anomaly("ledger-gap", "I6", place(*partition, offset), detail)
            elif begin > offset:
                detail = f"sequence {before.sequence} ends at {offset}, {after.sequence} begins at {begin}"
                findings.anomaly("ledger-gap", "I6", place(*partition, offset, begin - 1), detail)
        for partition in begins.keys() - ended.keys():
            if begins[partition] > 0:
                findings.cannot_judge(f"{place(*partition)} before offset {begins[partition]}: new in the middle")


def _never_back(before: Batch, after: Batch, findings: Findings) -> None:
    for done, now in zip(before.spans, after.spans, strict=False):
        ended, begins = kafka_position(done.end) or {}, kafka_position(now.start) or {}
        for partition, begin in begins.items():
            if begin < ended.get(partition, 0):
                detail = f"sequence {before.sequence} ended at {ended[partition]}, {after.sequence} begins at {begin}"
                findings.anomaly("non-monotonic", "I6", place(*partition, begin), detail)


def _moves_forward(batch: Batch, findings: Findings) -> None:
    for span in batch.spans:
        for partition, start, end in _kafka_ranges(span):
            if end < start:
                detail = f"sequence {batch.sequence} goes from {start} back to {end}"
                findings.anomaly("non-monotonic", "I6", place(*partition, end), detail)


def _kafka_ranges(span: Span) -> list[tuple[tuple[str, int], int, int]]:
    starts, ends = kafka_position(span.start) or {}, kafka_position(span.end) or {}
    return [(partition, start, ends.get(partition, start)) for partition, start in starts.items()]


def _one_identity_each(batches: Sequence[Batch], findings: Findings) -> None:
    owner: dict[tuple[int, int], Batch] = {}
    newest_epoch: dict[int, int] = {}
    for batch in batches:
        producer, epoch = batch.identity
        other = owner.setdefault(batch.identity, batch)
        if other is not batch:
            detail = f"sequences {other.sequence} and {batch.sequence} share producer {producer} epoch {epoch}"
            findings.anomaly("zombie-write", "I7", batch.place, detail)
        elif epoch < newest_epoch.get(producer, -1):
            detail = f"sequence {batch.sequence} has epoch {epoch} of producer {producer}, which was at "
            findings.anomaly("zombie-write", "I7", batch.place, f"{detail}{newest_epoch[producer]} before")
        newest_epoch[producer] = max(epoch, newest_epoch.get(producer, -1))


def _output_only_grows(batches: Sequence[Batch], findings: Findings) -> None:
    reached: dict[tuple[str, int], Part] = {}
    for part in (part for batch in batches for part in batch.parts):
        before = reached.get((part.topic, part.partition))
        if before is not None and part.first <= before.last:
            detail = f"sequence {part.sequence} is told to lie before the end of sequence {before.sequence}"
            findings.anomaly("non-monotonic", "I3", part.place, detail)
        if before is None or part.last > before.last:
            reached[part.topic, part.partition] = part


def disjoint_parts(batches: Sequence[Batch]) -> dict[tuple[str, int], list[Part]]:
    """What is told of each output partition, by offset. Of parts that overlap (noted already) the first one stays."""
    parts: dict[tuple[str, int], list[Part]] = defaultdict(list)
    for part in sorted((part for batch in batches for part in batch.parts), key=lambda part: (part.first, part.last)):
        told = parts[part.topic, part.partition]
        if not told or told[-1].last < part.first:
            told.append(part)
    return dict(parts)
