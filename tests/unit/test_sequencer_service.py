"""The sequencer with real sockets, threads and processes: what tasks may meet, and what others may
try.
"""

from __future__ import annotations

import errno
import os
import pickle
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from onceward import events
from onceward.errors import (
    AttemptSuperseded,
    EpochPoisoned,
    Fenced,
    RecordTooLarge,
    Recovery,
    SequencerUnreachable,
    ServerMisconfigured,
)
from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer import frames, listener
from onceward.kafka.sink.sequencer.client import SequencerClient
from onceward.kafka.sink.sequencer.listener import Sequencer
from support.errors import raises

IDENTITY = ProducerIdentity(7, 3)
P0, P1, P2 = (TopicPartition("out", n) for n in range(3))
LONG = 30.0


def task(number: int, attempt: int = 0) -> TaskAttempt:
    return TaskAttempt(number, attempt, 100 * attempt + number)


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def told_to_stop(connection: SequencerClient, match: str | None = None) -> None:
    with pytest.raises(EpochPoisoned, match=match and re.escape(match)):
        until(connection.check)  # which raises, rather than becoming true


def in_background(
    errors: list[BaseException], call: Callable[..., object], *arguments: object
) -> threading.Thread:
    """``call`` in a thread that runs already; what it raises goes to ``errors``."""

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 - the test judges it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def sequencer_threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("onceward-sequencer")
    ]


@pytest.fixture
def sequencer():
    service = Sequencer("127.0.0.1", "127.0.0.1")
    yield service
    service.close()
    assert sequencer_threads() == []


@pytest.fixture
def ticket(sequencer):
    return sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG)


@pytest.fixture
def connect():
    """``connect(ticket, task)``; closed at the end of the test."""
    with ExitStack() as stack:

        def connect(ticket, attempt):
            return stack.enter_context(closing(SequencerClient(ticket, attempt, timeout_s=20.0)))

        yield connect


@pytest.fixture
def heard():
    seen: list[events.Event] = []
    unsubscribe = events.probe(seen.append)
    yield seen
    unsubscribe()


# ── taking turns ──


def test_two_tasks_continue_each_others_sequence(sequencer, ticket, connect):
    first, second = connect(ticket, task(0)), connect(ticket, task(1))
    assert first.lease_some([P0, P1]) == {P0: 0, P1: 0}
    first.release({P0: 10, P1: 20})
    first.finish()
    assert second.lease_some([P1, P2]) == {P1: 20, P2: 0}
    second.release({P1: 25, P2: 5})
    second.finish()
    book = sequencer.close_epoch()
    assert book.poisoned is None
    assert sequencer.failure is None
    assert book.next_sequences == {P0: 10, P1: 25, P2: 5}
    turns = [
        (turn.base_sequence, turn.next_sequence) for turn in book.returned if turn.partition == P1
    ]
    assert turns == [(0, 20), (20, 25)]


def test_many_tasks_at_once_never_share_a_partition(sequencer, connect):
    firsts: list[TopicPartition] = []
    ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG, on_first_lease=firsts.extend)
    partitions = [P0, P1, P2]
    holders, guard, errors = Counter(), threading.Lock(), []

    def work(number: int) -> None:
        dice = random.Random(number)
        with closing(SequencerClient(ticket, task(number))) as connection:
            pending = dict.fromkeys(partitions, 20)
            while pending:
                leased = connection.lease_some(list(pending))
                assert leased
                with guard:
                    holders.update(list(leased))
                    assert max(holders[partition] for partition in leased) == 1
                if dice.random() < 0.1:
                    time.sleep(0.001)
                with guard:
                    holders.subtract(list(leased))
                connection.release({partition: base + 1 for partition, base in leased.items()})
                for partition in leased:
                    pending[partition] -= 1
                    if not pending[partition]:
                        del pending[partition]
            connection.finish()

    for thread in [in_background(errors, work, number) for number in range(8)]:
        thread.join(60)
    assert errors == []
    book = sequencer.close_epoch()
    assert book.poisoned is None
    assert book.next_sequences == dict.fromkeys(partitions, 160)
    assert sorted(firsts) == partitions
    chain = Counter()
    for turn in book.returned:
        assert turn.base_sequence == chain[turn.partition]
        chain[turn.partition] = turn.next_sequence


