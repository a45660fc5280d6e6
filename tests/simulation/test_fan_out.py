"""Several targets as one, whatever befalls them; and that what would be wrong is found."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.engine.fan_out import Branch, FanOutTarget
from simulation.planted import first_violation, planted
from simulation.run import simulate

SEEDS = range(40)
SEARCHED = range(400)


@pytest.mark.lengthy("chaos")
def test_all_targets_have_every_batch_once_whatever_befalls_them() -> None:
    batches, fired = 0, set()
    for seed in SEEDS:
        outcome = simulate(seed, pipeline="fan_out", change={"batches": 6})
        assert not outcome.violations, (seed, str(outcome.setting), outcome.violations)
        batches += outcome.batches
        fired |= {kind.partition(":")[0] for kind, _ in outcome.fired}
    assert batches > 5 * len(SEEDS)
    assert len(fired) > 4


_CRASHES = {"crash:deliver.finished": 3.0}
_ONE = "in [*self._must_be_ours(record)][:1]:"


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize(
    ("odds", "targets", "owner", "name", "before", "after"),
    [
        (None, "store mail", FanOutTarget, "finish", "in self._must_be_ours(record):", _ONE),
        (
            _CRASHES,
            "mail store",
            Branch,
            "progress",
            "{**self.record.outputs, self.output: output}",
            "{self.output: output}",
        ),
        (None, "store mail", Branch, "__init__", "target.chain is not chain", "target"),
    ],
    ids=["193", "others are forgotten", "the chain is closed"],
)
def test_what_is_wrong_is_found(
    odds: dict[str, float] | None, targets: str, owner: Any, name: str, before: str, after: str
) -> None:
    with planted(owner, name, before, after):
        assert first_violation("fan_out", SEARCHED, odds, batches=6, targets=targets) is not None
