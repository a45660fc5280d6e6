"""Every pair of state and step: what the table does not allow is refused before anything is
sent.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.errors import (
    BatchFailed,
    BrokerUnreachable,
    Fenced,
    OncewardError,
    Recovery,
    TransactionTimedOut,
    TransactionTimeoutTooLarge,
)
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.conversation import Refused, Unanswered
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api, find_rule
from onceward.kafka.wire.transactions.coordinator import TransactionDescription
from onceward.kafka.wire.transactions.fencing import (
    Fencing,
    IdOwner,
    OwnTransaction,
    RequestedTimeouts,
    classify,
)
from onceward.kafka.wire.transactions.states import TRANSITIONS, State, Step
from onceward.kafka.wire.transactions.transaction import Transaction
from support.errors import raises


class NoClient:
    """Fails the test when it is asked for anything."""

    settings = SimpleNamespace(request_timeout_ms=1_000)

    def broker_config(self, **_: object) -> dict[str, str]:
        """Which an error asks for, and can do without."""
        raise OncewardError("not granted")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the client was asked for {name}")


CALLS: dict[Step, Callable[[Transaction], object]] = {
    Step.TAKE_OVER: Transaction.take_over,
    Step.BEGIN: Transaction.begin,
    Step.ADD_PARTITIONS: lambda t: t.add_partitions([TopicPartition("t", 0)]),
    Step.COMMIT_OFFSETS: lambda t: t.commit_offsets("g", {TopicPartition("t", 0): 1}),
    Step.COMMIT: Transaction.commit,
    Step.ABORT: Transaction.abort,
    Step.RECOVER: Transaction.recover,
}


def transaction_in(state: State) -> Transaction:
    transaction = Transaction(NoClient(), "id", 1000)  # type: ignore[arg-type]
    transaction.state = state
    return transaction


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("state", State)
def test_a_step_that_the_state_does_not_allow_is_refused_and_nothing_is_sent(
    state: State, step: Step
) -> None:
    if step in TRANSITIONS[state]:
        pytest.skip("allowed")
    with pytest.raises(Fenced if state is State.FENCED else OncewardError) as refused:
        CALLS[step](transaction_in(state))
    assert step.value in str(refused.value)


def test_every_step_has_a_state_that_allows_it_and_every_state_a_row() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {step for steps in TRANSITIONS.values() for step in steps} == set(Step)


def test_fenced_is_for_good() -> None:
    assert not TRANSITIONS[State.FENCED]


def test_an_unanswered_commit_is_never_followed_by_an_abort() -> None:
    assert set(TRANSITIONS[State.IN_DOUBT]) == {Step.RECOVER}


def test_the_transactional_id_is_taken_over_only_once() -> None:
    assert [state for state in State if Step.TAKE_OVER in TRANSITIONS[state]] == [
        State.UNINITIALISED
    ]


def test_a_transaction_without_anything_in_it_is_ended_without_a_request() -> None:
    for end in (Transaction.commit, Transaction.abort):
        transaction = transaction_in(State.READY)
        transaction.begin()
        end(transaction)
        assert transaction.state is State.READY


OURS = ProducerIdentity(7, 4)


@pytest.mark.parametrize(
    ("found", "state", "why"),
    [
        (ProducerIdentity(7, 5), "CompleteAbort", Fencing.ABORTED_FOR_US),
        (ProducerIdentity(7, 5), "PrepareAbort", Fencing.ABORTED_FOR_US),
        (ProducerIdentity(7, 5), "Empty", Fencing.TAKEN_OVER),
        (ProducerIdentity(7, 5), "Ongoing", Fencing.TAKEN_OVER),
        (ProducerIdentity(7, 5), "CompleteCommit", Fencing.TAKEN_OVER),
        (ProducerIdentity(7, 6), "CompleteAbort", Fencing.TAKEN_OVER),
        (ProducerIdentity(7, 6), "Empty", Fencing.TAKEN_OVER),
        (ProducerIdentity(7, 7), "CompleteAbort", Fencing.TAKEN_OVER),
        (ProducerIdentity(8, 5), "CompleteAbort", Fencing.TAKEN_OVER),
        (ProducerIdentity(8, 0), "Empty", Fencing.TAKEN_OVER),
        (OURS, "Ongoing", Fencing.STILL_OURS),
    ],
)
def test_only_the_epochs_of_an_abort_of_ours_are_nobodys(
    found: ProducerIdentity, state: str, why: Fencing
) -> None:
    told = TransactionDescription(found, state, 990)
    assert classify(OwnTransaction(OURS, took_part=True, asked_ms={990, 991}), told) is why
    if (
        why is Fencing.ABORTED_FOR_US
    ):  # nothing of ours was open: then it was somebody else's that was aborted
        assert (
            classify(OwnTransaction(OURS, took_part=False, asked_ms={990}), told)
            is Fencing.TAKEN_OVER
        )
        assert (
            classify(OwnTransaction(OURS, took_part=True, asked_ms={991}), told)
            is Fencing.TAKEN_OVER
        ), "given to somebody since"


def test_kafka_400_raises_the_epoch_twice_for_a_transaction_of_version_2() -> None:
    told = TransactionDescription(ProducerIdentity(7, 6), "CompleteAbort", 990)
    twice = OwnTransaction(OURS, took_part=True, asked_ms={990}, twice=True)
    assert classify(twice, told) is Fencing.ABORTED_FOR_US
    assert classify(twice._replace(asked_ms={991}), told) is Fencing.TAKEN_OVER
    further = TransactionDescription(ProducerIdentity(7, 7), "CompleteAbort", 990)
    assert classify(twice, further) is Fencing.TAKEN_OVER


class Coordinator:
    """Says what it was told of the transactional id: one answer after the other, then the last one
    for ever.
    """

    def __init__(self, *answers: TransactionDescription) -> None:
        self._answers = list(answers)

    def describe(self, deadline: object) -> TransactionDescription:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def told_of(*answers: TransactionDescription) -> IdOwner:
    return IdOwner(Coordinator(*answers), patience_ms=lambda: 1_000, request_timeout_ms=1_000)  # type: ignore[arg-type]


class Nobody:
    """A coordinator that does not answer."""

    def describe(self, deadline: object) -> TransactionDescription:
        raise unanswered(Api.DESCRIBE_TRANSACTIONS)


class Claims:
    """A coordinator that was replaced: it refuses what was carried out before and repeated, and
    tells what it has.
    """

    def __init__(
        self, attempts: int, found: Callable[[int], TransactionDescription], later: bool = False
    ) -> None:
        self._attempts, self._found, self._later = attempts, found, later
        self.asked: list[tuple[ProducerIdentity, int]] = []

    def init_producer_id(
        self, expected: ProducerIdentity, timeout_ms: int, deadline: object
    ) -> ProducerIdentity:
        self.asked.append((expected, timeout_ms))
        if len(self.asked) == 1 or self._later:
            raise Refused(
                Api.INIT_PRODUCER_ID,
                90,
                find_rule(Api.INIT_PRODUCER_ID, 90),
                "id",
                attempts=self._attempts,
            )
        return expected._replace(epoch=expected.epoch + 1)

    def describe(self, deadline: object) -> TransactionDescription:
        if not self.asked:
            return TransactionDescription(OURS, "CompleteCommit", 1000)
        return self._found(self.asked[0][1])


def claiming(claims: Claims) -> Transaction:
    transaction = transaction_in(State.READY)
    transaction.identity, transaction._epoch_used = OURS, True
    transaction._coordinator = claims  # type: ignore[assignment]
    transaction._owner = IdOwner(claims, lambda: 1_000, 1_000)  # type: ignore[arg-type]
    transaction._markers = Nothing()  # type: ignore[assignment]
    return transaction


class Nothing:
    """Markers of which none is missing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def test_brokers_that_allow_less_by_now_shorten_a_timeout_that_nobody_has_set() -> None:
    """``transaction.max.timeout.ms`` may be lowered while a pipeline runs."""

    class Client(NoClient):
        def broker_config(self, **_: object) -> dict[str, str]:
            return {"transaction.max.timeout.ms": "60000"}

    class Strict:
        def init_producer_id(
            self, expected: ProducerIdentity, timeout_ms: int, deadline: object
        ) -> ProducerIdentity:
            if timeout_ms > 60_000:
                raise Refused(Api.INIT_PRODUCER_ID, 50, find_rule(Api.INIT_PRODUCER_ID, 50), "id")
            return expected._replace(epoch=expected.epoch + 1)

    def claimed(timeout_ms: int | None) -> Transaction:
        transaction = Transaction(Client(), "id", timeout_ms)  # type: ignore[arg-type]
        transaction.identity, transaction._coordinator = OURS, Strict()  # type: ignore[assignment]
        transaction._claim_next_epoch(OURS)
        return transaction

    assert claimed(None).timeout_ms == 60_000
    with raises(TransactionTimeoutTooLarge):
        claimed(90_000)