def test_who_holds_and_asks_for_what_is_taken_gets_nothing_at_once(ticket, connect):
    first, second = connect(ticket, task(0)), connect(ticket, task(1))
    first.lease_some([P0])
    second.lease_some([P1])
    assert first.lease_some([P1]) == {}
    assert second.lease_some([P0]) == {}
    assert first.lease_some([]) == {}


def test_a_waiting_task_hears_that_the_driver_lives(sequencer, ticket, connect):
    holder = connect(ticket, task(0))
    holder.lease_some([P0])
    asker = SequencerClient(ticket, task(1), timeout_s=1.5)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(asker.lease_some([P0])))
    thread.start()
    time.sleep(3.0)  # twice as long as the driver may be silent
    holder.release({P0: 4})
    thread.join(20)
    asker.close()
    assert answers == [{P0: 4}]


def test_neither_end_is_idle_for_long_while_a_task_computes(sequencer, ticket, connect):
    """What has been idle for some minutes, firewalls drop without a word, and a host that has lost
    its power says none either."""
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    ends = [connect(ticket, task(0))._socket, *sequencer._epoch._connections.values()]
    assert len(ends) == 2
    for end in ends:
        assert end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert end._sock.getsockopt(socket.IPPROTO_TCP, idle) <= 120


def test_a_lease_starts_and_finishes_as_an_event_and_turns_do_not_overlap(
    sequencer, ticket, connect, heard
):
    first, second = connect(ticket, task(0)), connect(ticket, task(1))
    first.lease_some([P0])
    thread = threading.Thread(target=second.lease_some, args=([P0],))
    thread.start()
    first.release({P0: 10})
    thread.join(20)
    second.release({P0: 11})
    second.finish()
    leases = [event for event in heard if event.step == events.LEASE]
    assert [(event.phase, event.ids["task"].partition_id) for event in leases] == [
        ("started", 0),
        ("finished", 0),
        ("started", 1),
        ("finished", 1),
    ]
    assert leases[-1].ids == {
        "partition": P0,
        "task": task(1),
        "producer": IDENTITY,
        "base_sequence": 10,
        "next_sequence": 11,
    }


# ── the first lease of a partition ──


def test_a_partition_is_announced_once_before_its_first_grant(sequencer, connect):
    announced = []
    ticket = sequencer.open_epoch(
        IDENTITY,
        lease_limit_seconds=LONG,
        on_first_lease=lambda partitions: announced.append(list(partitions)),
    )
    first, second = connect(ticket, task(0)), connect(ticket, task(1))

    def all_given_back():
        until(lambda: not sequencer._epoch._leases.held)  # releases are not answered

    first.lease_some([P0, P1])
    assert announced == [[P0, P1]]
    first.release({P0: 1, P1: 1})
    all_given_back()
    assert second.lease_some([P1, P2]) == {P1: 1, P2: 0}
    second.release({P1: 2, P2: 2})
    all_given_back()
    first.release(first.lease_some([P0, P1, P2]))
    assert announced == [[P0, P1], [P2]]
    for connection in (first, second):
        connection.finish()
    sequencer.close_epoch()
    third = connect(
        sequencer.open_epoch(
            IDENTITY,
            lease_limit_seconds=LONG,
            on_first_lease=lambda partitions: announced.append(list(partitions)),
        ),
        task(0),
    )
    third.lease_some([P0])
    assert announced[2:] == [[P0]]  # a new epoch is a new transaction


@pytest.mark.parametrize("error", [Fenced("someone newer"), OSError("no network"), SystemExit(1)])
def test_an_announcement_that_fails_poisons_with_its_error(sequencer, connect, error):
    def refuse(partitions):
        raise error

    ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG, on_first_lease=refuse)
    bystander, asker = connect(ticket, task(0)), connect(ticket, task(1))
    expected = type(error) if isinstance(error, Fenced) else EpochPoisoned
    with pytest.raises(expected, match=str(error)):
        asker.lease_some([P0])
    told_to_stop(bystander, str(error))
    until(lambda: sequencer.failure is not None)
    assert type(sequencer.failure) is expected
    assert sequencer.failure is error or sequencer.failure.__cause__ is error


