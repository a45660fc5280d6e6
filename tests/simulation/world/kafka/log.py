"""One replica's log of one partition: what was appended, up to where it is committed, what is
decided.

Sources: ``UnifiedLog`` (high watermark, ``fetchLastStableOffsetMetadata``,
``collectAbortedTransactions``, ``truncateTo``), ``ProducerStateManager`` (``firstUnstableOffset``,
``completeTxn``, ``lastStableOffset``, ``onHighWatermarkUpdated``).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Any

from simulation.world.kafka.producers import ProducerState, Verification
from simulation.world.kafka.record_bytes import ABORT, COMMIT, marker, placed

DATA, COMMITTED, ABORTED, INTERNAL = "data", "commit", "abort", "internal"
_BASE = attrgetter("base")


class Entry:
    """A record batch. ``head`` is its header as it was produced, None for those that the model
    writes itself.
    """

    __slots__ = (
        "base", "body", "coordinator_epoch", "count", "epoch", "first", "head", "kind", "last",
        "leader_epoch",
        "producer", "time_ms", "transactional",
    )  # fmt: skip

    def __init__(
        self,
        base: int,
        last: int,
        kind: str,
        producer: int,
        epoch: int,
        leader_epoch: int,
        time_ms: int,
    ) -> None:
        self.base, self.last, self.kind = base, last, kind
        self.producer, self.epoch, self.leader_epoch, self.time_ms = (
            producer,
            epoch,
            leader_epoch,
            time_ms,
        )
        self.first = -1  # sequence of its first record
        self.count = last - base + 1  # records that compaction has left
        self.transactional = True
        self.coordinator_epoch = -1
        self.head: bytes | None = None
        self.body: Any = None

    def wire(self) -> bytes:
        """As a ``Fetch`` shows it."""
        if self.head is not None:
            return placed(self.head, self.base, self.leader_epoch) + self.body
        kind = COMMIT if self.kind is COMMITTED else ABORT
        return marker(
            self.base,
            self.leader_epoch,
            self.time_ms,
            self.producer,
            self.epoch,
            kind,
            self.coordinator_epoch,
        )

    def size(self) -> int:
        return 78 if self.head is None else 61 + len(self.body)


class StateEntry:
    """An entry of ``__transaction_state``: a transactional id and its facts, None once it is
    forgotten.
    """

    __slots__ = ("base", "body", "last")

    count = 1
    head = None
    kind = INTERNAL
    leader_epoch = producer = -1

    def __init__(self, base: int, body: Any) -> None:
        self.base = self.last = base
        self.body = body


class Log:
    """See the module. ``end`` is the next record's offset; ``high`` the high watermark as this
    replica knows it.
    """

    __slots__ = (
        "aborted",
        "end",
        "entries",
        "high",
        "open",
        "producers",
        "start",
        "undecided",
        "verifying",
    )

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.start = self.end = self.high = 0
        self.producers: dict[int, ProducerState] = {}
        self.verifying: dict[int, Verification] = {}
        self.open: dict[int, int] = {}
        """First offset → producer of each transaction that is open here, in the order of the
        offsets.
        """
        self.undecided: dict[int, int] = {}
        """First offset → offset of the marker, where that is not below the high watermark yet."""
        self.aborted: list[tuple[int, int, int]] = []
        """First offset, offset of the marker, producer."""

    # ── appending ──

    def append(
        self,
        head: bytes | None,
        body: Any,
        count: int,
        producer: int,
        epoch: int,
        first: int,
        transactional: bool,
        leader_epoch: int,
        time_ms: int,
    ) -> int:
        """A batch that nothing speaks against; the offset of its first record."""
        base = self.end
        last = base + count - 1
        entry = Entry(
            base,
            last,
            DATA if head is not None else INTERNAL,
            producer,
            epoch,
            leader_epoch,
            time_ms,
        )
        entry.head, entry.body, entry.first, entry.transactional = head, body, first, transactional
        self.entries.append(entry)
        self.end = last + 1
        if producer >= 0:
            self._remember(entry)
        return base

    def note(self, body: Any) -> None:
        """An entry of an internal topic that no producer has written."""
        end = self.end
        self.entries.append(StateEntry(end, body))
        self.end = end + 1

    def _remember(self, entry: Entry) -> None:
        producer = entry.producer
        state = self.producers.get(producer)
        if state is None:
            state = self.producers[producer] = ProducerState()
        first = entry.first
        last = (first + entry.last - entry.base) & 0x7FFFFFFF
        state.added(entry.epoch, first, last, entry.base, entry.last, entry.time_ms)
        if entry.transactional and entry.count:
            if state.open_since < 0:
                state.open_since = entry.base
                self.open[entry.base] = producer
            # ``updateProducers``: with a first offset the transaction speaks for itself
            self.verifying.pop(producer, None)

    def end_transaction(
        self,
        producer: int,
        epoch: int,
        commit: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        time_ms: int,
    ) -> Entry:
        """Append a marker that nothing speaks against."""
        base = self.end
        entry = Entry(
            base, base, COMMITTED if commit else ABORTED, producer, epoch, leader_epoch, time_ms
        )
        entry.coordinator_epoch = coordinator_epoch
        self.entries.append(entry)
        self.end = base + 1
        self._end(entry)
        return entry

    def _end(self, entry: Entry) -> None:
        producer = entry.producer
        state = self.producers.get(producer)
        if state is None:
            state = self.producers[producer] = ProducerState()
        waiting = self.verifying.get(producer)
        # With transaction version 2 the marker has the epoch of the next transaction, whose first
        # batch may be waiting for the coordinator's word already (``UnifiedLog.updateProducers``,
        # KAFKA-18654).
        if waiting is not None and not (waiting.bumps and waiting.epoch == entry.epoch):
            del self.verifying[producer]
        first = state.open_since
        if first >= 0:
            del self.open[first]
            self.undecided[first] = entry.base
            if entry.kind is ABORTED:
                self.aborted.append((first, entry.base, producer))
        state.ended(entry.epoch, entry.coordinator_epoch, entry.time_ms)

    # ── what is committed, and what is decided ──

    def raise_high(self, high: int) -> None:
        """The in-sync replicas have everything below ``high``."""
        if high > self.high:
            self.high = high
            undecided = self.undecided
            if undecided:
                for first in [first for first, at in undecided.items() if at < high]:
                    del undecided[first]

    def stable(self) -> int:
        """The last stable offset: below it every transaction has ended, and its marker is
        committed.
        """
        first = next(iter(self.open), None)
        if self.undecided:
            earliest = min(self.undecided)
            first = earliest if first is None else min(first, earliest)
        return self.high if first is None or first > self.high else first

    def aborted_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """Producer and first offset of the aborted transactions that have a part in there."""
        return [
            (producer, first)
            for first, at, producer in self.aborted
            if at >= start and first < end
        ]

    def read(self, offset: int, end: int, most_bytes: int) -> tuple[bytes, int]:
        """Whole batches from the one that holds ``offset`` on, up to ``end``; and where they stop.
        The first one comes however large it is (KIP-74).
        """
        entries = self.entries
        at = max(0, bisect_right(entries, offset, key=_BASE) - 1)
        pieces = []
        size = 0
        upto = offset
        for index in range(at, len(entries)):
            entry = entries[index]
            if entry.last < offset:
                continue
            if entry.last >= end:
                break
            size += entry.size()
            if pieces and size > most_bytes:
                break
            pieces.append(entry.wire())
            upto = entry.last + 1
        return b"".join(pieces), upto

    # ── another leader's truth ──

    def truncate(self, end: int) -> None:
        """Forget what lies from ``end`` on, and what was known because of it
        (``UnifiedLog.truncateTo``).
        """
        if end >= self.end:
            return
        entries = self.entries
        while entries and entries[-1].last >= end:
            entries.pop()
        self.end = end
        self.high = min(self.high, end)
        self.rebuild()

    def copy(self) -> Log:
        """For a replica that goes its own way from here on. Entries are shared: nobody changes
        them.
        """
        other = Log()
        other.entries = self.entries[:]
        other.start, other.end, other.high = self.start, self.end, self.high
        other.producers = {producer: state.copy() for producer, state in self.producers.items()}
        other.open, other.undecided, other.aborted = (
            self.open.copy(),
            self.undecided.copy(),
            self.aborted[:],
        )
        return other

    def rebuild(self, read_up_to: int = 0) -> None:
        """Read everything again, to learn of producers and transactions
        (``UnifiedLog.rebuildProducerState``).

        :param read_up_to: of what lies below it only each producer's newest batch is known.
        """
        self.producers.clear()
        self.verifying.clear()
        self.open.clear()
        self.undecided.clear()
        self.aborted.clear()
        for entry in self.entries:
            if entry.kind is COMMITTED or entry.kind is ABORTED:
                self._end(entry)
            elif entry.producer >= 0:
                self._remember(entry)
        for state in self.producers.values():
            older = sum(batch[3] < read_up_to for batch in state.batches)
            if older > 1:
                del state.batches[: older - 1]
        high, self.high = self.high, -1
        self.raise_high(high)

    def forget_before(self, offset: int) -> None:
        """Retention, or ``DeleteRecords``: the log begins at ``offset``."""
        offset = min(offset, self.high)
        if offset <= self.start:
            return
        self.start = offset
        self.entries = [entry for entry in self.entries if entry.last >= offset]
        self.aborted = [each for each in self.aborted if each[1] >= offset]
