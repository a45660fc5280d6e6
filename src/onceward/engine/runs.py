"""The runs of queries that are open in this process, one for each (run of a query, place that it writes to).

Called by ``engine.foreach_batch``; driver only. Two things hang on there being one owner:

* Two sink objects under one ``pipeline_id`` in one query would take each other for a crashed predecessor, and the
  second would find the first one's batch in the ledger and drop its own rows as a replay. So the second gets the first
  one's run, if it is built alike (a sink that is built anew in every batch, say), and is refused otherwise.
* Nobody calls ``close()`` when a query ends. A thread looks once a second whether the queries still run, and gives
  back the connections and threads of those that do not.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceward.engine.handed_over import Note
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.target import AtomicTarget
from onceward.errors import ROWS_REFUSED, Fenced, UnsupportedQuery
from onceward.ids import BatchId

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_REMEMBERED_PLACES = 1_000


class Place(NamedTuple):
    """What must have one owner in a run: ``where`` names the ledger and the pipeline in it."""

    run_id: str
    where: Hashable


@dataclass(eq=False)
class Run:
    """A run at work: what its sink was built with, and what it keeps from batch to batch."""

    query_id: str
    settings: object
    target: AtomicTarget
    batches: MicroBatches
    is_running: Callable[[], bool] = field(repr=False)


_lock = threading.RLock()
_open: dict[Place, Run] = {}
_failed: OrderedDict[Place, BatchId] = OrderedDict()
_committed: OrderedDict[Place, int] = OrderedDict()
_tried: OrderedDict[Place, tuple[int, Hashable]] = OrderedDict()
_fenced: OrderedDict[Place, str] = OrderedDict()
_to_note: OrderedDict[Place, Note] = OrderedDict()
_homes: OrderedDict[tuple[str, str], Hashable] = OrderedDict()
_janitor: threading.Thread | None = None


def find(place: Place, settings: object) -> Run | None:
    """The open run at ``place``.

    :raises UnsupportedQuery: it belongs to a sink that was built with other settings.
    """
    with _lock:
        run = _open.get(place)
    if run is not None and run.settings != settings:
        raise UnsupportedQuery(
            "two sinks with the same pipeline_id and different settings are called in one query; a pipeline_id names "
            "one chain of transactions, and the rows of the second sink are not written",
            next_step="use one sink, hand over all frames of a batch with `with sink.batch(frame, batch_id) as batch: "
            "batch.write(first); batch.write(second, topic=…)`, those of the first sink first, and start once with "
            'resume="complete", which writes what the batch lacks; or give each sink a pipeline_id of its own',
            details={ROWS_REFUSED: True},
        )
    return run


def enter(place: Place, run: Run) -> None:
    """``run`` is the owner of ``place`` from now on, until :func:`leave` or the end of its query."""
    global _janitor
    with _lock:
        _open[place] = run
        if _janitor is None or not _janitor.is_alive():  # a thread can die at its very start, of an exception
            _janitor = threading.Thread(target=_look_after, name="onceward-runs", daemon=True)
            _janitor.start()


def leave(place: Place, failed: BatchId | None = None) -> None:
    """Close the run at ``place``, if there is one. ``failed`` is remembered, for a second try in the same run."""
    with _lock:
        run = _open.pop(place, None)
        if failed is not None:
            _keep(_failed, place, failed)
    if run is not None:
        run.target.close()


def succeeded(place: Place, batch: BatchId) -> None:
    """``batch`` is committed: whoever calls for it once more is a second caller, and not one who tries again."""
    with _lock:
        _failed.pop(place, None)
        _tried.pop(place, None)
        _keep(_committed, place, batch.batch_id)


def has_committed(place: Place, batch_id: int) -> bool:
    """Is ``batch_id`` the newest batch that an owner of ``place`` has committed, or found committed?"""
    with _lock:
        return _committed.get(place) == batch_id


def claim(place: Place, pipeline: str) -> None:
    """``place`` is the pipeline's in this run.

    :raises UnsupportedQuery: it has another one: what is noted of the one would be taken for the other's.
    :raises Fenced: the run has lost the pipeline to a newer copy. Whoever tries again shall not take it back.
    """
    with _lock:
        home = _homes.setdefault((place.run_id, pipeline), place.where)
        _keep(_homes, (place.run_id, pipeline), home)
        fenced = _fenced.get(place)
    if home != place.where:
        raise UnsupportedQuery(
            f"two sinks of one query have the pipeline_id {pipeline!r}, and write to different clusters or ledger "
            "topics; the rows of the second are not written",
            next_step="give each sink a pipeline_id of its own",
            details={ROWS_REFUSED: True},
        )
    if fenced is not None:
        raise Fenced(
            f"run {place.run_id} has lost pipeline {pipeline} to a newer copy before: {fenced}",
            next_step="leave this copy stopped; let the sink's errors leave the foreachBatch function",
        )


def fence(place: Place, why: Fenced) -> None:
    """A newer copy of the pipeline has taken over from the run at ``place``, for good."""
    with _lock:
        _keep(_fenced, place, _fenced.get(place) or why.message)


def tried(place: Place, batch_id: int, frames: Hashable) -> None:
    """A call for the batch with these frames has failed."""
    with _lock:
        _keep(_tried, place, (batch_id, frames))


def tried_with(place: Place, batch_id: int) -> Hashable | None:
    """The frames of the call for the batch that failed last, if one did and none has been successful since."""
    with _lock:
        number, frames = _tried.get(place, (None, None))
    return frames if number == batch_id else None


def to_be_noted(place: Place, note: Note | None) -> None:
    """``note`` waits until it is written beside the checkpoint; None: it is."""
    with _lock:
        if note is None:
            _to_note.pop(place, None)
        else:
            _keep(_to_note, place, note)


def to_note(place: Place) -> Note | None:
    """What waits to be noted."""
    with _lock:
        return _to_note.get(place)


def failed_at(place: Place) -> BatchId | None:
    """The batch at which an earlier owner of ``place`` was closed."""
    with _lock:
        return _failed.get(place)


def _keep(known: OrderedDict[Any, Any], place: Hashable, what: object) -> None:
    known[place] = what
    known.move_to_end(place)
    while len(known) > _REMEMBERED_PLACES:
        known.popitem(last=False)


def _look_after() -> None:
    global _janitor
    pause = threading.Event()
    while True:
        pause.wait(_LOOK_SECONDS)
        with _lock:
            runs = dict(_open)
            if not runs:
                _janitor = None  # under the lock: whoever enters next starts another
                return
        for place, run in runs.items():
            if not _still_running(run):
                log.debug("query %s has ended; closing its sink", run.query_id)
                leave(place)


def _still_running(run: Run) -> bool:
    try:
        return run.is_running()
    except Exception:  # noqa: BLE001 — the JVM is gone, and with it every query
        return False
