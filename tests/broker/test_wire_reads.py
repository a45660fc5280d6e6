"""Reads of the ledger's kind: the newest committed value of a key, whatever else goes on in the
partition.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from onceward.errors import BrokerUnreachable, LedgerUndecided, PartitionMissing, TopicMissing
from onceward.ids import TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.key_reader import KeyReader
from onceward.kafka.wire.reads.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    committed_offsets,
    list_offsets,
)
from onceward.kafka.wire.transactions import coordinator
from onceward_testing import LocalKafka
from support.wire_fixtures import Writer, appends_to, fragments

pytestmark = pytest.mark.broker


@pytest.fixture
def ledger(any_kafka: LocalKafka, new_topic: Callable[..., str]) -> TopicPartition:
    return TopicPartition(new_topic(any_kafka.bootstrap_servers, 1, cleanup_policy="compact"), 0)


class Keeper(Writer):
    """Writes values under its own key."""

    def __init__(self, client: KafkaClient, ledger: TopicPartition) -> None:
        self.key = uuid.uuid4().hex
        super().__init__(client, self.key)
        self.ledger = ledger
        self.transaction.take_over()

    def open(self, value: bytes) -> None:
        self.transaction.begin()
        self.transaction.add_partitions([self.ledger])
        self.producer().send(appends_to(self.ledger, fragments([value], key=self.key.encode())))

    def newest(self, *, decided_only: bool = False, timeout_ms: int = 20_000) -> bytes | None:
        reader = KeyReader(self.client, self.ledger, self.key.encode())
        return reader.newest(decided_only=decided_only, timeout_ms=timeout_ms)


def test_the_newest_committed_value_counts_and_aborted_ones_do_not(
    client: KafkaClient, ledger: TopicPartition
) -> None:
    keeper = Keeper(client, ledger)
    assert keeper.newest() is None
    for value, end in ((b"1", "commit"), (b"2", "abort"), (b"3", "commit"), (b"4", "abort")):
        keeper.open(value)
        getattr(keeper.transaction, end)()
    assert keeper.newest() == b"3"


def test_another_pipelines_open_transaction_blocks_nobody(
    client: KafkaClient, ledger: TopicPartition
) -> None:
    mine, other = Keeper(client, ledger), Keeper(client, ledger)
    other.open(b"open for long")
    mine.open(b"mine")
    mine.transaction.commit()
    assert mine.newest() == b"mine"
    other.transaction.abort()


def test_an_undecided_record_of_ones_own_is_waited_for(
    client: KafkaClient, ledger: TopicPartition
) -> None:
    keeper = Keeper(client, ledger)
    keeper.open(b"1")
    keeper.transaction.commit()
    keeper.open(b"2")
    assert (
        keeper.newest(decided_only=True) is None
    )  # a glance has no opinion while one may become the newest
    with pytest.raises(LedgerUndecided) as undecided:
        keeper.newest(timeout_ms=500)
    assert keeper.key in str(undecided.value)
    assert str(ledger) in str(undecided.value)
    threading.Timer(0.5, keeper.transaction.commit).start()
    assert keeper.newest() == b"2"
    assert keeper.newest(decided_only=True) == b"2"


def test_what_others_write_behind_it_is_no_reason_to_wait_longer(
    client: KafkaClient, any_kafka: LocalKafka, ledger: TopicPartition
) -> None:
    mine, other = Keeper(client, ledger), Keeper(KafkaClient(client.settings), ledger)
    mine.open(b"1")
    over = threading.Event()

    def write_on() -> None:
        while not over.wait(0.05):
            other.open(b"another pipeline's")
            other.transaction.commit()

    writer, at_last = threading.Thread(target=write_on), threading.Timer(30, over.set)
    writer.start()
    at_last.start()
    try:
        with pytest.raises(LedgerUndecided):
            mine.newest(timeout_ms=1_000)
        assert not over.is_set()
    finally:
        over.set()
        at_last.cancel()
        writer.join()
        other.client.close()
    mine.transaction.abort()


def test_a_takeover_decides_what_the_old_owner_left_open(
    client: KafkaClient, ledger: TopicPartition
) -> None:
    old = Keeper(client, ledger)
    old.open(b"1")
    old.transaction.commit()
    old.open(b"left open")
    new = Writer(client, old.key)
    new.transaction.take_over()
    assert old.newest() == b"1"


def test_more_than_one_fetch_is_read_to_the_end(
    client: KafkaClient, any_kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    keeper = Keeper(client, TopicPartition(new_topic(any_kafka.bootstrap_servers, 1), 0))
    for number in range(8):
        keeper.open(bytes([number]) * 900_000)
        keeper.transaction.commit()
    assert keeper.newest() == bytes([7]) * 900_000


def test_offsets_of_a_partition(client: KafkaClient, ledger: TopicPartition) -> None:
    keeper = Keeper(client, ledger)
    keeper.open(b"1")
    assert list_offsets(client, [ledger], EARLIEST) == {ledger: 0}
    assert list_offsets(client, [ledger], EARLIEST_LOCAL) == {ledger: 0}
    assert list_offsets(client, [ledger], LATEST) == {ledger: 1}
    assert list_offsets(client, [ledger], LATEST, read_committed=True) == {ledger: 0}
    assert list_offsets(client, [ledger], 1) == {ledger: 0}
    assert list_offsets(client, [ledger], 2**60) == {ledger: -1}
    keeper.transaction.commit()
    with pytest.raises(TopicMissing, match="nobody-made-this"):
        list_offsets(client, [TopicPartition("nobody-made-this", 0)], LATEST)
    added = TopicPartition(ledger.topic, 1)
    with pytest.raises(PartitionMissing):
        list_offsets(client, [added], LATEST)
    admin = AdminClient({"bootstrap.servers": client.settings.bootstrap_servers[0]})
    admin.create_partitions([NewPartitions(ledger.topic, 2)])[ledger.topic].result(60)
    until = time.monotonic() + 60
    while True:
        try:
            assert list_offsets(client, [ledger, added], LATEST)[added] == 0
            break
        except PartitionMissing:
            assert time.monotonic() < until


def test_a_group_that_nobody_knows_has_no_offsets(client: KafkaClient) -> None:
    assert committed_offsets(client, uuid.uuid4().hex) == {}


def test_a_groups_first_offsets_are_waited_for(
    client: KafkaClient, any_kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """Asked for all offsets, brokers do not tell that the first ones of a group are about to be
    committed.
    """
    group = uuid.uuid4().hex
    topic = new_topic(any_kafka.bootstrap_servers, 2)
    where, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    transaction = Writer(client, group).transaction
    transaction.take_over()
    transaction.begin()
    transaction.commit_offsets(group, {where: 7})
    assert committed_offsets(client, group) == {}
    assert committed_offsets(client, group, partitions=[where, other], require_stable=False) == {}
    with pytest.raises(BrokerUnreachable, match="UNSTABLE_OFFSET_COMMIT"):
        committed_offsets(client, group, partitions=[where, other], timeout_ms=1_000)
    transaction.commit()
    assert committed_offsets(client, group, partitions=[where, other]) == {where: 7}


def test_offsets_of_many_partitions_go_in_several_requests(
    client: KafkaClient,
    any_kafka: LocalKafka,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "_OFFSETS_BYTES", 400)
    group = uuid.uuid4().hex
    topics = [new_topic(any_kafka.bootstrap_servers, 3) for _ in range(2)]
    offsets = {TopicPartition(topic, n): 10 + n for topic in topics for n in range(3)}
    transaction = Writer(client, group).transaction
    transaction.take_over()
    transaction.begin()
    transaction.commit_offsets(group, offsets)
    transaction.commit()
    assert committed_offsets(client, group, partitions=offsets) == offsets
