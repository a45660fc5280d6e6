"""State of an attempt that failed, which an executor keeps, is in no later batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onceward

JOB = Path(__file__).with_name("state_job.py")


@pytest.mark.parametrize("store", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_state_of_an_attempt_that_failed_elsewhere_is_not_gone_on_from(tmp_path: Path, store: str):
    done = subprocess.run(
        [sys.executable, JOB, tmp_path, store],
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
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(set(said["by"])) == 2, "both attempts were on one executor"
    assert said["error"] == "StateOfFailedAttempt"
    assert sorted(said["found"]) == ["a", "b"]
    for drawn in said["found"].values():
        assert len(drawn) == 3
        assert len(set(drawn)) == 1
