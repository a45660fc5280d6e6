"""Admission of a batch: a pure function of the batch, the newest ledger record and the settings.
Called by ``engine.micro_batch`` as step 1 of every batch, in the driver. Spark numbers batches per
checkpoint and runs batch *b* again with the same offsets until its commit log has it; the ledger
has *b* exactly if *b*'s transaction committed. The table of outcomes:

=====================  ===========================================  ===================
ledger                 batch                                        outcome
=====================  ===========================================  ===================
any                    a call for a batch before it failed          ``NOT_WRITTEN``
no record              0                                            ``FIRST``
no record              above 0, ``resume="adopt"``                  ``ADOPT``
no record              above 0, and the first of its run            ``LEDGER_BEHIND``
no record              above 0, ``skipped_batches="allow"``         ``AFTER_SKIPPED``
no record              above 0                                      ``SKIPPED``
same query, batch *n*  *n* + 1, starts where *n* ended              ``NEXT``
same query, batch *n*  *n* + 1, starts elsewhere                    ``OFFSETS_DIFFER``
same query, batch *n*  *n*, ends where *n* ended                    ``REPLAY``
same query, batch *n*  *n*, ends elsewhere                          ``OFFSETS_DIFFER``
same query, batch *n*  *n*, and this very run wrote it              ``SECOND_CALL``
same query, batch *n*  above *n* + 1, Spark's log contradicts       ``OFFSETS_DIFFER``
same query, batch *n*  above *n* + 1, ``skipped_batches="allow"``   ``AFTER_SKIPPED``
same query, batch *n*  … first of its run, ``resume="skip_missing"``        ``AFTER_SKIPPED``
same query, batch *n*  above *n* + 1                                ``SKIPPED``
same query, batch *n*  below *n*                                    ``REWOUND``
another query          starts at its end, ``resume="ledger"``       ``RESUME``
another query          any, ``resume="ledger"``, keeps state        ``STATE_LOST``
another query          elsewhere, ``resume="ledger"``               ``RESUME_GAP``
another query          any, otherwise                               ``REPLACED``
=====================  ===========================================  ===================

``OFFSETS_DIFFER`` and ``REWOUND`` are why a batch number alone is not trusted: a checkpoint
restored from an older copy numbers *other* records with the same batch ids, and taking them for a
replay would lose them. A gap in the numbers is refused, whoever made it. With
``skipped_batches="allow"`` it is the function's decision, unless offsets contradict; then a ledger
that has lost its end looks like a function that skips.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args

from onceward.engine.ledger.record import LedgerRecord
from onceward.ids import BatchId, SourceRange, is_kafka_offset

Resume = Literal["checkpoint", "ledger", "adopt", "write_missing", "skip_missing"]
RESUME_CHOICES: tuple[Resume, ...] = get_args(Resume)
SkippedBatches = Literal["refuse", "allow"]


class Admission(Enum):
    """The ledger's answer to a batch."""

    FIRST = "first"
    ADOPT = "adopt"
    NEXT = "next"
    AFTER_SKIPPED = "after skipped batches"
    RESUME = "resume"
    REPLAY = "replay"
    SECOND_CALL = "second call"
    NOT_WRITTEN = "not written"
    SKIPPED = "skipped"
    LEDGER_BEHIND = "ledger behind"
    OFFSETS_DIFFER = "offsets differ"
    REWOUND = "rewound"
    REPLACED = "replaced"
    RESUME_GAP = "resume gap"
    STATE_LOST = "state lost"

    @property
    def writes(self) -> bool:
        """Return whether the batch is to be written, rather than replayed or refused."""
        return self in (
            Admission.FIRST,
            Admission.ADOPT,
            Admission.NEXT,
            Admission.AFTER_SKIPPED,
            Admission.RESUME,
        )


@dataclass(frozen=True, slots=True)
class CallHistory:
    """The calls for the batches before the one that is offered, as far as they are known.

    ``failed``: the first of these batches whose call failed, and stands against this one: its
    number, and the error. ``given_up``: some were left out by ``resume="skip_missing"``.
    ``first_of_run``: Spark has run none of them in this run of the query, so that an earlier run,
    or nobody, has skipped some. ``ends``: where Spark's offset log has the ledger's newest batch
    end, one a source; None where the log has dropped it
    (``spark.sql.streaming.minBatchesToRetain``), or where it is not needed. ``checkpoint``: where
    Spark keeps its logs; ``rewindable``: they reach back to ``failed``, or to the first batch
    that the ledger does not have, and the query's state does.
    """

    skipped_batches: SkippedBatches = "refuse"
    failed: tuple[int, str] | None = None
    given_up: bool = False
    first_of_run: bool = True
    ends: tuple[Any, ...] | None = None
    checkpoint: str = ""
    rewindable: bool = False


