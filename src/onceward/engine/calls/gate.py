"""The gate before each batch: closed for a pause after the batch before it, and for good once the
process is to end at a batch boundary.

Nor does a batch begin, or an attempt follow another, where executors would go on from the state of
an attempt that failed; nor where a query has come in the place of another one, as happens in the
empty folder below a disk that is not mounted.

Called by ``foreach_batch``, ``runs``, ``micro_batch`` and ``kafka.sink.plain`` in the query's
thread, and by :mod:`onceward.operate.supervise` and :mod:`onceward.operate.waiting` around it;
closed by :mod:`onceward.operate.stopping`.
Driver only. A batch that has begun goes on, also with further calls of its function: at the end
of the process one that Spark has begun, else one that has come to a sink.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType

from pyspark.sql import DataFrame

from onceward import durable, surroundings
from onceward.engine.calls.advice import state_is_left, state_of_failed
from onceward.engine.ledger.admission import Resume
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import CheckpointUnreachable, OncewardError
from onceward.spark.batch.checkpoint_files import SnapshotsOfFailures
from onceward.spark.batch.job import JobInterrupted
from onceward.spark.batch.query import RunningBatch, current_run_id, is_being_stopped
from onceward.spark.batch.shuffles import StateCopies

_LOOK_SECONDS = 0.2
_REMEMBERED = 1_000

# For each run of a query the newest batch that has begun, and when it ended
_batches: dict[str, tuple[int, float | None]] = {}
# Of each run the batch that Spark had begun when the gate was closed
_begun: dict[str, int] = {}
_waiting: set[str] = set()
_lock = threading.Lock()
_is_closed = False

# Which query has committed batches at a checkpoint, by its path
_homes: dict[str, str] = {}
_restarting = 0


def close(closed: bool = True, *, begun: Mapping[str, int] = MappingProxyType({})) -> None:
    """Let no further batch begin in this process; for tests, which share one, also open it.

    :param begun: by its run the newest batch of each query: Spark may be computing it, or a
        function of the user's, before it comes to a sink.
    """
    global _begun, _is_closed
    _begun, _is_closed = dict(begun), closed


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
    # One that was here in its pause when the gate was closed has not begun, and waits below
    if batch_id in (newest, _begun.get(run_id)):
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
    """Let a run compute a batch once more. :raises StateOfFailedAttempt: Spark would commit the
    state of the attempt that failed."""
    if running.computes_once:
        raise state_of_failed(running, failed) from failed
    if (state := _state_of_failures(running)) is not None:
        copies, snapshots = state
        copies.note(running)
        snapshots.note(running.batch.batch_id)


def must_know_one_state(running: RunningBatch) -> None:
    """Refuse a batch whose tasks may find the state of an attempt that failed; remove snapshots.

    :raises StateOfFailedAttempt: executors keep it; a restart knows nothing of it.
    """
    if (state := _state_of_failures(running)) is not None:
        copies, snapshots = state
        snapshots.clear(running.batch.batch_id)
        if left := copies.left(running):
            raise state_is_left(running, left)


def settle_state(running: RunningBatch) -> None:
    """Look, when a batch is written, whether an attempt that failed has left its state at
    executors, and remove snapshots."""
    if (state := _state_of_failures(running)) is not None:
        copies, snapshots = state
        copies.settle(running)
        snapshots.settle(running.batch.batch_id)


@lru_cache(maxsize=200)
def _in_run(run_id: str, checkpoint: str) -> tuple[StateCopies, SnapshotsOfFailures]:
    return StateCopies(), SnapshotsOfFailures(checkpoint)


def _state_of_failures(running: RunningBatch) -> tuple[StateCopies, SnapshotsOfFailures] | None:
    """Return what a run knows of the state of attempts that failed: at executors, and as snapshots
    in the checkpoint."""
    history = running.history if running.stateful else None
    return None if history is None else _in_run(running.run_id, history.checkpoint)


@contextmanager
def starting_again() -> Iterator[None]:
    """Know, inside the block that starts a query again, where each has committed batches."""
    global _restarting
    with _lock:
        _restarting += 1
    try:
        yield
    finally:
        with _lock:
            _restarting -= 1
            if not _restarting:
                _homes.clear()


def knows_homes() -> bool:
    """Return whether this process, or the runner that has started it, starts queries again."""
    return bool(_restarting) or durable.is_in_a_run()


def note_home(checkpoint: str, query_id: str) -> None:
    """Note that the query has committed batches at the checkpoint, if :func:`knows_homes`."""
    with _lock:
        if not knows_homes() or _homes.get(checkpoint) == query_id:
            return
        _homes[checkpoint] = query_id
    durable.keep(checkpoint, query_id)


def home(checkpoint: str) -> str | None:
    """Return the query that has committed batches there, as far as is known."""
    return _homes.get(checkpoint) or durable.kept(checkpoint)


def must_be_at_home(running: RunningBatch, newest: LedgerRecord | None, resume: Resume) -> None:
    """Refuse a query in whose checkpoint's place another one has committed: a disk that is not
    mounted is an empty folder, in which Spark begins another query.

    :param newest: the ledger's newest record, read before anything is written. None is no reason
        to let it pass: the ledger may be on that disk, too.
    :raises CheckpointUnreachable: this process, or an earlier one of ``onceward run``, has seen
        another query there, of which the ledger does not know better.
    """
    if running.history is None or not knows_homes():
        return
    known, query_id = home(checkpoint := running.history.checkpoint), running.batch.query_id
    knows_better = newest is not None and (resume == "ledger" or newest.batch.query_id != known)
    if known in (None, query_id) or knows_better:
        return
    raise CheckpointUnreachable(
        f"the checkpoint of query {known} is not where it has committed batches, and Spark has "
        f"begun query {query_id} there, as if its disk were not mounted ({checkpoint})",
        next_step="mount the checkpoint's disk, or restore the checkpoint: the query goes on when "
        "it is started again; if it was replaced on purpose, end this process (and `onceward run` "
        "with it), and start another, which says what can be done",
        details={"known": known, "query_id": query_id},
    )