def test_nothing_is_granted_when_the_epoch_is_poisoned_during_the_announcement(sequencer, connect):
    entered, proceed = threading.Event(), threading.Event()

    def slow(partitions):
        entered.set()
        assert proceed.wait(20)

    ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG, on_first_lease=slow)
    asker = connect(ticket, task(0))
    outcome: list[BaseException] = []
    thread = in_background(outcome, asker.lease_some, [P0])
    assert entered.wait(20)
    sequencer.poison("the batch timed out")
    thread.join(20)  # told at once, although its announcement still runs
    proceed.set()
    assert "the batch timed out" in str(outcome[0])


def test_closing_the_epoch_waits_for_an_announcement_so_that_none_reaches_the_next_transaction(
    sequencer, connect
):
    entered, proceed, returned = threading.Event(), threading.Event(), []

    def slow(partitions):
        entered.set()
        proceed.wait(20)
        returned.append(partitions)

    ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG, on_first_lease=slow)
    asker = connect(ticket, task(0))
    outcome: list[BaseException] = []
    thread = in_background(outcome, asker.lease_some, [P0])
    assert entered.wait(20)
    threading.Timer(0.2, proceed.set).start()
    book = sequencer.close_epoch()
    assert returned == [[P0]]
    assert "closed while" in book.poisoned
    thread.join(20)
    assert isinstance(outcome[0], EpochPoisoned)


def test_an_exception_of_a_probe_poisons_the_epoch_with_it(sequencer, ticket, connect):
    fault = RecordTooLarge("injected")

    def lease_twice(connection):
        for _ in range(2):
            connection.release({P0: connection.lease_some([P0])[P0]})

    for phase in ("started", "finished"):
        ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG)

        def inject(event, phase=phase):
            if event.step == events.LEASE and event.phase == phase:
                raise fault

        unsubscribe = events.probe(inject)
        try:
            connection = connect(ticket, task(0))
            with pytest.raises(RecordTooLarge):
                lease_twice(connection)
            until(lambda: sequencer.failure is fault)
        finally:
            unsubscribe()


# ── poison ──


@pytest.mark.fault("lease-connection-lost")
def test_a_connection_lost_with_a_lease_stops_everyone(sequencer, ticket, connect, heard):
    holder, waiting, bystander = (connect(ticket, task(number)) for number in range(3))
    holder.lease_some([P0])
    outcome: list[BaseException] = []
    thread = in_background(outcome, waiting.lease_some, [P0])
    holder.close()
    thread.join(20)
    assert "was lost while it held a lease" in str(outcome[0])
    told_to_stop(bystander, match="was lost while it held a lease")
    assert isinstance(sequencer.failure, EpochPoisoned)
    until(lambda: any(event.phase == "failed" and event.ids["partition"] == P0 for event in heard))


def test_a_lease_whose_answer_was_lost_counts_as_held(sequencer, ticket):
    with closing(socket.create_connection((ticket.host, ticket.port))) as raw:
        raw.sendall(frames.hello_frame(ticket.token, task(0)))
        raw.recv(5)
        raw.sendall(frames.frame(frames.Op.LEASE, frames.encode_partitions([(P0, 0)])))
        raw.shutdown(socket.SHUT_WR)
        until(lambda: sequencer.failure is not None)
    with pytest.raises(EpochPoisoned):
        SequencerClient(ticket, task(0, attempt=1))


def test_a_release_sent_just_before_the_end_is_booked_but_the_epoch_is_not_good(
    sequencer, ticket, connect
):
    holder = connect(ticket, task(0))
    holder.lease_some([P0])
    holder.release({P0: 5})
    holder.close()
    until(lambda: sequencer.failure is not None)
    assert "before it finished" in str(sequencer.failure)
    assert [turn.next_sequence for turn in sequencer.close_epoch().returned] == [5]


def test_a_finished_task_may_go(sequencer, ticket, connect):
    with closing(connect(ticket, task(0))) as connection:
        connection.lease_some([P0])
        connection.release({P0: 5})
        connection.finish()
    with closing(connect(ticket, task(1))) as connection:
        connection.finish()
    assert sequencer.close_epoch().poisoned is None


@pytest.mark.fault("speculative-copy")
def test_a_second_attempt_is_not_let_in_after_a_lease(sequencer, ticket, connect):
    first = connect(ticket, task(0))
    first.lease_some([P0])
    with raises(EpochPoisoned):
        SequencerClient(ticket, task(0, attempt=1))
    told_to_stop(first, match="may have sent")


