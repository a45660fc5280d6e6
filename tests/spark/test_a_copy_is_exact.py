"""Kafka to Spark to Kafka over several batches: what came out, where, in which order, and what the
ledger says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Producer
from streaming_pipeline import Pipeline, copy, source_position, source_records

from onceward_testing.topic_reader import end_offsets
from support.plain_checksum import checksum_of

RECORDS = 300


@pytest.fixture(params=["the driver", "a task per partition"])
def copied(request: pytest.FixtureRequest, any_kafka: Any, pipeline_on: Any) -> Pipeline:
    """A pipeline after two runs over several batches each, the second on the checkpoint of the
    first.
    """
    pipeline = pipeline_on(any_kafka, source_partitions=3, output_partitions=5)
    options = {"driver_records": 10_000 if request.param == "the driver" else 0}
    for _ in range(2):
        pipeline.feed(RECORDS // 2)
        pipeline.run(frame=pipeline.frame(max_offsets_per_trigger=60), **options)
        pipeline.runs.append(len(pipeline.committed_batches()))
    return pipeline


def test_a_copy_over_several_batches_and_a_restart(copied: Pipeline):
    every_record_is_visible_once(copied)
    keys_are_where_librdkafka_puts_them(copied)
    order_is_kept(copied)
    each_batch_is_one_transaction(copied)
    the_manifests_are_what_a_reader_finds(copied)
    the_group_is_at_the_end_of_the_source(copied)
    no_transaction_is_open(copied)


def every_record_is_visible_once(pipeline: Pipeline):
    visible = pipeline.visible()
    assert Counter(source_records(visible)) == Counter(pipeline.fed)
    assert len({source_position(message) for message in visible}) == RECORDS
    assert len(pipeline.appended()) == RECORDS


def keys_are_where_librdkafka_puts_them(pipeline: Pipeline):
    twin = pipeline.topic(5)
    producer = Producer({"bootstrap.servers": pipeline.bootstrap, "partitioner": "murmur2_random"})
    for key, _ in pipeline.fed:
        producer.produce(twin, key=key)
    assert producer.flush(60) == 0
    wanted = {message.key(): message.partition() for message in pipeline.visible(twin)}
    assert {message.key(): message.partition() for message in pipeline.visible()} == wanted
    assert set(wanted.values()) == set(range(5))


def order_is_kept(pipeline: Pipeline):
    """I3: within (source partition → output partition), and so for each key, output order is input
    order.
    """
    ways: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message in pipeline.visible():
        partition, offset = source_position(message)
        ways[partition, message.partition()].append(offset)
    assert len(ways) == 15
    assert all(offsets == sorted(offsets) for offsets in ways.values())


def each_batch_is_one_transaction(pipeline: Pipeline):
    chain = pipeline.ledger()
    assert len(chain) == len(pipeline.committed_batches()) >= 6
    assert [record["sequence"] for record in chain] == list(range(len(chain)))
    assert [record["batch_id"] for record in chain] == list(range(len(chain)))
    assert len({record["query_id"] for record in chain}) == 1
    assert len({record["attempt"][0] for record in chain}) == 1
    epochs = [record["attempt"][1] for record in chain]
    first_run = pipeline.runs[0]
    assert [b - a for a, b in pairwise(epochs[:first_run])] == [1] * (first_run - 1)
    assert [b - a for a, b in pairwise(epochs[first_run:])] == [1] * (first_run - 1)
    assert epochs[first_run] > epochs[first_run - 1]
    for end, start in pairwise(chain):
        assert [s["start"] for s in start["sources"]] == [s["end"] for s in end["sources"]]
    # Every transaction leaves one marker, which takes an offset that no reader is given, in each
    # partition it touched.
    ends = end_offsets(pipeline.bootstrap, pipeline.output, "read_uncommitted")
    written = Counter(message.partition() for message in pipeline.appended())
    took_part = Counter(
        int(p)
        for record in chain
        for p in record["outputs"]["kafka"]["data"].get(pipeline.output, {})
    )
    assert {p: end - written[p] for p, end in ends.items()} == took_part
    ledger_end = end_offsets(pipeline.bootstrap, pipeline.ledger_topic, "read_uncommitted")[0]
    assert ledger_end == 2 * len(chain)


def the_manifests_are_what_a_reader_finds(pipeline: Pipeline):
    visible = pipeline.visible()
    for record in pipeline.ledger():
        assert list(record["outputs"]["kafka"]["data"]) == [pipeline.output]
        for partition, (count, first, last, checksum) in record["outputs"]["kafka"]["data"][
            pipeline.output
        ].items():
            found = [
                m
                for m in visible
                if m.partition() == int(partition) and first <= m.offset() <= last
            ]
            assert (len(found), found[0].offset(), found[-1].offset()) == (count, first, last)
            content = checksum_of((m.key(), m.value(), m.headers()) for m in found)
            assert content.hexdigest() == checksum
            # I4, seen from the source: the records of a batch are exactly those of its offsets.
            starts, ends = record["sources"][0]["start"], record["sources"][0]["end"]
            for p, offset in map(source_position, found):
                assert starts[pipeline.source][str(p)] <= offset < ends[pipeline.source][str(p)]
    assert sum(record["records"] for record in pipeline.ledger()) == len(visible)


def the_group_is_at_the_end_of_the_source(pipeline: Pipeline):
    assert pipeline.lag() == {(pipeline.source, partition): 0 for partition in range(3)}


def no_transaction_is_open(pipeline: Pipeline):
    assert pipeline.open_transactions() == []
    text = pipeline.kafka.kafka_tool(
        "kafka-transactions", "describe", "--transactional-id", pipeline.name
    )
    assert "CompleteCommit" in text


def test_the_ledger_topic_is_made_when_it_is_missing(pipeline: Pipeline):
    pipeline.ledger_topic = f"ledger-of-{pipeline.name}"
    pipeline.feed(30)
    pipeline.run()
    pipeline.assert_exactly_once(ledger_records=1)
    text = pipeline.kafka.kafka_tool(
        "kafka-topics", "--describe", "--topic", pipeline.ledger_topic
    )
    assert "PartitionCount: 16" in text
    assert "cleanup.policy=compact" in text


def test_pipelines_share_a_ledger_and_an_open_transaction_of_one_does_not_hold_up_the_other(
    pipeline_on: Any, kafka: Any
):
    """Readers that stop at the last stable offset would wait here until the transaction of the
    other times out.
    """
    first, second = pipeline_on(kafka), pipeline_on(kafka)
    second.ledger_topic = first.ledger_topic
    for pipeline in (first, second):
        pipeline.feed(60)
        pipeline.run()
    stranger = Producer(
        {"bootstrap.servers": first.bootstrap, "transactional.id": f"stranger-of-{first.name}"}
    )
    stranger.init_transactions(60)
    stranger.begin_transaction()
    stranger.produce(first.ledger_topic, key=b"stranger", value=b"{}")
    stranger.flush(60)
    for pipeline in (first, second):
        pipeline.feed(60)
        pipeline.run()
    stranger.abort_transaction(60)
    first.assert_exactly_once(ledger_records=4)
    second.assert_exactly_once(ledger_records=4)


def test_more_than_a_task_holds_back_is_sent_in_several_rounds(any_pipeline: Pipeline):
    any_pipeline.feed([(b"key-%d" % i, b"%d-" % i + b"x" * 20_000) for i in range(300)])
    frame = any_pipeline.frame(max_offsets_per_trigger=300)
    any_pipeline.run(
        frame=frame,
        held_bytes=1 << 20,
        driver_records=0,
        options={"batch.size": 100_000, "compression.type": "lz4"},
    )
    any_pipeline.assert_exactly_once(ledger_records=1)
    order_of_rounds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message in any_pipeline.visible():
        partition, offset = source_position(message)
        order_of_rounds[partition, message.partition()].append(offset)
    assert all(offsets == sorted(offsets) for offsets in order_of_rounds.values())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "zstd"])
def test_compressed_output_is_read_by_librdkafka(pipeline: Pipeline, codec: str):
    pipeline.feed(50)
    pipeline.run(options={"compression.type": codec})
    pipeline.assert_exactly_once()


def test_two_kafka_sources_in_one_query(any_pipeline: Pipeline):
    other = any_pipeline.topic(1)
    any_pipeline.feed(50)
    any_pipeline.feed([(b"other-%d" % i, b"o%d" % i) for i in range(50)], topic=other)
    for _ in range(2):
        frame = any_pipeline.frame().union(any_pipeline.frame(topic=other))
        any_pipeline.run(copy, frame=frame)
        any_pipeline.assert_exactly_once()
        any_pipeline.feed([(b"more-%d" % i, b"m%d" % i) for i in range(30)], topic=other)
    any_pipeline.run(copy, frame=any_pipeline.frame().union(any_pipeline.frame(topic=other)))
    any_pipeline.assert_exactly_once()
    assert set(any_pipeline.lag().values()) == {0}
    assert {topic for topic, _ in any_pipeline.lag()} == {any_pipeline.source, other}
