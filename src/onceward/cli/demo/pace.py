"""How fast the demo's input is written. Pure.

Evenly over the planned time; but as long as planned kills are outstanding a last fifth is held back and only trickles,
so that event time goes on, windows keep closing, and there is a job left to kill on however slow a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

_HELD_BACK = 0.2
_TRICKLE_PER_SECOND = 100


@dataclass(frozen=True, slots=True)
class Pace:
    """``records`` over ``seconds``."""

    records: int
    seconds: float

    def due(self, elapsed: float, since_last: float, sent: int, *, hold: bool) -> int:
        """How many records to write now.

        :param elapsed: seconds since the first record. :param since_last: seconds since the last call.
        :param sent: records written so far. :param hold: planned kills are outstanding.
        """
        planned = min(self.records, round(self.records * elapsed / self.seconds))
        free = round(self.records * (1 - _HELD_BACK)) if hold else self.records
        trickle = round(_TRICKLE_PER_SECOND * since_last) if hold else 0
        wanted = max(min(planned, free) - sent, min(trickle, planned - sent))
        last = 1 if hold else 0  # the very last record ends the stream: not before the kills are done
        return max(0, min(wanted, self.records - last - sent))
