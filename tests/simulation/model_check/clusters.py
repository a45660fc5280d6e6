"""Conversations about topics, offsets of logs, and the cluster itself."""

from __future__ import annotations

from simulation.model_check.registry import conversation
from simulation.model_check.talk import Talk


@conversation()
def topics_are_made(t: Talk) -> None:
    t.create("out", 2, cleanup_policy="compact")
    t.create("out", 2)
    t.create("!not a name")
    t.create("none", 0)
    t.create("many", -3)
    t.create("wide", 1, 7)
    t.create("odd", 1, -1, no_such_setting="1")
    t.topic_config("out", "cleanup.policy", "max.message.bytes", "retention.ms")
    t.topic_config("none", "cleanup.policy")


@conversation()
def what_metadata_say(t: Talk) -> None:
    t.topic("out", 2)
    t.metadata("out")
    t.metadata("nowhere")
    t.metadata("!not a name")


@conversation()
def the_transaction_protocol(t: Talk) -> None:
    t.transaction_version()


@conversation()
def offsets_out_of_range(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.produce(me, "out", 0, 3)
    t.produce(me, "out", 3, 3)
    t.read("out", offset=1)
    t.read("out", offset=6)
    t.read("out", offset=7)
    t.side.delete_records(t.real("out"), 0, 4)
    t.ends("out")
    t.read("out", offset=2)
    t.read("out", offset=4)
    t.produce(me, "out", 3, 3)  # still remembered
    t.produce(me, "out", 6, 1)
    t.ends("out")


@conversation()
def topics_that_come_back_are_new(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.produce(me, "out", 0, 3)
    t.side.delete_topic(t.real("out"))
    t.metadata("out")
    t.topic("out")
    t.ends("out")
    t.produce(me, "out", 7)
    t.read("out")
