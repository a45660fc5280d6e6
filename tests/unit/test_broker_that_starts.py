"""``onceward broker`` is left by Ctrl-C while it starts, too: what it waits for then may take
minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

JAVA = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit
touch "$STARTED"
exec sleep 300
"""
DEADLINE_SECONDS = 60


def test_ctrl_c_ends_a_start_that_hangs(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(JAVA)
    (tmp_path / "bin" / "java").chmod(0o755)
    started = tmp_path / "started"
    command = [sys.executable, "-c", "from onceward.cli import app; app()", "broker"]
    environment = {
        **os.environ,
        "JAVA_HOME": str(tmp_path),
        "STARTED": str(started),
        "ONCEWARD_CACHE": str(tmp_path),
    }
    broker = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not started.exists():
            assert broker.poll() is None, broker.stderr
            assert time.monotonic() < deadline
            time.sleep(0.05)
        broker.send_signal(signal.SIGINT)
        _, said = broker.communicate(timeout=DEADLINE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(broker.pid, signal.SIGKILL)
    assert broker.returncode != 0
    assert "running until" not in said
