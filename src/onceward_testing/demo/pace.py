"""How fast the demo's input is written. Pure.

Evenly over the planned time; but as long as planned kills are outstanding a last fifth is held
back and only trickles, ever more slowly, so that event time goes on, windows keep closing, and
there is a job left to kill on however slow a machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_HELD_BACK = 0.2
_TRICKLE_SECONDS = 120.0
"""After that long on hold about a third of what is held back is still there; with many kills, so
long for each ten.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """``records`` over ``seconds``, in which there shall be so many ``kills``."""

    records: int
    seconds: float
    kills: int = 0

    def due(self, elapsed: float, *, hold: bool) -> int:
        """How many records shall be written ``elapsed`` seconds after the start; ``hold``: kills
        are outstanding.

        On hold the last record is never due: it would end the stream.
        """
        if not hold:
            return min(self.records, round(self.records * elapsed / self.seconds))
        free = self.records * (1 - _HELD_BACK)
        planned = self.records * elapsed / self.seconds
        if planned > free:
            waited = elapsed - self.seconds * (1 - _HELD_BACK)
            trickle_s = _TRICKLE_SECONDS * max(1.0, self.kills / 10)
            planned = min(
                planned, free + (self.records - free) * (1 - math.exp(-waited / trickle_s))
            )
        return min(round(planned), self.records - 1)
