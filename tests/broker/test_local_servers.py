"""What all servers for tests owe: none outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

OWNER = """
import sys, time
from onceward_testing import LocalMySQL, LocalOpenSearch, LocalPostgres, LocalRedis, LocalRegistry, LocalS3
with eval(sys.argv[1]) as server:
    print(server.pid, server.folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize(
    "server",
    [
        "LocalPostgres()",
        "LocalMySQL('mysql')",
        "LocalMySQL('mariadb')",
        "LocalRedis()",
        "LocalS3()",
        pytest.param("LocalOpenSearch()", marks=pytest.mark.slow),
        pytest.param("LocalRegistry()", marks=pytest.mark.slow),
    ],
)
def test_it_does_not_outlive_an_owner_that_is_killed(server: str):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, server], stdout=subprocess.PIPE, text=True, env=environment
    )
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
