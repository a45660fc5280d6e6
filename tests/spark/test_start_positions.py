"""Start positions and what appears later, as one table: where a query starts, what there was, what
comes out exactly.

The same table is in ``docs/reference/configuration.md``. Each row is a query of its own on a real
broker, through the exactly-once sink; each record is one letter, so that a row can be read. What
is added *during* the run is written while the first batch is, and therefore before Spark can know
of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from streaming_pipeline import Pipeline, Transform, copy, source_records
from topic_operations import add_partitions, create, delete, expire, partitions_of, until

import onceward
from onceward.errors import (
    ConfigurationError,
    PartitionsAdded,
    Recovery,
    SourceDataLost,
    SourceTopicReplaced,
)
from support.verify_process import verify_at

Content = Mapping[str, Sequence[str]]
"""Per topic, by the end of its name, what its partitions hold: a letter a record."""

NOON = datetime(2024, 5, 17, 12, 0, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Row:
    """``read``: what a first run of the pipeline has committed, so that its ledger and group know
    it. ``before``: what else there was at the start. ``timed``: likewise, with a record every
    minute of the hour from noon on, the first at the minute that stands first. ``group``: offsets
    that somebody committed by hand. ``after``: what comes once the query stands. ``during``: what
    comes, and where it comes from, while the first batch is written.
    """

    name: str
    start: Mapping[str, Any]
    out: str
    read: Content = field(default_factory=dict)
    before: Content = field(default_factory=dict)
    timed: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    group: Mapping[int, int] = field(default_factory=dict)
    after: Content = field(default_factory=dict)
    during: Content = field(default_factory=dict)
    pattern: bool = False


LEDGER, GROUP = {"starting": "ledger"}, {"starting": "group"}
LATEST_OTHERWISE = {"otherwise": "latest"}

TABLE = [
    Row(
        "ledger, pattern: partitions and a topic since then, and more of both in mid-run",
        LEDGER | LATEST_OTHERWISE,
        read={"1": ("ab", "c")},
        before={"1": ("d", "e", "f"), "2": ("gh",)},
        during={"1": ("", "", "", "i"), "3": ("jk", "l")},
        pattern=True,
        out="defghijkl",
    ),
    Row(
        "earliest",
        {"starting": "earliest"},
        before={"1": ("abc", "de")},
        after={"1": ("f", "")},
        out="abcdef",
    ),
    Row(
        "latest",
        {"starting": "latest"},
        before={"1": ("abc", "de")},
        after={"1": ("f", "g")},
        out="fg",
    ),
    Row(
        "latest: a partition added in mid-run is read from its first record",
        {"starting": "latest"},
        before={"1": ("abc", "de")},
        after={"1": ("f", "")},
        during={"1": ("", "", "ghi")},
        out="fghi",
    ),
    Row(
        "a time: a partition with an older record only, one with none, and one in which it falls "
        "between two",
        {"starting": NOON.replace(minute=30)},
        timed={0: (28, "abcde"), 1: (10, "x")},
        before={"1": ("", "", "")},
        after={"1": ("", "y", "z")},
        out="cdeyz",
    ),
    Row(
        "a time after the end: nothing that was there, all that comes",
        {"starting": NOON.replace(hour=23)},
        timed={0: (0, "abc"), 1: (0, "de")},
        after={"1": ("f", "")},
        during={"1": ("", "", "g")},
        out="fg",
    ),
    Row(
        "group: one partition without an offset, otherwise the earliest",
        GROUP,
        before={"1": ("abcd", "ef")},
        group={0: 2},
        out="cdef",
    ),
    Row(
        "group: one partition without an offset, otherwise the latest",
        GROUP | LATEST_OTHERWISE,
        before={"1": ("abcd", "ef")},
        group={0: 2},
        after={"1": ("", "g")},
        out="cdg",
    ),
    Row(
        "group, of a run before",
        GROUP,
        read={"1": ("abc", "d")},
        before={"1": ("e", "f")},
        out="ef",
    ),
    Row(
        "group: a partition added since, otherwise the earliest",
        GROUP,
        read={"1": ("abc", "d")},
        before={"1": ("", "e", "fg")},
        out="efg",
    ),
    Row("ledger", LEDGER, read={"1": ("abc", "d")}, before={"1": ("e", "f")}, out="ef"),
    Row(
        "ledger: it knows partitions 0 to 3, and the topic has 6",
        LEDGER | LATEST_OTHERWISE,
        read={"1": ("a", "b", "c", "d")},
        before={"1": ("e", "", "", "f", "gh", "i")},
        out="efghi",
    ),
    Row(
        "ledger: a partition added between two runs, and one in mid-run",
        LEDGER | LATEST_OTHERWISE,
        read={"1": ("ab", "c")},
        before={"1": ("", "", "de")},
        during={"1": ("", "", "", "fg")},
        out="defg",
    ),
    Row("ledger, of which there is none yet", LEDGER, before={"1": ("ab", "c")}, out="abc"),
    Row(
        "pattern, earliest: a topic that is created in mid-run",
        {"starting": "earliest"},
        before={"1": ("ab",)},
        during={"2": ("cd", "e")},
        pattern=True,
        out="abcde",
    ),
    Row(
        "pattern, latest: a topic that is created in mid-run is read from its first record",
        {"starting": "latest"},
        before={"1": ("ab",), "2": ("c",)},
        after={"1": ("d",)},
        during={"3": ("ef", "g")},
        pattern=True,
        out="defg",
    ),
    Row(
        "pattern: nothing matches at the start",
        {"starting": "latest"},
        after={"1": ("ab", "c")},
        during={"2": ("d",)},
        pattern=True,
        out="abcd",
    ),
    Row(
        "pattern, group: topics that the group does not know begin at the earliest",
        GROUP | LATEST_OTHERWISE,
        read={"1": ("abc", "d")},
        before={"1": ("e", ""), "2": ("fg",)},
        pattern=True,
        out="efg",
    ),
    Row(
        "pattern, a time: a topic that is created in mid-run is read from its first record",
        {"starting": NOON.replace(hour=23)},
        timed={0: (0, "abc")},
        after={"1": ("d",)},
        during={"2": ("ef",)},
        pattern=True,
        out="def",
    ),
]


class Topics:
    """The topics of one row, by the ends of their names, and what they hold."""

    def __init__(self, pipeline: Pipeline, request: pytest.FixtureRequest) -> None:
        self.pipeline = pipeline
        self._begin = f"{pipeline.name}-in"
        self._sizes: dict[str, int] = {}
        request.addfinalizer(self._delete)

    def name(self, end: str) -> str:
        return f"{self._begin}-{end}"

    @property
    def pattern(self) -> str:
        """Of Java's own: Python does not know possessive quantifiers before 3.11, nor
        intersections at all.
        """
        return rf"\Q{self._begin}-\E[0-9&&[^9]]++"

    def add(self, content: Content, *, timestamp: int | None = None) -> None:
        """Create what is missing, and write: all of it is acknowledged on return."""
        producer = Producer({"bootstrap.servers": self.pipeline.bootstrap, "linger.ms": 0})
        for end, partitions in content.items():
            name, size = self.name(end), self._sizes.get(end, 0)
            if size == 0:
                create(self.pipeline, name, len(partitions))
            elif size < len(partitions):
                add_partitions(self.pipeline, name, len(partitions))
            self._sizes[end] = max(size, len(partitions))
            for partition, letters in enumerate(partitions):
                for minute, letter in enumerate(letters):
                    at = {} if timestamp is None else {"timestamp": timestamp + 60_000 * minute}
                    producer.produce(name, letter.encode(), partition=partition, **at)
        assert producer.flush(60) == 0

    def delete(self, end: str) -> None:
        delete(self.pipeline, self.name(end))
        del self._sizes[end]

    def frame(self, *, pattern: bool, **options: Any) -> Any:
        what = (
            {"topic": None, "topic_pattern": self.pattern}
            if pattern
            else {"topic": self.name("1")}
        )
        return self.pipeline.frame(**what, **options)

    def _delete(self) -> None:
        for end in list(self._sizes):
            if partitions_of(self.pipeline, self.name(end)):
                self.delete(end)


_EVERY_TIME = ("earliest", "latest", "group, of a run before", "ledger")
"""Beside the first row; the others are for the long suites."""


def _when(number: int) -> list[pytest.MarkDecorator]:
    return [] if number == 0 or TABLE[number].name in _EVERY_TIME else [pytest.mark.slow]


@pytest.fixture
def topics(pipeline: Pipeline, request: pytest.FixtureRequest) -> Topics:
    return Topics(pipeline, request)


def stands(pipeline: Pipeline, query: Any, checkpoint: Any) -> None:
    """Until the query has logged where it starts: what comes from now on comes after that."""
    until(
        lambda: (checkpoint / "sources" / "0" / "0").exists(), query, "the start was never logged"
    )


def interrupted(
    sink: Any, once: Callable[[], None], by: Transform = copy
) -> Callable[[Any, int], None]:
    """The sink, with something that happens while the first batch is with the user's function."""
    waiting = [once]

    def write(frame: Any, batch_id: int) -> None:
        while waiting:
            waiting.pop()()
        sink(by(frame), batch_id)

    return write


