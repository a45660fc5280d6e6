"""What of a dead-letter topic has been replayed, as the newest record of its chain in the ledger
topic says. Pure.

Each transaction of a replay holds one ledger record, of the pipeline ``dead-letters.<topic>``. A
record holds **all** that has been replayed, not only what its own transaction fed back: a ledger
topic is compacted, and a filter leaves gaps that no single position could tell of. Its manifest is
that of the transaction, so that ``onceward verify`` can judge it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from onceward.engine.ledger.record import FrameWritten, LedgerRecord, Output
from onceward.errors import LedgerUnreadable, RecordTooLarge
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange, TopicPartition

_MOST_BYTES = 1 << 30


class OffsetSet:
    """Disjoint stretches ``[from, to)``, by their borders, ascending. Changed in place."""

    def __init__(self, borders: list[int] | None = None) -> None:
        self._borders = borders or []

    def __contains__(self, offset: int) -> bool:
        return bisect_right(self._borders, offset) % 2 == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self._borders == other._borders

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __len__(self) -> int:
        """Return how many stretches."""
        return len(self._borders) // 2

    def next_outside(self, offset: int) -> int:
        """Return ``offset`` itself, or where the stretch that it is in ends."""
        place = bisect_right(self._borders, offset)
        return self._borders[place] if place % 2 else offset

    def add(self, start: int, end: int) -> None:
        """Add all of ``[start, end)``."""
        if start >= end:
            return
        low, high = bisect_left(self._borders, start), bisect_right(self._borders, end)
        self._borders[low:high] = ([start] if low % 2 == 0 else []) + (
            [end] if high % 2 == 0 else []
        )

    def forget_below(self, offset: int) -> None:
        """Forget what lies before ``offset``, which is asked for no more."""
        place = bisect_right(self._borders, offset)
        self._borders[:place] = [offset] if place % 2 else []

    def copy(self) -> OffsetSet:
        return OffsetSet(list(self._borders))

    def to_text(self) -> str:
        """Return distances of the borders, little-endian and 64 bits wide, deflated, in base64:
        two to three bits an offset where every other one is in it, and next to nothing for long
        stretches."""
        distances = np.diff(np.asarray(self._borders, np.int64), prepend=0).astype("<i8")
        return base64.b64encode(zlib.compress(distances.tobytes(), 6)).decode()

    @staticmethod
    def from_text(text: str) -> OffsetSet:
        """Parse what :meth:`to_text` wrote. :raises ValueError: it is something else."""
        try:
            unpacking = zlib.decompressobj()
            packed = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"no set of offsets: {error}") from None
        if not unpacking.eof or len(packed) % 16:
            raise ValueError("no set of offsets: it is cut off")
        borders = np.cumsum(np.frombuffer(packed, "<i8")).tolist()
        if any(after <= before for before, after in zip([-1, *borders], borders, strict=False)):
            raise ValueError("no set of offsets: it does not ascend")
        return OffsetSet(borders)


_PREFIX = "dead-letters."
_LONGEST = 200
_OFFSETS, _TOPIC, _TOPIC_ID, _REPLAYED = "offsets", "topic", "topic_id", "replayed"

MOST_BYTES = 6 << 20
"""What has been replayed may take so much of a ledger record, which is 8 MiB at most."""


def chain_name(topic: str) -> PipelineId:
    """Return the topic's chain: its transactional id, and its key in the ledger topic."""
    name = _PREFIX + topic
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}.{hashlib.sha256(topic.encode()).hexdigest()[:16]}"
    return PipelineId(name)


@dataclass
class Replayed:
    """By partition the offsets that are done with, and how many letters were ever fed back."""

    offsets: dict[int, OffsetSet] = field(default_factory=dict)
    count: int = 0

    def of(self, partition: TopicPartition) -> OffsetSet:
        """Return the set of one partition; to be read, and changed in a :meth:`copy` only."""
        return self.offsets.setdefault(partition.partition, OffsetSet())

    def copy(self) -> Replayed:
        return Replayed(
            {partition: offsets.copy() for partition, offsets in self.offsets.items()}, self.count
        )


def is_another_topic(known_id: str, found_id: str) -> bool:
    """Return whether these are ids of two topics; one that brokers before 2.8 did not tell is
    empty, and says nothing."""
    return bool(known_id and found_id) and known_id != found_id


def parse_replayed(newest: LedgerRecord | None, topic: str, topic_id: str) -> Replayed:
    """Return what the newest record says of ``topic``; nothing, if of an earlier one of that name.
    :raises LedgerUnreadable: it is no record of a replay."""
    if newest is None:
        return Replayed()
    try:
        (source,) = newest.sources
        identity, count = source.identity, int(source.end[_REPLAYED])
        if identity[_TOPIC] != topic:
            raise ValueError(f"it speaks of topic {identity[_TOPIC]!r}")
        if is_another_topic(identity[_TOPIC_ID], topic_id):
            return Replayed(count=count)
        offsets = {
            int(partition): OffsetSet.from_text(text)
            for partition, text in identity[_OFFSETS].items()
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
    """Return the record of a transaction that fed back what ``output`` says; ``after`` is what has
    been replayed with it. :raises RecordTooLarge: what was replayed is too scattered."""
    sequence = 0 if newest is None else newest.sequence + 1
    if newest is not None and not topic_id:
        topic_id = newest.sources[0].identity[_TOPIC_ID]
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
    texts = {
        str(partition): offsets.to_text()
        for partition, offsets in sorted(after.offsets.items())
        if offsets
    }
    size = sum(map(len, texts.values()))
    if size > MOST_BYTES:
        stretches = sum(len(offsets) for offsets in after.offsets.values())
        raise RecordTooLarge(
            f"what was replayed of topic {topic} lies in {stretches} stretches, with letters in "
            f"between that a filter has left out: {size} bytes, and a ledger record may have "
            f"{MOST_BYTES}",
            next_step="replay the oldest letters without --class and --source-topic (with "
            "--limit, or --to another topic), which joins the stretches",
            details={"topic": topic, "stretches": stretches},
        )
    return texts
