"""Kafka → Spark → Kafka: the real ``ow.KafkaSink`` in the simulated world, and users who call it
in various ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onceward as ow
from onceward.errors import UnsupportedQuery
from onceward.events import DELIVER, MOVE, PUBLISH, STEPS
from simulation.judge import CANARY
from simulation.spark.advice import LEDGER
from simulation.spark.frames import Frame, Plan
from simulation.spark.query import SOURCE

PIPELINE_ID = "orders"
USERS = {
    "sink": "hands the sink to foreachBatch",
    "frames": "hands over several frames of a batch in one block",
    "halves": "hands over two frames for each topic in one block",
    "skips": "leaves batches out that have nothing for the sink, which is allowed",
    "leaves out": "leaves batches out that have nothing for the sink, which is refused",
    "swallows": "keeps the sink's errors to itself",
    "twice": "calls the sink twice for a batch, for two topics",
    "two sinks": "calls two sink objects under one pipeline id",
    "built in the function": "builds the sink anew in each batch",
    "persists": "persists the frame, and shares its rows out by a lot that each draws",
    "tries again": "calls the sink once more when it has failed",
    "shrugs": "calls the sink twice for a batch, for two topics, and keeps to itself what the "
    "second one meets",
    "unites": "calls the sink twice for a batch, and when that was refused hands all over in one "
    "block",
}


OPTIONS: dict[str, Sequence[Any]] = {
    "user": tuple(USERS),
    "driver_records": (10_000, 0, 0, 0),
    "ledger_partitions": (4, 16, 1, 0),
}
"""``driver_records``: of a batch that small the driver takes the rows itself.
``ledger_partitions``: 0, it is made by whoever comes first.
"""


class Pipeline:
    """See the module."""

    kind = "kafka"
    pipeline_id = PIPELINE_ID
    ledger_topic = LEDGER
    faults = (
        "net",
        "line",
        "kafka",
        "broker",
        "answer",
        "crash",
        "pause",
        "clock",
        "spark",
        "report",
        "user",
        "fs",
    )
    steps = tuple(step for step in STEPS if step not in (MOVE, PUBLISH, DELIVER))

    def topics(self, setting: Any) -> list[str]:
        return [f"out-{number}" for number in range(setting.topics)]

    def ledger(self, world: Any) -> Any:
        """As ``kafka_source(ledger=…)`` takes it."""
        return None

    def plan(self, setting: Any) -> Plan:
        topics = self.topics(setting)
        several = len(topics)
        skips, by_lot = (
            setting.user in ("skips", "leaves out") and not setting.stateful,
            setting.user == "persists",
        )

        def branches(partition: int, offset: int, drawn: int) -> list[str]:
            if skips and (offset // 5) % 3 == 1:
                return []
            if several == 1:
                return topics
            if by_lot:
                return [topics[drawn % several]]
            return topics if offset % 7 == 0 else [topics[(partition + offset) % several]]

        stateful = setting.stateful
        return Plan(
            branches,
            shuffle=setting.shuffle or stateful,
            # A function that asks by itself whether there are rows reads a computation of its own,
            # and where that is by chance, and a part of it is lost, it may be told that there are
            # none: docs/reference/guarantees.md.
            by_chance=(setting.by_chance or by_lot) and not stateful and not skips,
            tasks=setting.tasks,
            between=setting.between,
            stateful=stateful,
        )

    def set_up(self, world: Any) -> None:
        setting, cluster = world.setting, world.cluster
        cluster.create_topic(SOURCE, setting.source_partitions)
        if setting.ledger_partitions:
            cluster.create_topic(LEDGER, setting.ledger_partitions, compact=True)
        for topic in self.topics(setting):
            cluster.create_topic(topic, setting.output_partitions)

    def sink(self, world: Any) -> Any:
        """As many rows as there are may go to any topic: the rows say."""
        setting = world.setting
        one = setting.user in (
            "twice",
            "two sinks",
            "frames",
            "halves",
            "persists",
            "shrugs",
            "unites",
        )
        return ow.KafkaSink(
            bootstrap_servers=world.servers(),
            pipeline_id=PIPELINE_ID,
            resume=world.operator.resume or "checkpoint",
            skipped_batches="allow" if setting.user == "skips" else "refuse",
            topic=self.topics(setting)[0] if setting.topics == 1 or one else None,
            batch_attempts=setting.batch_attempts,
            driver_records=setting.driver_records,
            options={
                "transaction.timeout.ms": setting.transaction_timeout_ms,
                "request.timeout.ms": setting.request_timeout_ms,
                "delivery.timeout.ms": max(
                    setting.delivery_timeout_ms, setting.request_timeout_ms
                ),
                "compression.type": "none",
                # nobody asks for it: the judge looks where it should not be
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "orders",
                "sasl.password": CANARY,
            },
        )

    def function(self, world: Any, sink: Any) -> Callable[[Frame, int], None]:
        user, topics = world.operator.user, self.topics(world.setting)
        if user == "sink":
            return sink  # type: ignore[no-any-return]

        def frames(frame: Frame, batch_id: int) -> None:
            with sink.batch(frame, batch_id) as batch:
                for topic in topics:
                    batch.write(frame.where(topic), topic=topic)

        def halves(frame: Frame, batch_id: int) -> None:
            with sink.batch(frame, batch_id) as batch:
                for topic in topics:
                    for half in frame.where(topic).in_two():
                        batch.write(half, topic=topic)

        def persists(frame: Frame, batch_id: int) -> None:
            frame.persist()
            frames(frame, batch_id)

        def skips(frame: Frame, batch_id: int) -> None:
            if not frame.isEmpty():
                sink(frame, batch_id)

        def swallows(frame: Frame, batch_id: int) -> None:
            try:
                sink(frame, batch_id)
            except Exception as error:  # noqa: BLE001 — as some do
                _keep(world, error)

        def twice(frame: Frame, batch_id: int) -> None:
            for topic in topics:
                with sink.batch(frame, batch_id) as batch:
                    batch.write(frame.where(topic), topic=topic)

        def shrugs(frame: Frame, batch_id: int) -> None:
            first, *others = topics
            with sink.batch(frame, batch_id) as batch:
                batch.write(frame.where(first), topic=first)
            try:
                for topic in others:
                    with sink.batch(frame, batch_id) as batch:
                        batch.write(frame.where(topic), topic=topic)
            except Exception as error:  # noqa: BLE001 — as some do
                _keep(world, error)

        def unites(frame: Frame, batch_id: int) -> None:
            if world.events.get("refused twice"):
                return frames(frame, batch_id)
            try:
                return twice(frame, batch_id)
            except UnsupportedQuery:
                world.events["refused twice"] = 1  # somebody reads it, and changes the function
                raise

        other: list[Any] = []

        def two_sinks(frame: Frame, batch_id: int) -> None:
            if not other:
                other.append(self.sink(world))
            for which, topic in zip((sink, other[0]), topics, strict=False):
                with which.batch(frame, batch_id) as batch:
                    batch.write(frame.where(topic), topic=topic)

        def built(frame: Frame, batch_id: int) -> None:
            self.sink(world)(frame, batch_id)

        def again(frame: Frame, batch_id: int) -> None:
            try:
                sink(frame, batch_id)
            except ow.OncewardError:
                sink(frame, batch_id)

        found: Callable[[Frame, int], None] = {
            "frames": frames,
            "halves": halves,
            "persists": persists,
            "skips": skips,
            "leaves out": skips,
            "swallows": swallows,
            "twice": twice,
            "two sinks": two_sinks,
            "built in the function": built,
            "tries again": again,
            "shrugs": shrugs,
            "unites": unites,
        }[user]
        return found

    def judge(self, world: Any) -> list[str]:
        """All that is to be said of topics, the judge says of every pipeline."""
        return []


def _keep(world: Any, error: Exception) -> None:
    """What the function keeps to itself the judge has to know."""
    world.events["swallowed"] = world.events.get("swallowed", 0) + 1
    if world.sim.tell is not None:
        world.sim.tell(world.sim.now, world.sim.here.name, f"the function swallows {error!r}")


PIPELINES = (Pipeline,)
