"""Conversations about transactional ids: who has one, how a transaction ends, and what its records
come to.
"""

from __future__ import annotations

from onceward.ids import ProducerIdentity
from simulation.model_check.registry import NEW, NEW_V1, conversation
from simulation.model_check.talk import Talk


def _as(who: ProducerIdentity, *, epoch: int = 0, producer: int = 0) -> ProducerIdentity:
    return ProducerIdentity(who.producer_id + producer, who.epoch + epoch)


@conversation()
def a_transaction_is_committed(t: Talk) -> None:
    t.topic("out", 2)
    me = t.init("id")
    t.describe("id")
    t.join("id", me, ("out", 0), ("out", 1))
    t.produce(me, "out", 0, 3, name="id")
    t.produce(me, "out", 0, 1, partition=1, name="id")
    t.describe("id")
    t.read("out")
    t.read("out", committed=True)
    t.ends("out")
    t.end("id", me, True)
    t.settled("id")
    t.describe("id")
    t.read_settled("out")
    t.read_settled("out", 1)
    t.ends("out")


@conversation()
def a_transaction_is_aborted(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, 2, name="id")
    t.end("id", me, False)
    t.settled("id")
    t.describe("id")
    t.read_settled("out")


@conversation()
def one_after_the_other(t: Talk) -> None:
    t.topic("out", 2)
    me = t.init("id")
    sequences = [0, 0]
    for round_, commit in enumerate((True, False, True, True)):
        t.join("id", me, ("out", 0), ("out", 1))
        for partition in (0, 1):
            t.produce(me, "out", sequences[partition], 2, partition=partition, name="id")
            sequences[partition] = (
                0 if t.side.transaction_version == 2 else sequences[partition] + 2
            )
        me = t.end("id", me, commit)
        t.settled("id")
        t.say("round", round_)
    t.read_settled("out")
    t.read_settled("out", 1)


@conversation()
def several_leaders_in_one_request(t: Talk) -> None:
    t.topic("out", 3)
    me = t.init("id")
    t.join("id", me, ("out", 0), ("out", 1), ("out", 2))
    t.produce_many(me, [("out", 0, 2), ("out", 1, 1), ("out", 2, 3)], name="id")
    t.produce_many(me, [("out", 0, 2), ("out", 1, 1), ("out", 2, 3)], name="id")  # the same again
    t.end("id", me, True)
    t.settled("id")
    for partition in range(3):
        t.read_settled("out", partition)


