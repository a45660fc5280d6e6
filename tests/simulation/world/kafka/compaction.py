"""The log cleaner: of each key the newest committed record stays, at its offset.

Sources: ``Cleaner.cleanInto`` and ``shouldRetainRecord``, ``CleanedTransactionMetadata``,
``LogCleanerManager.cleanableOffsets`` (nothing from the first open transaction on, nor above the
high watermark), ``RecordBatch.deleteHorizonMs`` (KIP-534).
"""

from __future__ import annotations

from simulation.world.kafka.log import DATA, Entry, Log
from simulation.world.kafka.record_bytes import records, rewritten


def compacted(log: Log, *, markers: bool) -> None:
    """Clean ``log``, all of it as far as it is decided (real cleaners leave the newest segment
    alone).

    Aborted records go, and records whose key comes again. A producer's newest batch stays, without
    records if need be, because its sequences are in it (``retainRecordsFromBatch``). A marker goes
    when ``markers`` says that its time is over, and this pass has met no batch of its transaction
    (``CleanedTransactionMetadata.onControlBatchRead``).
    """
    end = log.stable()
    cleaned = [entry for entry in log.entries if entry.last < end]
    dead = _dead(cleaned, log.aborted)
    newest: dict[bytes, tuple[int, int]] = {}
    for entry in cleaned:
        if entry.kind is DATA and entry.base not in dead:
            for delta, _, (key, _) in records(entry.head, entry.body):
                if key is not None:
                    newest[key] = (entry.base, delta)
    last_of = {
        producer: state.batches[-1][2]
        for producer, state in log.producers.items()
        if state.batches
    }
    kept: list[Entry] = []
    met: set[int] = set()
    for entry in cleaned:
        producer = entry.producer
        if entry.kind is not DATA:
            if not markers or producer in met:
                kept.append(entry)
            met.discard(producer)
            continue
        met.add(producer)
        left = None if entry.base in dead else _rewritten(entry, newest)
        if left is None and last_of.get(producer) == entry.base:
            left = _with(entry, [])
        if left is not None:
            kept.append(left)
    log.entries[: len(cleaned)] = kept


def _dead(entries: list[Entry], aborted: list[tuple[int, int, int]]) -> set[int]:
    """Base offsets of the batches of aborted transactions."""
    began = {(producer, first): at for first, at, producer in aborted}
    found = set()
    ends: dict[int, int] = {}
    for entry in entries:
        if entry.kind is not DATA:
            ends.pop(entry.producer, None)
            continue
        at = began.get((entry.producer, entry.base))
        if at is not None:
            ends[entry.producer] = at
        if entry.transactional and entry.base < ends.get(entry.producer, -1):
            found.add(entry.base)
    return found


def _rewritten(entry: Entry, newest: dict[bytes, tuple[int, int]]) -> Entry | None:
    """The batch with those of its records that are the newest of their keys; None without any."""
    kept = [
        raw
        for delta, raw, (key, _) in records(entry.head, entry.body)
        if key is not None and newest.get(key) == (entry.base, delta)
    ]
    if not kept:
        return None
    return entry if len(kept) == entry.count else _with(entry, kept)


def _with(entry: Entry, kept: list[bytes]) -> Entry:
    """The batch with these of its records."""
    left = Entry(
        entry.base,
        entry.last,
        entry.kind,
        entry.producer,
        entry.epoch,
        entry.leader_epoch,
        entry.time_ms,
    )
    left.first, left.transactional, left.coordinator_epoch = (
        entry.first,
        entry.transactional,
        entry.coordinator_epoch,
    )
    assert entry.head is not None
    left.head, left.body = rewritten(entry.head, kept)
    left.count = len(kept)
    return left
