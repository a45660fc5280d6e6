"""What is left for a batch to do when its query is being stopped: little, and soon. Driver only.

``query.stop()`` returns when the batch has, and nobody wants to wait for a broker that may be
silent for minutes. So a batch has a moment to end what can be ended, and leaves the rest: the next
start fences this one before all else, which ends the transaction that is open, and asks the ledger
what became of one that was about to be committed.
"""

from __future__ import annotations

from collections.abc import Callable

from onceward import surroundings
from onceward.spark.batch.job import JobInterrupted

_MOMENT_SECONDS = 1.0
# a look costs some calls into the JVM, milliseconds that a batch without long waits must not pay
_LOOK_SECONDS = 0.2


class Ending:
    """Asked by every wait of one batch (:mod:`onceward.patience`).

    :param is_stopping: has somebody stopped the query?
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._look_at = surroundings.monotonic() + _LOOK_SECONDS
        self._over_at: float | None = None

    def __call__(self) -> None:
        """:raises JobInterrupted: the query is being stopped, and the moment is over."""
        now = surroundings.monotonic()
        if self._over_at is None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._over_at = now + _MOMENT_SECONDS if self._is_stopping() else None
        if self._over_at is not None and now >= self._over_at:
            raise JobInterrupted(
                "the query is being stopped, and this batch waited for an answer that did not "
                "come. The next start "
                "settles it first of all: it ends what is open, and asks the ledger whether the "
                "batch is committed."
            )