@conversation()
def nothing_in_it(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    me = t.end("id", me, True)
    t.describe("id")
    me = t.end("id", me, False)
    t.settled("id")
    t.describe("id")
    me = t.end("id", me, False)
    t.settled("id")
    t.end("id", me, True)
    t.describe("id")
    t.init("id", me)


@conversation()
def a_commit_asked_for_twice(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    after = t.end("id", me, True)
    t.settled("id")
    t.end("id", me, True)
    t.end("id", me, True)
    t.end("id", after, True)
    t.describe("id")
    t.read_settled("out")


@conversation()
def an_abort_asked_for_twice(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    after = t.end("id", me, False)
    t.settled("id")
    t.end("id", me, False)
    t.end("id", after, False)
    t.settled("id")
    t.describe("id")
    t.read_settled("out")


@conversation()
def an_abort_after_the_commit(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    after = t.end("id", me, True)
    t.settled("id")
    t.end("id", me, False)
    t.describe("id")
    t.end("id", after, False)
    t.settled("id")
    t.describe("id")
    t.read_settled("out")


@conversation()
def a_commit_after_the_abort(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    after = t.end("id", me, False)
    t.settled("id")
    t.end("id", me, True)
    t.end("id", after, True)
    t.describe("id")
    t.read_settled("out")


@conversation()
def wrong_identities(t: Talk) -> None:
    t.topic("out")
    first = t.init("id")
    me = t.init("id", first)
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    for other in (
        _as(me, epoch=-1),
        _as(me, epoch=1),
        _as(me, epoch=7),
        _as(me, producer=100_000),
    ):
        t.end("id", other, True)
        t.end("id", other, False)
        t.add("id", other, ("out", 0))
        t.add_offsets("id", other, "group")
        t.init("id", other)
        t.settled("id")
        t.describe("id")
    t.read_settled("out")


@conversation()
def wrong_identities_where_nothing_is_open(t: Talk) -> None:
    t.topic("out")
    t.init("id")
    me = t.init("id")
    for other in (_as(me, epoch=-1), _as(me, epoch=1), _as(me, producer=100_000)):
        t.end("id", other, True)
        t.end("id", other, False)
        t.add("id", other, ("out", 0))
        t.produce(other, "out", 0, name="id")
        t.describe("id")
    t.init("id", _as(me, epoch=1))
    t.init("id", _as(me, epoch=-1))
    t.init("id", _as(me, producer=100_000))
    t.describe("id")


@conversation()
def an_id_that_nobody_knows(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.describe("id")
    t.end("id", me, True)
    t.end("id", me, False)
    t.add("id", me, ("out", 0))
    t.add_offsets("id", me, "group")
    t.commit_offsets("id", me, "group", {("out", 0): 1})
    t.produce(me, "out", 0, name="id")
    t.describe("id")


@conversation()
def an_older_owners_identity_for_a_forgotten_id(t: Talk) -> None:
    me = t.idempotent()
    t.init("id", ProducerIdentity(me.producer_id, 7))
    t.describe("id")


@conversation()
def what_init_refuses(t: Talk) -> None:
    me = t.init("id")
    t.init("id", timeout_ms=900_001)
    t.init("id", timeout_ms=0)
    t.init("id", timeout_ms=-5)
    t.init("id", timeout_ms=900_000)
    t.init("id", ProducerIdentity(me.producer_id, -1))
    t.init("id", ProducerIdentity(-1, 3))
    t.describe("id")


@conversation()
def a_neighbours_open_transaction_holds_readers(t: Talk) -> None:
    t.topic("out")
    mine, theirs = t.init("mine"), t.init("theirs")
    t.join("theirs", theirs, ("out", 0))
    t.join("mine", mine, ("out", 0))
    t.produce(mine, "out", 0, 2, name="mine")
    t.produce(theirs, "out", 0, 1, name="theirs")
    t.end("mine", mine, True)
    t.settled("mine")
    t.read("out", committed=True)
    t.ends("out")
    t.produce(t.idempotent(), "out", 0)
    t.read("out", committed=True)
    t.end("theirs", theirs, False)
    t.settled("theirs")
    t.read_settled("out")
    t.ends("out")


@conversation()
def aborted_transactions_are_named_to_readers(t: Talk) -> None:
    t.topic("out")
    a, b = t.init("a"), t.init("b")
    t.join("a", a, ("out", 0))
    t.join("b", b, ("out", 0))
    t.produce(a, "out", 0, 2, name="a")
    t.produce(b, "out", 0, 2, name="b")
    t.produce(a, "out", 2, 1, name="a")
    t.end("a", a, False)
    t.settled("a")
    t.produce(b, "out", 2, 1, name="b")
    t.end("b", b, False)
    t.settled("b")
    t.read_settled("out")
    t.read("out", offset=5, committed=True)
    t.read("out", offset=6, committed=True)


@conversation()
def a_topic_deleted_in_mid_transaction(t: Talk) -> None:
    t.topic("out")
    t.topic("gone")
    me = t.init("id")
    t.join("id", me, ("out", 0), ("gone", 0))
    t.produce(me, "out", 0, name="id")
    t.produce(me, "gone", 0, name="id")
    t.side.delete_topic(t.real("gone"))
    me = t.end("id", me, True)
    t.settled("id")
    t.describe("id")
    t.read_settled("out")


@conversation()
def partitions_that_cannot_be_added(t: Talk) -> None:
    t.topic("out", 2)
    me = t.init("id")
    t.add("id", me, ("out", 0), ("nowhere", 0))
    t.describe("id")
    t.add("id", me, ("out", 0), ("out", 7))
    t.add("id", me, ("out", 0))
    t.add("id", me, ("out", 0))
    t.add("id", me, ("out", 0), ("out", 1))
    t.describe("id")
    t.end("id", me, False, version=4)
    t.settled("id")
    t.add("id", me, ("out", 0))
    t.describe("id")


@conversation(only=(NEW, NEW_V1))
def the_two_versions_mixed(t: Talk) -> None:
    """A client of transaction version 1 on brokers of 2, and the other way round, in one
    transaction.
    """
    t.topic("out")
    me = t.init("id")
    t.produce(me, "out", 0, name="id", version=12)
    t.end("id", me, True, version=4)
    t.settled("id")
    t.describe("id")
    t.add("id", me, ("out", 0))
    t.produce(me, "out", 1, name="id", version=11)
    me = t.end("id", me, True, version=5)
    t.settled("id")
    t.describe("id")
    t.add("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id", version=11)
    t.end("id", me, False, version=4)
    t.settled("id")
    t.end("id", me, False, version=5)
    t.settled("id")
    t.describe("id")
    t.read_settled("out")
