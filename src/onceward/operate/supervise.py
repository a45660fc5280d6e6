"""Starts a streaming query again when it has failed, as often and as late as a strategy says. Driver only.

What may be tried again is decided by the error (:class:`onceward.errors.Recovery`), not by the strategy: a pipeline
that was fenced, is set up wrongly, or cannot write its data would only fail again, and a fenced one would do harm. All
else passes by itself more often than not: a broker that is away, executors that died, a transaction that timed out.

Where a query had only to be defined anew (``Recovery.RESTART_AT_ONCE``: a schema that is new to it, say), it has not
failed: it is started again at once, and no strategy hears of it. That is so for as long as it says what it has learnt,
and has not said it before; else it is a failure like others, so that nothing is tried for ever.

A restart is a start like any other: what a crash left open is ended, what was decided is finished, and then batches go
on (:mod:`onceward.engine.micro_batch`). It is the same query on the same checkpoint, in the same Spark session.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from onceward.engine.foreach_batch import error_of
from onceward.errors import ConfigurationError, OncewardError, Recovery
from onceward.operate.restart import ExponentialDelay, Failure, RestartStrategy

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1


def supervise(
    start: Callable[[], StreamingQuery],
    strategy: RestartStrategy | None = None,
    *,
    stop: threading.Event | None = None,
) -> StreamingQuery:
    """Run a query until it ends well, starting it again after failures that may pass.

    ::

        def start():
            source = ow.kafka_source(spark, topic="orders", …)
            return transform(source).writeStream.foreachBatch(sink).option("checkpointLocation", path).start()

        ow.supervise(start, ow.ExponentialDelay(initial_s=1, max_s=60))

    :param start: defines and starts the query; called again for each restart, on the same checkpoint. Build the sink
        once, outside of it. What it raises counts as a failure, but for what is not Onceward's the first time: then
        the program is wrong.
    :param strategy: default: :class:`ExponentialDelay`, without end. It is asked after failures only: a query that has
        met a schema which is new to it starts again at once.
    :param stop: ends the query within a second when it is set; while a restart is waited for, the last error is raised.
    :returns: the last query, which has ended without an error: by ``query.stop()``, by ``stop``, or because its trigger
        was ``availableNow``.
    :raises OncewardError: the query failed, and its error says *stop*, or the strategy has it no more restarted.
    :raises StreamingQueryException: the same, where the error is Spark's or your function's own.

    A KeyboardInterrupt, or any other exception of this thread's, stops the query on its way out.
    """
    chosen = ExponentialDelay() if strategy is None else strategy
    if isinstance(chosen, type):
        raise ConfigurationError(
            f"strategy={chosen.__name__} is a class, not a strategy", next_step=f"pass {chosen.__name__}()"
        )
    ended = stop or threading.Event()
    failures: list[Failure] = []
    learnt: set[str] = set()
    while True:
        started = time.monotonic()
        query, error = _one_life(start, ended, first=not failures and not learnt)
        if error is None:
            assert query is not None  # noqa: S101 — a start that failed has an error
            return query
        if _is_news(error, learnt) and not ended.is_set():
            log.info("query %s is defined anew, and goes on: %s", _name(query), error)
            continue
        failures.append(Failure(started, time.monotonic(), random.random()))  # noqa: S311 — a pause is no secret
        passes = may_pass(error)
        delay = chosen.delay(failures) if passes else None
        if delay is None:
            why = f"{chosen} has it no more started" if passes else "may not be started again"
            log.error("query %s failed %d times in all and %s: %s", _name(query), len(failures), why, error)
            raise error
        log.warning("query %s failed, starting it again in %.1f s: %s", _name(query), delay, error)
        if ended.wait(delay):
            raise error


def may_pass(error: BaseException) -> bool:
    """May the query be started again after this? What is not ours to judge may."""
    return not isinstance(error, OncewardError) or error.recovery is not Recovery.STOP


def _is_news(error: BaseException, learnt: set[str]) -> bool:
    """Has the query learnt something that it had not said yet? It is added to ``learnt``."""
    if not isinstance(error, OncewardError) or error.recovery is not Recovery.RESTART_AT_ONCE:
        return False
    new = set(map(str, error.details.get("news", ()))) - learnt
    learnt |= new
    return bool(new)


def _one_life(
    start: Callable[[], StreamingQuery], ended: threading.Event, *, first: bool
) -> tuple[StreamingQuery | None, Exception | None]:
    """Start the query, wait for its end; the query, and what it failed with."""
    try:
        query = start()
    except Exception as error:
        if first and not isinstance(error, OncewardError):
            raise  # the program is wrong; later, Spark's own start may meet what the query has met
        return None, error
    if query is None:
        raise ConfigurationError(
            "the function start returned no query; if it started one, that is running on its own",
            next_step="let it return what DataStreamWriter.start() gives",
        )
    try:
        while not query.awaitTermination(_LOOK_SECONDS):
            if ended.is_set():
                _stop(query)
    except StreamingQueryException as failed:
        return query, error_of(query) or failed
    finally:
        _stop(query)
    return query, None


def _stop(query: StreamingQuery) -> None:
    try:
        if query.isActive:
            query.stop()
    except Exception as error:  # noqa: BLE001 — spark.sql.streaming.stopTimeout, say; how the query ended matters more
        log.warning("query %s could not be stopped: %s", _name(query), error)


def _name(query: StreamingQuery | None) -> str:
    return "(not started)" if query is None else str(query.name or query.id)
