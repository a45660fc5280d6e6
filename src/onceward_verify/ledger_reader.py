"""Reads a pipeline's records off the ledger topic, all of its partitions. Called by ``checker``.

Pipelines share ledger partitions, and one's open transaction hides what others have committed
behind it. So it is not waited for every transaction to end, but until no record of *this* pipeline
lies behind an open one.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from onceward_verify.cluster import COMMITTED, UNCOMMITTED, Cluster, Where
from onceward_verify.findings import CannotTell, place
from onceward_verify.ledger import Batch, batch_of

_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class LedgerReading:
    """The pipeline's records, and what stands in the way of reading them."""

    batches: list[Batch]
    """In the order of partitions and offsets."""
    undecided: list[str]
    """Places of the pipeline's records that are in, or behind, a transaction that has not
    ended.
    """
    behind_others: list[str]
    """Those of them for which another pipeline's transaction is to blame, as far as can be
    seen.
    """
    tombstones: list[str]
    """Places where the pipeline's key was deleted."""


def read_ledger(cluster: Cluster, topic: str, pipeline_id: str, settle_s: float) -> LedgerReading:
    """Everything that was in the ledger when the call began, once it is decided or ``settle_s``
    are over.
    """
    partitions = cluster.partitions(topic)
    if partitions is None:
        raise CannotTell(
            f"there is no ledger topic {topic!r}", next_step="name it with --ledger-topic"
        )
    key = pipeline_id.encode()
    reading = _read(cluster, partitions, key, settle_s)
    if _has_gap(
        reading.batches
    ):  # compaction may have swept through while we read: a second look is of one moment
        reading = _read(cluster, partitions, key, settle_s)
    return reading


def _read(cluster: Cluster, partitions: list[Where], key: bytes, settle_s: float) -> LedgerReading:
    decided_to, undecided, behind_others = _settled(cluster, partitions, key, settle_s)
    starts = cluster.starts(partitions)
    found: dict[Where, list[Batch]] = {where: [] for where in partitions}
    tombstones = []
    for where, messages, _ in cluster.read(
        {where: (starts[where], decided_to[where]) for where in partitions}
    ):
        for message in messages:
            if message.key() == key:
                value = message.value()
                if value is None:
                    tombstones.append(place(*where, message.offset()))
                else:
                    found[where].append(batch_of(value, *where, message.offset()))
    return LedgerReading(
        list(itertools.chain(*found.values())), undecided, behind_others, tombstones
    )


def _settled(
    cluster: Cluster, partitions: list[Where], key: bytes, settle_s: float
) -> tuple[dict[Where, int], list[str], list[str]]:
    """Up to where each partition is decided, and where records of ``key`` are that were there
    before and are not.

    What is not decided begins with the first record of a transaction that is open, and its key
    says whose that is.
    """
    deadline = time.monotonic() + settle_s
    high = cluster.ends(partitions)
    while True:
        stable = cluster.ends(partitions, COMMITTED)
        decided_to = {where: min(stable[where], high[where]) for where in partitions}
        undecided, behind_others = [], []
        first_keys: dict[Where, bytes | None] = {}
        for where, messages, _ in cluster.read(
            {w: (decided_to[w], high[w]) for w in partitions}, UNCOMMITTED
        ):
            begun_by = first_keys.setdefault(where, messages[0].key())
            ours = [
                place(*where, message.offset()) for message in messages if message.key() == key
            ]
            undecided += ours
            behind_others += ours if begun_by != key else []
        if not undecided or time.monotonic() > deadline:
            return decided_to, undecided, behind_others
        time.sleep(_LOOK_SECONDS)


def _has_gap(batches: list[Batch]) -> bool:
    return any(
        after.ledger_partition == before.ledger_partition and after.sequence > before.sequence + 1
        for before, after in itertools.pairwise(batches)
    )
