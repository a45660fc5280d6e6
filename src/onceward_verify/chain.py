"""Chain of the ledger's records: no gap, no fork, positions that join and never go back (I6).

Also: one producer identity for each batch, epochs that only rise, runs that never come back (I7),
and output that only grows. Pure functions of the batches as recorded.

Each batch begins where the one before ended, with two exceptions that the records name themselves.
A **supplement** adds to the batch of the record before it, so it has that one's query, number and
ends. A query whose function did not hand over every batch **skips** numbers: what the skipped
batches read lies between.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceward_verify.findings import Findings, place
from onceward_verify.ledger import LedgerBatch, OutputPart, Span, Target, kafka_position

Position = dict[tuple[str, int], int]
Range = tuple[tuple[str, int], int, int]
"""Topic and partition, first and last offset."""


@dataclass(frozen=True)
class BatchChain:
    """Batches in the order of their sequence numbers, each number once.

    ``covered``: those after the last stretch that compaction has removed. ``from_the_beginning``:
    no batch came before them, so that every other visible record is an anomaly. ``skipped``: the
    batches in between that the query did not hand over.
    """

    batches: tuple[LedgerBatch, ...]
    covered: tuple[LedgerBatch, ...]
    from_the_beginning: bool
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """Batches that the query ran and did not hand over. ``ranges``: offsets that they read."""

    query_id: str
    first_batch: int
    last_batch: int
    ranges: tuple[Range, ...]


def build_chain(
    read: Sequence[LedgerBatch],
    findings: Findings,
    *,
    complete: bool = False,
    has_one_order: bool = False,
) -> BatchChain:
    """Build the chain of the batches ``read``, and report what is wrong with it.

    :param read: in the order of the ledger's partitions and offsets.
    :param complete: ``read`` is everything that was asked for (``--since``), whatever came before
        it.
    :param has_one_order: as a folder or a table: a record that is written again does not name who
        wrote it, as it does in a topic.
    """
    batches = _drop_repeated(read, findings, has_one_order)
    _check_order(read, findings)
    covered_from = 0
    skipped: list[Skipped] = []
    for index, (before, after) in enumerate(itertools.pairwise(batches), start=1):
        if after.sequence == before.sequence + 1:
            if after.supplement:
                _check_supplement(before, after, findings)
                # Its positions are those of the batch that it adds to
                continue
            _check_batch_number(before, after, findings)
            skipped += _check_joint(before, after, findings)
        elif after.ledger_partition == before.ledger_partition:
            _report_gap(before, after, findings)
        else:
            # The ledger topic got more partitions, so that the key moved; compaction keeps the
            # newest of each.
            covered_from = index
            findings.note_expired(
                f"batches of sequence {before.sequence + 1} to {after.sequence - 1}: compacted "
                f"away when the "
                "pipeline's place in the ledger moved"
            )
        _check_no_step_back(before, after, findings)
    for batch in batches:
        _check_forward(batch, findings)
    _check_finished(batches, findings)
    _check_writes(batches, findings)
    _check_identities(batches, findings)
    _check_runs(batches, findings)
    _check_growth(batches, findings)
    return _assemble(batches, covered_from, skipped, complete, findings)


def _assemble(
    batches: list[LedgerBatch],
    covered_from: int,
    skipped: list[Skipped],
    complete: bool,
    findings: Findings,
) -> BatchChain:
    if not batches:
        return BatchChain((), (), from_the_beginning=False)
    oldest = batches[0]
    if complete:
        pass
    elif oldest.sequence > 0:
        findings.note_expired(
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
    return BatchChain(tuple(batches), tuple(batches[covered_from:]), whole, tuple(skipped))


def _check_supplement(before: LedgerBatch, after: LedgerBatch, findings: Findings) -> None:
    """Check that the supplement ``after`` adds to the very batch of the record before it."""
    same_batch = (after.query_id, after.batch_id) == (before.query_id, before.batch_id)
    if not same_batch or [span.end for span in after.spans] != [span.end for span in before.spans]:
        detail = (
            f"sequence {after.sequence} supplements batch {after.batch_id} of query "
            f"{after.query_id}, and the record "
            f"before it is of batch {before.batch_id} of query {before.query_id}, or ends "
            f"elsewhere"
        )
        findings.anomaly("ledger-fork", "I6", after.place, detail)


def _check_batch_number(before: LedgerBatch, after: LedgerBatch, findings: Findings) -> None:
    """Check that the batch numbers of one query rise: nothing is committed twice as a new
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


