"""I18: the contract over Delta and Iceberg tables, on Spark with their own writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lake_kits import DeltaKit, IcebergKit

from onceward_testing.sink_contract import TwoPhaseContract, TwoPhaseKit


@pytest.fixture(autouse=True)
def _in_the_lake(in_the_lake: None) -> None:
    """As inside a batch of a query of that session."""


@pytest.mark.once_more
class TestDelta(TwoPhaseContract):
    @pytest.fixture
    def kit(self, lake: Any, tmp_path: Path) -> TwoPhaseKit:
        return DeltaKit(lake, tmp_path)


@pytest.mark.once_more
class TestIceberg(TwoPhaseContract):
    @pytest.fixture
    def kit(self, lake: Any, tmp_path: Path) -> TwoPhaseKit:
        return IcebergKit(lake, tmp_path)
