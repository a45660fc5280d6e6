"""A batch is of one computation, whatever of its shuffles and persisted frames is lost; a mix
would be found.
"""

from __future__ import annotations

from typing import Any

import pytest

from onceward.spark.batch.shuffles import Shuffles
from simulation.planted import first_violation, planted

SEEDS = range(25)
SEARCHED = range(200)
LOSSES = {"spark:executor killed": 8.0, "spark:output lost": 3.0}
BY_CHANCE: dict[str, Any] = {
    "batches": 6,
    "shuffle": True,
    "by_chance": True,
    "stateful": False,
    "tasks": 4,
    "slots": 1,
    "executors": 2,
    "driver_records": 0,
}


@pytest.mark.lengthy("ci")
@pytest.mark.parametrize("user", ["sink", "halves", "persists"])
@pytest.mark.parametrize("between", [0, 2])
def test_a_batch_is_of_one_computation(user: str, between: int) -> None:
    found = first_violation("kafka", SEEDS, LOSSES, user=user, between=between, **BY_CHANCE)
    assert found is None, (str(found.setting), found.violations)


@pytest.mark.parametrize(
    ("kept", "more"),
    [
        ("tracker.unregisterAllMapAndMergeOutput(shuffle)", {"between": 2}),
        ("drop_blocks(frame)", {"between": 0, "user": "persists"}),
    ],
    ids=["the second of two shuffles", "blocks of a persisted frame"],
)
def test_what_may_be_a_mix_and_is_kept_is_found(kept: str, more: dict[str, Any]) -> None:
    with planted(Shuffles, "_forget_if_lost", kept, "pass"):
        found = first_violation("kafka", SEARCHED, LOSSES, **BY_CHANCE, **more)
    assert found is not None
    assert found.violations[0].startswith(("I1", "I2"))
