"""The soak's plan is a function of its seed, and holds what the report promises to have done."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from onceward_testing.faults import parse_faults
from soak.plan import KILLS, KINDS, plan, step_errors

SEEDS = [0, 1, 20_261_121]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_is_a_plan_and_a_position_continues_it(seed: int):
    whole = list(itertools.islice(plan(seed), 120))
    assert whole == list(itertools.islice(plan(seed), 120))
    assert whole[47:] == list(itertools.islice(plan(seed, 47), 73))
    assert [fault.position for fault in whole] == list(range(120))


def test_another_seed_is_another_plan():
    kinds = {tuple(fault.kind for fault in itertools.islice(plan(seed), 25)) for seed in range(10)}
    assert len(kinds) == 10


@pytest.mark.parametrize("seed", SEEDS)
def test_an_hour_holds_enough_kills_of_each_kind_and_every_other_fault(seed: int):
    moments = itertools.accumulate(fault.gap_s for fault in plan(seed))
    timed = zip(plan(seed), moments, strict=True)
    an_hour = [fault for fault, _ in itertools.takewhile(lambda entry: entry[1] <= 3_600, timed)]
    kinds = Counter(fault.kind for fault in an_hour)
    assert set(kinds) == set(KINDS)
    assert sum(kinds[kind] for kind in KILLS) >= 98
    executors = kinds["kill-executor"] + kinds["kill-executor-behind-shuffle"]
    assert min(kinds["kill-driver"], kinds["kill-broker"], executors) >= 24
    assert kinds["kill-executor-behind-shuffle"] >= 36
    assert min(fault.gap_s for fault in an_hour) >= 25


@pytest.mark.parametrize("seed", SEEDS)
def test_each_life_has_step_errors_of_its_own_that_the_fault_points_understand(seed: int):
    lives = [step_errors(seed, life) for life in range(5)]
    assert lives == [step_errors(seed, life) for life in range(5)]
    assert len({tuple(life) for life in lives}) == 5
    for life in lives:
        faults = parse_faults(";".join(life))
        assert len(faults) == len(life) > 100
        assert {fault.action for fault in faults} == {"error"}
