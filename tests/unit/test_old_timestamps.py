"""Records that a topic deletes as soon as they are committed are spoken of: once, and not without
need.
"""

from __future__ import annotations

import logging
import time

import pyarrow as pa
import pytest

from onceward.errors import AccessDenied, BrokerUnreachable
from onceward.kafka.sink.columns import TIMESTAMP_MS
from onceward.kafka.sink.rows import HeldRows
from onceward.kafka.sink.topics import RetentionCheck, oldest_timestamps, retention_ms
from onceward.kafka.wire.options.settings import ProducerSettings

DAY_MS = 86_400_000
WEEK = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": str(7 * DAY_MS),
}


def ago(days: float) -> int:
    return int(time.time() * 1000 - days * DAY_MS)


class Asked:
    """What is asked of the brokers, and what they answer."""

    def __init__(self, config: dict[str, str | None] | None) -> None:
        self.config = config
        self.topics: list[str] = []

    def __call__(self, topic: str, *, timeout_ms: int) -> dict[str, str | None]:
        self.topics.append(topic)
        if self.config is None:
            raise AccessDenied("DescribeConfigs", next_step="grant it")
        return self.config


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, 7 * DAY_MS),
        ({"cleanup.policy": "compact,delete"}, 7 * DAY_MS),
        ({"cleanup.policy": "compact"}, None),
        ({"message.timestamp.type": "LogAppendTime"}, None),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "0"}, 0),
        ({"retention.ms": None}, None),
        ({"cleanup.policy": None}, None),
    ],
)
def test_how_long_a_topic_keeps_a_record(change: dict[str, str | None], kept: int | None):
    assert retention_ms({**WEEK, **change}) == kept


@pytest.mark.parametrize(
    ("days", "config", "spoken", "asked"),
    [
        (8, WEEK, True, True),
        (6, WEEK, False, True),
        (0, WEEK, False, False),
        (-8, WEEK, False, False),
        (8, {**WEEK, "retention.ms": "-1"}, False, True),
        (8, None, False, True),
    ],
    ids=["older", "younger", "of now", "of next week", "kept for ever", "not to be known"],
)
def test_a_topic_is_spoken_of_once_and_asked_for_once(
    caplog: pytest.LogCaptureFixture,
    days: float,
    config: dict[str, str | None] | None,
    spoken: bool,
    asked: bool,
):
    brokers = Asked(config)
    topics = RetentionCheck("orders", brokers)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            topics.check({"out": ago(days)})
    assert brokers.topics == ["out"] * asked
    assert [
        ("orders: topic out" in text, "retention.ms=604800000" in text) for text in caplog.messages
    ] == [(True, True)] * spoken


def test_what_was_young_enough_at_first_is_spoken_of_when_it_is_not(
    caplog: pytest.LogCaptureFixture,
):
    brokers = Asked(WEEK)
    topics = RetentionCheck("orders", brokers)
    for days in (6, 6, 9, 9):
        topics.check({"out": ago(days), "other": ago(1)})
    assert len(caplog.messages) == 1
    assert "9.0 days old" in caplog.text
    assert sorted(brokers.topics) == ["other", "out"]


def test_brokers_in_trouble_are_asked_once_and_thousands_of_topics_in_turn():
    asked: list[str] = []

    def silent(topic: str, *, timeout_ms: int) -> dict[str, str | None]:
        asked.append(topic)
        raise BrokerUnreachable("no answer", next_step="wait")

    old = {f"t{n}": ago(8) for n in range(2_000)}
    in_trouble = RetentionCheck("orders", silent)
    in_trouble.check(old)
    in_trouble.check(old)
    assert asked == ["t0"]
    brokers = Asked(WEEK)
    many = RetentionCheck("orders", brokers)
    many.check(old)
    many.check(old)
    assert brokers.topics == [f"t{n}" for n in range(20)]
    denied = Asked(None)
    RetentionCheck("orders", denied).check(old)
    assert len(denied.topics) == 10


def test_the_oldest_of_each_topic_is_remembered_and_null_is_none():
    rows = HeldRows(None, lambda _: 1, ProducerSettings(), 0)
    for topic, times in (("a", [5, None, 3]), ("a", [4]), ("b", [None]), ("c", [0, 9])):
        rows.add(
            pa.RecordBatch.from_pydict(
                {
                    "value": pa.array([b"x"] * len(times), pa.binary()),
                    "topic": pa.array([topic] * len(times), pa.string()),
                    TIMESTAMP_MS: pa.array(times, pa.int64()),
                }
            )
        )
        rows.encode()  # a task sends several times
    assert rows.oldest_ms == {"a": 3, "c": 0}


def test_the_oldest_that_any_task_has_sent():
    assert oldest_timestamps({"a": 3, "b": 2}, {}, {"a": 1, "c": 7}) == {"a": 1, "b": 2, "c": 7}
    assert oldest_timestamps() == {}
