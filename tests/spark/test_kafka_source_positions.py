"""Where ``kafka_source`` begins, and that it never reads what was not committed."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame
from streaming_pipeline import Pipeline, source_records

import onceward
from onceward.errors import (
    BrokerUnreachable,
    ConfigurationError,
    ContradictoryOptions,
    TopicMissing,
)
from onceward.kafka.source.identity import known_logins
from support.handmade_broker import HandmadeBroker

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def values_read(pipeline: Pipeline, **options: Any) -> Counter[bytes]:
    """What a fresh query with these source options writes, up to the source's present end."""
    number = len(list(pipeline.checkpoint.parent.iterdir()))
    topic = pipeline.topic(1)
    pipeline.run(
        frame=pipeline.frame(max_offsets_per_trigger=10_000, **options),
        topic=topic,
        delivery="none",
        checkpoint=pipeline.checkpoint.with_name(f"checkpoint-{number}"),
    )
    return Counter(
        value for _, value in source_records(pipeline.visible(topic)) if value is not None
    )


def values_of(numbers: Any) -> Counter[bytes]:
    return Counter(b"value-%d" % number for number in numbers)


def test_earliest_is_everything(pipeline: Pipeline):
    pipeline.feed(30)
    assert values_read(pipeline, starting="earliest") == values_of(range(30))


def test_latest_is_what_comes_after_the_start(pipeline: Pipeline):
    pipeline.feed(30)
    frame = pipeline.frame(starting="latest")
    query = pipeline.start(frame=frame, trigger={"processingTime": "0 seconds"})
    for _ in range(600):  # batch 0 is planned once the start is logged
        if (
            list((pipeline.checkpoint / "sources" / "0").glob("0"))
            if pipeline.checkpoint.exists()
            else False
        ):
            break
        assert query.isActive, query.exception()
        query.awaitTermination(0.1)
    pipeline.feed(20)
    query.processAllAvailable()
    query.stop()
    assert Counter(v for _, v in source_records(pipeline.visible())) == values_of(range(30, 50))


def test_a_time_is_the_first_record_from_then_on(pipeline: Pipeline):
    start = datetime(2024, 5, 17, 12, 0, tzinfo=timezone.utc)
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for minute in range(20):
        for partition in range(2):
            at_ms = int((start + timedelta(minutes=minute)).timestamp() * 1000)
            producer.produce(
                pipeline.source, b"value-%d" % minute, partition=partition, timestamp=at_ms
            )
    assert producer.flush(60) == 0
    for when in (start + timedelta(minutes=12), start + timedelta(minutes=11, seconds=1)):
        assert values_read(pipeline, starting=when) == values_of([*range(12, 20)] * 2)
    a_little_later = start + timedelta(minutes=12, microseconds=500)
    assert values_read(pipeline, starting=a_little_later) == values_of([*range(13, 20)] * 2)
    assert values_read(pipeline, starting=EPOCH) == values_of([*range(20)] * 2)
    # In another time zone it is the same moment; beyond the last record it is the end.
    east = (start + timedelta(minutes=12)).astimezone(timezone(timedelta(hours=9)))
    assert values_read(pipeline, starting=east) == values_of([*range(12, 20)] * 2)
    assert values_read(pipeline, starting=start + timedelta(days=1)) == Counter()


def test_group_goes_on_where_the_group_has_committed(any_pipeline: Pipeline):
    any_pipeline.feed(40)
    consumer = Consumer(
        {"bootstrap.servers": any_pipeline.bootstrap, "group.id": any_pipeline.name}
    )
    consumer.commit(offsets=[TopicPartition(any_pipeline.source, 0, 5)], asynchronous=False)
    consumer.close()
    offsets = {
        (m.partition(), m.offset()): m.value() for m in any_pipeline.visible(any_pipeline.source)
    }
    later = Counter(v for (p, o), v in offsets.items() if p == 0 and o >= 5)
    other = Counter(v for (p, _), v in offsets.items() if p == 1)
    group = {"starting": "group", "pipeline_id": any_pipeline.name}
    assert values_read(any_pipeline, **group) == later + other
    assert values_read(any_pipeline, **group, otherwise="latest") == later
    with pytest.raises(ConfigurationError, match=f"has no offset of {any_pipeline.source}-1"):
        any_pipeline.frame(**group, otherwise="error")


