"""What the driver makes of a ledger that is outdated where it is read, or that others write to."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

import onceward as ow
from onceward.engine.ledger.record import encode
from onceward.errors import CommitInDoubt, LedgerOutdated, LedgerUnreadable, Recovery
from onceward.ids import AttemptId
from onceward.kafka.sink.attempt import KafkaAttempt
from onceward.kafka.sink.sink import KafkaTarget
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.reads.offsets import LATEST, list_offsets
from onceward.spark.batch.query import RunningBatch
from onceward_testing.sink_contract import certain
from support.deposed_leader import deposed
from support.ledger_driver import Driver
from support.wire_fixtures import Writer, appends_to, settings

pytestmark = pytest.mark.broker


def elsewhere(driver: Driver, number: int) -> RunningBatch:
    """A batch whose source lies on another cluster, so that no consumer group betrays an outdated
    ledger.
    """
    return replace(driver.running(number), kafka_sources=())


def begun(driver: Driver, target: KafkaTarget, number: int) -> KafkaAttempt:
    return target.begin(driver.record(number - 1) if number else None, elsewhere(driver, number))


def stage(driver: Driver, attempt: KafkaAttempt, number: int) -> None:
    attempt.stage(driver.record(number, attempt.id), elsewhere(driver, number))


def commit(driver: Driver, target: KafkaTarget, number: int) -> None:
    attempt = begun(driver, target, number)
    stage(driver, attempt, number)
    attempt.commit()


def end_of_ledger(driver: Driver, target: KafkaTarget) -> int:
    """Where the home of the pipeline's key ends now, the marker of the last commit included."""
    where = target.run.chain._topic.partition()
    assert driver.committed_sequences()  # waits for the marker
    return list_offsets(target.run.client, [where], LATEST)[where]


def test_a_batch_admitted_by_an_outdated_ledger_stops(driver: Driver) -> None:
    first, heir = driver.new(), driver.new()
    first.open(elsewhere(driver, 0))
    commit(driver, first, 0)
    end = end_of_ledger(driver, first)
    commit(driver, first, 1)
    with deposed(heir.run.client, driver.ledger_topic, end) as cut:
        newest = heir.open(elsewhere(driver, 1))
    assert cut
    assert newest is not None
    assert newest.sequence == 0
    attempt = begun(driver, heir, 1)
    with pytest.raises(LedgerOutdated, match="start the query again") as outdated:
        stage(driver, attempt, 1)
    assert outdated.value.details["newest"] == 1
    attempt.abort()
    assert driver.committed_sequences() == [0, 1]
    again = driver.new().open(elsewhere(driver, 1))
    assert again is not None
    assert (
        again.batch == driver.record(1).batch
    )  # the advice works: what was taken for the next batch is a replay


def test_a_first_batch_that_was_committed_already(driver: Driver) -> None:
    """The outdated log has nothing at all of the pipeline."""
    first, heir = driver.new(), driver.new()
    first.open(elsewhere(driver, 0))
    commit(driver, first, 0)
    with deposed(heir.run.client, driver.ledger_topic, 0):
        assert heir.open(elsewhere(driver, 0)) is None
    attempt = begun(driver, heir, 0)
    with pytest.raises(LedgerOutdated):
        stage(driver, attempt, 0)
    attempt.abort()
    assert driver.committed_sequences() == [0]