def test_a_second_attempt_replaces_one_that_held_nothing_even_while_it_waits(
    sequencer, ticket, connect
):
    holder, first = connect(ticket, task(1)), connect(ticket, task(0))
    holder.lease_some([P0])
    outcome: list[BaseException] = []
    thread = in_background(outcome, first.lease_some, [P0])
    until(lambda: sequencer._epoch._leases.is_waiting(task(0)))
    second = connect(ticket, task(0, attempt=1))
    thread.join(20)
    assert outcome
    first.fail(outcome[0])  # what a task does with any error: here it must not spoil the epoch
    holder.release({P0: 5})
    holder.finish()
    assert second.lease_some([P0]) == {P0: 5}
    second.release({P0: 6})
    second.finish()
    assert sequencer.close_epoch().poisoned is None


@pytest.mark.fault("speculative-copy")
def test_racing_attempts_of_one_task_never_both_hold_a_lease(sequencer):
    for turn in range(20):
        ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG)
        barrier, granted = threading.Barrier(2), []

        def attempt(number, ticket=ticket, barrier=barrier, granted=granted):
            try:
                barrier.wait(20)
                with closing(SequencerClient(ticket, task(0, attempt=number))) as connection:
                    granted.append(connection.lease_some([[P0], [P1]][number]))
                    connection.release({[P0, P1][number]: 1})
                    connection.finish()
            except (EpochPoisoned, AttemptSuperseded):
                pass

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        book = sequencer.close_epoch()
        assert len({lease.task for lease in book.returned}) <= 1, f"turn {turn}"
        assert book.poisoned is not None or len(granted) == 1


def test_a_reported_error_reaches_the_driver_and_stops_the_others(sequencer, ticket, connect):
    failing, bystander = connect(ticket, task(0)), connect(ticket, task(1))
    failing.lease_some([P0])
    failing.fail(
        RecordTooLarge(
            "record of 3 MB in out-0", next_step="raise max.message.bytes", details={"size": 3}
        )
    )
    failure = sequencer.failure  # read as soon as fail() is back
    assert type(failure) is RecordTooLarge
    assert (failure.next_step, failure.details) == ("raise max.message.bytes", {"size": 3})
    told_to_stop(bystander, match="record of 3 MB")


@pytest.mark.parametrize("knows", [False, True])
def test_a_task_that_was_stopped_can_still_report_what_it_met(sequencer, ticket, connect, knows):
    reporter = connect(ticket, task(0))
    sequencer.poison("a connection was lost")
    if knows:
        told_to_stop(reporter)
    reporter.fail(Fenced("someone newer"))
    assert type(sequencer.failure) is Fenced


def test_a_report_is_acknowledged_after_a_stop_too(sequencer, ticket):
    with closing(socket.create_connection((ticket.host, ticket.port), 20)) as raw:
        raw.sendall(frames.hello_frame(ticket.token, task(0)))
        raw.sendall(frames.frame(frames.Op.FAIL, frames.encode_error(Fenced("someone newer"))))
        heard, buffer = [], frames.FrameBuffer()
        while frames.Op.DONE not in heard:
            buffer.feed(raw.recv(1000))
            while (received := buffer.next_frame()) is not None:
                heard.append(received[0])
    assert heard == [frames.Op.WELCOME, frames.Op.STOP, frames.Op.DONE]


def test_reporting_to_a_driver_that_is_gone_does_not_hide_the_error(sequencer, ticket, connect):
    reporter = connect(ticket, task(0))
    sequencer.close()
    reporter.fail(Fenced("someone newer"))
    with pytest.raises(EpochPoisoned):
        reporter.check()


def test_the_driver_can_stop_the_epoch_with_an_error_of_its_own(sequencer, ticket, connect):
    connection = connect(ticket, task(0))
    error = Fenced("someone newer")
    sequencer.poison(error)
    told_to_stop(connection, match="someone newer")
    assert sequencer.failure is error
    for call in (
        lambda: connection.lease_some([P0]),
        connection.finish,
        lambda: connection.release({P0: 1}),
    ):
        with pytest.raises(EpochPoisoned):
            call()


# ── processes ──