def letters(pipeline: Pipeline, topic: str | None = None) -> Counter[str]:
    return Counter(
        value.decode() for _, value in source_records(pipeline.visible(topic)) if value is not None
    )


def verified(pipeline: Pipeline, *options: str) -> dict[str, Any]:
    return verify_at(pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, *options)


@pytest.mark.fault("source-partitions-added", "source-topics-appear")
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=_when(number)) for number, row in enumerate(TABLE)],
)
def test_what_comes_out_is_what_the_table_says(pipeline: Pipeline, topics: Topics, row: Row):
    resume = {}
    if row.read:
        topics.add(row.read)
        pipeline.run(frame=topics.frame(pattern=row.pattern))
        assert letters(pipeline) == Counter(
            "".join(s for parts in row.read.values() for s in parts)
        )
        resume = {"resume": "ledger"}
    for partition, (minute, text) in row.timed.items():
        at = int(NOON.replace(minute=minute).timestamp() * 1000)
        topics.add(
            {"1": [text if p == partition else "" for p in range(partition + 1)]}, timestamp=at
        )
    topics.add(row.before)
    group = pipeline.name
    if row.group:
        group = f"{pipeline.name}-by-hand"
        consumer = Consumer({"bootstrap.servers": pipeline.bootstrap, "group.id": group})
        offsets = [
            TopicPartition(topics.name("1"), partition, offset)
            for partition, offset in row.group.items()
        ]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    frame = topics.frame(
        pattern=row.pattern, pipeline_id=group, ledger_topic=pipeline.ledger_topic, **row.start
    )
    checkpoint, output = pipeline.checkpoint.with_name("of-the-row"), pipeline.topic(2)
    sink = pipeline.sink(topic=output, driver_records=10_000, **resume)
    query = (
        frame.writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .foreachBatch(interrupted(sink, lambda: topics.add(row.during)))
        .start()
    )
    stands(pipeline, query, checkpoint)
    topics.add(row.after)
    query.processAllAvailable()
    # the first may have been asked before what came in the first batch was there
    query.processAllAvailable()
    query.stop()
    assert letters(pipeline, output) == Counter(row.out)


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("source-topic-recreated")
def test_a_topic_of_a_pattern_that_is_deleted_stops_the_query(pipeline: Pipeline, topics: Topics):
    """Unless ``failOnDataLoss`` is false: then all others go on, and one that comes back is read
    from the start.
    """
    topics.add({"1": ("ab",), "2": ("cd",)})
    pipeline.run(frame=topics.frame(pattern=True))
    topics.add({"1": ("e",), "2": ("f",)})
    topics.delete("2")
    error = pipeline.refused(frame=topics.frame(pattern=True))
    assert type(error) is SourceDataLost
    assert topics.name("2") in error.message
    assert letters(pipeline) == Counter("abcd")

    going_on = {"pattern": True, "spark_options": {"failOnDataLoss": False}}
    pipeline.run(frame=topics.frame(**going_on))
    assert letters(pipeline) == Counter("abcde")
    topics.add({"2": ("ghij",)})
    pipeline.run(frame=topics.frame(**going_on))
    assert letters(pipeline) == Counter("abcdeghij")

    # An offset of that topic names two records now, and the checker does not take the second one
    # for a duplicate.
    answer = verified(pipeline, "--conserves", "exactly")
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", []), answer
    assert f"{topics.name('2')} was deleted and created again" in str(answer)


