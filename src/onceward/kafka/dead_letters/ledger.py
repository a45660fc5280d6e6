"""What of a dead-letter topic has been replayed, as the newest record of its chain in the ledger
topic says. Pure.

Each transaction of a replay holds one ledger record, of the pipeline ``dead-letters.<topic>``. A
record holds **all** that has been replayed, not only what its own transaction fed back: a ledger
topic is compacted, and a filter leaves gaps that no single position could tell of. Its manifest is
that of the transaction, so that ``onceward verify`` can judge it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from onceward.engine.ledger.record import FrameWritten, LedgerRecord, Output
from onceward.errors import LedgerUnreadable, RecordTooLarge
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange, TopicPartition
from onceward.kafka.dead_letters.offsets import OffsetSet

_PREFIX = "dead-letters."
_LONGEST = 200
_OFFSETS, _TOPIC, _TOPIC_ID, _REPLAYED = "offsets", "topic", "topic_id", "replayed"

MOST_BYTES = 6 << 20
"""What has been replayed may take so much of a ledger record, which is 8 MiB at most."""


def chain_name(topic: str) -> PipelineId:
    """The name of the topic's chain: its transactional id and its key in the ledger topic."""
    name = _PREFIX + topic
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}.{hashlib.sha256(topic.encode()).hexdigest()[:16]}"
    return PipelineId(name)


@dataclass
class Replayed:
    """Per partition the offsets that need not be looked at again, and how many letters were fed
    back, ever.
    """

    offsets: dict[int, OffsetSet] = field(default_factory=dict)
    count: int = 0

    def of(self, partition: TopicPartition) -> OffsetSet:
        """Of one partition; to be read, and changed in a :meth:`copy` only."""
        return self.offsets.setdefault(partition.partition, OffsetSet())

    def copy(self) -> Replayed:
        return Replayed(
            {partition: offsets.copy() for partition, offsets in self.offsets.items()}, self.count
        )


def parse_replayed(newest: LedgerRecord | None, topic: str, topic_id: str) -> Replayed:
    """What the newest ledger record says of ``topic``; nothing, if it speaks of one that had the
    name before.

    :raises LedgerUnreadable: it is no record of a replay.
    """
    if newest is None:
        return Replayed()
    try:
        (source,) = newest.sources
        told, count = source.identity, int(source.end[_REPLAYED])
        if told[_TOPIC] != topic:
            raise ValueError(f"it speaks of topic {told[_TOPIC]!r}")
        if told[_TOPIC_ID] != topic_id:
            return Replayed(count=count)
        offsets = {
            int(partition): OffsetSet.from_text(text) for partition, text in told[_OFFSETS].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerUnreadable(
            f"the newest ledger record of {newest.pipeline} (sequence {newest.sequence}) does not "
            f"say what of topic {topic} was replayed ({type(error).__name__}: {error})",
            next_step="find out who else writes to the ledger topic, or whether a pipeline has "
            "this pipeline_id; with another --ledger-topic every letter counts as not replayed",
        ) from error
    return Replayed(offsets, count)


def next_record(
    newest: LedgerRecord | None,
    after: Replayed,
    *,
    topic: str,
    topic_id: str,
    attempt: AttemptId,
    run_id: str,
    output: Output,
) -> LedgerRecord:
    """The record of a transaction that fed back what ``output`` says; ``after`` is what has been
    replayed with it.

    :raises RecordTooLarge: what was replayed is too scattered.
    """
    sequence = 0 if newest is None else newest.sequence + 1
    return LedgerRecord(
        pipeline=chain_name(topic),
        sequence=sequence,
        batch=BatchId(f"{topic}/{topic_id}", sequence),
        sources=(
            SourceRange(
                {_REPLAYED: after.count - output.records},
                {_REPLAYED: after.count},
                {_TOPIC: topic, _TOPIC_ID: topic_id, _OFFSETS: _offsets(after, topic)},
            ),
        ),
        attempt=attempt,
        outputs={output.kind: output},
        committed_at_ms=time.time_ns() // 1_000_000,
        run_id=run_id,
        frames=tuple(
            FrameWritten(name, sum(part[0] for part in parts.values()))
            for name, parts in output.data.items()
        ),
    )


def _offsets(after: Replayed, topic: str) -> Mapping[str, str]:
    # All stretches, each time: the ledger topic is compacted to the newest record, and a filter
    # leaves gaps that no single position can express.
    told = {
        str(partition): offsets.to_text()
        for partition, offsets in sorted(after.offsets.items())
        if offsets
    }
    size = sum(map(len, told.values()))
    if size > MOST_BYTES:
        stretches = sum(len(offsets) for offsets in after.offsets.values())
        raise RecordTooLarge(
            f"what was replayed of topic {topic} lies in {stretches} stretches, with letters in "
            f"between that a filter "
            f"has left out: {size} bytes, and a ledger record may have {MOST_BYTES}",
            next_step="replay the oldest letters without --class and --source-topic (with "
            "--limit, or --to another topic), which joins the stretches",
            details={"topic": topic, "stretches": stretches},
        )
    return told
