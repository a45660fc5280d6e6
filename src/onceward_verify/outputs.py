"""Is each batch visible as it was told, whole and once? Recomputed from the output's logs (I1, I2,
I4, I5).

Reads every output partition twice, as readers of committed and of uncommitted records are given
it. Called by ``checker``; judges per partition with ``partition_log``, and leaves who wrote what
nobody told of to ``culprits``.


Whose is a visible record that no batch told of? Compares its content with what batches account for
(I2).

Only called when there is such a record, because it reads the topic again: a record with the
content of an accounted one is a duplicate; any other is simply one that nobody tells of.
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
from onceward_verify.ledger import Part
from onceward_verify.partition_log import Interval, Offsets, PartitionLog, headers_section


@dataclass(frozen=True)
class OutputRange:
    """What of one output partition is looked at."""

    start: int
    """What retention has left."""
    end: int
    """Exclusive; everything below is decided."""
    accounted_from: int | None
    """From here to ``accounted_to`` every visible record must belong to a told batch; None:
    nowhere.
    """
    accounted_to: int


@dataclass
class Reading:
    """One output partition as both kinds of reader are given it."""

    log: PartitionLog
    looked_at: OutputRange
    compacted: bool | None
    """None: the broker does not say."""
    shared: bool
    """Others write here, too."""
    written: Offsets = field(default_factory=Offsets)
    """Offsets of all records, visible or not."""
    crowded: list[Part] = field(default_factory=list)
    """Parts with more records between their ends than they are told to have."""

    @property
    def aborted(self) -> int:
        return self.written.count - self.log.visible.count


def read_outputs(
    cluster: Cluster,
    parts: Mapping[Where, Sequence[Part]],
    ranges: Mapping[Where, OutputRange],
    compacted: Mapping[str, bool | None],
    *,
    shared: bool,
) -> dict[Where, Reading]:
    """Streams every partition past its judge, twice."""
    readings = {
        where: Reading(
            PartitionLog(parts.get(where, ()), looked_at.accounted_from, looked_at.accounted_to),
            looked_at,
            compacted[where[0]],
            shared,
        )
        for where, looked_at in ranges.items()
    }
    spans = {where: (looked_at.start, looked_at.end) for where, looked_at in ranges.items()}
    for where, messages, offsets in cluster.read(spans, COMMITTED):
        readings[where].log.feed(messages, offsets)
    for where, _, offsets in cluster.read(spans, UNCOMMITTED):
        readings[where].written.add(offsets)
    return readings


def judge(readings: Mapping[Where, Reading], findings: Findings) -> None:
    """Notes what is missing, torn or different."""
    torn: dict[int, list[str]] = defaultdict(list)
    whole: set[int] = set()
    for where, reading in readings.items():
        _nothing_unwritten_is_read(where, reading, findings)
        for part, tally in zip(reading.log.parts, reading.log.tallies, strict=True):
            if part.first < reading.looked_at.start:
                findings.gone(f"{part.place} (sequence {part.sequence}): deleted by retention")
            elif tally.count < part.count:
                if reading.compacted is not False:
                    _cannot_ask_for_all(part, reading, findings)
                    continue
                _lost(part, reading, tally.count, findings)
                torn[part.sequence].append(part.place)
                if tally.count:
                    whole.add(part.sequence)
            elif tally.count > part.count:
                reading.crowded.append(part)
                whole.add(part.sequence)
            else:
                whole.add(part.sequence)
                if (
                    reading.shared
                    and reading.compacted is not False
                    and tally.hexdigest() != part.checksum
                ):
                    _cannot_ask_for_all(
                        part, reading, findings
                    )  # as many as before, and some are of others
                    continue
                _same_content(part, reading, tally.hexdigest(), findings)
                if not reading.shared and not reading.compacted:
                    _one_transaction(part, reading, findings)
    for sequence in sorted(torn.keys() & whole):
        detail = f"of batch sequence {sequence} only a part is visible"
        findings.anomaly("fractured-batch", "I4", torn[sequence][0], detail)


def _cannot_ask_for_all(part: Part, reading: Reading, findings: Findings) -> None:
    why = (
        "the topic is compacted"
        if reading.compacted
        else "DESCRIBE_CONFIGS is not granted, it may be compacted"
    )
    findings.cannot_judge(f"{part.place} (sequence {part.sequence}): {why}")


def _lost(part: Part, reading: Reading, seen: int, findings: Findings) -> None:
    holes = reading.log.visible.missing(part.first, part.last)
    hidden = sum(reading.written.count_within(*hole) for hole in holes)
    detail = (
        f"sequence {part.sequence} wrote {part.count} records, {seen} are visible; missing "
        f"{_ranges(holes)}"
    )
    if hidden:
        detail += f", of which {hidden} are in the log and not visible (aborted)"
    findings.anomaly("lost-write", "I1", part.place, detail)


def _same_content(part: Part, reading: Reading, checksum: str, findings: Findings) -> None:
    if checksum != part.checksum:
        detail = (
            f"sequence {part.sequence} is told to have content {part.checksum}, what is "
            f"visible has {checksum}"
        )
        findings.anomaly("state-mismatch", "I4", part.place, detail)
    elif part.first not in reading.log.visible or part.last not in reading.log.visible:
        detail = f"sequence {part.sequence}: no record at its first or last offset"
        findings.anomaly("state-mismatch", "I4", part.place, detail)


def _one_transaction(part: Part, reading: Reading, findings: Findings) -> None:
    """A marker takes an offset, so that the records of one transaction are one run without gap
    (KIP-98).

    What else is in the run is of another batch, or hidden; or visible and of no batch, which is
    noted elsewhere.
    """
    run = reading.written.around(part.last)
    if run is None or run == (part.first, part.last):
        return
    if run[0] > part.first:
        findings.anomaly(
            "fractured-batch", "I4", part.place, f"sequence {part.sequence} is torn by a gap"
        )
    neighbours = [
        edge for edge in ((run[0], part.first - 1), (part.last + 1, run[1])) if edge[0] <= edge[1]
    ]
    log = reading.log
    torn = [
        edge for edge in neighbours if log.visible.missing(*edge) or any(map(log.owner_of, edge))
    ]
    if torn:
        detail = f"sequence {part.sequence} shares its transaction with {_ranges(torn)}"
        findings.anomaly("fractured-batch", "I4", part.place, detail)


def _nothing_unwritten_is_read(where: Where, reading: Reading, findings: Findings) -> None:
    """Committed records are some of all records: a broker that shows more contradicts itself."""
    for first, last in reading.log.visible.intervals:
        if reading.written.missing(first, last) and reading.compacted is False:
            detail = (
                "given to a reader of committed records, and not to one of uncommitted records"
            )
            findings.anomaly("aborted-read", "I5", place(*where, first, last), detail)


def _ranges(intervals: Sequence[Interval], limit: int = 5) -> str:
    texts = [
        str(first) if first == last else f"{first}..{last}" for first, last in intervals[:limit]
    ]
    return "offsets " + ", ".join(texts) + (", …" if len(intervals) > limit else "")


# contents of unaccounted records; what comes beyond is called unaccounted without a look
_REMEMBERED = 200_000


def name_culprits(cluster: Cluster, readings: Mapping[Where, Reading], findings: Findings) -> None:
    """Notes every unaccounted stretch, and every batch with a record too many, under the name it
    deserves.
    """
    for topic in sorted({where[0] for where in readings}):
        of_topic = {where: reading for where, reading in readings.items() if where[0] == topic}
        if any(reading.log.unaccounted.count or reading.crowded for reading in of_topic.values()):
            _name(cluster, of_topic, findings)


def leave_undecided(
    readings: Mapping[Where, Reading], findings: Findings, *, producers_known: bool
) -> None:
    """What :func:`name_culprits` would judge, where others may write to the same topics: little
    can be said.

    ``producers_known``: ``fencing`` looks at the producer of each record batch, and finds those
    that are ours.
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


