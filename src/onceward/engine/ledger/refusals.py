"""The errors for batches that are not admitted: what is so, and what to do next. Pure words, no
decision.

Called by ``engine.micro_batch`` with what :mod:`onceward.engine.ledger.admission` has decided, in
the driver.
"""

from __future__ import annotations

import json
from typing import Any

from onceward.engine.ledger.admission import Admission, Before, begins_at_end
from onceward.engine.ledger.record import LedgerRecord
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


def refuse_skipped_dead_letters(
    batch: BatchId, sources: tuple[SourceRange, ...], newest: LedgerRecord | None
) -> None:
    """A function may skip a batch that has no rows for it; what a format could not read in that
    batch it never saw.

    :raises BatchNotWritten: batches before ``batch`` were not handed over, and had input.
    """
    if newest is not None and begins_at_end(sources, newest, new_allowed=True):
        return
    last = "no batch before" if newest is None else f"{newest.batch} is the last that was"
    raise BatchNotWritten(
        f"{batch} was handed over, {last}: the foreachBatch function has skipped batches that had "
        f"input, and what in "
        "them could not be read would be missing from the dead letters",
        next_step='call the sink for every batch, also for an empty one: skipped_batches="allow" '
        "is not for queries "
        "that set records aside; to go on without what may be missing, start once with "
        'resume="keep"',
        details={ROWS_REFUSED: True, "batch_id": batch.batch_id},
    )


def refusal(
    outcome: Admission,
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    newest: LedgerRecord | None,
    before: Before | None = None,
) -> OncewardError:
    """The typed error for an ``outcome`` that refuses, with what to do next."""
    if outcome is Admission.SECOND_CALL:
        return second_call(batch)
    if outcome is Admission.NOT_WRITTEN and before is not None and before.failed is not None:
        return _not_written(batch, newest, *before.failed, before)
    if outcome is Admission.SKIPPED:
        return _skipped(batch, newest, before or Before())
    known = (
        f"the ledger's newest is {newest.batch} (sequence {newest.sequence})"
        if newest
        else "the ledger has none"
    )
    offsets = _offsets_text(sources, newest)
    if outcome is Admission.LEDGER_BEHIND:
        return LedgerBehind(
            f"{batch} was offered, but {known}: the ledger was deleted or truncated, or the "
            f"batches before were "
            "written by another sink, or a foreachBatch function skipped them in an earlier run",
            next_step="if the ledger was lost, find out from the output how far it goes; to begin "
            "a chain on an "
            "existing checkpoint on purpose (migration, or skipped batches), start once with "
            'resume="adopt" while the pipeline has no ledger record, and call the sink for every '
            "batch from then on",
            details=_details(batch, newest),
        )
    if outcome is Admission.REPLACED:
        return CheckpointReplaced(
            f"{batch} was offered, but {known}: the checkpoint was deleted or replaced, or two "
            f"queries share one "
            "pipeline_id",
            next_step="restore the checkpoint; or give this query a pipeline_id of its own; or, "
            "for a query without "
            "state, continue at the ledger's offsets with a new, empty checkpoint, "
            'KafkaSink(resume="ledger") and '
            'kafka_source(starting="ledger")'
            " (of a source of your own: stream(ledger=…, pipeline_id=…))",
            details=_details(batch, newest),
        )
    if outcome is Admission.STATE_LOST:
        return CheckpointReplaced(
            f'{batch} was offered with resume="ledger", but the query keeps state, which was lost '
            f"with the checkpoint",
            next_step="restore the checkpoint; or rebuild from the beginning under a new "
            "pipeline_id, into new topics",
            details=_details(batch, newest),
        )
    if outcome is Admission.RESUME_GAP:
        return CheckpointReplaced(
            f'{batch} was offered with resume="ledger", but it does not begin where the ledger '
            f"ends: {offsets}",
            next_step='read with kafka_source(starting="ledger"), or a source of your own with '
            "stream(ledger=…, "
            "pipeline_id=…), and a new, empty checkpoint, so that nothing is skipped or repeated",
            details=_details(batch, newest),
        )
    return CheckpointRewound(
        f"{batch} was offered, but {known}, and the offsets differ: {offsets}. The checkpoint was "
        f"truncated or "
        "restored from an older copy, or another copy of this query is running on it and is ahead",
        next_step="if another copy is running, stop one of the two; else restore the newest "
        "checkpoint; or, for a "
        'query without state, start with a new, empty checkpoint, KafkaSink(resume="ledger") and '
        'kafka_source(starting="ledger")'
        " (of a source of your own: stream(ledger=…, pipeline_id=…))",
        details=_details(batch, newest),
    )


