"""What the driver does with a batch, without Spark: fence, read the ledger, stage, commit, settle.

The verdict on offsets and ledger is librdkafka's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from onceward import surroundings
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import CommitInDoubt, Fenced, SendFailed
from onceward.ids import AttemptId, ProducerIdentity
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.source.source import _ledger_positions
from onceward.kafka.source.topics_and_positions import NamedTopics
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward_testing.sink_contract import certain
from support.ledger_driver import Driver
from support.lost_answers import lost_end_txn
from support.wire_fixtures import Writer, appends_to, settings

pytestmark = pytest.mark.broker

A_WHILE = 1.5  # how long an answer is held back for something that must not happen meanwhile


def test_offsets_and_ledger_record_are_there_with_the_commit_and_not_before(
    driver: Driver,
) -> None:
    target = driver.new()
    assert target.open(driver.running(0)) is None
    attempt = driver.stage(target, 0)
    record = attempt.record
    assert driver.new().peek() is None
    attempt.commit()
    assert driver.committed_sequences() == [0]
    assert driver.group_offset() == 10
    assert driver.new().open(driver.running(1)) == record


def test_offsets_and_ledger_record_of_an_aborted_attempt_never_were(driver: Driver) -> None:
    target = driver.new()
    target.open(driver.running(0))
    driver.stage(target, 0).abort()
    assert driver.committed_sequences() == []
    assert driver.group_offset() is None
    assert driver.new().peek() is None
    driver.commit(target, 0)
    assert driver.committed_sequences() == [0]


def test_what_a_predecessor_commits_just_before_it_is_fenced_is_found(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the ledger first and fences afterwards overlooks it, and writes that batch
    again.
    """
    predecessor, heir = driver.new(), driver.new()
    predecessor.open(driver.running(0))
    take_over = heir.run.chain.transaction.take_over
    committed: list[LedgerRecord] = []

    def at_the_last_moment() -> ProducerIdentity:
        committed.append(driver.commit(predecessor, 0))
        return take_over()

    monkeypatch.setattr(heir.run.chain.transaction, "take_over", at_the_last_moment)
    assert heir.open(driver.running(0)) == committed[0]


def test_a_record_whose_transaction_is_not_decided_is_waited_for_when_a_run_begins(
    driver: Driver,
) -> None:
    """As right after a restart: ``EndTxn`` is answered before its markers are in the log. A glance
    will not do.
    """
    client = KafkaClient(settings(driver.bootstrap)[0])
    writer = Writer(client, f"slow-markers-{driver.name}")
    ledger = LedgerTopic(client, driver.ledger_topic, driver.name)
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.transaction.add_partitions([ledger.partition()])
    record = driver.record(0, AttemptId(*writer.transaction.identity))
    writer.producer().send(appends_to(ledger.partition(), [ledger.record_to_append(record)]))
    heir = driver.new()
    assert heir.peek() is None
    decide = threading.Timer(1.0, writer.transaction.commit)
    decide.start()
    assert heir.open(driver.running(0)) == record
    decide.join()
    client.close()


