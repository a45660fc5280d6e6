"""May this batch be written? A pure function of the batch, the newest ledger record and the ``resume`` setting.

Called by ``engine.micro_batch`` as step 1 of every batch, in the driver. Spark numbers batches per checkpoint and
runs batch *b* again with the same offsets until its commit log has it; the ledger has *b* exactly if *b*'s
transaction committed. The table of outcomes:

====================================  =======================================  ==========================
ledger                                batch                                    outcome
====================================  =======================================  ==========================
no record                             0                                        ``FIRST``
no record                             above 0, ``resume="adopt"``              ``ADOPT``
no record                             above 0, the run has skipped all before  ``AFTER_SKIPPED``
no record                             above 0                                  ``LEDGER_BEHIND``
same query, batch *n*                 *n* + 1, starts where *n* ended          ``NEXT``
same query, batch *n*                 *n* + 1, starts elsewhere                ``OFFSETS_DIFFER``
same query, batch *n*                 *n*, ends where *n* ended                ``REPLAY``
same query, batch *n*                 *n*, ends elsewhere                      ``OFFSETS_DIFFER``
same query, batch *n*                 *n*, and this very run wrote it          ``SECOND_CALL``
same query, batch *n*                 above *n* + 1, Spark's log joins them    ``AFTER_SKIPPED``
same query, batch *n*                 above *n* + 1                            ``LEDGER_BEHIND``
any                                   a batch in between failed unheard        ``NOT_WRITTEN``
same query, batch *n*                 above *n*, which lacks refused rows      ``NOT_WRITTEN``
same query, batch *n*                 below *n*                                ``REWOUND``
another query                         starts at its end, ``resume="ledger"``   ``RESUME``
another query, and it keeps state     any, ``resume="ledger"``                 ``STATE_LOST``
another query                         elsewhere, ``resume="ledger"``           ``RESUME_GAP``
another query                         any, otherwise                           ``REPLACED``
====================================  =======================================  ==========================

``OFFSETS_DIFFER`` and ``REWOUND`` are why a batch number alone is not trusted: a checkpoint restored from an older
copy numbers *other* records with the same batch ids, and taking them for a replay would lose them.

A user's function may skip batches (``if not frame.isEmpty(): sink(frame, batch_id)``), so numbers may jump. That is
believed where Spark's own offset log says that the ledger's batch ended where the ledger says, and where no batch in
between is one that the sink was given and could not write: then the function kept the error to itself, and Spark
counts as done what is lost (:class:`Skipped`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from onceward.errors import (
    ROWS_REFUSED,
    BatchNotWritten,
    CheckpointReplaced,
    CheckpointRewound,
    LedgerBehind,
    OncewardError,
    UnsupportedQuery,
)
from onceward.ids import BatchId, SourceRange
from onceward.ledger.record import LedgerRecord

Resume = Literal["checkpoint", "ledger", "adopt", "complete", "keep"]
RESUME_CHOICES: tuple[Resume, ...] = ("checkpoint", "ledger", "adopt", "complete", "keep")


class Admission(Enum):
    """What the ledger says to a batch."""

    FIRST = "first"
    ADOPT = "adopt"
    NEXT = "next"
    AFTER_SKIPPED = "after skipped batches"
    RESUME = "resume"
    REPLAY = "replay"
    SECOND_CALL = "second call"
    NOT_WRITTEN = "not written"
    LEDGER_BEHIND = "ledger behind"
    OFFSETS_DIFFER = "offsets differ"
    REWOUND = "rewound"
    REPLACED = "replaced"
    RESUME_GAP = "resume gap"
    STATE_LOST = "state lost"

    @property
    def writes(self) -> bool:
        """Is the batch to be written (rather than replayed or refused)?"""
        return self in (
            Admission.FIRST,
            Admission.ADOPT,
            Admission.NEXT,
            Admission.AFTER_SKIPPED,
            Admission.RESUME,
        )


@dataclass(frozen=True, slots=True)
class Skipped:
    """What Spark and our notes know of the batches from the ledger's newest to the one that is offered.

    ``ends`` is where Spark's offset log has the ledger's newest batch end, one a source; None where the log has
    dropped it (``spark.sql.streaming.minBatchesToRetain``). ``same_run``: this run of the query saw the ledger's
    newest record, or began with batch 0 where there is none. ``vouched``: a note says that the ledger's newest batch
    was handed over, and none says so of a later one. ``not_written`` is what was handed over and is not in the ledger:
    the batch, and what it met then, empty if no error is known. The first may be the ledger's newest itself, where rows
    of it were refused. For the advice: where Spark keeps its logs, whether they reach back that far, and what other
    pipelines the query has.
    ``left_out``: the user has said that some of what was missing is to stay so.
    """

    ends: tuple[Any, ...] | None
    same_run: bool
    not_written: tuple[tuple[int, str], ...] = ()
    vouched: bool = False
    checkpoint: str = ""
    others: tuple[str, ...] = ()
    rewindable: bool = True
    left_out: bool = False


def admit(
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    newest: LedgerRecord | None,
    resume: Resume,
    *,
    stateful: bool = False,
    run_id: str = "",
    skipped: Skipped | None = None,
) -> Admission:
    """The outcome for ``batch`` over ``sources``, given the ``newest`` committed record of its pipeline.

    :param stateful: the query keeps state (aggregates, joins, deduplication), which lives in its checkpoint only.
    :param run_id: Spark's id of this run; empty where a batch of this very run may be offered again because its commit
        was in doubt.
    :param skipped: what is known of the batches in between, where there are any.
    """
    if newest is None:
        if batch.batch_id == 0:
            return Admission.FIRST
        if skipped is not None and skipped.not_written:
            return Admission.NOT_WRITTEN
        if resume == "adopt" or (skipped is not None and skipped.left_out):
            return Admission.ADOPT
        return Admission.AFTER_SKIPPED if skipped is not None and skipped.same_run else Admission.LEDGER_BEHIND
    if batch.query_id == newest.batch.query_id:
        step = batch.batch_id - newest.batch.batch_id
        if skipped is not None and skipped.not_written and step > 0:
            return Admission.NOT_WRITTEN
        outcome = _after_skipped(sources, newest, skipped) if step > 1 else _same_checkpoint(step, sources, newest)
        # A replay repeats what an *earlier* run committed. What this run committed already was another call's rows.
        return Admission.SECOND_CALL if outcome is Admission.REPLAY and newest.run_id == run_id != "" else outcome
    if resume != "ledger":
        return Admission.REPLACED
    if stateful:
        return Admission.STATE_LOST
    return Admission.RESUME if _begins_at_end(sources, newest, new_allowed=True) else Admission.RESUME_GAP


def hopeless(
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    glimpsed: LedgerRecord | None,
    resume: Resume,
    *,
    stateful: bool = False,
) -> bool:
    """Will ``batch`` be refused, whatever was committed since ``glimpsed``?

    For a look at the ledger before fencing, when ``glimpsed`` is None also if the newest record is still undecided:
    answers to ``EndTxn`` come before the markers are written, so that right after a restart the last commit may not be
    readable yet. That is why "ledger behind" is never hopeless.
    """
    outcome = admit(batch, sources, glimpsed, resume, stateful=stateful)
    return not outcome.writes and outcome not in (Admission.REPLAY, Admission.LEDGER_BEHIND)


def _after_skipped(sources: tuple[SourceRange, ...], newest: LedgerRecord, skipped: Skipped | None) -> Admission:
    if skipped is None:
        return Admission.LEDGER_BEHIND
    if not _not_before_end(sources, newest):
        return Admission.OFFSETS_DIFFER
    if skipped.ends is None:
        believed = skipped.same_run or skipped.vouched or skipped.left_out
        return Admission.AFTER_SKIPPED if believed else Admission.LEDGER_BEHIND
    ours = [source.end for source in newest.sources]
    same = len(skipped.ends) == len(ours) and all(
        logged is None or logged == end for logged, end in zip(skipped.ends, ours, strict=True)
    )
    return Admission.AFTER_SKIPPED if same else Admission.OFFSETS_DIFFER


def _not_before_end(sources: tuple[SourceRange, ...], newest: LedgerRecord) -> bool:
    """Offsets of Kafka sources never go back; those of others cannot be compared."""
    if len(sources) != len(newest.sources):
        return False
    return all(
        start.get(topic, {}).get(partition, offset) >= offset
        for end, start in ((done.end, now.start) for done, now in zip(newest.sources, sources, strict=True))
        if is_kafka_offset(end) and is_kafka_offset(start)
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def _same_checkpoint(step: int, sources: tuple[SourceRange, ...], newest: LedgerRecord) -> Admission:
    if step == 1:
        continues = _begins_at_end(sources, newest, new_allowed=False)
        return Admission.NEXT if continues else Admission.OFFSETS_DIFFER
    if step == 0:
        same = [source.end for source in sources] == [source.end for source in newest.sources]
        return Admission.REPLAY if same else Admission.OFFSETS_DIFFER
    return Admission.REWOUND


def _begins_at_end(sources: tuple[SourceRange, ...], newest: LedgerRecord, *, new_allowed: bool) -> bool:
    if len(sources) != len(newest.sources):
        return False
    return all(
        _same_position(done.end, now.start, new_allowed=new_allowed)
        for done, now in zip(newest.sources, sources, strict=True)
    )


def _same_position(end: Any, start: Any, *, new_allowed: bool) -> bool:
    """Does ``start`` continue ``end``? With ``new_allowed``, a Kafka source may have partitions that are new."""
    if end == start:
        return True
    if not new_allowed or not is_kafka_offset(end) or not is_kafka_offset(start):
        return False
    return all(start.get(topic, {}).get(p) == offset for topic, parts in end.items() for p, offset in parts.items())


def is_kafka_offset(offset: Any) -> bool:
    """Has ``offset`` the shape of Spark's ``KafkaSourceOffset``: ``{topic: {"partition": offset}}``?"""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(parts, dict) and all(p.isdecimal() and isinstance(o, int) for p, o in parts.items())
            for parts in offset.values()
        )
    )


