"""Was every promise kept? The promises by id, judged when a story is over.

By a model that shares no code with what it judges: nothing here imports ``onceward``. ``output``
compares what is visible with the source, ``chain`` reads the ledger, ``ending`` looks whether
anything is left open, ``stops`` whether whatever stopped had a reason, ``canary`` for a secret.
What another target than topics has, its pipeline judges itself, with :func:`verdict.differences`
and :func:`chain.read_chain`.
"""

from __future__ import annotations

from typing import Any

from simulation.judge import canary, chain, ending, fold, output, stops
from simulation.judge.canary import CANARY
from simulation.judge.facts import Facts
from simulation.judge.verdict import Row, Violation, differences

__all__ = ["CANARY", "Violation", "differences", "judge"]

_SOURCE = "source"
_SHOWN = 20


def judge(world: Any) -> list[Violation]:
    """What was violated, the worst first; of what repeats itself the beginning."""
    facts = Facts(world)
    said: list[Violation] = []
    told: chain.Chain | None = None
    topics = getattr(world.pipeline, "topics", None)
    if topics is not None:
        told = _topics(facts, topics(facts.setting), said)
    said += ending.judge_ending(facts)
    said += stops.judge_stops(facts)
    said += stops.judge_sends(facts)
    said += stops.judge_causes(facts)
    said += canary.judge_secrets(facts, told)
    if said:
        said.sort(key=lambda violation: int(violation.invariant[1:]))
    return said[:_SHOWN]


def _topics(facts: Facts, topics: list[str], said: list[Violation]) -> chain.Chain:
    """A pipeline into topics, whose ledger is a topic, too."""
    world, setting = facts.world, facts.setting
    pipeline = world.pipeline.pipeline_id
    ledger = world.pipeline.ledger_topic
    told = chain.read_chain(world.cluster, ledger, _partitions(world.cluster, ledger), pipeline)
    said += told.violations
    places = [
        (topic, partition) for topic in topics for partition in range(setting.output_partitions)
    ]
    expected = _folded(facts, told) if world.plan.stateful else None
    found = output.judge_output(facts, told, places, _SOURCE, expected)
    said += [Violation("I9", sentence) if world.plan.stateful and name in ("I1",
        "I2") else Violation(name, sentence)
             for name, sentence in found]  # fmt: skip
    said += ending.judge_returns(facts, told)
    said += ending.judge_lag(facts, told, _SOURCE)
    said += ending.judge_group(facts, told, pipeline)
    said += ending.judge_takeovers(facts, told)
    said += ending.judge_heirs(facts, told)
    return told


def _partitions(cluster: Any, topic: str) -> range:
    """None if there is no such topic."""
    return range(len(cluster.topics[topic].partitions) if topic in cluster.topics else 0)


def _folded(facts: Facts, told: chain.Chain) -> list[Row]:
    world = facts.world
    batches = [
        output.range_of(record, _SOURCE) for record in told.records if not record.supplement
    ]
    rows, newest = fold.counts(batches, world.key_of, world.plan_branches)
    missing = output.not_handed_over(facts, told)
    return rows + [row for row in newest if row[0] not in missing]