@pytest.mark.fault("offsets-expired")
def test_a_topic_that_is_new_to_the_query_and_has_lost_its_first_records(
    pipeline: Pipeline, topics: Topics
):
    """Whether the query should have read them is a person's to say."""
    topics.add({"1": ("ab",)})
    pipeline.run(frame=topics.frame(pattern=True))
    topics.add({"1": ("c",), "2": ("defgh", "i")})
    expire(pipeline, topics.name("2"), {0: 3})
    error = pipeline.refused(frame=topics.frame(pattern=True))
    assert (type(error), error.recovery) == (SourceDataLost, Recovery.STOP)
    assert "new to the query" in error.message
    assert f"{topics.name('2')}-0 starts from 3" in error.message
    assert letters(pipeline) == Counter("ab")
    once = {"pattern": True, "spark_options": {"failOnDataLoss": False}}
    pipeline.run(frame=topics.frame(**once))
    assert letters(pipeline) == Counter("abcghi")
    topics.add({"2": ("j", "k")})
    pipeline.run(frame=topics.frame(pattern=True))
    assert letters(pipeline) == Counter("abcghijk")


@pytest.mark.fault("source-topic-recreated")
def test_a_topic_of_a_pattern_that_is_deleted_and_created_again_is_refused(
    pipeline: Pipeline, topics: Topics
):
    """The topic appeared in mid-run, so that its id is known from the ledger only."""
    topics.add({"1": ("ab",)})
    sink = pipeline.sink()
    query = (
        topics.frame(pattern=True)
        .writeStream.option("checkpointLocation", str(pipeline.checkpoint))
        .trigger(processingTime="0 seconds")
        .foreachBatch(interrupted(sink, lambda: topics.add({"2": ("cd",)})))
        .start()
    )
    query.processAllAvailable()
    query.processAllAvailable()
    query.stop()
    assert letters(pipeline) == Counter("abcd")
    topics.delete("2")
    topics.add({"2": ("efgh",)})
    error = pipeline.refused(frame=topics.frame(pattern=True))
    assert type(error) is SourceTopicReplaced
    assert topics.name("2") in error.message
    assert letters(pipeline) == Counter("abcd")


