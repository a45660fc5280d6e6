"""In-order retries of one partition, against a model of what a broker accepts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.kafka.wire.appends.produce_frame import WINDOW, PartitionQueue


def drain(queue: PartitionQueue) -> list[int]:
    """Send whatever may be sent now."""
    sent = []
    while (position := queue.next_to_send()) is not None:
        queue.sent(position)
        sent.append(position)
    return sent


def test_no_more_than_five_are_outstanding() -> None:
    queue = PartitionQueue(9)
    assert drain(queue) == [0, 1, 2, 3, 4]
    queue.acknowledged(0)
    assert drain(queue) == [5]


def test_the_first_batch_of_an_epoch_travels_alone() -> None:
    queue = PartitionQueue(9, first_alone=True)
    assert drain(queue) == [0]
    queue.failed(0)
    assert drain(queue) == [0]
    queue.acknowledged(0)
    assert drain(queue) == [1, 2, 3, 4, 5]


def test_after_a_failure_nothing_is_sent_until_everything_is_answered() -> None:
    queue = PartitionQueue(9)
    drain(queue)
    queue.failed(0)
    for position in (1, 2, 3):
        queue.failed(position)
        assert drain(queue) == []
    queue.failed(4)
    assert drain(queue) == [0, 1, 2, 3, 4]


def test_what_was_acknowledged_after_the_failure_is_not_sent_again() -> None:
    queue = PartitionQueue(4)
    drain(queue)
    queue.failed(0)
    for position in (1, 2):
        queue.acknowledged(position)
    queue.failed(3)
    assert drain(queue) == [0, 3]


def test_only_the_first_unacknowledged_batch_can_have_lost_the_sequence_by_itself() -> None:
    queue = PartitionQueue(3)
    drain(queue)
    assert queue.is_first_open(0)
    assert not queue.is_first_open(1)
    queue.acknowledged(0)
    assert queue.is_first_open(1)


class Broker:
    """A partition leader's memory of one producer: next sequence, and the last five batches for
    duplicates.

    The first batch that it sees may have any sequence, as with brokers before 4.0.
    """

    def __init__(self) -> None:
        self.log: list[int] = []

    def append(self, position: int) -> bool:
        if position in self.log[-WINDOW:]:
            return True  # a duplicate, acknowledged again
        if self.log and position != self.log[-1] + 1:
            return False  # out of order
        self.log.append(position)
        return True


@given(count=st.integers(1, 40), seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.1, 0.5]))
def test_whatever_gets_lost_each_batch_ends_up_in_the_log_once_and_in_order(
    count: int, seed: int, loss: float
) -> None:
    chance = random.Random(seed)
    queue, broker, wire = PartitionQueue(count, first_alone=True), Broker(), list[int]()
    for _ in range(10_000):
        if queue.done:
            break
        wire += drain(queue)
        position = wire.pop(0)  # one connection: requests are handled in order
        arrived = chance.random() >= loss
        accepted = arrived and broker.append(position)
        if accepted and chance.random() >= loss:
            queue.acknowledged(position)
        else:
            queue.failed(position)
    assert queue.done
    assert broker.log == list(range(count))


def test_done_only_when_all_are_acknowledged() -> None:
    queue = PartitionQueue(2)
    drain(queue)
    queue.acknowledged(1)
    assert not queue.done
    queue.acknowledged(0)
    assert queue.done


@pytest.mark.parametrize("count", [0, 1])
def test_short_queues(count: int) -> None:
    queue = PartitionQueue(count)
    assert drain(queue) == list(range(count))
    assert queue.done is (count == 0)