@pytest.mark.parametrize(
    "given",
    [
        ProducerIdentity(7, OURS.epoch + 1),
        ProducerIdentity(7, OURS.epoch + 2),
        ProducerIdentity(8, 0),
    ],
    ids=["1", "2", "the id was forgotten"],
)
def test_an_epoch_of_ours_whose_answer_was_lost_with_its_coordinator_is_no_takeover(
    given: ProducerIdentity,
) -> None:
    claims = Claims(2, lambda timeout_ms: TransactionDescription(given, "Empty", timeout_ms))
    transaction = claiming(claims)
    assert transaction.begin() == given._replace(epoch=given.epoch + 1)
    assert [identity for identity, _ in claims.asked] == [OURS, given]
    assert all(timeout_ms < transaction.timeout_ms for _, timeout_ms in claims.asked), (
        "a takeover asks for as much"
    )


@pytest.mark.parametrize(
    "claims",
    [
        Claims(
            2, lambda _: TransactionDescription(ProducerIdentity(7, 5), "Empty", 1000)
        ),  # the settings' own timeout
        Claims(2, lambda ours: TransactionDescription(ProducerIdentity(7, 5), "Ongoing", ours)),
        Claims(
            2, lambda ours: TransactionDescription(ProducerIdentity(7, 5), "CompleteCommit", ours)
        ),
        Claims(
            2, lambda ours: TransactionDescription(ProducerIdentity(8, 0), "CompleteCommit", ours)
        ),
        Claims(2, lambda ours: TransactionDescription(ProducerIdentity(7, 7), "Empty", ours)),
        Claims(2, lambda ours: TransactionDescription(ProducerIdentity(8, 5), "Empty", ours)),
        Claims(2, lambda _: TransactionDescription(ProducerIdentity(8, 0), "Empty", 1000)),
        Claims(
            1, lambda ours: TransactionDescription(ProducerIdentity(7, 5), "Empty", ours)
        ),  # none got lost
        Claims(
            2,
            lambda ours: TransactionDescription(ProducerIdentity(7, 5), "Empty", ours),
            later=True,
        ),
    ],
    ids=[
        "settings",
        "open",
        "used",
        "forgotten and used",
        "three on",
        "another id",
        "forgotten and taken",
        "answered",
        "somebody came",
    ],
)
def test_any_other_refusal_of_a_claim_is_a_takeover(claims: Claims) -> None:
    with pytest.raises(Fenced):
        claiming(claims).begin()


