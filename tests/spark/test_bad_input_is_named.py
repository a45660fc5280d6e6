"""What cannot be written is refused with a typed error that names it and the next step; nothing of
it is visible.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline, copy

import onceward
from onceward.errors import (
    BrokerUnreachable,
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    InvalidTopicName,
    OncewardError,
    PartitionMissing,
    RecordTooLarge,
    ServerMisconfigured,
    TopicMissing,
    TransactionTimeoutTooLarge,
    UnknownOption,
    UnsupportedQuery,
)
from onceward.kafka.sink import columns
from onceward_testing.free_ports import free_ports
from support.wrong_values import WRONG, what_is_amiss

N = "CAST(regexp_extract(CAST(value AS STRING), '[0-9]+$', 0) AS INT) AS n"


def numbers(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(N)


@pytest.mark.parametrize("name", ["avro", "json", "debezium", "mysql_changes", "kafka_source"])
def test_each_parameter_of_a_reader_takes_or_names_what_it_is_given(pipeline: Pipeline, name: str):
    """Never a TypeError out of the middle of the package (but for the session)."""
    frame = pipeline.frame()
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    reading: dict[str, Any] = {"spark": pipeline.spark}
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "avro": (
            onceward.avro.decode,
            {
                "frame": frame,
                "registry": onceward.SchemaRegistry("http://127.0.0.1:1", timeout_s=0.01),
                "reader_schema": schema,
            },
        ),
        "json": (onceward.json.decode, {"frame": frame, "schema": "a INT"}),
        "debezium": (onceward.debezium.decode, {"frame": frame, "schema": "a INT"}),
        "mysql_changes": (
            onceward.mysql_changes,
            {"url": "mysql://u:p@127.0.0.1:1/db", "tables": "db.t", **reading},
        ),
        "kafka_source": (
            onceward.kafka_source,
            {"bootstrap_servers": pipeline.bootstrap, "topic": pipeline.source, **reading},
        ),
    }
    call, given = calls[name]
    assert what_is_amiss(functools.partial(call, **given)) == ""
    # Where nobody answers, each of these waits for its time
    left_out = {"spark", "unknown_id_wait_s", "bootstrap_servers"}
    amiss = [
        f"{parameter}={value!r}: {found}"
        for parameter in sorted(set(inspect.signature(call).parameters) - left_out)
        for value in WRONG
        if (found := what_is_amiss(functools.partial(call, **{**given, parameter: value})))
    ]
    assert amiss == []


def refused_and_invisible(pipeline: Pipeline, *expressions: str, **options: Any) -> OncewardError:
    """Ten records that become ``expressions`` of their number n; the error, when nothing was
    committed.
    """
    pipeline.feed(10)
    error = pipeline.refused(lambda rows: numbers(rows).selectExpr(*expressions), **options)
    assert pipeline.visible() == []
    assert pipeline.ledger() == []
    assert pipeline.open_transactions() == []
    return error


@pytest.mark.parametrize(
    ("expressions", "column", "wanted"),
    [
        (["'x' AS key"], "value", "value"),
        (["n AS value"], "value", "binary or string"),
        (["array('a') AS value"], "value", "binary or string"),
        (["'v' AS value", "n AS key"], "key", "binary or string"),
        (["'v' AS value", "CAST(n AS LONG) AS partition"], "partition", "int"),
        (["'v' AS value", "'2024-01-01' AS timestamp"], "timestamp", "timestamp"),
        (
            ["'v' AS value", "map('a', X'01') AS headers"],
            "headers",
            "array<struct<key: string, value: binary>>",
        ),
        (
            ["'v' AS value", "array(named_struct('key', 'a', 'value', 'text')) AS headers"],
            "headers",
            "array<struct<key: string, value: binary>>",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_missing_or_of_the_wrong_type(
    pipeline: Pipeline, expressions: list[str], column: str, wanted: str
):
    error = refused_and_invisible(pipeline, *expressions)
    assert type(error) is InvalidColumn
    assert f"'{column}'" in error.message
    assert wanted in f"{error.message} {error.next_step}"


def test_a_timestamp_without_a_zone_is_cast_as_the_error_says(pipeline: Pipeline):
    """Where ``spark.sql.timestampType`` makes every TIMESTAMP one without a zone."""
    rows = ["'v' AS value", "CAST('2024-01-31 10:00:00' AS TIMESTAMP) AS timestamp"]
    pipeline.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        error = refused_and_invisible(pipeline, *rows)
        assert type(error) is InvalidColumn
        cast = F.col("timestamp").cast(error.next_step.split("'")[-2])
        pipeline.run(lambda frame: numbers(frame).selectExpr(*rows).withColumn("timestamp", cast))
    finally:
        pipeline.spark.conf.unset("spark.sql.timestampType")
    assert len(pipeline.visible()) == 10


def test_neither_a_topic_nor_a_topic_column(pipeline: Pipeline):
    error = refused_and_invisible(pipeline, "'v' AS value", topic=None)
    assert type(error) is InvalidColumn
    assert "topic" in error.message


def test_a_topic_column_of_the_wrong_type(pipeline: Pipeline):
    error = refused_and_invisible(pipeline, "'v' AS value", "n AS topic", topic=None)
    assert type(error) is InvalidColumn
    assert "'topic' is int" in error.message


@pytest.mark.parametrize(
    ("topic", "kind", "named"),
    [
        ("CAST(NULL AS STRING)", InvalidColumn, "column 'topic' is null"),
        ("'no/such/name'", InvalidTopicName, "no/such/name"),
        ("''", InvalidTopicName, "''"),
        ("'..'", InvalidTopicName, "'..'"),
        ("'missing-topic'", TopicMissing, "missing-topic"),
        ("'{ledger}'", InvalidColumn, "ledger topic"),
    ],
)
def test_a_bad_topic_in_one_row_in_the_middle(
    pipeline: Pipeline, topic: str, kind: type[OncewardError], named: str
):
    bad = topic.format(ledger=pipeline.ledger_topic)
    rows = f"CASE WHEN n = 5 THEN {bad} ELSE '{pipeline.output}' END AS topic"
    error = refused_and_invisible(pipeline, "CAST(n AS STRING) AS value", rows, topic=None)
    assert type(error) is kind
    assert named in error.message


@pytest.mark.parametrize("bad", [-1, 3, 2_000_000_000])
def test_a_partition_out_of_range(pipeline: Pipeline, bad: int):
    column = f"CASE WHEN n = 5 THEN {bad} END AS partition"
    error = refused_and_invisible(pipeline, "'v' AS value", column)
    assert type(error) is PartitionMissing
    assert str(bad) in error.message
    assert pipeline.output in error.message


def test_a_time_that_kafka_cannot_carry(pipeline: Pipeline):
    error = refused_and_invisible(pipeline, "'v' AS value", "timestamp_millis(-2) AS timestamp")
    assert type(error) is InvalidColumn
    assert "'timestamp'" in error.message


@pytest.mark.fault("record-too-large")
def test_a_record_larger_than_a_batch_may_be(pipeline: Pipeline):
    value = "CASE WHEN n = 5 THEN repeat('x', 200000) ELSE 'small' END AS value"
    options = {"batch.size": 20_000, "max.request.size": 100_000}
    error = refused_and_invisible(pipeline, value, options=options)
    assert type(error) is RecordTooLarge
    assert "max.request.size" in f"{error.message} {error.next_step}"
    pipeline.run(
        lambda rows: numbers(rows).selectExpr(value),
        options={**options, "max.request.size": 300_000},
    )
    assert max(len(message.value()) for message in pipeline.visible()) == 200_000


@pytest.mark.parametrize("topic_is", ["the sink's", "in a column"])
@pytest.mark.fault("record-too-large")
def test_a_record_larger_than_the_topic_takes_in_the_middle_of_a_batch(
    any_pipeline: Pipeline, topic_is: str
):
    """Where only the broker can tell, the rest of the batch is sent and acknowledged by then: it
    must stay unseen.
    """
    any_pipeline.output = any_pipeline.topic(3, max_message_bytes=20_000)
    columns = [
        "CONCAT('k', n) AS key",
        "CASE WHEN n = 5 THEN repeat('x', 50000) ELSE 'small' END AS value",
    ]
    options: dict[str, Any] = {"options": {"batch.size": 100_000}}
    if topic_is == "in a column":
        columns.append(f"'{any_pipeline.output}' AS topic")
        options["topic"] = None
    error = refused_and_invisible(any_pipeline, *columns, **options)
    assert type(error) is RecordTooLarge
    assert any_pipeline.output in error.message
    assert "max.message.bytes" in f"{error.message} {error.next_step}"
    any_pipeline.run(lambda rows: numbers(rows).selectExpr("'small' AS value"))
    assert len(any_pipeline.visible()) == 10


def test_batches_that_the_topic_finds_too_large_though_no_record_is(pipeline: Pipeline):
    """A batch of small records above max.message.bytes: Kafka's own producer splits it and goes
    on.
    """
    pipeline.output = pipeline.topic(1, max_message_bytes=20_000)
    pipeline.feed([(b"k%d" % n, b"x" * 1000) for n in range(40)])
    pipeline.run(frame=pipeline.frame(max_offsets_per_trigger=100))
    pipeline.assert_exactly_once(ledger_records=1)


def test_a_missing_topic(pipeline: Pipeline):
    pipeline.feed(5)
    query = pipeline.start(topic="topic-that-is-not-there")
    said, error = pipeline.ended(query), onceward.error_of(query)
    assert said.count("does not exist on") == 1
    assert "direct cause" not in said
    assert "onceward/kafka/wire/" not in said, "nobody needs our own frames"
    assert type(error) is TopicMissing
    assert "topic-that-is-not-there" in error.message
    assert "create_topic_partitions" in error.next_step


def test_a_missing_topic_is_made_when_asked_for(any_pipeline: Pipeline):
    any_pipeline.feed(20)
    any_pipeline.output = f"made-by-{any_pipeline.name}"
    any_pipeline.run(create_topic_partitions=4)
    any_pipeline.assert_exactly_once()
    assert {message.partition() for message in any_pipeline.visible()} == {0, 1, 2, 3}


@pytest.mark.fault("sink-topic-deleted")
def test_a_topic_that_is_deleted_between_two_batches(pipeline: Pipeline, at_step: Any):
    from confluent_kafka.admin import AdminClient

    def delete_it(_: object) -> None:
        admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
        admin.delete_topics([pipeline.output], operation_timeout=30)[pipeline.output].result(30)

    pipeline.feed(80)
    at_step("finish", "started", delete_it)
    error = pipeline.refused(options={"delivery.timeout.ms": 10_000, "request.timeout.ms": 5_000})
    assert isinstance(error, TopicMissing)
    assert pipeline.output in error.message
    assert len(pipeline.ledger()) == 1


def test_an_unreachable_broker_is_named_in_bounded_time(pipeline: Pipeline):
    (port,) = free_ports(1)
    pipeline.feed(5)
    error = pipeline.refused(
        bootstrap_servers=f"127.0.0.1:{port}",
        options={"socket.connection.setup.timeout.max.ms": 3000},
    )
    assert type(error) is BrokerUnreachable
    assert f"127.0.0.1:{port}" in error.message
    assert "bootstrap.servers" in error.next_step


def test_a_transaction_timeout_above_the_brokers_maximum_names_both_settings(
    any_pipeline: Pipeline,
):
    error = refused_and_invisible(
        any_pipeline, "'v' AS value", options={"transaction.timeout.ms": 3_600_000}
    )
    assert type(error) is TransactionTimeoutTooLarge
    assert "transaction.timeout.ms=3600000" in error.message
    assert "transaction.max.timeout.ms=900000" in error.message


def test_a_ledger_topic_that_forgets_is_refused(pipeline: Pipeline):
    pipeline.ledger_topic = pipeline.topic(1, cleanup_policy="delete")
    error = refused_and_invisible(pipeline, "'v' AS value")
    assert type(error) is ServerMisconfigured
    assert pipeline.ledger_topic in error.message
    assert "cleanup.policy=compact" in error.next_step


@pytest.mark.parametrize(
    ("settings", "kind", "named"),
    [
        ({"options": {"compresion.type": "lz4"}}, UnknownOption, "compression.type"),
        ({"options": {"linger.ms": 5}}, ContradictoryOptions, "linger.ms"),
        ({"options": {"transactional.id": "mine"}}, ContradictoryOptions, "transactional.id"),
        ({"options": {"acks": "1"}}, ContradictoryOptions, "acks"),
        ({"options": {"enable.idempotence": "false"}}, ContradictoryOptions, "enable.idempotence"),
        (
            {"options": {"max.in.flight.requests.per.connection": 6}},
            ConfigurationError,
            "max.in.flight",
        ),
        ({"options": {"delivery.timeout.ms": 10}}, ContradictoryOptions, "delivery.timeout.ms"),
        ({"options": {"compression.type": "brotli"}}, ConfigurationError, "compression.type"),
        (
            {"options": {"transaction.timeout.ms": "1 minute"}},
            ConfigurationError,
            "transaction.timeout.ms",
        ),
        ({"bootstrap_servers": "broker"}, ConfigurationError, "bootstrap_servers"),
        ({"pipeline_id": "no spaces please"}, ConfigurationError, "pipeline_id"),
        ({"topic": "no/slashes"}, InvalidTopicName, "no/slashes"),
        ({"topic": "same", "ledger_topic": "same"}, ContradictoryOptions, "ledger_topic"),
        ({"delivery": "exactly-once"}, ConfigurationError, "delivery"),
        ({"delivery": "none", "resume": "ledger"}, ContradictoryOptions, "resume"),
        ({"resume": "yes"}, ConfigurationError, "resume"),
        ({"batch_attempts": 0}, ConfigurationError, "batch_attempts"),
        ({"batch_timeout_s": 0}, ConfigurationError, "batch_timeout_s"),
        ({"held_bytes": 10}, ConfigurationError, "held_bytes"),
        ({"sequencer_port": 70_000}, ConfigurationError, "sequencer_port"),
        ({"create_topic_partitions": 0}, ConfigurationError, "create_topic_partitions"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_are_refused_when_the_sink_is_built(
    settings: dict[str, Any], kind: type[OncewardError], named: str
):
    good = {"bootstrap_servers": "broker:9092", "pipeline_id": "p", "topic": "t"}
    with pytest.raises(kind) as caught:
        onceward.KafkaSink(**(good | settings))
    assert named in str(caught.value)
    assert caught.value.next_step


def test_outside_a_streaming_query(pipeline: Pipeline):
    frame = pipeline.spark.createDataFrame([("v",)], "value string")
    with pytest.raises(UnsupportedQuery, match="outside a streaming query"):
        pipeline.sink()(frame, 0)
    assert pipeline.appended() == []


def test_asynchronous_progress_tracking_is_refused(pipeline: Pipeline):
    """Spark itself allows it with its own Kafka sink only; whoever says no first, nothing may be
    written.
    """
    pipeline.feed(5)
    writer = (
        copy(pipeline.frame())
        .writeStream.option("checkpointLocation", str(pipeline.checkpoint))
        .option("asyncProgressTrackingEnabled", "true")
        .trigger(processingTime="0 seconds")
        .foreachBatch(pipeline.sink())
    )
    with pytest.raises(Exception, match=r"(?i)async"):
        raise_the_refusal(pipeline, writer.start)
    assert pipeline.appended() == []


def test_a_continuous_trigger_is_refused(pipeline: Pipeline):
    pipeline.feed(5)
    with pytest.raises(Exception, match=r"(?i)continuous"):
        raise_the_refusal(pipeline, lambda: pipeline.start(trigger={"continuous": "1 second"}))
    assert pipeline.appended() == []


def raise_the_refusal(pipeline: Pipeline, start: Callable[[], StreamingQuery]) -> None:
    """Spark's refusal comes from ``start``, ours from the first batch."""
    query = start()
    error = pipeline.ended(query)
    raise onceward.error_of(query) or AssertionError(error)


