"""A group coordinator: one partition of ``__consumer_offsets``, for offsets that transactions
commit.

Sources: ``GroupCoordinatorService.commitTransactionalOffsets``, ``OffsetMetadataManager``
(``commitTransactionalOffset``, ``replayEndTransactionMarker``, ``fetchAllOffsets``),
``CoordinatorOperationExceptionHelper``, ``ClassicGroup.validateOffsetCommit`` and
``ConsumerGroup.validateOffsetCommit`` of 4.3.1; ``GroupCoordinator`` and
``GroupMetadataManager.maybeConvertOffsetCommitError`` of 3.9.1.

Offsets that come without a member id and a generation, as Onceward's do, are taken whoever is in
the group: both validations refuse a member, not a stranger, where the commit is transactional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.world.kafka.log import COMMITTED, INTERNAL, Entry
from simulation.world.kafka.partition import Led, Partition

if TYPE_CHECKING:
    from simulation.world.kafka.cluster import Cluster

LOADING, NOT_AVAILABLE, NOT_COORDINATOR, UNSTABLE = 14, 15, 16, 88

Offset = tuple[int, str, int]
"""A position, its metadata, and the offset of the record that has it."""

_FROM_LOG = {
    3: NOT_AVAILABLE,
    6: NOT_COORDINATOR,
    7: NOT_AVAILABLE,
    13: LOADING,
    19: NOT_AVAILABLE,
    20: NOT_AVAILABLE,
    56: NOT_COORDINATOR,
}


def answered(code: int) -> int:
    """How a failed append, or a failed check with the transaction coordinator, is told."""
    return _FROM_LOG.get(code, code)


class GroupCoordinator:
    """See the module."""

    __slots__ = ("cluster", "led", "loading", "offsets", "partition", "pending", "resigned")

    def __init__(self, cluster: Cluster, partition: Partition, led: Led) -> None:
        self.cluster = cluster
        self.partition = partition
        self.led = led
        self.offsets: dict[str, dict[tuple[str, int], Offset]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], Offset]] = {}
        """Producer → what its open transaction would commit, by group, topic and partition."""
        self.loading = False
        self.resigned = False

    def load(self) -> None:
        self.loading = bool(self.led.log.entries)
        if not self.loading:
            return
        lag = self.cluster.around.lag("load")
        if lag <= 0:
            self._loaded()
        else:
            self.cluster.around.later(lag, self._loaded, "load")

    def _loaded(self) -> None:
        if not self.resigned:
            self.loading = False
            for entry in self.led.log.entries:
                self.replay(entry)

    def resign(self) -> None:
        self.resigned = True

    def marked(self, entry: Entry) -> None:
        """A marker was appended: 4.x acts on it at once, 3.9 by and by
        (``scheduleHandleTxnCompletion``).
        """
        lag = self.cluster.around.lag("offsets") if self.cluster.old else 0
        if lag <= 0:
            self.replay(entry)
        else:
            self.cluster.around.later(
                lag, lambda: None if self.resigned else self.replay(entry), "offsets"
            )

    def replay(self, entry: Entry) -> None:
        """What an entry of the log changes: at once when it is appended, as the runtime does."""
        if entry.kind is INTERNAL:
            group, offsets = entry.body
            pending = self.pending.setdefault(entry.producer, {})
            for topic, partition, offset, metadata in offsets:
                pending[group, topic, partition] = (offset, metadata, entry.base)
            return
        taken = self.pending.pop(entry.producer, None)
        if taken and entry.kind is COMMITTED:
            for (group, topic, partition), offset in taken.items():
                known = self.offsets.setdefault(group, {})
                before = known.get((topic, partition))
                if before is None or offset[2] > before[2]:
                    known[topic, partition] = offset

    def fail_pending(
        self, producer: int, group: str, offsets: list[tuple[str, int, int, str]]
    ) -> None:
        """``GroupMetadata.failPendingTxnOffsetCommit`` of 3.9: a refused append takes what is
        pending with it, by the producer's id alone. So the refused request of an old epoch makes
        this coordinator forget what the next epoch is about to commit, until it reads its log
        again (seen on 3.9.1).
        """
        pending = self.pending.get(producer)
        if pending is not None:
            for topic, partition, _, _ in offsets:
                pending.pop((group, topic, partition), None)

    def fetch_all(self, group: str, stable: bool) -> list[tuple[str, int, int, str, int]]:
        """``fetchAllOffsets``: topic, partition, offset, metadata and error code of each offset
        that *is* committed.

        What is only pending is not shown, not even as unstable, as long as nothing was committed
        for the partition.
        """
        unstable = (
            {(t, p) for held in self.pending.values() for g, t, p in held if g == group}
            if stable
            else ()
        )
        found = self.offsets.get(group, {})
        told = []
        for (topic, partition), (offset, note, _) in sorted(found.items()):
            held = (topic, partition) in unstable
            told.append(
                (topic, partition, -1, "", UNSTABLE)
                if held
                else (topic, partition, offset, note, 0)
            )
        return told

    def fetch(self, group: str, topic: str, partition: int, stable: bool) -> tuple[int, str, int]:
        """``fetchOffsets``: offset, metadata and error code of one partition that is asked for by
        name.
        """
        if stable and any((group, topic, partition) in held for held in self.pending.values()):
            return -1, "", UNSTABLE
        found = self.offsets.get(group, {}).get((topic, partition))
        return (-1, "", 0) if found is None else (found[0], found[1], 0)
