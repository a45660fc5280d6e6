"""Keeps secrets on their way into the JVM out of Python's own logs.

Called by sources and sinks in the driver, around calls that carry one. Touches log filters only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PY4J_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")
_unlogged = threading.local()


def _is_not_unlogged(record: logging.LogRecord) -> bool:
    """Filter a record. Called in the thread that logs."""
    return not getattr(_unlogged, "depth", 0)


@contextmanager
def unlogged_calls() -> Iterator[None]:
    """Keep this thread's calls into the JVM out of the logs: at DEBUG py4j writes each with all
    its arguments."""
    # The filters stay for good. Were one taken away again, a thread that goes through the list of
    # filters just then would skip one, perhaps the one that it needs.
    for name in _PY4J_LOGGERS:
        # The same one is added once only
        logging.getLogger(name).addFilter(_is_not_unlogged)
    _unlogged.depth = getattr(_unlogged, "depth", 0) + 1
    try:
        yield
    finally:
        _unlogged.depth -= 1
