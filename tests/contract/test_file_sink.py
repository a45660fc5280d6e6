"""I17: the contract over files: each layout, in this process and on Spark with its own writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from file_kits import FileKit, HereKit

from onceward_testing.sink_contract import TwoPhaseContract, TwoPhaseKit

pytestmark = pytest.mark.lengthy("ci")


class TestBatchesOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> TwoPhaseKit:
        return FileKit(spark, tmp_path, "batches", "parquet")


@pytest.mark.once_more
class TestFlatOnSpark(TwoPhaseContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> TwoPhaseKit:
        return FileKit(spark, tmp_path, "flat", "json", partitioned=True)


class TestBatchesInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoPhaseKit:
        return HereKit(tmp_path, "batches", monkeypatch)


class TestFlatInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoPhaseKit:
        return HereKit(tmp_path, "flat", monkeypatch)


class TestManifestInThisProcess(TwoPhaseContract):
    @pytest.fixture
    def kit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoPhaseKit:
        return HereKit(tmp_path, "manifest", monkeypatch)
