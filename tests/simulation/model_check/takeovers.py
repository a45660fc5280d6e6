"""Conversations about who has a transactional id: takeovers, claims, timeouts, and epochs that run
out.
"""

from __future__ import annotations

from onceward.ids import ProducerIdentity
from simulation.model_check.registry import conversation
from simulation.model_check.talk import Talk


def _as(who: ProducerIdentity, *, epoch: int = 0, producer: int = 0) -> ProducerIdentity:
    return ProducerIdentity(who.producer_id + producer, who.epoch + epoch)


@conversation()
def a_takeover_of_an_idle_id(t: Talk) -> None:
    t.topic("out")
    old = t.init("id")
    t.join("id", old, ("out", 0))
    t.produce(old, "out", 0, name="id")
    old = t.end("id", old, True)
    t.settled("id")
    new = t.init("id")
    t.produce(old, "out", 0, name="id")
    t.add("id", old, ("out", 0))
    t.commit_offsets("id", old, "group", {("out", 0): 5})
    t.end("id", old, True)
    t.end("id", old, False)
    t.init("id", old)
    t.describe("id")
    t.join("id", new, ("out", 0))
    t.produce(new, "out", 0, name="id")
    t.produce(old, "out", 1, name="id")
    t.end("id", new, True)
    t.read_settled("out")


@conversation()
def a_takeover_of_an_open_transaction(t: Talk) -> None:
    t.topic("out")
    old = t.init("id")
    t.join("id", old, ("out", 0))
    t.produce(old, "out", 0, 2, name="id")
    t.init("id")  # the open transaction is aborted first
    t.settled("id")
    t.describe("id")
    t.produce(old, "out", 2, name="id")
    t.end("id", old, True)
    t.end("id", old, False)
    new = t.init("id")
    t.describe("id")
    t.produce(old, "out", 2, name="id")
    t.end("id", old, True)
    t.init("id", old)
    t.join("id", new, ("out", 0))
    t.produce(new, "out", 0, name="id")
    t.end("id", new, True)
    t.read_settled("out")


@conversation()
def a_claim_of_the_next_epoch(t: Talk) -> None:
    me = t.init("id")
    second = t.init("id", me)
    t.init("id", me)  # its answer was lost: the same once more
    t.init("id", me)
    third = t.init("id", second)
    t.init("id", me)
    t.init("id", third)
    t.init("id", _as(me, producer=100_000))
    t.describe("id")


@conversation()
def a_claim_after_a_takeover(t: Talk) -> None:
    me = t.init("id")
    second = t.init("id", me)
    new = t.init("id")
    t.init("id", second)
    t.init("id", me)
    t.init("id", new)
    t.describe("id")


@conversation()
def a_claim_in_ones_own_open_transaction(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.init("id", me)
    t.settled("id")
    t.describe("id")
    t.init("id", me)
    t.init("id", _as(me, epoch=1))
    t.describe("id")
    t.init("id", me)
    t.read_settled("out")


@conversation()
def an_old_copys_claim_in_the_newer_ones_transaction(t: Talk) -> None:
    t.topic("out")
    old = t.init("id")
    new = t.init("id")
    t.join("id", new, ("out", 0))
    t.produce(new, "out", 0, name="id")
    t.init("id", old)
    t.settled("id")
    t.describe("id")
    t.init("id", old)
    t.end("id", new, True)
    t.init("id", new)
    t.describe("id")
    t.read_settled("out")


@conversation()
def a_transaction_that_takes_too_long(t: Talk) -> None:
    t.topic("out")
    me = t.init("id", timeout_ms=500)
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, 2, name="id")
    t.timed_out("id")
    t.describe("id")
    t.produce(me, "out", 2, name="id")
    t.commit_offsets("id", me, "group", {("out", 0): 5})
    t.end("id", me, True)
    t.end("id", me, False)
    t.describe("id")
    t.init("id", me)
    t.init("id", _as(me, epoch=1))
    t.describe("id")
    t.read_settled("out")


@conversation()
def after_the_timeout_the_next_epoch_is_claimed(t: Talk) -> None:
    t.topic("out")
    me = t.init("id", timeout_ms=500)
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.timed_out("id")
    me = t.init("id", _as(me, epoch=1), timeout_ms=60_000)
    t.describe("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.end("id", me, True)
    t.read_settled("out")


@conversation()
def after_the_timeout_somebody_takes_over(t: Talk) -> None:
    t.topic("out")
    me = t.init("id", timeout_ms=500)
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.timed_out("id")
    new = t.init("id")
    t.init("id", me)
    t.init("id", _as(me, epoch=1))
    t.end("id", me, True)
    t.init("id", new)
    t.describe("id")


@conversation()
def a_timeout_twice_in_a_row(t: Talk) -> None:
    t.topic("out")
    me = t.init("id", timeout_ms=500)
    for _ in range(2):
        t.join("id", me, ("out", 0))
        t.produce(me, "out", 0, name="id")
        t.timed_out("id")
        t.describe("id")
        next_one = me if t.side.transaction_version == 2 else _as(me, epoch=1)
        me = t.init("id", next_one, timeout_ms=500)
    t.read_settled("out")


@conversation(long=True)
def epochs_run_out(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    while me.epoch < 32_764:
        me = t.init("id", me, quiet=True)
    for _ in range(2):
        me = t.init("id", me)
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.describe("id")
    after = t.end("id", me, True)
    t.settled("id")
    t.describe("id")
    t.end("id", me, True)
    t.init("id", me)
    t.init("id", after)
    t.init("id")
    t.describe("id")
    t.read_settled("out")


@conversation(long=True)
def epochs_run_out_at_a_takeover(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    while me.epoch < 32_766:
        me = t.init("id", me, quiet=True)
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.init("id")
    t.settled("id")
    t.describe("id")
    new = t.init("id")
    t.init("id", me)
    t.join("id", new, ("out", 0))
    t.produce(new, "out", 0, name="id")
    t.end("id", new, True)
    t.settled("id")
    t.read_settled("out")
