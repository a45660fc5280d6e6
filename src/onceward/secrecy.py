"""Where Python's own logs would show a secret that is on its way into the JVM.

Called by ``sources`` and ``sinks``, in the driver, around the few calls that carry one. Touches log filters only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PY4J_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


@contextmanager
def unlogged_calls() -> Iterator[None]:
    """Inside, this thread's calls into the JVM are not logged: at DEBUG py4j writes each with all its arguments."""
    here = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    loggers = [logging.getLogger(name) for name in _PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(elsewhere)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(elsewhere)
