"""What the cluster asks of whoever simulates the rest of the world: time, and chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Surroundings(Protocol):
    """See the module. Everything that takes time or may go wrong inside the cluster is asked
    here.
    """

    def now_ms(self) -> int:
        """The brokers' wall clock."""

    def later(self, delay_ms: float, action: Callable[[], None], what: str) -> None:
        """Call ``action`` after ``delay_ms``; it may come later still, never earlier."""

    def lag(self, what: str) -> float:
        """How many milliseconds an internal step takes this time: one of :data:`LAGS`. 0: it is
        done at once.
        """

    def fires(self, fault: str) -> bool:
        """Does this fault happen at this opportunity?"""

    def is_on(self, fault: str) -> bool:
        """Can it happen in this story at all? Asked once, so that what cannot happen costs
        nothing.

        Also asked for ``lag:replicate``, ``lag:markers`` and ``lag:verify``: where it is not on,
        that lag is 0 always, and :meth:`lag` is not asked.
        """


LAGS = {
    "replicate": "until followers have fetched what was appended, and the leader knows",
    "verify": "from a partition's leader to the transaction coordinator and back "
    "(AddPartitionsToTxnManager)",
    "markers": "until the marker of one partition is written (TransactionMarkerChannelManager)",
    "session": "until the controller fences a broker that has gone (broker.session.timeout.ms)",
    "elect": "from there until a new leader answers",
    "load": "until a coordinator has read its log",
    "metadata": "until one broker has heard of a new topic or leader",
    "catch up": "until a broker that came back is in sync again",
    "offsets": "3.9.1: until a group's coordinator takes the offsets of a transaction that is "
    "marked already",
    "expire": "until the coordinator looks for overdue transactions (10 s at most, by default)",
}
"""The steps that take time, and what each is."""
