"""Reads a pipeline's records off the ledger topic, all of its partitions. Called by ``checker``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from onceward.verify.cluster import UNCOMMITTED, Cluster, Where
from onceward.verify.findings import CannotTell, place
from onceward.verify.ledger import Batch, batch_of


@dataclass(frozen=True)
class LedgerReading:
    """The pipeline's records, and what stands in the way of reading them."""

    batches: list[Batch]
    """In the order of partitions and offsets."""
    undecided: list[str]
    """Places of the pipeline's records in a transaction that has not ended."""
    blocked: list[str]
    """Stretches behind somebody's open transaction."""
    tombstones: list[str]
    """Places where the pipeline's key was deleted."""


def read_ledger(cluster: Cluster, topic: str, pipeline_id: str, settle_s: float) -> LedgerReading:
    """Everything that was in the ledger when the call began, once it is decided or ``settle_s`` are over."""
    reading = _read(cluster, topic, pipeline_id, settle_s)
    if _has_gap(reading.batches):  # compaction may have swept through while we read: a second look is of one moment
        reading = _read(cluster, topic, pipeline_id, settle_s)
    return reading


def _read(cluster: Cluster, topic: str, pipeline_id: str, settle_s: float) -> LedgerReading:
    partitions = cluster.partitions(topic)
    if partitions is None:
        raise CannotTell(f"there is no ledger topic {topic!r}", next_step="name it with --ledger-topic")
    high = cluster.ends(partitions)
    stable = cluster.wait_until_stable(high, settle_s)
    starts = cluster.starts(partitions)
    found: dict[Where, list[Batch]] = {where: [] for where in partitions}
    tombstones = []
    key = pipeline_id.encode()
    for where, messages, _ in cluster.read({w: (starts[w], min(stable[w], high[w])) for w in partitions}):
        for message in messages:
            if message.key() == key:
                value = message.value()
                if value is None:
                    tombstones.append(place(*where, message.offset()))
                else:
                    found[where].append(batch_of(value, *where, message.offset()))
    open_ranges = {where: (stable[where], high[where]) for where in partitions if stable[where] < high[where]}
    undecided = [
        place(*where, message.offset())
        for where, messages, _ in cluster.read(open_ranges, UNCOMMITTED)
        for message in messages
        if message.key() == key
    ]
    blocked = [place(*where, *span) for where, span in open_ranges.items()]
    return LedgerReading(list(itertools.chain(*found.values())), undecided, blocked, tombstones)


def _has_gap(batches: list[Batch]) -> bool:
    return any(
        after.ledger_partition == before.ledger_partition and after.sequence > before.sequence + 1
        for before, after in itertools.pairwise(batches)
    )
