"""Folders and files that outlast a power failure once a call returns.

A file's bytes are synced with it, its name with the folder that has it (``fsync(2)``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make(folder: Path) -> None:
    """Make a folder, with its parents."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_new(path: Path, data: bytes) -> None:
    """Create a file with ``data``, whose name is yet to be synced. A disk that is full leaves
    nothing of it.
    """
    file = path.open("xb")
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def sync(path: str | os.PathLike[str]) -> None:
    """Sync a file's bytes, also those of another process; or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
