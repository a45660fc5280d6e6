"""Deliveries to a target without transactions, whatever befalls them; and that what would be wrong
is found.
"""

from __future__ import annotations

from typing import Any

import pytest

from onceward.delivery.row_files import RowFile
from onceward.delivery.target import WriteAheadTarget
from simulation.planted import first_violation, planted
from simulation.run import simulate

SEEDS = range(100)
SEARCHED = range(600)


@pytest.mark.lengthy("chaos")
def test_whoever_looks_at_keys_has_every_row_once_whatever_befalls_it() -> None:
    batches, fired = 0, set()
    for seed in SEEDS:
        outcome = simulate(seed, pipeline="write_ahead", change={"batches": 6})
        assert not outcome.violations, (seed, str(outcome.setting), outcome.violations)
        batches += outcome.batches
        fired |= {kind.partition(":")[0] for kind, _ in outcome.fired}
    assert batches > 5 * len(SEEDS)
    assert len(fired) > 5


_COUNTED = "record = self._counted(chunk, record)"


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize(
    ("odds", "owner", "name", "before", "after"),
    [
        ({"crash:deliver.started": 3}, WriteAheadTarget, "finish", _COUNTED, "record = record"),
        (
            {"target:caller dies": 3},
            WriteAheadTarget,
            "finish",
            "if chunk.rows.num_rows:",
            f"{_COUNTED}\n            if chunk.rows.num_rows:",
        ),
        (
            {"target:answers": 3},
            WriteAheadTarget,
            "_delivered",
            "if answer is not None:",
            "if not record:",
        ),
        ({"target:rot": 3}, RowFile, "looked_at", "(found_bytes, found_crc) !=", "False and"),
        (
            {"crash:deliver.finished": 3},
            WriteAheadTarget,
            "finish",
            "record.outputs[KIND].data, names",
            '{**record.outputs[KIND].data, "chunk_rows": self.chunk_rows}, names',
        ),
        (
            {"target:down": 3, "user:second copy": 4},
            WriteAheadTarget,
            "_delivered",
            "> OWNED_SECONDS",
            "< 0",
        ),
    ],
    ids=["160", "161", "162", "163", "165", "164"],
)
def test_what_is_wrong_is_found(
    odds: dict[str, float], owner: Any, name: str, before: str, after: str
) -> None:
    with planted(owner, name, before, after):
        assert first_violation("write_ahead", SEARCHED, odds, batches=6) is not None
