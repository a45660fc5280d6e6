"""Messages from a job to whoever started it: lines of JSON in a file, of which each process of the
job may append some.

Written in the job's processes, read in its supervisor's; a line stays, however its writer ends.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class MessageWriter:
    """Appends to the file.

    Thread safe. A line that was begun when the process was killed is the last one.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115  stays open
        self._lock = threading.Lock()

    def tell(self, what: str, **details: Any) -> None:
        """Append one message; ``at`` is added, the time in seconds since the epoch."""
        line = json.dumps({"what": what, "at": time.time(), **details}, default=str)
        with self._lock:
            self._file.write(line + "\n")


class MessageReader:
    """Reads the file from its beginning, in portions."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the messages since the last call, without a line that is being written; none if
        there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except FileNotFoundError:
            return []
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
