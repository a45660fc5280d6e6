"""Start positions as Spark wants them: each partition has one, and what nobody knows has one by
rule.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import AuthenticationFailed, ConfigurationError, SourceDataLost
from onceward.ids import (
    AttemptId,
    BatchId,
    PipelineId,
    SourceRange,
    TopicPartition,
    partition_offsets,
)
from onceward.kafka.source import source
from onceward.kafka.source.topics_and_positions import NamedTopics, ledger_positions, starting_json
from onceward.kafka.wire.client import KafkaClient
from support.errors import raises

EARLIEST, LATEST = -2, -1
THERE = {"known": [0, 1], "other": [0]}
KNOWN = {TopicPartition("known", 0): 7}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, {"known": {"0": 7, "1": LATEST}, "other": {"0": LATEST}}),
        (
            {"new_partitions": "earliest"},
            {"known": {"0": 7, "1": EARLIEST}, "other": {"0": LATEST}},
        ),
        ({"new_topics": "earliest"}, {"known": {"0": 7, "1": EARLIEST}, "other": {"0": EARLIEST}}),
    ],
    ids=["group", "ledger", "pattern"],
)
def test_what_is_not_known_begins_by_rule(rules: Any, expected: dict[str, dict[str, int]]) -> None:
    assert json.loads(starting_json(THERE, KNOWN, "latest", where="here", **rules)) == expected


def test_under_a_pattern_of_which_nothing_is_known_what_comes_begins_likewise() -> None:
    """Not partition by partition: topics that appear until the query begins would have no
    position.
    """
    assert starting_json(THERE, {}, "latest", where="here", new_topics="earliest") == "latest"
    assert starting_json({}, {}, "earliest", where="here", new_topics="earliest") == "earliest"


@pytest.mark.parametrize("rules", [{}, {"new_topics": "earliest"}])
def test_what_may_not_be_unknown_is_named(rules: Any) -> None:
    with pytest.raises(ConfigurationError, match="here has no offset of known-0"):
        starting_json(THERE, {}, "error", where="here", **rules)


A5, A7, B9 = {"a": {"0": 5}}, {"a": {"0": 7}}, {"b": {"0": 9}}


@pytest.mark.parametrize(
    ("ends", "topics", "expected"),
    [
        ([A5], ["a"], A5),
        ([A5, B9], ["b"], B9),
        ([A5, B9, A5], ["a"], A5),  # two that end alike
        ([A5, A5 | B9], ["a"], A5),  # of two, the one that reads just these
        ([A5, A7 | B9], ["a", "b"], A7 | B9),
        ([A5, A7], ["a"], "several sources"),
        ([A7 | B9, A5 | B9], ["a"], "several sources"),
        ([A5, B9], ["c"], "no source"),
        ([{"file": "binlog.000001"}], ["a"], "no source"),
    ],
)
def test_a_source_goes_on_where_those_of_its_topics_end(
    ends: list[Any], topics: list[str], expected: Any
) -> None:
    sources = tuple(SourceRange(None, end) for end in ends)
    pipeline = PipelineId("p")
    record = LedgerRecord(pipeline, 1, BatchId("q", 2), sources, AttemptId(3, 4), {}, 5)
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected):
            ledger_positions(record, pipeline, topics, "them")
    else:
        found = ledger_positions(record, pipeline, topics, "them")
        assert found == partition_offsets(expected)


@pytest.mark.parametrize("now", ["an-id", "another-id"])
def test_a_ledger_says_nothing_of_a_topic_that_was_created_again(
    now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records below the old topic's offset would be skipped."""
    end, identity = {"a": {"0": 5}, "b": {"0": 7}}, {"a": "an-id", "b": "an-id"}
    spans = (SourceRange({}, end, identity), SourceRange({}, {"lines": 3}, {"a": "no topic's"}))
    record = LedgerRecord(PipelineId("p"), 4, BatchId("q", 4), spans, AttemptId(1, 1), {}, 0)
    client: Any = SimpleNamespace(
        topic_partitions=lambda names: {name: {0: 1, 1: 1} for name in names},
        topic_ids=lambda names: {"a": now, "b": "an-id"},
    )
    monkeypatch.setattr(source, "LedgerTopic", lambda *_: SimpleNamespace(newest=lambda: record))

    def positions(*, may_lose: bool) -> Any:
        named = NamedTopics(["a", "b"])
        return json.loads(
            source._ledger_positions(client, named, "p", "latest", "ledgers", None, may_lose)
        )

    goes_on = {"0": 7, "1": EARLIEST}
    if now == "an-id":
        assert positions(may_lose=False) == {"a": {"0": 5, "1": EARLIEST}, "b": goes_on}
        return
    with raises(SourceDataLost, "ends in topic a, which was deleted since"):
        positions(may_lose=False)
    assert positions(may_lose=True) == {"a": {"0": EARLIEST, "1": EARLIEST}, "b": goes_on}


@pytest.mark.parametrize(
    ("partitions", "records", "mebibytes"),
    [(0, 20_000, 8), (4, 20_000, 8), (16, 20_000, 8), (32, 10_000, 4), (100, 3_200, 1.28),
     (1_000, 500, 1)],
)  # fmt: skip
def test_many_partitions_hold_together_what_a_few_would(
    partitions: int, records: int, mebibytes: float
) -> None:
    """Spark keeps what was polled of each partition that a JVM has read, not for each task."""
    polls, bytes_ = "kafka.max.poll.records", "kafka.max.partition.fetch.bytes"
    found = source._defaults({}, partitions)
    assert int(found[polls]) == records
    assert int(found[bytes_]) == int(mebibytes * (1 << 20))
    assert partitions > 128 or partitions * int(found[bytes_]) <= 128 << 20
    own = {"kafka.Max.Poll.Records": "7"}
    assert source._defaults(own, partitions) == {n: v for n, v in found.items() if n != polls}


@pytest.mark.parametrize("refused", [False, True])
def test_partitions_are_counted_in_the_answer_that_is_waited_for_anyway(refused: bool) -> None:
    asked = []

    def answer(nodes: Any, request_to: Any, timeout_ms: float) -> Any:
        asked.append([topic.name for topic in request_to(1).topics])
        if refused:
            raise AuthenticationFailed("no", next_step="nothing")
        topics = [SimpleNamespace(partitions=[0] * count) for count in (30, 2, 0)]
        return SimpleNamespace(topics=topics)

    client: Any = object.__new__(KafkaClient)
    client.brokers, client.call_one_of = lambda: [1], answer
    client.settings = SimpleNamespace(connect_timeout_ms=1_000)
    client.bounds_remote_reads = lambda: True
    known = (0, False) if refused else (32, True)
    assert source._must_answer(client, NamedTopics(["a", "b", "c"]).names) == known
    assert asked == [["a", "b", "c"]]


def test_a_fetch_may_only_be_short_where_it_does_not_bound_a_read_of_tiered_storage() -> None:
    wait = "kafka.fetch.max.wait.ms"
    assert source._defaults({}, 4, True)[wait] == "20"
    assert wait not in source._defaults({}, 4, False)
    assert wait not in source._with_defaults({}), "nobody was asked"
    assert source._with_defaults({wait: "7"})[wait] == "7"
    assert wait not in source._defaults({wait: "7"}, 4, True)


def test_a_source_topic_that_was_deleted_is_not_created_by_who_reads_it() -> None:
    """Brokers create topics for consumers by default, and so do consumers of Java."""
    name = "kafka.allow.auto.create.topics"
    assert source._with_defaults({})[name] == "false"
    assert source._with_defaults({name: "true"})[name] == "true"
