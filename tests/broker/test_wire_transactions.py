"""Transactions on real brokers, with both transaction versions; the verdict is librdkafka's."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.errors import (
    AuthenticationFailed,
    BatchFailed,
    CommitInDoubt,
    Fenced,
    OncewardError,
    Recovery,
    SendFailed,
    TransactionTimedOut,
    TransactionTimeoutTooLarge,
)
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.appends.producer import PartitionProducer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import Refused
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.options.settings import ClientSettings, ProducerSettings
from onceward.kafka.wire.reads.key_reader import KeyReader
from onceward.kafka.wire.reads.offsets import LATEST, committed_offsets, list_offsets
from onceward.kafka.wire.transactions.coordinator import TransactionCoordinator
from onceward.kafka.wire.transactions.states import State
from onceward.kafka.wire.transactions.transaction import Transaction
from onceward_testing import LocalKafka
from support.wire_fixtures import (
    LosingClient,
    Writer,
    appends_to,
    first,
    fragments,
    one_by_one,
    settings,
)

pytestmark = pytest.mark.broker

Read = Callable[[str, str], list[Any]]


@pytest.fixture
def topic(any_kafka: LocalKafka, new_topic: Callable[..., str]) -> str:
    return new_topic(any_kafka.bootstrap_servers, 4)


@pytest.fixture
def visible(any_kafka: LocalKafka, topic: str, read_committed: Read) -> Callable[[], list[bytes]]:
    """What a read-committed librdkafka consumer sees of the topic, by partition and offset."""
    return lambda: [
        message.value() for message in read_committed(any_kafka.bootstrap_servers, topic)
    ]


def new_id() -> str:
    return f"pipeline-{uuid.uuid4().hex[:12]}"


def task(
    client_settings: ClientSettings,
    identity: ProducerIdentity,
    transactional_id: str,
    version: Any,
    topic: str,
    n: int,
) -> None:
    """What an executor does: appends under an identity that it was given."""
    producer = PartitionProducer(
        KafkaClient.shared(client_settings),
        ProducerSettings(),
        identity,
        transactional_id=transactional_id,
        version=version,
    )
    values = [f"{identity.epoch}-{n}-{i}".encode() for i in range(300)]
    producer.send(appends_to(TopicPartition(topic, n), fragments(values, batch_bytes=1000)))


@pytest.mark.lengthy("ci")
def test_several_processes_write_one_transaction_and_it_is_visible_as_a_whole_or_not_at_all(
    client: KafkaClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    transaction = Transaction(client, new_id(), 60_000)
    transaction.take_over()
    spawn = multiprocessing.get_context("spawn")
    expected = []
    for commit in (True, False, True):
        identity = transaction.begin()
        transaction.add_partitions(TopicPartition(topic, n) for n in range(3))
        arguments = (
            client.settings,
            identity,
            transaction.transactional_id,
            transaction.version,
            topic,
        )
        processes = [spawn.Process(target=task, args=(*arguments, n)) for n in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        if commit:
            transaction.commit()
            expected += [
                f"{identity.epoch}-{n}-{i}".encode() for n in range(3) for i in range(300)
            ]
        else:
            transaction.abort()
    assert sorted(visible()) == sorted(expected)


def test_no_two_transactions_share_an_epoch(client: KafkaClient, topic: str) -> None:
    writer = Writer(client, new_id())
    writer.transaction.take_over()
    used = []
    for end in (writer.transaction.commit, writer.transaction.abort, writer.transaction.commit):
        used.append(writer.transaction.begin())
        writer.write({TopicPartition(topic, 0): [b"x"]})
        end()
    assert len(set(used)) == 3


def test_source_offsets_move_with_the_transaction_and_only_with_it(
    any_kafka: LocalKafka, client: KafkaClient, topic: str
) -> None:
    group, source = new_id(), TopicPartition(topic, 1)
    writer = Writer(client, group)
    writer.transaction.take_over()
    consumer = Consumer({"bootstrap.servers": any_kafka.bootstrap_servers, "group.id": group})
    try:
        for offset, end, expected in ((10, "commit", 10), (20, "abort", 10), (30, "commit", 30)):
            writer.transaction.begin()
            writer.write({TopicPartition(topic, 0): [b"x"]})
            writer.transaction.commit_offsets(group, {source: offset}, "a note")
            getattr(writer.transaction, end)()
            (found,) = consumer.committed([Position(topic, 1)], timeout=30)
            assert found.offset == expected
            assert committed_offsets(client, group) == {source: expected}
    finally:
        consumer.close()


def test_a_commit_whose_answers_are_lost_is_carried_out_once(
    losing: LosingClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    writer = Writer(losing, new_id())
    writer.transaction.take_over()
    losing.lose("EndTxnRequest", first(2, "answer"))
    writer.commit({TopicPartition(topic, 0): [b"a", b"b"]})
    writer.commit({TopicPartition(topic, 0): [b"c"]})
    assert losing.lost == 2
    assert visible() == [b"a", b"b", b"c"]


def test_a_commit_that_gets_lost_on_its_way_is_asked_for_again(
    losing: LosingClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    writer = Writer(losing, new_id())
    writer.transaction.take_over()
    losing.lose("EndTxnRequest", first(2, "request"))
    writer.commit({TopicPartition(topic, 0): [b"a"]})
    assert losing.lost == 2
    assert visible() == [b"a"]


@pytest.mark.parametrize(("fate", "committed"), [("answer", True), ("request", False)])
def test_a_commit_without_any_answer_is_in_doubt_and_the_log_decides(
    losing: LosingClient,
    topic: str,
    visible: Callable[[], list[bytes]],
    fate: str,
    committed: bool,
) -> None:
    writer = Writer(losing, new_id())
    transaction = writer.transaction
    transaction.take_over()
    transaction.begin()
    transaction.add_partitions([TopicPartition(topic, 0)])
    writer.producer().send(appends_to(TopicPartition(topic, 0), fragments([b"first"], key=b"me")))
    losing.lose("EndTxnRequest", lambda _: fate)
    patience_ms, transaction.patience_ms = transaction.patience_ms, 300
    with pytest.raises(CommitInDoubt):
        transaction.commit()
    transaction.patience_ms = patience_ms
    assert transaction.state is State.IN_DOUBT
    asked = losing.seen["EndTxnRequest"]
    with pytest.raises(OncewardError):
        transaction.abort()
    assert losing.seen["EndTxnRequest"] == asked  # never an abort after a commit

    losing.lose("EndTxnRequest", lambda _: "")
    transaction.recover()
    value = KeyReader(losing, TopicPartition(topic, 0), b"me").newest()
    assert value == (b"first" if committed else None)
    writer.commit({TopicPartition(topic, 0): [b"second"]})
    assert visible() == ([b"first", b"second"] if committed else [b"second"])


def test_an_abort_whose_answer_is_lost_is_carried_out(
    losing: LosingClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    writer = Writer(losing, new_id())
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.write({TopicPartition(topic, 0): [b"gone"]})
    losing.lose("EndTxnRequest", first(1, "answer"))
    writer.transaction.abort()
    writer.commit({TopicPartition(topic, 0): [b"kept"]})
    assert losing.lost == 1
    assert visible() == [b"kept"]


def test_identities_and_partitions_survive_lost_answers(
    losing: LosingClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    for request in (
        "InitProducerIdRequest",
        "AddPartitionsToTxnRequest",
        "TxnOffsetCommitRequest",
    ):
        losing.lose(request, lambda number: "answer" if number % 2 else "")
    writer = Writer(losing, new_id())
    writer.transaction.take_over()
    for value in (b"a", b"b", b"c"):
        writer.transaction.begin()
        writer.write({TopicPartition(topic, 0): [value]})
        writer.transaction.commit_offsets(
            writer.transaction.transactional_id, {TopicPartition(topic, 2): 1}
        )
        writer.transaction.commit()
    assert losing.lost >= 4
    assert visible() == [b"a", b"b", b"c"]


def test_a_takeover_ends_the_open_transaction_of_the_old_owner_at_once(
    client: KafkaClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    name = new_id()
    old, new = Writer(client, name, timeout_ms=600_000), Writer(client, name, timeout_ms=600_000)
    old.transaction.take_over()
    old.transaction.begin()
    old.write({TopicPartition(topic, 0): [b"old"]})
    new.transaction.take_over()
    new.commit({TopicPartition(topic, 0): [b"new"]})
    assert visible() == [b"new"]


def test_everything_that_the_old_owner_does_after_a_takeover_is_refused(
    client: KafkaClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    name = new_id()
    old, new = Writer(client, name), Writer(client, name)
    old.transaction.take_over()
    old.transaction.begin()
    old.write({TopicPartition(topic, 0): [b"old"]})
    new.transaction.take_over()
    new.commit({TopicPartition(topic, 0): [b"new"]})

    with pytest.raises(Fenced) as refused:
        old.producer().send(one_by_one(TopicPartition(topic, 0), [b"late"], sequence=1))
    assert isinstance(old.transaction.explain(refused.value), Fenced)
    for step in (
        old.transaction.commit,
        old.transaction.abort,
        old.transaction.begin,
        old.transaction.recover,
    ):
        with pytest.raises(Fenced):
            step()
    new.commit({TopicPartition(topic, 1): [b"newer"]})  # the newer copy was not disturbed
    assert visible() == [b"new", b"newer"]


@pytest.mark.parametrize("step", ["commit", "abort", "commit_offsets"])
def test_each_step_of_the_old_owner_finds_out_by_itself(
    client: KafkaClient, topic: str, step: str
) -> None:
    name = new_id()
    old, new = Writer(client, name), Writer(client, name)
    old.transaction.take_over()
    old.transaction.begin()
    old.write({TopicPartition(topic, 0): [b"old"]})
    new.transaction.take_over()
    arguments = (name, {TopicPartition(topic, 0): 1}) if step == "commit_offsets" else ()
    with pytest.raises(Fenced):
        getattr(old.transaction, step)(*arguments)
    assert old.transaction.state is State.FENCED
    new.commit({TopicPartition(topic, 0): [b"new"]})


def test_an_idle_old_owner_never_fences_the_newer_one(client: KafkaClient, topic: str) -> None:
    name = new_id()
    old, new = Writer(client, name), Writer(client, name)
    old.transaction.take_over()
    old.commit({TopicPartition(topic, 0): [b"old"]})
    new.transaction.take_over()
    with pytest.raises(Fenced):
        old.commit({TopicPartition(topic, 0): [b"late"]})
    new.commit({TopicPartition(topic, 0): [b"new"]})
    new.commit({TopicPartition(topic, 0): [b"newer"]})


@pytest.mark.fault("zombie-driver")
def test_an_older_copys_request_that_crosses_a_transaction_costs_an_attempt_and_not_the_newer_copy(
    client: KafkaClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    """The older copy has asked whether anybody has a transaction open; before it goes on, its heir
    opens one.
    """
    name, partition = new_id(), TopicPartition(topic, 0)
    old, new = Writer(client, name), Writer(client, name)
    old.transaction.take_over()
    old.commit({partition: [b"old"]})
    new.transaction.take_over()
    new.transaction.begin()
    new.write({partition: [b"aborted"]})
    with pytest.raises(Refused):
        TransactionCoordinator(client, name).init_producer_id(
            old.transaction.identity, 30_000, Deadline(30_000)
        )
    with pytest.raises(TransactionTimedOut, match="older copy"):
        new.transaction.commit()
    new.transaction.recover()
    new.commit({partition: [b"new"]})
    with pytest.raises(Fenced):
        old.commit({partition: [b"late"]})
    new.commit({partition: [b"newer"]})
    assert visible() == [b"old", b"new", b"newer"]


@pytest.mark.fault("end-txn-late")
def test_a_late_end_txn_of_the_old_owner_is_refused(
    losing: LosingClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    name = new_id()
    old, new = Writer(losing, name), Writer(losing, name)
    old.transaction.take_over()
    old.transaction.begin()
    old.write({TopicPartition(topic, 0): [b"old"]})
    losing.lose("EndTxnRequest", first(1, "request"))

    def takes_over(number: int) -> str:
        if number > 1:
            return ""
        new.transaction.take_over()
        return "request"

    losing.lose("EndTxnRequest", takes_over)
    with pytest.raises(Fenced):
        old.transaction.commit()
    new.transaction.begin()
    new.write({TopicPartition(topic, 0): [b"new"]})
    new.transaction.commit()
    assert visible() == [b"new"]


class Overdue:
    """A writer whose transaction the coordinator has aborted for its age."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self.partition = TopicPartition(topic, 0)
        self.writer = Writer(client, new_id(), timeout_ms=1_000)
        self.transaction = self.writer.transaction
        self.transaction.take_over()
        self.transaction.begin()
        self.writer.write({self.partition: [b"too slow"]})
        self._wait(client)

    def _wait(self, client: KafkaClient) -> None:
        """Until the abort marker is in the partition; the broker has its own clock."""
        end = time.monotonic() + 30
        while newest_open(client, self.partition) and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(0.2)


