"""Folders and files that outlast a power failure once a call returns: a file's bytes are synced
with it, its name with the folder that has it (``fsync(2)``). And what outlasts a process of
``onceward run``: the next one knows it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path

RUN_FOLDER = "ONCEWARD_RUN_FOLDER"
"""Environment variable of a job under ``onceward run``: a folder that all its processes share, for
what one of them learns and the next one needs.
"""


def make(folder: Path) -> None:
    """Make a folder, with its parents."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_new(path: Path, data: bytes) -> None:
    """Create a file with ``data``, its name yet to be synced. A full disk leaves nothing of it."""
    file = path.open("xb")
    try:
        with file:
            file.write(data)
            file.flush()
            sync_open(file.fileno())
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def sync(path: str | os.PathLike[str]) -> None:
    """Sync a file's bytes, also those of another process; or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_open(descriptor)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int) -> None:
    """Sync what is open. macOS leaves what was synced to the drive, which may keep it in its
    memory, unless it is told otherwise (``fsync(2)`` there).
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            # A file system of another machine, as a rule
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    os.fsync(descriptor)


def is_in_a_run() -> bool:
    """Return whether ``onceward run`` has started this process."""
    return RUN_FOLDER in os.environ


def keep(name: str, text: str) -> None:
    """Keep ``text`` under ``name`` for the next processes of this ``onceward run``, if there is
    one. Never raises: a disk that is full keeps less.
    """
    path = _kept_in(name)
    if path is None:
        return
    written = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        written.write_text(text)
        written.replace(path)


def kept(name: str) -> str | None:
    """Return what a process of this ``onceward run`` has kept last under ``name``."""
    path = _kept_in(name)
    if path is None:
        return None
    with suppress(OSError):
        return path.read_text()
    return None


def keep_young() -> None:
    """Make all that is kept young, for whoever removes files by their age. Never raises."""
    if (folder := os.environ.get(RUN_FOLDER)) is None:
        return
    paths = [Path(folder)]
    with suppress(OSError):
        paths += Path(folder).rglob("*")
    for path in paths:
        with suppress(OSError):
            os.utime(path)


def _kept_in(name: str) -> Path | None:
    folder = os.environ.get(RUN_FOLDER)
    return Path(folder, hashlib.sha256(name.encode()).hexdigest()) if folder else None
