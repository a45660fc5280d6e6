"""Restart strategies of Flink, by their names and with their settings: when a failed query is
started again.

Pure: each answers from the failures so far. Used by :mod:`onceward.operate.supervise`. Times are
seconds of one monotonic clock. Defaults are Flink's (``RestartStrategyOptions`` of 2.2.1), but for
:class:`FixedDelay`, whose single attempt is of little use by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onceward.errors import ConfigurationError, OncewardError, Recovery

__all__ = [
    "ExponentialDelay",
    "Failure",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "RestartStrategy",
]

_LONGEST_SECONDS = 300.0
_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Failure:
    """A run of a query that ended with an error.

    :param started: when the query began. :param failed: when it ended.
    :param chance: a number drawn for this failure, from 0 up to 1, which is what a strategy's
        jitter is made of.
    :param progressed: whether a batch was committed in that run.
    """

    started: float
    failed: float
    chance: float = 0.5
    progressed: bool = False


def without_progress(failures: Sequence[Failure]) -> int:
    """Count the failures since a batch was committed."""
    count = 0
    for failure in reversed(failures):
        if failure.progressed:
            break
        count += 1
    return count


def least_pause(failures: Sequence[Failure]) -> float:
    """Return the least pause, whatever the strategy: it grows while no batch is committed in
    between.

    Nothing after the first such failure, then a second, and twice as long each time, up to five
    minutes; by chance longer or shorter by up to a tenth, so that pipelines that failed together
    do not come back together.
    """
    in_a_row = without_progress(failures)
    if in_a_row < 2:
        return 0.0
    pause = min(_LONGEST_SECONDS, 2.0 ** min(in_a_row - 2, 20))
    return pause * (1 + _JITTER * (2 * failures[-1].chance - 1))


def may_pass(error: BaseException, *, worked_before: bool = True) -> bool:
    """Return whether the query may be started again after ``error``; errors that are not ours may
    always pass.

    :param worked_before: whether the pipeline has ever committed a batch.
    """
    if not isinstance(error, OncewardError):
        return True
    return error.recovery is not Recovery.STOP and (
        worked_before or error.recovery is not Recovery.RESTART_IF_WORKED
    )


class RestartStrategy(Protocol):
    """A strategy, asked after each failure. Yours needs this one method, and no state."""

    def delay(self, failures: Sequence[Failure]) -> float | None:
        """Return the pause after the last of ``failures``, at least :func:`least_pause`; None: it
        stays stopped.

        :param failures: all of this supervisor's, oldest first; never empty.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRestart:
    """No restart: a query that failed stays stopped (Flink's ``none``)."""

    def delay(self, failures: Sequence[Failure]) -> float | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A fixed pause each time, up to a number of restarts in all (Flink's ``fixed-delay``).

    :param attempts: restarts in all; None: without end. :param delay_s: the pause.
    """

    attempts: int | None = None
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        _require(
            self,
            attempts=(_is_count_or_none(self.attempts), "1 or more, or None"),
            delay_s=(_is_time(self.delay_s), "0 or more seconds"),
        )

    def delay(self, failures: Sequence[Failure]) -> float | None:
        """Return ``delay_s``, until the restarts are used up."""
        return (
            None if self.attempts is not None and len(failures) > self.attempts else self.delay_s
        )


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Pauses that grow while failures follow each other, and begin anew after a stable time
    (``exponential-delay``).

    :param initial_s: the first pause. :param max_s: no pause is longer, jitter included (but for
        :func:`least_pause`).
    :param multiplier: from one pause to the next. :param jitter: each pause is longer or shorter
        by up to this part of itself, drawn by chance, so that pipelines that failed together do
        not come back together.
    :param reset_after_s: a query that ran for that long without a failure begins anew with
        ``initial_s``.
    :param attempts: restarts before it stays stopped, counted anew after a stable time; None:
        without end.
    """

    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after_s: float = 3600.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        longest, factor = _is_time(self.max_s), _is_time(self.multiplier)
        is_first = _is_time(self.initial_s) and self.initial_s > 0
        _require(
            self,
            initial_s=(is_first, "more than 0 seconds"),
            max_s=(longest and is_first and self.max_s >= self.initial_s, "initial_s or more"),
            multiplier=(factor and self.multiplier >= 1, "1 or more"),
            jitter=(_is_time(self.jitter) and self.jitter <= 1, "a number from 0 to 1"),
            reset_after_s=(_is_time(self.reset_after_s), "0 or more seconds"),
            attempts=(_is_count_or_none(self.attempts), "1 or more, or None"),
        )

    def delay(self, failures: Sequence[Failure]) -> float | None:
        """Return the next pause of the row, or None when the attempts are used up."""
        in_a_row = 0
        for failure in failures:
            stable = failure.failed - failure.started >= self.reset_after_s
            in_a_row = 1 if stable else in_a_row + 1
        if self.attempts is not None and in_a_row > self.attempts:
            return None
        try:
            pause = min(self.max_s, self.initial_s * self.multiplier ** (in_a_row - 1))
        except OverflowError:
            pause = self.max_s
        return min(self.max_s, pause * (1 + self.jitter * (2 * failures[-1].chance - 1)))


@dataclass(frozen=True, slots=True)
class FailureRate:
    """A fixed pause each time, until there are too many failures in an interval (Flink's
    ``failure-rate``).

    :param max_failures: within ``interval_s``; one more, and the query stays stopped. :param
        delay_s: the pause.
    """

    max_failures: int = 1
    interval_s: float = 60.0
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        is_interval = _is_time(self.interval_s) and self.interval_s > 0
        _require(
            self,
            max_failures=(_is_count(self.max_failures), "1 or more"),
            interval_s=(is_interval, "more than 0 seconds"),
            delay_s=(_is_time(self.delay_s), "0 or more seconds"),
        )

    def delay(self, failures: Sequence[Failure]) -> float | None:
        """Return ``delay_s``, or None when the last ``interval_s`` had too many failures."""
        now = failures[-1].failed
        recent = sum(now - failure.failed < self.interval_s for failure in failures)
        return None if recent > self.max_failures else self.delay_s


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0  # type: ignore[operator, arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_count_or_none(value: object) -> bool:
    return value is None or _is_count(value)


def _require(strategy: object, **rules: tuple[bool, str]) -> None:
    for name, (holds, allowed) in rules.items():
        if not holds:
            raise ConfigurationError(
                f"{name}={getattr(strategy, name)!r} of a restart strategy",
                next_step=f"set {name} to {allowed}",
            )
