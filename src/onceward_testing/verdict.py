"""Was it exactly once? The comparison of what should be visible with what is, as multisets.

Pure: whoever calls it brings both sides, and the visible one should come from a reader that shares
no code with the writer (:mod:`onceward_testing.topic_reader` reads with librdkafka). "Contains
everything expected" is never enough: a repeated record contains everything too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_NAMED = 5


@dataclass(frozen=True)
class Verdict(Generic[T]):
    """The difference of two multisets.

    ``expected`` and ``visible`` are sizes. ``lost``: expected and not (often enough) visible.
    ``duplicates``: visible more often than expected, though expected. ``unexpected``: visible and
    never expected. All with multiplicity.
    """

    expected: int
    visible: int
    lost: Counter[T]
    duplicates: Counter[T]
    unexpected: Counter[T]

    @property
    def holds(self) -> bool:
        """True when both sides are equal."""
        return not (self.lost or self.duplicates or self.unexpected)

    def __str__(self) -> str:
        parts = [f"{self.expected} expected", f"{self.visible} visible"]
        for name, difference in (
            ("lost", self.lost),
            ("duplicates", self.duplicates),
            ("unexpected", self.unexpected),
        ):
            parts.append(f"{name} {difference.total()}{_examples(difference)}")
        return ", ".join(parts)


def exactly_once(expected: Iterable[T], visible: Iterable[T]) -> Verdict[T]:
    """Compare what a correct run shows with what a reader saw; order does not matter, multiplicity
    does."""
    wanted, seen = Counter(expected), Counter(visible)
    surplus = seen - wanted
    duplicates = Counter({item: count for item, count in surplus.items() if item in wanted})
    return Verdict(
        expected=wanted.total(),
        visible=seen.total(),
        lost=wanted - seen,
        duplicates=duplicates,
        unexpected=surplus - duplicates,
    )


def _examples(difference: Counter[T]) -> str:
    if not difference:
        return ""
    named = ", ".join(repr(item) for item in list(difference)[:_NAMED])
    return f" ({named}{', …' if len(difference) > _NAMED else ''})"