def refuse_skipped_dead_letters(batch: BatchId, sources: tuple[SourceRange, ...], newest: LedgerRecord | None) -> None:
    """A function may skip a batch that has no rows for it; what a format could not read in that batch it never saw.

    :raises BatchNotWritten: batches before ``batch`` were not handed over, and had input.
    """
    if newest is not None and _begins_at_end(sources, newest, new_allowed=True):
        return
    last = "no batch before" if newest is None else f"{newest.batch} is the last that was"
    raise BatchNotWritten(
        f"{batch} was handed over, {last}: the foreachBatch function has skipped batches that had input, and what in "
        "them could not be read would be missing from the dead letters",
        next_step="hand over every batch, also one without rows (`if frame.isEmpty(): return` skips dead letters); "
        'to go on without what may be missing, start once with resume="keep"; to have the skipped batches written, '
        "begin anew with another pipeline_id and checkpoint",
        details={ROWS_REFUSED: True, "batch_id": batch.batch_id},
    )


def refusal(
    outcome: Admission,
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    newest: LedgerRecord | None,
    skipped: Skipped | None = None,
) -> OncewardError:
    """The typed error for an ``outcome`` that refuses, with what to do next."""
    if outcome is Admission.SECOND_CALL:
        return second_call(batch)
    if outcome is Admission.NOT_WRITTEN and skipped is not None:
        return _not_written(batch, newest, skipped)
    known = f"the ledger's newest is {newest.batch} (sequence {newest.sequence})" if newest else "the ledger has none"
    offsets = _offsets_text(sources, newest)
    if outcome is Admission.LEDGER_BEHIND:
        return LedgerBehind(
            f"{batch} was offered, but {known}: the ledger was deleted or truncated, or the batches before were "
            "written by another sink, or a foreachBatch function skipped them in an earlier run",
            next_step="if the ledger was lost, find out from the output how far it goes; to begin a chain on an "
            "existing checkpoint on purpose (migration, or skipped batches), start once with "
            'resume="adopt" while the pipeline has no ledger record (what could not be read in skipped batches is '
            "then in no dead-letter topic)",
            details=_details(batch, newest),
        )
    if outcome is Admission.REPLACED:
        return CheckpointReplaced(
            f"{batch} was offered, but {known}: the checkpoint was deleted or replaced, or two queries share one "
            "pipeline_id",
            next_step="restore the checkpoint; or give this query a pipeline_id of its own; or, for a query without "
            'state, continue at the ledger\'s offsets with a new, empty checkpoint, KafkaSink(resume="ledger") and '
            'kafka_source(starting="ledger")'
            " (of a source of your own: stream(ledger=…, pipeline_id=…))",
            details=_details(batch, newest),
        )
    if outcome is Admission.STATE_LOST:
        return CheckpointReplaced(
            f'{batch} was offered with resume="ledger", but the query keeps state, which was lost with the checkpoint',
            next_step="restore the checkpoint; or rebuild from the beginning under a new pipeline_id, into new topics",
            details=_details(batch, newest),
        )
    if outcome is Admission.RESUME_GAP:
        return CheckpointReplaced(
            f'{batch} was offered with resume="ledger", but it does not begin where the ledger ends: {offsets}',
            next_step='read with kafka_source(starting="ledger"), or a source of your own with stream(ledger=…, '
            "pipeline_id=…), and a new, empty checkpoint, so that nothing is skipped or repeated",
            details=_details(batch, newest),
        )
    return CheckpointRewound(
        f"{batch} was offered, but {known}, and the offsets differ: {offsets}. The checkpoint was truncated or "
        "restored from an older copy, or another copy of this query is running on it and is ahead",
        next_step="if another copy is running, stop one of the two; else restore the newest checkpoint; or, for a "
        'query without state, start with a new, empty checkpoint, KafkaSink(resume="ledger") and '
        'kafka_source(starting="ledger")'
        " (of a source of your own: stream(ledger=…, pipeline_id=…))",
        details=_details(batch, newest),
    )


