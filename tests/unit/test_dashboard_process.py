"""``onceward dashboard`` as a process: it ends when it is told to, whoever looks at it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onceward_testing.free_ports import free_ports

pytestmark = pytest.mark.lengthy("ci")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_it_ends_though_a_page_is_open(tmp_path: Path, number: signal.Signals) -> None:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "onceward", "dashboard", "--ledger-path", str(tmp_path),
         "--port", str(port)],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while True:
            try:
                page = socket.create_connection(("127.0.0.1", port), timeout=30)
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.1)
        with page:
            page.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert page.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
        assert b"Traceback" not in said, said.decode()
    finally:
        process.kill()
        process.wait()
