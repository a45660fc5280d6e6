"""What the jobs of chaos and soak share: where Spark may write, and how they tell what they do."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyspark


def spark_home(folder: Path) -> Path:
    """PySpark's own folder under another name: a local cluster writes its executors' files below
    SPARK_HOME.
    """
    home = folder / "spark-home"
    home.mkdir()
    for name in ("bin", "jars", "python", "sbin"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


class News:
    """Appends one JSON line per event; a line that was begun when the process was killed is the
    last one.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115  open as long as the process lives
        self._lock = threading.Lock()

    def tell(self, what: str, **more: Any) -> None:
        line = json.dumps({"what": what, "at": time.time(), **more}, default=str)
        with self._lock:
            self._file.write(line + "\n")
