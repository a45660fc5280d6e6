"""What stands in the place of names in the product's modules, where these reach for files.

Each entry is a module, a name in it, and what the name means in the simulation; installed once in
an OS process.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from simulation.world.files import posix

_ON_THE_DISK = (
    "onceward.durable",
    "onceward.files.ledger",
    "onceward.delivery.row_files",
    "onceward.delivery.sink",
    "onceward.spark.files.file_system",
)


def _asked_here(ask: Callable[[], Any], *_: Any, **__: Any) -> Any:
    return ask()


STAND_INS: list[tuple[str, str, Any]] = [
    *((module, "os", posix.OS) for module in _ON_THE_DISK),
    *((module, "Path", posix.Path) for module in (*_ON_THE_DISK, "onceward.delivery.target")),
    ("onceward.files.ledger", "_refuse_other_file_systems", lambda folder: None),
    ("onceward.spark.files.file_system", "shutil", posix.SHUTIL),
    ("onceward.spark.files.file_system", "ThreadPoolExecutor", posix.POOL),
    # A simulated thread that asks would wait for a turn, which the one that waits for it has
    ("onceward.spark.files.file_system", "patience", SimpleNamespace(in_time=_asked_here)),
]
