"""Queue of the record batches that one ``send`` has for one partition. Pure: no I/O, no clock.

Called by ``kafka.wire.appends.producer``.

The broker takes a producer's batches of a partition only in sequence, so when one fails the later
ones, already on their way, are refused too. The rule: after a failure nothing more is sent until
every outstanding request is answered; then everything unacknowledged goes again, in order, under
the same sequences. Batches that had been appended after all are recognised by the broker as
duplicates and acknowledged with their offsets (KIP-98), as long as they are among its last five:
so nothing is sent that lies five or more positions after the first unacknowledged one.

The first batch of an epoch travels alone. A partition that does not know the producer yet takes
any first sequence (``ProducerAppendInfo.checkSequence``; seen on 3.9.1): were the first batch lost
or refused (no leader yet), the second would be appended before it.
"""

from __future__ import annotations

WINDOW = 5
"""``ProducerStateEntry.NUM_BATCHES_TO_RETAIN`` of the broker."""


class PartitionQueue:
    """Positions 0 … ``count`` - 1 of one partition's batches, each to be acknowledged exactly
    once. ``first_alone``: position 0 is the producer's first batch of this epoch there."""

    def __init__(self, count: int, *, first_alone: bool = False) -> None:
        self._first_alone = first_alone
        self._acknowledged = [False] * count
        self._first_open = 0
        self._next = 0
        self._outstanding: set[int] = set()
        self._draining = False

    @property
    def done(self) -> bool:
        return self._first_open == len(self._acknowledged)

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    def next_to_send(self) -> int | None:
        """Return the position that may be sent now, if any."""
        if self._draining:
            return None
        while self._next < len(self._acknowledged) and self._acknowledged[self._next]:
            self._next += 1
        window = 1 if self._first_alone and self._first_open == 0 else WINDOW
        within = self._next < min(len(self._acknowledged), self._first_open + window)
        return self._next if within else None

    def sent(self, position: int) -> None:
        self._outstanding.add(position)
        self._next = position + 1

    def acknowledged(self, position: int) -> None:
        self._acknowledged[position] = True
        while self._first_open < len(self._acknowledged) and self._acknowledged[self._first_open]:
            self._first_open += 1
        self._answered(position)

    def failed(self, position: int) -> None:
        """Send ``position`` again, and with it whatever was not acknowledged after it."""
        self._draining = True
        self._answered(position)

    def is_first_open(self, position: int) -> bool:
        """Return whether all before is acknowledged, so that none explains a broken sequence."""
        return position <= self._first_open

    def _answered(self, position: int) -> None:
        self._outstanding.discard(position)
        if self._draining and not self._outstanding:
            self._draining = False
            self._next = self._first_open
