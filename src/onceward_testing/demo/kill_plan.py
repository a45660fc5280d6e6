"""Moments at which the demo kills its job. Pure: the plan is made before the run, from the
settings and the seed alone.

Each kill belongs to one run of the job, in this order; after the last one the job runs to the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from onceward_testing.demo.settings import CHANGES_PREFIX, OUTPUT_TOPIC, DemoSettings

Trigger = Literal["fault_point", "after_the_start", "after_a_commit", "output_grows"]


@dataclass(frozen=True, slots=True)
class Kill:
    """One ``kill -9``.

    ``trigger``: ``fault_point``, the job itself at the step that ``fault`` names
    (:mod:`onceward_testing.faults`); ``after_the_start`` and ``after_a_commit``, from outside
    ``delay_s`` seconds after this run of the job began, or committed for the first time;
    ``output_grows``, from outside as soon as new records show in the output topic.
    """

    where: str
    trigger: Trigger = "fault_point"
    fault: str = ""
    delay_s: float = 0.0
    meaning: str = ""


def kill_plan(settings: DemoSettings) -> tuple[Kill, ...]:
    """Return at least three kills, unless the settings say how many."""
    if not settings.exactly_once:
        return _WHILE_IT_WRITES
    steps = _kills_at_steps(settings)
    rng = random.Random(settings.seed)  # noqa: S311  moments, not secrets
    if settings.kills is not None:
        return tuple(_random_kill(steps, rng) for _ in range(settings.kills))
    delay_s = round(rng.uniform(0.5, 4.0), 2)
    at_random = Kill(
        "from outside, at a random moment",
        "after_a_commit",
        delay_s=delay_s,
        meaning="wherever the job happens to be",
    )
    return (*_kills_in_the_snapshot(settings), *steps, at_random)


def _random_kill(steps: tuple[Kill, ...], rng: random.Random) -> Kill:
    """Draw a kill: half of them some time after a commit, a quarter before there can be one, a
    quarter at a step of the engine."""
    kind = rng.random()
    if kind < 0.5:
        delay_s = round(rng.uniform(0.0, 4.0), 2)
        return Kill(f"{delay_s} s after its first commit", "after_a_commit", delay_s=delay_s)
    if kind < 0.75:
        delay_s = round(rng.uniform(2.0, 12.0), 2)
        return Kill(f"{delay_s} s after its start", "after_the_start", delay_s=delay_s)
    return rng.choice(steps)


def _kills_in_the_snapshot(settings: DemoSettings) -> tuple[Kill, ...]:
    """Return the kill in the first batch with rows, which is the snapshot's."""
    if settings.source != "mysql":
        return ()
    step = f"lease[{CHANGES_PREFIX}]" if settings.sink == "kafka" else "send"
    meaning = "read again, the rows must be what they were, while people change them"
    return (
        Kill(
            "in the snapshot, while its rows are written",
            fault=f"{step}:finished:1:kill",
            meaning=meaning,
        ),
    )


def _kills_at_steps(settings: DemoSettings) -> tuple[Kill, ...]:
    if settings.sink == "kafka":
        # Dead letters have leases in every batch, and rows of the output only those batches in
        # which windows end.
        in_windows = settings.source == "kafka"
        lease = f"lease[{f'{OUTPUT_TOPIC}-' if in_windows else CHANGES_PREFIX}]:finished"
        first = "" if in_windows else "commit:finished:1>"
        commit = _after_commit("EndTxn", "commit:finished:1:kill")
        send = Kill(
            "inside the send phase",
            fault=f"{first}{lease}:2:kill",
            meaning="the transaction is open: some of the batch is on the broker, some is not",
        )
        ledger = Kill(
            "after the ledger record, before EndTxn",
            fault=f"{first}{lease}:1>ledger:finished:1:kill",
            meaning="everything of the batch is on the broker, nothing is committed",
        )
        # Behind windows: that batch is run again first, so the first commit after `send` is of a
        # batch with output.
        return (send, commit, ledger) if in_windows else (commit, send, ledger)
    return _INTO_FILES if settings.sink == "files" else _INTO_A_DATABASE


def _after_commit(commit: str, fault: str) -> Kill:
    meaning = "the batch is visible, and Spark does not know it"
    return Kill(f"between {commit} and Spark's commit log", fault=fault, meaning=meaning)


# Step `move` is there only where a batch has rows.
_INTO_A_DATABASE = (
    Kill(
        "after the rows were staged, before they are moved",
        fault="move:started:1:kill",
        meaning="all rows are in a staging table; the transaction is open, with the ledger's row",
    ),
    Kill(
        "after the rows were moved, before COMMIT",
        fault="move:finished:1:kill",
        meaning="rows and ledger record are in the open transaction, nothing is committed",
    ),
    _after_commit("COMMIT", "move:finished:1>commit:finished:1:kill"),
)

# Only a batch with files is published.
_INTO_FILES = (
    Kill(
        "after the decision, before the files are published",
        fault="publish:started:1:kill",
        meaning="the ledger names the files, and no reader sees them yet",
    ),
    Kill(
        "after the next start has published them",
        fault="publish:finished:1:kill",
        meaning="the batch is visible, and Spark does not know it",
    ),
    Kill(
        "after Spark's job, before the decision",
        fault="send:finished:3:kill",
        meaning="files are written, hidden, and named nowhere",
    ),
)

_WHILE_IT_WRITES = (
    Kill(
        "while a batch is being written",
        "output_grows",
        meaning="some of the batch is in the output topic, and Spark does not know it",
    ),
) * 3