@pytest.mark.parametrize("given", [ProducerIdentity(7, 5), ProducerIdentity(8, 0)])
def test_whoever_has_written_since_is_not_taken_for_ourselves(given: ProducerIdentity) -> None:
    """Of a short timeout few are a little shorter: a newer copy's claim may have asked for the one
    that ours did.
    """
    claims = Claims(2, lambda ours: TransactionDescription(given, "Empty", ours))
    transaction = claiming(claims)
    transaction._outdated = lambda: True
    with pytest.raises(Fenced):
        transaction.begin()
    assert [identity for identity, _ in claims.asked] == [OURS], (
        "a claim of its identity would fence it"
    )


@pytest.mark.parametrize(("timeout_ms", "why"), [(600_000, Fenced), (0, TransactionTimedOut)])
def test_a_transaction_too_young_to_have_timed_out_was_taken_over(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int, why: type[OncewardError]
) -> None:
    """A takeover of an open transaction begins as a timeout does: with an abort under the next
    epoch.
    """
    transaction = transaction_in(State.OPEN)
    transaction.identity, transaction.version = OURS, 2
    aborted = TransactionDescription(ProducerIdentity(7, 5), "PrepareAbort", 1000)
    taken = TransactionDescription(ProducerIdentity(7, 6), "Empty")
    monkeypatch.setattr(transaction, "timeout_ms", timeout_ms)
    monkeypatch.setattr(transaction, "_owner", told_of(aborted, aborted, taken))
    assert type(transaction.explain(Fenced("refused"))) is why


