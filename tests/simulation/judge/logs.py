"""What lies in one partition's log, and what of it a reader of committed records is given.

Markers decide (KIP-98): what one producer has written in transactions is visible, or hidden, from
its next marker on, and nothing is given out from the last stable offset on. Nobody's index of
aborted transactions is believed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from simulation.judge.verdict import Violation

Identity = tuple[int, int]
"""Producer id and epoch."""


class Written(NamedTuple):
    """One record batch of data."""

    base: int
    last: int
    identity: Identity
    sequence: int
    transactional: bool
    body: bytes
    """Its records, without the batch's header."""
    ended_ms: int
    """The broker's clock when its transaction was ended there; -1: it was not."""


class Reading(NamedTuple):
    """One partition."""

    where: str
    visible: list[Written]
    hidden: list[Written]
    """Aborted."""
    violations: list[Violation]


def read(cluster: Any, topic: str, partition: int) -> Reading:
    """Everything in the log of ``topic-partition``, up to its high watermark."""
    log = cluster.log(topic, partition)
    where = f"{topic}-{partition}"
    visible: list[Written] = []
    hidden: list[Written] = []
    violations: list[Violation] = []
    open_since: dict[int, list[Any]] = {}
    for entry in log.entries():
        kind, producer = entry.kind, entry.producer
        if kind == "data":
            if not entry.transactional:
                visible.append(_written(entry, -1))
            elif producer in open_since:
                open_since[producer].append(entry)
            else:
                open_since[producer] = [entry]
        elif (
            producer in open_since
        ):  # else a coordinator that took over has written it again, which harms nobody
            begun = open_since.pop(producer)
            ended_ms = entry.time_ms
            target = visible if kind == "commit" else hidden
            epoch = begun[0].epoch
            # One epoch, and the marker has the same, or a newer one (KIP-890, version 2; a
            # takeover).
            mixed = entry.epoch < epoch
            for data in begun:
                mixed = mixed or data.epoch != epoch
                target.append(_written(data, ended_ms))
            if mixed:
                violations.append(_several_epochs(where, begun, entry))
    stable, high = log.last_stable_offset, log.high_watermark
    if stable != high:
        sentence = f"{where}: the last stable offset is {stable}, the high watermark {high}"
        violations.append(Violation("I8", sentence))
        visible = [written for written in visible if written.last < stable]
    visible.sort()
    return Reading(where, visible, hidden, violations)


def _written(entry: Any, ended_ms: int, new: Any = tuple.__new__) -> Written:
    """Past the constructor of named tuples, which would cost more than all else here."""
    identity = (entry.producer, entry.epoch)
    found: Written = new(
        Written,
        (entry.base, entry.last, identity, entry.first, entry.transactional, entry.body, ended_ms),
    )
    return found


def _several_epochs(where: str, begun: list[Any], marker: Any) -> Violation:
    epochs = ", ".join(str(data.epoch) for data in begun)
    sentence = (
        f"{where}@{begun[0].base}: one transaction of producer {marker.producer}, ended at "
        f"{marker.base} by "
        f"{marker.kind} under epoch {marker.epoch}, has records of the epochs {epochs}"
    )
    return Violation("I7", sentence)


def identity_text(identity: Identity) -> str:
    return f"producer {identity[0]} epoch {identity[1]}"
