"""Progress of queries as Spark reports it, for whoever observes pipelines. Driver only.

Called by :mod:`onceward.operate.metrics` in a thread that no batch waits for. Spark calls the
listener from a thread of its own, too (``AsyncEventQueue``), and drops events where it is behind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager

from onceward.spark.batch.query import running_queries

log = logging.getLogger(__name__)

Hear = Callable[[str, dict[str, Any]], None]


class ProgressListener(StreamingQueryListener):
    """A listener that passes on progress and idle triggers, and never raises into Spark.

    :param heard: is given the query's id and its progress as Spark's JSON has it.
    :param idle: is given the id of a query whose trigger has found nothing new.
    """

    def __init__(self, heard: Hear, idle: Callable[[str], None]) -> None:
        self._heard, self._idle = heard, idle

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
        """Do nothing."""


class ProgressWatch:
    """Listens in each session whose queries it is told of, once."""

    def __init__(self, heard: Hear, idle: Callable[[str], None]) -> None:
        self._listener = ProgressListener(heard, idle)
        self._managers: dict[int, StreamingQueryManager] = {}

    def listen_to(self, query_id: str) -> float | None:
        """Listen in the session of a running query; return the interval of its trigger in seconds
        (0: none), or None where Spark does not tell.
        """
        try:
            for query in running_queries():
                if query.id == query_id:
                    execution: Any = query._jsq
                    self._add(execution.sparkSession().streams())
                    trigger = execution.trigger()
                    if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger":
                        return float(trigger.intervalMs()) / 1000
                    return 0.0
        except Exception as error:  # noqa: BLE001 — the query is well
            log.debug("query %s: Spark tells no progress: %r", query_id, error)
        return None

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
