"""Settings that all sinks share: who it is, what it promises, how often it tries. Immutable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from onceward.engine.checkpointing import Checkpointing
from onceward.engine.ledger.admission import RESUME_CHOICES, Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.errors import ConfigurationError, ContradictoryOptions, OncewardError
from onceward.ids import PipelineId

Delivery = Literal["exactly_once", "at_least_once", "none"]

DELETES = ("d", "delete")
WRITES = ("c", "r", "u", "insert", "update", "upsert")
"""The column ``op`` of a change stream, for every sink: Debezium's letters, or words."""


@dataclass(frozen=True, slots=True)
class SinkPolicy:
    """The settings that are the same for every sink; :class:`onceward.KafkaSink` has the words on
    each.

    :param batch_attempts: how often one batch may run in all (1: never again) before its error
        reaches Spark and the query fails; each attempt has an epoch of its own.
    :param checkpointing: sets ``batch_attempts`` and ``batch_timeout_s``, and the pause between
        batches.
    :raises ConfigurationError: naming the setting and what it takes.
    """

    pipeline: PipelineId
    delivery: Delivery = "exactly_once"
    resume: Resume = "checkpoint"
    batch_attempts: int = 3
    batch_timeout_s: float | None = None
    skipped_batches: SkippedBatches = "refuse"
    checkpointing: Checkpointing | None = None

    def __post_init__(self) -> None:
        if self.checkpointing is not None:
            self._take(self.checkpointing)
        check_choice("delivery", self.delivery, get_args(Delivery))
        check_choice("resume", self.resume, RESUME_CHOICES)
        check_choice("skipped_batches", self.skipped_batches, get_args(SkippedBatches))
        whole_number("batch_attempts", self.batch_attempts, 1)
        if self.batch_timeout_s is not None and not (
            _is_a_number(self.batch_timeout_s) and self.batch_timeout_s > 0
        ):
            raise ConfigurationError(
                f"batch_timeout_s={self.batch_timeout_s!r} is not a positive number of seconds",
                next_step="pass seconds, or None for no limit",
            )
        if not self.has_ledger and self.resume != "checkpoint":
            raise ContradictoryOptions(
                f"resume={self.resume!r} with delivery={self.delivery!r}: without exactly-once "
                "there is no ledger to resume from",
                next_step='use delivery="exactly_once", or leave resume out',
            )

    def _take(self, checkpointing: object) -> None:
        """Take over the checkpoint settings; refuse what is set twice."""
        if not isinstance(checkpointing, Checkpointing):
            raise ConfigurationError(
                f"checkpointing={checkpointing!r} is not what ow.checkpointing(…) returns",
                next_step="pass ow.checkpointing(…), or leave checkpointing= out",
            )
        settings = (
            ("batch_attempts", self.batch_attempts, 3, checkpointing.attempts, "attempts"),
            ("batch_timeout_s", self.batch_timeout_s, None, checkpointing.timeout_s, "timeout"),
        )
        for name, value, default, theirs, word in settings:
            if value not in (default, theirs):
                raise ContradictoryOptions(
                    f"{name}={value} and checkpointing= with {word}={theirs:g}",
                    next_step=f"leave {name}= out, and set {word}= of ow.checkpointing",
                )
            object.__setattr__(self, name, theirs)

    @property
    def min_pause_s(self) -> float:
        """Return the least pause between two batches."""
        return 0.0 if self.checkpointing is None else self.checkpointing.min_pause_s

    @property
    def has_ledger(self) -> bool:
        """Is there a chain of batches that a lost one would be missing from?"""
        return self.delivery == "exactly_once"


_START_AGAIN = "start the query again"
_NOTHING_TO_DO = ("nothing; ", "nothing, ", "nothing: ", "none: ")


def with_the_next_start(error: OncewardError) -> None:
    """Make the next step one for the next start: this run has tried often enough."""
    step = error.next_step
    for nothing in _NOTHING_TO_DO:
        step = step.removeprefix(nothing)
    if not step.startswith(_START_AGAIN):
        error.next_step = f"{_START_AGAIN}, as ow.supervise does" + (
            f"; then {step}" if step else ""
        )


def must_be_decided(ledger: object, commit_timeout_s: float) -> None:
    """Raise ConfigurationError for a wrong setting of a sink whose decision is a ledger record."""
    if not isinstance(ledger, Ledger):
        raise ConfigurationError(
            f"ledger={ledger!r} is no ledger",
            next_step="pass ow.FolderLedger(…), ow.DatabaseLedger(…) or ow.KafkaLedger(…)",
        )
    if not (_is_a_number(commit_timeout_s) and commit_timeout_s >= 0):
        raise ConfigurationError(
            f"commit_timeout_s={commit_timeout_s!r} is not a number of seconds",
            next_step="pass 0 or more",
        )


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ConfigurationError unless the setting ``name`` has one of its ``choices``."""
    # 1 is True, for Python
    if value not in choices or type(value) not in map(type, choices):
        raise ConfigurationError(
            f"{name}={value!r} is unknown", next_step=f"use one of {', '.join(map(str, choices))}"
        )


def _is_a_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise ConfigurationError unless the setting ``name`` is a whole number in its range."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most and value > most):  # type: ignore[operator]
        bounds = f"a whole number {bounds}"
        raise ConfigurationError(
            f"{name}={value!r} is not {bounds}", next_step=f"set {name} to {bounds}"
        )


def names(setting: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return columns as a tuple. :raises ConfigurationError: there is none, or one twice."""
    if value is None:
        return ()
    found = (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    )
    if (
        not found
        or any(not isinstance(name, str) or not name for name in found)
        or len(set(found)) < len(found)
    ):
        raise ConfigurationError(
            f"{setting}={value!r} does not name columns",
            next_step="pass a column's name, or a list of different ones",
        )
    return found
