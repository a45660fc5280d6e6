"""I15: a job that delivers to an HTTP server, killed around the decision and around deliveries."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from pipeline_lives import PATIENCE_SECONDS
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id
from support.http_target import HttpTarget

BATCHES = 3
ROWS = 500
CHUNKS = 5
"""Of each batch."""


@pytest.mark.fault("write-ahead-driver-killed")
@pytest.mark.parametrize(
    ("fault", "repeated"),
    [
        ("deliver:finished:7:kill", 1),  # the target has it, and the ledger does not say so
        ("deliver:started:7:kill", 0),
        ("send:finished:2:kill", 0),
        ("commit:finished:2:kill", 0),
        ("deliver:finished:10>publish:finished:1:kill", 0),
    ],
)
def test_killed_around_decision_and_deliveries(tmp_path: Path, fault: str, repeated: int):
    """The server keeps whatever it is sent, so that every repetition shows."""
    with HttpTarget(tmp_path) as http:
        job = TextFileJob(
            Path(__file__).with_name("write_ahead_job.py"), tmp_path, http.url("people", "ignores")
        )
        wanted = job.write_input(BATCHES, ROWS)
        killed = job.live(fault)
        assert killed.status == -signal.SIGKILL, killed.log_tail()
        ended = job.live()
        assert ended.status == 0, ended.log_tail()
        kept = http.kept("people", "ignores")
    once = dict(kept)
    assert Counter(value for values in once.values() for value in values) == Counter(wanted)
    assert len(kept) - len(once) == repeated
    assert all(once[key] == values for key, values in kept), "one key, other rows"
    assert list((tmp_path / "store" / "to-http").iterdir()) == []
    newest = ow.FolderLedger(tmp_path / "ledger").chain(pipeline_id("to-http")).peek()
    assert newest is not None
    assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")
    assert newest.outputs["write_ahead"].data["delivered"] == CHUNKS


@pytest.mark.fault("write-ahead-older-copy")
def test_an_older_copy_that_stood_still_in_a_delivery_delivers_one_chunk_at_most(tmp_path: Path):
    """A newer one does the rest meanwhile, over the same checkpoint."""
    fault = "deliver:started:7:stop"
    with HttpTarget(tmp_path) as http:
        job = TextFileJob(
            Path(__file__).with_name("write_ahead_job.py"), tmp_path, http.url("people", "ignores")
        )
        wanted = job.write_input(BATCHES, ROWS)
        older = job.start(fault)
        try:
            ends = time.monotonic() + PATIENCE_SECONDS
            while fault not in job.fired():
                assert older.status is None, older.log_tail()
                assert time.monotonic() < ends, "INVALID: it never came so far"
                time.sleep(0.1)
            newer = job.live()
            assert newer.status == 0, newer.log_tail()
            before = http.kept("people", "ignores")
            older.resume()
            assert older.wait(PATIENCE_SECONDS) != 0
        finally:
            older.end_all()
        kept = http.kept("people", "ignores")
    assert Counter(value for _, values in before for value in values) == Counter(wanted)
    late = kept[len(before) :]
    assert len(late) == 1, "it is within its delivery when it goes on"
    assert late[0] in before, "the same rows, under the same key"
    assert "Fenced" in (tmp_path / "log").read_text()
