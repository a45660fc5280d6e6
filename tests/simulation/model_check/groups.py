"""Conversations about the offsets of groups that transactions commit."""

from __future__ import annotations

from simulation.model_check.registry import NEW, NEW_V1, conversation
from simulation.model_check.talk import Talk


@conversation()
def offsets_come_with_the_commit(t: Talk) -> None:
    t.topic("in", 2)
    me = t.init("id")
    t.group("group")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5, ("in", 1): 7}, note="n")
    t.describe("id")
    t.group("group", stable=False)
    t.end("id", me, True)
    t.settled("id")
    t.group_settled("group")
    t.group("group")


@conversation()
def offsets_go_with_the_abort(t: Talk) -> None:
    t.topic("in")
    me = t.init("id")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5})
    t.end("id", me, False)
    t.settled("id")
    t.group_settled("group")
    t.group("group")
    t.group("group", topics=[("in", 0)])


@conversation()
def the_first_offsets_of_a_group_are_not_seen_pending(t: Talk) -> None:
    t.topic("in", 2)
    me = t.init("id")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5})
    t.group("group")
    t.group("group", topics=[("in", 0), ("in", 1)])
    t.group("group", stable=False, topics=[("in", 0)])
    t.end("id", me, True)


@conversation()
def later_offsets_are_unstable_while_pending(t: Talk) -> None:
    t.topic("in", 2)
    me = t.init("id")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5})
    me = t.end("id", me, True)
    t.settled("id")
    t.group_settled("group")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 9, ("in", 1): 3})
    t.group("group")
    t.group("group", stable=False)
    t.end("id", me, True)
    t.settled("id")
    t.group_settled("group")
    t.group("group")


@conversation()
def offsets_twice_in_one_transaction(t: Talk) -> None:
    t.topic("in", 2)
    me = t.init("id")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5, ("in", 1): 1}, note="a")
    t.commit_offsets("id", me, "group", {("in", 0): 8}, note="b")
    t.end("id", me, True)
    t.settled("id")
    t.group_settled("group")
    t.group("group")


@conversation()
def two_groups_in_one_transaction(t: Talk) -> None:
    t.topic("in")
    me = t.init("id")
    for group in ("one", "two"):
        t.join_group("id", me, group)
        t.commit_offsets("id", me, group, {("in", 0): 5})
    t.end("id", me, True)
    t.settled("id")
    for group in ("one", "two"):
        t.group_settled(group)
        t.group(group)


@conversation()
def two_owners_of_one_group(t: Talk) -> None:
    t.topic("in")
    a, b = t.init("a"), t.init("b")
    t.join_group("a", a, "group")
    t.join_group("b", b, "group")
    t.commit_offsets("a", a, "group", {("in", 0): 5})
    t.commit_offsets("b", b, "group", {("in", 0): 9})
    t.end("b", b, True)
    t.settled("b")
    t.group("group", stable=False)
    t.end("a", a, True)
    t.settled("a")
    t.group_settled("group")
    t.group("group")  # what was written later stays


@conversation()
def offsets_that_are_refused(t: Talk) -> None:
    t.topic("in")
    me = t.init("id")
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("nowhere", 0): 5})
    t.commit_offsets("id", me, "group", {("in", 9): 5})
    t.commit_offsets("id", me, "group", {("in", 0): 5}, note="x" * 5_000)
    t.commit_offsets("id", me, "group", {("in", 0): 5, ("nowhere", 0): 5})
    t.end("id", me, True)
    t.settled("id")
    t.group_settled("group")
    t.group("group")


@conversation()
def offsets_of_a_group_that_was_not_added(t: Talk) -> None:
    t.topic("in")
    me = t.init("id")
    for version in (3, 4):
        t.commit_offsets("id", me, "group", {("in", 0): 5}, version=version)
    t.describe("id")
    t.group("group")


@conversation(only=(NEW, NEW_V1))
def a_newer_offset_commit_adds_the_group(t: Talk) -> None:
    t.topic("in")
    me = t.init("id")
    t.commit_offsets("id", me, "group", {("in", 0): 5}, version=5)
    t.describe("id")
    t.end("id", me, True, version=5)
    t.settled("id")
    t.group_settled("group")
    t.group("group")


@conversation()
def offsets_of_an_old_owner(t: Talk) -> None:
    t.topic("in")
    old = t.init("id")
    t.join_group("id", old, "group")
    t.commit_offsets("id", old, "group", {("in", 0): 5})
    t.init("id")
    t.settled("id")
    new = t.init("id")
    t.commit_offsets("id", old, "group", {("in", 0): 6})
    t.join_group("id", new, "group")
    t.commit_offsets("id", new, "group", {("in", 0): 7})
    t.commit_offsets("id", old, "group", {("in", 0): 8})
    t.end("id", new, True)
    t.settled("id")
    t.group_settled("group")
    t.group("group")


@conversation()
def a_timeout_with_nothing_but_offsets(t: Talk) -> None:
    t.topic("in")
    me = t.init("id", timeout_ms=500)
    t.join_group("id", me, "group")
    t.commit_offsets("id", me, "group", {("in", 0): 5})
    t.timed_out("id")
    t.describe("id")
    t.commit_offsets("id", me, "group", {("in", 0): 6})
    t.end("id", me, True)
    t.group_settled("group")
    t.group("group")
    t.group("group", topics=[("in", 0)])


@conversation()
def a_batch_as_onceward_writes_it(t: Talk) -> None:
    t.topic("in", 2)
    t.topic("out", 2)
    t.topic("ledger", cleanup_policy="compact")
    me = t.init("id")
    sequences = {"out": 0, "ledger": 0}
    for round_ in range(3):
        t.join("id", me, ("out", 0), ("out", 1), ("ledger", 0))
        t.produce(me, "out", sequences["out"], 2, name="id")
        t.produce(me, "out", sequences["out"], 2, partition=1, name="id")
        t.join_group("id", me, "group")
        t.commit_offsets("id", me, "group", {("in", 0): round_ + 1, ("in", 1): round_ + 1})
        t.produce(me, "ledger", sequences["ledger"], name="id", key=b"k")
        t.describe("id")
        me = t.end("id", me, True)
        t.settled("id")
        if t.side.transaction_version == 1:
            me = t.init("id", me)
    t.group_settled("group")
    t.group("group")
    t.read_settled("out")
    t.read_settled("ledger")