@pytest.mark.parametrize("timeout_ms", [600_000, 0])
def test_a_refusal_that_nobody_explains_is_a_timeout_only_when_it_may_be(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """No answer, or one of a coordinator that has heard of nobody: the next attempt finds out."""
    for holder in (
        IdOwner(Nobody(), lambda: 1, 1),
        told_of(TransactionDescription(OURS, "Ongoing", 1000)),
    ):  # type: ignore[arg-type]
        transaction = transaction_in(State.OPEN)
        transaction.identity = OURS
        monkeypatch.setattr(transaction, "timeout_ms", timeout_ms)
        monkeypatch.setattr(transaction, "_owner", holder)
        error = transaction.explain(Fenced("refused"))
        assert transaction.state is State.TIMED_OUT, "which abort() and recover() both lead out of"
        assert type(error) is (BatchFailed if timeout_ms else TransactionTimedOut)
        assert error.recovery is Recovery.RUN_AGAIN
        assert ("is not known" in str(error)) is bool(timeout_ms)


def test_two_tasks_that_meet_one_timeout_are_told_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one's refusal is explained when the first has already moved the state on."""
    transaction = transaction_in(State.OPEN)
    transaction.identity, transaction.version = OURS, 1
    transaction._added.add(TopicPartition("t", 0))
    aborted = TransactionDescription(ProducerIdentity(7, 5), "CompleteAbort", 1000)
    monkeypatch.setattr(transaction, "timeout_ms", 0)
    monkeypatch.setattr(transaction, "_owner", told_of(aborted))
    for _ in range(2):
        assert type(transaction.explain(Fenced("refused"))) is TransactionTimedOut
    assert transaction.state is State.TIMED_OUT
    taken = TransactionDescription(ProducerIdentity(7, 6), "Empty")
    monkeypatch.setattr(transaction, "_owner", told_of(taken))
    assert type(transaction.explain(Fenced("refused"))) is Fenced


class Takeover(Claims):
    """A newer copy has the id: it has aborted a trial of its own under the very next epoch."""

    def __init__(self) -> None:
        super().__init__(1, lambda _: self.describe())

    def describe(self, deadline: object = None) -> TransactionDescription:
        return TransactionDescription(OURS._replace(epoch=5), "CompleteAbort", 1000)

    def add_partitions(self, *_: object) -> None:
        raise Refused(
            Api.ADD_PARTITIONS_TO_TXN,
            90,
            find_rule(Api.ADD_PARTITIONS_TO_TXN, 90),
            "id",
            attempts=1,
        )


def test_a_newer_copy_that_has_aborted_its_own_trial_is_left_alone() -> None:
    """What it asked for tells it from an abort for our sake: claiming its epoch would fence it."""
    newer = Takeover()
    transaction = claiming(newer)
    transaction._timeouts.granted(995)  # as a claim of ours had it
    transaction._epoch_used = False
    transaction.begin()
    with pytest.raises(Fenced):
        transaction.add_partitions([TopicPartition("t", 0)])
    assert transaction.state is State.FENCED
    assert newer.asked == []


class Abortable(Claims):
    """Refuses an abort with 120, and carries it out, under the next epoch, for the claim that
    follows.
    """

    def __init__(self) -> None:
        super().__init__(
            1,
            lambda asked_ms: TransactionDescription(OURS._replace(epoch=5), "CompleteAbort", 1000),
        )

    def end(self, *_: object, **__: object) -> None:
        raise Refused(Api.END_TXN, 120, find_rule(Api.END_TXN, 120), "id", attempts=1)


def test_an_abort_that_was_not_carried_out_is_no_takeover() -> None:
    """Under transaction version 1 the claim of the next epoch aborts what is open, and is then
    refused.
    """
    coordinator = Abortable()
    transaction = claiming(coordinator)
    transaction._client = SimpleNamespace(transaction_version=lambda: 1)  # type: ignore[assignment]
    transaction.state = State.OPEN
    transaction._added.add(TopicPartition("t", 0))
    transaction.abort()
    assert transaction.state is State.READY
    assert [identity for identity, _ in coordinator.asked] == [OURS, OURS._replace(epoch=5)]
    assert transaction.begin() == OURS._replace(epoch=6)


def test_what_was_asked_for_without_an_answer_is_ours_too() -> None:
    """It may have been carried out, or be carried out yet."""
    silence = Claims(1, lambda _: TransactionDescription(OURS, "Empty", 0))

    def lost(expected: ProducerIdentity, timeout_ms: int, deadline: object) -> ProducerIdentity:
        silence.asked.append((expected, timeout_ms))
        raise unanswered(Api.INIT_PRODUCER_ID)

    transaction = claiming(silence)
    transaction._coordinator.init_producer_id = lost  # type: ignore[method-assign,assignment]
    with pytest.raises(BrokerUnreachable):
        transaction.begin()
    ((_, asked_ms),) = silence.asked
    found = TransactionDescription(OURS._replace(epoch=5), "CompleteAbort", asked_ms)
    transaction.version = 2
    assert classify(transaction._ours(), found) is Fencing.ABORTED_FOR_US


class SilentFirst(Claims):
    """Does not answer the first claim, refuses the second, and gives to whoever comes with what it
    has given.
    """

    def init_producer_id(
        self, expected: ProducerIdentity, timeout_ms: int, deadline: object
    ) -> ProducerIdentity:
        if not self.asked:
            self.asked.append((expected, timeout_ms))
            raise unanswered(Api.INIT_PRODUCER_ID)
        if expected == OURS:
            self.asked.append((expected, timeout_ms))
            raise Refused(
                Api.INIT_PRODUCER_ID, 90, find_rule(Api.INIT_PRODUCER_ID, 90), "id", attempts=1
            )
        return super().init_producer_id(expected, timeout_ms, deadline)


def test_a_claim_without_any_answer_may_have_been_carried_out() -> None:
    """By a coordinator that is no more: the next one refuses us, and knows the timeout of its last
    entry alone.
    """
    claims = SilentFirst(
        1, lambda lost_ms: TransactionDescription(OURS._replace(epoch=5), "Empty", lost_ms)
    )
    transaction = claiming(claims)
    with pytest.raises(BrokerUnreachable):
        transaction.begin()
    assert transaction.begin() == OURS._replace(epoch=6)
    assert [identity for identity, _ in claims.asked] == [OURS, OURS, OURS._replace(epoch=5)]


def test_a_takeover_after_a_claim_without_any_answer_is_one() -> None:
    transaction = claiming(
        SilentFirst(1, lambda _: TransactionDescription(OURS._replace(epoch=5), "Empty", 1000))
    )
    with pytest.raises(BrokerUnreachable):
        transaction.begin()
    with pytest.raises(Fenced):
        transaction.begin()


@pytest.mark.parametrize("begins", [1, 2, 50])
def test_a_claim_of_long_ago_is_no_reason_to_take_what_another_copy_has_claimed(
    begins: int,
) -> None:
    """A newer copy has, by chance, asked for the timeout that a claim of ours without an answer
    had.
    """
    current = [(OURS, "CompleteCommit", 1000)]
    claims = Claims(1, lambda _: TransactionDescription(*current[0]))

    def claim(expected: ProducerIdentity, timeout_ms: int, deadline: object) -> ProducerIdentity:
        claims.asked.append((expected, timeout_ms))
        if len(claims.asked) == 1:
            raise unanswered(Api.INIT_PRODUCER_ID)
        if expected != current[0][0]:
            raise Refused(
                Api.INIT_PRODUCER_ID, 90, find_rule(Api.INIT_PRODUCER_ID, 90), "id", attempts=1
            )
        current[0] = expected._replace(epoch=expected.epoch + 1), "Empty", timeout_ms
        return current[0][0]

    transaction = claiming(claims)
    transaction._coordinator.init_producer_id = claim  # type: ignore[method-assign,assignment]
    with pytest.raises(BrokerUnreachable):
        transaction.begin()
    for _ in range(begins):
        transaction.begin()
        transaction.state = State.READY
    newer = transaction.identity._replace(epoch=transaction.identity.epoch + 2)
    current[0] = newer, "Empty", claims.asked[0][1]
    with pytest.raises(Fenced):
        transaction.begin()
    assert current[0][0] == newer


class Frozen(Claims):
    """Does not answer the first claim, and carries it out behind the second, as a coordinator does
    with a repetition: the epoch stays, and its timeout is that of the late one.
    """

    def __init__(self) -> None:
        super().__init__(1, lambda _: self.kept)
        self.kept = TransactionDescription(OURS, "CompleteCommit", 1000)

    def init_producer_id(
        self, expected: ProducerIdentity, timeout_ms: int, deadline: object
    ) -> ProducerIdentity:
        self.asked.append((expected, timeout_ms))
        if len(self.asked) == 1:
            raise unanswered(Api.INIT_PRODUCER_ID)
        self.kept = TransactionDescription(
            OURS._replace(epoch=OURS.epoch + 1), "Empty", self.asked[0][1]
        )
        return self.kept.identity

    def end(self, identity: ProducerIdentity, **_: object) -> ProducerIdentity:
        assert identity == self.kept.identity
        self.on("CompleteCommit")
        return self.kept.identity

    def on(self, state: str) -> None:
        identity = self.kept.identity
        self.kept = TransactionDescription(
            identity._replace(epoch=identity.epoch + 1), state, self.kept.timeout_ms
        )


@pytest.mark.parametrize("commits", [0, 1, 3])
def test_a_late_claim_of_ours_gives_our_epoch_its_timeout(commits: int) -> None:
    """Under transaction version 2 until the next claim, however many commits there are before."""
    coordinator = Frozen()
    transaction = claiming(coordinator)
    transaction.version, transaction.timeout_ms = 2, 100_000
    with pytest.raises(BrokerUnreachable):
        transaction.begin()
    for _ in range(commits):
        transaction.begin()
        transaction.commit()
    transaction.begin()
    coordinator.on("CompleteAbort")
    transaction.timeout_ms = 0  # it is old enough
    transaction._client = SimpleNamespace(broker_config=lambda **_: {})  # type: ignore[assignment]
    assert type(transaction.explain(Fenced("refused", next_step=""))) is TransactionTimedOut


def test_equal_timeouts_of_two_claims_are_told_apart() -> None:
    asked_for = RequestedTimeouts(1)
    first, second = asked_for.next_claim_ms(1), asked_for.next_claim_ms(1)
    assert first == second, "there is but one"
    asked_for.unanswered_ms.remove(second)
    assert asked_for.unanswered_ms == [first]


def test_an_abort_that_was_refused_can_be_made_good_when_the_coordinator_is_back() -> None:
    coordinator = Abortable()
    transaction, given = claiming(coordinator), coordinator.init_producer_id

    def silent(*_: object) -> ProducerIdentity:
        raise unanswered(Api.INIT_PRODUCER_ID)

    transaction._client = SimpleNamespace(transaction_version=lambda: 1)  # type: ignore[assignment]
    transaction.state = State.OPEN
    transaction._added.add(TopicPartition("t", 0))
    coordinator.init_producer_id = silent  # type: ignore[method-assign,assignment]
    with pytest.raises(BrokerUnreachable):
        transaction.abort()
    coordinator.init_producer_id = given  # type: ignore[method-assign]
    transaction.recover()
    assert transaction.state is State.READY


@pytest.mark.parametrize(
    "silent", ["the coordinator", "whoever knows the coordinator", "the ledger"]
)
def test_who_cannot_be_told_whose_epoch_it_is_may_ask_again(silent: str) -> None:
    """The first claim's answer was lost, and it was carried out; whether by us, nobody can say for
    a moment.
    """
    claims, quiet = (
        Claims(
            2, lambda ours_ms: TransactionDescription(OURS._replace(epoch=5), "Empty", ours_ms)
        ),
        [True],
    )
    told = claims._found

    def found(ours_ms: int) -> TransactionDescription:
        if quiet[0] and silent == "the coordinator":
            raise unanswered(Api.DESCRIBE_TRANSACTIONS)
        if quiet[0] and silent == "whoever knows the coordinator":
            raise BrokerUnreachable("no coordinator", next_step="wait")
        return told(ours_ms)

    def outdated() -> bool:
        if quiet[0] and silent == "the ledger":
            raise BrokerUnreachable("no leader", next_step="wait")
        return False

    claims._found = found
    refused = claims.init_producer_id

    def claim(expected: ProducerIdentity, timeout_ms: int, deadline: object) -> ProducerIdentity:
        claims._later = expected == OURS
        if claims.asked:  # the second time no answer gets lost
            claims._attempts = 1
        return refused(expected, timeout_ms, deadline)

    transaction = claiming(claims)
    transaction._coordinator.init_producer_id = claim  # type: ignore[method-assign,assignment]
    transaction._outdated = outdated
    with pytest.raises(BrokerUnreachable):
        transaction.begin()
    quiet[0] = False
    assert transaction.begin() == OURS._replace(epoch=6)


class Silence(Claims):
    """Refuses the first claim, and is not heard of any more: at the question why, or at the claim
    that follows.
    """

    def __init__(self, answers_why: bool) -> None:
        super().__init__(
            1, lambda _: TransactionDescription(OURS._replace(epoch=5), "CompleteAbort", 1000)
        )
        self._answers_why = answers_why

    def init_producer_id(
        self, expected: ProducerIdentity, timeout_ms: int, deadline: object
    ) -> ProducerIdentity:
        if self.asked:
            raise unanswered(Api.INIT_PRODUCER_ID)
        return super().init_producer_id(expected, timeout_ms, deadline)

    def describe(self, deadline: object) -> TransactionDescription:
        if self.asked and not self._answers_why:
            raise unanswered(Api.DESCRIBE_TRANSACTIONS)
        return super().describe(deadline)


def unanswered(api: Api) -> Unanswered:
    return Unanswered(api, "id", Deadline(1), "timed out", None)


@pytest.mark.parametrize("answers_why", [False, True], ids=["why", "then"])
@pytest.mark.parametrize("state", [State.IN_DOUBT, State.TIMED_OUT])
def test_recovery_without_an_answer_can_be_tried_again(state: State, answers_why: bool) -> None:
    """Whether a newer copy is there is not known then, and FENCED would be for good."""
    transaction = claiming(Silence(answers_why))
    transaction.state = state
    transaction._client = SimpleNamespace(transaction_version=lambda: 2)  # type: ignore[assignment]
    transaction.version = 2
    with pytest.raises(BrokerUnreachable):
        transaction.recover()
    assert transaction.state is state
