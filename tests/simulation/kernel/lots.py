"""Chance, from one seed: which faults happen when, and how long things take.

A *kind* of fault has opportunities: each message may be lost, each step may be the last one of its
process. Swarm testing (Groce et al., ISSTA 2012): a seed switches most kinds off, so that those
that are on meet undisturbed. For each kind that is on the number of opportunities until it happens
next is drawn ahead, by a stream of the kind's own, so that an opportunity costs next to nothing.

A fault that has happened is named by its kind and its place among that kind's opportunities:
``("net:held", 137)``, written ``net:held@137``. By these names single faults can be taken out of a
story (``without``) while the others stay where they are, and a story can be told once more with
exactly the faults that are named (``exactly``). What else is drawn for a fault, by
:meth:`Lots.below`, hangs on its name alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping

Fired = tuple[str, int]
"""A fault: its kind, and at which of the opportunities of that kind, from 0."""

_NEVER = 1 << 60


def name_of(fault: Fired) -> str:
    return f"{fault[0]}@{fault[1]}"


def fault_of(name: str) -> Fired:
    kind, _, place = name.rpartition("@")
    if not kind or not place.isdigit():
        raise ValueError(f"{name!r} names no fault: as in net:held@137")
    return kind, int(place)


class Lots:
    """See the module.

    :param odds: of each kind that is on, the mean number of opportunities between two of its
        faults.
    :param without: faults that do not happen although they were drawn.
    :param exactly: these faults happen and no others, whatever ``odds`` say.
    :param aims: of some kinds a step of the engine: only opportunities while the driver is in that
        step count.
    :param most: no more than so many faults in all: a story in which everything breaks all the
        time shows nothing.
    """

    __slots__ = (
        "_aims",
        "_details",
        "_gaps",
        "_left",
        "_most",
        "_odds",
        "_passed",
        "_places",
        "_without",
        "calm",
        "fired",
        "met",
        "seed",
        "step",
        "time",
    )

    def __init__(
        self,
        seed: int,
        odds: Mapping[str, float],
        *,
        without: Collection[Fired] = (),
        exactly: Collection[Fired] | None = None,
        aims: Mapping[str, str] | None = None,
        most: int = 1_000,
    ) -> None:
        self.seed = seed
        self.time = random.Random(f"{seed}:time")
        """For delays, and for who comes first."""
        self.fired: list[Fired] = []
        self.met: list[tuple[str, str]] = []
        """Of each fault, in the same order: the step of the engine in which it happened, and its
        kind.
        """
        self.calm = False
        """No faults any more: the world heals."""
        self.step: Callable[[], str] = _nowhere
        """In which step the driver is; whoever builds the world says it."""
        self._odds = odds
        self._without = frozenset(without)
        self._most = most
        self._aims = (aims or None) if exactly is None else None
        self._details: dict[str, random.Random] = {}
        self._places: dict[
            str, list[int]
        ] = {}  # with `exactly`: of each kind, where it still happens, the first last
        self._gaps: dict[str, random.Random] = {}
        if exactly is None:
            self._gaps = {kind: random.Random(f"{seed}:{kind}") for kind in odds}
        else:
            for kind, place in sorted(exactly, reverse=True):
                self._places.setdefault(kind, []).append(place)
        self._passed = dict.fromkeys(
            [*odds, *self._places], 0
        )  # opportunities of the kind that are over
        self._left = {kind: self._gap(kind) for kind in self._passed}

    def fires(self, kind: str) -> bool:
        """Does a fault of this kind happen now?"""
        left = self._left.get(kind)
        if left is None:
            return False
        if self._aims is not None:
            aim = self._aims.get(kind)
            if aim is not None and self.step() != aim:
                self._passed[kind] += 1
                return False
        if left:
            self._left[kind] = left - 1
            self._passed[kind] += 1
            return False
        if self.calm:
            return False
        place = self._passed[kind]
        self._passed[kind] = place + 1
        self._left[kind] = self._gap(kind)
        fault = (kind, place)
        if fault in self._without or len(self.fired) >= self._most:
            return False
        self._details[kind] = random.Random(f"{self.seed}:{kind}@{place}")
        self.fired.append(fault)
        self.met.append((self.step(), kind))
        return True

    def is_on(self, kind: str) -> bool:
        return kind in self._left

    def below(self, kind: str, limit: int) -> int:
        """A number that belongs to the newest fault of that kind: which one, how far, how long."""
        details = self._details.get(kind) or self.time
        return int(details.random() * limit)

    def _gap(self, kind: str) -> int:
        gaps = self._gaps.get(kind)
        if gaps is not None:
            return int(gaps.random() * 2 * self._odds[kind])
        places = self._places.get(kind)
        while places:
            gap = places.pop() - self._passed[kind]
            if gap >= 0:  # else it was named twice
                return gap
        return _NEVER


def _nowhere() -> str:
    return ""
