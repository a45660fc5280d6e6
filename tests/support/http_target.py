"""An HTTP server in a process of its own, as a target without transactions. For tests.

:mod:`support.http_server` is the process, and says what it takes.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from onceward_testing.free_ports import free_ports
from onceward_testing.guarded_process import GuardedProcess


def post(url: str, key: str, values: list[Any]) -> None:
    """A client's: raises unless the server has them."""
    body = json.dumps(values).encode()
    request = urllib.request.Request(  # noqa: S310
        url, body, {"Idempotency-Key": key, "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 — an address of this test's own
        answer.read()


class HttpTarget:
    """The process, for the length of a ``with`` block; it ends with whoever started it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_ports(1)[0]

    def url(self, name: str, how: str = "honours") -> str:
        return f"http://127.0.0.1:{self.port}/{how}/{name}"

    def kept(self, name: str, how: str = "honours") -> list[tuple[str, list[Any]]]:
        with urllib.request.urlopen(self.url(name, how), timeout=30) as answer:  # noqa: S310
            return [(key, values) for key, values in json.load(answer)]

    def values(self, name: str, how: str = "honours") -> Counter[Any]:
        return Counter(value for _, values in self.kept(name, how) for value in values)

    def __enter__(self) -> HttpTarget:
        command = [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("http_server.py")),
            str(self.port),
        ]
        log = self._folder / "http.log"
        self._server = GuardedProcess(command, log=log, removed_with_us=None, cwd=self._folder)
        ends = time.monotonic() + 60
        while not self._answers():
            assert self._server.running, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        with suppress(OSError):
            return self.kept("nobody") == []
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.end(0)
