"""Has a committed batch the rows that it was committed with? A pure comparison, made when Spark
runs it again.

Called by ``engine.micro_batch`` in the driver. Spark runs a batch again if it died between
``EndTxn`` and its commit log. The rows are the same then, unless the user changed the code in
between: a second frame was added to the function, say, because the first form of it was refused.
Its rows would be dropped with the replay, silently.

Only records are counted, frame by frame. What has fewer now than then cannot lose any; what has
more would. Dead letters are counted apart: they come behind the function's frames, also behind
those that it did not have then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from onceward.engine.ledger.record import FrameWritten
from onceward.errors import ROWS_REFUSED, BatchChanged
from onceward.ids import BatchId


class Replayed(Enum):
    """How the frames of a batch compare with those that are committed."""

    NOTHING_NEW = "nothing new"
    MORE_FRAMES = "more frames"
    OTHER_ROWS = "other rows"
    OTHER_VERDICT = "what was a dead letter is read now"


def compare(
    committed: Sequence[FrameWritten], now: Sequence[FrameWritten], *, exactly: bool = False
) -> Replayed:
    """``MORE_FRAMES``: all committed ones, in order, and others after them. Frames without rows do
    not count.

    :param exactly: fewer rows are other rows, too: the batch is known to lack some, and a sum
        proves nothing of which.
    """
    then, again = [f for f in committed if f.records], [f for f in now if f.records]
    if again == then or (not exactly and _covered(again, then)):
        return Replayed.NOTHING_NEW
    return Replayed.MORE_FRAMES if again[: len(then)] == then else Replayed.OTHER_ROWS


def compare_all(
    committed: Sequence[FrameWritten],
    now: Sequence[FrameWritten],
    set_aside: Sequence[bool],
    *,
    exactly: bool = False,
    stateful: bool = False,
) -> tuple[Replayed, list[int]]:
    """As :func:`compare` and :func:`missing`, for a batch that may have dead letters.

    :param set_aside: of each frame in ``now``: is it one of dead letters?
    :param stateful: a record that was a dead letter then, and can be read now, would be in the
        query's state as well.
    """
    places = {frame.where for frame, aside in zip(now, set_aside, strict=True) if aside}
    outcomes, lacking = [], []
    for aside in (False, True):
        then = [frame for frame in committed if (frame.where in places) is aside]
        indices = [index for index, is_aside in enumerate(set_aside) if is_aside is aside]
        again = [now[index] for index in indices]
        outcomes.append(compare(then, again, exactly=exactly))
        if outcomes[-1] is Replayed.MORE_FRAMES:
            lacking += [indices[index] for index in missing(then, again)]
        elif aside and stateful and sum(f.records for f in again) < sum(f.records for f in then):
            outcomes.append(Replayed.OTHER_VERDICT)
    worst = (
        Replayed.OTHER_ROWS,
        Replayed.OTHER_VERDICT,
        Replayed.MORE_FRAMES,
        Replayed.NOTHING_NEW,
    )
    return next(outcome for outcome in worst if outcome in outcomes), sorted(lacking)


def missing(committed: Sequence[FrameWritten], now: Sequence[FrameWritten]) -> list[int]:
    """Where in ``now`` the frames stand that ``committed`` lacks, for ``MORE_FRAMES``."""
    filled = [index for index, frame in enumerate(now) if frame.records]
    return filled[sum(1 for frame in committed if frame.records) :]


def _covered(frames: Sequence[FrameWritten], by: Sequence[FrameWritten]) -> bool:
    then: Counter[str | None] = Counter()
    for frame in by:
        then[frame.where] += frame.records
    for frame in frames:
        then[frame.where] -= frame.records
    return all(rest >= 0 for rest in then.values())


def batch_changed(
    batch: BatchId,
    outcome: Replayed,
    committed: Sequence[FrameWritten],
    now: Sequence[FrameWritten],
) -> BatchChanged:
    """The error for what has rows that would be dropped, or counted although they are dead
    letters.
    """
    if outcome is Replayed.OTHER_VERDICT:
        return BatchChanged(
            f"{batch} is committed with {_text(committed)}, now it has {_text(now)}: records that "
            f"are dead letters of "
            "it can be read now, and the query's state would count them, too",
            next_step="start with the schemas that the records were read by then; or let the "
            "state count them: start "
            'once with resume="keep", and do not feed these dead letters back',
            details={ROWS_REFUSED: True, "batch_id": batch.batch_id},
        )
    if outcome is Replayed.MORE_FRAMES:
        advice = (
            'start once with resume="complete", which writes the frames that are missing in '
            "a transaction of their own"
        )
    else:
        advice = (
            "hand the committed frames over first and unchanged, the others after them, and start "
            "once with "
            'resume="complete", which writes those; or write what is missing with a sink and a '
            "pipeline_id of its own "
            '(resume="adopt")'
        )
    return BatchChanged(
        f"{batch} is committed with {_text(committed)}; the function now hands over {_text(now)}, "
        f"and what is new "
        "would not be written",
        next_step=f"{advice}; to leave the batch as it is committed, start once with "
        f'resume="keep"',
        details={
            ROWS_REFUSED: True,
            "batch_id": batch.batch_id,
            "committed": [list(f) for f in committed],
            "now": [list(f) for f in now],
        },
    )


def _text(frames: Sequence[FrameWritten]) -> str:
    parts = [
        f"{frame.records} records" + (f" for {frame.where}" if frame.where else "")
        for frame in frames
    ]
    return " and ".join(parts) or "no records"
