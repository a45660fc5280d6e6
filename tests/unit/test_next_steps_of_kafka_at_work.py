"""Whoever does what an error of rows, of a topic or of a start position says is done. Each row has
what goes wrong, a pattern whose groups are what the next step offers, and what doing it comes to;
none of them needs Spark or a server.
"""

from __future__ import annotations

import inspect
import os
import socket
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import onceward as ow
from onceward import durable
from onceward.engine.calls.journal import CallMemory
from onceward.engine.ledger.admission import admit
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AccessDenied,
    LimitLowered,
    RecordTooLarge,
    SendFailed,
    TopicMissing,
    UnsupportedBroker,
)
from onceward.ids import (
    AttemptId,
    BatchId,
    PipelineId,
    SourceRange,
    TopicPartition,
)
from onceward.kafka.dead_letters.sending import Sender
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.records.batch import encode_fragments
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec, check_level
from onceward.kafka.sink.plain import PlainBatches
from onceward.kafka.sink.rows import HeldRows, partition_counts
from onceward.kafka.sink.sequencer import listener
from onceward.kafka.sink.topics import TopicLimits, _largest, check_topic, refuse_own_topics
from onceward.kafka.source import source
from onceward.kafka.source.topics_and_positions import ledger_positions, starting_json, topics_read
from onceward.kafka.wire.options.settings import OF_THE_READER
from onceward.spark.batch.query import KafkaSource, RunningBatch
from support.next_steps import Done, Row, Wrong, follow, named


def sink(options: dict[str, Any] | None = None, /, **more: Any) -> ow.KafkaSink:
    where = {"bootstrap_servers": "b:9092", "pipeline_id": "p", "topic": "out"}
    return ow.KafkaSink(**where | more, options=options or {})


class Cluster:
    """Topics with their partitions and settings, in the place of a client."""

    def __init__(self, **partitions: int) -> None:
        self.partitions, self.configs = partitions, dict[str, str]()
        self.settings = SimpleNamespace(request_timeout_ms=1000)

    def topic_partitions(self, topics: list[str]) -> dict[str, dict[int, int]]:
        if missing := [name for name in topics if name not in self.partitions]:
            raise TopicMissing(f"{missing}")
        return {name: dict.fromkeys(range(self.partitions[name]), 0) for name in topics}

    def brokers(self) -> list[int]:
        return [1]

    def create_topic(self, topic: str, partitions: int) -> None:
        self.partitions[topic] = partitions

    def topic_config(self, topic: str, **_: Any) -> dict[str, str]:
        return self.configs

    def broker_config(self, **_: Any) -> dict[str, str]:
        return self.configs

    def replication_factor(self, topic: str) -> int:
        return 3


def cluster(**partitions: int) -> Any:
    return Cluster(**partitions)


def held(where: str | None = "out", options: dict[str, Any] | None = None, /, **rows: Any) -> bool:
    """Encode rows: a partition has 32 bits, a time 64."""
    kinds = {"partition": pa.int32(), "timestamp_ms": pa.int64()}
    taken = {name: pa.array(each, kinds.get(name)) for name, each in rows.items()}
    counts = partition_counts(cluster(out=3), {}, "onceward-ledger")
    rows_held = HeldRows(where, counts, sink(options).settings.producer, 0)
    rows_held.add(pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])} | taken))
    return bool(rows_held.encode())


def records(value: Any = (b"a", b"b"), **more: Any) -> RecordColumns:
    return RecordColumns.of(pa.array(value), **more)


def encoded(codec: str = "none", level: int | None = None, **more: Any) -> bool:
    fragments = encode_fragments(
        records(**more),
        codec=Codec[codec.upper()],
        batch_bytes=1000,
        now_ms=0,
        compression_level=level,
    )
    return bool(fragments)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(*keys: str | None) -> Any:
    return pa.array([[{"key": key, "value": None} for key in keys]] * 2, HEADERS)


