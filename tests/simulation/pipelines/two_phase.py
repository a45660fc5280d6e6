"""Kafka → Spark → a store with transactions, by an ``ow.TwoPhaseCommitSink`` as a user writes
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onceward as ow
from onceward.events import STEPS
from simulation.judge.chain import Chain
from simulation.judge.decided import judge_end_of_ledger, judge_leftovers, judge_rows, read_ledger
from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation
from simulation.spark.frames import Frame, Plan
from simulation.spark.query import SOURCE
from simulation.world.targets.store import NewerStoreSink, Store, StoreSink

PIPELINE_ID = "orders"
FOLDER, TOPIC = "/ledger", "onceward-ledger"
USERS = {
    "sink": "hands the sink to foreachBatch",
    "frames": "hands over several frames of a batch in one block",
    "tries again": "calls the sink once more when it has failed",
}
OPTIONS: dict[str, Sequence[Any]] = {
    "user": tuple(USERS),
    "ledger": ("folder", "kafka"),
    "newer": (False, True),
    "commit_timeout_s": (60.0, 5.0),
    "batch_timeout_s": (None, 20.0),
}
"""``newer``: at some start the sink is of a later release, whose committables have another
form.
"""

_FAULTS = (
    "user:",
    "clock:",
    "crash:",
    "pause:",
    "spark:",
    "fs:",
    "target:",
    "broker:",
    "net:",
    "answer:",
    "kafka:",
)


class Pipeline:
    """See the module."""

    kind = "two_phase"
    pipeline_id = PIPELINE_ID
    faults: tuple[str, ...] = _FAULTS
    steps = tuple(
        step
        for step in STEPS
        if step not in ("plan", "lease", "check", "offsets", "ledger", "move")
    )
    fixed: Mapping[str, Any] = {"stateful": False}

    def kept_in(self, setting: Any) -> str:
        """The ledger: "folder" or "kafka"."""
        return str(setting.ledger)

    def ledger_folder(self, setting: Any) -> str:
        """Where it is kept in a folder."""
        return FOLDER

    def branches(self, setting: Any) -> list[str]:
        return [f"part-{number}" for number in range(setting.topics)]

    def plan(self, setting: Any) -> Plan:
        names = self.branches(setting)

        def branches(partition: int, offset: int, drawn: int) -> list[str]:
            return names if offset % 7 == 0 else [names[(partition + offset) % len(names)]]

        return Plan.of(setting, branches)

    def set_up(self, world: Any) -> None:
        world.store = Store(world.sim)
        world.faults_before = {}
        world.is_newer = False
        world.cluster.create_topic(SOURCE, world.setting.source_partitions)
        if self.kept_in(world.setting) == "kafka":
            world.cluster.create_topic(TOPIC, 4, compact=True)

    def ledger(self, world: Any) -> Any:
        """As the setting has it."""
        return ledger_of(world)

    def sink(self, world: Any) -> Any:
        setting = world.setting
        note_faults(world)
        if setting.newer and world.starts and world.lots.time.random() < 0.3:
            world.is_newer = True
        kind = NewerStoreSink if world.is_newer else StoreSink
        return kind(
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
            str(violation) for violation in (*judge_chain(facts), *judge_store(facts, world.store))
        ]


def note_faults(world: Any) -> None:
    """How many had happened when this process built its sink."""
    world.faults_before[world.sim.here] = len(world.lots.fired)


def ledger_of(world: Any) -> Any:
    """As the setting has it."""
    if world.pipeline.kept_in(world.setting) != "kafka":
        return ow.FolderLedger(FOLDER)
    setting = world.setting
    return ow.KafkaLedger(
        world.servers(),
        options={
            "transaction.timeout.ms": setting.transaction_timeout_ms,
            "request.timeout.ms": setting.request_timeout_ms,
            "delivery.timeout.ms": max(setting.delivery_timeout_ms, setting.request_timeout_ms),
        },
    )


def function_of(world: Any, sink: Any, branches: Sequence[str]) -> Callable[[Frame, int], None]:
    """What such a user hands to ``foreachBatch``."""
    user = world.setting.user

    def frames(frame: Frame, batch_id: int) -> None:
        with sink.batch(frame, batch_id) as batch:
            for branch in branches:
                batch.write(frame.where(branch))

    def again(frame: Frame, batch_id: int) -> None:
        try:
            sink(frame, batch_id)
        except ow.OncewardError:
            sink(frame, batch_id)

    found: Callable[[Frame, int], None] = {"sink": sink, "frames": frames, "tries again": again}[
        user
    ]
    return found


def chain_of(world: Any) -> Chain:
    """What the ledger of the setting says."""
    kept_in = world.pipeline.kept_in(world.setting)
    return read_ledger(
        world,
        kept_in,
        world.pipeline.ledger_folder(world.setting) if kept_in == "folder" else TOPIC,
        PIPELINE_ID,
    )


def judge_chain(facts: Facts) -> Iterator[Violation]:
    """The ledger by itself."""
    chain = chain_of(facts.world)
    yield from chain.violations
    yield from judge_end_of_ledger(facts, chain)


def name_of(committable: Any) -> str:
    """In the store."""
    return committable if isinstance(committable, str) else str(committable.get("name"))


def judge_store(facts: Facts, store: Store) -> Iterator[Violation]:
    """The store against the source and the ledger."""
    world = facts.world
    chain = chain_of(world)
    yield from judge_rows(
        facts, chain, [row for _, prepared in store.visible for row in prepared.rows], "the store"
    )
    decided = {
        name_of(committable): record.sequence
        for record in chain.written
        for output in record.document["outputs"].values()
        for committable in output["data"].get("committables", ())
    }
    newest = -1
    for name, _ in store.visible:
        sequence = decided.get(name)
        if sequence is None:
            yield Violation("I5", f"{name} is visible, and no ledger record names it")
        elif sequence < newest:
            yield Violation(
                "I3", f"{name} of sequence {sequence} became visible after sequence {newest}"
            )
        newest = max(newest, -1 if sequence is None else sequence)
    for sentence in (*store.misused, *store.too_early):
        yield Violation("I10", sentence)
    still = [(name, prepared.at) for name, prepared in store.prepared.items()]
    yield from judge_leftovers(facts, chain, still, "the store", "I10")


PIPELINES = (Pipeline,)