_PROGRAM = """
import pickle, sys, time
from onceward.kafka.sink.sequencer.client import SequencerClient
ticket, task, partition = pickle.load(sys.stdin.buffer)
connection = SequencerClient(ticket, task)
print(connection.lease_some([partition]), flush=True)
time.sleep(600)
"""


@pytest.fixture
def start_holder():
    """``start_holder(ticket)`` returns a process that holds P0."""
    with ExitStack() as stack:

        def start(ticket):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            stack.callback(process.kill)
            process.stdin.write(pickle.dumps((ticket, task(0), P0)))
            process.stdin.flush()
            assert b"partition=0): 0" in process.stdout.readline()
            return process

        yield start


@pytest.mark.fault("lease-connection-lost")
def test_a_killed_executor_that_holds_a_lease_poisons(ticket, connect, start_holder):
    bystander = connect(ticket, task(1))
    start_holder(ticket).send_signal(signal.SIGKILL)
    told_to_stop(bystander, match="was lost while it held a lease")


@pytest.mark.fault("lease-overdue")
def test_a_stopped_executor_that_holds_a_lease_is_overdue(sequencer, connect, start_holder):
    ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=1.0)
    start_holder(ticket).send_signal(signal.SIGSTOP)
    with raises(EpochPoisoned):
        connect(ticket, task(1)).lease_some([P0])
    assert "for more than 1 s" in str(sequencer.failure)
    sequencer.close_epoch()  # which does not wait for a process that does nothing


# ── others ──


@pytest.mark.fault("sequencer-token-wrong")
def test_an_old_token_is_refused_and_does_not_disturb_the_new_epoch(sequencer, connect):
    old = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG)
    lagging = connect(old, task(0))
    lagging.lease_some([P0])
    assert sequencer.close_epoch().poisoned is not None
    new = sequencer.open_epoch(IDENTITY._replace(epoch=4), lease_limit_seconds=LONG)
    assert sequencer.failure is None
    with raises(EpochPoisoned):
        SequencerClient(old, task(0, attempt=1))
    told_to_stop(lagging)
    with pytest.raises(EpochPoisoned):
        lagging.release({P0: 5})
    worker = connect(new, task(0))
    assert worker.lease_some([P0]) == {P0: 0}
    worker.release({P0: 1})
    worker.finish()
    assert sequencer.close_epoch().poisoned is None


def test_every_epoch_begins_at_sequence_0(sequencer, connect):
    for epoch in range(3):
        ticket = sequencer.open_epoch(IDENTITY._replace(epoch=epoch), lease_limit_seconds=LONG)
        worker = connect(ticket, task(0))
        assert worker.lease_some([P0]) == {P0: 0}
        worker.release({P0: 5})
        worker.finish()
        assert sequencer.close_epoch().poisoned is None


def test_without_an_open_epoch_nobody_gets_in(sequencer, ticket):
    sequencer.close_epoch()
    with pytest.raises(EpochPoisoned):
        SequencerClient(ticket, task(0))


@pytest.mark.fault("sequencer-garbage", "sequencer-token-wrong")
def test_garbage_of_strangers_is_dropped_without_a_word_and_does_not_disturb(
    sequencer, ticket, connect
):
    dice = random.Random(7)
    hello = frames.hello_frame(ticket.token, task(5))
    attempts = [
        b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        struct.pack(">BI", 1, 2**32 - 1) + b"x" * 1000,
        hello[:4] + b"\xff" + hello[5:],
        hello[:5] + bytes(32) + hello[37:],  # a wrong token
        hello[:-1],  # and then nothing
        frames.frame(frames.Op.LEASE, frames.encode_partitions([(P0, 0)]))
        + hello,  # the token comes first
        *(dice.randbytes(dice.randrange(1, 300)) for _ in range(100)),
    ]
    worker = connect(ticket, task(0))
    for attempt in attempts:
        with closing(socket.create_connection((ticket.host, ticket.port))) as raw:
            raw.sendall(attempt)
            raw.settimeout(20)
            with suppress(ConnectionError, OSError):  # hung up in the middle of it
                raw.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                assert raw.recv(100) == b""
    assert worker.lease_some([P0]) == {P0: 0}
    worker.release({P0: 1})
    worker.finish()
    assert sequencer.close_epoch().poisoned is None


