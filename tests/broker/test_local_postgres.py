"""The database for tests: it starts, crashes and comes back, and never outlives who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg

from onceward.testing import LocalPostgres

OWNER = """
import sys, time
from onceward.testing import LocalPostgres
with LocalPostgres() as postgres:
    print(postgres.pid, postgres.folder, flush=True)
    time.sleep(600)
"""


def test_it_recovers_from_a_crash_and_is_gone_with_the_block():
    with LocalPostgres({"max_connections": "7"}) as postgres:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("7",)
            connection.execute("CREATE TABLE kept (n int)")
        first = postgres.pid
        postgres.kill()
        postgres.start()
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        second, folder = postgres.pid, postgres.folder
    assert first != second
    assert not psutil.pid_exists(second)
    assert second is not None
    assert not folder.exists()


def test_it_does_not_outlive_an_owner_that_is_killed():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    assert psutil.pid_exists(int(pid))
    owner.send_signal(signal.SIGKILL)
    owner.wait(30)
    owner.stdout.close()
    for _ in range(600):
        if not psutil.pid_exists(int(pid)) and not Path(folder).exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} runs or {folder} is there after half a minute")