def test_group_after_a_run_is_the_end_of_that_run(any_pipeline: Pipeline):
    any_pipeline.feed(40)
    any_pipeline.run()
    any_pipeline.feed(10)
    group = {"starting": "group", "pipeline_id": any_pipeline.name, "otherwise": "error"}
    assert values_read(any_pipeline, **group) == values_of(range(40, 50))


def test_ledger_is_where_the_newest_record_ends(any_pipeline: Pipeline):
    any_pipeline.feed(40)
    any_pipeline.run()
    any_pipeline.feed(10)
    ledger = {
        "starting": "ledger",
        "pipeline_id": any_pipeline.name,
        "ledger_topic": any_pipeline.ledger_topic,
    }
    assert values_read(any_pipeline, **ledger, otherwise="error") == values_of(range(40, 50))


@pytest.mark.parametrize("ends", ["alike", "apart"])
def test_a_lost_checkpoint_of_a_union_of_two_reads_of_one_topic(pipeline: Pipeline, ends: str):
    """Where they end alike, it is the same which one goes on; else each goes on by hand."""

    def both(first: DataFrame, second: DataFrame) -> DataFrame:
        return first.union(second)

    first, second = pipeline.frame(), pipeline.frame(max_offsets_per_trigger=6)
    sink = pipeline.sink()

    def until_the_second(rows: DataFrame, batch_id: int) -> None:
        assert batch_id == 0, "no more"
        sink(rows, batch_id)

    pipeline.feed(20)
    if ends == "alike":
        pipeline.run(frame=both(first, second))
        assert len(pipeline.visible()) == 40
    else:
        pipeline.failing_run(frame=both(first, second), sink=until_the_second)
        assert len(pipeline.visible()) < 40
    pipeline.lose_checkpoint()
    pipeline.feed(10)
    ledger = {
        "starting": "ledger",
        "pipeline_id": pipeline.name,
        "ledger_topic": pipeline.ledger_topic,
    }
    if ends == "alike":
        again = both(pipeline.frame(**ledger), pipeline.frame(**ledger))
    else:
        with pytest.raises(ConfigurationError, match="several sources") as refused:
            pipeline.frame(**ledger)
        again = both(*(plain_frame(pipeline, end) for end in refused.value.details["ends"]))
    pipeline.run(frame=again, resume="ledger")
    found = Counter(value for _, value in source_records(pipeline.visible()))
    assert found == values_of([*range(30)] * 2)


def plain_frame(pipeline: Pipeline, end: Any) -> DataFrame:
    """Read as the error says."""
    options = {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": pipeline.source,
        "startingOffsets": json.dumps(end),
    }
    return pipeline.spark.readStream.format("kafka").options(**options).load()


def test_an_empty_ledger_follows_otherwise(pipeline: Pipeline):
    pipeline.feed(10)
    ledger = {
        "starting": "ledger",
        "pipeline_id": pipeline.name,
        "ledger_topic": pipeline.ledger_topic,
    }
    assert values_read(pipeline, **ledger) == values_of(range(10))
    with pytest.raises(ConfigurationError, match="has no offset of") as caught:
        pipeline.frame(**ledger, otherwise="error")
    assert "otherwise" in caught.value.next_step


