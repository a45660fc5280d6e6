"""Replay of a committed batch: its plan runs, its rows are counted, nothing is sent.

Called by ``engine.micro_batch``; driver only. Spark runs a batch again if it died between
``EndTxn`` and its commit log: state and watermark need the plan. The rows are the same then,
unless the user changed the code in between: a second frame was added to the function, say, because
the first form of it was refused. Its rows would be dropped with the replay, silently, so they are
refused by name, or written as a supplement.

Only records are compared, frame by frame. A frame that has fewer now than then cannot lose any;
one that has more would. Dead letters are counted apart: they come behind the function's frames,
also behind those that it did not have then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

from onceward.engine.calls.advice import batch_changed, dead_letters_changed
from onceward.engine.calls.journal import FailureKind, Journal
from onceward.engine.ledger.record import FrameWritten, LedgerRecord
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write, unwritten
from onceward.errors import SourceDataLost
from onceward.spark.batch.below import is_repeatable
from onceward.spark.batch.failures import OF_PARTITIONS
from onceward.spark.batch.job import naming_failures
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import count_rows

log = logging.getLogger(__name__)


class ReplayOutcome(Enum):
    """How the frames of a batch compare with those that are committed."""

    NOTHING_NEW = "nothing new"
    MORE_FRAMES = "more frames"
    OTHER_ROWS = "other rows"
    DEAD_LETTERS_READ = "what was a dead letter is read now"


def replay(
    writes: Sequence[Write],
    running: RunningBatch,
    newest: LedgerRecord | None,
    policy: SinkPolicy,
    journal: Journal | None,
    look: Callable[[], object] = lambda: None,
) -> Sequence[Write]:
    """Run the plan of the batch of ``newest`` and drop its rows. Return the frames that the
    committed batch lacks, if the user wants them written (``resume="write_missing"``).

    :param look: raises ``SourceDataLost`` where it is known that the batch cannot be read again.
    :raises BatchChanged: there are rows that the committed batch has not.
    :raises ComputationsMixed: the numbers may be of two computations of the batch. Compared with
        the committed ones they would name rows as lacking that are there, in another frame.
    :raises SourceDataLost: they cannot be counted, and some may be lacking.
    """
    log.debug(
        "%s: %s is committed already; running it without output", policy.pipeline, running.batch
    )
    committed = newest.frames if newest else None
    kinds = journal.kinds(running.batch.batch_id) if journal is not None else set()
    try:
        look()
        with naming_failures():
            # The whole plan runs, although nothing is sent: state stores and the watermark of the
            # next batch come out of this run, which Spark has not committed.
            frames = [write.frame for write in writes]
            numbers = count_rows([*frames, *unwritten(writes, running)])[: len(frames)]
    except SourceDataLost as lost:
        more = [write.where for write in writes] != [frame.where for frame in committed or ()]
        lacking = more or FailureKind.REFUSED in kinds or FailureKind.REPLAY in kinds
        _must_not_lack_rows(lost, running, policy, lacking=lacking)
        text = "%s: %s is committed and cannot be read again: %s"
        log.warning(text, policy.pipeline, running.batch, lost)
        return ()
    if committed is None:
        return ()
    now = [FrameWritten(write.where, n) for write, n in zip(writes, numbers, strict=True)]
    refused = FailureKind.REFUSED in kinds
    return _missing_writes(writes, now, committed, running, policy, refused=refused)


def _must_not_lack_rows(
    lost: SourceDataLost, running: RunningBatch, policy: SinkPolicy, *, lacking: bool
) -> None:
    """Raise for a committed batch that cannot be read again, unless it was to be counted only."""
    # What the query only does not name is not gone
    back = str(lost.details.get("condition", "")).startswith(OF_PARTITIONS)
    put_back = "put back into topic= or topic_pattern= what the batch has read; " if back else ""
    if running.stateful and "condition" in lost.details:
        raise SourceDataLost(
            f"{running.batch} is committed, and the state behind it, which Spark has not "
            f"committed, cannot be computed again: {lost.message}",
            next_step=f"{put_back}to go on with a state that lacks what is gone, start once with "
            'kafka_source(spark_options={"failOnDataLoss": False}); else begin anew with another '
            "pipeline_id and checkpoint",
            details=lost.details,
        ) from lost
    if running.stateful:
        raise lost
    if policy.resume != "skip_missing" and (lacking or policy.resume == "write_missing"):
        raise SourceDataLost(
            f"{running.batch} is committed, and whether it lacks rows that the function hands "
            f"over now cannot be found out: {lost.message}",
            next_step=f"{put_back}to leave the batch as it is committed, start once with "
            'resume="skip_missing"',
            details=lost.details,
        ) from lost


def _missing_writes(
    writes: Sequence[Write],
    now: Sequence[FrameWritten],
    committed: Sequence[FrameWritten],
    running: RunningBatch,
    policy: SinkPolicy,
    *,
    refused: bool,
) -> Sequence[Write]:
    """Return the frames that the committed batch lacks, if the user wants them written.

    :param refused: rows are missing for a reason that is known, and not by chance.
    :raises BatchChanged: there are some, and the user has not decided.
    """
    aside = [write.set_aside for write in writes]
    outcome, lacking = compare_all(
        committed, now, aside, exactly=refused, stateful=running.stateful
    )
    if outcome is ReplayOutcome.NOTHING_NEW:
        if running.stateful and not all(is_repeatable(write.frame) for write in writes):
            log.warning(
                "%s: %s was committed by an earlier run, and its state has now been computed once "
                "more, by a plan that may make other values each time (uuid(), rand(), first(), a "
                "function of yours that looks something up): for the keys of this batch, state "
                "and output may disagree. Next: take such values from the record, a hash of its "
                "key and offset, say; where they are so already there is nothing to do",
                policy.pipeline,
                running.batch,
            )
        return ()
    more_frames = outcome is ReplayOutcome.MORE_FRAMES
    changed = (
        dead_letters_changed(running.batch, committed, now)
        if outcome is ReplayOutcome.DEAD_LETTERS_READ
        else batch_changed(running.batch, committed, now, more_frames=more_frames)
    )
    if more_frames and policy.resume == "write_missing":
        log.warning("%s: writing what is missing: %s", policy.pipeline, changed.message)
        return [writes[index] for index in lacking]
    by_chance = not refused and _may_be_chance(outcome, writes, committed)
    if policy.resume == "skip_missing" or by_chance:
        log.warning("%s: left as it is: %s", policy.pipeline, changed.message)
        return ()
    raise changed


def _may_be_chance(
    outcome: ReplayOutcome, writes: Sequence[Write], committed: Sequence[FrameWritten]
) -> bool:
    """Return whether the program may be the same, and its rows others each time. Not so a dead
    letter that can be read now: the state would have it as well."""
    same_frames = [write.where for write in writes] == [frame.where for frame in committed]
    may_be = outcome is ReplayOutcome.OTHER_ROWS or (
        outcome is ReplayOutcome.MORE_FRAMES and same_frames
    )
    return may_be and not all(is_repeatable(write.frame) for write in writes)


def compare_all(
    committed: Sequence[FrameWritten],
    now: Sequence[FrameWritten],
    set_aside: Sequence[bool],
    *,
    exactly: bool = False,
    stateful: bool = False,
) -> tuple[ReplayOutcome, list[int]]:
    """Compare a batch that may have dead letters; return also where in ``now`` new frames stand.

    :param set_aside: for each frame in ``now``: is it one of dead letters?
    :param stateful: a record that was a dead letter then, and can be read now, would be in the
        query's state as well.
    """
    places = {frame.where for frame, aside in zip(now, set_aside, strict=True) if aside}
    outcomes, lacking = [], []
    for aside in (False, True):
        then = [frame for frame in committed if (frame.where in places) is aside]
        indices = [index for index, is_aside in enumerate(set_aside) if is_aside is aside]
        indices = [indices[index] for index in _order(then, [now[index] for index in indices])]
        again = [now[index] for index in indices]
        outcomes.append(compare(then, again, exactly=exactly))
        if outcomes[-1] is ReplayOutcome.MORE_FRAMES:
            lacking += [indices[index] for index in _new_frames(then, again)]
        elif aside and stateful and _records(again) < _records(then):
            outcomes.append(ReplayOutcome.DEAD_LETTERS_READ)
    worst_first = (
        ReplayOutcome.OTHER_ROWS,
        ReplayOutcome.DEAD_LETTERS_READ,
        ReplayOutcome.MORE_FRAMES,
        ReplayOutcome.NOTHING_NEW,
    )
    return next(outcome for outcome in worst_first if outcome in outcomes), sorted(lacking)


def _order(then: Sequence[FrameWritten], again: Sequence[FrameWritten]) -> list[int]:
    """Return the order of ``again`` in which frames of committed places come first, as they were
    committed. Their own order, where a place has several: which is which only that tells. Frames
    without rows do not count."""
    places, now = ([frame.where for frame in frames if frame.records] for frames in (then, again))
    own = list(range(len(again)))
    if len(set(now)) < len(now) or len(set(places)) < len(places):
        return own
    ranks = {place: rank for rank, place in enumerate(places)}
    return sorted(own, key=lambda index: ranks.get(again[index].where, len(places)))


def compare(
    committed: Sequence[FrameWritten], now: Sequence[FrameWritten], *, exactly: bool = False
) -> ReplayOutcome:
    """Compare the frames that have rows. ``MORE_FRAMES``: all committed ones, in order
    (:func:`_order`), and others after them. :param exactly: fewer rows are other rows, too: the
    batch is known to lack some, and a sum proves nothing of which."""
    then, again = [f for f in committed if f.records], [f for f in now if f.records]
    if again == then or (not exactly and _are_covered(again, then)):
        return ReplayOutcome.NOTHING_NEW
    return ReplayOutcome.MORE_FRAMES if again[: len(then)] == then else ReplayOutcome.OTHER_ROWS


def _new_frames(committed: Sequence[FrameWritten], now: Sequence[FrameWritten]) -> list[int]:
    """Return where in ``now`` the frames stand that ``committed`` lacks, for ``MORE_FRAMES``."""
    filled = [index for index, frame in enumerate(now) if frame.records]
    return filled[sum(1 for frame in committed if frame.records) :]


def _are_covered(frames: Sequence[FrameWritten], by: Sequence[FrameWritten]) -> bool:
    """Return whether no place gets more records from ``frames`` than it has from ``by``."""
    rest: Counter[str | None] = Counter()
    for frame in by:
        rest[frame.where] += frame.records
    for frame in frames:
        rest[frame.where] -= frame.records
    return all(records >= 0 for records in rest.values())


def _records(frames: Sequence[FrameWritten]) -> int:
    return sum(frame.records for frame in frames)
