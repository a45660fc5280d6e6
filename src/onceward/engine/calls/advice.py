"""Errors for batches that are not admitted, and for calls that a function may not make. Called by
``engine.micro_batch`` and ``engine.calls`` with a decision; values only, no decision but which
words fit it. Each refusal is an entry of a table: its error, what happened, and the advice, whose
steps are joined in one place. The simulation does what they say, by these words alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from onceward.engine.ledger.admission import Admission, CallHistory
from onceward.engine.ledger.record import FrameWritten, LedgerRecord
from onceward.engine.target import BRANCH
from onceward.errors import (
    ROWS_REFUSED,
    BatchChanged,
    BatchNotWritten,
    CheckpointReplaced,
    CheckpointRewound,
    LedgerBehind,
    OncewardError,
    StateOfFailedAttempt,
    UnsupportedQuery,
    plain_text,
    summary,
)
from onceward.ids import BatchId, SourceRange
from onceward.spark.batch.query import RunningBatch

_LONGEST_TEXT = 600
_TRACEBACK = "Traceback (most recent call last):"


class Refusal(NamedTuple):
    """An error before its facts are known, for which ``{names}`` stand. ``advice``: steps of which
    the user takes one or all, in the order given."""

    error: type[OncewardError]
    message: str
    advice: tuple[str, ...]

    def make(self, facts: Mapping[str, object], details: Mapping[str, Any]) -> OncewardError:
        """Return the error with its facts."""
        return self.error(
            self.message.format_map(facts),
            next_step="; ".join(self.advice).format_map(facts),
            details=dict(details),
        )


_READ_AT_THE_LEDGER = (
    'kafka_source(starting="ledger", pipeline_id=…, otherwise="error"), with ledger_topic= or '
    "ledger= where the sink's ledger is not the default topic (a source of your own: "
    "stream(ledger=…, pipeline_id=…))"
)
_AT_THE_LEDGER = (
    f'with a new, empty checkpoint, resume="ledger" of the sink and {_READ_AT_THE_LEDGER}'
)
_ONE_BLOCK = (
    "hand all frames of a batch over together, `with sink.batch(frame, batch_id) as batch: "
    "batch.write(first); batch.write(second, topic=…)`"
)
_EVERY_BATCH = "call the sink for every batch, also for an empty one"
_GO_ON_WITHOUT = 'to go on without them, start once with resume="skip_missing"'
_LEAVE_AS_COMMITTED = (
    'to leave the batch as it is committed, start once with resume="skip_missing"'
)

_REWOUND = Refusal(
    CheckpointRewound,
    "{batch} was offered, but {ledger}, and the offsets differ: {offsets}. The checkpoint was "
    "truncated or restored from an older copy, or another copy of this query is running on it and "
    "is ahead",
    (
        "if another copy is running, stop one of the two",
        "else restore the newest checkpoint",
        f"or, for a query without state, start {_AT_THE_LEDGER}",
    ),
)

REFUSALS: Mapping[Admission, Refusal] = {
    Admission.LEDGER_BEHIND: Refusal(
        LedgerBehind,
        "{batch} was offered, but {ledger}: the ledger was deleted or truncated, or the "
        "pipeline's is another one, or the batches before were written by another sink, or a "
        "foreachBatch function skipped them in an earlier run",
        (
            "if the ledger that the sink names, or its pipeline_id, was changed, set it back",
            "if the ledger was lost, find out from the output how far it goes; if that has lost "
            "all rows with it (a backup of before the first batch), start with a new, empty "
            "checkpoint",
            "to begin a chain on an existing checkpoint on purpose (migration, or skipped "
            'batches), start once with resume="adopt" while the pipeline has no ledger record, '
            "under another pipeline_id where the output has batches of this one, and call the "
            "sink for every batch from then on",
        ),
    ),
    Admission.REPLACED: Refusal(
        CheckpointReplaced,
        "{batch} was offered, but {ledger}: the checkpoint was deleted or replaced, or two "
        "queries share one pipeline_id",
        (
            "mount the checkpoint's disk if it is not mounted",
            "else restore the checkpoint",
            "or give this query a pipeline_id of its own",
            f"or, for a query without state, continue at the ledger's offsets {_AT_THE_LEDGER}",
        ),
    ),
    Admission.STATE_LOST: Refusal(
        CheckpointReplaced,
        '{batch} was offered with resume="ledger", but the query keeps state, which was lost with '
        "the checkpoint",
        (
            "restore the checkpoint",
            "or rebuild from the beginning under a new pipeline_id, into new topics",
        ),
    ),
    Admission.RESUME_GAP: Refusal(
        CheckpointReplaced,
        '{batch} was offered with resume="ledger", but it does not begin where the ledger ends: '
        "{offsets}",
        (
            # Spark has logged where this start has read, and an older copy may have gone on since
            f"stop the copy that still runs, if one does, and read with {_READ_AT_THE_LEDGER}, "
            "and a new, empty checkpoint, so that nothing is skipped or repeated",
        ),
    ),
    Admission.OFFSETS_DIFFER: _REWOUND,
    Admission.REWOUND: _REWOUND,
    Admission.SECOND_CALL: Refusal(
        UnsupportedQuery,
        "the sink, or another with the same pipeline_id, was called twice for {batch}; one batch "
        "is one transaction, the first call has committed it, and the rows of this call are not "
        "written",
        (
            f"{_ONE_BLOCK}, the frame of the first call first, and start once with "
            'resume="write_missing", which writes what batch {number} lacks',
        ),
    ),
    Admission.SKIPPED: Refusal(
        BatchNotWritten,
        "{batch} was handed over, but not {skipped} before it, which the ledger does not have: "
        "the foreachBatch function did not call the sink for every batch{or_lost}",
        (
            f"{{lost_end}}{_EVERY_BATCH} (no `if not frame.isEmpty()` before it), and start once "
            'with resume="{resume}", which goes on without those that were left out{find_out}',
            'if leaving batches out is meant, pass skipped_batches="allow" as well',
        ),
    ),
    Admission.NOT_WRITTEN: Refusal(
        BatchNotWritten,
        "{batch} was offered, but batch {failed} before it could not be written ({error}); Spark "
        "counts the batch as done: the foreachBatch function kept the error to itself, or had "
        "nothing of it to hand over when the batch ran again",
        (
            "let the sink's errors leave the function",
            "to have its rows written, {rewind}",
            _GO_ON_WITHOUT,
        ),
    ),
}

# of NOT_WRITTEN, where the ledger has the batch of the failed call
_ROWS_MISSING = Refusal(
    BatchNotWritten,
    "{batch} was offered, but a call for batch {failed} before it failed, whose rows may be "
    "missing from it ({error}); Spark counts the batch as done: the foreachBatch function kept "
    "the error to itself",
    (
        "hand all frames of a batch over together, those that are committed first, and let the "
        "sink's errors leave the function",
        "to have the rest written, {rewind}",
        _GO_ON_WITHOUT,
    ),
)

_CANNOT_REWIND = (
    "write them with a query of its own and another pipeline_id from where the batch before "
    "{failed} ended (one that keeps state: from the beginning, into new topics): Spark's offset "
    "log in {checkpoint} no longer reaches back to it, or the state there is of later batches"
)
_REWIND = (
    "stop the query, move away from {checkpoint} the files commits/{failed} and above and "
    "offsets/{after_failed} and above, each with its hidden .crc file where there is one, and "
    "start it{once} (a query that also writes to another pipeline_id cannot go back: write them "
    "with a query of its own from the offsets of batch {failed})"
)


def refusal(
    outcome: Admission,
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    newest: LedgerRecord | None,
    history: CallHistory | None = None,
) -> OncewardError:
    """Return the error for an ``outcome`` that refuses, with what to do next."""
    calls = history or CallHistory()
    details: dict[str, Any] = {
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
        "ledger_query_id": newest.batch.query_id if newest else None,
        "ledger_batch_id": newest.batch.batch_id if newest else None,
        "ledger_sequence": newest.sequence if newest else None,
    }
    facts: dict[str, object] = {
        "batch": batch,
        "number": batch.batch_id,
        "ledger": f"the ledger's newest is {newest.batch} (sequence {newest.sequence})"
        if newest
        else "the ledger has none",
        "offsets": _offsets_text(sources, newest),
    }
    template = REFUSALS[outcome]
    if outcome is Admission.SECOND_CALL:
        details = {ROWS_REFUSED: True, "query_id": batch.query_id, "batch_id": batch.batch_id}
    elif outcome is Admission.SKIPPED:
        first = newest.batch.batch_id + 1 if newest else 0
        facts |= _gap_facts(first, batch.batch_id - 1, newest, calls)
        details["checkpoint"] = calls.checkpoint
        details["not_written"] = [first, batch.batch_id - 1]
    elif outcome is Admission.NOT_WRITTEN and calls.failed is not None:
        failed, error = calls.failed
        here = newest is not None and batch.query_id == newest.batch.query_id
        committed = newest is not None and here and failed <= newest.batch.batch_id
        template = _ROWS_MISSING if committed else template
        once = ' once with resume="write_missing"' if committed else ""
        facts |= {"failed": failed, "error": _short(error), "rewind": _rewind(failed, calls, once)}
        details = {"not_written": [failed], "checkpoint": calls.checkpoint}
    return template.make(facts, details)


def _gap_facts(
    first: int, last: int, newest: LedgerRecord | None, history: CallHistory
) -> dict[str, object]:
    # A gap of this run is the function's for sure; one before it may be a ledger's lost end.
    may_be_lost = newest is not None and history.first_of_run
    return {
        "skipped": f"batch {first}" if first == last else f"batches {first} to {last}",
        "resume": "skip_missing" if newest else "adopt",
        "or_lost": ", or the ledger has lost its end (a cluster restored from a backup, say)"
        if may_be_lost
        else "",
        "find_out": " (after a look at whether the output has the rows of these batches)"
        if may_be_lost
        else "",
        "lost_end": "if ledger and output have lost the same (one backup, or one failover), and "
        f"the rows of these batches are to be written, {_rewind(first, history)}; else "
        if may_be_lost
        else "",
    }


def _rewind(first: int, history: CallHistory, once: str = "") -> str:
    """Return how Spark runs the batches from ``first`` on again."""
    return (_REWIND if history.rewindable else _CANNOT_REWIND).format(
        failed=first, after_failed=first + 1, checkpoint=history.checkpoint, once=once
    )


def second_call(batch: BatchId) -> OncewardError:
    """Return the refusal of a second call for one batch, whose first call is committed."""
    return refusal(Admission.SECOND_CALL, batch, (), None)


def dead_letters_skipped(batch: BatchId, newest: LedgerRecord | None) -> BatchNotWritten:
    """Return the refusal of a batch behind skipped ones, whose dead letters nobody has seen."""
    last = "no batch before" if newest is None else f"{newest.batch} is the last that was"
    return BatchNotWritten(
        f"{batch} was handed over, {last}: the foreachBatch function has skipped batches that had "
        "input, and what in them could not be read would be missing from the dead letters",
        next_step=f'{_EVERY_BATCH}: skipped_batches="allow" is not for queries that set records '
        'aside; to go on without what may be missing, start once with resume="skip_missing"',
        details={ROWS_REFUSED: True, "batch_id": batch.batch_id},
    )


def other_frames(batch: BatchId) -> UnsupportedQuery:
    """Return the refusal of a call that tries again with other frames than the one that failed."""
    return UnsupportedQuery(
        f"a call of the sink for {batch} has failed, and the function calls again with other "
        "frames; they would commit the batch without the rows of the first call, and are not "
        "written",
        next_step="let the sink's errors leave the function; hand all frames of a batch over in "
        "one block; if the function tries again by itself, then with the same frames",
        details={ROWS_REFUSED: True},
    )


def state_of_failed(running: RunningBatch, failed: OncewardError | None) -> StateOfFailedAttempt:
    """Return the refusal to compute a batch again: Spark would commit the state of the attempt
    that failed, and not the one of the rows."""
    why = f" ({failed.message})" if failed is not None else ""
    return StateOfFailedAttempt(
        f"an attempt at {running.batch} failed{why}, and it is not tried again in this run: the "
        "query keeps state in checkpoints of format 2 "
        "(spark.sql.streaming.stateStore.checkpointFormatVersion), of which Spark would commit "
        "the one of the failed attempt",
        next_step="start the query again (ow.supervise does), which runs the batch anew from the "
        "last committed state",
    )


def state_is_left(running: RunningBatch, places: Collection[str]) -> StateOfFailedAttempt:
    """Return the error for a batch that might go on from another state than that of the rows."""
    return StateOfFailedAttempt(
        f"an attempt at a batch before {running.batch} failed, the next one computed its state on "
        f"other executors, and {', '.join(sorted(places))} would go on from that of the failed "
        "one",
        next_step="start the query again (ow.supervise does): executors know no state of another "
        "run",
    )


def batch_changed(
    batch: BatchId,
    committed: Sequence[FrameWritten],
    now: Sequence[FrameWritten],
    *,
    more_frames: bool,
) -> BatchChanged:
    """Return the error for a committed batch whose new rows would be dropped; ``more_frames``:
    they are behind all that are committed."""
    if more_frames:
        advice = (
            'start once with resume="write_missing", which writes the frames that are missing in '
            "a transaction of their own"
        )
    elif any(str(frame.where).startswith(BRANCH) for frame in (*committed, *now)):
        advice = (
            "leave the sinks of the fan-out that have committed under their names, with all of "
            'their rows, and start once with resume="write_missing", which writes those that were '
            "added"
        )
    else:
        advice = (
            "hand the committed frames over first and unchanged, the others after them, and "
            'start once with resume="write_missing", which writes those; or write what is missing '
            'with a sink and a pipeline_id of its own (resume="adopt")'
        )
    return BatchChanged(
        f"{batch} is committed with {_text(committed)}; the function now hands over {_text(now)}, "
        "and what is new would not be written",
        next_step=f"{advice}; {_LEAVE_AS_COMMITTED}",
        details={
            ROWS_REFUSED: True,
            "batch_id": batch.batch_id,
            "committed": [list(frame) for frame in committed],
            "now": [list(frame) for frame in now],
        },
    )


def dead_letters_changed(
    batch: BatchId, committed: Sequence[FrameWritten], now: Sequence[FrameWritten]
) -> BatchChanged:
    """Return the error for records that the state would count although they are dead letters."""
    return BatchChanged(
        f"{batch} is committed with {_text(committed)}, now it has {_text(now)}: records that are "
        "dead letters of it can be read now, and the query's state would count them, too",
        next_step="start with the schemas that the records were read by then; or let the state "
        'count them: start once with resume="skip_missing", and do not feed these dead letters '
        "back",
        details={ROWS_REFUSED: True, "batch_id": batch.batch_id},
    )


def publishing_first(decided: BatchId, offered: BatchId) -> str:
    """Return what a refusal adds while ``decided`` is unpublished: an admitted start publishes."""
    if decided.query_id == offered.query_id:
        # Its own query cannot be started on this checkpoint any more.
        return (
            f"; {decided} is decided and not published yet: whichever start is admitted publishes "
            "it first of all"
        )
    return (
        f"; first of all start the query that wrote {decided} once more: it is decided, and not "
        "published yet"
    )


_CAUSED_BY = "Caused by: "


def paragraph(error: BaseException) -> str:
    """Return ``error`` as one paragraph for the log, also of pages of Java."""
    if isinstance(error, OncewardError):
        return summary(error)
    lines = _first_words([line for line in str(error).splitlines() if line.strip()])
    words = plain_text(" ".join([f"{type(error).__name__}:", *lines]))
    text = words[:_LONGEST_TEXT].rstrip(".")
    return f"{text}. Next: mend what it names; the next start runs the batch again."


def _first_words(lines: Sequence[str]) -> list[str]:
    """Return what a task raised, behind Python's traceback; else the first two lines, or the first
    and Java's innermost cause."""
    traceback = next((at for at, line in enumerate(lines) if _TRACEBACK in line), len(lines))
    raised = [line for line in lines[traceback + 1 :] if not line[0].isspace()][:1]
    causes = [line.strip() for line in lines if line.startswith(_CAUSED_BY)]
    words = [line.strip() for line in lines[:2]]
    return raised or ([words[0], causes[-1]] if causes else words)


def _text(frames: Sequence[FrameWritten]) -> str:
    parts = [
        f"{frame.records} records" + (f" for {frame.where}" if frame.where else "")
        for frame in frames
    ]
    return " and ".join(parts) or "no records"


def _offsets_text(sources: tuple[SourceRange, ...], newest: LedgerRecord | None) -> str:
    ours = json.dumps([[source.start, source.end] for source in sources])
    theirs = json.dumps([source.end for source in newest.sources]) if newest else "nothing"
    return f"the batch spans {_short(ours)}, the ledger ends at {_short(theirs)}"


def _short(text: str, limit: int = _LONGEST_TEXT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