@pytest.mark.fault("source-partitions-added")
def test_a_partition_that_was_added_since_is_read_from_its_beginning(pipeline: Pipeline):
    """With otherwise="latest", what was written to it before this start would be lost."""
    from confluent_kafka.admin import AdminClient, NewPartitions

    pipeline.feed(20)
    pipeline.run()
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    admin.create_partitions([NewPartitions(pipeline.source, 3)])[pipeline.source].result(30)
    for _ in range(300):
        if (
            len(admin.list_topics(pipeline.source, timeout=10).topics[pipeline.source].partitions)
            == 3
        ):
            break
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    producer.produce(pipeline.source, b"value-20", partition=2)
    assert producer.flush(60) == 0
    ledger = {
        "starting": "ledger",
        "pipeline_id": pipeline.name,
        "ledger_topic": pipeline.ledger_topic,
    }
    assert values_read(pipeline, **ledger, otherwise="latest") == values_of([20])


def test_only_committed_records_are_read(any_pipeline: Pipeline):
    settings = {
        "bootstrap.servers": any_pipeline.bootstrap,
        "transactional.id": f"writer-{any_pipeline.name}",
    }
    producer = Producer(settings)
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce(any_pipeline.source, b"value-%d" % number, partition=0)
        producer.flush(60)
        end(60)
    assert len(any_pipeline.appended(any_pipeline.source)) == 4
    assert values_read(any_pipeline) == values_of([0, 2])


