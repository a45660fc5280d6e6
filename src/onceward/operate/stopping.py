"""Ends the queries of this process at a batch boundary when it is sent SIGTERM. Driver only.

The first SIGTERM closes the gate before the next batch (:mod:`onceward.engine.calls.gate`): a
batch that Spark has begun is committed and returned to it, and then each query is stopped. The
second one ends the process at once, which loses nothing either: the next start fences the
transaction that is open, and runs its batch again.

Answered by ``ow.wait`` and ``ow.supervise`` while they wait in the main thread, and under
``onceward run`` from the first line of a job on. A program that handles SIGTERM itself goes on to.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from onceward import patience, surroundings

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_ASK_SECONDS = 10.0
_MOST_FAILED = 100

# A handler may interrupt its thread anywhere, also with a lock in its hand: of all ways to hand on
# a signal only this queue may be entered again. Signals are the real process's, and so are the
# queue and its thread: a simulated thread that waited here would hold up all others.
_requests: queue.SimpleQueue[int] = queue.SimpleQueue()
_events: list[threading.Event] = []
_failed: dict[threading.Thread, Exception] = {}
_server: threading.Thread | None = None
_signals = _waiting = 0
_is_requested = _unwinds = False
_held = threading.local()


def is_requested() -> bool:
    """Return whether the process is to end."""
    return _is_requested


def is_awaited() -> bool:
    """Return whether ``ow.wait`` or ``ow.supervise`` waits for a query in this process."""
    return bool(_waiting)


def failures() -> list[Exception]:
    """Return what ``ow.wait`` or ``ow.supervise`` has raised last in each thread of the job's that
    has not called them since, or what has ended the thread: no query may know of it, and nobody
    else hears it."""
    return list(_failed.copy().values())


def note_failure(thread: threading.Thread, error: Exception) -> None:
    """Add to :func:`failures` what has ended a thread, if it is in none of them yet."""
    _failed.setdefault(thread, error)
    # Threads come and go
    for ended_first in list(_failed)[:-_MOST_FAILED]:
        # Another thread that ends may be here, too
        _failed.pop(ended_first, None)


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
    me = threading.current_thread()
    is_main = me is threading.main_thread()
    _failed.pop(me, None)
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
    except Exception as error:
        if not is_main:
            note_failure(me, error)
        raise
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


def _hold() -> None:
    # Sent before the child has its handler, a signal would be lost
    is_ours = signal.getsignal(signal.SIGTERM) is _hear
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if is_ours else ())


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forget_inherited() -> None:
    """End a forked process by SIGTERM again: it has no thread that answers, and whoever forks
    (a pool of processes, say) waits for it."""
    global _requests, _server, _signals, _unwinds
    _requests, _server, _signals, _unwinds = queue.SimpleQueue(), None, 0, False
    if signal.getsignal(signal.SIGTERM) is _hear:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget_inherited)


def _serve() -> None:
    global _is_requested
    _requests.get()
    # Only now: a job may have to say something before PySpark is imported
    from onceward.engine.calls import gate

    log.warning(
        "asked to stop: queries end with the batch that is running; a second SIGTERM ends them "
        "at once"
    )
    gate.close(begun=_newest_batches())
    _is_requested = True
    # Who waits now or later, or has a query, learns why that ends, and ends the job with it
    is_told = _waiting > 0
    for event in tuple(_events):
        event.set()
    seen: dict[str, Any] = {}
    stopped: set[str] = set()
    first: set[str] | None = None
    while True:
        queries, running = _running(), set[str]()
        for query in queries:
            # It may have ended meanwhile, or its JVM
            with suppress(Exception):
                run_id = str(query.runId)
                running.add(run_id)
                is_over = _is_at_boundary(query, seen) or gate.holds(run_id)
                if is_over and run_id not in stopped:
                    stopped.add(run_id)
                    surroundings.Thread(target=_stop, args=(query,), daemon=True).start()
        first = running if first is None else first
        # A job that is a loop of queries begins others when those of the request have ended
        goes_on = bool(running - first) and not running & first
        # Or nothing has begun that could end at a boundary: the session is being built, say
        if goes_on or not (queries or _waiting or is_told):
            is_told = _unwind()
        is_told = is_told or bool(queries or _waiting)
        surroundings.sleep(_LOOK_SECONDS)


def _unwind() -> bool:
    """Raise SystemExit in the main thread, where SIGTERM is answered now; return whether it is."""
    global _unwinds
    if signal.getsignal(signal.SIGTERM) is not _hear:
        return False
    if not _unwinds:
        _unwinds = True
        os.kill(os.getpid(), signal.SIGTERM)
    return True


def _running() -> list[Any]:
    from onceward.spark.batch.query import running_queries

    # Without a JVM there is none, and whoever waits will know
    with suppress(Exception):
        return running_queries()
    return []


def _newest_batches() -> dict[str, int]:
    from onceward.spark.batch.progress import newest_batches

    # A JVM that stands still, or has ended, runs none
    with suppress(Exception):
        answer = patience.in_a_thread(newest_batches, "onceward-newest")
        return patience.result(answer, _ASK_SECONDS)
    return {}


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
