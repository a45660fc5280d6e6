"""Batches as they are visible: complete and once, by the output's logs (I1, I2, I4, I5).

Reads every output partition twice, as readers of committed and of uncommitted records are given
it, and compares it with the batches by ``partition_log``. Only where a record belongs to no batch,
the topic is read again: with the content of a record of a batch it is a duplicate, any other is
unaccounted for.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceward_verify.cluster import COMMITTED, UNCOMMITTED, Cluster, Where
from onceward_verify.findings import Findings, place
from onceward_verify.ledger import OutputPart
from onceward_verify.partition_log import Interval, Offsets, PartitionLog, headers_section

# Unaccounted records whose content is compared; what comes beyond is called unaccounted.
_MAX_SUSPECTS = 200_000


@dataclass(frozen=True)
class OutputRange:
    """Range of one output partition that is read."""

    start: int
    """What retention has left."""
    end: int
    """Exclusive; everything below is decided."""
    accounted_from: int | None
    """From here to ``accounted_to`` every visible record must belong to a batch; None: nowhere."""
    accounted_to: int


@dataclass
class Reading:
    """One output partition as both kinds of reader are given it."""

    log: PartitionLog
    scope: OutputRange
    compacted: bool | None
    """None: the broker does not say."""
    shared: bool
    """Others write here, too."""
    written: Offsets = field(default_factory=Offsets)
    """Offsets of all records, visible or not."""
    crowded: list[OutputPart] = field(default_factory=list)
    """Parts with more records between their ends than recorded."""

    @property
    def aborted(self) -> int:
        """Number of records that no reader of committed records is given."""
        return self.written.count - self.log.visible.count


def read_outputs(
    cluster: Cluster,
    parts: Mapping[Where, Sequence[OutputPart]],
    ranges: Mapping[Where, OutputRange],
    compacted: Mapping[str, bool | None],
    *,
    shared: bool,
) -> dict[Where, Reading]:
    """Read every partition twice."""
    readings = {
        where: Reading(
            PartitionLog(parts.get(where, ()), scope.accounted_from, scope.accounted_to),
            scope,
            compacted[where[0]],
            shared,
        )
        for where, scope in ranges.items()
    }
    spans = {where: (scope.start, scope.end) for where, scope in ranges.items()}
    for where, messages, offsets in cluster.read(spans, COMMITTED):
        readings[where].log.feed(messages, offsets)
    for where, _, offsets in cluster.read(spans, UNCOMMITTED):
        readings[where].written.add(offsets)
    return readings


def check_outputs(readings: Mapping[Where, Reading], findings: Findings) -> None:
    """Report what is missing, torn or different."""
    torn: dict[int, list[str]] = defaultdict(list)
    visible: set[int] = set()
    for where, reading in readings.items():
        _check_visibility(where, reading, findings)
        for part, tally in zip(reading.log.parts, reading.log.tallies, strict=True):
            if part.first < reading.scope.start:
                what = f"{part.place} (sequence {part.sequence}): deleted by retention"
                findings.note_expired(what)
                continue
            if tally.count < part.count and reading.compacted is not False:
                _leave_open(part, reading, findings)
                continue
            if tally.count < part.count:
                _report_loss(part, reading, tally.count, findings)
                torn[part.sequence].append(part.place)
            elif tally.count > part.count:
                reading.crowded.append(part)
            else:
                _check_complete(part, reading, tally.hexdigest(), findings)
            if tally.count:
                visible.add(part.sequence)
    for sequence in sorted(torn.keys() & visible):
        detail = f"of batch sequence {sequence} only a part is visible"
        findings.anomaly("fractured-batch", "I4", torn[sequence][0], detail)


def _leave_open(part: OutputPart, reading: Reading, findings: Findings) -> None:
    why = "the topic is compacted"
    if not reading.compacted:
        why = "DESCRIBE_CONFIGS is not granted, it may be compacted"
    findings.cannot_judge(f"{part.place} (sequence {part.sequence}): {why}")


def _report_loss(
    part: OutputPart, reading: Reading, visible_count: int, findings: Findings
) -> None:
    holes = reading.log.visible.missing(part.first, part.last)
    invisible = sum(reading.written.count_within(*hole) for hole in holes)
    detail = (
        f"sequence {part.sequence} wrote {part.count} records, {visible_count} are visible; "
        f"missing {_describe(holes)}"
    )
    if invisible:
        detail += f", of which {invisible} are in the log and not visible (aborted)"
    findings.anomaly("lost-write", "I1", part.place, detail)


def _check_complete(part: OutputPart, reading: Reading, checksum: str, findings: Findings) -> None:
    """Check content and transaction of a part that has as many records as recorded."""
    if checksum != part.checksum and reading.shared and reading.compacted is not False:
        # As many as before, and some are of others
        _leave_open(part, reading, findings)
        return
    if checksum != part.checksum:
        detail = (
            f"sequence {part.sequence} is told to have content {part.checksum}, what is "
            f"visible has {checksum}"
        )
        findings.anomaly("state-mismatch", "I4", part.place, detail)
    elif part.first not in reading.log.visible or part.last not in reading.log.visible:
        detail = f"sequence {part.sequence}: no record at its first or last offset"
        findings.anomaly("state-mismatch", "I4", part.place, detail)
    if not reading.shared and not reading.compacted:
        _check_single_transaction(part, reading, findings)


def _check_single_transaction(part: OutputPart, reading: Reading, findings: Findings) -> None:
    """Check that the records of ``part`` share their transaction with no other.

    A marker takes an offset, so that the records of one transaction are one run without gap
    (KIP-98). The rest of the run is of another batch, or hidden; or visible and of no batch, which
    is reported elsewhere.
    """
    run = reading.written.around(part.last)
    if run is None or run == (part.first, part.last):
        return
    if run[0] > part.first:
        detail = f"sequence {part.sequence} is torn by a gap"
        findings.anomaly("fractured-batch", "I4", part.place, detail)
    log = reading.log
    rest = [(run[0], part.first - 1), (part.last + 1, run[1])]
    rest = [edge for edge in rest if edge[0] <= edge[1]]
    if shared := [e for e in rest if log.visible.missing(*e) or any(map(log.part_at, e))]:
        detail = f"sequence {part.sequence} shares its transaction with {_describe(shared)}"
        findings.anomaly("fractured-batch", "I4", part.place, detail)


def _check_visibility(where: Where, reading: Reading, findings: Findings) -> None:
    """Check that committed records are some of all records.

    A broker that shows more contradicts itself.
    """
    for first, last in reading.log.visible.intervals:
        if reading.written.missing(first, last) and reading.compacted is False:
            detail = (
                "given to a reader of committed records, and not to one of uncommitted records"
            )
            findings.anomaly("aborted-read", "I5", place(*where, first, last), detail)


def _describe(intervals: Sequence[Interval], limit: int = 5) -> str:
    first_few = intervals[:limit]
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in first_few]
    return "offsets " + ", ".join(texts) + (", …" if len(intervals) > limit else "")


def report_unaccounted(
    cluster: Cluster, readings: Mapping[Where, Reading], findings: Findings
) -> None:
    """Report every unaccounted stretch, and every batch with too many records, by its content."""
    for topic in sorted({where[0] for where in readings}):
        of_topic = {where: reading for where, reading in readings.items() if where[0] == topic}
        if any(reading.log.unaccounted.count or reading.crowded for reading in of_topic.values()):
            _report_topic(cluster, of_topic, findings)


def leave_unaccounted_open(
    readings: Mapping[Where, Reading], findings: Findings, *, producers_known: bool
) -> None:
    """Report what :func:`report_unaccounted` would, where others may write to the same topics.

    :param producers_known: ``fencing`` reads the producer of each record batch, and finds those of
        the pipeline.
    """
    for where, reading in readings.items():
        if reading.log.unaccounted.count and not producers_known:
            findings.cannot_judge(
                f"{place(*where)}: {reading.log.unaccounted.count} visible records belong to no "
                f"batch of this "
                "pipeline; only --log-dirs can tell whose they are"
            )
        for part in reading.crowded:
            findings.cannot_judge(
                f"{part.place} (sequence {part.sequence}): records of others stand between"
            )


def _report_topic(cluster: Cluster, readings: Mapping[Where, Reading], findings: Findings) -> None:
    suspects, repeats = _contents(cluster, readings)
    copies = _find_copies(cluster, readings, suspects)
    for where, reading in readings.items():
        for first, last in reading.log.unaccounted.intervals:
            at, count = place(*where, first, last), last - first + 1
            offsets = copies[where]
            number = bisect.bisect_right(offsets, last) - bisect.bisect_left(offsets, first)
            if number:
                detail = (
                    f"{number} of {count} records, of no batch, have the content of one that "
                    f"a batch accounts for"
                )
                findings.anomaly("duplicate-write", "I2", at, detail)
            else:
                findings.anomaly("unaccounted-write", "I2", at, f"{count} records of no batch")
        for part in reading.crowded:
            detail = (
                f"sequence {part.sequence} wrote {part.count} records, between its ends more "
                f"are visible"
            )
            if repeats[part]:
                detail += f": {repeats[part]} with a content seen before"
                findings.anomaly("duplicate-write", "I2", part.place, detail)
            else:
                detail += ", each with a content of its own"
                findings.anomaly("unaccounted-write", "I2", part.place, detail)


def _contents(
    cluster: Cluster, readings: Mapping[Where, Reading]
) -> tuple[dict[bytes, list[tuple[Where, int]]], dict[OutputPart, int]]:
    """Return contents of unaccounted records with their places.

    And the number of repeated records of each crowded part.
    """
    suspects: dict[bytes, list[tuple[Where, int]]] = defaultdict(list)
    crowded = [part for reading in readings.values() for part in reading.crowded]
    crowds: dict[OutputPart, Counter[bytes]] = {part: Counter() for part in crowded}
    number = 0
    for where, messages, _ in cluster.read(_spans(readings)):
        log = readings[where].log
        for message in messages:
            part = log.part_at(message.offset())
            if part in crowds:
                crowds[part][_content(message)] += 1
            elif part is None and number < _MAX_SUSPECTS and message.offset() in log.unaccounted:
                suspects[_content(message)].append((where, message.offset()))
                number += 1
    return suspects, {part: contents.total() - len(contents) for part, contents in crowds.items()}


def _find_copies(
    cluster: Cluster,
    readings: Mapping[Where, Reading],
    suspects: Mapping[bytes, list[tuple[Where, int]]],
) -> dict[Where, list[int]]:
    """Return ascending offsets of the suspects whose content some batch accounts for in the
    topic.
    """
    contents: set[bytes] = set()
    if suspects:
        for where, messages, _ in cluster.read(_spans(readings)):
            log = readings[where].log
            ours = (m for m in messages if log.part_at(m.offset()) is not None)
            contents.update(content for content in map(_content, ours) if content in suspects)
    copies: dict[Where, list[int]] = {where: [] for where in readings}
    for where, offset in sorted(at for content in contents for at in suspects[content]):
        copies[where].append(offset)
    return copies


def _spans(readings: Mapping[Where, Reading]) -> dict[Where, tuple[int, int]]:
    ranges = {where: reading.scope for where, reading in readings.items()}
    return {where: (one.start, one.end) for where, one in ranges.items()}


def _content(message: Any) -> bytes:
    """Return a digest of key, value and headers."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (message.key(), message.value(), headers_section(message.headers() or ())):
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return digest.digest()
