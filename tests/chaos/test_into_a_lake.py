"""I18: a job into a Delta and an Iceberg table, killed around the decision and the commit.

What the table has is read by the format's own reader, in a process of its own.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from lake_job import DIE_BEHIND, SEEN
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id

BATCHES, ROWS = 4, 200


class LakeJob:
    """The job of one format, its input, and what readers find of its output."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        program = Path(__file__).with_name("lake_job.py")
        self.job = TextFileJob(program, folder, form, "write")
        self._reader = TextFileJob(program, folder, form, "read")
        self.wanted = self.job.write_input(BATCHES, ROWS)

    def killed(self, fault: str | None = None) -> None:
        killed = self.job.live(fault)
        assert killed.status == -signal.SIGKILL, killed.log_tail()

    def seen(self) -> Counter[str]:
        reader = self._reader.live()
        assert reader.status == 0, reader.log_tail()
        return Counter(json.loads((self.folder / SEEN).read_text()))

    def assert_whole_batches(self, batches: int) -> None:
        assert self.seen() == Counter(self.wanted[: batches * ROWS])

    def assert_all_is_there_after_another_life(self) -> None:
        ended = self.job.live()
        assert ended.status == 0, ended.log_tail()
        self.assert_whole_batches(BATCHES)
        newest = ow.FolderLedger(self.folder / "ledger").chain(pipeline_id("lines")).peek()
        assert newest is not None
        assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")


@pytest.fixture(params=["delta", "iceberg"])
def lake_job(request: pytest.FixtureRequest, tmp_path: Path) -> LakeJob:
    return LakeJob(tmp_path, request.param)


@pytest.mark.fault("lake-driver-killed")
def test_killed_behind_the_tables_commit(lake_job: LakeJob):
    """The table has the second batch, and the ledger does not know; then before the third is
    decided.
    """
    (lake_job.folder / DIE_BEHIND).write_text("1")
    lake_job.killed()
    lake_job.assert_whole_batches(2)
    lake_job.killed("send:finished:1:kill")
    lake_job.assert_whole_batches(2)
    lake_job.assert_all_is_there_after_another_life()


@pytest.mark.fault("lake-driver-killed")
@pytest.mark.parametrize(
    ("fault", "visible"),
    [("publish:started:2:kill", 1), ("commit:started:2:kill", 1), ("open:finished:1:kill", 0)],
)
def test_killed_around_the_decision(lake_job: LakeJob, fault: str, visible: int):
    lake_job.killed(fault)
    lake_job.assert_whole_batches(visible)
    lake_job.assert_all_is_there_after_another_life()
