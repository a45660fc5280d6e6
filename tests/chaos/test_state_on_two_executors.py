"""State of an attempt that failed, which an executor keeps, or Spark's maintenance has kept in the
checkpoint, is in no later batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onceward


def said_by(job: str, tmp_path: Path, how: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(job), tmp_path, how],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(onceward.__file__).parents[1]),
            "PYSPARK_PYTHON": sys.executable,
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize("restart", ["again", "anew"])
def test_state_that_maintenance_has_kept_of_an_attempt_that_failed_is_in_no_later_start(
    tmp_path: Path, restart: str
):
    """Spark loads a snapshot rather than the changes that the next attempt has written."""
    said = said_by("snapshot_job.py", tmp_path, restart)
    assert said["kept"], "nothing was kept"
    assert said["drawn"] == {"a": 1, "b": 1}


@pytest.mark.parametrize("store", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_state_of_an_attempt_that_failed_elsewhere_is_not_gone_on_from(tmp_path: Path, store: str):
    said = said_by("state_job.py", tmp_path, store)
    assert len(set(said["by"])) == 2, "both attempts were on one executor"
    assert said["error"] == "StateOfFailedAttempt"
    assert sorted(said["found"]) == ["a", "b"]
    for drawn in said["found"].values():
        assert len(drawn) == 3
        assert len(set(drawn)) == 1
