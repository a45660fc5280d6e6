"""A call of a sink that failed: what it leaves behind, and what the function may do then. Driver
only.

Called by ``engine.calls.foreach_batch`` before the error reaches the user's function, which may
keep it to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from onceward.engine.calls import runs
from onceward.engine.calls.failed_batches import FailedBatch, FailedBatches, Kind
from onceward.engine.target import Write
from onceward.errors import ROWS_REFUSED, BatchNotWritten, OncewardError, UnsupportedQuery
from onceward.ids import PipelineId
from onceward.spark.batch.query import RunningBatch, failed_call, files_of, fingerprint

_LONGEST_TEXT = 600


def remember(
    frame: DataFrame,
    batch_id: int,
    error: BaseException,
    writes: Sequence[Write] | None,
    place: runs.Place,
    pipeline: PipelineId,
) -> None:
    """Remember the batch that was not written, in the run and beside the checkpoint.

    :param writes: what was handed over, if nothing else may be handed over in its place.
    :raises CheckpointUnreachable: it is remembered in the run only.
    """
    call = failed_call(frame, batch_id)
    if call is None:
        return
    number, in_thread = call
    known, failures = runs.memory(place), failures_at(place, frame, pipeline)
    if isinstance(error, BatchNotWritten):  # what it is about is known already
        failures.write_rest()
        return
    if writes is not None and (
        known.tried is None or number >= known.tried[0]
    ):  # a thread may be late
        known.tried = number, _fingerprints(writes)
    refused = isinstance(error, OncewardError) and bool(error.details.get(ROWS_REFUSED))
    late = known.committed is not None and number <= known.committed
    replay = known.replay and known.failed is not None and known.failed.batch_id == number
    kind = Kind.REFUSED if refused or late or in_thread else Kind.REPLAY if replay else Kind.FAILED
    failures.add(FailedBatch(number, kind, paragraph(error), place.run_id))


def failures_at(place: runs.Place, frame: DataFrame, pipeline: PipelineId) -> FailedBatches:
    """Return the failed batches of a run, of which ``frame`` is a batch."""
    known = runs.memory(place)
    if known.failures is None:
        known.failures = FailedBatches(pipeline, place.run_id, files_of(frame, pipeline))
    return known.failures


def refuse_other_frames(
    known: runs.Memory, running: RunningBatch, writes: Sequence[Write]
) -> None:
    """A call that failed may be tried again. Other frames in its place would commit the batch
    without its rows.
    """
    number, handed = known.tried or (None, None)
    if number == running.batch.batch_id and handed != _fingerprints(writes):
        raise UnsupportedQuery(
            f"a call of the sink for {running.batch} has failed, and the function calls again "
            f"with other frames; "
            "they would commit the batch without the rows of the first call, and are not written",
            next_step="let the sink's errors leave the function; hand all frames of a batch over "
            "in one block; if "
            "the function tries again by itself, then with the same frames",
            details={ROWS_REFUSED: True},
        )


def paragraph(error: BaseException) -> str:
    """Return what is to be said of ``error`` in the log: one paragraph, also of pages of Java."""
    if isinstance(error, OncewardError):
        return f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:2]
    text = " ".join([f"{type(error).__name__}:", *lines])[:_LONGEST_TEXT].rstrip(".")
    return f"{text}. Next: mend what it names; the next start runs the batch again."


def _fingerprints(writes: Sequence[Write]) -> list[tuple[str | None, int]]:
    """Equal for two calls that hand over the same, however the frames were made; what the engine
    adds does not count.
    """
    return [(write.where, fingerprint(write.frame)) for write in writes if not write.set_aside]
