"""Reads committed and aborted transactions off a partition's offsets, without decoding a single control record.

Every transaction that touched a partition ends there with a control record (KIP-98), which takes one offset and which
no consumer is ever given. So what a ``read_uncommitted`` reader sees is runs of records with a gap of one offset after
each; a ``read_committed`` reader is given the runs that were committed, and not the others. The two readings together
say where each transaction began and ended and what became of it, with any client.

Holds for a partition that is never compacted and has one transactional writer at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionRun:
    """The records of one transaction in one partition; both offsets are inclusive, the marker is at ``last + 1``."""

    first_offset: int
    last_offset: int
    committed: bool

    @property
    def count(self) -> int:
        """How many records."""
        return self.last_offset - self.first_offset + 1


def transaction_runs(uncommitted: Iterable[int], committed: Iterable[int]) -> list[TransactionRun]:
    """The transactions of one partition, oldest first.

    :param uncommitted: offsets that a ``read_uncommitted`` reader was given, all of the partition.
    :param committed: offsets that a ``read_committed`` reader was given.
    :raises ValueError: part of a run is visible, or something is visible that is not there: the partition has several
        transactional writers at once, or the readings are of different moments, or a broker broke its promise.
    """
    visible = set(committed)
    runs = [_run(offsets, visible) for offsets in _unbroken(uncommitted)]
    seen = sum(run.count for run in runs if run.committed)
    if seen != len(visible):
        raise ValueError(f"{len(visible) - seen} committed offsets are missing from the uncommitted reading")
    return runs


def _unbroken(offsets: Iterable[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for offset in sorted(offsets):
        if groups and groups[-1][-1] + 1 == offset:
            groups[-1].append(offset)
        else:
            groups.append([offset])
    return groups


def _run(offsets: list[int], visible: set[int]) -> TransactionRun:
    shown = sum(offset in visible for offset in offsets)
    if shown not in (0, len(offsets)):
        raise ValueError(f"of offsets {offsets[0]} to {offsets[-1]} only {shown} are visible")
    return TransactionRun(offsets[0], offsets[-1], committed=shown > 0)
