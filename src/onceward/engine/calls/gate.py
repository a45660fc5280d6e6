"""The gate before each batch: closed for a pause after the batch before it, and for good once the
process is to end at a batch boundary.

Nor does a batch begin, or an attempt follow another, where executors would go on from the state of
an attempt that failed.

Called by ``foreach_batch``, ``runs`` and ``micro_batch`` in the query's thread; closed by
:mod:`onceward.operate.stopping`.
Driver only. A batch that has begun goes on, also with further calls of its function.
"""

from __future__ import annotations

import threading

from pyspark.sql import DataFrame

from onceward import surroundings
from onceward.engine.calls.advice import must_compute_once, state_is_left
from onceward.errors import OncewardError
from onceward.spark.batch.job import JobInterrupted
from onceward.spark.batch.query import RunningBatch, current_run_id, is_being_stopped
from onceward.spark.batch.shuffles import state_copies

_LOOK_SECONDS = 0.2
_REMEMBERED = 1_000

# For each run of a query the newest batch that has begun, and when it ended
_batches: dict[str, tuple[int, float | None]] = {}
_waiting: set[str] = set()
_lock = threading.Lock()
_is_closed = False


def close(closed: bool = True) -> None:
    """Let no further batch begin in this process; for tests, which share one, also open it."""
    global _is_closed
    _is_closed = closed


def holds(run_id: str) -> bool:
    """Return whether a batch of that run waits here until its query is stopped."""
    return run_id in _waiting


def wait(frame: DataFrame, batch_id: int, min_pause_s: float) -> None:
    """Wait until the batch may begin. :raises JobInterrupted: the query is being stopped."""
    # The usual case asks the JVM nothing
    if not (_is_closed or min_pause_s):
        return
    run_id = current_run_id(frame)
    newest, ended_at = _batches.get(run_id, (None, None))
    if newest == batch_id:
        return
    opens_at = 0.0 if ended_at is None else ended_at + min_pause_s
    while _is_closed or surroundings.monotonic() < opens_at:
        if _is_closed:
            _waiting.add(run_id)
        if is_being_stopped(frame):
            raise JobInterrupted
        left = _LOOK_SECONDS if _is_closed else opens_at - surroundings.monotonic()
        surroundings.sleep(max(0.001, min(_LOOK_SECONDS, left)))


def begin(run_id: str, batch_id: int) -> None:
    """Note that a batch has begun."""
    with _lock:
        if _batches.get(run_id, (None, None))[0] != batch_id:
            # The newest runs come last
            _batches.pop(run_id, None)
            _batches[run_id] = batch_id, None
            while len(_batches) > _REMEMBERED:
                del _batches[next(iter(_batches))]


def end(run_id: str, batch_id: int) -> None:
    """Note that a call for the batch has ended well."""
    with _lock:
        _batches[run_id] = batch_id, surroundings.monotonic()


def compute_again(running: RunningBatch, failed: OncewardError | None) -> None:
    """Let a run compute a batch once more.

    :raises StateOfFailedAttempt: Spark would commit the state of the attempt that failed.
    """
    must_compute_once(running, failed)
    if _keeps_state(running):
        state_copies(running.run_id).note(running)


def must_know_one_state(running: RunningBatch) -> None:
    """Refuse a batch whose tasks may find the state of an attempt that failed.

    :raises StateOfFailedAttempt: executors keep it; a restart knows nothing of it.
    """
    if _keeps_state(running) and (left := state_copies(running.run_id).left(running)):
        raise state_is_left(running, left)


def settle_state(running: RunningBatch) -> None:
    """Look, when a batch is written, whether an attempt that failed has left its state."""
    if _keeps_state(running):
        state_copies(running.run_id).settle(running)


def _keeps_state(running: RunningBatch) -> bool:
    return running.stateful and running.history is not None
