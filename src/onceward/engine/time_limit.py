"""How long one attempt at a batch may take. Driver only; called by targets."""

from __future__ import annotations

from onceward import surroundings
from onceward.engine.policy import SinkPolicy
from onceward.errors import BatchTimedOut


class TimeLimit:
    """``batch_timeout_s``, from when this object is made: of all frames of the attempt
    together.
    """

    def __init__(self, policy: SinkPolicy) -> None:
        self._seconds = policy.batch_timeout_s
        self._began = surroundings.monotonic()

    def passed(self) -> BatchTimedOut | None:
        """Return the error, once the time is over."""
        if self._seconds is None or surroundings.monotonic() - self._began <= self._seconds:
            return None
        return BatchTimedOut(
            f"the batch ran longer than batch_timeout_s={self._seconds}",
            next_step="raise batch_timeout_s, or make batches smaller (maxOffsetsPerTrigger)",
        )
