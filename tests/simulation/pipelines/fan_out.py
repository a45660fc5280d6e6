"""Kafka → Spark → several targets, by ``ow.FanOut``: one of them decides, or the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from marshal import loads
from typing import Any

import onceward as ow
from onceward.events import STEPS
from simulation.judge import logs
from simulation.judge.decided import judge_rows
from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation
from simulation.kernel import current
from simulation.pipelines import files, two_phase, write_ahead
from simulation.pipelines.two_phase import (
    PIPELINE_ID,
    USERS,
    chain_of,
    judge_chain,
    judge_store,
    name_of,
)
from simulation.spark.frames import Frame
from simulation.world.targets.receiver import Receiver

__all__ = ["OPTIONS", "PIPELINES", "USERS"]

OPTIONS: dict[str, Sequence[Any]] = {
    **files.OPTIONS,
    **write_ahead.OPTIONS,
    **two_phase.OPTIONS,
    "targets": ("store mail", "store files", "mail files", "store mail files", "store kafka",
    "mail kafka",
                "files kafka", "store mail kafka"),
    "batch_timeout_s": (None,),
    "shares": (False, True),
}  # fmt: skip
"""``targets``: where there is "kafka", its commit decides. ``shares``: the targets get different
rows.
"""


class Pipeline(two_phase.Pipeline):
    """See the module."""

    kind = "fan_out"
    faults = (*two_phase.Pipeline.faults, "line:")
    steps = tuple(step for step in STEPS if step not in ("move",))
    fixed: Mapping[str, Any] = {
        "stateful": False,
        "user": "sink",
        "driver_records": 0,
        "operator": "nobody",
    }

    def kept_in(self, setting: Any) -> str:
        return "kafka" if "kafka" in setting.targets else str(setting.ledger)

    def set_up(self, world: Any) -> None:
        super().set_up(world)
        self._store, self._mail, self._files = (
            two_phase.Pipeline(),
            write_ahead.Pipeline(),
            files.Pipeline(),
        )
        setting = world.setting
        world.receiver, world.beginnings = Receiver(world.sim), 0
        world.readers = files.Reader(world)
        if "kafka" in setting.targets:
            for branch in self.branches(setting):
                world.cluster.create_topic(branch, setting.output_partitions)
        if "files" in setting.targets:
            world.sim.spawn(world.sim.outside, world.readers.read, name="reader")

    def sink(self, world: Any) -> Any:
        setting = world.setting
        makers: dict[str, Callable[[Any], Any]] = {
            "store": self._store.sink,
            "mail": self._mail.sink,
            "files": self._files.sink,
            "kafka": self._kafka,
        }
        sinks = {name: makers[name](world) for name in setting.targets.split()}
        selects: dict[str, Any] = (
            {name: _share(number) for number, name in enumerate(sinks)} if setting.shares else {}
        )
        return ow.FanOut(sinks, select=selects)

    def _kafka(self, world: Any) -> Any:
        setting = world.setting
        return ow.KafkaSink(
            bootstrap_servers=world.servers(),
            pipeline_id=PIPELINE_ID,
            topic=None if setting.topics > 1 else self.branches(setting)[0],
            batch_attempts=setting.batch_attempts,
            driver_records=setting.driver_records,
            options={
                "transaction.timeout.ms": setting.transaction_timeout_ms,
                "request.timeout.ms": setting.request_timeout_ms,
                "delivery.timeout.ms": max(
                    setting.delivery_timeout_ms, setting.request_timeout_ms
                ),
                "compression.type": "none",
            },
        )

    def function(self, world: Any, sink: Any) -> Callable[[Frame, int], None]:
        return sink  # type: ignore[no-any-return]

    # ── what must come of it ──

    def judge(self, world: Any) -> list[str]:
        facts = Facts(world)
        return [str(violation) for violation in _judged(facts, world)]


def _judged(facts: Facts, world: Any) -> Iterator[Violation]:
    """Each target by itself; and none had a batch before all had the one before it."""
    yield from judge_chain(facts)
    names = world.setting.targets.split()
    everything = world.plan.branches
    for number, name in enumerate(names):
        if world.setting.shares:
            world.plan = world.plan._replace(branches=_shared(everything, number))
        judge = {"store": _store, "mail": _mail, "files": _files, "kafka": _topics}[name]
        yield from judge(facts, world)
    world.plan = world.plan._replace(branches=everything)
    yield from _in_step(world, names)


def _store(facts: Facts, world: Any) -> Iterator[Violation]:
    return judge_store(facts, world.store)


def _mail(facts: Facts, world: Any) -> Iterator[Violation]:
    return write_ahead.judge_deliveries(facts, world.receiver)


def _files(facts: Facts, world: Any) -> Iterator[Violation]:
    return files.judge_files(facts, world.readers)


def _topics(facts: Facts, world: Any) -> Iterator[Violation]:
    rows = []
    for topic in world.pipeline.branches(world.setting):
        for partition in range(world.setting.output_partitions):
            reading = logs.read(world.cluster, topic, partition)
            yield from reading.violations
            for written in reading.visible:
                rows.extend(loads(written.body)[2])  # noqa: S302 — the simulation's own
    chain = chain_of(world)
    yield from judge_rows(facts, chain, rows, "the topics")


def _in_step(world: Any, names: Sequence[str]) -> Iterator[Violation]:
    """By the two targets that know when something became visible."""
    if "store" not in names or "mail" not in names:
        return
    decided = {
        name_of(committable): record.sequence
        for record in chain_of(world).written
        for output in record.document["outputs"].values()
        for committable in output["data"].get("committables", ())
    }
    first: dict[str, dict[int, float]] = {"store": {}, "mail": {}}
    last: dict[str, dict[int, float]] = {"store": {}, "mail": {}}
    seen = [
        ("store", decided.get(name, -1), prepared.at) for name, prepared in world.store.visible
    ]
    known: set[str] = set()
    for arrival in world.receiver.arrivals:
        if arrival.key not in known:
            known.add(arrival.key)
            seen.append(("mail", arrival.order[0], arrival.at))
    for target, sequence, at in seen:
        first[target].setdefault(sequence, at)
        last[target][sequence] = at
    for one, other in (("store", "mail"), ("mail", "store")):
        for sequence, at in last[one].items():
            later = [
                begun for number, begun in first[other].items() if number > sequence and begun < at
            ]
            if later:
                yield Violation(
                    "I3",
                    f"{one} had sequence {sequence} at {at:.3f} s, and {other} a later one before",
                )


def _share(number: int) -> Callable[[Frame], Frame]:
    """A user's function in ``select=``: the first target gets all but the last branch's rows, and
    so on.
    """

    def select(frame: Frame) -> Frame:
        names = frame.computed.query.world.pipeline.branches(frame.computed.query.world.setting)
        return frame.where(*_of_share(names, number))

    return select


def _of_share(names: Sequence[str], number: int) -> list[str]:
    return [name for index, name in enumerate(names) if index != number] or list(names)


def _shared(
    everything: Callable[..., list[str]], number: int
) -> Callable[[int, int, int], list[str]]:
    """Which of a record's rows a target gets."""

    def branches(partition: int, offset: int, drawn: int) -> list[str]:
        world = current().world
        mine = _of_share(world.pipeline.branches(world.setting), number)
        return [branch for branch in everything(partition, offset, drawn) if branch in mine]

    return branches


PIPELINES = (Pipeline,)
