"""The demo as a user runs it, shortened: its verdict, its exit status, and that it leaves nothing
behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

_SHORT = ("--records", "20000", "--seconds", "40", "--window-seconds", "10")
_LIMIT_SECONDS = 900

pytestmark = [pytest.mark.slow, pytest.mark.timeout(_LIMIT_SECONDS + 60)]


def _demo(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the demo with ``folder`` as its temporary folder; its exit status and its one JSON
    line.
    """
    done = subprocess.run(
        [sys.executable, "-c", "from onceward.cli import app; app()", "demo", *_SHORT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_SECONDS,
        env={**os.environ, "TMPDIR": str(folder)},
        check=False,
    )
    (line,) = done.stdout.splitlines()
    return done.returncode, json.loads(line)


def _left_over(folder: Path) -> list[str]:
    """Processes that still name ``folder`` on their command line, and folders of ours in it."""
    commands = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [command for command in commands if str(folder) in command] + [
        entry.name for entry in folder.iterdir() if entry.name.startswith("onceward-")
    ]


@pytest.mark.parametrize("broker_version", ["4.3.1", "3.9.1"])
def test_a_job_killed_again_and_again_writes_every_number_exactly_once(
    tmp_path: Path, broker_version: str
) -> None:
    status, result = _demo(tmp_path, "--broker-version", broker_version)
    assert result["violations"] == []
    assert status == 0
    assert (result["lost"], result["duplicates"], result["unexpected"]) == (0, 0, 0)
    assert result["visible"] == result["expected"] > 0
    assert result["kills"] >= 3
    assert result["aborted_records_hidden"] > 0
    assert result["batches"] > 0
    assert result["group_lag"] == 0
    assert result["poison"] == result["dead_letters"] > 100
    assert _left_over(tmp_path) == []


@pytest.mark.parametrize("sink", ["postgres", "mysql", "files"])
def test_a_job_that_writes_elsewhere_does_so_as_well(tmp_path: Path, sink: str) -> None:
    status, result = _demo(tmp_path, "--sink", sink, "--kills", "5", "--seed", "3")
    assert result["violations"] == []
    assert status == 0
    assert (result["lost"], result["duplicates"], result["unexpected"], result["left_over"]) == (
        0,
        0,
        0,
        0,
    )
    assert result["visible"] == result["expected"] > 0
    assert result["kills"] == 5
    assert result["batches"] > 0
    assert _left_over(tmp_path) == []


@pytest.mark.parametrize(
    "options", [(), ("--kills", "5", "--seed", "2")], ids=["planned kills", "random kills"]
)
def test_a_job_that_reads_mysqls_changes_writes_each_once_and_in_order(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status, result = _demo(tmp_path, "--source", "mysql", *options)
    assert result["violations"] == []
    assert status == 0
    assert (result["lost"], result["duplicates"], result["unexpected"]) == (0, 0, 0)
    assert result["visible"] == result["expected"] > result["snapshot_rows"] > 1_000
    assert result["input"] >= 20_000
    assert result["kills"] == 5
    assert result["aborted_records_hidden"] > 0
    assert result["batches"] > 0
    assert _left_over(tmp_path) == []


def test_a_table_of_mysql_is_the_same_in_postgresql(tmp_path: Path) -> None:
    status, result = _demo(tmp_path, "--source", "mysql", "--sink", "postgres")
    assert result["violations"] == []
    assert status == 0
    assert (result["lost"], result["duplicates"], result["unexpected"], result["left_over"]) == (
        0,
        0,
        0,
        0,
    )
    assert result["visible"] == result["expected"] > 1_000
    assert result["kills"] == 5
    assert _left_over(tmp_path) == []


def test_the_same_kills_make_sparks_own_sink_repeat_records(tmp_path: Path) -> None:
    status, result = _demo(tmp_path, "--at-least-once")
    assert status == 1
    assert result["duplicates"] > 0
    assert (result["lost"], result["unexpected"]) == (0, 0)
    assert result["kills"] >= 3
    assert _left_over(tmp_path) == []
