"""Servers that are unpacked once, into the cache, and stay there. Called by those that start
them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from onceward.spark.session.jars import cache_folder


def server_folder(name: str) -> Path:
    """Where it is, or will be."""
    return cache_folder() / "servers" / name


def unpacked_once(name: str, unpack: Callable[[Path], None]) -> Path:
    """The folder of the server ``name``: whole as soon as it is there, however many processes want
    it at once.

    :param unpack: puts its files into a folder.
    """
    home = server_folder(name)
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        unpack(part)
        try:
            os.rename(part, home)
        except OSError:
            if not home.is_dir():
                raise  # else another process was quicker
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return home
