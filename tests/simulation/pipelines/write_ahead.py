"""Kafka → Spark → somebody without transactions, by ``ow.WriteAheadSink``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onceward as ow
from onceward.events import STEPS
from simulation.judge.chain import Chain
from simulation.judge.decided import judge_leftovers, judge_rows
from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation
from simulation.kernel import current
from simulation.pipelines import two_phase
from simulation.pipelines.two_phase import (
    PIPELINE_ID,
    USERS,
    chain_of,
    function_of,
    judge_chain,
    note_faults,
)
from simulation.spark.frames import Frame
from simulation.world.targets.receiver import Deliver, Receiver

__all__ = ["FAULTS", "OPTIONS", "PIPELINES", "USERS"]

STORE = "/store"
FAULTS = {"target:rot": "a byte of stored rows becomes another one on the disk"}
OPTIONS: dict[str, Sequence[Any]] = {
    "user": tuple(USERS),
    "ledger": ("folder", "kafka"),
    "chunk_rows": (1_000, 3, 1),
    "other_chunks": (False, True),
    "commit_timeout_s": (60.0, 5.0),
    "batch_timeout_s": (None, 20.0),
}
"""``other_chunks``: a later start may have another ``chunk_rows``."""


class Sink(ow.WriteAheadSink):
    """Counts how often it begins anew: each time a chunk may come twice."""

    def _begin_run(self) -> None:
        current().world.beginnings += 1
        super()._begin_run()


class Pipeline(two_phase.Pipeline):
    """See the module."""

    kind = "write_ahead"
    steps = tuple(
        step
        for step in STEPS
        if step not in ("plan", "lease", "check", "offsets", "ledger", "move")
    )
    fixed: Mapping[str, Any] = {"stateful": False}

    def set_up(self, world: Any) -> None:
        super().set_up(world)
        world.receiver = Receiver(world.sim)
        world.beginnings = 0

    def sink(self, world: Any) -> Any:
        setting = world.setting
        note_faults(world)
        chunk_rows = setting.chunk_rows
        if setting.other_chunks and world.starts:
            chunk_rows = 1 + int(world.lots.time.random() * 7)
        return Sink(
            deliver=Deliver(lambda: _rot(world)),
            store=STORE,
            chunk_rows=chunk_rows,
            pipeline_id=PIPELINE_ID,
            ledger=self.ledger(world),
            resume=world.operator.resume or "checkpoint",
            batch_attempts=setting.batch_attempts,
            batch_timeout_s=setting.batch_timeout_s,
            commit_timeout_s=setting.commit_timeout_s,
        )

    def function(self, world: Any, sink: Any) -> Callable[[Frame, int], None]:
        return function_of(world, sink, self.branches(world.setting))

    # ── what must come of it ──

    def judge(self, world: Any) -> list[str]:
        facts = Facts(world)
        return [
            str(violation)
            for violation in (*judge_chain(facts), *judge_deliveries(facts, world.receiver))
        ]


def judge_deliveries(facts: Facts, receiver: Receiver) -> Iterator[Violation]:
    """Who looks at keys has every row once, in order; who does not, one chunk twice for each
    crash, at most.
    """
    world = facts.world
    chain = chain_of(world)
    attempts = _attempts(chain)
    by_key: dict[str, Any] = {}
    newest = (-1, -1)
    for arrival in receiver.arrivals:
        known = by_key.get(arrival.key)
        if known is not None:
            if known.rows != arrival.rows:
                yield Violation(
                    "I4",
                    f"{arrival.key} came with {len(known.rows)} rows, and with "
                    f"{len(arrival.rows)}",
                )
            continue
        by_key[arrival.key] = arrival
        if arrival.attempt not in attempts:
            yield Violation("I5", f"{arrival.key} was delivered, and no ledger record has it")
        if arrival.order < newest and not facts.any_of("target:late"):
            yield Violation("I3", f"{arrival.key} came after rows that follow it")
        newest = max(newest, arrival.order)
    rows = [row for arrival in by_key.values() for row in arrival.rows]
    yield from judge_rows(facts, chain, rows, "who looks at keys")
    twice = len(receiver.arrivals) - len(by_key) - receiver.untold
    if twice > max(0, world.beginnings - 1):
        yield Violation(
            "I2", f"{twice} chunks came once more, and it began anew {world.beginnings - 1} times"
        )
    # Where an id has expired, who stood still for so long may have taken the chain back from a
    # newer one that had not written anything: nobody remembers that one ("An id that expired
    # forgets its owner", ARCHITECTURE.md).
    for number, times in receiver.outlived.items():
        if times > 1 and not world.cluster.ids_forgotten:
            yield Violation(
                "I7",
                f"start {number} has delivered {times} times when a newer one had long opened",
            )
    yield from judge_leftovers(facts, chain, _stored(world), "the store", "I15")


def _attempts(chain: Chain) -> set[str]:
    """As chunks name them."""
    found = set()
    for record in chain.written:
        for output in record.document["outputs"].values():
            if "attempt" in output["data"]:
                owner, number = output["data"]["attempt"]
                name = f"{record.query_id[:8]}-{record.batch_id}-{owner}.{number}"
                found |= {name, f"{name}-mail"}  # the latter in a fan-out
    return found


def _stored(world: Any) -> Iterator[tuple[str, float]]:
    folder = world.files.disk.at(f"{STORE}/{PIPELINE_ID}")
    if folder is not None:
        for name, file in folder.entries.items():
            yield name, file.made_at


def _rot(world: Any) -> None:
    """Before a delivery."""
    if world.lots.fires("target:rot"):
        folder = world.files.disk.at(f"{STORE}/{PIPELINE_ID}")
        files = sorted(name for name, file in folder.entries.items() if file.data)
        if files:
            file = folder.entries[files[world.lots.below("target:rot", len(files))]]
            at = world.lots.below("target:rot", len(file.data))
            file.data = file.data[:at] + bytes([file.data[at] ^ 0x55]) + file.data[at + 1 :]


PIPELINES = (Pipeline,)
