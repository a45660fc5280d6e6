"""Progress of queries as Spark reports it, for whoever observes pipelines. Driver only.

Called by :mod:`onceward.operate.metrics` in a thread that no batch waits for. Spark calls the
listener from a thread of its own, too (``AsyncEventQueue``), and drops events where it is behind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager

from onceward.spark.batch.query import running_queries

log = logging.getLogger(__name__)

Hear = Callable[[str, dict[str, Any]], None]


class HearEnd(Protocol):
    """Is given the id of a query that has ended, and whether an exception has ended it."""

    def __call__(self, query_id: str, *, failed: bool) -> None:
        """Hear it."""


class ProgressListener(StreamingQueryListener):
    """A listener that passes on progress, idle triggers and ends, and never raises into Spark.

    :param heard: is given the query's id and its progress as Spark's JSON has it.
    :param idle: is given the id of a query whose trigger has found nothing new.
    :param ended: is given the ids of query and run, and whether an exception has ended it.
    """

    def __init__(
        self,
        heard: Hear,
        idle: Callable[[str], None],
        ended: Callable[[str, str, bool], None],
    ) -> None:
        self._heard, self._idle, self._ended = heard, idle, ended

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
        """Pass on that a query has ended."""
        self._ended(str(event.id), str(event.runId), event.exception is not None)


class ProgressWatch:
    """Listens in each session whose queries it is told of, once."""

    def __init__(self, heard: Hear, idle: Callable[[str], None], ended: HearEnd) -> None:
        self._listener = ProgressListener(heard, idle, self._hear_end)
        self._tell_end = ended
        # The newest run of each query: an older one's end may be heard late
        self._runs: dict[str, str] = {}
        self._managers: dict[int, StreamingQueryManager] = {}

    def listen_to(self, query_id: str) -> float | None:
        """Listen in the session of a running query; return the interval of its trigger in seconds
        (0: none), or None where Spark does not tell.
        """
        try:
            for query in running_queries():
                if query.id == query_id:
                    execution: Any = query._jsq
                    self._runs[query_id] = str(query.runId)
                    self._add(execution.sparkSession().streams())
                    if not execution.isActive():
                        break
                    trigger = execution.trigger()
                    if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger":
                        return float(trigger.intervalMs()) / 1000
                    return 0.0
            # It has ended before there was a listener; without Spark nobody knows
            if SparkContext._active_spark_context is not None:
                self._tell_end(query_id, failed=False)
        except Exception as error:  # noqa: BLE001 — the query is well
            log.debug("query %s: Spark tells no progress: %r", query_id, error)
        return None

    def _hear_end(self, query_id: str, run_id: str, failed: bool) -> None:
        if self._runs.get(query_id) == run_id:
            self._tell_end(query_id, failed=failed)

    def _add(self, manager: Any) -> None:
        identity = int(manager.hashCode())
        if identity not in self._managers:
            self._managers[identity] = StreamingQueryManager(manager)
            self._managers[identity].addListener(self._listener)

    def stop(self) -> None:
        """Listen no more."""
        # Where the JVM is gone, there is nobody to tell
        with suppress(Exception):
            for manager in self._managers.values():
                manager.removeListener(self._listener)
