"""The sequencer's rules, one transition at a time, and then all of them in any order."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from onceward.errors import AttemptSuperseded, EpochPoisoned, Fenced, OncewardError, SendFailed
from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer.leases import EpochLeases, Granted, ReturnedLease
from support.errors import raises

P0, P1, P2 = (TopicPartition("out", n) for n in range(3))
A = TaskAttempt(0, 0, 10)
A_AGAIN = TaskAttempt(0, 1, 20)
B = TaskAttempt(1, 0, 11)
C = TaskAttempt(2, 0, 12)


@pytest.fixture
def book() -> EpochLeases:
    return EpochLeases(ProducerIdentity(7, 3), lease_limit_seconds=10.0)


def greeted(book: EpochLeases, *tasks: TaskAttempt) -> EpochLeases:
    for task in tasks:
        book.hello(task)
    return book


def poisoned_by(book: EpochLeases, reason: str) -> None:
    assert book.poisoned is not None
    assert reason in book.poisoned
    assert isinstance(book.error, EpochPoisoned)
    with pytest.raises(EpochPoisoned, match="producer 7 epoch 3"):
        book.hello(TaskAttempt(99, 0, 999))


def test_the_next_holder_goes_on_where_the_last_one_ended(book):
    greeted(book, A, B)
    assert book.lease(A, [P0], 0.0) == [Granted(P0, 0, first=True)]
    book.release(A, P0, 500)
    assert book.lease(B, [P0], 1.0) == [Granted(P0, 500, first=False)]
    book.release(B, P0, 2)  # wrapped at 2**31 - 1
    assert book.returned == [ReturnedLease(P0, A, 0, 500), ReturnedLease(P0, B, 500, 2)]
    assert book.next_sequences == {P0: 2}
    book.finished(A)
    book.finished(B)
    book.close()
    assert book.poisoned is None


def test_whatever_is_free_of_the_wanted_is_granted(book):
    greeted(book, A, B)
    book.lease(A, [P1], 0.0)
    assert [lease.partition for lease in book.lease(B, [P0, P1, P2, P0], 0.0)] == [P0, P2]


def test_who_finds_nothing_free_waits_and_is_served_first_come_first_served(book):
    greeted(book, A, B, C)
    book.lease(A, [P0, P1], 0.0)
    assert book.lease(B, [P0], 1.0) == []
    assert book.lease(C, [P0, P1], 2.0) == []
    assert book.is_waiting(B)
    assert book.grant_waiting(3.0) == []
    book.release(A, P0, 5)
    book.release(A, P1, 6)
    assert book.grant_waiting(4.0) == [
        (B, [Granted(P0, 5, first=False)]),
        (C, [Granted(P1, 6, first=False)]),
    ]
    assert not book.is_waiting(B)


def test_a_limit_leaves_the_others_to_other_tasks(book):
    greeted(book, A, B, C)
    assert [lease.partition for lease in book.lease(A, [P0, P1, P2], 0.0, limit=2)] == [P0, P1]
    assert [lease.partition for lease in book.lease(B, [P0, P1, P2], 0.0, limit=2)] == [P2]
    assert book.lease(C, [P0, P1, P2], 0.0, limit=1) == []
    book.release(A, P0, 5)
    book.release(A, P1, 6)
    assert book.grant_waiting(1.0) == [(C, [Granted(P0, 5, first=False)])]


def test_nobody_overtakes_those_who_wait(book):
    greeted(book, A, B, C)
    book.lease(A, [P0], 0.0)
    book.lease(B, [P0], 1.0)
    book.release(A, P0, 5)
    assert book.lease(C, [P0, P1], 2.0) == [Granted(P1, 0, first=True)]
    assert book.grant_waiting(3.0) == [(B, [Granted(P0, 5, first=False)])]


def test_a_task_that_holds_a_lease_never_waits_so_that_two_cannot_wait_for_each_other(book):
    greeted(book, A, B)
    book.lease(A, [P0], 0.0)
    book.lease(B, [P1], 0.0)
    assert book.lease(A, [P1], 0.0) == []
    assert book.lease(B, [P0], 0.0) == []
    assert not book.is_waiting(A)
    assert not book.is_waiting(B)


def test_a_task_that_wants_nothing_gets_nothing_and_does_not_wait(book):
    greeted(book, A)
    assert book.lease(A, [], 0.0) == []
    assert not book.is_waiting(A)


def test_a_second_attempt_takes_the_place_of_one_that_held_nothing(book):
    greeted(book, A, B)
    book.lease(B, [P0], 0.0)
    book.lease(A, [P0], 0.0)
    assert book.hello(A_AGAIN) == A
    book.release(B, P0, 1)
    assert book.grant_waiting(0.0) == []  # the first attempt was waiting, and is no more
    for refused in (lambda: book.lease(A, [P0], 0.0), lambda: book.finished(A)):
        with pytest.raises(AttemptSuperseded):
            refused()
    book.disconnected(A)
    assert book.poisoned is None
    assert book.lease(A_AGAIN, [P0], 0.0) == [Granted(P0, 1, first=False)]


def test_a_second_attempt_after_one_that_finished_without_a_lease_is_welcome(book):
    greeted(book, A)
    book.finished(A)
    book.disconnected(A)
    assert book.hello(A_AGAIN) == A
    assert book.poisoned is None


@pytest.mark.parametrize("fate", ["holds", "gave back", "finished"])
def test_a_second_attempt_after_one_that_held_a_lease_poisons(book, fate):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    if fate != "holds":
        book.release(
            A, P0, 0
        )  # even with nothing sent: that is what it says, and it may be slow or wrong
    if fate == "finished":
        book.finished(A)
        book.disconnected(A)
    with pytest.raises(EpochPoisoned):
        book.hello(A_AGAIN)
    poisoned_by(book, "may have sent")


@pytest.mark.fault("stage-retried")
def test_a_stage_retry_is_a_second_attempt_too(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    with pytest.raises(EpochPoisoned):
        book.hello(TaskAttempt(0, 0, 40))
    poisoned_by(book, "may have sent")


@pytest.mark.fault("stage-retried")
@pytest.mark.parametrize("fate", ["is there", "waits", "finished", "is gone"])
def test_a_stage_retry_poisons_without_a_lease(book, fate):
    """What was finished with no rows belongs to the other computation, too."""
    greeted(book, A, B)
    book.lease(B, [P0], 0.0)
    if fate == "waits":
        book.lease(A, [P0], 0.0)
    elif fate == "finished":
        book.finished(A)
    if fate in ("finished", "is gone"):
        book.disconnected(A)
    with pytest.raises(EpochPoisoned):
        book.hello(TaskAttempt(0, 0, 40))
    poisoned_by(book, "attempts the whole stage again")


def test_the_late_hello_of_an_older_attempt_is_refused_and_changes_nothing(book):
    greeted(book, A_AGAIN)
    book.lease(A_AGAIN, [P0], 0.0)
    with pytest.raises(AttemptSuperseded):
        book.hello(A)
    with pytest.raises(AttemptSuperseded):
        book.lease(A, [P1], 0.0)
    book.disconnected(A)
    book.release(A_AGAIN, P0, 3)
    assert book.poisoned is None


@pytest.mark.fault("second-hello")
def test_the_same_attempt_twice_poisons_even_when_it_held_nothing(book):
    greeted(book, A)
    with pytest.raises(EpochPoisoned):
        book.hello(A)
    poisoned_by(book, "said hello twice")


def test_a_lease_without_hello_poisons(book):
    with pytest.raises(EpochPoisoned):
        book.lease(A, [P0], 0.0)
    poisoned_by(book, "never said hello")


def test_a_lease_after_finished_poisons(book):
    greeted(book, A)
    book.finished(A)
    with pytest.raises(EpochPoisoned):
        book.lease(A, [P0], 0.0)
    poisoned_by(book, "after it said that it is finished")


def test_asking_twice_while_waiting_poisons(book):
    greeted(book, A, B)
    book.lease(A, [P0], 0.0)
    book.lease(B, [P0], 0.0)
    with pytest.raises(EpochPoisoned):
        book.lease(B, [P1], 0.0)
    poisoned_by(book, "while it waits")


def test_finishing_with_a_lease_poisons(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    with pytest.raises(EpochPoisoned):
        book.finished(A)
    poisoned_by(book, "finished while it holds")


@pytest.mark.parametrize("next_sequence", [-1, 2**31])
def test_an_impossible_sequence_poisons(book, next_sequence):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    with pytest.raises(EpochPoisoned):
        book.release(A, P0, next_sequence)
    poisoned_by(book, "impossible sequence")
    assert book.returned == []


@pytest.mark.parametrize("holder", [None, B])
def test_only_the_holder_gives_back(book, holder):
    greeted(book, A, B)
    if holder:
        book.lease(holder, [P0], 0.0)
    with pytest.raises(EpochPoisoned):
        book.release(A, P0, 5)
    poisoned_by(book, "which is held by")
    assert book.next_sequences.get(P0, 0) == 0


def test_a_lease_given_back_twice_poisons(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    book.release(A, P0, 5)
    with pytest.raises(EpochPoisoned):
        book.release(A, P0, 5)
    poisoned_by(book, "held by nobody")


def test_a_connection_lost_with_a_lease_poisons(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    book.disconnected(A)
    poisoned_by(book, "lost while it held a lease")
    assert "spark.executor.memoryOverhead" in book.error.next_step, "as Spark's own reason says"


def test_a_connection_lost_after_sending_and_before_finishing_poisons(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    book.release(A, P0, 5)
    book.disconnected(A)
    poisoned_by(book, "before it finished")


def test_a_connection_lost_before_any_lease_is_forgiven(book):
    greeted(book, A, B)
    book.lease(B, [P0], 0.0)
    book.lease(A, [P0], 0.0)
    book.disconnected(A)
    book.release(B, P0, 5)
    assert book.grant_waiting(0.0) == []  # nothing is leased to someone who is not there
    assert book.poisoned is None


def test_a_connection_lost_after_finishing_is_no_news(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    book.release(A, P0, 5)
    book.finished(A)
    book.disconnected(A)
    assert book.poisoned is None


def test_a_lease_held_for_too_long_poisons(book):
    greeted(book, A, B)
    book.lease(A, [P0], 100.0)
    book.lease(B, [P0], 100.0)
    book.overdue(110.0)
    assert book.poisoned is None
    book.overdue(110.1)
    poisoned_by(book, "more than 10 s")
    assert not book.is_waiting(B)
    assert book.grant_waiting(111.0) == []


def test_the_time_of_a_waiting_task_counts_from_its_grant(book):
    greeted(book, A, B)
    book.lease(A, [P0], 0.0)
    book.lease(B, [P0], 0.0)
    book.release(A, P0, 1)
    book.grant_waiting(9.0)
    book.overdue(18.0)
    assert book.poisoned is None


def test_after_poison_everything_is_refused_with_the_first_reason(book):
    greeted(book, A, B)
    book.lease(A, [P0], 0.0)
    book.poison("first")
    book.poison("second")
    for refused in (
        lambda: book.hello(C),
        lambda: book.lease(B, [P1], 0.0),
        lambda: book.release(A, P0, 1),
        lambda: book.finished(B),
    ):
        with raises(EpochPoisoned):
            refused()
    assert book.returned == []


def test_a_reported_error_says_more_than_the_bare_poison_and_the_first_one_stays(book):
    book.poison("a connection was lost")
    book.poison("a task failed", Fenced("someone newer"))
    book.poison("another task failed", SendFailed("too late"))
    assert isinstance(book.error, Fenced)
    assert book.poisoned == "a connection was lost"


def test_a_poison_does_not_replace_the_error_that_a_task_reported(book):
    book.poison("a task failed", Fenced("someone newer"))
    book.poison("and then its connection went", EpochPoisoned("lost"))
    assert isinstance(book.error, Fenced)


def test_closing_with_a_lease_out_poisons(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    book.close()
    poisoned_by(book, "closed while")


def test_closing_before_a_sender_finished_poisons(book):
    greeted(book, A)
    book.lease(A, [P0], 0.0)
    book.release(A, P0, 1)
    book.close()
    poisoned_by(book, "closed before")


def test_nothing_changes_a_closed_book(book):
    greeted(book, A, B)
    book.close()
    for refused in (
        lambda: book.hello(C),
        lambda: book.lease(A, [P0], 0.0),
        lambda: book.finished(A),
    ):
        with raises(EpochPoisoned):
            refused()
    book.disconnected(A)
    book.overdue(1e9)
    assert book.poisoned is None
    assert book.next_sequences == {}


def test_the_errors_pickle_with_their_reason(book):
    book.poison("because")
    assert "because" in str(pickle.loads(pickle.dumps(book.error)))  # noqa: S301


class Counted(TopicPartition):
    """Counts how often somebody looks for a partition."""

    looked = 0

    def __hash__(self) -> int:
        Counted.looked += 1
        return super().__hash__()


def looks_for_each_turn(tasks: int, partitions: int) -> float:
    """Every task has rows for every partition, and leases a quarter of them at a time."""
    book = EpochLeases(ProducerIdentity(1, 0), lease_limit_seconds=1e9)
    places = [Counted("t", number) for number in range(partitions)]
    wanted = {
        TaskAttempt(n, 0, n): dict.fromkeys(places[n % partitions :] + places[: n % partitions])
        for n in range(tasks)
    }
    share, has = -(-partitions // 4), {}
    Counted.looked = 0

    def ask(task: TaskAttempt) -> None:
        if leases := book.lease(task, list(wanted[task]), 0.0, share):
            has[task] = leases

    for task in wanted:
        book.hello(task)
        ask(task)
    while has:
        task, leases = next(iter(has.items()))
        del has[task]
        for lease in leases:
            book.release(task, lease.partition, lease.base_sequence + 1)
            del wanted[task][lease.partition]
        has.update(book.grant_waiting(0.0))
        if wanted[task]:
            ask(task)
        else:
            book.finished(task)
    book.close()
    assert book.poisoned is None
    assert len(book.returned) == tasks * partitions
    return Counted.looked / len(book.returned)


def test_what_a_turn_costs_does_not_grow_with_tasks_and_partitions():
    assert looks_for_each_turn(80, 80) < 1.5 * looks_for_each_turn(20, 20)


class BookInAnyOrder(RuleBasedStateMachine):
    """Any task says anything at any time; a model of a few lines knows what must hold."""

    tasks = Bundle("tasks")
    partitions = st.sampled_from([P0, P1, P2])

    def __init__(self) -> None:
        super().__init__()
        self.book = EpochLeases(ProducerIdentity(1, 0), lease_limit_seconds=10.0)
        self.now = 0.0
        self.out: dict[TopicPartition, TaskAttempt] = {}
        self.ever_held: dict[int, TaskAttempt] = {}  # task → the attempt that held leases
        self.expected_base: dict[TopicPartition, int] = {}

    @rule(target=tasks, task=st.integers(0, 2), attempt=st.integers(0, 2))
    def hello(self, task, attempt):
        newcomer = TaskAttempt(task, attempt, attempt)
        before = self.ever_held.get(task)
        try:
            self.book.hello(newcomer)
        except OncewardError:
            return multiple(newcomer)
        assert before is None, "let in although another attempt may have sent"
        return newcomer

    def granted(self, task, leases):
        assert self.book.poisoned is None
        for lease in leases:
            assert lease.partition not in self.out, "two holders"
            assert lease.base_sequence == self.expected_base.get(lease.partition, 0)
            assert lease.first == (lease.partition not in self.expected_base)
            self.expected_base.setdefault(lease.partition, 0)
            self.out[lease.partition] = task
            assert self.ever_held.setdefault(task.partition_id, task) == task, (
                "two attempts of a task sent"
            )

    @rule(task=tasks, wanted=st.lists(partitions, max_size=3))
    def lease(self, task, wanted):
        poisoned = self.book.poisoned
        try:
            leases = self.book.lease(task, wanted, self.now)
        except OncewardError:
            return
        assert poisoned is None
        self.granted(task, leases)

    @rule(task=tasks, partition=partitions, count=st.integers(0, 3), honest=st.booleans())
    def release(self, task, partition, count, honest):
        if honest and self.out.get(partition) != task:
            return
        next_sequence = self.expected_base.get(partition, 0) + count
        try:
            self.book.release(task, partition, next_sequence)
        except EpochPoisoned:
            return
        assert self.out.pop(partition) == task
        self.expected_base[partition] = next_sequence
        for waiter, leases in self.book.grant_waiting(self.now):
            self.granted(waiter, leases)

    @rule(task=tasks)
    def finish(self, task):
        try:
            self.book.finished(task)
        except OncewardError:
            return
        assert task not in self.out.values()

    @rule(task=tasks)
    def disconnect(self, task):
        self.book.disconnected(task)
        if task in self.out.values():
            assert self.book.poisoned is not None

    @rule(seconds=st.floats(0.1, 4.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.book.overdue(self.now)

    @invariant()
    def the_turns_of_a_partition_are_one_unbroken_chain(self):
        reached: dict[TopicPartition, int] = {}
        for turn in self.book.returned:
            assert turn.base_sequence == reached.get(turn.partition, 0)
            reached[turn.partition] = turn.next_sequence
        assert all(self.book.next_sequences[partition] == at for partition, at in reached.items())

    @invariant()
    def leases_are_held_by_those_who_were_granted_them(self):
        assert {partition: lease.task for partition, lease in self.book.held.items()} == self.out

    @invariant()
    def nobody_waits_for_what_is_free(self):
        if self.book.poisoned is None:
            assert self.book.grant_waiting(self.now) == []


BookInAnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
test_the_rules_hold_in_any_order = BookInAnyOrder.TestCase
