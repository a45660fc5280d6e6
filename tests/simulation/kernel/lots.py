"""Chance, from one seed: which faults happen when, and how long things take.

A *kind* of fault has opportunities: each message may be lost, each step may be the last one of its process. Swarm
testing (Groce et al., ISSTA 2012): a seed switches most kinds off, so that those that are on meet undisturbed. For each
kind that is on the number of opportunities until it happens next is drawn ahead, by a stream of the kind's own, so that
an opportunity costs next to nothing, and one fault can be taken out of a story (``without``) while the others stay.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

Fired = tuple[str, int]
"""A kind, and which of its faults it was, from 0."""


class Lots:
    """See the module.

    :param odds: of each kind that is on, the mean number of opportunities between two of its faults.
    :param without: faults that do not happen although they were drawn.
    :param most: no more than so many faults in all: a story in which everything breaks all the time shows nothing.
    """

    __slots__ = ("_drawn", "_left", "_most", "_odds", "_streams", "_without", "calm", "fired", "seed", "time")

    def __init__(
        self, seed: int, odds: Mapping[str, float], *, without: Collection[Fired] = (), most: int = 1_000
    ) -> None:
        self.seed = seed
        self.time = random.Random(f"{seed}:time")
        """For delays, and for who comes first."""
        self.fired: list[Fired] = []
        self.calm = False
        """No faults any more: the world heals."""
        self._odds = odds
        self._without = frozenset(without)
        self._most = most
        self._streams = {kind: random.Random(f"{seed}:{kind}") for kind in odds}
        self._left = {kind: self._gap(kind) for kind in odds}
        self._drawn = dict.fromkeys(odds, 0)

    def fires(self, kind: str) -> bool:
        """Does a fault of this kind happen now?"""
        left = self._left.get(kind)
        if left is None:
            return False
        if left:
            self._left[kind] = left - 1
            return False
        if self.calm:
            return False
        self._left[kind] = self._gap(kind)
        number = self._drawn[kind]
        self._drawn[kind] = number + 1
        if (kind, number) in self._without or len(self.fired) >= self._most:
            return False
        self.fired.append((kind, number))
        return True

    def is_on(self, kind: str) -> bool:
        return kind in self._left

    def below(self, kind: str, limit: int) -> int:
        """A number of the kind's own stream: which one, how far, how long."""
        stream = self._streams.get(kind) or self.time
        return int(stream.random() * limit)

    def _gap(self, kind: str) -> int:
        return int(self._streams[kind].random() * 2 * self._odds[kind])
