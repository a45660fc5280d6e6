"""Wait until a query ends, in a thread of its own, and end the queries of this process at a batch
boundary when it is sent SIGTERM. Driver only; :mod:`supervise` waits by it, too.

The first SIGTERM closes the gate before the next batch (:mod:`onceward.engine.calls.gate`): a
batch that has begun is committed and returned to Spark, and then each query is stopped. The second
one ends the process at once, which loses nothing either: the next start fences the transaction
that is open, and runs its batch again.

Answered by ``ow.wait`` and ``ow.supervise`` while they wait in the main thread, and under
``onceward run`` from the first line of a job on. A program that handles SIGTERM itself goes on to.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from onceward import surroundings
from onceward.engine.calls.foreach_batch import error_of
from onceward.errors import ConfigurationError, OncewardError, Recovery
from onceward.spark.batch import progress
from onceward.spark.batch.checkpoint_files import newest_committed

_LOOK_SECONDS = 0.1

# A handler may interrupt its thread anywhere, also with a lock in its hand: of all ways to hand on
# a signal only this queue may be entered again. Signals are the real process's, and so are the
# queue and its thread: a simulated thread that waited here would hold up all others.
_requests: queue.SimpleQueue[int] = queue.SimpleQueue()
_events: list[threading.Event] = []
_server: threading.Thread | None = None
_signals = _waiting = 0
_is_requested = _unwinds = False


def is_requested() -> bool:
    """Return whether the process is to end."""
    return _is_requested


def request() -> None:
    """Ask for the end of the queries at a batch boundary, as the first SIGTERM does."""
    _requests.put(0)


def answer_sigterm() -> None:
    """Answer SIGTERM from now on; called in the main thread."""
    global _server
    if _server is None:
        _server = threading.Thread(target=_serve, name="onceward-stop", daemon=True)
        _server.start()
    signal.signal(signal.SIGTERM, _hear)


@contextmanager
def waiting(ended: threading.Event | None = None) -> Iterator[None]:
    """Answer SIGTERM inside the block, where nobody else does.

    :param ended: is set when the process is to end.
    """
    global _waiting
    is_main = threading.current_thread() is threading.main_thread()
    ours = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        answer_sigterm()
    if ended is not None:
        _events.append(ended)
        if _is_requested:
            ended.set()
    _waiting += 1
    try:
        yield
    finally:
        _waiting -= 1
        if ended is not None:
            _events.remove(ended)
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _hear(number: int, frame: object) -> None:
    global _signals, _unwinds
    if _unwinds:
        # Sent by our own thread, which cannot raise in this one
        _unwinds = False
        raise SystemExit(0)
    _signals += 1
    if _signals > 1:
        os._exit(128 + number)
    _requests.put(number)


def _serve() -> None:
    global _is_requested, _unwinds
    _requests.get()
    # Only now: a job may have to say something before PySpark is imported
    from onceward.engine.calls import gate

    log.warning(
        "asked to stop: queries end with the batch that is running; a second SIGTERM ends them "
        "at once"
    )
    gate.close()
    _is_requested = True
    # Who waits now or later, or has a query, learns why that ends, and ends the job with it
    is_told = _waiting > 0
    for event in tuple(_events):
        event.set()
    seen: dict[str, Any] = {}
    stopped: set[str] = set()
    while True:
        queries = _running()
        for query in queries:
            # It may have ended meanwhile, or its JVM
            with suppress(Exception):
                run_id = str(query.runId)
                is_over = _is_at_boundary(query, seen) or gate.holds(run_id)
                if is_over and run_id not in stopped:
                    stopped.add(run_id)
                    surroundings.Thread(target=_stop, args=(query,), daemon=True).start()
        if queries or _waiting:
            is_told = True
        elif not is_told:
            # Nothing has begun that could end at a boundary: the session is being built, say
            _unwinds = is_told = True
            os.kill(os.getpid(), signal.SIGTERM)
        surroundings.sleep(_LOOK_SECONDS)


def _running() -> list[Any]:
    from onceward.spark.batch.query import running_queries

    # Without a JVM there is none, and whoever waits will know
    with suppress(Exception):
        return running_queries()
    return []


def _is_at_boundary(query: Any, seen: dict[str, Any]) -> bool:
    """Return whether no batch of the query is being written. The gate is closed: none begins."""
    progress = query.lastProgress
    moment = None if progress is None else (progress["batchId"], progress["timestamp"])
    # One that ends without our gate, of another sink: Spark has ended a batch since
    return (
        seen.setdefault(str(query.runId), moment) != moment or not query.status["isTriggerActive"]
    )


def _stop(query: Any) -> None:
    """Stop a query; in a thread of its own, because it takes as long as it takes."""
    # How the query ended is for whoever waits
    with suppress(Exception):
        query.stop()


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
    :raises OncewardError: what ended a query.
    :raises StreamingQueryException: a query failed, and its error is Spark's or your function's
        own.
    """
    if not queries:
        raise ConfigurationError("ow.wait() waits for nothing", next_step=_A_QUERY)
    for query in queries:
        must_be_a_query(query, "ow.wait()")
    deadline = surroundings.monotonic() + (math.inf if timeout_s is None else timeout_s)
    ends = [QueryEnd(query) for query in queries]
    try:
        with waiting():
            while running := [end for end in ends if not end.join(0)]:
                left = deadline - surroundings.monotonic()
                if left <= 0:
                    return False
                running[0].join(min(left, LOOK_SECONDS))
    except (KeyboardInterrupt, SystemExit):
        for end in ends:
            end.stop()
        raise
    finally:
        for end in ends:
            end.leave()
    return True


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
        later.
        """
        try:
            if self._query.isActive and not self._stuck:
                within(_STOP_SECONDS, self._query.stop)
        except TimeoutError:
            self._stuck = True
            log.error(
                "query %s was asked to stop, and has not after %.0f s: a call of its function "
                "goes on",
                name(self._query),
                _STOP_SECONDS,
            )
        except Exception as error:  # noqa: BLE001 — how the query ended matters more
            log.warning("query %s could not be stopped: %s", name(self._query), error)
        if not self._thread.is_alive():
            progress.close(str(getattr(self._query, "runId", "")))
        return not self._stuck

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

    def leave(self) -> None:
        """Wait no more; the query goes on."""
        self._over = True

    def _await(self) -> None:
        try:
            while not (self._over or self._stuck or self._query.awaitTermination(LOOK_SECONDS)):
                pass
        except Exception as failure:  # noqa: BLE001 — join() raises it
            self._failure = failure


def name(query: StreamingQuery) -> str:
    """Return the query's name, or else its id."""
    return str(query.name or query.id)


def within(seconds: float, act: Callable[[], T]) -> T:
    """Return what ``act`` returns, or raise what it raises. If it takes longer, it goes on in a
    thread of its own.

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
