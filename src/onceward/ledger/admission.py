"""May this batch be written? A pure function of the batch, the newest ledger record and the ``resume`` setting.

Called by ``engine.micro_batch`` as step 1 of every batch, in the driver. Spark numbers batches per checkpoint and
runs batch *b* again with the same offsets until its commit log has it; the ledger has *b* exactly if *b*'s
transaction committed. The table of outcomes:

====================================  =======================================  ==========================
ledger                                batch                                    outcome
====================================  =======================================  ==========================
no record                             0                                        ``FIRST``
no record                             above 0, ``resume="adopt"``              ``ADOPT``
no record                             above 0                                  ``LEDGER_BEHIND``
same query, batch *n*                 *n* + 1, starts where *n* ended          ``NEXT``
same query, batch *n*                 *n* + 1, starts elsewhere                ``OFFSETS_DIFFER``
same query, batch *n*                 *n*, ends where *n* ended                ``REPLAY``
same query, batch *n*                 *n*, ends elsewhere                      ``OFFSETS_DIFFER``
same query, batch *n*                 above *n* + 1                            ``LEDGER_BEHIND``
same query, batch *n*                 below *n*                                ``REWOUND``
another query                         starts at its end, ``resume="ledger"``   ``RESUME``
another query, and it keeps state     any, ``resume="ledger"``                 ``STATE_LOST``
another query                         elsewhere, ``resume="ledger"``           ``RESUME_GAP``
another query                         any, otherwise                           ``REPLACED``
====================================  =======================================  ==========================

``OFFSETS_DIFFER`` and ``REWOUND`` are why a batch number alone is not trusted: a checkpoint restored from an older
copy numbers *other* records with the same batch ids, and taking them for a replay would lose them.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Literal

from onceward.errors import AdmissionRefused, CheckpointReplaced, CheckpointRewound, LedgerBehind
from onceward.ids import BatchId, SourceRange
from onceward.ledger.record import LedgerRecord

Resume = Literal["checkpoint", "ledger", "adopt"]
RESUME_CHOICES: tuple[Resume, ...] = ("checkpoint", "ledger", "adopt")


class Admission(Enum):
    """What the ledger says to a batch."""

    FIRST = "first"
    ADOPT = "adopt"
    NEXT = "next"
    RESUME = "resume"
    REPLAY = "replay"
    LEDGER_BEHIND = "ledger behind"
    OFFSETS_DIFFER = "offsets differ"
    REWOUND = "rewound"
    REPLACED = "replaced"
    RESUME_GAP = "resume gap"
    STATE_LOST = "state lost"

    @property
    def writes(self) -> bool:
        """Is the batch to be written (rather than replayed or refused)?"""
        return self in (Admission.FIRST, Admission.ADOPT, Admission.NEXT, Admission.RESUME)


def admit(
    batch: BatchId,
    sources: tuple[SourceRange, ...],
    newest: LedgerRecord | None,
    resume: Resume,
    *,
    stateful: bool = False,
) -> Admission:
    """The outcome for ``batch`` over ``sources``, given the ``newest`` committed record of its pipeline.

    :param stateful: the query keeps state (aggregates, joins, deduplication), which lives in its checkpoint only.
    """
    if newest is None:
        if batch.batch_id == 0:
            return Admission.FIRST
        return Admission.ADOPT if resume == "adopt" else Admission.LEDGER_BEHIND
    if batch.query_id == newest.batch.query_id:
        return _same_checkpoint(batch.batch_id - newest.batch.batch_id, sources, newest)
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


def _same_checkpoint(step: int, sources: tuple[SourceRange, ...], newest: LedgerRecord) -> Admission:
    if step > 1:
        return Admission.LEDGER_BEHIND
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


def refusal(
    outcome: Admission, batch: BatchId, sources: tuple[SourceRange, ...], newest: LedgerRecord | None
) -> AdmissionRefused:
    """The typed error for an ``outcome`` that refuses, with what to do next."""
    known = f"the ledger's newest is {newest.batch} (sequence {newest.sequence})" if newest else "the ledger has none"
    offsets = _offsets_text(sources, newest)
    if outcome is Admission.LEDGER_BEHIND:
        return LedgerBehind(
            f"{batch} was offered, but {known}: the ledger was deleted or truncated, or these batches were "
            "written by another sink",
            next_step="if the ledger was lost, find out from the output how far it goes; to begin a chain on an "
            'existing checkpoint on purpose (migration), start once with resume="adopt" while the ledger is empty',
            details=_details(batch, newest),
        )
    if outcome is Admission.REPLACED:
        return CheckpointReplaced(
            f"{batch} was offered, but {known}: the checkpoint was deleted or replaced, or two queries share one "
            "pipeline_id",
            next_step="restore the checkpoint; or give this query a pipeline_id of its own; or, for a query without "
            'state, continue at the ledger\'s offsets with KafkaSink(resume="ledger") and '
            'kafka_source(starting="ledger")',
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
            next_step='read with kafka_source(starting="ledger") and a new, empty checkpoint, so that nothing is '
            "skipped or repeated",
            details=_details(batch, newest),
        )
    return CheckpointRewound(
        f"{batch} was offered, but {known}, and the offsets differ: {offsets}. The checkpoint was truncated or "
        "restored from an older copy, or another copy of this query is running on it and is ahead",
        next_step="if another copy is running, stop one of the two; else restore the newest checkpoint; or, for a "
        'query without state, start with a new checkpoint, KafkaSink(resume="ledger") and '
        'kafka_source(starting="ledger")',
        details=_details(batch, newest),
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
