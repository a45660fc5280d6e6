"""Requests and answers between a pipeline and its broker are lost, late or doubled, one at a time:
it makes no odds.

The pipeline's clients (Spark's source, the driver, the tasks) talk through a proxy; what came of
it is read around it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from streaming_pipeline import Pipeline

import onceward
from fault_table import fired
from onceward import events
from onceward.errors import Fenced, TransactionTimedOut, TransactionTimeoutTooLarge
from onceward_testing import KafkaProxy, LocalKafka

INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED = 47, 48, 90
REFUSED = {INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED}
FIRE_SECONDS = 120


@pytest.fixture
def proxied(any_kafka: LocalKafka) -> LocalKafka:
    """The broker behind the proxy."""
    return any_kafka


@pytest.fixture
def proxy(proxied: LocalKafka) -> Iterator[KafkaProxy]:
    yield proxied.proxy
    proxied.proxy.heal()


@pytest.fixture
def pipeline(
    proxied: LocalKafka, proxy: KafkaProxy, pipeline_on: Callable[..., Pipeline]
) -> Pipeline:
    """Behind the proxy, with two batches to write."""
    pipeline = pipeline_on(proxied)
    pipeline.job_servers = proxied.proxied_servers
    pipeline.feed(80)
    return pipeline


@pytest.fixture(scope="module", params=["4.3.1", "3.9.1"])
def mortal(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Brokers that nobody else stands on."""
    with LocalKafka(version=request.param, proxied=True) as kafka:
        yield kafka


def attempts(steps: list[events.Event]) -> list[int]:
    """The batch of each attempt."""
    return [
        step.ids["batch_id"]
        for step in steps
        if (step.step, step.phase) == (events.PLAN, "started")
    ]


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param("drop_request", marks=pytest.mark.fault("end-txn-request-lost")),
        pytest.param("drop_response", marks=pytest.mark.fault("end-txn-response-lost")),
        "duplicate",
    ],
)
def test_an_end_txn_that_is_lost_or_doubled_costs_no_attempt(
    proxy: KafkaProxy, pipeline: Pipeline, steps: list[events.Event], fate: str
):
    fault = getattr(proxy.on("EndTxn", client_id=f"onceward-{pipeline.name}", times=2), fate)()
    pipeline.run()
    fired(fault.fired == 2, f"{fault.fired} of 2")
    pipeline.assert_exactly_once(ledger_records=2)
    assert attempts(steps) == [0, 1]
    assert len(pipeline.appended()) == 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        pytest.param("drop_request", [0, 0, 1], marks=pytest.mark.fault("end-txn-request-lost")),
        pytest.param("drop_response", [0, 1], marks=pytest.mark.fault("end-txn-response-lost")),
    ],
)
def test_an_end_txn_without_any_answer_is_decided_by_the_ledger(
    proxy: KafkaProxy,
    pipeline: Pipeline,
    at_step: Any,
    steps: list[events.Event],
    fate: str,
    expected: list[int],
):
    """The driver asks as long as its patience lasts; then it looks whether it was carried out."""
    fault = getattr(proxy.on("EndTxn", times=None), fate)()
    at_step(events.COMMIT, "failed", lambda _: proxy.heal())
    pipeline.run(options={"transaction.timeout.ms": 4_000})
    fired(fault.fired >= 2, "not asked again")
    pipeline.assert_exactly_once(ledger_records=2)
    assert attempts(steps) == expected


@pytest.mark.fault("end-txn-late")
def test_an_end_txn_that_comes_after_a_takeover_is_refused(proxy: KafkaProxy, pipeline: Pipeline):
    """The old owner's commit is on its way when somebody newer takes over and has a transaction of
    its own open.
    """
    late = proxy.on("EndTxn", nth=2).hold()
    query = pipeline.start()
    fired(late.wait(FIRE_SECONDS), "no second EndTxn")
    newer = Producer(
        {
            "bootstrap.servers": pipeline.bootstrap,
            "transactional.id": pipeline.name,
            "linger.ms": 0,
        }
    )
    newer.init_transactions(60)
    newer.begin_transaction()
    newer.produce(pipeline.ledger_topic, b"", key=b"somebody newer")
    newer.flush(60)
    late.release()
    assert late.held[0].decoded_answer().error_code in REFUSED
    assert pipeline.ended(query)
    assert type(onceward.error_of(query)) is Fenced
    newer.abort_transaction(60)
    assert len(pipeline.ledger()) == 1
    assert len(pipeline.visible()) == pipeline.ledger()[0]["records"]

    pipeline.run()  # by the operator, who knows which copy is the right one
    pipeline.assert_exactly_once(ledger_records=2)
    assert len(pipeline.appended()) == 120, "INVALID: the old owner had not sent its batch"