def newest_open(client: KafkaClient, partition: TopicPartition) -> bool:
    """Whether a transaction is open in ``partition``: the last stable offset is behind the high
    watermark.
    """
    stable = list_offsets(client, [partition], LATEST, read_committed=True)[partition]
    return stable < list_offsets(client, [partition], LATEST)[partition]


@pytest.fixture
def overdue(any_kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[Overdue]:
    client = KafkaClient(settings(any_kafka.bootstrap_servers)[0])
    yield Overdue(client, new_topic(any_kafka.bootstrap_servers))
    client.close()


@pytest.mark.fault("transaction-times-out")
@pytest.mark.parametrize("after", ["recover", "abort"])
def test_a_transaction_that_took_too_long_is_told_from_a_takeover_and_the_batch_runs_again(
    any_kafka: LocalKafka, overdue: Overdue, read_committed: Read, after: str
) -> None:
    with pytest.raises(TransactionTimedOut) as timed_out:
        overdue.transaction.commit()
    assert timed_out.value.recovery is Recovery.RUN_AGAIN
    assert "transaction.timeout.ms=1000" in str(timed_out.value)
    getattr(overdue.transaction, after)()
    overdue.writer.commit({overdue.partition: [b"in time"]})
    seen = read_committed(any_kafka.bootstrap_servers, overdue.partition.topic)
    assert [message.value() for message in seen] == [b"in time"]


def test_an_abort_after_the_timeout_needs_no_help(overdue: Overdue) -> None:
    overdue.transaction.abort()
    overdue.writer.commit({overdue.partition: [b"in time"]})


def test_a_task_that_sends_after_the_timeout_stops_and_the_driver_learns_why(
    overdue: Overdue,
) -> None:
    with pytest.raises((Fenced, BatchFailed)) as refused:
        overdue.writer.producer().send(one_by_one(overdue.partition, [b"late"], sequence=1))
    if isinstance(refused.value, Fenced):
        assert isinstance(overdue.transaction.explain(refused.value), TransactionTimedOut)
    overdue.transaction.abort()
    overdue.writer.commit({overdue.partition: [b"in time"]})


def test_a_takeover_after_a_timeout_is_a_takeover(overdue: Overdue) -> None:
    newer = Writer(overdue.writer.client, overdue.transaction.transactional_id)
    newer.transaction.take_over()
    with pytest.raises(Fenced):
        overdue.transaction.commit()
    newer.commit({overdue.partition: [b"newer"]})


def test_recovery_after_a_timeout_is_refused_when_somebody_newer_has_come_meanwhile(
    overdue: Overdue,
) -> None:
    with pytest.raises(TransactionTimedOut):
        overdue.transaction.commit()
    newer = Writer(overdue.writer.client, overdue.transaction.transactional_id)
    newer.transaction.take_over()
    with pytest.raises(Fenced):
        overdue.transaction.recover()
    newer.commit({overdue.partition: [b"newer"]})


@pytest.mark.fault("timeout-above-maximum")
def test_a_timeout_above_the_brokers_limit_names_both_settings(client: KafkaClient) -> None:
    with pytest.raises(TransactionTimeoutTooLarge) as refused:
        Transaction(client, new_id(), 3_600_000).take_over()
    for text in ("transaction.timeout.ms=3600000", "transaction.max.timeout.ms=900000"):
        assert text in str(refused.value)


def test_the_default_timeout_fits_the_broker(
    client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "onceward.kafka.wire.transactions.transaction.LONGEST_TRANSACTION_MS", 3_600_000
    )
    transaction = Transaction(client, new_id(), None)
    transaction.take_over()
    assert transaction.timeout_ms == 900_000  # the brokers' transaction.max.timeout.ms
    transaction.begin()
    assert transaction.open_for_ms == 0
    transaction.add_partitions([TopicPartition(topic, 0)])
    assert transaction.open_for_ms > 0
    transaction.abort()
    assert transaction.open_for_ms == 0


def test_empty_transactions_harm_nobody(
    client: KafkaClient, topic: str, visible: Callable[[], list[bytes]]
) -> None:
    writer = Writer(client, new_id())
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.transaction.abort()
    writer.commit({TopicPartition(topic, 0): [b"a"]})
    writer.transaction.begin()
    writer.transaction.abort()
    writer.commit({TopicPartition(topic, 0): [b"b"]})
    assert visible() == [b"a", b"b"]


def test_the_version_is_the_clusters(kafka: LocalKafka, kafka39: LocalKafka) -> None:
    for cluster, version in ((kafka, 2), (kafka39, 1)):
        client = KafkaClient(settings(cluster.bootstrap_servers)[0])
        assert client.transaction_version() == version
        client.close()


def test_when_we_may_not_connect_any_more_a_commit_is_in_doubt_not_failed(
    losing: LosingClient, topic: str
) -> None:
    writer = Writer(losing, new_id())
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.write({TopicPartition(topic, 0): [b"a"]})

    def refuse(number: int) -> str:
        raise AuthenticationFailed("the token has expired")

    losing.lose("EndTxnRequest", refuse)
    with pytest.raises(CommitInDoubt, match="the token has expired"):
        writer.transaction.commit()
    assert writer.transaction.state is State.IN_DOUBT


def test_a_late_takeover_of_ones_own_is_harmless(
    client: KafkaClient,
    topic: str,
    visible: Callable[[], list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frozen coordinator answers the second ``InitProducerId`` and then carries out the first,
    given up long since: it would fence us, in the name of nobody.
    """
    send, asked, late_ones = client.send, [], []

    def late(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        if not type(request).__name__.startswith("InitProducerId"):
            return send(request, node_id, timeout_ms)
        asked.append(request)
        outcome: Future[Any] = Future()
        if len(asked) == 1:
            outcome.set_exception(ConnectionLost("given up"))
            return outcome
        answer = send(request, node_id, timeout_ms).result(30)
        if answer.error_code == 0 and not late_ones:  # brokers that were just started put one off
            late_ones.append(send(asked[0], node_id, 30_000).result(30).error_code)
        outcome.set_result(answer)
        return outcome

    monkeypatch.setattr(client, "send", late)
    writer = Writer(client, new_id())
    writer.transaction.take_over()
    writer.commit({TopicPartition(topic, 0): [b"ours"]})
    assert visible() == [b"ours"]
    assert late_ones == [0]


def test_a_real_heir_is_not_taken_for_a_late_takeover(client: KafkaClient, topic: str) -> None:
    """Whoever comes after the start of a run that had lost a request is a newer owner all the
    same.
    """
    losing = LosingClient(client.settings)
    losing.lose("InitProducerIdRequest", first(1, "request"))
    old = Writer(losing, new_id())
    old.transaction.take_over()
    heir = Writer(client, old.transaction.transactional_id)
    heir.transaction.take_over()
    old.transaction.begin()
    with pytest.raises(Fenced) as refused:
        old.write({TopicPartition(topic, 0): [b"old"]})
    assert "start this one again" in str(old.transaction.explain(refused.value))
    heir.commit({TopicPartition(topic, 0): [b"new"]})
    losing.close()


@pytest.mark.lengthy("chaos")
def test_a_topic_that_is_made_anew_with_fewer_partitions_is_named(
    any_kafka: LocalKafka, client: KafkaClient, topic: str
) -> None:
    """And not waited for, as one without a leader is."""
    writer, gone = Writer(client, new_id()), TopicPartition(topic, 3)
    writer.transaction.take_over()
    writer.transaction.begin()
    writer.transaction.add_partitions([gone])
    writer.producer().send(appends_to(gone, fragments([b"x"])))
    writer.transaction.commit()
    admin = AdminClient({"bootstrap.servers": any_kafka.bootstrap_servers})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)
    until = time.monotonic() + 60
    while topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < until
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    while len(client.topic_partitions([topic])[topic]) != 1:
        assert time.monotonic() < until
    writer.transaction.begin()
    with pytest.raises(SendFailed, match="fewer partitions"):
        writer.transaction.add_partitions([gone])
