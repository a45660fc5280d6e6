"""What is on the disk when a call returns, so that it outlasts a power failure. A file's bytes are
synced with it, its name with the folder that has it (``fsync(2)``).
"""

from __future__ import annotations

import os
from pathlib import Path


def make(folder: Path) -> None:
    """With its parents."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """A file's bytes, also those that another process has written; or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