@pytest.mark.parametrize(
    ("name", "made", "becomes"),
    [
        ("value", "named_struct('a', 1)", '{"a":1}'),
        ("value", "5", "5"),
        ("key", "array(1, 2)", "[1,2]"),
        ("topic", "5", "5"),
        ("partition", "5L", 5),
        ("headers", "map('a', 'b')", [("a", b"b")]),
        ("timestamp", "1764340000000L", 1764340000),
    ],
)
def test_a_column_becomes_what_the_error_says(
    spark: SparkSession, name: str, made: str, becomes: Any
):
    frame = spark.sql(f"SELECT {made} AS {name}" + (", 'v' AS value" if name != "value" else ""))
    topic = None if name == "topic" else "out"
    with pytest.raises(InvalidColumn) as refused:
        columns.check(frame, topic)
    step = refused.value.next_step.removeprefix("make it one: ")
    mended = eval(f"frame{step}", {"frame": frame, "F": F})  # noqa: S307 — as a user pastes it
    columns.check(mended, topic)
    shown = F.col(name).cast("bigint") if name == "timestamp" else F.col(name)
    [(found,)] = mended.select(shown).collect()
    if name == "headers":
        found = [(header.key, bytes(header.value)) for header in found]
    assert found == becomes


@pytest.mark.parametrize(
    ("own", "delivery", "later"),
    [
        ("topic", "exactly_once", False),
        ("topic", "at_least_once", False),
        ("dead_letter_topic", "exactly_once", True),
        ("ledger_topic", "exactly_once", False),
    ],
)
def test_a_query_does_not_feed_itself(
    pipeline: Pipeline, own: str, delivery: str, later: bool
) -> None:
    """Also by a pattern that takes in what the sink writes, and where that appears later."""
    pipeline.feed(10)
    prefix = f"{pipeline.source}-own"
    pattern, names = f"{pipeline.source}.*", {"delivery": delivery}
    if later:
        pipeline.run(frame=pipeline.frame(topic=None, topic_pattern=pattern), **names)
        pipeline.feed(5)
    kept = {"cleanup_policy": "compact"} if own == "ledger_topic" else {}
    read = pipeline.topic(prefix=prefix, **kept)
    names[own] = read
    failed = pipeline.failing_run(frame=pipeline.frame(topic=None, topic_pattern=pattern), **names)
    error = onceward.error_of(failed)
    assert isinstance(error, ContradictoryOptions)
    assert error.details["topic"] == read
    assert f"({own}=)" in error.message
    assert pipeline.visible(read) == []
    left_out = pipeline.frame(topic=None, topic_pattern=f"(?!{re.escape(read)}$){pattern}")
    if later:
        assert "remove the file offsets/1 " in error.next_step
        for name in ("1", ".1.crc"):
            (pipeline.checkpoint / "offsets" / name).unlink()
    else:
        pipeline.checkpoint = pipeline.checkpoint.with_name("another")
    pipeline.run(frame=left_out, **names)
    if own == "topic":
        assert len(pipeline.visible(read)) == (5 if later else 10)
    else:
        assert len(pipeline.visible()) == (15 if later else 10)