def test_a_start_is_not_refused_for_an_outdated_ledger(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is ahead of what a deposed leader says of the ledger; that nothing is lost shows
    behind an append.
    """
    first, heir = driver.new(), driver.new()
    first.open(driver.running(0))
    driver.commit(first, 0)
    end = end_of_ledger(driver, first)
    driver.commit(first, 1)
    confirm = heir.run.chain.confirm
    with ExitStack() as stack:
        cut = stack.enter_context(deposed(heir.run.client, driver.ledger_topic, end))
        # Whoever acknowledges an append leads.
        monkeypatch.setattr(heir.run.chain, "confirm", lambda: (stack.close(), confirm()))
        with pytest.raises(LedgerOutdated) as outdated:
            heir.open(driver.running(2))
    assert cut
    assert outdated.value.recovery is Recovery.REOPEN
    again = driver.new()
    newest = again.open(driver.running(2))
    assert newest is not None
    assert newest.sequence == 1
    driver.commit(again, 2)
    assert driver.committed_sequences() == [0, 1, 2]


def test_a_doubt_settled_by_an_outdated_ledger(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Not committed", says a deposed leader of a batch that is; so it runs again, and may not
    commit.
    """
    target = driver.new()
    target.open(elsewhere(driver, 0))
    commit(driver, target, 0)
    end = end_of_ledger(driver, target)
    attempt = begun(driver, target, 1)
    stage(driver, attempt, 1)
    end_txn = target.run.chain.transaction._coordinator.end

    def answer_lost(*args: Any, **kwargs: Any) -> Any:
        end_txn(*args, **kwargs)
        raise ConnectionLost("lost on purpose: the answer")

    with monkeypatch.context() as patch:
        patch.setattr(target.run.chain.transaction._coordinator, "end", answer_lost)
        with pytest.raises(CommitInDoubt):
            attempt.commit()
    with deposed(target.run.client, driver.ledger_topic, end) as cut:
        settled = target.settle()
    assert cut
    assert settled is not None
    assert settled.sequence == 0
    again = begun(driver, target, 1)
    with pytest.raises(LedgerOutdated):
        stage(driver, again, 1)
    again.abort()
    assert driver.committed_sequences() == [0, 1]


def test_a_chain_that_is_taken_is_read_to_its_end_before_anything_is_dropped(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A two-phase sink aborts at its start what it does not find decided."""
    first = driver.new()
    first.open(elsewhere(driver, 0))
    commit(driver, first, 0)
    end = end_of_ledger(driver, first)
    commit(driver, first, 1)
    chain: Any = ow.KafkaLedger(driver.bootstrap, driver.ledger_topic).chain(driver.name)
    with ExitStack() as deposition:
        cut = deposition.enter_context(deposed(chain._client, driver.ledger_topic, end))
        producer = chain.producer

        def and_the_client_hears_of_the_new_leader() -> Any:
            deposition.close()
            return producer()

        monkeypatch.setattr(chain, "producer", and_the_client_hears_of_the_new_leader)
        with pytest.raises(LedgerOutdated):
            chain.take()
    assert cut
    chain.close()
    again = ow.KafkaLedger(driver.bootstrap, driver.ledger_topic).chain(driver.name)
    newest = again.take()
    again.close()
    assert newest is not None
    assert newest.sequence == 1
    assert driver.committed_sequences() == [0, 1], "what it appended to see that was aborted"


def test_the_ledger_is_looked_at_once_a_run(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = driver.new()
    target.open(elsewhere(driver, 0))
    fetches: list[int] = []
    send = target.run.client.send

    def counting(request: Any, *rest: Any) -> Any:
        if type(request).__name__.startswith("FetchRequest"):
            fetches.append(len(committed))
        return send(request, *rest)

    monkeypatch.setattr(target.run.client, "send", counting)
    committed: list[int] = []
    for number in range(3):
        commit(driver, target, number)
        committed.append(number)
    assert set(fetches) == {0}, "only before the first commit"


def test_a_plain_producers_record_is_left_alone(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Who may write to the topic, as every pipeline on it may, must not be able to make a batch
    look committed.
    """
    target = driver.new()
    target.open(driver.running(0))
    record = driver.commit(target, 0)
    put(driver, encode(replace(record, sequence=5, batch=driver.running(5).batch)))
    put(driver, None)
    with caplog.at_level(logging.WARNING):
        assert driver.new().open(driver.running(1)) == record
    (warning,) = {
        r.getMessage()
        for r in caplog.records
        if driver.name in r.getMessage() and "left alone" in r.getMessage()
    }
    assert driver.ledger_topic in warning
    assert driver.name in warning


def test_another_transactions_record_is_left_alone(driver: Driver) -> None:
    target = driver.new()
    target.open(driver.running(0))
    record = driver.commit(target, 0)
    stranger = Producer(
        {"bootstrap.servers": driver.bootstrap, "transactional.id": f"stranger-{driver.name}"}
    )
    stranger.init_transactions(60)
    stranger.begin_transaction()
    stranger.produce(
        driver.ledger_topic,
        key=driver.name,
        value=encode(replace(record, sequence=5)),
        partition=0,
    )
    stranger.flush(60)
    assert certain(lambda: driver.new().peek()) == record, "an open one holds nobody up"
    stranger.commit_transaction(60)
    assert driver.new().open(driver.running(1)) == record


def test_a_forger_who_names_himself_is_noticed(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """The log does not say whose transaction it was, so that this one is believed; hence a ledger
    topic per domain of trust. What the coordinator knows of the pipeline shows that something is
    odd.
    """
    target = driver.new()
    target.open(driver.running(0))
    record = driver.commit(target, 0)
    client = KafkaClient(settings(driver.bootstrap)[0])
    forger = Writer(client, f"forger-{driver.name}")
    forged = replace(record, sequence=1, attempt=AttemptId(*forger.transaction.take_over()))
    where = target.run.chain._topic.partition()
    forger.transaction.begin()
    forger.transaction.add_partitions([where])
    forger.producer().send(appends_to(where, [target.run.chain._topic.record_to_append(forged)]))
    forger.transaction.commit()
    client.close()
    with caplog.at_level(logging.WARNING):
        assert driver.new().open(driver.running(1)) == forged
    assert [text for text in caplog.messages if "somebody else wrote that record" in text]


def test_a_ledger_of_others_records_alone_is_refused(driver: Driver) -> None:
    record = driver.record(0)
    put(driver, encode(record))
    with pytest.raises(LedgerUnreadable, match="tombstone") as refused:
        driver.new().open(driver.running(1))
    assert json.loads(encode(record))["pipeline"] in refused.value.message
    put(driver, None)  # the way out that the error names
    assert driver.new().open(driver.running(1)) is None


def put(driver: Driver, value: bytes | None) -> None:
    """Under the pipeline's key, without a transaction."""
    producer = Producer({"bootstrap.servers": driver.bootstrap})
    producer.produce(driver.ledger_topic, key=driver.name, value=value, partition=0)
    assert producer.flush(60) == 0
