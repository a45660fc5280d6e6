"""I10: the example of a custom sink, in a job that is killed before, in and after the decision."""

from __future__ import annotations

import csv
import signal
from collections import Counter
from pathlib import Path

import pytest
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id

BATCHES = 4


@pytest.mark.parametrize(
    "fault", ["commit:finished:2:kill", "send:finished:2:kill", "publish:started:3:kill"]
)
def test_killed_around_the_decision(tmp_path: Path, fault: str):
    job = TextFileJob(Path(__file__).with_name("own_sink_job.py"), tmp_path)
    wanted = job.write_input(BATCHES)
    killed = job.live(fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    ended = job.live()
    assert ended.status == 0, ended.log_tail()
    files = (tmp_path / "out").glob("*.csv")
    assert Counter(row[0] for file in files for row in csv.reader(file.open())) == Counter(wanted)
    assert list((tmp_path / "out" / ".prepared" / "own-sink").iterdir()) == []
    newest = ow.FolderLedger(tmp_path / "ledger").chain(pipeline_id("own-sink")).peek()
    assert newest is not None
    assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")
