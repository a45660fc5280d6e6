"""Do the ledger's records make one chain? Sequences without gap or fork, positions that join and
never go back (I6).

Also: one producer identity per batch, epochs that only rise and runs that never come back (I7),
and output that only grows. Pure functions of the batches as told; called by ``checker``.

What joins: each batch begins where the one before ended. Two exceptions are told by the records
themselves. A **supplement** adds to the batch of the record before it, so it has that one's query,
number and ends. And a query whose function did not hand over every batch **skips** numbers: what
the skipped ones had read lies between, if anything.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceward_verify.findings import Findings, place
from onceward_verify.ledger import Batch, Part, Span, kafka_position


@dataclass(frozen=True)
class Chain:
    """The batches in order of their sequence numbers, each number once.

    ``covered``: those after the last stretch that compaction has taken away.
    ``from_the_beginning``: nothing came before them, so that whatever else is visible has no
    excuse. ``skipped``: between which of them the query had batches that were not handed over.
    """

    batches: tuple[Batch, ...]
    covered: tuple[Batch, ...]
    from_the_beginning: bool
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """Batches that the query ran and did not hand over. ``ranges``: what they read, offsets
    inclusive.
    """

    query_id: str
    first_batch: int
    last_batch: int
    ranges: tuple[tuple[tuple[str, int], int, int], ...]


def one_chain(read: Sequence[Batch], findings: Findings, *, complete: bool = False) -> Chain:
    """The chain that ``read`` (in the order of the ledger's partitions and offsets) makes; its
    faults are noted.

    :param complete: ``read`` is everything that was asked for (``since``), whatever came before
        it.
    """
    batches = _each_once(read, findings)
    _in_order(read, findings)
    covered_from = 0
    skipped: list[Skipped] = []
    for index, (before, after) in enumerate(itertools.pairwise(batches), start=1):
        if after.sequence == before.sequence + 1:
            if after.supplement:
                _belongs_to(before, after, findings)
                continue  # its positions are those of the batch that it adds to
            _counts_on(before, after, findings)
            skipped += _joins(before, after, findings)
        elif after.ledger_partition == before.ledger_partition:
            _gap(before, after, findings)
        else:
            # The ledger topic got more partitions, so that the key moved; compaction keeps the
            # newest of each.
            covered_from = index
            findings.gone(
                f"batches of sequence {before.sequence + 1} to {after.sequence - 1}: compacted "
                f"away when the "
                "pipeline's place in the ledger moved"
            )
        _never_back(before, after, findings)
    for batch in batches:
        _moves_forward(batch, findings)
    _finished_in_turn(batches, findings)
    _every_write_is_told_of(batches, findings)
    _one_identity_each(batches, findings)
    _one_run_after_the_other(batches, findings)
    _output_only_grows(batches, findings)
    return _chain(batches, covered_from, skipped, complete, findings)


def _chain(
    batches: list[Batch],
    covered_from: int,
    skipped: list[Skipped],
    complete: bool,
    findings: Findings,
) -> Chain:
    if not batches:
        return Chain((), (), from_the_beginning=False)
    oldest = batches[0]
    if complete:
        pass
    elif oldest.sequence > 0:
        findings.gone(
            f"batches before sequence {oldest.sequence}: the ledger does not have them any more"
        )
    elif oldest.batch_id > 0:
        findings.cannot_judge(
            f"what was written before batch {oldest.batch_id}, with which the ledger begins: by "
            f"another sink "
            '(resume="adopt"), or nothing, if the query skipped these batches '
            f"(--since {oldest.batch_id} does not ask for it)"
        )
    whole = covered_from == 0 and oldest.sequence == 0 and oldest.batch_id == 0
    return Chain(tuple(batches), tuple(batches[covered_from:]), whole, tuple(skipped))


def _belongs_to(before: Batch, after: Batch, findings: Findings) -> None:
    """``after`` is a supplement: it adds to the very batch that the record before it tells of."""
    same_batch = (after.query_id, after.batch_id) == (before.query_id, before.batch_id)
    if not same_batch or [span.end for span in after.spans] != [span.end for span in before.spans]:
        detail = (
            f"sequence {after.sequence} supplements batch {after.batch_id} of query "
            f"{after.query_id}, and the record "
            f"before it is of batch {before.batch_id} of query {before.query_id}, or ends "
            f"elsewhere"
        )
        findings.anomaly("ledger-fork", "I6", after.place, detail)


def _counts_on(before: Batch, after: Batch, findings: Findings) -> None:
    """Within one query the batches' own numbers rise: nothing is committed twice as a new
    batch.
    """
    if after.query_id != before.query_id:
        return
    if after.batch_id == before.batch_id:
        detail = (
            f"sequence {after.sequence} tells of batch {after.batch_id} again, which "
            f"sequence {before.sequence} is"
        )
        findings.anomaly("ledger-fork", "I6", after.place, detail)
    elif after.batch_id < before.batch_id:
        detail = (
            f"sequence {after.sequence} is batch {after.batch_id}, the one before it was "
            f"{before.batch_id}"
        )
        findings.anomaly("non-monotonic", "I6", after.place, detail)


def _each_once(read: Sequence[Batch], findings: Findings) -> list[Batch]:
    by_sequence: dict[int, Batch] = {}
    for batch in read:
        other = by_sequence.get(batch.sequence)
        if other is None:
            by_sequence[batch.sequence] = batch
        elif _is_rewritten(other, batch):
            by_sequence[batch.sequence] = replace(other, finished=batch.finished)
        else:
            detail = f"sequence {batch.sequence} is already told at {other.place}"
            findings.anomaly("ledger-fork", "I6", batch.place, detail)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def _is_rewritten(decided: Batch, again: Batch) -> bool:
    """Other targets have published their part of it meanwhile; all that it says of the one that
    decided stays.
    """
    return decided.is_published and not decided.finished and _said(decided) == _said(again)


def _said(batch: Batch) -> tuple[object, ...]:
    return (
        *(
            batch.query_id,
            batch.batch_id,
            batch.run_id,
            batch.committed_at_ms,
            batch.identity,
            batch.supplement,
        ),
        *(batch.spans, batch.writes, batch.parts, batch.tables, batch.files),
    )


def _finished_in_turn(batches: Sequence[Batch], findings: Findings) -> None:
    """Nothing is decided behind a batch of which something is still to be published."""
    for before, after in itertools.pairwise(batches):
        if not before.finished:
            detail = (
                f"sequence {before.sequence} is decided and was never finished, and sequence "
                f"{after.sequence} is there"
            )
            findings.anomaly("ledger-gap", "I6", before.place, detail)


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
    findings.anomaly(
        "ledger-gap", "I6", after.place, f"no record of sequence {missing} before {after.sequence}"
    )


def _joins(before: Batch, after: Batch, findings: Findings) -> list[Skipped]:
    """``after`` begins where ``before`` ended, or skips batches of its query: those are
    returned.
    """
    skips = after.query_id == before.query_id and after.batch_id > before.batch_id + 1
    between: list[tuple[tuple[str, int], int, int]] = []
    if len(before.spans) != len(after.spans):
        detail = (
            f"sequence {after.sequence} has {len(after.spans)} sources, the one before "
            f"{len(before.spans)}"
        )
        findings.anomaly("ledger-gap", "I6", after.place, detail)
        return []
    for number, (done, now) in enumerate(zip(before.spans, after.spans, strict=True)):
        ended, begins = kafka_position(done.end), kafka_position(now.start)
        if ended is None or begins is None:
            if done.end != now.start and not skips:
                detail = (
                    f"source {number} ended at {done.end} and goes on at {now.start} in "
                    f"sequence {after.sequence}"
                )
                findings.anomaly("ledger-gap", "I6", after.place, detail)
            continue
        for partition, offset in ended.items():
            begin = begins.get(partition)
            if begin is None:
                detail = f"sequence {after.sequence} does not go on where {before.sequence} ended"
                findings.anomaly("ledger-gap", "I6", place(*partition, offset), detail)
            elif begin > offset and skips:
                between.append((partition, offset, begin - 1))
            elif begin > offset:
                detail = (
                    f"sequence {before.sequence} ends at {offset}, {after.sequence} begins "
                    f"at {begin}"
                )
                findings.anomaly("ledger-gap", "I6", place(*partition, offset, begin - 1), detail)
        for partition in sorted(begins.keys() - ended.keys()):
            if begins[partition] > 0 and skips:
                between.append((partition, 0, begins[partition] - 1))
            elif begins[partition] > 0:
                findings.cannot_judge(
                    f"{place(*partition)} before offset {begins[partition]}: new in the middle"
                )
    return (
        [Skipped(after.query_id, before.batch_id + 1, after.batch_id - 1, tuple(between))]
        if skips
        else []
    )


def _never_back(before: Batch, after: Batch, findings: Findings) -> None:
    for done, now in zip(before.spans, after.spans, strict=False):
        ended, begins = kafka_position(done.end) or {}, kafka_position(now.start) or {}
        for partition, begin in begins.items():
            if begin < ended.get(partition, 0):
                detail = (
                    f"sequence {before.sequence} ended at {ended[partition]}, "
                    f"{after.sequence} begins at {begin}"
                )
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
            detail = (
                f"sequences {other.sequence} and {batch.sequence} share producer {producer} "
                f"epoch {epoch}"
            )
            findings.anomaly("zombie-write", "I7", batch.place, detail)
        elif epoch < newest_epoch.get(producer, -1):
            detail = (
                f"sequence {batch.sequence} has epoch {epoch} of producer {producer}, which "
                f"was at "
            )
            findings.anomaly(
                "zombie-write", "I7", batch.place, f"{detail}{newest_epoch[producer]} before"
            )
        newest_epoch[producer] = max(epoch, newest_epoch.get(producer, -1))


def _one_run_after_the_other(batches: Sequence[Batch], findings: Findings) -> None:
    """A run of the query that another has taken over from is fenced, so its id never comes again.

    Epochs alone do not show this: a run that fences its heir gets a newer epoch than it.
    """
    last_of: dict[str, int] = {}
    for before, after in itertools.pairwise([batch for batch in batches if batch.run_id]):
        last_of[before.run_id] = before.sequence
        if after.run_id != before.run_id and after.run_id in last_of:
            detail = (
                f"sequence {after.sequence} is by run {after.run_id}, which wrote sequence "
                f"{last_of[after.run_id]} and "
                f"was taken over by run {before.run_id}"
            )
            findings.anomaly("zombie-write", "I7", after.place, detail)


def _every_write_is_told_of(batches: Sequence[Batch], findings: Findings) -> None:
    """Manifests have as many records as the user's function handed over, in all and for each topic
    that it named.

    A supplement tells of all the frames of its batch, and its manifest of those that it added.
    """
    before = None
    written, all_told = 0, False
    for batch in batches:
        if not batch.supplement:
            written, all_told = batch.records, batch.writes is not None
            _tells_of_every_write(batch, findings)
        elif before is not None and before.sequence + 1 == batch.sequence:
            written += batch.records
            if all_told and batch.writes is not None:
                handed_over = sum(write.records for write in batch.writes)
                _as_many(
                    batch, "with it, in all", handed_over, written, findings, more_allowed=False
                )
        before = batch


def _tells_of_every_write(batch: Batch, findings: Findings) -> None:
    if batch.writes is None:
        return
    told: dict[str | None, int] = defaultdict(int)
    for write in batch.writes:
        told[write.topic] += write.records
    for topic in sorted(topic for topic in told if topic is not None):
        _as_many(
            batch,
            f"to topic {topic}",
            told[topic],
            _records_to(batch, topic),
            findings,
            more_allowed=None in told,
        )
    _as_many(batch, "in all", sum(told.values()), batch.records, findings, more_allowed=False)


def _as_many(
    batch: Batch,
    which: str,
    handed_over: int,
    written: int,
    findings: Findings,
    *,
    more_allowed: bool,
) -> None:
    detail = (
        f"sequence {batch.sequence}: {handed_over} records were handed over {which}, its "
        f"manifest has {written}"
    )
    if written < handed_over:
        findings.anomaly("lost-write", "I1", batch.place, detail)
    elif written > handed_over and not more_allowed:
        findings.anomaly("unaccounted-write", "I2", batch.place, detail)


def _records_to(batch: Batch, topic: str) -> int:
    rows = sum(part.rows for part in batch.tables if part.table == topic)
    return rows + sum(part.count for part in batch.parts if part.topic == topic)


def _output_only_grows(batches: Sequence[Batch], findings: Findings) -> None:
    reached: dict[tuple[str, int], Part] = {}
    for part in (part for batch in batches for part in batch.parts):
        before = reached.get((part.topic, part.partition))
        if before is not None and part.first <= before.last:
            detail = (
                f"sequence {part.sequence} is told to lie before the end of sequence "
                f"{before.sequence}"
            )
            findings.anomaly("non-monotonic", "I3", part.place, detail)
        if before is None or part.last > before.last:
            reached[part.topic, part.partition] = part


def disjoint_parts(batches: Sequence[Batch]) -> dict[tuple[str, int], list[Part]]:
    """What is told of each output partition, by offset. Of parts that overlap (noted already) the
    first one stays.
    """
    parts: dict[tuple[str, int], list[Part]] = defaultdict(list)
    for part in sorted(
        (part for batch in batches for part in batch.parts),
        key=lambda part: (part.first, part.last),
    ):
        told = parts[part.topic, part.partition]
        if not told or told[-1].last < part.first:
            told.append(part)
    return dict(parts)


def ledger_facts(ledger: str, chain: Chain) -> dict[str, Any]:
    """Where it begins and ends, and what it tells in all. ``ledger``: the name of its topic, or
    table.
    """
    batches = chain.batches
    if not batches:
        return {"topic": ledger, "batches": 0}
    return {
        "topic": ledger,
        "batches": len(batches),
        "records": sum(batch.records for batch in batches),
        "first_sequence": batches[0].sequence,
        "last_sequence": batches[-1].sequence,
        "covered_from_sequence": chain.covered[0].sequence,
        "begins_at": [span.start for span in batches[0].spans],
        "ends_at": [span.end for span in batches[-1].spans],
        "queries": len({batch.query_id for batch in batches}),
        "supplements": sum(batch.supplement for batch in batches),
        "skipped": [
            {
                "query_id": skipped.query_id,
                "batches": [skipped.first_batch, skipped.last_batch],
                "read": [place(*where, first, last) for where, first, last in skipped.ranges],
            }
            for skipped in chain.skipped
        ],
    }
