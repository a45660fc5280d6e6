"""What the latency part reports, computed from its turns. Pure; called by :mod:`__main__` and
:mod:`latency`.

Latency is from the call that sends a record to the moment at which a reader with
``read_committed`` has it, both in one process and by one clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.plan import LatencyPlan
from benchmarks.topics import Audit


@dataclass(frozen=True, slots=True)
class LatencyTurn:
    """One query under load.

    :param latencies_ms: of the records that were sent while it was measured and arrived. :param
        audit: of all records of the turn, warm-up included. :param sender_late_ms: how late the
        load itself was at worst; a record carries the time at which it was sent, not the one at
        which it should have been.
    :param phases_ms: medians of Spark's parts of a batch. :param steps_ms: medians of Onceward's
        steps.
    :param pipeline_cores, broker_cores: CPU seconds a second.
    """

    contender: str
    round: int
    latencies_ms: Sequence[float]
    audit: Audit
    batches: int
    phases_ms: Mapping[str, float]
    steps_ms: Mapping[str, float]
    pipeline_cores: float
    broker_cores: float
    sender_late_ms: float


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """One contender: percentiles over the records of all its turns together, in ms; ``turns`` are
    p50 and p99 of each.

    ``lost`` and ``repeated`` are counts over all ``records`` sent, ``batches`` are those measured;
    phases, steps and cores are medians over turns, ``sender_late_ms`` is the worst.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    turns: Sequence[tuple[float, float]]
    records: int
    lost: int
    repeated: int
    batches: int
    phases_ms: Mapping[str, float]
    steps_ms: Mapping[str, float]
    pipeline_cores: float
    broker_cores: float
    sender_late_ms: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that occurred, not above which are ``percent`` of all.
    NaN of none.
    """
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def summarise_latency(
    plan: LatencyPlan, turns: Sequence[LatencyTurn]
) -> dict[str, LatencyFigures]:
    """By contender, in the order of ``plan``."""
    return {
        name: _figures([turn for turn in turns if turn.contender == name])
        for name in plan.contenders
    }


def _figures(turns: Sequence[LatencyTurn]) -> LatencyFigures:
    pooled = [latency for turn in turns for latency in turn.latencies_ms]
    return LatencyFigures(
        p50_ms=percentile(pooled, 50),
        p99_ms=percentile(pooled, 99),
        max_ms=max(pooled, default=math.nan),
        turns=[
            (percentile(turn.latencies_ms, 50), percentile(turn.latencies_ms, 99))
            for turn in turns
        ],
        records=sum(turn.audit.records for turn in turns),
        lost=sum(turn.audit.lost for turn in turns),
        repeated=sum(turn.audit.repeated for turn in turns),
        batches=sum(turn.batches for turn in turns),
        phases_ms=_medians([turn.phases_ms for turn in turns]),
        steps_ms=_medians([turn.steps_ms for turn in turns]),
        pipeline_cores=mean(turn.pipeline_cores for turn in turns),
        broker_cores=mean(turn.broker_cores for turn in turns),
        sender_late_ms=max(turn.sender_late_ms for turn in turns),
    )


def _medians(of_turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for of_turn in of_turns for name in of_turn)
    return {
        name: median(of_turn[name] for of_turn in of_turns if name in of_turn) for name in names
    }
