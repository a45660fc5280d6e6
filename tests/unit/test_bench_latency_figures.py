"""What ``make bench ARGS=--latency`` plans and computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from benchmarks.latency_figures import LatencyTurn, percentile, summarise_latency
from benchmarks.plan import BEFORE, ONCEWARD, SPARK_DEFAULTS, LatencyPlan
from benchmarks.topics import Audit, OutputWrong

FAULTLESS = Audit(100, 0, 0, 0)
PLAN = LatencyPlan((SPARK_DEFAULTS, ONCEWARD), 1_000, 40, 2, 20, 4, "4.3.1")


def a_turn(
    contender: str,
    number: int,
    latencies_ms: Sequence[float],
    *,
    audit: Audit = FAULTLESS,
    steps_ms: dict[str, float] | None = None,
) -> LatencyTurn:
    return LatencyTurn(
        contender=contender,
        round=number,
        latencies_ms=latencies_ms,
        audit=audit,
        batches=10,
        phases_ms={"triggerExecution": 100.0 * number},
        steps_ms=steps_ms or {},
        pipeline_cores=0.5,
        broker_cores=0.25,
        sender_late_ms=float(number),
    )


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([3.0], 50, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
        (range(1, 101), 99, 99),
        (range(1, 102), 99, 100),
    ],
)
def test_a_percentile_is_a_value_that_occurred(
    values: Sequence[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(percentile([], 50))


def test_percentiles_are_over_all_turns_together() -> None:
    turns = [
        a_turn(SPARK_DEFAULTS, 1, [50.0]),
        a_turn(ONCEWARD, 1, [1.0] * 98),
        a_turn(ONCEWARD, 2, [200.0, 300.0]),
        a_turn(SPARK_DEFAULTS, 2, [70.0]),
    ]

    figures = summarise_latency(PLAN, turns)

    assert list(figures) == [SPARK_DEFAULTS, ONCEWARD]
    ours = figures[ONCEWARD]
    assert (ours.p50_ms, ours.p99_ms, ours.max_ms) == (1.0, 200.0, 300.0)
    assert ours.turns == [(1.0, 1.0), (200.0, 300.0)]
    assert (ours.batches, ours.sender_late_ms) == (20, 2.0)
    assert ours.phases_ms == {"triggerExecution": 150.0}


def test_losses_of_every_turn_count() -> None:
    turns = [
        a_turn(SPARK_DEFAULTS, 1, [1.0]),
        a_turn(ONCEWARD, 1, [1.0], audit=Audit(100, 2, 0, 0)),
        a_turn(ONCEWARD, 2, [1.0], audit=Audit(100, 1, 4, 0)),
    ]

    ours = summarise_latency(PLAN, turns)[ONCEWARD]

    assert (ours.records, ours.lost, ours.repeated) == (200, 3, 4)


def test_a_step_of_some_turns_is_told() -> None:
    turns = [
        a_turn(SPARK_DEFAULTS, 1, [1.0]),
        a_turn(ONCEWARD, 1, [1.0], steps_ms={"plan": 10.0, "send": 50.0}),
        a_turn(ONCEWARD, 2, [1.0], steps_ms={"plan": 20.0}),
    ]

    assert summarise_latency(PLAN, turns)[ONCEWARD].steps_ms == {"plan": 15.0, "send": 50.0}


@pytest.mark.parametrize("audit", [Audit(10, 1, 0, 0), Audit(10, 0, 1, 0), Audit(10, 0, 0, 1)])
def test_a_wrong_output_is_refused(audit: Audit) -> None:
    with pytest.raises(OutputWrong, match="topic out should hold 10 records"):
        audit.require("out")


def test_turns_share_the_seconds() -> None:
    plan = LatencyPlan((SPARK_DEFAULTS, BEFORE, ONCEWARD), 1_000, 40, 2, 20, 4, "4.3.1")

    assert plan.turn_seconds == 20
    assert list(plan.turns()) == [
        (1, SPARK_DEFAULTS, 20),
        (1, BEFORE, 20),
        (1, ONCEWARD, 20),
        (2, BEFORE, 10),
        (2, ONCEWARD, 10),
        (2, SPARK_DEFAULTS, 10),
    ]
