"""The connection by which the JVM calls a query's ``foreachBatch`` function. Driver only.

The thread of each run of a query opens one, and PySpark keeps it, with a thread of Python's, until
the process ends: a supervisor that has started a query a thousand times would have no file
descriptor left. So :mod:`onceward.operate` closes what belongs to a run that is over; called by
``engine.calls.foreach_batch`` in the thread that it serves.
"""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame

_by_run: dict[str, weakref.ref[Any]] = {}


def remember(frame: DataFrame, run_id: str) -> None:
    """Note that this call came by the connection of that run."""
    # Insides of PySpark: without them one is left, as without us
    with suppress(AttributeError):
        gateway: Any = frame.sparkSession.sparkContext._gateway
        connection = gateway._gateway_client.get_thread_connection()
        if connection is not None:
            _by_run[run_id] = weakref.ref(connection, lambda _: _by_run.pop(run_id, None))


def close(run_id: str) -> None:
    """Close the connection of a run that is over: its thread in the JVM calls no more."""
    reference = _by_run.pop(run_id, None)
    connection = None if reference is None else reference()
    if connection is not None:
        # it is closed already
        with suppress(OSError, AttributeError):
            # Its thread reads the end, and ends
            connection.socket.shutdown(socket.SHUT_RDWR)
