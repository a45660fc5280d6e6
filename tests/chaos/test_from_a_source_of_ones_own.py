"""I19: a custom source, whose file grows, in a job that is killed again and again."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pyarrow.dataset as dataset
import pytest
from text_file_jobs import TextFileJob

from onceward_testing.job_process import JobProcess

LINES_A_LIFE = 100
FAULTS = [
    "commit:started:2:kill",
    "publish:started:2:kill",
    "send:finished:1:kill",
    "finish:started:1:kill",
]


class Log:
    """The file that grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()

    def grow(self) -> None:
        fresh = [f"line {len(self.lines) + number}" for number in range(LINES_A_LIFE)]
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in fresh)
        self.lines += fresh


@pytest.mark.timeout(900)
@pytest.mark.fault("source-driver-killed")
def test_killed_again_and_again(tmp_path: Path):
    log, job = (
        Log(tmp_path / "log.txt"),
        TextFileJob(Path(__file__).with_name("source_job.py"), tmp_path),
    )
    for life, fault in enumerate(FAULTS, start=1):
        log.grow()
        killed = started(job, fault)
        assert killed.status == -signal.SIGKILL, killed.log_tail()
        assert job.fired() == FAULTS[:life], f"INVALID: {fault} never fired"
    log.grow()
    (tmp_path / "complete").touch()
    ended = job.live()
    assert ended.status == 0, ended.log_tail()

    rows = dataset.dataset(str(tmp_path / "out"), format="parquet").to_table(columns=["line"])
    assert Counter(rows.column("line").to_pylist()) == Counter(log.lines)
    offsets = [
        logged(file)
        for file in (tmp_path / "checkpoint" / "offsets").iterdir()
        if file.name.isdecimal()
    ]
    assert all(0 < offset["rows"] <= 40 for offset in offsets)
    assert sum(offset["rows"] for offset in offsets) == len(
        log.lines
    )  # no range twice, none left out


def started(job: TextFileJob, fault: str) -> JobProcess:
    """A life that ends by its fault."""
    process = job.start(fault)
    try:
        process.wait(300)
    finally:
        process.end_all()
    return process


def logged(file: Path) -> dict[str, int]:
    """What Spark has logged of the one source of a batch."""
    offset: dict[str, int] = json.loads(file.read_text().splitlines()[-1])
    return offset
