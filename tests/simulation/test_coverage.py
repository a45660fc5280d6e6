"""Every kind of fault happens in every step of the engine, and every row of the error table is
met, by stories that are told here; or it is said why that cannot be.
"""

from __future__ import annotations

import pytest

from onceward.events import STEPS
from simulation import coverage, reach
from simulation.run import simulate
from simulation.steps import BETWEEN

pytestmark = pytest.mark.lengthy("chaos")

SEEDS = 100
EXPIRING = {"id_expiration_ms": 20_000, "trouble_seconds": 120.0, "batches": 6}
RARE = (
    (("pause:finish.finished", "finish"), {**EXPIRING, "transaction_version": 1}),
    (("pause:finish.finished", "finish"), {**EXPIRING, "transaction_version": 2}),
    (("user:second copy", "offsets"), {"transaction_version": 1, "batches": 6}),
    (("pause:send.finished", "send"), {**EXPIRING, "transaction_version": 1}),
)
"""Stories that lead to rows which nobody's refusal by itself is: ids that expired, owners that
were replaced.
"""


@pytest.mark.parametrize("step", [*STEPS, BETWEEN])
def test_every_fault_happens_in_every_step(step: str):
    told, missing = reach.of_step(step)
    assert missing == []
    assert told.tally.violations == []
    impossible = {
        pair for pair in told.tally.pairs if pair[0] and coverage.why_not(pair[1], pair[0])
    }
    assert impossible == set(), "listed as impossible"


def test_every_row_of_the_error_table_is_met():
    told, missing = reach.of_step("")
    assert missing == []
    assert told.tally.violations == []
    unmet = {
        row
        for row in coverage.never(told.tally.rows, coverage.answered_rows())
        if not coverage.row_why_not(*row)
    }
    for seed in range(SEEDS):
        for aim, change in RARE:
            if unmet:
                unmet -= set(simulate(seed, pipeline="kafka", aim=aim, change=change).rows)
    assert unmet == set()
