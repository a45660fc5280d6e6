"""Conversations about producers and partitions: sequences, epochs, and what is refused."""

from __future__ import annotations

from onceward.ids import ProducerIdentity
from simulation.model_check.registry import NEW, NEW_V1, conversation
from simulation.model_check.talk import Talk

LAST = 2**31 - 1


def _next_epoch(who: ProducerIdentity, by: int = 1) -> ProducerIdentity:
    return ProducerIdentity(who.producer_id, who.epoch + by)


@conversation()
def sequences_in_order(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.produce(me, "out", 0, 3)
    t.produce(me, "out", 3, 2)
    t.produce(me, "out", 5, 1)
    t.produce(me, "out", 7, 1)  # a gap
    t.produce(me, "out", 6, 1)
    t.read("out")


@conversation()
def a_batch_sent_twice(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.produce(me, "out", 0, 3)
    t.produce(me, "out", 0, 3)
    t.produce(me, "out", 3, 2)
    t.produce(me, "out", 0, 3)
    t.produce(me, "out", 3, 2)
    t.read("out")


@conversation()
def a_repetition_of_another_length(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.produce(me, "out", 0, 3)
    t.produce(me, "out", 0, 2)
    t.produce(me, "out", 1, 2)
    t.produce(me, "out", 0, 4)
    t.read("out")


@conversation()
def five_batches_are_remembered(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    for sequence in range(7):
        t.produce(me, "out", sequence)
    for sequence in range(7):
        t.produce(me, "out", sequence)
    t.produce(me, "out", 7)
    t.produce(me, "out", 2)
    t.read("out")


@conversation()
def an_unknown_producer_begins_anywhere(t: Talk) -> None:
    t.topic("out", 2)
    me = t.idempotent()
    t.produce(me, "out", 5)
    t.produce(me, "out", 6)
    t.produce(me, "out", 0, partition=1)
    t.produce(me, "out", 4, partition=1)
    t.read("out")


@conversation()
def sequences_begin_again_after_the_last(t: Talk) -> None:
    t.topic("out", 2)
    me = t.idempotent()
    t.produce(me, "out", LAST - 1, 2)
    t.produce(me, "out", 0, 2)
    t.produce(me, "out", LAST - 1, 2)
    t.produce(me, "out", LAST - 2, 5, partition=1)  # over the edge within a batch
    t.produce(me, "out", 2, 1, partition=1)
    t.produce(me, "out", LAST - 2, 5, partition=1)
    t.produce(me, "out", 4, 1, partition=1)
    t.read("out", 1)


@conversation()
def a_new_epoch_begins_at_zero(t: Talk) -> None:
    t.topic("out")
    me = t.idempotent()
    t.produce(me, "out", 0)
    t.produce(me, "out", 1)
    t.produce(_next_epoch(me), "out", 2)
    t.produce(_next_epoch(me), "out", 0)
    t.produce(me, "out", 2)
    t.produce(me, "out", 1)
    t.produce(_next_epoch(me), "out", 0)
    t.produce(_next_epoch(me, 5), "out", 0)
    t.read("out")


@conversation()
def without_a_producer_id(t: Talk) -> None:
    t.topic("out")
    nobody = ProducerIdentity(-1, -1)
    t.produce(nobody, "out", -1, 2, acks=1)
    t.produce(nobody, "out", -1, 2, acks=-1)
    t.produce(nobody, "out", -1, 2, acks=7)
    t.read("out")


@conversation()
def a_record_that_is_too_large(t: Talk) -> None:
    t.topic("out", max_message_bytes="2000")
    me = t.idempotent()
    t.produce(me, "out", 0, size=1500)
    t.produce(me, "out", 1, size=2500)
    t.produce(me, "out", 1, size=1500)
    t.read("out")


@conversation()
def a_compacted_topic_wants_keys(t: Talk) -> None:
    t.topic("out", cleanup_policy="compact")
    me = t.idempotent()
    t.produce(me, "out", 0, 2, key=b"k")
    t.produce(me, "out", 2, 2)
    t.produce(me, "out", 2, 1, key=b"k")
    t.read("out")


@conversation()
def topics_and_partitions_that_are_not(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.produce(me, "out", 0, partition=3, patient=False)
    t.produce(me, "nowhere", 0, patient=False)
    t.produce(me, "nowhere", 0, name="id", patient=False)
    t.describe("id")


@conversation()
def a_batch_outside_the_open_transaction(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    t.produce(me, "out", 1)  # of the same producer, and not transactional
    t.produce(me, "out", 1, name="id")
    t.end("id", me, True)
    t.read_settled("out")


@conversation()
def a_transactional_batch_in_no_transaction(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    for version in (10, 11):
        t.produce(me, "out", 0, name="id", version=version)
    t.read("out")
    t.describe("id")


@conversation()
def a_second_partition_that_was_not_added(t: Talk) -> None:
    t.topic("out", 2)
    me = t.init("id")
    t.add("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id", version=11)
    t.produce(me, "out", 0, partition=1, name="id", version=11)
    t.produce(me, "out", 0, partition=1, name="id", version=10)
    t.produce(me, "out", 1, name="id", version=11)
    t.end("id", me, True, version=4)
    t.read_settled("out")
    t.read("out", 1)


@conversation(only=(NEW, NEW_V1))
def a_newer_produce_adds_its_partition(t: Talk) -> None:
    t.topic("out", 2)
    me = t.init("id")
    t.produce(me, "out", 0, name="id", version=12)
    t.describe("id")
    t.produce(me, "out", 0, partition=1, name="id", version=12)
    me = t.end("id", me, True, version=5)
    t.settled("id")
    t.describe("id")
    t.produce(me, "out", 0, name="id", version=12)
    t.end("id", me, False, version=5)
    t.read_settled("out")


@conversation(only=(NEW,))
def an_epochs_first_sequence_is_zero(t: Talk) -> None:
    t.topic("out", 2)
    me = t.init("id")
    t.produce(me, "out", 3, name="id")
    t.produce(me, "out", 0, name="id")
    me = t.end("id", me, True)
    t.settled("id")
    t.produce(me, "out", 1, name="id")
    t.produce(me, "out", 0, name="id")
    t.produce(me, "out", 2, partition=1, name="id")
    t.end("id", me, False)
    t.read_settled("out")


@conversation()
def the_next_transaction_of_an_epoch_goes_on(t: Talk) -> None:
    """Transaction version 1, where nothing raises the epoch but a claim."""
    t.topic("out")
    me = t.init("id")
    t.add("id", me, ("out", 0))
    t.produce(me, "out", 0, 2, name="id", version=11)
    t.end("id", me, True, version=4)
    t.settled("id")
    t.add("id", me, ("out", 0))
    t.produce(me, "out", 0, 1, name="id", version=11)
    t.produce(me, "out", 2, 1, name="id", version=11)
    t.end("id", me, True, version=4)
    t.settled("id")
    me = t.init("id", me)
    t.add("id", me, ("out", 0))
    t.produce(me, "out", 3, 1, name="id", version=11)
    t.produce(me, "out", 0, 1, name="id", version=11)
    t.end("id", me, False, version=4)
    t.read_settled("out")


@conversation()
def a_late_batch_of_a_transaction_that_has_ended(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, name="id")
    after = t.end("id", me, True)
    t.settled("id")
    t.produce(me, "out", 1, name="id")
    t.produce(me, "out", 0, name="id")  # the same once more: a duplicate, or an epoch that is over
    t.produce(me, "out", 1, name="id", version=11)
    t.describe("id")
    t.init("id", after)
    t.read_settled("out")


@conversation()
def acks_of_one_in_a_transaction(t: Talk) -> None:
    t.topic("out")
    me = t.init("id")
    t.join("id", me, ("out", 0))
    t.produce(me, "out", 0, 2, name="id", acks=1)
    t.end("id", me, True)
    t.read_settled("out")
