"""A chain whose producer id changes: epochs ran out, or Kafka forgot the pipeline, and with it
whoever took over.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.engine.ledger.record import LedgerRecord, RecordState, decode, encode
from onceward.errors import (
    BatchFailed,
    BrokerUnreachable,
    Fenced,
    LedgerBehind,
    LedgerOutdated,
    LedgerUndecided,
)
from onceward.ids import AttemptId, BatchId, PipelineId, ProducerIdentity, TopicPartition
from onceward.kafka.ledger.chain import KafkaChain, _attempts, _committed_among
from onceward.kafka.wire.transactions.states import State
from support.errors import raises


def record(sequence: int, attempt: AttemptId) -> LedgerRecord:
    return LedgerRecord(PipelineId("p"), sequence, BatchId("q", sequence), (), attempt, {}, 0)


OURS = record(0, AttemptId(7, 1))


class Transaction:
    """Gives a new producer id each time, as if it had been forgotten."""

    def __init__(self) -> None:
        self.state = State.READY
        self.identity = ProducerIdentity(7, 1)
        self.aborted = 0

    def begin(self, first: TopicPartition) -> ProducerIdentity:
        assert self.state is State.READY
        self.identity = ProducerIdentity(self.identity.producer_id + 1, 0)
        self.state = State.OPEN
        return self.identity

    def abort(self) -> None:
        self.aborted += 1
        self.state = State.READY


def chain(*read: LedgerRecord | Exception | None) -> Any:
    """One that has begun under producer 7, and reads these, one after the other."""
    made: Any = KafkaChain.__new__(KafkaChain)
    made._pipeline = PipelineId("p")
    made._producer_id, made._committed = 7, OURS.sequence
    made.transaction = Transaction()
    answers = list(read)

    def newest() -> LedgerRecord | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made._topic = SimpleNamespace(
        newest=newest,
        topic="ledger",
        answers=answers,
        partition=lambda: TopicPartition("ledger", 0),
        look_again=lambda: None,
    )
    return made


def test_a_new_producer_id_goes_on_where_the_ledger_is_ours():
    ours = chain(OURS, OURS)
    assert ours.begin(OURS) == AttemptId(8, 0)
    ours.transaction.abort()
    assert ours.begin(OURS) == AttemptId(9, 0)
    assert not ours._topic.answers, "it is looked at each time"


def test_whoever_goes_by_what_a_ledger_lacks_does_not_take_an_open_transaction_for_nothing() -> (
    None
):
    """``peek`` says None then, as of a pipeline that is new."""
    onlooker = chain(LedgerUndecided("a transaction is open"), OURS)
    with pytest.raises(LedgerUndecided):
        onlooker.read()
    assert onlooker.read() == OURS


def test_what_an_attempt_has_left_open_is_ended_before_the_topic_is_looked_at() -> None:
    """The look may take seconds, and readers of the output would wait."""
    ours = chain(OURS, OURS)
    seen: list[State] = []
    ours._topic.look_again = lambda: seen.append(ours.transaction.state)
    ours.begin(OURS)
    ours.begin(OURS)
    assert seen == [State.READY, State.READY]
    assert ours.transaction.aborted == 1


@pytest.mark.fault("transactional-id-expired")
@pytest.mark.parametrize(
    ("known", "found"), [(None, record(0, AttemptId(99, 0))), (OURS, record(1, AttemptId(99, 0)))]
)
def test_a_new_producer_id_after_a_newer_copy_has_written_is_the_end(
    known: LedgerRecord | None, found: LedgerRecord
):
    """The broker had forgotten us both, so that it fenced nobody: the ledger tells."""
    ours = chain(found)
    with raises(Fenced):
        ours.begin(known)
    assert ours.transaction.aborted == 1


def test_the_same_sequence_by_another_is_a_newer_copys():
    with raises(Fenced):
        chain(record(0, AttemptId(99, 0))).begin(OURS)


def test_a_new_producer_id_over_a_ledger_that_has_lost_our_last_record_is_refused():
    ours = chain(None)
    ours.confirm = lambda: None  # by an append; tests/broker has it
    with pytest.raises(LedgerBehind):
        ours.begin(OURS)


def test_nor_is_it_lost_when_a_broker_that_does_not_lead_says_so():
    def confirm() -> None:
        raise LedgerOutdated("there is more")

    ours = chain(None)
    ours.confirm = confirm
    with pytest.raises(LedgerOutdated):
        ours.begin(OURS)


def test_a_decision_that_others_have_finished_since_is_not_the_newest_record() -> None:
    """Of one sequence both: a deposed leader has the decision alone, and it would be published and
    finished once more."""
    decided = replace(OURS, state=RecordState.DECIDED)
    finished = replace(OURS, attempt=AttemptId(8, 0), decided=OURS.attempt)
    ours = chain(decided, finished)
    found = [finished]
    ours._topic.newest_before = lambda offset, identity: found[-1]
    ours.newest()
    with raises(LedgerOutdated, "sequence 0 (finished)"):
        ours._confirm(9, 0)
    assert not ours._confirmed
    ours.newest()
    ours._confirm(9, 0)
    found.append(decided)
    with raises(LedgerOutdated, "sequence 0 (decided)"):
        ours._confirm(9, 0)


def test_a_ledger_that_cannot_be_read_under_a_new_producer_id_is_asked_again():
    ours = chain(BrokerUnreachable("nobody"), OURS)
    with pytest.raises(BrokerUnreachable):
        ours.begin(OURS)
    assert ours.begin(OURS) == AttemptId(9, 0), "the id was not taken for checked"
    assert not ours._topic.answers


def test_the_newest_record_tells_what_became_of_a_transaction_of_ours_if_any_does() -> None:
    ours = chain()
    ours._confirmed, ours._decided = True, _attempts(None)
    assert ours._was_committed(ProducerIdentity(7, 3)) is False
    newest = replace(OURS, attempt=AttemptId(7, 5), decided=AttemptId(7, 2))
    ours._decided, ours._earlier = _attempts(newest), list
    told = {epoch: ours._was_committed(ProducerIdentity(7, epoch)) for epoch in range(1, 7)}
    assert told == {1: None, 2: True, 3: None, 4: None, 5: True, 6: False}
    assert ours._was_committed(ProducerIdentity(8, 0)) is False


def test_of_what_lies_before_the_newest_record_those_that_are_left_tell() -> None:
    left = [record(9, AttemptId(7, 8)), record(8, AttemptId(7, 5)), record(6, AttemptId(7, 2))]
    told = {epoch: _committed_among(left, AttemptId(7, epoch)) for epoch in range(1, 10)}
    assert told == {
        1: None,
        2: True,
        3: None,
        4: None,  # a record between 6 and 8 is gone
        5: True,
        6: False,
        7: False,
        8: True,
        9: None,
    }
    assert _committed_among(left, AttemptId(6, 7)) is None


def test_what_a_broker_that_does_not_lead_the_ledger_may_have_left_out_is_not_aborted() -> None:
    ours, confirmed = chain(), []
    ours._confirmed, ours._decided = False, _attempts(OURS)
    ours.transaction.state = State.OPEN
    ours.confirm = lambda: confirmed.append(True)
    with raises(BatchFailed):
        ours._was_committed(ProducerIdentity(7, 9))
    assert confirmed
    assert ours._was_committed(ProducerIdentity(*OURS.attempt)) is True


def test_a_chain_keeps_what_its_topic_was_first_told_by() -> None:
    """Brokers tell ids since 2.8, and in a rolling upgrade some do: what targets have noted, and
    the names of what they have prepared, hold the identity."""
    asked: list[dict[str, str]] = [{}]

    def of(*read: LedgerRecord) -> Any:
        made = chain(*read)
        made._known_as = ""
        made._client = SimpleNamespace(cluster_id=lambda: "c", topic_ids=lambda _: asked[0])
        for _ in read:
            made.newest()
        return made

    by_name, by_id = replace(OURS, known_as="ledger"), replace(OURS, known_as="id")
    for told, first in (({}, "c/ledger"), ({"ledger": "id"}, "c/id")):
        asked[0] = told
        found = [of(*read).identity() for read in ((), (by_name,), (by_id,))]
        assert found == [first, "c/ledger", "c/id"]
    asked[0] = {"ledger": "other"}
    assert of(by_id).identity() == "c/other", "the topic was created again, or copied"


def test_what_the_topic_was_told_by_is_in_the_next_record() -> None:
    ours = chain()
    ours._client = SimpleNamespace(cluster_id=lambda: "c", topic_ids=lambda _: {"ledger": "id"})
    ours._known_as, ours._confirmed = "", True
    put: list[LedgerRecord] = []
    ours._topic.record_to_append = put.append
    ours._append = lambda *_: 0
    ours.transaction.add_partitions, ours.transaction.open_for_ms = lambda _: None, 1
    ours.put(OURS)
    assert ours.identity() == "c/id"
    ours.put(OURS)
    assert [decode(encode(each), where="here").known_as for each in put] == ["", "id"]