def _name(cluster: Cluster, readings: Mapping[Where, Reading], findings: Findings) -> None:
    suspects, repeated = _contents(cluster, readings)
    again = _seen_before(cluster, readings, suspects)
    for where, reading in readings.items():
        for first, last in reading.log.unaccounted.intervals:
            at, count = place(*where, first, last), last - first + 1
            copies = bisect.bisect_right(again[where], last) - bisect.bisect_left(
                again[where], first
            )
            if copies:
                detail = (
                    f"{copies} of {count} records, of no batch, have the content of one that "
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
            if repeated[part]:
                detail += f": {repeated[part]} with a content seen before"
                findings.anomaly("duplicate-write", "I2", part.place, detail)
            else:
                findings.anomaly(
                    "unaccounted-write",
                    "I2",
                    part.place,
                    f"{detail}, each with a content of its own",
                )


def _contents(
    cluster: Cluster, readings: Mapping[Where, Reading]
) -> tuple[dict[bytes, list[tuple[Where, int]]], dict[Part, int]]:
    """Contents of unaccounted records with their places, and how many records of each crowded part
    are repeated.
    """
    suspects: dict[bytes, list[tuple[Where, int]]] = defaultdict(list)
    crowds: dict[Part, Counter[bytes]] = {
        part: Counter() for r in readings.values() for part in r.crowded
    }
    remembered = 0
    for where, messages, _ in cluster.read(_spans(readings)):
        log = readings[where].log
        for message in messages:
            part = log.owner_of(message.offset())
            if part in crowds:
                crowds[part][_content(message)] += 1
            elif part is None and remembered < _REMEMBERED and message.offset() in log.unaccounted:
                suspects[_content(message)].append((where, message.offset()))
                remembered += 1
    return suspects, {part: contents.total() - len(contents) for part, contents in crowds.items()}


def _seen_before(
    cluster: Cluster,
    readings: Mapping[Where, Reading],
    suspects: Mapping[bytes, list[tuple[Where, int]]],
) -> dict[Where, list[int]]:
    """Ascending offsets of the suspects whose content is accounted for somewhere in the topic."""
    known: set[bytes] = set()
    if suspects:
        for where, messages, _ in cluster.read(_spans(readings)):
            log = readings[where].log
            accounted = (m for m in messages if log.owner_of(m.offset()) is not None)
            known.update(content for content in map(_content, accounted) if content in suspects)
    again: dict[Where, list[int]] = {where: [] for where in readings}
    for where, offset in sorted(at for content in known for at in suspects[content]):
        again[where].append(offset)
    return again


def _spans(readings: Mapping[Where, Reading]) -> dict[Where, tuple[int, int]]:
    return {
        where: (reading.looked_at.start, reading.looked_at.end)
        for where, reading in readings.items()
    }


def _content(message: Any) -> bytes:
    """Key, value and headers, as 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (message.key(), message.value(), headers_section(message.headers() or ())):
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return digest.digest()
