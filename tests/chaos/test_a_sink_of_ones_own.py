"""The example of a sink of one's own, in a job of its own that is killed before, in and after the decision."""

from __future__ import annotations

import csv
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from pipeline_lives import PATIENCE_SECONDS

import onceward as ow
from onceward.ids import pipeline_id
from onceward.operate.job_process import JobProcess
from onceward.testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE, fired_faults

JOB = Path(__file__).with_name("own_sink_job.py")
BATCHES = 4


def live(folder: Path, fault: str | None = None) -> JobProcess:
    """One life of the job, to its end."""
    fired = folder / "fired.jsonl"
    job = JobProcess(
        [sys.executable, str(JOB), str(folder)],
        folder=folder,
        log=folder / "log",
        environment={
            "PYTHONPATH": os.pathsep.join(sys.path),
            FAULTS_VARIABLE: fault,
            FIRED_VARIABLE: str(fired) if fault else None,
        },
    )
    try:
        job.wait(PATIENCE_SECONDS)
    finally:
        job.bury()
    if fault:
        assert [found.fault for found in fired_faults(fired)] == [fault], f"INVALID: {fault} never fired"
    return job


@pytest.mark.parametrize("fault", ["send:finished:2:kill", "commit:finished:2:kill", "publish:started:3:kill"])
def test_killed_around_the_decision(tmp_path: Path, fault: str):
    (tmp_path / "in").mkdir()
    wanted = [f"{batch}-{number}" for batch in range(BATCHES) for number in range(500)]
    for batch in range(BATCHES):
        lines = [line for line in wanted if line.startswith(f"{batch}-")]
        (tmp_path / "in" / f"{batch}.txt").write_text("\n".join(lines) + "\n")
    killed = live(tmp_path, fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    ended = live(tmp_path)
    assert ended.status == 0, ended.log_tail()
    files = (tmp_path / "out").glob("*.csv")
    assert Counter(row[0] for file in files for row in csv.reader(file.open())) == Counter(wanted)
    assert list((tmp_path / "out" / ".prepared" / "own-sink").iterdir()) == []
    newest = ow.FolderLedger(tmp_path / "ledger").chain(pipeline_id("own-sink")).peek()
    assert newest is not None
    assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")
