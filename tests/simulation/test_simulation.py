"""A fixed part of all seeds, in each of which everything holds; and the same seed is the same
story, everywhere.

How many seeds: so that they take a minute of two cores in ``make test``. More: ``make simulate``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.campaign import Block, run_block

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 60

_DIGESTS = """
from simulation import swarm
from simulation.run import simulate
from simulation.story import Story
for pipeline in swarm.pipelines():
    for seed in range(1, 9):
        story = Story()
        outcome = simulate(seed, pipeline=pipeline, tell=story)
        print(pipeline, seed, story.digest(), outcome.steps)
"""

_AFTERWARDS = """
from simulation.run import simulate
print(*(simulate(seed).steps for seed in ORDER))
"""


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(n, marks=pytest.mark.lengthy(tier))
        for n, tier in enumerate(("main", "main", "ci", "chaos", "chaos", "chaos"))
    ],
)
def test_everything_holds(block: int):
    first = 1 + block * SEEDS
    tally, _, _ = run_block(Block(first, first + SEEDS - 1, stop=False))
    assert tally.violations == []
    assert tally.seeds == SEEDS
    assert tally.batches > SEEDS * 5
    assert tally.fired


def _told(program: str, hash_seed: int) -> list[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.lengthy("chaos")
def test_the_same_seed_is_the_same_story_in_another_process():
    told = _told(_DIGESTS, 1)
    assert len({line.split()[2] for line in told}) == len(told)
    assert _told(_DIGESTS, 2) == told


@pytest.mark.lengthy("chaos")
def test_a_story_does_not_hang_on_those_before_it():
    forwards = _told(_AFTERWARDS.replace("ORDER", "range(1, 20)"), 1)[0].split()
    backwards = _told(_AFTERWARDS.replace("ORDER", "range(19, 0, -1)"), 1)[0].split()
    assert backwards == forwards[::-1]
