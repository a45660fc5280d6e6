"""Open runs: one owner for each chain of batches in a run of a query, in this process.

Called by ``foreach_batch``; driver only. Two things depend on there being one owner:

* Two sink objects under one ``pipeline_id`` in one query would take each other for a crashed
  predecessor, and the second would find the first one's batch in the ledger and drop its own rows
  as a replay. So the second gets the first one's run, if it is built alike (a sink that is built
  anew in every batch, say), and is refused otherwise.
* Nobody calls ``close()`` when a query ends. A thread asks Spark once a second whether the queries
  still run, and closes the runs of those that do not.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from onceward import surroundings
from onceward.engine.calls.journal import CallMemory
from onceward.engine.ledger.chain import as_far_as_known
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.target import Target
from onceward.errors import (
    ROWS_REFUSED,
    Fenced,
    LedgerBehind,
    LedgerOutdated,
    OncewardError,
    Recovery,
    UnsupportedQuery,
)
from onceward.ids import BatchId

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_REMEMBERED = 1_000

K = TypeVar("K")
V = TypeVar("V")


class RunKey(NamedTuple):
    """A chain of batches in a run of a query: ``where`` names its ledger and pipeline."""

    run_id: str
    where: Hashable


@dataclass(eq=False)
class OpenRun:
    """The owner of a chain: the settings of its sink, and what it keeps from batch to batch."""

    query_id: str
    settings: object
    target: Target
    batches: MicroBatches
    is_running: Callable[[], bool] = field(repr=False)


_lock = surroundings.RLock()
_open: dict[RunKey, OpenRun] = {}
_memories: OrderedDict[RunKey, CallMemory] = OrderedDict()
_chains: OrderedDict[tuple[str, str], Hashable] = OrderedDict()
_known: OrderedDict[Hashable, LedgerRecord] = OrderedDict()
_closer: threading.Thread | None = None


def memory(key: RunKey) -> CallMemory:
    """Return what is known of the calls for ``key``."""
    return _recent(_memories, key, CallMemory())


def known(where: Hashable) -> LedgerRecord | None:
    """Return the newest record of an owner of the chain ``where`` that has lost the ledger."""
    with _lock:
        return _known.get(where)


def note(where: Hashable, error: OncewardError) -> None:
    """Keep what is known of the chain ``where`` beyond its ledger, also for the next run, which a
    supervisor starts; said once that batches are gone from the ledger, it is the user's turn."""
    with _lock:
        if isinstance(error, LedgerBehind):
            _known.pop(where, None)
        elif isinstance(error, LedgerOutdated) and error.known is not None:
            newest = as_far_as_known(error.known, _known.pop(where, None))
            if newest is not None:
                _recent(_known, where, newest)


def forget(where: Hashable) -> None:
    """Forget it: the ledger has it."""
    with _lock:
        _known.pop(where, None)


def error_in(run_id: str) -> OncewardError | None:
    """Return the error that a call met last in that run, if none has succeeded since; of several
    sinks' the most severe: who was fenced must not come back for another's error."""
    with _lock:
        met = [memory.error for key, memory in reversed(_memories.items()) if key.run_id == run_id]
    errors = [error for error in met if error is not None]
    return max(errors, key=_severity, default=None)


def is_logged(run_id: str) -> bool:
    """Return whether the log has what the last call of that run failed with."""
    with _lock:
        return any(memory.is_logged for key, memory in _memories.items() if key.run_id == run_id)


def _severity(error: OncewardError) -> int:
    if isinstance(error, Fenced):
        return 3
    return {Recovery.STOP: 2, Recovery.RESTART_IF_WORKED: 1}.get(error.recovery, 0)


def find(key: RunKey, settings: object) -> OpenRun | None:
    """Return the open run for ``key``. :raises UnsupportedQuery: of a sink with other settings."""
    with _lock:
        run = _open.get(key)
    if run is not None and run.settings != settings:
        raise UnsupportedQuery(
            "two sinks with the same pipeline_id and different settings are called in one query; "
            "a pipeline_id names one chain of transactions, and the rows of the second sink are "
            "not written",
            next_step="use one sink, hand over all frames of a batch with `with sink.batch(frame, "
            "batch_id) as batch: batch.write(first); batch.write(second, topic=…)`, those of the "
            'first sink first, and start once with resume="write_missing", which writes what the '
            "batch lacks; or give each sink a pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    return run


def enter(key: RunKey, run: OpenRun) -> None:
    """Make ``run`` the owner for ``key``, until :func:`leave` or the end of its query."""
    global _closer
    with _lock:
        _open[key] = run
        # A thread can die at its very start, of an exception.
        if _closer is None or not _closer.is_alive():
            _closer = surroundings.Thread(
                target=_close_ended_runs, name="onceward-runs", daemon=True
            )
            _closer.start()


def leave(key: RunKey, failed: BatchId | None = None) -> None:
    """Close the run for ``key``, if any; ``failed`` is remembered for a second try in the run."""
    with _lock:
        run = _open.pop(key, None)
    if failed is not None:
        memory(key).closed_at = failed
    if run is not None:
        run.batches.log_end()
        run.target.close()


def claim(key: RunKey, pipeline: str) -> CallMemory:
    """Return what is known of the calls for ``key``, which is the pipeline's chain in this run.

    :raises UnsupportedQuery: the pipeline has another chain in this run, and the journal of the
        one would be taken for the other's.
    :raises Fenced: the run has lost the pipeline to a newer copy, and must not take it back.
    """
    if _recent(_chains, (key.run_id, pipeline), key.where) != key.where:
        raise UnsupportedQuery(
            f"two sinks of one query have the pipeline_id {pipeline!r}, and write to different "
            "clusters or ledger topics; the rows of the second are not written",
            next_step="give each sink a pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    found = memory(key)
    if found.fenced:
        raise Fenced(
            f"run {key.run_id} has lost pipeline {pipeline} to a newer copy before: "
            f"{found.fenced}",
            next_step="leave this copy stopped; let the sink's errors leave the foreachBatch "
            "function",
        )
    return found


def _recent(entries: OrderedDict[K, V], key: K, new: V) -> V:
    """Return what is known by ``key``, or ``new``; the thousand asked for last are remembered."""
    with _lock:
        found = entries.setdefault(key, new)
        entries.move_to_end(key)
        while len(entries) > _REMEMBERED:
            entries.popitem(last=False)
    return found


def _close_ended_runs() -> None:
    global _closer
    pause = surroundings.Event()
    while True:
        pause.wait(_LOOK_SECONDS)
        with _lock:
            runs = dict(_open)
            if not runs:
                # Under the lock: the next to enter starts another
                _closer = None
                return
        for key, run in runs.items():
            _close_if_ended(key, run)


def _close_if_ended(key: RunKey, run: OpenRun) -> None:
    """Close ``run`` if Spark says that its query has ended."""
    try:
        if run.is_running():
            return
        log.debug("query %s has ended; closing its sink", run.query_id)
        leave(key)
    except Exception:
        # That Spark cannot be asked says nothing: out of file descriptors, say, py4j opens no
        # connection, and the query is well. One run must not end the look after the others.
        log.debug(
            "%s: whether its query runs, or its sink is closed, is not known", key, exc_info=True
        )