def _drop_repeated(
    read: Sequence[LedgerBatch], findings: Findings, has_one_order: bool
) -> list[LedgerBatch]:
    by_sequence: dict[int, LedgerBatch] = {}
    for batch in read:
        other = by_sequence.get(batch.sequence)
        if other is None:
            by_sequence[batch.sequence] = batch
        elif _is_rewritten(other, batch, has_one_order):
            by_sequence[batch.sequence] = replace(
                other, finished=batch.finished, tables=batch.tables
            )
        else:
            detail = f"sequence {batch.sequence} is already told at {other.place}"
            findings.anomaly("ledger-fork", "I6", batch.place, detail)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def _is_rewritten(first: LedgerBatch, second: LedgerBatch, has_one_order: bool) -> bool:
    """Return whether ``second`` is ``first``, further on: what was decided is published since.

    It was written later, and in a topic it names the decision: one that is there twice is no
    progress.
    """
    if first.finished or _content(first) != _content(second):
        return False
    if has_one_order:
        return True
    if second.writer is None:
        return False
    (owner, epoch), (later_owner, later_epoch) = first.identity, second.writer
    return later_owner != owner or later_epoch > epoch


def _content(batch: LedgerBatch) -> tuple[object, ...]:
    when = (batch.query_id, batch.batch_id, batch.run_id, batch.committed_at_ms, batch.identity)
    tables = tuple(part._replace(published=True) for part in batch.tables)
    what = (batch.spans, batch.writes, batch.parts, tables, batch.files, batch.supplement)
    return when + what


def _check_finished(batches: Sequence[LedgerBatch], findings: Findings) -> None:
    """Check that nothing is decided behind a batch that is not published completely."""
    for before, after in itertools.pairwise(batches):
        if not before.finished:
            detail = (
                f"sequence {before.sequence} is decided and was never finished, and sequence "
                f"{after.sequence} is there"
            )
            findings.anomaly("ledger-gap", "I6", before.place, detail)


def _check_order(read: Sequence[LedgerBatch], findings: Findings) -> None:
    highest: dict[int, int] = {}
    for batch in read:
        reached = highest.get(batch.ledger_partition, -1)
        if batch.sequence < reached:
            detail = f"sequence {batch.sequence} comes after sequence {reached}"
            findings.anomaly("non-monotonic", "I6", batch.place, detail)
        highest[batch.ledger_partition] = max(reached, batch.sequence)


def _report_gap(before: LedgerBatch, after: LedgerBatch, findings: Findings) -> None:
    missing = f"{before.sequence + 1}"
    if after.sequence > before.sequence + 2:
        missing += f" to {after.sequence - 1}"
    findings.anomaly(
        "ledger-gap", "I6", after.place, f"no record of sequence {missing} before {after.sequence}"
    )