def second_call(batch: BatchId) -> UnsupportedQuery:
    """The refusal of a second call for one batch, whose first call is committed."""
    return UnsupportedQuery(
        f"the sink, or another with the same pipeline_id, was called twice for {batch}; one batch is one transaction, "
        "the first call has committed it, and the rows of this call are not written",
        next_step="hand all frames of a batch over together, `with sink.batch(frame, batch_id) as batch: "
        "batch.write(first); batch.write(second, topic=…)`, the frame of the first call first, and start once "
        f'with resume="complete", which writes what batch {batch.batch_id} lacks',
        details={ROWS_REFUSED: True, "query_id": batch.query_id, "batch_id": batch.batch_id},
    )


def _not_written(batch: BatchId, newest: LedgerRecord | None, skipped: Skipped) -> OncewardError:
    first, why = skipped.not_written[0]
    details = {"not_written": [number for number, _ in skipped.not_written], "checkpoint": skipped.checkpoint}
    lacks_rows = newest is not None and first <= newest.batch.batch_id
    leave = 'to go on without them, start once with resume="keep"'
    kept_back = (
        "Spark counts the batch as done: the foreachBatch function kept the error to itself, or had nothing of it to "
        "hand over when the batch ran again"
    )
    if lacks_rows:
        again = _how_to_run_again(first, skipped, "complete")
        return BatchNotWritten(
            f"{batch} was offered, but rows of batch {first} before it were refused and are not written "
            f"({_short(why)}), and {kept_back}",
            next_step="hand all frames of a batch over together, those that are committed first, and let the sink's "
            f"errors leave the function; to have the rest written, {again}; {leave}",
            details=details,
        )
    if why:
        again = _how_to_run_again(first, skipped)
        return BatchNotWritten(
            f"{batch} was offered, but batch {first} before it could not be written ({_short(why)}), and {kept_back}",
            next_step=f"let the sink's errors leave the function; to have its rows written, {again}; {leave}",
            details=details,
        )
    # From where the ledger ends: notes of what was handed over before the last batches are gone.
    again = _how_to_run_again(newest.batch.batch_id + 1 if newest else 0, skipped)
    ends = f"ends with batch {newest.batch.batch_id}" if newest else "has no record"
    return LedgerBehind(
        f"{batch} was offered, and batch {first} before it was handed over to the sink, but the ledger, which {ends}, "
        "does not have it: the ledger was deleted or truncated, or the cluster was restored from a backup",
        next_step="find out from the output whether it has the rows of what the ledger lacks; if not, to have them "
        f'written, {again}; if it has them, start once with resume="keep"',
        details=details,
    )