@pytest.mark.fault("sequencer-garbage")
@pytest.mark.parametrize("holds", [False, True])
def test_garbage_of_a_task_ends_its_connection_only_and_its_lease_is_lost_with_it(
    sequencer, holds
):
    dice = random.Random(8)
    garbage = [
        struct.pack(">BI", frames.Op.LEASE, 2**31),
        b"\x09" + bytes(4),
        frames.frame(frames.Op.GRANT),
        frames.frame(frames.Op.LEASE, b"abc"),
        frames.frame(frames.Op.FAIL, b"{}"),
        *(bytes([dice.randrange(22, 256)]) + dice.randbytes(60) for _ in range(15)),
    ]
    for said in garbage:
        ticket = sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG)
        with closing(socket.create_connection((ticket.host, ticket.port))) as raw:
            raw.settimeout(20)
            raw.sendall(frames.hello_frame(ticket.token, task(0)))
            if holds:
                raw.sendall(frames.frame(frames.Op.LEASE, frames.encode_partitions([(P0, 0)])))
            raw.sendall(said)
            with suppress(ConnectionError):
                while raw.recv(1000):
                    pass
        if holds:
            until(lambda: sequencer.failure is not None)
            assert "carried garbage" in str(sequencer.failure)
        else:
            with closing(SequencerClient(ticket, task(1))) as other:
                assert other.lease_some([P0]) == {P0: 0}
                other.release({P0: 1})
                other.finish()
            assert sequencer.close_epoch().poisoned is None


@pytest.fixture
def open_listener():
    """``open_listener(...)`` returns a listener that admits nobody."""
    with ExitStack() as stack:

        def opened(**limits):
            watched = listener.Listener(
                "127.0.0.1", 0, admit=lambda *_: False, on_tick=lambda _: None, **limits
            )
            stack.callback(watched.close)
            return watched

        yield opened


def test_who_does_not_show_a_token_is_dropped_after_a_while(open_listener):
    watched = open_listener(patience_seconds=0.3)
    with closing(socket.create_connection(("127.0.0.1", watched.port), 20)) as idle:
        assert idle.recv(1) == b""


def test_the_stranger_that_lingers_for_longest_makes_room(open_listener):
    watched = open_listener(patience_seconds=600.0, max_unauthenticated=3)
    with ExitStack() as stack:
        idle = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", watched.port), 20)))
            for _ in range(5)
        ]
        assert [sock.recv(1) for sock in idle[:2]] == [b"", b""]
        until(lambda: len(watched._waiting) == 3)  # the last one has come in


def test_a_peer_that_has_reset_its_connection_does_not_close_the_door(
    open_listener, monkeypatch: pytest.MonkeyPatch
):
    """On macOS setting an option of such a socket is EINVAL."""
    watched, real, refused = (
        open_listener(patience_seconds=0.3),
        socket.socket.setsockopt,
        threading.Event(),
    )

    def reset_by_then(self: socket.socket, *option: Any) -> None:
        if threading.current_thread() is watched._thread and not refused.is_set():
            refused.set()
            raise OSError(errno.EINVAL, "Invalid argument")
        real(self, *option)

    monkeypatch.setattr(socket.socket, "setsockopt", reset_by_then)
    for _ in range(2):
        with closing(socket.create_connection(("127.0.0.1", watched.port), 20)) as unknown:
            assert unknown.recv(1) == b""
    assert refused.is_set()
    assert watched._thread.is_alive()


def test_a_slow_hello_gets_in_byte_by_byte(sequencer, ticket):
    with closing(socket.create_connection((ticket.host, ticket.port))) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frames.hello_frame(ticket.token, task(0)):
            raw.sendall(bytes([byte]))
        raw.settimeout(20)
        assert raw.recv(5) == frames.frame(frames.Op.WELCOME)


