"""The truth about the cluster, for judges: what is in the logs, and what coordinators hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from simulation.world.kafka.coordinator import Coordinator
from simulation.world.kafka.groups import GroupCoordinator
from simulation.world.kafka.log import Entry, Log
from simulation.world.kafka.partition import Led, Partition
from simulation.world.kafka.transactions import ONGOING, PREPARE_ABORT, PREPARE_COMMIT, Where


class Batch(NamedTuple):
    """An entry of a log, as a judge sees it. ``payload`` are the bytes behind the header,
    untouched.
    """

    base_offset: int
    count: int
    producer_id: int
    epoch: int
    base_sequence: int
    kind: str
    """``data``, ``commit`` or ``abort``."""
    transactional: bool
    payload: bytes
    head: bytes


class LogView:
    """One partition's log up to its high watermark: iterable, in offset order."""

    __slots__ = ("_log", "high_watermark", "last_stable_offset", "start")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.high_watermark = log.high
        self.last_stable_offset = log.stable()
        self.start = log.start

    def entries(self) -> list[Entry]:
        """The same as by iteration, as they are: for those who look at all of them."""
        entries, high = self._log.entries, self.high_watermark
        if entries and entries[-1].last >= high:
            return [entry for entry in entries if entry.last < high]
        return entries

    def __iter__(self) -> Any:
        for entry in self._log.entries:
            if entry.last >= self.high_watermark:
                return
            yield Batch(
                entry.base,
                entry.last - entry.base + 1,
                entry.producer,
                entry.epoch,
                entry.first,
                entry.kind,
                entry.transactional,
                entry.body or b"",
                entry.head or b"",
            )


class TransactionView(NamedTuple):
    """A transactional id as its coordinator holds it."""

    state: str
    producer_id: int
    epoch: int
    partitions: tuple[Where, ...]
    pending: str | None


class Truth:
    """The part of the cluster that judges ask."""

    partitions: dict[Where, Partition]
    coordinators: dict[Led, Coordinator]
    group_coordinators: dict[Led, GroupCoordinator]

    def log(self, topic: str, partition: int) -> LogView:
        return LogView(self.partitions[topic, partition].log)

    def group_offsets(self, group: str) -> dict[Where, int]:
        """Committed offsets of a group, without those that are only pending."""
        for led, coordinator in self.group_coordinators.items():
            if led is coordinator.partition.led and group in coordinator.offsets:
                return {
                    where: offset[0]
                    for where, offset in sorted(coordinator.offsets[group].items())
                }
        return {}

    def pending_offsets(self, group: str) -> list[Where]:
        """Partitions whose offsets an open transaction is about to change."""
        return sorted(
            (topic, index)
            for led, coordinator in self.group_coordinators.items()
            if led is coordinator.partition.led
            for held in coordinator.pending.values()
            for name, topic, index in held
            if name == group
        )

    def transactions(self) -> dict[str, TransactionView]:
        """Per transactional id what its true coordinator holds."""
        found = {}
        for led, coordinator in self.coordinators.items():
            if led is coordinator.partition.led:
                for name, now in coordinator.known.items():
                    found[name] = TransactionView(
                        now.facts.state,
                        now.facts.producer,
                        now.facts.epoch,
                        tuple(now.facts.partitions),
                        now.pending,
                    )
        return dict(sorted(found.items()))

    def open_transactions(self) -> list[str]:
        """Ids whose transaction is open, or whose markers are not all written; and partitions that
        hold one open.
        """
        ids = [
            name
            for name, now in self.transactions().items()
            if now.state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT) or now.pending is not None
        ]
        held = [
            f"{topic}-{index}"
            for (topic, index), partition in self.partitions.items()
            if partition.log.open
        ]
        return ids + held