def admit(
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    newest: LedgerRecord | None,
    resume: Resume,
    *,
    stateful: bool = False,
    run_id: str = "",
    history: CallHistory | None = None,
) -> Admission:
    """Return the outcome for ``batch`` over ``sources``, behind the ``newest`` record.

    :param stateful: the query keeps state (aggregates, joins, deduplication), which lives in its
        checkpoint only.
    :param run_id: Spark's id of this run; empty where a batch of this very run may be offered
        again because its commit was in doubt.
    :param history: None: nothing is known of earlier batches, so that no gap is believed.
    """
    calls = history or CallHistory()
    if calls.failed is not None:
        return Admission.NOT_WRITTEN
    if newest is None:
        return Admission.FIRST if batch.batch_id == 0 else _without_record(resume, calls)
    if batch.query_id == newest.batch.query_id:
        step = batch.batch_id - newest.batch.batch_id
        # Three causes look alike: a function that skipped batches, one that swallowed an error
        # (the next batch comes behind the lost one), and a ledger that lost its end.
        if step > 1:
            return _after_gap(sources, newest, resume, calls)
        outcome = _same_checkpoint(step, sources, newest)
        # A replay repeats what an *earlier* run committed. What this run committed already was
        # another call's rows.
        is_own = newest.run_id == run_id != ""
        return Admission.SECOND_CALL if outcome is Admission.REPLAY and is_own else outcome
    if resume != "ledger":
        return Admission.REPLACED
    if stateful:
        return Admission.STATE_LOST
    continues = begins_at_end(sources, newest, new_allowed=True)
    return Admission.RESUME if continues else Admission.RESUME_GAP


def is_refused_in_any_case(
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    peeked: LedgerRecord | None,
    resume: Resume,
    *,
    stateful: bool = False,
) -> bool:
    """Return whether ``batch`` will be refused, whatever was committed since ``peeked``, before
    fencing; ``peeked`` is None also if the newest record is still undecided."""
    outcome = admit(batch, sources, peeked, resume, stateful=stateful)
    # EndTxn is answered before the markers are written, so that right after a restart the last
    # commit may not be readable yet: "ledger behind" and a gap are never certain.
    uncertain = (Admission.REPLAY, Admission.LEDGER_BEHIND, Admission.SKIPPED)
    return not outcome.writes and outcome not in uncertain


def loses_dead_letters(
    sources: tuple[SourceRange, ...], newest: LedgerRecord | None, resume: Resume, run_id: str
) -> bool:
    """Return whether a batch ``AFTER_SKIPPED`` loses dead letters: a function skips a batch
    without rows for it, and never saw what a format could not read."""
    # "skip_missing" is about what an earlier run has skipped, not this one.
    excused = resume == "skip_missing" and (newest is None or newest.run_id != run_id)
    return not excused and (newest is None or not begins_at_end(sources, newest, new_allowed=True))


def _without_record(resume: Resume, history: CallHistory) -> Admission:
    # Of a batch above 0. The first one that Spark runs in a run may have been committed: then the
    # ledger was lost.
    if resume == "adopt" or history.given_up:
        return Admission.ADOPT
    if history.first_of_run:
        return Admission.LEDGER_BEHIND
    return Admission.AFTER_SKIPPED if history.skipped_batches == "allow" else Admission.SKIPPED


def _after_gap(
    sources: tuple[SourceRange, ...], newest: LedgerRecord, resume: Resume, history: CallHistory
) -> Admission:
    if not _is_not_before_end(sources, newest):
        return Admission.OFFSETS_DIFFER
    if history.ends is not None:
        ours = [source.end for source in newest.sources]
        same = len(history.ends) == len(ours) and all(
            logged is None or logged == end for logged, end in zip(history.ends, ours, strict=True)
        )
        if not same:
            return Admission.OFFSETS_DIFFER
    # "skip_missing" is about what an earlier run has left out, not this one.
    left_out = history.given_up or (resume == "skip_missing" and history.first_of_run)
    allowed = history.skipped_batches == "allow" or left_out
    return Admission.AFTER_SKIPPED if allowed else Admission.SKIPPED


def _is_not_before_end(sources: tuple[SourceRange, ...], newest: LedgerRecord) -> bool:
    # Offsets of Kafka sources never go back; those of others cannot be compared. A partition
    # without a start is read from its first record.
    if len(sources) != len(newest.sources):
        return False
    return all(
        now.start.get(topic, {}).get(partition, 0) >= offset
        for done, now in zip(newest.sources, sources, strict=True)
        if is_kafka_offset(done.end) and is_kafka_offset(now.start)
        for topic, partitions in done.end.items()
        for partition, offset in partitions.items()
        if partition in now.end.get(topic, {})
    )


def _same_checkpoint(
    step: int, sources: tuple[SourceRange, ...], newest: LedgerRecord
) -> Admission:
    if step == 1:
        continues = begins_at_end(sources, newest, new_allowed=False)
        return Admission.NEXT if continues else Admission.OFFSETS_DIFFER
    if step == 0:
        # Offsets, not the number alone: a checkpoint that was restored from a copy gives a
        # committed number to other records, and a replay would drop them.
        same = [source.end for source in sources] == [source.end for source in newest.sources]
        return Admission.REPLAY if same else Admission.OFFSETS_DIFFER
    return Admission.REWOUND


def begins_at_end(
    sources: tuple[SourceRange, ...], newest: LedgerRecord, *, new_allowed: bool
) -> bool:
    """Return whether every source begins where ``newest`` ends."""
    if len(sources) != len(newest.sources):
        return False
    return all(
        _same_position(done.end, now.start, new_allowed=new_allowed)
        for done, now in zip(newest.sources, sources, strict=True)
    )


def _same_position(end: Any, start: Any, *, new_allowed: bool) -> bool:
    """Return whether ``start`` continues ``end``, with ``new_allowed`` also by new partitions."""
    if end == start:
        return True
    if not new_allowed or not is_kafka_offset(end) or not is_kafka_offset(start):
        return False
    return all(
        start.get(topic, {}).get(p) == offset
        for topic, parts in end.items()
        for p, offset in parts.items()
    )
