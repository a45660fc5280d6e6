"""Every kind of fault happens in every step of the engine, and every row of the error table is met, by stories that are
told here; or it is said why that cannot be."""

from __future__ import annotations

import pytest

from onceward.events import STEPS
from simulation import coverage, reach
from simulation.steps import BETWEEN


@pytest.mark.parametrize("step", [*STEPS, BETWEEN])
def test_every_fault_happens_in_every_step(step: str):
    told, missing = reach.of_step(step)
    assert missing == []
    assert told.tally.violations == []
    impossible = {pair for pair in told.tally.pairs if coverage.why_not(pair[1], pair[0])}
    assert impossible == set(), "listed as impossible"


def test_every_row_of_the_error_table_is_met():
    told, missing = reach.of_step("")
    assert missing == []
    assert told.tally.violations == []
    unmet = coverage.never(told.tally.rows, coverage.answered_rows())
    assert [row for row in unmet if coverage.row_why_not(*row) is None] == []
