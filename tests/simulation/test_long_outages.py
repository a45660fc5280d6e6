"""Everything that a pipeline leans on is away in turn, for longer than any timeout: it lives, and
is exact.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulation.long_outage import BROKERS, DATABASE, EVERYWHERE, IDENTITY, LEDGER, TARGET, outage

QUARTER, HOURS = 1_000.0, 3 * 3_600.0
"""Seconds: longer than ``transaction.max.timeout.ms`` allows; and with eight dependencies a
day.
"""

PIPELINES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "kafka": ((BROKERS, IDENTITY, *EVERYWHERE), {"user": "sink"}),
    "write_ahead": ((BROKERS, IDENTITY, *EVERYWHERE, TARGET), {"user": "sink", "ledger": "kafka"}),
    "two_phase": ((*EVERYWHERE, LEDGER, TARGET), {"user": "sink", "ledger": "folder"}),
    "database": ((*EVERYWHERE, DATABASE), {"user": "sink"}),
}
"""Of each kind what it leans on, and how it is set up."""


@pytest.mark.lengthy("ci")
@pytest.mark.parametrize("kind", PIPELINES)
def test_a_pipeline_outlives_whatever_it_leans_on(kind: str) -> None:
    for seed in range(2):
        survives(kind, seed, QUARTER)


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("kind", PIPELINES)
def test_a_day_of_outages(kind: str) -> None:
    for seed in range(10, 13):
        survives(kind, seed, HOURS)


def survives(kind: str, seed: int, seconds: float) -> None:
    dependencies, change = PIPELINES[kind]
    found, world = outage(seed, kind, dependencies, seconds, **change)
    assert not found.violations, (seed, found.violations, found.setting)
    for dependency, starts in world.starts_in.items():
        assert starts > 8, f"INVALID: only {starts} starts failed while the {dependency} was away"
        assert starts <= 12 + seconds / 200, f"{starts} starts while the {dependency} was away"