def second_call(batch: BatchId) -> UnsupportedQuery:
    """The refusal of a second call for one batch, whose first call is committed."""
    return UnsupportedQuery(
        f"the sink, or another with the same pipeline_id, was called twice for {batch}; one batch "
        f"is one transaction, "
        "the first call has committed it, and the rows of this call are not written",
        next_step="hand all frames of a batch over together, `with sink.batch(frame, batch_id) as "
        "batch: "
        "batch.write(first); batch.write(second, topic=…)`, the frame of the first call first, "
        "and start once "
        f'with resume="complete", which writes what batch {batch.batch_id} lacks',
        details={ROWS_REFUSED: True, "query_id": batch.query_id, "batch_id": batch.batch_id},
    )


def _skipped(batch: BatchId, newest: LedgerRecord | None, before: Before) -> OncewardError:
    """The refusal of a gap. In whose place it is: of this run, for sure; before it, also of a
    ledger's lost end.
    """
    first = newest.batch.batch_id + 1 if newest else 0
    batches = (
        f"batch {first}"
        if batch.batch_id - first == 1
        else f"batches {first} to {batch.batch_id - 1}"
    )
    or_lost = (
        ", or the ledger has lost its end (a cluster restored from a backup, say)"
        if newest is not None and before.first_of_run
        else ""
    )
    find_out = (
        " (after a look at whether the output has the rows of these batches)" if or_lost else ""
    )
    return BatchNotWritten(
        f"{batch} was handed over, but not {batches} before it, which the ledger does not have: "
        f"the foreachBatch "
        f"function did not call the sink for every batch{or_lost}",
        next_step="call the sink for every batch, also for an empty one (no `if not "
        "frame.isEmpty()` before it), and "
        f'start once with resume="{"keep" if newest else "adopt"}", which goes on without those '
        f"that were left "
        f'out{find_out}; if leaving batches out is meant, pass skipped_batches="allow" as well',
        details={"not_written": [first, batch.batch_id - 1], **_details(batch, newest)},
    )


def _not_written(
    batch: BatchId, newest: LedgerRecord | None, first: int, why: str, before: Before
) -> OncewardError:
    lacks_rows = (
        newest is not None
        and batch.query_id == newest.batch.query_id
        and first <= newest.batch.batch_id
    )
    leave = 'to go on without them, start once with resume="keep"'
    again = _how_to_run_again(first, before, "complete" if lacks_rows else "")
    details = {"not_written": [first], "checkpoint": before.checkpoint}
    if lacks_rows:
        return BatchNotWritten(
            f"{batch} was offered, but a call for batch {first} before it failed, whose rows may "
            f"be missing from it "
            f"({_short(why)}); Spark counts the batch as done: the foreachBatch function kept the "
            f"error to itself",
            next_step="hand all frames of a batch over together, those that are committed first, "
            "and let the sink's "
            f"errors leave the function; to have the rest written, {again}; {leave}",
            details=details,
        )
    return BatchNotWritten(
        f"{batch} was offered, but batch {first} before it could not be written ({_short(why)}); "
        f"Spark counts the "
        "batch as done: the foreachBatch function kept the error to itself, or had nothing of it "
        "to hand over when the "
        "batch ran again",
        next_step=f"let the sink's errors leave the function; to have its rows written, {again}; "
        f"{leave}",
        details=details,
    )


def _how_to_run_again(first: int, before: Before, resume: str) -> str:
    where = before.checkpoint
    if not before.rewindable:
        return (
            f"write them with a query of its own and another pipeline_id from where the batch "
            f"before {first} ended: "
            f"Spark's offset log in {where} no longer reaches back to it"
        )
    once = f' once with resume="{resume}"' if resume else ""
    return (
        f"stop the query, move away from {where} the files commits/{first} and above and "
        f"offsets/{first + 1} and "
        f"above, each with its hidden .crc file where there is one, and start it{once} (a query "
        f"that also writes to "
        f"another pipeline_id cannot go back: write them with a query of its own from the offsets "
        f"of batch {first})"
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