@pytest.mark.parametrize(
    "fate",
    [pytest.param("drop_response", marks=pytest.mark.fault("produce-response-lost")), "duplicate"],
)
def test_a_produce_whose_answer_is_lost_is_counted_once(
    proxy: KafkaProxy, pipeline: Pipeline, steps: list[events.Event], fate: str
):
    fault = getattr(proxy.on("Produce", times=4), fate)()
    pipeline.run()
    fired(fault.fired == 4, f"{fault.fired} of 4")
    pipeline.assert_exactly_once(ledger_records=2)
    assert attempts(steps) == [0, 1]
    assert len(pipeline.appended()) == 80, "sent again under another sequence"


@pytest.mark.fault("executor-frozen")
def test_a_produce_that_comes_after_its_batch_has_run_again_is_refused(
    proxy: KafkaProxy, pipeline: Pipeline, steps: list[events.Event]
):
    """What a frozen executor had on its way: the batch is cancelled and runs again, and then it
    arrives.
    """
    late = proxy.on("Produce").hold()
    pipeline.run(batch_timeout_s=15)
    fired(late.fired, "nothing was held")
    fired(attempts(steps) == [0, 0, 1], "the batch did not have to run again")
    pipeline.assert_exactly_once(ledger_records=2)

    before = len(pipeline.appended())
    late.release()
    codes = [
        partition.error_code
        for topic in late.held[0].decoded_answer().responses
        for partition in topic.partition_responses
    ]
    assert codes
    assert set(codes) <= REFUSED
    assert len(pipeline.appended()) == before
    pipeline.assert_exactly_once(ledger_records=2)
    pipeline.feed(40)
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=3)


@pytest.mark.fault("driver-killed-after-commit", "commit-log-deleted")
def test_a_replay_sends_no_produce(
    proxy: KafkaProxy, pipeline: Pipeline, steps: list[events.Event]
):
    pipeline.run()
    assert proxy.count("Produce", client_id=f"onceward-{pipeline.name}") > 2
    replayed = pipeline.forget_commit()
    del steps[:]
    mark = proxy.mark()
    pipeline.run()
    passed = proxy.since(mark)
    assert [
        e.ids["batch_id"] for e in steps if (e.step, e.phase) == (events.REPLAY, "finished")
    ] == [replayed]
    assert {api: passed.count(api) for api in ("Produce", "TxnOffsetCommit", "EndTxn")} == {
        "Produce": 0,
        "TxnOffsetCommit": 0,
        "EndTxn": 0,
    }
    pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.fault("timeout-above-maximum")
def test_a_transaction_timeout_that_the_broker_does_not_grant_is_refused_at_the_start(
    proxy: KafkaProxy, pipeline: Pipeline
):
    mark = proxy.mark()
    error = pipeline.refused(options={"transaction.timeout.ms": 3_600_000})
    assert type(error) is TransactionTimeoutTooLarge
    for named in ("transaction.timeout.ms=3600000", "transaction.max.timeout.ms=900000"):
        assert named in error.message
    assert proxy.since(mark).count("Produce") == 0
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.fault("broker-restart")
@pytest.mark.parametrize("death", ["stop", pytest.param("kill", marks=pytest.mark.slow)])
@pytest.mark.parametrize("api", ["Produce", pytest.param("EndTxn", marks=pytest.mark.slow)])
def test_a_broker_that_restarts_while_a_request_is_on_its_way(
    mortal: LocalKafka, pipeline_on: Callable[..., Pipeline], api: str, death: str
):
    pipeline = pipeline_on(mortal)
    pipeline.job_servers = mortal.proxied_servers
    pipeline.feed(80)
    on_its_way = mortal.proxy.on(api, nth=2).hold()
    query = pipeline.start()
    fired(on_its_way.wait(FIRE_SECONDS), f"no second {api}")
    on_its_way.cancel()
    (node,) = mortal.nodes
    getattr(node, death)()
    time.sleep(1)  # some of the questions meet a closed port
    node.start()
    assert pipeline.ended(query) == ""
    pipeline.assert_exactly_once(ledger_records=2)


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("transaction-times-out")
@pytest.mark.parametrize("driver_records", [10_000, 0], ids=["by-the-driver", "by-tasks"])
def test_brokers_that_take_no_records_do_not_make_the_timeout_too_short(
    proxy: KafkaProxy, pipeline: Pipeline, steps: list[events.Event], driver_records: int
):
    """Twice as long as the transaction may be open, and the cause that is named is the one that it
    is.
    """
    lost = proxy.on("Produce", times=None).drop_request()
    query = pipeline.start(
        frame=pipeline.frame(max_offsets_per_trigger=200),
        options={"transaction.timeout.ms": 4_000, "request.timeout.ms": 1_000},
        driver_records=driver_records,
        batch_attempts=20,
    )
    deadline = time.monotonic() + FIRE_SECONDS
    while (
        len(failures := [e.error for e in steps if (e.step, e.phase) == (events.SEND, "failed")])
        < 3
    ):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, failures
        time.sleep(0.1)
    proxy.heal()
    assert query.awaitTermination(FIRE_SECONDS)
    fired(lost.fired, "no request was lost")
    assert query.exception() is None
    late = [error for error in failures if isinstance(error, TransactionTimedOut)]
    assert late, failures
    assert all("brokers have not acknowledged" in error.message for error in late), late
    pipeline.assert_exactly_once()
