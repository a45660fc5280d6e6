"""Conversations in which brokers die: alone, and one of three."""

from __future__ import annotations

from onceward.ids import ProducerIdentity
from simulation.model_check.registry import conversation
from simulation.model_check.talk import Talk


def _restart(t: Talk) -> None:
    t.side.stop_node(1)
    t.side.start_node(1)


@conversation(restarts=True)
def a_broker_restarts_in_mid_transaction(t: Talk) -> None:
    t.topic("out")
    t.topic("in")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, 2, name="id")
    t.produce(me, "out", 2, 2, name="id")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5})
    _restart(t)
    t.describe("id")
    t.produce(me, "out", 2, 2, name="id")
    t.produce(me, "out", 0, 2, name="id")
    t.produce(me, "out", 4, 1, name="id")
    after = t.end("id", me, True)
    t.settled("id")
    t.describe("id")
    t.end("id", me, True)
    t.init("id", after)
    t.group_settled("group")
    t.group("group")
    t.read_settled("out")


@conversation(restarts=True)
def the_epoch_before_is_forgotten(t: Talk) -> None:
    me = t.init("id")
    second = t.init("id", me)
    _restart(t)
    t.describe("id")
    t.init("id", me)
    third = t.init("id", second)
    t.init("id", second)
    t.init("id", third)


@conversation(restarts=True)
def a_commit_repeated_after_a_restart(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.end("id", me, True)
    t.settled("id")
    _restart(t)
    t.end("id", me, True)
    t.end("id", me, False)
    t.describe("id")
    t.produce(me, "out", 0, name="id")
    t.read_settled("out")


@conversation(restarts=True)
def a_takeover_after_a_restart(t: Talk) -> None:
    t.topic("out")
    old = t.init("id")
    t.join("id", old, ("out", 0))
    t.produce(old, "out", 0, name="id")
    _restart(t)
    t.init("id")
    t.settled("id")
    t.init("id")
    t.produce(old, "out", 1, name="id")
    t.end("id", old, True)
    t.read_settled("out")


@conversation(restarts=True)
def five_batches_are_remembered_over_a_restart(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    for sequence in range(7):
        t.produce(me, "out", sequence)
    _restart(t)
    for sequence in (6, 2, 4, 1):
        t.produce(me, "out", sequence)
    t.produce(me, "out", 7)
    t.read("out")


# ── three nodes ──


@conversation(nodes=3, restarts=True)
def a_leader_dies_in_mid_transaction(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, 2, name="id")
    t.produce(me, "out", 2, 2, name="id")
    leader = t.side.known_leader(t.real("out"), 0)
    t.side.stop_node(leader)
    t.side.wait_for_isr(t.real("out"), 0, 2)
    t.produce(me, "out", 2, 2, name="id")
    t.produce(me, "out", 0, 2, name="id")
    t.produce(me, "out", 4, 1, name="id")
    t.end("id", me, True)
    t.settled("id")
    t.read_settled("out")
    t.side.start_node(leader)
    t.side.wait_for_isr(t.real("out"), 0, 3)
    t.read_settled("out")


@conversation(nodes=3, restarts=True)
def a_coordinator_dies_in_mid_transaction(t: Talk) -> None:
    t.topic("out")
    t.topic("in")
    me = t.init("id")
    second = t.init("id", me)
    t.join("id", second, ("out", 0))
    t.produce(second, "out", 0, 2, name="id")
    t.join_group("id", second, "group")
    t.commit_offsets("id", second, "group", {("in", 0): 5})
    home = t.side.coordinator_of("transaction", t.real("id"))
    t.side.stop_node(home)
    t.side.wait_for_isr(t.real("out"), 0, 2)
    t.describe("id")
    after = t.end("id", second, True)
    t.settled("id")
    t.end("id", second, True)
    t.describe("id")
    t.init("id", me)
    t.init("id", after)
    t.group_settled("group")
    t.group("group")
    t.side.start_node(home)
    t.side.wait_for_isr(t.real("out"), 0, 3)
    t.read_settled("out")


@conversation(nodes=3, restarts=True)
def the_epoch_before_dies_with_its_coordinator(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    second = t.init("id", me)
    home = t.side.coordinator_of("transaction", t.real("id"))
    t.side.stop_node(home)
    t.side.wait_for_isr(t.real("out"), 0, 2)
    t.init("id", me)
    t.init("id", second)
    t.init("id", ProducerIdentity(me.producer_id, 5))
    t.side.start_node(home)
    t.side.wait_for_isr(t.real("out"), 0, 3)
    t.describe("id")


@conversation(nodes=3, restarts=True)
def too_few_replicas(t: Talk) -> None:
    t.topic("strict", min_insync_replicas="3")
    t.topic("loose")
    me, other = t.init("id"), t.idempotent()
    t.join("id", me, ("strict", 0), ("loose", 0))
    t.produce(me, "strict", 0, name="id")
    t.produce(me, "loose", 0, name="id")
    victim = next(
        node
        for node in range(1, 4)
        if node
        not in (
            t.side.known_leader(t.real("strict"), 0),
            t.side.coordinator_of("transaction", t.real("id")),
        )
    )
    t.side.stop_node(victim)
    t.side.wait_for_isr(t.real("strict"), 0, 2)
    t.side.wait_for_isr(t.real("loose"), 0, 2)
    t.produce(me, "strict", 1, name="id", patient=False)
    t.produce(other, "strict", 0, acks=1, patient=False)  # appended, and not committed
    t.ends("strict")
    t.produce(me, "loose", 1, name="id")
    after = t.end("id", me, True)
    t.describe_soon("id")  # the marker cannot be written
    t.end("id", me, True)
    t.init("id", after)
    t.side.start_node(victim)
    t.side.wait_for_isr(t.real("strict"), 0, 3)
    t.settled("id")
    t.produce(other, "strict", 0, acks=1)
    t.read_settled("strict")
    t.read_settled("loose")
