"""A batch that is committed already, and that Spark runs again: its plan runs, its rows are
counted, nothing is sent.

Called by ``engine.micro_batch`` in the driver. Spark runs a batch again if its commit log has not
got it: state and watermark need the plan. Rows that the batch was not committed with would be
dropped silently (:mod:`onceward.engine.ledger.replayed`), so they are refused by name, or written
as a supplement.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onceward.engine.calls.failed_batches import FailedBatches, Kind, must_compute_once
from onceward.engine.ledger.record import FrameWritten, LedgerRecord
from onceward.engine.ledger.replayed import Replayed, batch_changed, compare_all
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import ComputationsMixed, SourceDataLost
from onceward.spark.batch.job import naming_failures
from onceward.spark.batch.persisted import count_rows
from onceward.spark.batch.query import RunningBatch, is_deterministic

log = logging.getLogger(__name__)


def replay(
    writes: Sequence[Write],
    running: RunningBatch,
    newest: LedgerRecord | None,
    policy: SinkPolicy,
    failures: FailedBatches | None,
) -> Sequence[Write]:
    """Run the plan of the batch of ``newest`` and drop its rows.

    Returns the frames that the committed batch lacks, if the user wants them written
    (``resume="complete"``).

    :raises BatchChanged: there are rows that the committed batch has not.
    :raises SourceDataLost: they cannot be counted, and some may be lacking.
    """
    log.info(
        "%s: %s is committed already; running it without output", policy.pipeline, running.batch
    )
    committed = newest.frames if newest else None
    number = running.batch.batch_id
    kinds = {kind for kind in Kind if failures is not None and failures.of(number, kind)}
    try:
        with naming_failures():
            now = _counted(writes, running, policy)
    except SourceDataLost as lost:
        if running.stateful:
            raise
        # Without state there is nothing to repeat but the count.
        more = [write.where for write in writes] != [frame.where for frame in committed or ()]
        lacking = more or Kind.REFUSED in kinds or Kind.REPLAY in kinds
        if policy.resume != "keep" and (lacking or policy.resume == "complete"):
            raise SourceDataLost(
                f"{running.batch} is committed, and whether it lacks rows that the function hands "
                f"over now cannot be "
                f"found out: {lost.message}",
                next_step='to leave the batch as it is committed, start once with resume="keep"',
            ) from lost
        log.warning(
            "%s: %s is committed and cannot be read again: %s",
            policy.pipeline,
            running.batch,
            lost,
        )
        return ()
    if committed is None:
        return ()
    return _lacking(writes, now, committed, running, policy, refused=Kind.REFUSED in kinds)


def _lacking(
    writes: Sequence[Write],
    now: Sequence[FrameWritten],
    committed: Sequence[FrameWritten],
    running: RunningBatch,
    policy: SinkPolicy,
    *,
    refused: bool,
) -> Sequence[Write]:
    """:param refused: rows are missing for a reason that is known, and not by chance."""
    aside = [write.set_aside for write in writes]
    outcome, lacking = compare_all(
        committed, now, aside, exactly=refused, stateful=running.stateful
    )
    if outcome is Replayed.NOTHING_NEW:
        return ()
    changed = batch_changed(running.batch, outcome, committed, now)
    if outcome is Replayed.MORE_FRAMES and policy.resume == "complete":
        log.warning("%s: writing what is missing: %s", policy.pipeline, changed.message)
        return [writes[index] for index in lacking]
    by_chance = (
        outcome is Replayed.OTHER_ROWS
        and not refused
        and not all(is_deterministic(write.frame) for write in writes)
    )
    if policy.resume == "keep" or by_chance:
        log.warning("%s: left as it is: %s", policy.pipeline, changed.message)
        return ()
    raise changed


def _counted(
    writes: Sequence[Write], running: RunningBatch, policy: SinkPolicy
) -> list[FrameWritten]:
    """Count the rows of each frame.

    :raises ComputationsMixed: as often as a batch is tried, the numbers may have been of two
        computations of it. Compared with those that are committed they would name rows as lacking
        that are there, in another frame.
    """
    attempt = 1
    while True:
        try:
            numbers = count_rows([write.frame for write in writes])
            return [
                FrameWritten(write.where, number)
                for write, number in zip(writes, numbers, strict=True)
            ]
        except ComputationsMixed as mixed:
            if attempt >= policy.batch_attempts:
                raise
            must_compute_once(running, mixed)
            log.warning(
                "%s: counting the rows of %s again: %s", policy.pipeline, running.batch, mixed
            )
        attempt += 1