@pytest.mark.lengthy("chaos")
def test_the_checker_accounts_for_topics_that_appear_in_mid_run(
    pipeline: Pipeline, topics: Topics
):
    topics.add({"1": ("ab", "c")})
    sink = pipeline.sink(lineage=True)
    query = (
        topics.frame(pattern=True)
        .select("key", "value", *onceward.lineage())
        .writeStream.option("checkpointLocation", str(pipeline.checkpoint))
        .trigger(processingTime="0 seconds")
        .foreachBatch(
            interrupted(
                sink,
                lambda: topics.add({"1": ("", "", "d"), "2": ("ef", "g")}),
                by=lambda rows: rows,
            )
        )
        .start()
    )
    query.processAllAvailable()
    query.processAllAvailable()
    query.stop()
    answer = verified(pipeline, "--conserves", "exactly", "--expect-caught-up")
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    assert answer["facts"]["conservation"]["input_records"] == 7
    assert {topic for topic, _ in pipeline.lag()} == {topics.name("1"), topics.name("2")}
    assert set(pipeline.lag().values()) == {0}


def test_a_ledger_that_ends_in_a_topic_that_is_gone(pipeline: Pipeline, topics: Topics):
    topics.add({"1": ("ab",), "2": ("cd",)})
    pipeline.run(frame=topics.frame(pattern=True))
    topics.delete("2")
    topics.add({"1": ("e",)})
    ledger = {
        "pattern": True,
        "pipeline_id": pipeline.name,
        "ledger_topic": pipeline.ledger_topic,
        **LEDGER,
    }
    with pytest.raises(SourceDataLost, match=topics.name("2")) as lost:
        topics.frame(**ledger)
    assert "failOnDataLoss" in lost.value.next_step
    output = pipeline.topic(1)
    pipeline.run(
        frame=topics.frame(**ledger, spark_options={"failOnDataLoss": False}),
        topic=output,
        pipeline_id=f"{pipeline.name}-anew",
        checkpoint=pipeline.checkpoint.with_name("anew"),
    )
    assert letters(pipeline, output) == Counter("e")


def test_what_appears_between_the_look_and_the_start_is_said(pipeline: Pipeline, topics: Topics):
    topics.add({"1": ("ab",)})
    pipeline.run(frame=topics.frame(pattern=True))
    ledger = {
        "pattern": True,
        "pipeline_id": pipeline.name,
        "ledger_topic": pipeline.ledger_topic,
        **LEDGER,
    }
    frame = topics.frame(**ledger)
    topics.add({"2": ("c",)})
    again = {"resume": "ledger", "checkpoint": pipeline.checkpoint.with_name("again")}
    error = pipeline.refused(frame=frame, **again)
    assert type(error) is PartitionsAdded
    assert error.recovery is Recovery.RESTART
    assert "kafka_source anew" in error.next_step
    pipeline.run(frame=topics.frame(**ledger), **again)
    assert letters(pipeline) == Counter("abc")


def test_a_pattern_is_matched_with_the_whole_name(pipeline: Pipeline, topics: Topics):
    """Spark itself would be content with a part of it."""
    topics.add({"1": ("ab",), "19": ("x",), "old-1": ("y",)})
    pipeline.run(frame=topics.frame(pattern=True))
    assert letters(pipeline) == Counter("ab")


@pytest.mark.parametrize(
    "pattern", ["orders-(", "a)|(?:b", "(?x)orders # of all kinds", r"\Qorders", "", "*"]
)
def test_patterns_that_cannot_be(pipeline: Pipeline, pattern: str):
    with pytest.raises(ConfigurationError, match="topic_pattern"):
        pipeline.frame(topic=None, topic_pattern=pattern)


def test_topics_are_read_by_name_or_by_pattern(pipeline: Pipeline):
    with pytest.raises(ConfigurationError, match=r"topic=.* and topic_pattern="):
        pipeline.frame(topic="a", topic_pattern="a.*")
    with pytest.raises(ConfigurationError, match="neither topic= nor topic_pattern="):
        pipeline.frame(topic=None, topic_pattern=None)
