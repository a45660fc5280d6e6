"""What a plan says: its lines, from the first batch, the ledger and the checkpoint. Pure.

Called by :mod:`onceward.operate.plan`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from onceward.engine.calls.advice import refusal
from onceward.engine.ledger.admission import Admission, admit
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import summary
from onceward.ids import TopicPartition, is_kafka_offset, partition_offsets
from onceward.spark.batch.query import RunningBatch

_LONGEST = 1_500


class Weight(Enum):
    """How much a line of a plan matters, in rising order."""

    AS_BEFORE = "as before"
    UNKNOWN = "unknown"
    CHANGES = "changes"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: what it is about (start, sources, state, output, schemas), and what will be."""

    weight: Weight
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What the start of one query of a job would do, in full, whoever asks."""

    name: str
    checkpoint: str
    lines: tuple[Line, ...]

    @property
    def weight(self) -> Weight:
        """The heaviest of its lines."""
        order = list(Weight)
        return max((line.weight for line in self.lines), key=order.index, default=Weight.AS_BEFORE)


def compare_sources(ends: Sequence[Any], now: Sequence[Any]) -> Iterator[Line]:
    """Yield a line for each source: what is new in it, and what is gone. Pure.

    :param ends: where the checkpoint has each source end; empty without a checkpoint.
    :param now: the ranges of the first batch.
    """
    left: dict[str, int] = {}
    come: dict[str, int] = {}
    for number, source in enumerate(now):
        before = ends[number] if number < len(ends) else None
        if not is_kafka_offset(source.end):
            end = source.end
            text = end if isinstance(end, str) else json.dumps(end, default=str)
            yield Line(Weight.AS_BEFORE, "sources", f"source {number}: {cut(text)}")
            continue
        begins = partition_offsets(source.start if is_kafka_offset(source.start) else {})
        reach = partition_offsets(source.end)
        count = sum(max(0, offset - begins.get(at, offset)) for at, offset in reach.items())
        topics = ", ".join(sorted(source.end))
        first = ", ".join(f"{at.topic}-{at.partition} at {o}" for at, o in sorted(begins.items()))
        yield Line(
            Weight.AS_BEFORE, "sources",
            f"source {number}: {topics}; the first batch reads {count:,} offsets, from "
            f"{cut(first)}",
        )  # fmt: skip
        if before is None or not is_kafka_offset(before):
            continue
        gone, new = sorted(set(before) - set(source.end)), sorted(set(source.end) - set(before))
        left |= dict.fromkeys(gone, number)
        come |= dict.fromkeys(new, number)
        if gone:
            yield Line(Weight.CHANGES, "sources", f"no longer read: {', '.join(gone)}")
        if new:
            yield Line(Weight.CHANGES, "sources", f"new topics: {', '.join(new)}")
    for topic in sorted(left.keys() & come.keys()):
        text = f"topic {topic} was source {left[topic]}'s and is source {come[topic]}'s now: put "
        text += (
            "the sources back in their order, by which alone Spark knows them; a start is refused"
        )
        yield Line(Weight.CHANGES, "sources", text)


def compare_kept(
    start: Mapping[TopicPartition, int], earliest: Mapping[TopicPartition, int]
) -> Iterator[Line]:
    """Yield a line if records that the first batch begins with are no longer kept. Pure."""
    gone = {
        where: (offset, earliest[where])
        for where, offset in sorted(start.items())
        if earliest.get(where, offset) > offset
    }
    if gone:
        lost = sum(now - offset for offset, now in gone.values())
        places = ", ".join(
            f"{where} from {offset} to {now}" for where, (offset, now) in gone.items()
        )
        yield Line(
            Weight.CHANGES,
            "sources",
            f"{lost:,} offsets have expired before they were read: {cut(places)}; the first batch "
            "fails, or, with failOnDataLoss=false, goes on without them",
        )


def decide(
    running: RunningBatch, newest: LedgerRecord | None, resume: Any, history: Any, planned: int
) -> Line:
    """Return what admission says to the first batch. Pure, but for what ``history`` asks Spark.

    :param planned: the newest batch whose offsets the checkpoint has.
    """
    batch, number = running.batch, running.batch.batch_id
    outcome = admit(
        batch, running.sources, newest, resume, stateful=running.stateful, history=history
    )
    if outcome is Admission.REPLAY:
        text = f"batch {number} runs again and is committed already: nothing is written"
        return Line(Weight.AS_BEFORE, "start", text)
    if not outcome.writes:
        error = refusal(outcome, batch, running.sources, newest, history)
        return Line(Weight.REFUSED, "start", summary(error))
    behind = "" if newest is None else f", behind batch {newest.batch.batch_id} of the ledger"
    if outcome is Admission.NEXT:
        again = (
            " runs again, with the offsets that were logged" if number <= planned else " is next"
        )
        return Line(Weight.AS_BEFORE, "start", f"batch {number}{again}{behind}")
    if outcome is Admission.FIRST:
        return Line(
            Weight.AS_BEFORE, "start", "a new pipeline: batch 0 is the first of its ledger"
        )
    words = {
        Admission.ADOPT: f'batch {number} begins a new ledger (resume="adopt")',
        Admission.RESUME: f'a new checkpoint goes on{behind} (resume="ledger")',
        Admission.AFTER_SKIPPED: f"batch {number} follows batches that are left out{behind}",
    }
    return Line(Weight.CHANGES, "start", words[outcome])


def gone_on(
    known: LedgerRecord | None, newest: LedgerRecord | None, running: RunningBatch
) -> Line | None:
    """Return what to say of a batch that is refused, where the pipeline runs and has committed
    batches since its checkpoint was read. Pure.

    :param known: the ledger's newest record from before the checkpoint was read.
    """
    if known is None or newest is None or newest.sequence == known.sequence:
        return None
    queries = {running.batch.query_id, known.batch.query_id, newest.batch.query_id}
    # It was ahead before: a checkpoint that was cut short, or restored
    if len(queries) > 1 or known.batch.batch_id > running.batch.batch_id:
        return None
    text = f"it runs, and has committed up to batch {newest.batch.batch_id} meanwhile"
    return Line(Weight.AS_BEFORE, "start", text)


def cut(text: str) -> str:
    """Return a text of Spark's in one line, without its stack and plan."""
    text = " ".join(text.split("\n\tat ")[0].split("\n=== ")[0].split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
