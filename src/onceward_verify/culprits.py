"""Whose is a visible record that no batch told of? Compares its content with what batches account
for (I2).

Only called when there is such a record, because it reads the topic again: a record with the
content of an accounted one is a duplicate; any other is simply one that nobody tells of.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from onceward_verify.checksum import headers_section
from onceward_verify.cluster import Cluster, Where
from onceward_verify.findings import Findings, place
from onceward_verify.ledger import Part
from onceward_verify.manifests import Reading

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
