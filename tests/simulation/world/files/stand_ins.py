"""What stands in the place of names in the product's modules, where these reach for files or wait with a lock held.

Each entry is a module, a name in it, and what the name means in the simulation; installed once in an OS process.
"""

from __future__ import annotations

from typing import Any

from simulation.kernel import current
from simulation.kernel.scheduler import Process
from simulation.kernel.threads import RLock
from simulation.world.files import posix


class LockOfProcess:
    """A module's own lock: every process has imported the module for itself, and those of one wait for each other."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._of_this_process().__enter__()

    def __exit__(self, *_: object) -> None:
        self._of_this_process().__exit__()

    def _of_this_process(self) -> RLock:
        sim = current()
        locks: dict[tuple[Process, str], RLock] = sim.world.files.locks
        key = (sim.here, self._name)
        lock = locks.get(key)
        if lock is None:
            lock = locks[key] = RLock(sim)
        return lock


_ON_THE_DISK = (
    "onceward.durable",
    "onceward.ledger.folder",
    "onceward.sinks.write_ahead.row_files",
    "onceward.sinks.write_ahead.sink",
    "onceward.sinks.write_ahead.store",
    "onceward.spark.file_system",
)

STAND_INS: list[tuple[str, str, Any]] = [
    ("onceward.spark.handed_over", "_lock", LockOfProcess("notes")),
    *((module, "os", posix.OS) for module in _ON_THE_DISK),
    *((module, "Path", posix.Path) for module in _ON_THE_DISK),
    ("onceward.ledger.folder", "_refuse_other_file_systems", lambda folder: None),
    ("onceward.spark.file_system", "shutil", posix.SHUTIL),
    ("onceward.spark.file_system", "ThreadPoolExecutor", posix.POOL),
]
