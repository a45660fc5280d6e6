"""What a task needs to find the sequencer of its epoch. Made by the driver, travels in the task's
closure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onceward.ids import ProducerIdentity


@dataclass(frozen=True, slots=True)
class EpochTicket:
    """Where the sequencer listens and the random token that opens it for this one epoch. Pickles.

    The token is a secret of the query: it is not shown by ``repr``. It crosses the network in the
    clear, like Spark's own task closures unless Spark's network encryption is on; it lets its
    bearer spoil this epoch, and nothing else, since the broker and the report check do not rely on
    it.
    """

    host: str
    port: int
    token: bytes = field(repr=False)
    identity: ProducerIdentity
