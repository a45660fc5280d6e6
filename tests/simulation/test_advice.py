"""An operator who does what an error says loses nothing; one who does half of it is refused, by
name.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulation import swarm
from simulation.run import Outcome, simulate_setting

pytestmark = pytest.mark.lengthy("ci")

SEEDS = 12
_RESTORED = {
    "user:checkpoint restored": 1.0,
    "crash:finish.started": 5.0,
    "crash:commit.finished": 5.0,
}
_REFUSED = {"answer:Produce:59": 4.0, "spark:task fails": 4.0}


def told(odds: dict[str, float], **options: Any) -> list[Outcome]:
    """Stories, none of them violated."""
    outcomes = []
    for seed in range(1, SEEDS + 1):
        setting = (
            swarm.draw(seed, "kafka")
            .with_faults(odds, {})
            .changed(batches=12, most_faults=12, **options)
        )
        outcomes.append(simulate_setting(setting))
    assert not [(outcome.seed, outcome.violations) for outcome in outcomes if outcome.violations]
    return outcomes


def followed(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if ("event", "advice followed") in outcome.met]


@pytest.mark.parametrize("user", ["twice", "two sinks"])
def test_what_a_second_call_was_refused_is_written_by_complete(user: str) -> None:
    outcomes = followed(told({}, operator="follows", user=user, topics=2, stateful=False))
    assert outcomes
    for outcome in outcomes:
        assert set(outcome.stops) == {"UnsupportedQuery"}


def test_what_a_function_kept_to_itself_is_written_when_its_batch_runs_again() -> None:
    outcomes = followed(told(_REFUSED, operator="follows", user="swallows", batch_attempts=1))
    assert any("BatchNotWritten" in outcome.stops for outcome in outcomes)


def test_a_function_that_left_batches_out_is_mended_and_goes_on() -> None:
    outcomes = followed(told({}, operator="follows", user="leaves out", stateful=False))
    assert outcomes
    for outcome in outcomes:
        assert set(outcome.stops) <= {"BatchNotWritten", "LedgerBehind"}


def test_a_disk_that_has_no_room_for_our_files_has_none_for_sparks_logs() -> None:
    """What the one would tell of a batch that a function kept to itself, the lack of the other
    says, too.
    """
    outcomes = told(_REFUSED | {"fs:no space": 4.0}, user="swallows", batch_attempts=1)
    assert any("LogNotWritten" in outcome.stops for outcome in outcomes)


def test_a_checkpoint_that_was_put_back_is_left_for_the_ledger() -> None:
    outcomes = followed(told(_RESTORED, operator="follows", user="sink", stateful=False))
    assert any("CheckpointRewound" in outcome.stops for outcome in outcomes)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_new_checkpoint_that_does_not_begin_where_the_ledger_ends_is_refused(
    stateful: bool,
) -> None:
    outcomes = followed(told(_RESTORED, operator="hasty", user="sink", stateful=stateful))
    assert any("CheckpointReplaced" in outcome.stops for outcome in outcomes)