def _check_joint(before: LedgerBatch, after: LedgerBatch, findings: Findings) -> list[Skipped]:
    """Check that ``after`` begins where ``before`` ended; return the batches that it skips."""
    skips = after.query_id == before.query_id and after.batch_id > before.batch_id + 1
    between: list[Range] = []
    if len(before.spans) != len(after.spans):
        detail = (
            f"sequence {after.sequence} has {len(after.spans)} sources, the one before "
            f"{len(before.spans)}"
        )
        findings.anomaly("ledger-gap", "I6", after.place, detail)
        return []
    for number, (old, new) in enumerate(zip(before.spans, after.spans, strict=True)):
        ends, begins = kafka_position(old.end), kafka_position(new.start)
        if ends is not None and begins is not None:
            between += _check_positions(before, after, (ends, begins), skips, findings)
        elif old.end != new.start and not skips:
            detail = (
                f"source {number} ended at {old.end} and goes on at {new.start} in sequence "
                f"{after.sequence}"
            )
            findings.anomaly("ledger-gap", "I6", after.place, detail)
    if not skips:
        return []
    return [Skipped(after.query_id, before.batch_id + 1, after.batch_id - 1, tuple(between))]


def _check_positions(
    before: LedgerBatch,
    after: LedgerBatch,
    positions: tuple[Position, Position],
    skips: bool,
    findings: Findings,
) -> Iterator[Range]:
    """Yield what lies between the positions, if the query skipped batches; if not, it is a gap."""
    ends, begins = positions
    for partition, offset in ends.items():
        begin = begins.get(partition)
        if begin is None:
            detail = f"sequence {after.sequence} does not go on where {before.sequence} ended"
            findings.anomaly("ledger-gap", "I6", place(*partition, offset), detail)
        elif begin > offset and skips:
            yield partition, offset, begin - 1
        elif begin > offset:
            detail = (
                f"sequence {before.sequence} ends at {offset}, {after.sequence} begins at {begin}"
            )
            findings.anomaly("ledger-gap", "I6", place(*partition, offset, begin - 1), detail)
    for partition in sorted(begins.keys() - ends.keys()):
        if begins[partition] > 0 and skips:
            yield partition, 0, begins[partition] - 1
        elif begins[partition] > 0:
            what = f"{place(*partition)} before offset {begins[partition]}"
            findings.cannot_judge(f"{what}: new in the middle")


def _check_no_step_back(before: LedgerBatch, after: LedgerBatch, findings: Findings) -> None:
    for old, new in zip(before.spans, after.spans, strict=False):
        ends, begins = kafka_position(old.end) or {}, kafka_position(new.start) or {}
        for partition, begin in begins.items():
            if begin < ends.get(partition, 0):
                detail = (
                    f"sequence {before.sequence} ended at {ends[partition]}, "
                    f"{after.sequence} begins at {begin}"
                )
                findings.anomaly("non-monotonic", "I6", place(*partition, begin), detail)


def _check_forward(batch: LedgerBatch, findings: Findings) -> None:
    for span in batch.spans:
        for partition, start, end in _kafka_ranges(span):
            if end < start:
                detail = f"sequence {batch.sequence} goes from {start} back to {end}"
                findings.anomaly("non-monotonic", "I6", place(*partition, end), detail)


def _kafka_ranges(span: Span) -> list[Range]:
    starts, ends = kafka_position(span.start) or {}, kafka_position(span.end) or {}
    return [(partition, start, ends.get(partition, start)) for partition, start in starts.items()]


def _check_identities(batches: Sequence[LedgerBatch], findings: Findings) -> None:
    owner: dict[tuple[int, int], LedgerBatch] = {}
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
                f"sequence {batch.sequence} has epoch {epoch} of producer {producer}, "
                f"which was at {newest_epoch[producer]} before"
            )
            findings.anomaly("zombie-write", "I7", batch.place, detail)
        newest_epoch[producer] = max(epoch, newest_epoch.get(producer, -1))


def _check_runs(batches: Sequence[LedgerBatch], findings: Findings) -> None:
    """Check that no run of the query writes again after another took over from it.

    Epochs alone do not show this: a run that fences its successor gets a newer epoch than it.
    """
    last_sequences: dict[str, int] = {}
    for before, after in itertools.pairwise([batch for batch in batches if batch.run_id]):
        last_sequences[before.run_id] = before.sequence
        if after.run_id != before.run_id and after.run_id in last_sequences:
            detail = (
                f"sequence {after.sequence} is by run {after.run_id}, which wrote sequence "
                f"{last_sequences[after.run_id]} and "
                f"was taken over by run {before.run_id}"
            )
            findings.anomaly("zombie-write", "I7", after.place, detail)