def test_a_ledger_that_takes_no_old_timestamps_takes_what_was_decided_long_ago(
    driver: Driver, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the progress of a delivery that takes long: each of its records is of one decision."""
    driver.ledger_topic = new_topic(
        driver.bootstrap,
        prefix="ledger",
        cleanup_policy="compact",
        message_timestamp_before_max_ms=600_000,
    )
    target = driver.new()
    target.open(driver.running(0))
    record = driver.commit(target, 0)
    assert record.committed_at_ms == 1_700_000_000_000
    assert target.run.chain.progress(record).committed_at_ms == record.committed_at_ms
    assert driver.committed_sequences() == [0, 0]
    now_ns = surroundings.wall_clock_ns()
    monkeypatch.setattr(surroundings, "wall_clock_ns", lambda: now_ns - 3_600 * 10**9)
    with pytest.raises(SendFailed, match="which has the time of this machine's clock") as slow:
        target.run.chain.progress(record)
    assert driver.ledger_topic in slow.value.next_step


def test_end_txn_waits_until_the_ledger_record_is_acknowledged(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch could commit whose record was lost on its way: the next start would write it
    again.
    """
    target = driver.new()
    target.open(driver.running(0))
    send = target.run.client.send
    asked, answered = threading.Event(), threading.Event()
    too_early: list[str] = []

    def hold(answer: Future[Any], held: Future[Any]) -> None:
        asked.wait(A_WHILE)
        answered.set()
        answer.add_done_callback(lambda done: held.set_result(done.result()))

    def holding(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        name = type(request).__name__
        if name == "EndTxnRequest":
            if not answered.is_set():
                too_early.append("EndTxn was sent before the answer to Produce")
            asked.set()
        answer = send(request, node_id, timeout_ms)
        if name != "ProduceFrame":
            return answer
        held: Future[Any] = Future()
        threading.Thread(target=hold, args=(answer, held)).start()
        return held

    monkeypatch.setattr(target.run.client, "send", holding)
    driver.commit(target, 0)
    assert too_early == []
    assert answered.is_set()
    assert driver.committed_sequences() == [0]


def test_an_end_txn_that_arrives_after_the_doubt_was_settled_finds_nothing_to_commit(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling answers "not committed" only when that can no longer change."""
    target = driver.new()
    target.open(driver.running(0))
    attempt = driver.stage(target, 0)
    client, send = target.run.client, target.run.client.send
    under_way: list[tuple[Any, Any]] = []

    def held(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        if not type(request).__name__.startswith("EndTxn"):
            return send(request, node_id, timeout_ms)
        under_way.append((request, node_id))
        lost: Future[Any] = Future()
        lost.set_exception(ConnectionLost("held on its way"))
        return lost

    target.run.chain.transaction.patience_ms = 1_000
    monkeypatch.setattr(client, "send", held)
    with pytest.raises(CommitInDoubt):
        attempt.commit()
    monkeypatch.setattr(client, "send", send)
    target.run.chain.transaction.patience_ms = 30_000
    assert target.settle() is None
    late = send(*under_way[0], 30_000).result(30)
    assert late.error_code != 0
    assert driver.committed_sequences() == []
    assert driver.group_offset() is None
    record = driver.commit(target, 0)
    assert driver.committed_sequences() == [0]
    assert certain(lambda: driver.new().peek()) == record


@pytest.mark.parametrize("doing", ["stage", "settle"])
def test_an_old_copy_does_not_abort_what_its_heir_has_open(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """``InitProducerId`` with an old identity is refused only after the coordinator has aborted
    what is open.
    """
    old, heir = driver.new(), driver.new()
    old.open(driver.running(0))
    attempt = driver.stage(old, 0)
    if doing == "stage":
        attempt.commit()
    else:
        with lost_end_txn(old.run.chain, carried_out=False), pytest.raises(CommitInDoubt):
            attempt.commit()
    newest = heir.open(driver.running(0))
    number = 0 if newest is None else 1
    heirs = driver.stage(heir, number)
    with pytest.raises(Fenced):
        old.settle() if doing == "settle" else driver.stage(old, number)
    heirs.commit()
    assert driver.committed_sequences()[-1] == number
    assert driver.group_offset() == number * 10 + 10


def test_the_ledger_says_where_a_source_goes_on_not_the_consumer_group(driver: Driver) -> None:
    """Anybody may move the group's offsets; nobody but the pipeline's own transaction writes its
    ledger record.
    """
    target = driver.new()
    target.open(driver.running(0))
    driver.commit(target, 0)
    driver.move_group(3)
    assert driver.group_offset() == 3
    client = KafkaClient(settings(driver.bootstrap)[0])
    positions = _ledger_positions(
        client,
        NamedTopics([driver.source]),
        driver.name,
        "earliest",
        driver.ledger_topic,
        None,
        False,
    )
    client.close()
    assert json.loads(positions) == {driver.source: {"0": 10}}


def test_a_ledger_record_is_found_after_its_key_moved_to_another_partition(driver: Driver) -> None:
    """Partitions that somebody adds to the ledger topic move keys; what was written before stays
    where it is.
    """
    target = driver.new()
    target.open(driver.running(0))
    record = driver.commit(target, 0)
    count = driver.move_ledger()
    heir = driver.new()
    assert heir.open(driver.running(1)) == record
    newer = driver.commit(heir, 1)
    assert count > 1
    assert driver.new().open(driver.running(2)) == newer
