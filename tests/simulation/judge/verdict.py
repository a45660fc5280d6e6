"""What a judge says: which invariant, and a sentence that lets one find the place in the timeline.

And how two collections of rows differ, in a line that a person can read: for every judge, whatever
the target is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

NAMES = {
    "I1": "no loss",
    "I2": "no duplicate",
    "I3": "order",
    "I4": "whole batches",
    "I5": "no dirty reads",
    "I6": "ledger",
    "I7": "fencing",
    "I8": "liveness",
    "I9": "state",
    "I10": "two-phase target",
    "I11": "named stops",
    "I12": "secrets",
    "I13": "database",
    "I14": "prepared transactions",
    "I15": "target without transactions",
    "I17": "files",
}
_SHOWN = 4

Row = tuple[Any, ...]
"""Branch, source partition, source offset; of an aggregate branch, key, value."""


class Violation(NamedTuple):
    """An invariant that does not hold."""

    invariant: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.invariant} {NAMES[self.invariant]}: {self.sentence}"


def differences(expected: Iterable[Row], found: Iterable[Row], where: str = "") -> list[Violation]:
    """Multiset equality, never "contains": what is lost (I1), what is there more often than it
    should be, and what should not be there at all (I2).
    """
    wanted, seen = Counter(expected), Counter(found)
    if wanted == seen:
        return []
    lost = sorted(row for row, times in wanted.items() if seen[row] < times)
    twice = sorted(row for row, times in seen.items() if row in wanted and times > wanted[row])
    foreign = sorted(row for row in seen if row not in wanted)
    suffix = f" ({where})" if where else ""
    said = []
    if lost:
        said.append(Violation("I1", f"lost {len(lost)}: {shown(lost)}{suffix}"))
    if twice:
        said.append(Violation("I2", f"more often than once {len(twice)}: {shown(twice)}{suffix}"))
    if foreign:
        said.append(Violation("I2", f"nobody asked for {len(foreign)}: {shown(foreign)}{suffix}"))
    return said


def shown(rows: list[Row]) -> str:
    """Some of ``rows``: where they are, and which source records they came from."""
    texts = [row_text(row) for row in rows[:_SHOWN]]
    return ", ".join(texts) + (", …" if len(rows) > _SHOWN else "")


def row_text(row: Row) -> str:
    branch, partition, offset = row
    which = (
        f"source-{partition}@{offset}"
        if partition >= 0
        else f"key {-1 - partition} at count {offset}"
    )
    return which + (f" in {branch}" if branch else "")