@pytest.mark.parametrize("failing", ["a tick", "an admission"])
def test_the_door_outlives_whatever_it_meets(failing):
    """Else the run would have no clock and no way in any more: every task would find nobody."""
    met = []

    def fail_once(kind):
        if kind == failing and not met:
            met.append(kind)
            raise OSError(22, "Invalid argument") if kind == "an admission" else ValueError(kind)

    def admit(*_):
        fail_once("an admission")
        return False

    with closing(
        listener.Listener(
            "127.0.0.1",
            0,
            admit=admit,
            on_tick=lambda _: fail_once("a tick"),
            patience_seconds=600.0,
        )
    ) as watched:
        for _ in range(2):
            knocking = socket.create_connection(("127.0.0.1", watched.port), 20)
            with closing(knocking), suppress(ConnectionError):
                knocking.sendall(frames.hello_frame(bytes(frames.TOKEN_BYTES), task(0)))
                assert knocking.recv(1) == b""
        until(lambda: bool(met))
        assert watched._thread.is_alive()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_driver_with_an_ipv6_address_is_found(host):
    """Spark writes it in brackets (spark.driver.host), sockets take it without."""
    with closing(Sequencer(host, host)) as service:
        ticket = service.open_epoch(IDENTITY, lease_limit_seconds=LONG)
        with closing(SequencerClient(ticket, task(0), timeout_s=20.0)) as worker:
            assert worker.lease_some([P0]) == {P0: 0}


# ── where it listens, what it leaves behind ──


@pytest.mark.fault("sequencer-unreachable")
def test_an_unreachable_sequencer_is_named_with_its_settings(ticket, sequencer):
    sequencer.close()
    with pytest.raises(SequencerUnreachable) as caught:
        SequencerClient(ticket, task(0), timeout_s=2.0)
    for word in (f"{ticket.host}:{ticket.port}", "sequencer_host", "sequencer_port"):
        assert word in str(caught.value)


@pytest.mark.fault("sequencer-unreachable")
def test_a_silent_port_does_not_hang_a_task(ticket):
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        wrong = type(ticket)("127.0.0.1", silent.getsockname()[1], ticket.token, ticket.identity)
        with raises(SequencerUnreachable):
            SequencerClient(wrong, task(0), timeout_s=0.2)


def test_another_service_on_the_port_is_named_as_such(ticket):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        wrong = type(ticket)("127.0.0.1", other.getsockname()[1], ticket.token, ticket.identity)

        def greet():
            with closing(other.accept()[0]) as visitor:
                visitor.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                visitor.recv(1000)

        greeter = threading.Thread(target=greet)
        greeter.start()
        with raises(SequencerUnreachable):
            SequencerClient(wrong, task(0), timeout_s=20.0)
        greeter.join(20)


def test_a_port_that_is_taken_is_refused_with_the_settings_named(sequencer, monkeypatch):
    monkeypatch.setattr(listener, "_PORT_SECONDS", 0.2)
    with raises(ServerMisconfigured, "sequencer_port") as refused:
        Sequencer("127.0.0.1", "127.0.0.1", sequencer.address[1])
    assert refused.value.recovery is Recovery.RESTART_IF_WORKED


def test_a_name_server_that_is_away_stops_no_pipeline_that_has_worked(monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", away)
    with pytest.raises(ServerMisconfigured, match="name resolution"):
        Sequencer("driver.spark.svc", "driver.spark.svc")


def test_the_advertised_address_is_what_tasks_get_and_the_token_is_not_shown(sequencer, ticket):
    assert (ticket.host, ticket.port) == sequencer.address
    assert repr(ticket.token) not in repr(ticket)
    assert "token" not in repr(ticket)
    assert pickle.loads(pickle.dumps(ticket)) == ticket  # noqa: S301
    assert sequencer.open_epoch(IDENTITY, lease_limit_seconds=LONG).token != ticket.token


def test_nothing_is_left_behind_when_it_closes():
    files = open_files()
    service = Sequencer("127.0.0.1", "127.0.0.1")
    connections = []
    for _ in range(3):
        ticket = service.open_epoch(IDENTITY, lease_limit_seconds=LONG)
        connections += [SequencerClient(ticket, task(number)) for number in range(4)]
        connections[-1].lease_some([P0])
        connections.append(SequencerClient(ticket, task(0, attempt=1)))
    unknown = socket.create_connection(service.address)
    service.close()
    service.close_epoch()
    assert sequencer_threads() == []
    for connection in connections:
        with pytest.raises((EpochPoisoned, AttemptSuperseded)):
            connection.check()
        connection.close()
    unknown.close()
    assert open_files() == files


def test_a_port_that_the_run_before_gives_back_is_waited_for():
    before = Sequencer("127.0.0.1", "127.0.0.1")
    port = before.address[1]
    giving_back = threading.Timer(0.5, before.close)
    giving_back.start()
    after = Sequencer("127.0.0.1", "127.0.0.1", port)
    giving_back.join()
    after.close()
