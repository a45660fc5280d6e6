"""A sink in two phases, whatever befalls it; and that the simulation finds what would be wrong
with it.
"""

from __future__ import annotations

from typing import Any

import pytest

from onceward.engine.micro_batch import MicroBatches
from onceward.engine.two_phase import TwoPhaseAttempt, TwoPhaseTarget
from simulation.planted import first_violation, planted
from simulation.run import simulate

SEEDS = range(120)
SEARCHED = range(600)
_COMMIT = "commit(one) for one in self._committables()"


@pytest.mark.lengthy("chaos")
def test_a_store_has_every_batch_once_whatever_befalls_it() -> None:
    batches, fired = 0, set()
    for seed in SEEDS:
        outcome = simulate(seed, pipeline="two_phase", change={"batches": 6})
        assert not outcome.violations, (seed, str(outcome.setting), outcome.violations)
        batches += outcome.batches
        fired |= {kind.partition(":")[0] for kind, _ in outcome.fired}
    assert batches > 5 * len(SEEDS)
    assert len(fired) > 5


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize(
    ("odds", "owner", "name", "before", "after"),
    [
        (None, MicroBatches, "_publish", "self._newest is None or", "True or"),
        (
            {"crash:publish.started": 3},
            TwoPhaseTarget,
            "find_undecided",
            " and one not in decided",
            "",
        ),
        (
            None,
            TwoPhaseTarget,
            "_publish",
            "in (CommitResult.RETRY_LATER, CommitResult.PROGRESS)",
            "is None",
        ),
        (
            None,
            TwoPhaseTarget,
            "_commit",
            "return CommitResult.RETRY_LATER",
            "return CommitResult.DONE",
        ),
        (
            {"target:forgets": 3},
            TwoPhaseTarget,
            "_must_not_be_lost",
            "if not lost",
            "if lost or not lost",
        ),
        (
            None,
            TwoPhaseAttempt,
            "commit",
            "self._chain",
            f"[self._committer.{_COMMIT}]; self._chain",
        ),
        (
            {"crash:commit.started": 3},
            TwoPhaseTarget,
            "_drop_undecided",
            "self.committer, self._undecided",
            "self.committer, []",
        ),
        (
            {"crash:commit.started": 3},
            TwoPhaseTarget,
            "find_undecided",
            "if of_another",
            "self._drop_undecided()\n    if of_another",
        ),
    ],
    ids=["106", "107", "109", "110", "111", "105", "nothing is dropped", "190"],
)
def test_what_is_wrong_is_found(
    odds: dict[str, float] | None, owner: Any, name: str, before: str, after: str
) -> None:
    with planted(owner, name, before, after):
        assert first_violation("two_phase", SEARCHED, odds, batches=6) is not None
