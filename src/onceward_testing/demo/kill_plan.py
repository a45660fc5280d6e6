"""When the demo kills its job. Pure: the plan is made before the run, from the settings and the
seed alone.

Each kill belongs to one life of the job, in this order; after the last one the job lives to the
end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from onceward_testing.demo.settings import CHANGES_TOPICS, OUTPUT_TOPIC, DemoSettings, SinkName

Trigger = Literal["fault_point", "after_the_start", "after_a_commit", "output_grows"]


@dataclass(frozen=True, slots=True)
class Kill:
    """One ``kill -9``.

    ``trigger``: ``fault_point``, the job itself at the step that ``fault`` names
    (:mod:`onceward_testing.faults`); ``after_the_start`` and ``after_a_commit``, from outside
    ``delay_s`` seconds after this life began, or committed for the first time; ``output_grows``,
    from outside as soon as new records show in the output topic.
    """

    where: str
    trigger: Trigger
    fault: str = ""
    delay_s: float = 0.0
    meaning: str = ""


def kill_plan(settings: DemoSettings) -> tuple[Kill, ...]:
    """At least three kills, unless the settings say how many."""
    if not settings.exactly_once:
        return _AT_LEAST_ONCE_PLAN
    if settings.kills is not None:
        return _random_plan(_steps(settings), settings.kills, random.Random(settings.seed))  # noqa: S311  moments
    delay_s = round(random.Random(settings.seed).uniform(0.5, 4.0), 2)  # noqa: S311  a moment, not a secret
    at_random = Kill(
        "from outside, at a random moment",
        "after_a_commit",
        delay_s=delay_s,
        meaning="wherever the job happens to be",
    )
    return (*_first(settings), *_steps(settings), at_random)


def _first(settings: DemoSettings) -> tuple[Kill, ...]:
    if settings.source != "mysql":
        return ()
    return (
        _IN_THE_SNAPSHOT
        if settings.sink == "kafka"
        else replace(_IN_THE_SNAPSHOT, fault="send:finished:1:kill"),
    )


def _steps(settings: DemoSettings) -> tuple[Kill, ...]:
    return (
        _CHANGES_INTO_KAFKA
        if (settings.source, settings.sink) == ("mysql", "kafka")
        else _AT_STEPS[settings.sink]
    )


def _random_plan(steps: tuple[Kill, ...], kills: int, chance: random.Random) -> tuple[Kill, ...]:
    """Half of them some time after a commit, a quarter before there can be one, a quarter at a
    step of the engine.
    """
    return tuple(_at_random(steps, chance) for _ in range(kills))


def _at_random(steps: tuple[Kill, ...], chance: random.Random) -> Kill:
    kind = chance.random()
    if kind < 0.5:
        delay_s = round(chance.uniform(0.0, 4.0), 2)
        return Kill(f"{delay_s} s after its first commit", "after_a_commit", delay_s=delay_s)
    if kind < 0.75:
        delay_s = round(chance.uniform(2.0, 12.0), 2)
        return Kill(f"{delay_s} s after its start", "after_the_start", delay_s=delay_s)
    return chance.choice(steps)


# A step of this name is there only where a batch has rows.
_INTO_A_DATABASE = (
    Kill(
        "after the rows were staged, before they are moved",
        "fault_point",
        fault="move:started:1:kill",
        meaning="tasks have committed all rows to a staging table; the transaction is open, with "
        "the ledger's row",
    ),
    Kill(
        "after the rows were moved, before COMMIT",
        "fault_point",
        fault="move:finished:1:kill",
        meaning="rows and ledger record are in the open transaction, nothing is committed",
    ),
    Kill(
        "between COMMIT and Spark's commit log",
        "fault_point",
        fault="move:finished:1>commit:finished:1:kill",
        meaning="the batch is visible, and Spark does not know it",
    ),
)

_AFTER_THE_COMMIT = Kill(
    "between EndTxn and Spark's commit log",
    "fault_point",
    fault="commit:finished:1:kill",
    meaning="the batch is visible, and Spark does not know it",
)

# The first batch with rows is the snapshot's.
_IN_THE_SNAPSHOT = Kill(
    "in the snapshot, while its rows are written",
    "fault_point",
    fault=f"lease[{CHANGES_TOPICS}]:finished:1:kill",
    meaning="read again, the rows must be what they were, while people change them",
)
_CHANGES_INTO_KAFKA = (
    _AFTER_THE_COMMIT,
    Kill(
        "inside the send phase",
        "fault_point",
        fault=f"commit:finished:1>lease[{CHANGES_TOPICS}]:finished:2:kill",
        meaning="the transaction is open: some of the batch is on the broker, some is not",
    ),
    Kill(
        "after the ledger record, before EndTxn",
        "fault_point",
        fault=f"commit:finished:1>lease[{CHANGES_TOPICS}]:finished:1>ledger:finished:1:kill",
        meaning="everything of the batch is on the broker, nothing is committed",
    ),
)

_AT_STEPS: dict[SinkName, tuple[Kill, ...]] = {
    # Dead letters have leases in every batch, and rows of the output only those batches in which
    # windows end.
    "kafka": (
        Kill(
            "inside the send phase",
            "fault_point",
            fault=f"lease[{OUTPUT_TOPIC}-]:finished:2:kill",
            meaning="the transaction is open: some of the batch is on the broker, some is not",
        ),
        # That batch is run again first, so the first commit of this life is of a batch with
        # output.
        _AFTER_THE_COMMIT,
        Kill(
            "after the ledger record, before EndTxn",
            "fault_point",
            fault=f"lease[{OUTPUT_TOPIC}-]:finished:1>ledger:finished:1:kill",
            meaning="everything of the batch is on the broker, nothing is committed",
        ),
    ),
    "postgres": _INTO_A_DATABASE,
    "mysql": _INTO_A_DATABASE,
    # Only a batch with files is published.
    "files": (
        Kill(
            "after the decision, before the files are published",
            "fault_point",
            fault="publish:started:1:kill",
            meaning="the ledger names the files, and no reader sees them yet",
        ),
        Kill(
            "after the next start has published them",
            "fault_point",
            fault="publish:finished:1:kill",
            meaning="the batch is visible, and Spark does not know it",
        ),
        Kill(
            "after Spark's job, before the decision",
            "fault_point",
            fault="send:finished:3:kill",
            meaning="files are written, hidden, and named nowhere",
        ),
    ),
}


_AT_LEAST_ONCE_PLAN = tuple(
    Kill(
        "while a batch is being written",
        "output_grows",
        meaning="some of the batch is in the output topic, and Spark does not know it",
    )
    for _ in range(3)
)
