"""Classes that users subclass: sinks, sources, and fan-out over several sinks.

Public here: :class:`Task`, which a sink's ``begin`` is given. It is imported when it is first
used: a task that reads a source needs none of the driver's modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.engine.task_writer import Task as Task

__all__ = ["Task"]


def __getattr__(name: str) -> Any:
    if name != "Task":
        raise AttributeError(f"module 'onceward.custom' has no attribute {name!r}")
    from onceward.engine.task_writer import Task

    return Task
