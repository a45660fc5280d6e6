"""What is broken and when: a pure function of the seed, so that a run can be repeated, and
continued.

Two lists of faults. The *plan* is what happens to processes, one thing at a time, endless. The
*step errors* of a life are fault points inside its driver (:mod:`onceward_testing.faults`):
attempts that fail after they have sent records, so that aborted transactions are many.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "kill-driver",
    "kill-executor",
    "kill-executor-behind-shuffle",
    "kill-broker",
    "stop-driver",
    "stop-executor",
    "stop-broker",
    "restart-broker",
    "none",
]
Target = Literal["any", "controller", "coordinator"]

KILLS: tuple[Kind, ...] = (
    "kill-driver",
    "kill-executor",
    "kill-executor-behind-shuffle",
    "kill-broker",
)

# Shuffled block by block: every stretch of half an hour holds each kind, whatever the seed.
# Executors come back sooner than a driver does; and of those that are killed while a shuffle is
# read, not every one leaves readers without input.
_BLOCK: tuple[Kind, ...] = (
    *("kill-driver",) * 6,
    *("kill-executor",) * 4,
    *("kill-executor-behind-shuffle",) * 9,
    *("kill-broker",) * 6,
    "stop-driver",
    "stop-executor",
    "stop-broker",
    "restart-broker",
    "none",
)
KINDS: tuple[Kind, ...] = tuple(dict.fromkeys(_BLOCK))

_GAP_SECONDS = (25.0, 31.0)
_STOPPED_SECONDS = (2.0, 9.0)  # longer and shorter than a broker's session
_DOWN_SECONDS = (0.0, 3.0)
_AFTER_SENDING_SECONDS = (0.0, 0.8)  # a batch of *scatter* sends for about as long
_TARGETS: tuple[Target, ...] = ("any", "controller", "coordinator")

_STEPS = (
    "check:started",
    "offsets:started",
    "ledger:started",
    "ledger:finished",
    "commit:started",
    "lease:finished",
)
_WEIGHTS = (
    3,
    3,
    3,
    3,
    3,
    1,
)  # an error of a lease lets Spark try the task four times, which takes seconds
_LEASES_OF_AN_ATTEMPT = 8  # more in a batch of several tasks, fewer in one of a single task
_ERRORS = (
    "error",
    "error=SendFailed",
    "error=EpochPoisoned",
    "error=BrokerUnreachable",
    "error=TransactionTimedOut",
)
_SHARE_OF_ATTEMPTS = 0.16
_ATTEMPTS_OF_A_LIFE = 1_500


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the plan.

    ``gap_s``: seconds since the one before. ``lasts_s``: how long a process stays stopped or a
    broker stays down, or how long after the first task of a batch has sent something an executor
    is killed behind a shuffle. ``victim``: a number to choose by among several of a kind;
    ``target`` says which broker is meant.
    """

    position: int
    kind: Kind
    gap_s: float
    lasts_s: float
    victim: int
    target: Target

    @property
    def concerns_a_broker(self) -> bool:
        return self.kind.endswith("-broker")

    @property
    def concerns_an_executor(self) -> bool:
        return "-executor" in self.kind

    @property
    def waits_for_senders(self) -> bool:
        """It comes when some tasks behind the shuffle have sent and others have not."""
        return self.kind == "kill-executor-behind-shuffle"


def plan(seed: int, start: int = 0) -> Iterator[Fault]:
    """The faults of ``seed`` from number ``start`` on, without end."""
    return itertools.islice(_plan(seed), start, None)


def _plan(seed: int) -> Iterator[Fault]:
    chooser = random.Random(f"{seed}:plan")
    for position in itertools.count():
        if position % len(_BLOCK) == 0:
            block = chooser.sample(_BLOCK, len(_BLOCK))
        kind = block[position % len(_BLOCK)]
        lasts = chooser.uniform(*_lasting(kind))
        yield Fault(
            position,
            kind,
            round(chooser.uniform(*_GAP_SECONDS), 2),
            round(lasts, 2),
            chooser.randrange(6),
            chooser.choice(_TARGETS),
        )


def _lasting(kind: Kind) -> tuple[float, float]:
    if kind.startswith("stop-"):
        return _STOPPED_SECONDS
    return _AFTER_SENDING_SECONDS if kind == "kill-executor-behind-shuffle" else _DOWN_SECONDS


def step_errors(seed: int, life: int) -> list[str]:
    """The fault points of one life of the driver, each in the grammar of
    :mod:`onceward_testing.faults`.

    Counted in attempts, of all queries together; a life that ends early has seen but the first of
    them.
    """
    chooser = random.Random(f"{seed}:life:{life}")
    found = []
    for attempt in range(2, _ATTEMPTS_OF_A_LIFE):
        if chooser.random() < _SHARE_OF_ATTEMPTS:
            (step,), error = chooser.choices(_STEPS, _WEIGHTS), chooser.choice(_ERRORS)
            occurrence = attempt * _LEASES_OF_AN_ATTEMPT if step.startswith("lease") else attempt
            found.append(f"{step}:{occurrence}:{error}")
    return found
