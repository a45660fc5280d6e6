"""When the demo kills its job. Pure: the plan is made before the run, from the settings and the seed alone.

Each kill belongs to one life of the job, in this order; after the last one the job lives to the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from onceward.demo.settings import DemoSettings

Trigger = Literal["fault_point", "after_a_commit", "output_grows"]


@dataclass(frozen=True, slots=True)
class Kill:
    """One ``kill -9``.

    ``trigger``: ``fault_point``, the job itself at the step that ``fault`` names (:mod:`onceward.testing.faults`);
    ``after_a_commit``, from outside ``delay_s`` seconds after this life's first commit; ``output_grows``, from outside
    as soon as new records show in the output topic.
    """

    where: str
    trigger: Trigger
    fault: str = ""
    delay_s: float = 0.0
    meaning: str = ""


def kill_plan(settings: DemoSettings) -> tuple[Kill, ...]:
    """At least three kills."""
    return _exactly_once_plan(settings.seed) if settings.exactly_once else _AT_LEAST_ONCE_PLAN


def _exactly_once_plan(seed: int) -> tuple[Kill, ...]:
    delay_s = round(random.Random(seed).uniform(0.5, 4.0), 2)  # noqa: S311  a moment, not a secret
    return (
        Kill(
            "inside the send phase",
            "fault_point",
            fault="lease:finished:2:kill",
            meaning="the transaction is open: some of the batch is on the broker, some is not",
        ),
        # That batch is run again first, so the first commit of this life is of a batch with output.
        Kill(
            "between EndTxn and Spark's commit log",
            "fault_point",
            fault="commit:finished:1:kill",
            meaning="the batch is visible, and Spark does not know it",
        ),
        Kill(
            "after the ledger record, before EndTxn",
            "fault_point",
            fault="lease:finished:1>ledger:finished:1:kill",
            meaning="everything of the batch is on the broker, nothing is committed",
        ),
        Kill(
            "from outside, at a random moment",
            "after_a_commit",
            delay_s=delay_s,
            meaning="wherever the job happens to be",
        ),
    )


_AT_LEAST_ONCE_PLAN = tuple(
    Kill(
        "while a batch is being written",
        "output_grows",
        meaning="some of the batch is in the output topic, and Spark does not know it",
    )
    for _ in range(3)
)
