"""A point in time by which something must have happened, and the pauses on the way there. Used by
every conversation of this package. Runs wherever the conversation runs."""

from __future__ import annotations

from dataclasses import dataclass

from onceward import patience, surroundings

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5


class Deadline:
    """``timeout_ms`` from now (monotonic), or less (:func:`onceward.patience.within`)."""

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self._at = patience.ends_at(timeout_ms)

    @property
    def remaining_ms(self) -> float:
        """Milliseconds that are left, never below zero."""
        return max(0.0, (self._at - surroundings.monotonic()) * 1000)

    @property
    def passed(self) -> bool:
        return surroundings.monotonic() >= self._at


class Backoff:
    """Growing pauses with jitter, 5 ms first: earlier markers are mostly written by then."""

    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def next_pause_s(self) -> float:
        """Return the next pause in seconds; each is longer than the last, up to half a second."""
        pause = self._next_s * surroundings.jitter(0.8, 1.2)
        self._next_s = min(_LONGEST_PAUSE_S, self._next_s * 2)
        return pause

    def wait(self, deadline: Deadline) -> None:
        """Pause, but not beyond ``deadline``; ask before and after whether anybody waits."""
        patience.ask()
        patience.pause(min(self.next_pause_s(), deadline.remaining_ms / 1000))


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment by two clocks: the monotonic one stops while a machine sleeps, the other is set."""

    monotonic_s: float
    wall_s: float

    @staticmethod
    def now() -> Instant:
        return Instant(surroundings.monotonic(), surroundings.wall_clock())

    def age_ms(self) -> float:
        """Return its age by the clock that says more: brokers go by the wall clock."""
        awake_s = surroundings.monotonic() - self.monotonic_s
        return 1000 * max(awake_s, surroundings.wall_clock() - self.wall_s)
