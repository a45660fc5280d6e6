"""Whoever waits asks whether anybody still does; and what waits together ends together."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future

import pytest

from onceward import patience
from onceward.engine.ending import Ending
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import converse
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api
from onceward.spark.batch.job import JobInterrupted
from support.errors import raises

HOURS_S = 36_000.0


class Pointless(Exception):
    pass


def after(times: int) -> patience.ShouldStop:
    left = [times]

    def ask() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Pointless

    return ask


def test_a_wait_for_an_answer_ends_when_it_has_become_pointless() -> None:
    with patience.asking(after(3)), pytest.raises(Pointless):
        patience.result(Future(), HOURS_S)


def test_a_wait_for_the_first_of_several_answers_ends_when_it_has_become_pointless() -> None:
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    with patience.asking(after(3)), pytest.raises(Pointless):
        patience.next_in(answers, HOURS_S)
    with patience.asking(lambda: None), pytest.raises(queue.Empty):
        patience.next_in(answers, 0.3)
    with patience.asking(lambda: answers.put("here")):
        assert patience.next_in(answers, HOURS_S) == "here"


def test_a_pause_ends_when_it_has_become_pointless() -> None:
    with patience.asking(after(3)), pytest.raises(Pointless):
        patience.pause(HOURS_S)


def test_a_conversation_that_nobody_answers_ends_when_it_has_become_pointless() -> None:
    def lost(_: float) -> None:
        raise ConnectionLost("no answer")

    with patience.asking(after(5)), pytest.raises(Pointless):
        converse(Api.METADATA, "the cluster", lost, lambda _: [0], Deadline(HOURS_S * 1000))


def test_an_answer_that_comes_while_others_are_asked_is_taken() -> None:
    answer: Future[str] = Future()

    def ask() -> None:
        if not answer.done():
            answer.set_result("here")

    with patience.asking(ask):
        assert patience.result(answer, HOURS_S) == "here"


def test_an_answer_that_does_not_come_in_time_is_missed_whoever_asks() -> None:
    with patience.asking(lambda: None), pytest.raises(TimeoutError):
        patience.result(Future(), 0.3)
    with pytest.raises(TimeoutError):
        patience.result(Future(), 0.01)


def test_all_that_was_said_around_a_wait_is_asked_and_nothing_afterwards() -> None:
    heard: list[str] = []
    with (
        patience.asking(lambda: heard.append("outer")),
        patience.asking(lambda: heard.append("inner")),
    ):
        patience.ask()
    patience.ask()
    assert heard == ["outer", "inner"]


def test_an_answer_that_has_to_wait_itself_is_not_asked_for_meanwhile() -> None:
    """Whether a transaction is late may have to be asked of a broker."""
    heard: list[str] = []

    def ask() -> None:
        heard.append("asked")
        patience.pause(0.001)
        patience.ask()

    with patience.asking(ask):
        patience.ask()
    assert heard == ["asked"]


def test_another_thread_asks_only_what_was_carried_to_it() -> None:
    heard: list[str] = []

    def work() -> None:
        patience.ask()

    with patience.asking(lambda: heard.append("asked")):
        threads = [threading.Thread(target=work), threading.Thread(target=patience.carried(work))]
    for thread in threads:
        thread.start()
        thread.join()
    assert heard == ["asked"]


def test_no_deadline_is_later_than_that_of_the_whole() -> None:
    with patience.within(50_000):
        assert Deadline(900_000).remaining_ms <= 50_000
        with patience.within(700_000):
            assert Deadline(900_000).remaining_ms <= 50_000
        assert Deadline(10).remaining_ms <= 10
    assert Deadline(900_000).remaining_ms > 800_000


def test_a_call_in_a_thread_of_its_own_is_not_waited_for_beyond_the_time_of_the_whole() -> None:
    class Late(Exception):
        pass

    over, left_behind = threading.Event(), list[bool]()
    with patience.within(200), pytest.raises(Late):
        patience.in_time(
            over.wait, HOURS_S, "silent", late=Late(), abandon=lambda: left_behind.append(True)
        )
    over.set()
    assert left_behind == [True]
    assert patience.in_time(over.wait, HOURS_S, "answers", late=Late(), abandon=over.clear)


def test_a_call_that_begins_when_the_time_of_the_whole_is_over_is_waited_for_a_moment() -> None:
    """An attempt in a lake that hangs has used it up, and then its ledger, which is well, is asked
    what became of it."""
    begun = threading.Event()

    def answers() -> str:
        begun.wait(0.1)
        return "here"

    with patience.within(0):
        late = ValueError("late")
        assert patience.in_time(answers, HOURS_S, "well", late=late, abandon=lambda: None)


def test_a_call_that_raises_a_timeout_of_its_own_has_answered() -> None:
    """A socket's, say; it was asked for again without a pause until the time was over."""

    def call() -> None:
        raise TimeoutError("the socket's")

    asked = list[bool]()
    with patience.asking(lambda: asked.append(True)), pytest.raises(TimeoutError, match="socket"):
        patience.in_time(call, 3.0, "fails", late=ValueError("late"), abandon=lambda: None)
    assert len(asked) < 100


def test_a_batch_of_a_query_that_is_stopped_has_a_moment_and_no_more() -> None:
    ending = Ending(lambda: True)
    ending()  # what can be ended within the moment still is
    with patience.asking(ending), raises(JobInterrupted):
        patience.pause(HOURS_S)


def test_a_batch_that_waits_for_nobody_asks_no_jvm() -> None:
    looks: list[str] = []
    ending = Ending(lambda: bool(looks.append("looked")))
    with patience.asking(ending):
        for _ in range(1_000):
            patience.ask()
        assert len(looks) < 1_000, "milliseconds each"
        patience.pause(1.0)
    assert looks