def _how_to_run_again(first: int, skipped: Skipped, resume: str = "") -> str:
    where = skipped.checkpoint
    if skipped.others:
        return (
            f"write them with a query of its own and another pipeline_id from the offsets of batch {first} (in "
            f"{where}/offsets): this one also writes to {', '.join(skipped.others)}, whose batches cannot run again"
        )
    if not skipped.rewindable:
        return (
            f"write them with a query of its own and another pipeline_id from where the batch before {first} ended: "
            f"Spark's offset log in {where} no longer reaches back to it"
        )
    once = f' once with resume="{resume}"' if resume else ""
    return (
        f"stop the query, move away from {where} the files commits/{first} and above and offsets/{first + 1} and "
        f"above, each with its hidden .crc file where there is one, and start it{once}"
    )


def _offsets_text(sources: tuple[SourceRange, ...], newest: LedgerRecord | None) -> str:
    ours = json.dumps([[source.start, source.end] for source in sources])
    theirs = json.dumps([source.end for source in newest.sources]) if newest else "nothing"
    return f"the batch spans {_short(ours)}, the ledger ends at {_short(theirs)}"


def _short(text: str, limit: int = 600) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _details(batch: BatchId, newest: LedgerRecord | None) -> dict[str, Any]:
    return {
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
        "ledger_query_id": newest.batch.query_id if newest else None,
        "ledger_batch_id": newest.batch.batch_id if newest else None,
        "ledger_sequence": newest.sequence if newest else None,
    }