def levels(codec: str, least: str, most: str) -> None:
    for level in (least, most):
        check_level(Codec[codec.upper()], int(level))
        sink({"compression.type": codec, f"compression.{codec}.level": level})


def noise(size: int) -> list[bytes]:
    return [os.urandom(size)] * 2


ROWS: list[Row] = [
    (
        lambda: held(timestamp_ms=[-2, 0]),
        r"filter or correct these rows, or set the timestamp to (\w+)",
        lambda null: (held(timestamp_ms=[{"null": None}[null], 0]), held(timestamp_ms=[0, 0])),
    ),
    (
        lambda: held(None, topic=["out", None]),
        r"filter these rows out, fill the column, or pass topic= to KafkaSink",
        lambda: (held(None, topic=["out", "out"]), held("out")),
    ),
    (
        lambda: held(partition=[3, 0]),
        r"correct the column, or leave it (\w+) to let the key decide",
        lambda null: (held(partition=[2, 0]), held(partition=[{"null": None}[null], 0])),
    ),
    (
        lambda: held(None, topic=["onceward-ledger", "out"]),
        r"write records to a topic of their own",
        lambda: held(None, topic=["out", "out"]),
    ),
    (
        lambda: held("out", {"max.request.size": 2000, "batch.size": 1000}, value=noise(3000)),
        r"raise (\S+) \(options= of the sink\) .*, or make the record smaller",
        lambda name: (
            held("out", {name: 4000, "batch.size": 1000}, value=noise(3000)),
            held("out", {"max.request.size": 2000, "batch.size": 1000}, value=noise(1000)),
        ),
    ),
    (
        lambda: records(key=pa.array([b"k"])),
        r"give columns of the same Arrow batch",
        lambda: records(key=pa.array([b"k", b"l"])),
    ),
    (
        lambda: records([1, 2]),
        r"cast (\w+) to (\w+) or (\w+) in the query",
        lambda name, *kinds: [
            RecordColumns.of(**{name: pa.array(["1", "2"], getattr(pa, kind)())}) for kind in kinds
        ],
    ),
    (
        lambda: records(headers=pa.array(["h", "h"])),
        r"give headers the type (list<.*>)$",
        lambda kind: (kind == str(HEADERS) or pytest.fail(kind), records(headers=headers("h"))),
    ),
    (
        lambda: records(timestamp=pa.array(["2026", "2027"])),
        r"cast timestamp to a (\w+) in the query",
        lambda kind: records(timestamp=pa.array([1, 2], getattr(pa, kind)("us"))),
    ),
    (
        lambda: encoded(headers=headers("h", None)),
        r"drop headers whose key is null in the query; only a header's value may be null",
        lambda: encoded(headers=headers("h", "i")),
    ),
    (
        lambda: encoded(timestamp=np.array([-1, 0])),
        r"give times from 1970 on, or null",
        lambda: encoded(timestamp=pa.array([0, None], pa.int64())),
    ),
    (
        lambda: sink({"compression.type": "lz5"}),
        r"^use one of (\w+), (\w+), (\w+), (\w+), (\w+)$",
        lambda *names: [sink({"compression.type": name}) for name in names],
    ),
    (
        lambda: encoded("snappy", 3),
        r"^remove the compression level$",
        lambda: encoded("snappy"),
    ),
    *(
        (
            lambda codec=codec: encoded(codec, 99),
            r"choose a compression.(\w+).level between (-?\d+) and (\d+)",
            levels,
        )
        for codec in ("gzip", "lz4", "zstd")
    ),
]


@pytest.mark.parametrize(("wrong", "says", "done"), ROWS, ids=named(ROWS))
def test_rows(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)


def test_a_topic_that_is_missing() -> None:
    def done(setting: str) -> None:
        there = cluster(out=1)
        check_topic(there, sink().settings, "out")
        check_topic(made := cluster(), sink(**{setting: 3}).settings, "out")
        assert made.partitions == {"out": 3}

    follow(
        lambda: check_topic(cluster(), sink().settings, "out"),
        r"create it \(kafka-topics --create\), or build the sink with (\w+)=N",
        done,
    )


