"""Progress of queries as Spark reports it, and the connections by which it calls us. Driver only.

:class:`ProgressWatch` is asked by :mod:`onceward.operate.metrics` in a thread that no batch waits
for. Spark calls it from a thread of its own, too (``AsyncEventQueue``), and drops events where it
is behind.

The thread of each run of a query opens a connection to call its ``foreachBatch`` function, and
PySpark keeps it, with a thread of Python's, until the process ends: a supervisor that has started
a query a thousand times would have no file descriptor left. So :mod:`onceward.operate` closes what
belongs to a run that is over; ``engine.calls.foreach_batch`` notes it in the thread that it
serves.
"""

from __future__ import annotations

import json
import logging
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager

from onceward.spark.batch.query import running_queries

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


def newest_batches() -> dict[str, int]:
    """Return by its run the newest batch of each running query that Spark has planned; it runs, or
    has ended."""
    found = {}
    for query in running_queries():
        # It has none yet, or ends meanwhile
        with suppress(Exception):
            found[str(query.runId)] = int(query._jsq.lastExecution().currentBatchId())
    return found


log = logging.getLogger(__name__)


class ProgressWatch(StreamingQueryListener):
    """Listens in each session whose queries it is told of, once; never raises into Spark.

    :param heard: is given a query's id and its progress as Spark's JSON has it.
    :param idle: is given the id of a query whose trigger has found nothing new.
    :param ended: is given the id of a query that has ended, and whether it ``failed``.
    """

    def __init__(
        self,
        heard: Callable[[str, dict[str, Any]], None],
        idle: Callable[[str], None],
        ended: Callable[..., None],
    ) -> None:
        self._heard, self._idle, self._ended = heard, idle, ended
        # The newest run of each query: an older one's end may be heard late
        self._runs: dict[str, str] = {}
        self._managers: dict[int, StreamingQueryManager] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 — Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 — Spark's name
        """Pass on the progress of a trigger."""
        try:
            self._heard(str(event.progress.id), json.loads(event.progress.json))
        except Exception as error:  # noqa: BLE001 — the query is well
            log.debug("a query's progress was not understood: %r", error)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 — Spark's name
        """Pass on that a trigger has found nothing new."""
        self._idle(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 — Spark's name
        """Pass on that a query's newest run has ended."""
        if self._runs.get(str(event.id)) == str(event.runId):
            self._ended(str(event.id), failed=event.exception is not None)

    def listen_to(self, query_id: str) -> tuple[float, float] | None:
        """Listen in the session of a running query; return the interval of its trigger in seconds
        (0: none), and how often Spark says that it is idle; None where Spark does not tell.
        """
        try:
            for query in running_queries():
                if query.id == query_id:
                    execution: Any = query._jsq
                    self._runs[query_id] = str(query.runId)
                    session = execution.sparkSession()
                    manager = session.streams()
                    identity = int(manager.hashCode())
                    if identity not in self._managers:
                        self._managers[identity] = StreamingQueryManager(manager)
                        self._managers[identity].addListener(self)
                    if not execution.isActive():
                        break
                    trigger = execution.trigger()
                    is_paced = trigger.getClass().getSimpleName() == "ProcessingTimeTrigger"
                    idle_ms = session.sessionState().conf().streamingNoDataProgressEventInterval()
                    return (trigger.intervalMs() / 1000 if is_paced else 0.0), idle_ms / 1000
            # It has ended before there was a listener; without Spark nobody knows
            if SparkContext._active_spark_context is not None:
                self._ended(query_id, failed=False)
        except Exception as error:  # noqa: BLE001 — the query is well
            log.debug("query %s: Spark tells no progress: %r", query_id, error)
        return None

    def stop(self) -> None:
        """Listen no more."""
        # Where the JVM is gone, there is nobody to tell
        with suppress(Exception):
            for manager in self._managers.values():
                manager.removeListener(self)
