"""The runs of queries that are open in this process, one for each (run of a query, place that it
writes to).

Called by ``engine.calls.foreach_batch``; driver only. Two things hang on there being one owner:

* Two sink objects under one ``pipeline_id`` in one query would take each other for a crashed
  predecessor, and the second would find the first one's batch in the ledger and drop its own rows
  as a replay. So the second gets the first one's run, if it is built alike (a sink that is built
  anew in every batch, say), and is refused otherwise.
* Nobody calls ``close()`` when a query ends. A thread asks Spark once a second whether the queries
  still run, and gives back the connections and threads of those of which Spark says that they do
  not.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from onceward import surroundings
from onceward.engine.calls.failed_batches import FailedBatches
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.target import Target
from onceward.errors import ROWS_REFUSED, Fenced, OncewardError, Recovery, UnsupportedQuery
from onceward.ids import BatchId

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_REMEMBERED = 1_000

K = TypeVar("K")
V = TypeVar("V")


class Place(NamedTuple):
    """What must have one owner in a run: ``where`` names the ledger and the pipeline in it."""

    run_id: str
    where: Hashable


@dataclass(eq=False)
class Run:
    """A run at work: what its sink was built with, and what it keeps from batch to batch."""

    query_id: str
    settings: object
    target: Target
    batches: MicroBatches
    is_running: Callable[[], bool] = field(repr=False)


@dataclass(eq=False)
class Memory:
    """What is known of a place while its query may run, whether or not a run is open there.

    ``committed``: the newest batch that an owner has committed, or found committed. ``failed``:
    the batch at which an earlier owner was closed, for a second try in the same run; ``replay``:
    it was a replay that failed. ``tried``: the batch of the call that failed last, and its frames,
    until a call is successful; ``error``: what it met, for ``error_of``. ``fenced``: a newer copy
    of the pipeline has taken over, for good. ``failures``: the batches whose call failed.
    """

    committed: int | None = None
    failed: BatchId | None = None
    replay: bool = False
    tried: tuple[int, object] | None = None
    error: OncewardError | None = None
    fenced: str = ""
    failures: FailedBatches | None = None

    def succeeded(self, batch: BatchId) -> None:
        """``batch`` is committed: who calls for it once more is a second caller, and not one who
        tries again.
        """
        self.committed = batch.batch_id
        self.failed = self.tried = None


_lock = surroundings.RLock()
_open: dict[Place, Run] = {}
_memories: OrderedDict[Place, Memory] = OrderedDict()
_homes: OrderedDict[tuple[str, str], Hashable] = OrderedDict()
_janitor: threading.Thread | None = None


def memory(place: Place) -> Memory:
    """What is known of ``place``."""
    return _kept(_memories, place, Memory())


def error_in(run_id: str) -> OncewardError | None:
    """What a call met last in that run, and none has been successful since.

    Of several sinks' errors the one that weighs most: who was fenced must not come back because
    another sink, too, has met something.
    """
    with _lock:
        met = [
            known.error for place, known in reversed(_memories.items()) if place.run_id == run_id
        ]
    errors = [error for error in met if error is not None]
    return min(errors, key=_lightness, default=None)


def _lightness(error: OncewardError) -> int:
    if isinstance(error, Fenced):
        return 0
    return {Recovery.STOP: 1, Recovery.RESTART_IF_WORKED: 2}.get(error.recovery, 3)


def find(place: Place, settings: object) -> Run | None:
    """The open run at ``place``.

    :raises UnsupportedQuery: it belongs to a sink that was built with other settings.
    """
    with _lock:
        run = _open.get(place)
    if run is not None and run.settings != settings:
        raise UnsupportedQuery(
            "two sinks with the same pipeline_id and different settings are called in one query; "
            "a pipeline_id names "
            "one chain of transactions, and the rows of the second sink are not written",
            next_step="use one sink, hand over all frames of a batch with `with sink.batch(frame, "
            "batch_id) as batch: "
            "batch.write(first); batch.write(second, topic=…)`, those of the first sink first, "
            "and start once with "
            'resume="complete", which writes what the batch lacks; or give each sink a '
            "pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    return run


def enter(place: Place, run: Run) -> None:
    """``run`` is the owner of ``place`` from now on, until :func:`leave` or the end of its
    query.
    """
    global _janitor
    with _lock:
        _open[place] = run
        if (
            _janitor is None or not _janitor.is_alive()
        ):  # a thread can die at its very start, of an exception
            _janitor = surroundings.Thread(target=_look_after, name="onceward-runs", daemon=True)
            _janitor.start()


def leave(place: Place, failed: BatchId | None = None) -> None:
    """Close the run at ``place``, if there is one. ``failed`` is remembered, for a second try in
    the same run.
    """
    with _lock:
        run = _open.pop(place, None)
    if failed is not None:
        memory(place).failed = failed
    if run is not None:
        run.target.close()


def claim(place: Place, pipeline: str) -> Memory:
    """What is known of ``place``, which is the pipeline's in this run.

    :raises UnsupportedQuery: it has another one: what is noted of the one would be taken for the
        other's.
    :raises Fenced: the run has lost the pipeline to a newer copy. Whoever tries again shall not
        take it back.
    """
    if _kept(_homes, (place.run_id, pipeline), place.where) != place.where:
        raise UnsupportedQuery(
            f"two sinks of one query have the pipeline_id {pipeline!r}, and write to different "
            f"clusters or ledger "
            "topics; the rows of the second are not written",
            next_step="give each sink a pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    known = memory(place)
    if known.fenced:
        raise Fenced(
            f"run {place.run_id} has lost pipeline {pipeline} to a newer copy before: "
            f"{known.fenced}",
            next_step="leave this copy stopped; let the sink's errors leave the foreachBatch "
            "function",
        )
    return known


def _kept(known: OrderedDict[K, V], key: K, new: V) -> V:
    """What is known by ``key``; ``new``, if nothing is. The last thousand that were asked for are
    kept.
    """
    with _lock:
        found = known.setdefault(key, new)
        known.move_to_end(key)
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
    return found


def _look_after() -> None:
    global _janitor
    pause = surroundings.Event()
    while True:
        pause.wait(_LOOK_SECONDS)
        with _lock:
            runs = dict(_open)
            if not runs:
                _janitor = None  # under the lock: whoever enters next starts another
                return
        for place, run in runs.items():
            _close_if_over(place, run)


def _close_if_over(place: Place, run: Run) -> None:
    """Close ``run`` if Spark says that its query has ended. That Spark cannot be asked says
    nothing: out of file descriptors, say, py4j opens no connection, and the query is well.
    """
    try:
        if run.is_running():
            return
        log.debug("query %s has ended; closing its sink", run.query_id)
        leave(place)
    except Exception:  # one run must not end the look after the others
        log.debug(
            "%s: whether its query runs, or its sink is closed, is not known", place, exc_info=True
        )