@pytest.mark.parametrize(
    ("options", "kind", "named"),
    [
        ({"starting": "beginning"}, ConfigurationError, "starting"),
        ({"starting": datetime(2024, 1, 1)}, ConfigurationError, "time zone"),
        ({"starting": EPOCH - timedelta(microseconds=1)}, ConfigurationError, '"earliest"'),
        ({"starting": "group"}, ConfigurationError, "pipeline_id"),
        ({"starting": "ledger"}, ConfigurationError, "pipeline_id"),
        ({"otherwise": "never"}, ConfigurationError, "otherwise"),
        ({"topic": []}, ConfigurationError, "topic"),
        ({"topic": "a, b"}, ConfigurationError, "topic=['a', 'b']"),
        ({"max_offsets_per_trigger": "abc"}, ConfigurationError, "max_offsets_per_trigger"),
        ({"max_offsets_per_trigger": 0}, ConfigurationError, "max_offsets_per_trigger"),
        (
            {"spark_options": {"kafka.isolation.level": "read_uncommitted"}},
            ContradictoryOptions,
            "isolation.level",
        ),
        (
            {"spark_options": {"startingOffsets": "latest"}},
            ContradictoryOptions,
            "startingOffsets",
        ),
        ({"spark_options": {"subscribePattern": "a.*"}}, ContradictoryOptions, "subscribePattern"),
        (
            {"spark_options": {"kafka.Auto.Offset.Reset": "latest"}},
            ContradictoryOptions,
            "starting=",
        ),
        (
            {"options": {"isolation.level": "read_uncommitted"}},
            ConfigurationError,
            "isolation.level",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_positions_and_options_that_cannot_be(
    spark: Any, options: dict[str, Any], kind: type[Exception], named: str
):
    with pytest.raises(kind) as caught:
        onceward.kafka_source(
            spark, **({"bootstrap_servers": "broker:9092", "topic": "t"} | options)
        )
    assert named in str(caught.value)


def test_more_tasks_than_partitions_keep_each_key_in_order(pipeline: Pipeline):
    """As the refusal of minPartitions says."""
    pipeline.feed([(b"key-%d" % (n // 2 % 3), b"%d" % n) for n in range(120)])
    told = "concat_ws(':', partition, offset, CAST(value AS STRING)) AS value"
    many = lambda rows: rows.selectExpr("key", told, "offset").repartition(5)  # noqa: E731 — as a user writes it
    pipeline.run(many, order_by="offset", frame=pipeline.frame(max_offsets_per_trigger=None))
    for key in range(3):
        said = [
            m.value().decode().split(":") for m in pipeline.visible() if m.key() == b"key-%d" % key
        ]
        for partition in "01":
            offsets = [int(offset) for source, offset, _ in said if source == partition]
            assert offsets == sorted(offsets)
            assert len(offsets) == 20


def test_a_missing_topic_is_named(pipeline: Pipeline):
    with pytest.raises(TopicMissing, match="topic-that-is-not-there"):
        pipeline.frame(
            topic="topic-that-is-not-there", starting="group", pipeline_id=pipeline.name
        )


@pytest.mark.parametrize("starting", ["earliest", "ledger"])
def test_a_cluster_that_is_not_there_is_named_at_the_definition(spark: Any, starting: Any):
    options = {"socket.connection.setup.timeout.max.ms": 2_000}
    with pytest.raises(
        BrokerUnreachable, match=r"kafka_source\(bootstrap_servers=.*127\.0\.0\.1:1\b"
    ) as unreachable:
        onceward.kafka_source(
            spark,
            bootstrap_servers="127.0.0.1:1",
            topic="t",
            starting=starting,
            pipeline_id="p",
            options=options,
        )
    assert "bootstrap.servers" in unreachable.value.next_step


def test_brokers_that_advertise_what_cannot_be_reached_are_named(spark: Any):
    """As a broker in a container that calls itself ``localhost``: the bootstrap server answers,
    and nobody else.
    """
    with HandmadeBroker() as broker:
        broker.node_at = 1
        with pytest.raises(
            BrokerUnreachable, match=r"answers, and none of the brokers.*127\.0\.0\.1:1\b"
        ) as found:
            onceward.kafka_source(spark, bootstrap_servers=broker.bootstrap_servers, topic="t")
        assert "advertised.listeners" in found.value.next_step
        broker.node_at = broker.port
        onceward.kafka_source(spark, bootstrap_servers=broker.bootstrap_servers, topic="t")


def test_a_login_that_only_spark_is_told_is_left_to_spark(spark: Any):
    options, servers = {"kafka.security.protocol": "SASL_SSL"}, "127.0.0.1:1,127.0.0.3:1"
    onceward.kafka_source(spark, bootstrap_servers=servers, topic="t", spark_options=options)
    # Nor do batches ask a cluster in which they cannot log in
    assert known_logins(frozenset(servers.split(","))) == []


def test_options_reach_spark_in_its_own_spelling(pipeline: Pipeline):
    pipeline.feed(40)
    pipeline.run(
        frame=pipeline.frame(max_offsets_per_trigger=10, spark_options={"failOnDataLoss": True})
    )
    sizes = [record["records"] for record in pipeline.ledger()]
    assert max(sizes) <= 11
    assert len(sizes) >= 4
    offsets = json.loads((pipeline.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    assert set(offsets) == {pipeline.source}


def options_of(frame: Any) -> dict[str, str]:
    return dict(frame._jdf.queryExecution().analyzed().extraOptions().asCaseSensitiveMap())


def test_larger_fetches_unless_told_otherwise(pipeline: Pipeline):
    own = {"kafka.Max.Poll.Records": 7, "kafka.fetch.max.wait.ms": 20}
    options = options_of(pipeline.frame(spark_options=own))
    assert {
        name.lower(): value for name, value in options.items() if "max.poll" in name.lower()
    } == {"kafka.max.poll.records": "7"}
    assert options["kafka.max.partition.fetch.bytes"] == str(8 << 20)
    assert options_of(pipeline.frame())["kafka.max.poll.records"] == "20000"
    plain = onceward.kafka_source(
        pipeline.spark, bootstrap_servers=pipeline.bootstrap, topic=pipeline.source
    )
    assert options_of(plain)["kafka.fetch.max.wait.ms"] == "20"
    told = onceward.kafka_source(
        pipeline.spark,
        bootstrap_servers=pipeline.bootstrap,
        topic=pipeline.source,
        spark_options={"kafka.Fetch.Max.Wait.ms": 500},
    )
    waits = {k: v for k, v in options_of(told).items() if "max.wait" in k.lower()}
    assert list(waits.values()) == ["500"]