def refused(limits: TopicLimits, client: Any, records_in: int, size: int = 5000) -> None:
    details = {"topic": "out", "bytes": size, "records": records_in}
    raise limits.refused(client, RecordTooLarge("too large", details=details))


def test_limits_of_a_topic() -> None:
    limits, there = TopicLimits(sink().settings), cluster(out=1)
    # its limit may not be seen, or was raised meanwhile
    for size in (900_000, 6_000, 1_001):
        with pytest.raises(SendFailed, match=f"at most {max(1_000, size // 10)} bytes"):
            refused(limits, there, 12, size)
    with pytest.raises(RecordTooLarge):
        refused(limits, there, 12, 1_000)
    limits = TopicLimits(sink().settings)
    there.configs["max.message.bytes"] = "2000"

    def smaller(most: str) -> None:
        assert limits.producer_settings(there, "out").batch_bytes == int(most)

    says = r"^nothing: the batch runs again in record batches of at most (\d+) bytes; .*batch.size"
    follow(lambda: refused(limits, there, 9), says, smaller)

    there.configs["max.message.bytes"] = "9000"
    limits = TopicLimits(sink().settings)
    limits.producer_settings(there, "out")
    there.configs["max.message.bytes"] = "2000"

    def back(setting: str, topic: str, before: str) -> None:
        there.configs[setting] = before
        assert topic == "out"
        assert limits.producer_settings(there, topic).batch_bytes >= 5000
        with pytest.raises(SendFailed, match="has room for it by now"):
            refused(limits, there, 1)

    try:
        follow(lambda: refused(limits, there, 1), r"set (\S+) of topic (\w+) back to (\d+)", back)
    finally:
        _largest.clear()


def test_a_limit_that_was_lowered_is_known_to_the_next_process_of_a_runner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(durable.RUN_FOLDER, str(tmp_path))
    limits, there = TopicLimits(sink().settings), cluster(out=1)
    there.configs["max.message.bytes"] = "9000"
    try:
        limits.producer_settings(there, "out")
        there.configs["max.message.bytes"] = "2000"
        for _ in range(2):
            _largest.clear()
            with pytest.raises(LimitLowered, match="it was 9000 before"):
                refused(TopicLimits(sink().settings), there, 1)
    finally:
        _largest.clear()


def test_topics_of_a_column_are_asked_once_they_are_written_to() -> None:
    limits, there = TopicLimits(sink().settings), cluster(out=1)
    there.configs["max.message.bytes"] = "9000"
    try:
        limits.learn(there.topic_config, ["out"])
        there.configs["max.message.bytes"] = "2000"
        limits.learn(there.topic_config, ["out"])
        with pytest.raises(LimitLowered, match="it was 9000 before"):
            refused(limits, there, 1)
    finally:
        _largest.clear()


