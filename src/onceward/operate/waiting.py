"""Wait until a query ends, in a thread of its own; for :mod:`supervise`, too. Driver only."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from onceward import surroundings
from onceward.engine.calls import gate, runs
from onceward.engine.calls.foreach_batch import error_of
from onceward.errors import ConfigurationError, OncewardError, Recovery
from onceward.operate import stopping
from onceward.spark.batch import progress
from onceward.spark.batch.checkpoint_files import checkpoint_of, newest_committed
from onceward.spark.batch.job import context_has_stopped

log = logging.getLogger(__name__)

LOOK_SECONDS = 1
_STOP_SECONDS = 30.0
_ASK_SECONDS = 10.0
_A_QUERY = "pass what DataStreamWriter.start() returned"

T = TypeVar("T")


def wait(*queries: StreamingQuery, timeout_s: float | None = None) -> bool:
    """Block until every query has ended, and raise the typed error of the first that fails.

    ::

        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", path).start()
        ow.wait(query)

    Where one of several fails, the others go on. A KeyboardInterrupt stops them all on its way
    out. SIGTERM ends all queries of the process at a batch boundary, and a second one the process
    at once, if this is the main thread and the program does not handle it itself.

    :param timeout_s: block no longer than that; None: without end.
    :returns: True once all have ended without an error; False after ``timeout_s``, when one still
        runs.
    :raises OncewardError: what ended a query, or that Spark's context has stopped.
    :raises StreamingQueryException: a query failed, and its error is Spark's or your function's
        own.
    """
    # A pool's thread may have called, whose future nobody asks
    with stopping.waiting():
        _check(queries, timeout_s)
    deadline = surroundings.monotonic() + (math.inf if timeout_s is None else timeout_s)
    ends = [QueryEnd(query) for query in queries]
    try:
        with stopping.waiting():
            while running := [end for end in ends if not end.join(0)]:
                left = deadline - surroundings.monotonic()
                if left <= 0:
                    return False
                running[0].join(min(left, LOOK_SECONDS))
    except (KeyboardInterrupt, SystemExit):
        for end in ends:
            end.stop()
        raise
    except Exception:
        # What is raised in another thread of the job may end that alone
        if threading.current_thread() is threading.main_thread():
            _settle(ends)
        raise
    finally:
        for end in ends:
            end.leave()
    _settle(ends)
    return True


def _check(queries: tuple[StreamingQuery, ...], timeout_s: object) -> None:
    if not queries:
        raise ConfigurationError("ow.wait() waits for nothing", next_step=_A_QUERY)
    for query in queries:
        must_be_a_query(query, "ow.wait()")
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s >= 0):
        raise ConfigurationError(
            f"timeout_s={timeout_s!r} is no number of seconds", next_step="pass 0 or more, or None"
        )


def _settle(ends: list[QueryEnd]) -> None:
    for end in ends:
        with suppress(Exception):
            if end.is_over:
                runs.settle(end.query_id)


def must_be_a_query(given: object, by: str) -> None:
    """Refuse what is no streaming query: a writer that was not started, or a list of queries."""
    if not hasattr(given, "awaitTermination"):
        raise ConfigurationError(
            f"{by} was given {type(given).__name__} instead of a streaming query",
            next_step=_A_QUERY,
        )


class QueryEnd:
    """The end of one query.

    It is awaited in a thread of its own: PySpark answers Ctrl-C in the main thread with a question
    to the JVM, and in the middle of another one, ``awaitTermination``, that ends in pages of py4j.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        # Of a JVM that stands still, they could not be asked later
        self.name, self.query_id = str(query.name or query.id), str(query.id)
        self.run_id = str(getattr(query, "runId", ""))
        self._failure: Exception | None = None
        self._over = False
        self._stuck = False
        self._thread = surroundings.Thread(target=self._await, name="onceward-wait", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for ``seconds`` at most, and return whether the query has ended.

        :raises Exception: the query failed: its typed error, or else Spark's.
        """
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if isinstance(self._failure, StreamingQueryException):
            raise self._typed_error() or self._failure from None
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self) -> bool:
        """Stop the query if it runs; return False where a call of its function goes on, 30 seconds
        later, or where its JVM does not answer.
        """
        try:
            if not self._stuck:
                within(_STOP_SECONDS, self._stop)
        except TimeoutError:
            self._stuck = True
            log.error(
                "query %s was asked to stop, and has not after %.0f s: a call of its function "
                "goes on, or Spark's JVM stands still",
                self.name,
                _STOP_SECONDS,
            )
        except Exception as error:  # noqa: BLE001 — how the query ended matters more
            log.warning("query %s could not be stopped: %s", self.name, error)
        if not self._thread.is_alive():
            progress.close(self.run_id)
        return not self._stuck

    def _stop(self) -> None:
        if self._query.isActive:
            self._query.stop()

    def _typed_error(self) -> OncewardError | None:
        error = error_of(self._query)
        if error is None or error.recovery is not Recovery.RESTART_IF_WORKED:
            return error
        if error.worked_before is None:
            # the checkpoint may be away
            with suppress(Exception):
                committed = within(_ASK_SECONDS, lambda: newest_committed(self._query))
                error.worked_before = committed is not None
        return error

    @property
    def is_over(self) -> bool:
        """Whether the query has ended."""
        return not self._thread.is_alive()

    def leave(self) -> None:
        """Wait no more; the query goes on."""
        self._over = True

    def _await(self) -> None:
        with suppress(Exception):
            within(_ASK_SECONDS, self._note_home)
        try:
            while not (self._over or self._stuck or self._query.awaitTermination(LOOK_SECONDS)):
                if context_has_stopped(self._query, own=True):
                    raise stopped_context()
        except Exception as failure:  # noqa: BLE001 — join() raises it
            self._failure = failure

    def _note_home(self) -> None:
        """Note that earlier processes have committed batches at the query's checkpoint: this one
        may commit none before its disk is away."""
        if gate.knows_homes() and newest_committed(self._query) is not None:
            checkpoint = checkpoint_of(self._query)
            # Batches that hand nothing to a sink are committed, too
            gate.note_home(checkpoint, gate.home(checkpoint) or self.query_id)


def stopped_context() -> OncewardError:
    """Return the error for a query whose context has stopped; Spark's own names no way on."""
    return OncewardError(
        "Spark's context has stopped (spark.stop(), or its cluster manager has ended it), and its "
        "queries with it",
        next_step="start the process again, as `onceward run` does; or let the function that "
        "starts the query build its session, too",
    )


def within(seconds: float, act: Callable[[], T]) -> T:
    """Return what ``act`` returns, or raise what it raises; if it is late, its thread goes on.

    :raises TimeoutError: it has taken longer.
    """
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((act(), None))
        except BaseException as error:  # noqa: BLE001 — raised below, in the caller's thread
            outcome.append((None, error))

    thread = surroundings.Thread(target=run, name="onceward-within", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None is what it returned