def _check_writes(batches: Sequence[LedgerBatch], findings: Findings) -> None:
    """Check that manifests count all records that the user's function handed over.

    In all, and for each topic that it named. A supplement records all frames of its batch, and its
    manifest those that it added.
    """
    before = None
    written, is_complete = 0, False
    for batch in batches:
        if not batch.supplement:
            written, is_complete = batch.records, batch.writes is not None
            _check_writes_by_topic(batch, findings)
        elif before is not None and before.sequence + 1 == batch.sequence:
            written += batch.records
            if is_complete and batch.writes is not None:
                handed_over = sum(write.records for write in batch.writes)
                _compare_counts(
                    batch, "with it, in all", handed_over, written, findings, more_allowed=False
                )
        before = batch


def _check_writes_by_topic(batch: LedgerBatch, findings: Findings) -> None:
    if batch.writes is None:
        return
    counts: Counter[str | None] = Counter()
    for write in batch.writes:
        counts[write.topic] += write.records
    # Of which the settings or the rows name the topic
    more_allowed = None in counts
    for topic in sorted(topic for topic in counts if topic is not None):
        written = _count_records(batch, topic)
        _compare_counts(
            batch, f"to topic {topic}", counts[topic], written, findings, more_allowed=more_allowed
        )
    _compare_counts(batch, "in all", counts.total(), batch.records, findings, more_allowed=False)


def _compare_counts(
    batch: LedgerBatch,
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


def _count_records(batch: LedgerBatch, topic: str) -> int:
    rows = sum(part.rows for part in batch.tables if part.table == topic)
    return rows + sum(part.count for part in batch.parts if part.topic == topic)


def _check_growth(batches: Sequence[LedgerBatch], findings: Findings) -> None:
    reached: dict[tuple[str, int], OutputPart] = {}
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


def disjoint_parts(batches: Sequence[LedgerBatch]) -> dict[tuple[str, int], list[OutputPart]]:
    """Return the parts of each output partition, by offset.

    Of parts that overlap (reported already) the first stays.
    """
    parts: dict[tuple[str, int], list[OutputPart]] = defaultdict(list)
    for part in sorted(
        (part for batch in batches for part in batch.parts),
        key=lambda part: (part.first, part.last),
    ):
        earlier = parts[part.topic, part.partition]
        if not earlier or earlier[-1].last < part.first:
            earlier.append(part)
    return dict(parts)


_LOOKED_AT: dict[Target, str] = {
    "topics": "topics are looked at where the ledger is one of them (--bootstrap-servers)",
    "tables": "tables are looked at where the ledger is in their database (--database-url)",
    "files": "files are looked at where the ledger is a folder (--files)",
}


def leave_others_open(chain: BatchChain, looked_at: Target, findings: Findings) -> None:
    """Report what batches have put into targets that this question does not look at."""
    for target, where in _LOOKED_AT.items():
        number = sum(1 for batch in chain.batches if target in batch.records_in)
        if number and target != looked_at:
            findings.cannot_judge(f"what {number:,} batches have put into {target}: {where}")


def ledger_facts(ledger: str, chain: BatchChain, looked_at: Target) -> dict[str, Any]:
    """Return where the ledger begins and ends, and totals.

    :param ledger: the name of its topic, table or folder.
    :param looked_at: whose records count.
    """
    batches = chain.batches
    if not batches:
        return {"topic": ledger, "batches": 0}
    return {
        "topic": ledger,
        "batches": len(batches),
        "records": sum(batch.records_in.get(looked_at, 0) for batch in batches),
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