@pytest.mark.parametrize("error", [AccessDenied, UnsupportedBroker])
def test_settings_of_topics_that_nobody_tells_are_done_without(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to, or on a service that has no DescribeConfigs."""
    there = cluster(out=1, ledger=1)

    def refuse(topic: str, **_: Any) -> None:
        raise error(f"settings of {topic}")

    monkeypatch.setattr(there, "topic_config", refuse)
    ours = sink().settings
    assert TopicLimits(ours).producer_settings(there, "out") == ours.producer
    LedgerTopic(there, "ledger", PipelineId("p")).ensure_topic()
    assert "cannot check that ledger topic ledger keeps its records" in caplog.text
    replay: Any = Sender.__new__(Sender)
    replay._client, replay._configs = there, {}
    assert replay._config("out") == {}


OTHER_SETTINGS = [
    ({"compression.type": "uncompressed"}, r"set (compression.type) of topic out back to (\w+),"),
    ({"segment.bytes": "3000"}, r"raise (segment.bytes) of topic out above (\d+);"),
]


@pytest.mark.parametrize(("configs", "says"), OTHER_SETTINGS, ids=["compression", "segment"])
def test_another_setting_may_be_to_blame(configs: dict[str, str], says: str) -> None:
    limits, there = TopicLimits(sink().settings), cluster(out=1)
    there.configs |= {"max.message.bytes": "9000", **configs}

    def done(setting: str, value: str) -> None:
        there.configs[setting] = value
        with pytest.raises(SendFailed, match="has room for it by now"):
            refused(limits, there, 1)

    try:
        follow(lambda: refused(limits, there, 1), says, done)
    finally:
        _largest.clear()


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_topic_of_the_sinks_own_that_has_been_read(delivery: str) -> None:
    """The ledger ends in it, so that no new checkpoint begins there without it."""
    end = {"orders": {"0": 50}, "out": {"0": 3}}

    def read(ends: dict[str, dict[str, int]] = end) -> SourceRange:
        span = SourceRange(end, ends)
        running = RunningBatch(BatchId("q", 5), "r", "", (span,), (), False, None)
        reads = [KafkaSource(0, frozenset(["b:9092"]))]
        refuse_own_topics(sink(delivery=delivery).settings, running, reads)
        return span

    def done(number: str) -> None:
        # Planned anew, as Spark does where the source no longer names it
        without = read({"orders": {"0": 60}})
        done_before = (SourceRange(None, end),), AttemptId(1, 1), dict[str, Any](), 0
        newest = LedgerRecord(PipelineId("p"), 4, BatchId("q", 4), *done_before)
        assert admit(BatchId("q", int(number)), (without,), newest, "checkpoint").writes

    follow(read, r"remove the file offsets/(\d+) .*planned anew; start once .*: False", done)


def test_a_plain_sink_that_was_not_called_for_each_batch() -> None:
    def call(numbers: list[int], **settings: Any) -> None:
        plain = PlainBatches(sink(delivery="none", **settings).settings)
        for number in numbers:
            running = RunningBatch(BatchId("q", number), "r", "", (), (), False, None)
            plain.process([], running, CallMemory())

    def done(every: str, delivery: str, allow: str) -> None:
        call([0, 1, 2])
        sink(delivery=delivery)
        call([0, 2], skipped_batches=allow)

    says = r'call the sink for (every) batch.*delivery="(\w+)".*skipped_batches="(\w+)"'
    follow(lambda: call([0, 2]), says, done)


def test_the_port_of_the_sequencer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PORT_SECONDS", 0)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]

        def done(address: str, setting: str, any_port: str) -> None:
            free = sink(**{setting: int(any_port), address: "127.0.0.1"}).settings
            listener._listen(str(free.sequencer_host), free.sequencer_port).close()

        follow(
            lambda: listener._listen("127.0.0.1", port),
            r"set (\w+) of the sink to an address .*, and (\w+) to a free port \((\d) takes any\)",
            done,
        )


def test_the_ledger_topics_policy() -> None:
    there = cluster(**{"onceward-ledger": 1})
    there.configs |= {"cleanup.policy": "compact,delete", "min.insync.replicas": "2"}
    topic = LedgerTopic(there, "onceward-ledger", PipelineId("p"))

    def done(setting: str, value: str, where: str) -> None:
        assert where in there.partitions
        there.configs[setting] = value
        topic.ensure_topic()

    follow(topic.ensure_topic, r"set (\S+)=(\S+) on (\S+) \(kafka-configs --alter\)", done)


LEDGER = LedgerRecord(
    PipelineId("p"), 0, BatchId("q", 0), (SourceRange(None, {"a": {"0": 5}}),
    SourceRange(None, {"b": {"0": 7}})), AttemptId(1, 1), {}, 0,
)  # fmt: skip


def starts(otherwise: str = "error", topics: dict[str, list[int]] | None = None) -> str:
    positions: Any = otherwise
    known = {TopicPartition("a", 0): 5}
    return starting_json(topics or {"a": [0], "c": [0]}, known, positions, where="group p")


def parts_of(code: str) -> Any:
    """Evaluate what a next step shows as code."""
    return eval(code, {"datetime": datetime, "timezone": timezone})  # noqa: S307


def checked(starting: object, otherwise: object, pipeline: str | None) -> bool:
    source._check(starting, otherwise, pipeline)
    return True


SOURCE: list[Row] = [
    (
        lambda: checked(datetime(2026, 1, 1), "earliest", None),
        r"pass datetime\(\.\.\., (tzinfo=timezone\.utc)\)",
        lambda zone: checked(parts_of(f"datetime(2026, 1, 1, {zone})"), "earliest", None),
    ),
    (
        lambda: checked(datetime(1969, 1, 1, tzinfo=timezone.utc), "earliest", None),
        r'use "(\w+)"',
        lambda start: checked(start, "earliest", None),
    ),
    (
        lambda: checked("newest", "earliest", None),
        r"use one of (.*), or a datetime",
        lambda names: [checked(name, "earliest", "p") for name in names.split(", ")],
    ),
    (
        lambda: checked("latest", "newest", None),
        r"use one of (.*)$",
        lambda names: [checked("latest", name, None) for name in names.split(", ")],
    ),
    *(
        (
            lambda start=start: checked(start, "earliest", None),
            r"pass the (\w+) of the sink",
            lambda name, start=start: (
                checked(start, "earliest", getattr(sink(), name, "p")),
                name in inspect.signature(ow.kafka_source).parameters or pytest.fail(name),
            ),
        )
        for start in ("group", "ledger")
    ),
    (
        lambda: source._positive("max_offsets_per_trigger", 0),
        r"correct (\w+)=$",
        lambda name: source._positive(name, 1),
    ),
    (
        lambda: source._own("failOnDataLoss"),  # type: ignore[arg-type]
        r"by their names: (\{.*\})",
        lambda shown: source._own(parts_of(shown)),
    ),
    *(
        (
            lambda name=name: source._own({f"kafka.{name}": "latest", "b": 1}),
            rf"^remove kafka\.{name}$",
            lambda: source._own({"b": 1}),
        )
        for name in OF_THE_READER
    ),
    (
        lambda: source._own({"minPartitions": 9}),
        r"leave it out; .* for KafkaSink (\w+)=\"(\w+)\"",
        lambda name, column: (source._own({}), sink(**{name: column})),
    ),
    (
        lambda: source._own({"subscribe": "a"}),
        r"use the parameters (\w+)=, (\w+)= and (\w+)=",
        lambda *names: set(names) <= set(inspect.signature(ow.kafka_source).parameters)
        or pytest.fail(str(names)),
    ),
    (lambda: read([]), r"name at least one topic", lambda: read(["a"])),
    (lambda: read("a", "b-.*"), r"remove one of the two", lambda: read("a")),
    (lambda: read(3), r"pass the topic's name, or a list", lambda: (read("a"), read(["a", "b"]))),
    (
        lambda: read(None),
        r"name the topic, several as a list, or all of a kind by (\w+)='",
        lambda name: (
            read("a"), read(["a", "b"]),
            name in inspect.signature(ow.kafka_source).parameters or pytest.fail(name),
        ),
    ),
    (
        lambda: read("a, b"),
        r"pass a list: topic=(\[.*\])$",
        lambda shown: read(parts_of(shown)) == ("subscribe", "a,b") or pytest.fail(shown),
    ),
    (
        starts,
        r'choose another starting=, or (\w+)="(\w+)" or "(\w+)"',
        lambda name, *words: [starts(**{name: word}) for word in words],
    ),
    (
        lambda: ledger_positions(LEDGER, PipelineId("p"), ["c"], "c"),
        r"name the topics of one of these sources",
        lambda: [ledger_positions(LEDGER, PipelineId("p"), [name], name) for name in "ab"],
    ),
]  # fmt: skip


def read(topic: Any, pattern: str | None = None) -> tuple[str, str]:
    spark: Any = None
    return topics_read(spark, topic, pattern).option


@pytest.mark.parametrize(("wrong", "says", "done"), SOURCE, ids=named(SOURCE))
def test_the_source(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)
