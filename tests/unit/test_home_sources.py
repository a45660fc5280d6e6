"""Which sources are at home, and what the group's offsets say about the ledger: never more than they can."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import LedgerBehind
from onceward.ids import BatchId, PipelineId, ProducerIdentity, SourceRange, TopicPartition
from onceward.ledger.record import LedgerRecord
from onceward.sinks.kafka import home_sources
from onceward.sinks.kafka.home_sources import HomeSources
from onceward.spark.query import KafkaSource, RunningBatch

HERE, ELSEWHERE = frozenset({"here:9092"}), frozenset({"elsewhere:9092"})
P = PipelineId("p")
HOME = (KafkaSource(0, HERE),)


class Client:
    """A cluster whose brokers can be down, and are then not told of."""

    def __init__(self) -> None:
        self.up = True

    def is_served_by(self, servers: frozenset[str]) -> bool:
        return self.up and servers == HERE

    def topic_ids(self, topics: set[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "an-id")


def at(offset: int) -> dict[str, dict[str, int]]:
    return {"orders": {"0": offset}}


def batch(number: int, *servers: frozenset[str], start: int, end: int) -> RunningBatch:
    """One that reads ``orders`` from each of ``servers``; what lies elsewhere is at a tenth of the offsets."""
    spans = [
        SourceRange(at(start), at(end)) if s is HERE else SourceRange(at(start // 10), at(end // 10)) for s in servers
    ]
    kafka = tuple(KafkaSource(index, s) for index, s in enumerate(servers))
    return RunningBatch(BatchId("q", number), "r", "", tuple(spans), kafka, False, None)


def record(of: RunningBatch) -> LedgerRecord:
    return LedgerRecord(P, 0, of.batch, of.sources, {}, ProducerIdentity(1, 1), 0)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    monkeypatch.setattr(home_sources, "committed_offsets", lambda *_, **__: dict(offsets))
    return offsets


def sources() -> HomeSources:
    client: Any = Client()
    return HomeSources(client, P, "ledger")


@pytest.mark.parametrize("servers", [(HERE,), (HERE, ELSEWHERE), (ELSEWHERE, HERE)])
def test_a_topic_of_the_same_name_on_another_cluster_says_nothing_about_the_ledger(
    group: dict[TopicPartition, int], servers: tuple[frozenset[str], ...]
) -> None:
    done, now = batch(0, *servers, start=0, end=100), batch(1, *servers, start=100, end=200)
    group |= sources().offsets(done)
    assert group == {TopicPartition("orders", 0): 100}
    sources().begin(now, record(done), "checkpoint")
    group[TopicPartition("orders", 0)] = 101
    with pytest.raises(LedgerBehind):
        sources().begin(now, record(done), "checkpoint")


def test_a_source_stays_at_home_while_its_brokers_are_down() -> None:
    client: Any = Client()
    known = HomeSources(client, P, "ledger")
    reading = batch(0, HERE, ELSEWHERE, start=0, end=100)
    assert known.offsets(reading) == {TopicPartition("orders", 0): 100}
    client.up = False
    assert known.offsets(reading) == {TopicPartition("orders", 0): 100}


def test_a_topic_that_a_query_no_longer_reads_may_come_back_as_another_one():
    client: Any = Client()
    known = HomeSources(client, P, "ledger")
    client.topic_ids = lambda topics: {topic: f"{topic} of before" for topic in topics}
    both = RunningBatch(
        BatchId("q", 0), "r", "", (SourceRange({}, {"orders": {"0": 9}, "gone": {"0": 9}}),), HOME, False, None
    )
    known.topic_ids(both)
    known.topic_ids(batch(1, HERE, start=9, end=10))
    client.topic_ids = lambda topics: {"orders": "orders of before", "gone": "another"}
    assert known.topic_ids(both)["gone"] == "another"
