"""The lines at INFO: one for each batch, one when a pipeline opens, one when it ends. Driver only.

Called by ``engine.micro_batch``, ``engine.calls.runs`` and sinks without a ledger. Texts are pure.
What a line says is in its record, too, as ``record.onceward``, for
:class:`onceward.operate.logs.JsonFormatter`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from onceward import events
from onceward.engine.ledger.admission import Admission
from onceward.engine.ledger.record import LedgerRecord
from onceward.ids import BatchId, PipelineId

log = logging.getLogger(__name__)

_LONGEST = 3

known_lags: dict[str, int] = {}
"""Records behind the last stable offset by pipeline, as of the last look of whoever looks
(:mod:`onceward.operate.metrics`). A batch never waits for it."""


def log_batch(
    pipeline: PipelineId,
    batch: BatchId,
    values: Mapping[str, Any],
    under_way: events.UnderWay,
    seconds: float,
) -> None:
    """Log the line of a batch that is through. :param values: those of its FINISH event."""
    line_values = {**values, "seconds": round(seconds, 3), "lag": known_lags.get(pipeline)}
    text = batch_text(batch.batch_id, line_values, under_way.seconds)
    fields = {
        **{name: line_values[name] for name in _FIELDS if line_values.get(name) is not None},
        "steps": {name: round(took, 3) for name, took in under_way.seconds.items()},
    }
    log.info("%s: %s", pipeline, text, extra={"onceward": {**under_way.ids, **fields}})


_FIELDS = ("records", "bytes", "seconds", "epoch", "sequence", "lag", "attempts", "replayed")


def batch_text(number: int, values: Mapping[str, Any], steps: Mapping[str, float]) -> str:
    """Return a batch's line, without the pipeline.

    >>> batch_text(7, {"records": 5, "seconds": 1.5, "epoch": 3}, {"send": 1.2, "commit": 0.25})
    'batch 7 committed: 5 records in 1.50 s (send 1.20, commit 0.25), epoch 3'
    """
    longest = sorted(steps.items(), key=lambda step: step[1], reverse=True)[:_LONGEST]
    steps_text = ", ".join(f"{name} {took:.2f}" for name, took in longest)
    took = f"{values['seconds']:.2f} s" + (f" ({steps_text})" if steps_text else "")
    more = [f"{name} {values[name]}" for name in ("epoch", "lag") if values.get(name) is not None]
    if (attempts := values.get("attempts", 1)) > 1:
        more.append(f"{attempts} attempts")
    if values.get("replayed"):
        return ", ".join(
            [f"batch {number} replayed, nothing sent: it was committed, {took}", *more]
        )
    size = "" if values.get("bytes") is None else f", {values['bytes']} bytes"
    return ", ".join(
        [f"batch {number} committed: {values['records']} records{size} in {took}", *more]
    )


def log_opening(
    pipeline: PipelineId, batch: BatchId, run_id: str, newest: LedgerRecord | None, how: Admission
) -> None:
    """Log that a run has opened the ledger, from whom it took over, and where it goes on."""
    text = opening_text(batch, newest, replayed=how is Admission.REPLAY)
    fields = {"query_id": batch.query_id, "batch_id": batch.batch_id, "run_id": run_id}
    log.info("%s: %s", pipeline, text, extra={"onceward": {"pipeline": pipeline, **fields}})


def opening_text(batch: BatchId, newest: LedgerRecord | None, *, replayed: bool) -> str:
    """Return the line of a run's beginning, without the pipeline."""
    begins = f"begins with batch {batch.batch_id}"
    if newest is None:
        return f"open, the first to write; {begins}"
    run = f", run {newest.run_id}" if newest.run_id else ""
    owner, number = newest.attempt
    took = (
        f"open, took over from owner {owner} epoch {number}{run}, which committed batch "
        f"{newest.batch.batch_id} (sequence {newest.sequence})"
    )
    return f"{took}; {begins}, a replay: nothing is sent" if replayed else f"{took}; {begins}"


def log_end(
    pipeline: PipelineId, batches: int, records: int, newest: LedgerRecord | None, seconds: float
) -> None:
    """Log that a run has ended, and what it has written."""
    at = "nothing committed" if newest is None else f"newest batch {newest.batch.batch_id}"
    log.info(
        "%s: ended after %d batches and %d records in %.0f s; %s",
        pipeline,
        batches,
        records,
        seconds,
        at,
        extra={"onceward": {"pipeline": pipeline, "batches": batches, "records": records}},
    )
