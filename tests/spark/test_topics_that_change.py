"""Topics that change under a pipeline: partitions come, topics go and come back, records run
out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from streaming_pipeline import Pipeline, Transform, copy, source_position, source_records
from topic_operations import add_partitions, create, delete, expire, produce, set_config, until

import onceward as ow
from onceward import events
from onceward.errors import (
    BrokerUnreachable,
    LimitLowered,
    OncewardError,
    PartitionsAdded,
    SourceDataLost,
    SourceTopicReplaced,
    TopicMissing,
)
from onceward_testing.topic_reader import end_offsets

BOTH_WAYS = pytest.mark.parametrize(
    "driver_records", [0, 10_000], ids=["by-tasks", "by-the-driver"]
)


@pytest.mark.fault("source-partitions-added", "sink-partitions-added")
def test_partitions_are_added_to_source_and_output_while_the_pipeline_runs(any_pipeline: Pipeline):
    """New source partitions are read from their beginning; new output partitions are written
    to.
    """
    any_pipeline.feed(60)
    frame = any_pipeline.frame(spark_options={"kafka.metadata.max.age.ms": 200})
    query = any_pipeline.start(frame=frame, trigger={"processingTime": "0 seconds"})
    until(lambda: len(any_pipeline.visible()) == 60, query, "the first records never came")
    add_partitions(any_pipeline, any_pipeline.source, 4)
    add_partitions(any_pipeline, any_pipeline.output, 7)
    added = [(b"new-key-%d" % n, b"new-value-%d" % n) for n in range(90)]
    for partition in (2, 3):
        mine = added[partition - 2 :: 2]
        produce(any_pipeline, any_pipeline.source, mine, partition)
        any_pipeline.fed += mine
    any_pipeline.feed(30)
    until(
        lambda: len(any_pipeline.visible()) >= 180,
        query,
        "the records of the new partitions never came",
    )
    query.stop()
    any_pipeline.run()
    any_pipeline.assert_exactly_once()
    written_to = {message.partition() for message in any_pipeline.visible()}
    assert written_to - {0, 1, 2}, "no new partition of the output was written to"
    assert set(any_pipeline.ledger()[-1]["sources"][0]["end"][any_pipeline.source]) == {
        "0",
        "1",
        "2",
        "3",
    }


@pytest.mark.fault("source-topic-recreated")
def test_a_source_topic_that_was_deleted_and_created_again_is_refused(any_pipeline: Pipeline):
    """By then the new topic is longer than the old one was: to Spark its offsets look like those
    of the old one.
    """
    any_pipeline.feed(40)
    any_pipeline.run()
    ends = end_offsets(any_pipeline.bootstrap, any_pipeline.output, "read_uncommitted")
    old_id = any_pipeline.ledger()[0]["sources"][0]["witness"][any_pipeline.source]
    delete(any_pipeline, any_pipeline.source)
    create(any_pipeline, any_pipeline.source, 2)
    any_pipeline.fed.clear()
    any_pipeline.feed(100)
    error = any_pipeline.refused()
    assert type(error) is SourceTopicReplaced
    assert any_pipeline.source in error.message
    assert old_id in error.message
    assert end_offsets(any_pipeline.bootstrap, any_pipeline.output, "read_uncommitted") == ends

    # The way on that it names.
    any_pipeline.output = any_pipeline.topic(3)
    checkpoint = any_pipeline.checkpoint.with_name("of-the-new-topic")
    any_pipeline.run(pipeline_id=f"{any_pipeline.name}-2", checkpoint=checkpoint)
    assert Counter(source_records(any_pipeline.visible())) == Counter(any_pipeline.fed)


@pytest.mark.fault("source-topic-recreated")
def test_a_source_topic_that_is_replaced_while_the_pipeline_runs(pipeline: Pipeline):
    """Whoever notices first, Spark or Onceward: nothing of the new topic is taken for a
    continuation of the old.
    """
    pipeline.feed(40)
    query = pipeline.start(trigger={"processingTime": "0 seconds"})
    until(lambda: len(pipeline.visible()) == 40, query, "the first records never came")
    old = list(pipeline.fed)
    delete(pipeline, pipeline.source)
    create(pipeline, pipeline.source, 2)
    pipeline.feed(200)
    pipeline.failed(query)
    assert Counter(source_records(pipeline.visible())) == Counter(old)
    error = pipeline.refused()
    assert type(error) is SourceTopicReplaced


@pytest.mark.fault("sink-topic-deleted")
def test_an_output_topic_that_is_deleted_stops_the_pipeline_until_it_is_there_again(
    any_pipeline: Pipeline, caplog: pytest.LogCaptureFixture
):
    any_pipeline.feed(40)
    any_pipeline.run()
    delete(any_pipeline, any_pipeline.output)
    any_pipeline.feed(60)
    error = any_pipeline.refused()
    assert type(error) is TopicMissing
    assert any_pipeline.output in error.message
    assert len(any_pipeline.ledger()) == 1
    create(any_pipeline, any_pipeline.output, 5)
    any_pipeline.run()
    assert Counter(source_records(any_pipeline.visible())) == Counter(any_pipeline.fed[40:])
    assert [record["sequence"] for record in any_pipeline.ledger()] == [0, 1, 2]
    assert caplog.text.count("lacks what earlier batches have written") == 1


@pytest.mark.fault("sink-topic-deleted")
def test_an_output_topic_that_is_replaced_between_two_batches_is_named(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
):
    query = pipeline.start(trigger={"processingTime": "0 seconds"})
    for _ in range(2):
        pipeline.feed(40)
        query.processAllAvailable()
    assert "lacks" not in caplog.text
    delete(pipeline, pipeline.output)
    create(pipeline, pipeline.output, 4)
    for _ in range(2):
        pipeline.feed(40)
        query.processAllAvailable()
    query.stop()
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed[80:])
    told = [each.getMessage() for each in caplog.records if "lacks what" in each.getMessage()]
    assert len(told) == 1
    assert pipeline.output in told[0]


@pytest.mark.lengthy("chaos")
@BOTH_WAYS
@pytest.mark.fault("sink-topic-deleted")
def test_an_output_topic_that_has_fewer_partitions_in_the_middle_of_a_batch(
    pipeline: Pipeline, at_step: Any, driver_records: int
):
    """The batch had put its records to partitions that are gone."""
    pipeline.feed(40)
    pipeline.run(driver_records=driver_records)

    def replace(_: object) -> None:
        delete(pipeline, pipeline.output)
        create(pipeline, pipeline.output, 1)

    replaced = at_step(events.SEND, "started", replace)
    pipeline.feed(60)
    pipeline.run(frame=pipeline.frame(max_offsets_per_trigger=60), driver_records=driver_records)
    assert replaced.fired.is_set()
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed[40:])
    assert len(pipeline.ledger()) == 2


@pytest.mark.fault("offsets-expired")
@pytest.mark.parametrize("where", ["between two batches", "in a batch that is planned"])
def test_source_records_that_expire_before_they_are_read_stop_the_pipeline(
    any_pipeline: Pipeline, at_step: Any, where: str
):
    """Retention overtakes the pipeline: what is gone cannot be written, and is not passed over in
    silence.
    """
    any_pipeline.feed(40)
    any_pipeline.run()
    any_pipeline.feed(40)

    def expire_some(_: object) -> None:
        expire(any_pipeline, any_pipeline.source, {0: 30, 1: 30})

    if where == "between two batches":
        expire_some(None)
    else:
        at_step("plan", "started", expire_some)
    error = any_pipeline.refused()
    assert type(error) is SourceDataLost
    assert any_pipeline.source in error.message
    assert len(any_pipeline.visible()) == 40
    assert len(any_pipeline.ledger()) == 1
    assert any_pipeline.open_transactions() == []

    # The way on that it names: without what is gone, on purpose.
    any_pipeline.run(frame=any_pipeline.frame(spark_options={"failOnDataLoss": False}))
    positions = [source_position(message) for message in any_pipeline.visible()]
    assert sorted(positions) == [(p, o) for p in (0, 1) for o in range(40) if not 20 <= o < 30]


def test_records_that_expired_before_a_shuffle(pipeline: Pipeline):
    """Adaptive execution (Spark 4.1 and later) reads them before it calls the sink."""
    pipeline.feed(40)
    pipeline.run()
    pipeline.feed(40)
    expire(pipeline, pipeline.source, {0: 30, 1: 30})
    error = pipeline.refused(lambda rows: copy(rows).repartition(3))
    assert type(error) is SourceDataLost
    assert len(pipeline.visible()) == 40


def test_a_batch_that_goes_back_behind_what_is_written_is_not_begun(pipeline: Pipeline):
    """Spark logs such an end where a broker that no longer leads the source has told it."""
    pipeline.feed(40)
    pipeline.run()
    pipeline.feed(40)
    offsets = pipeline.checkpoint / "offsets"
    *head, ends = (offsets / "0").read_text().splitlines()
    earlier = {topic: dict.fromkeys(each, 5) for topic, each in json.loads(ends).items()}
    (offsets / "1").write_text("\n".join([*head, json.dumps(earlier)]))
    as_it_is = pipeline.refused()
    assert type(as_it_is) is SourceDataLost
    assert "remove the file offsets/n, the newest," in as_it_is.next_step
    without = pipeline.frame(spark_options={"failOnDataLoss": False})
    going_on = pipeline.refused(frame=without)
    assert "from offset 20 to 5, and its leader has records up to 40" in going_on.message
    assert "remove the file offsets/1" in going_on.next_step
    (offsets / "1").unlink()
    (offsets / ".1.crc").unlink(missing_ok=True)
    pipeline.run()
    pipeline.assert_exactly_once()


@pytest.mark.parametrize("passes_over", [False, True], ids=["fails on loss", "passes it over"])
def test_a_batch_that_ends_behind_a_log_that_was_cut_off_is_planned_anew(
    pipeline: Pipeline, passes_over: bool
):
    """What comes before its end later would be skipped, with failOnDataLoss=false silently."""
    pipeline.feed(40)
    pipeline.run()
    pipeline.feed(20)
    offsets = pipeline.checkpoint / "offsets"
    *head, ends = (offsets / "0").read_text().splitlines()
    behind = {topic: dict.fromkeys(each, 50) for topic, each in json.loads(ends).items()}
    (offsets / "1").write_text("\n".join([*head, json.dumps(behind)]))
    options = {"failOnDataLoss": not passes_over, "kafkaConsumer.pollTimeoutMs": 5_000}
    frame = pipeline.frame(spark_options=options)
    at_first = pipeline.refused(frame=frame, trigger={"availableNow": True})
    if type(at_first) is BrokerUnreachable:
        assert "without availableNow" in at_first.next_step
    else:
        # Since Spark 4.3 it comes to the batch itself
        assert type(at_first) is SourceDataLost
    error = pipeline.refused(frame=frame, trigger={"processingTime": "0 seconds"})
    assert type(error) is SourceDataLost
    assert "ends at offset 30" in error.message
    assert "remove the file offsets/1" in error.next_step
    pipeline.feed(60)
    (offsets / "1").unlink()
    (offsets / ".1.crc").unlink(missing_ok=True)
    pipeline.run()
    pipeline.assert_exactly_once()


@pytest.mark.parametrize("by_pattern", [False, True], ids=["by name", "by pattern"])
def test_a_topic_that_the_query_no_longer_reads_is_not_missed(
    pipeline: Pipeline, by_pattern: bool
):
    """It is there, and the batch leaves it out: as the user has said."""
    other = pipeline.topic(1, prefix="dropped")

    def reads(*topics: str) -> DataFrame:
        options: dict[str, Any] = {"spark_options": {"failOnDataLoss": False}}
        if by_pattern:
            return pipeline.frame(topic_pattern="|".join(map(re.escape, topics)), **options)
        return pipeline.frame(topic=list(topics), **options)

    pipeline.feed(20)
    produce(pipeline, other, [(b"k", b"of the other")], 0)
    pipeline.run(frame=reads(pipeline.source, other))
    pipeline.feed(20)
    pipeline.run(frame=reads(pipeline.source))
    assert len(pipeline.visible()) == 41


@pytest.mark.parametrize("wrong", ["another topic", "one less", "another order"])
def test_topics_that_are_wrong_for_one_start_are_read_on_once_they_are_put_back(
    pipeline: Pipeline, wrong: str
):
    """Spark has logged a batch of the wrong ones, and runs it again at each start."""
    other = pipeline.topic(1, prefix="other")

    def both(first: str, second: str) -> DataFrame:
        return pipeline.frame(topic=first).union(pipeline.frame(topic=second))

    right, mistaken = {
        "another topic": (pipeline.frame, lambda: pipeline.frame(topic=other)),
        "one less": (lambda: pipeline.frame(topic=[pipeline.source, other]), pipeline.frame),
        "another order": (
            lambda: both(pipeline.source, other),
            lambda: both(other, pipeline.source),
        ),
    }[wrong]
    pipeline.feed(20)
    if wrong != "another topic":
        pipeline.feed(4, topic=other)
    pipeline.run(frame=right())
    pipeline.feed(20)
    if wrong == "another topic":
        produce(pipeline, other, [(b"k", b"of the other")], 0)
    else:
        pipeline.feed(4, topic=other)
    trigger = {"processingTime": "0 seconds"}
    error = pipeline.refused(frame=mistaken(), trigger=trigger)
    if wrong == "another order":
        assert type(error) is SourceTopicReplaced
        assert "put them back in their order" in error.next_step
    else:
        assert type(error) is SourceDataLost
        assert "put the topic back into topic=" in error.next_step
    # Another pipeline of this process, whose cluster is away, has no say in it
    away = ow.KafkaSink(topic="away", pipeline_id="away", bootstrap_servers="127.0.0.1:1")
    anew = pipeline.refused(frame=right(), trigger=trigger)
    del away
    assert type(anew) is PartitionsAdded
    assert "remove the file offsets/1" in anew.next_step
    forget = pipeline.checkpoint / "offsets"
    (forget / "1").unlink()
    (forget / ".1.crc").unlink(missing_ok=True)
    pipeline.run(frame=right())
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed)


@pytest.mark.lengthy("chaos")
def test_a_batch_that_is_committed_is_not_planned_anew_for_other_topics(pipeline: Pipeline):
    """A driver dies before Spark has noted the batch, and the next one is the version before. Spark
    fails before any sink is asked; planned anew, the batch would be none that the ledger knows.
    """
    other = pipeline.topic(1, prefix="other")
    pipeline.feed(20)
    pipeline.run()
    pipeline.feed(4, topic=other)
    pipeline.run(frame=pipeline.frame(topic=[pipeline.source, other]))
    assert pipeline.forget_commit() == 1
    pipeline.feed(20)
    planned = (pipeline.checkpoint / "offsets" / "1").read_text()

    def mistaken() -> StreamingQuery:
        # As where its passwords change
        return pipeline.start(trigger={"processingTime": "0 seconds"})

    with pytest.raises(SourceDataLost, match=r"batch 1 of .* is committed by") as refused:
        ow.supervise(mistaken, ow.restart.FixedDelay(attempts=1, delay_s=0))
    assert "to what it was when the batch was planned" in refused.value.next_step
    assert (pipeline.checkpoint / "offsets" / "1").read_text() == planned
    both = pipeline.frame(topic=[pipeline.source, other])
    query = pipeline.start(frame=both, trigger={"processingTime": "0 seconds"})
    until(lambda: len(pipeline.visible()) == 44, query, "the last records never came")
    query.stop()
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed)


def test_a_topic_that_was_created_again_with_fewer_partitions_is_not_waited_for(
    pipeline: Pipeline,
):
    """Each new plan would lack them, too."""
    pipeline.feed(20)
    pipeline.run()
    delete(pipeline, pipeline.source)
    create(pipeline, pipeline.source, 1)
    produce(pipeline, pipeline.source, [(b"k", b"of the new one")] * 40, 0)
    for _ in range(2):
        error = pipeline.refused(trigger={"processingTime": "0 seconds"})
        assert type(error) is SourceDataLost
        assert "with fewer partitions, begin anew" in error.next_step


def test_a_source_topic_that_is_missing(pipeline: Pipeline):
    error = pipeline.refused(frame=pipeline.frame(topic="no-such-topic"))
    assert type(error) is TopicMissing
    assert "no-such-topic" in error.message
    assert pipeline.bootstrap in error.message
    assert error.next_step.startswith("correct topic= and bootstrap_servers=")
    assert "start once with" in error.next_step


def by_a_column(pipeline: Pipeline) -> Transform:
    """As :func:`copy`, with the topic in the rows."""
    return lambda rows: copy(rows).withColumn("topic", f.lit(pipeline.output))


def limited(pipeline: Pipeline, at_step: Any, limit: int) -> None:
    """Once the first batch is committed, and the run has written to the topic, it takes ``limit``
    and no more.
    """
    at_step(
        events.COMMIT,
        "finished",
        lambda _: set_config(pipeline, pipeline.output, "max.message.bytes", limit),
    )


@BOTH_WAYS
def test_a_limit_that_is_lowered_in_mid_run_makes_record_batches_smaller(
    pipeline: Pipeline, at_step: Any, driver_records: int
):
    pipeline.feed([(b"k%d" % n, b"x" * 1000) for n in range(160)])
    limited(pipeline, at_step, 5_000)
    pipeline.run(frame=pipeline.frame(max_offsets_per_trigger=80), driver_records=driver_records)
    pipeline.assert_exactly_once(ledger_records=2)


def test_a_limit_that_was_lowered_is_asked_for_again_without_a_transaction(pipeline: Pipeline):
    """A sink that is built once remembers what topics take, also from one start of its query to
    the next.
    """
    sink = pipeline.sink(delivery="at_least_once")
    pipeline.feed([(b"k%d" % n, b"x" * 1000) for n in range(80)])
    pipeline.run(sink=sink)
    set_config(pipeline, pipeline.output, "max.message.bytes", 5_000)
    pipeline.feed([(b"l%d" % n, b"y" * 1000) for n in range(80)])
    ow.supervise(lambda: pipeline.start(sink=sink), ow.restart.FixedDelay(attempts=1, delay_s=0))
    assert set(source_records(pipeline.visible())) == set(pipeline.fed)


@pytest.mark.parametrize("by_column", [False, True], ids=["topic=", "column topic"])
@BOTH_WAYS
def test_a_limit_below_the_size_of_a_record_stops_the_query_until_it_is_raised(
    pipeline: Pipeline, at_step: Any, driver_records: int, by_column: bool
):
    """The same record in a topic that never took it is refused for good."""
    pipeline.feed([(b"k%d" % n, b"x" * 1000) for n in range(160)])
    limited(pipeline, at_step, 500)
    met: list[OncewardError] = []
    transform, named = (by_a_column(pipeline), {"topic": None}) if by_column else (copy, {})

    def start() -> StreamingQuery:
        if met:  # as the error says
            limit = met[-1].next_step.split("back to ")[1].split(",")[0]
            set_config(pipeline, pipeline.output, "max.message.bytes", limit)
        query = pipeline.start(
            transform,
            frame=pipeline.frame(max_offsets_per_trigger=80),
            driver_records=driver_records,
            **named,
        )
        pipeline.ended(query)
        met.extend(filter(None, [ow.error_of(query)]))
        return query

    ow.supervise(start, ow.restart.FixedDelay(delay_s=0))
    assert [type(error) for error in met] == [LimitLowered]
    pipeline.assert_exactly_once(ledger_records=2)


def test_a_column_names_topics_whose_limit_was_lowered_without_a_transaction(pipeline: Pipeline):
    sink, transform = (
        pipeline.sink(delivery="at_least_once", topic=None),
        by_a_column(pipeline),
    )
    pipeline.feed(4)
    pipeline.run(transform, sink=sink)
    set_config(pipeline, pipeline.output, "max.message.bytes", 500)
    pipeline.feed([(b"large", b"x" * 1000)])
    assert type(pipeline.refused(transform, sink=sink)) is LimitLowered


def test_brokers_that_compress_anew_are_told_from_a_limit(pipeline: Pipeline):
    """What is sent is smaller than the limit, and what would be in the log is not."""
    set_config(pipeline, pipeline.output, "max.message.bytes", 5_000)
    set_config(pipeline, pipeline.output, "compression.type", "uncompressed")
    pipeline.feed([(b"large", b"x" * 10_000)])
    error = pipeline.refused(options={"compression.type": "gzip"})
    assert type(error) is LimitLowered
    assert "set compression.type of topic" in error.next_step
    set_config(pipeline, pipeline.output, "compression.type", "producer")
    pipeline.run(options={"compression.type": "gzip"})
    pipeline.assert_exactly_once()


def test_records_go_to_the_dead_letters_from_when_a_limit_is_lowered(
    pipeline: Pipeline, at_step: Any
):
    dead = pipeline.topic(1)
    pipeline.feed([(b"k%d" % n, b"x" * (3_000 if n % 4 == 1 else 10)) for n in range(160)])
    limited(pipeline, at_step, 2_000)
    pipeline.run(
        frame=pipeline.frame(max_offsets_per_trigger=80),
        dead_letter_topic=dead,
        on_error="dead_letter",
    )
    letters, visible = pipeline.visible(dead), pipeline.visible()
    assert len(letters) + len(visible) == 160
    assert 0 < len(letters) < 40


@BOTH_WAYS
def test_records_go_to_the_topic_from_when_its_limit_is_raised(
    pipeline: Pipeline, at_step: Any, driver_records: int
):
    dead = pipeline.topic(1)
    pipeline.output = pipeline.topic(1, max_message_bytes=2_000)
    pipeline.feed([(b"k%d" % n, b"x" * (3_000 if n % 4 == 1 else 10)) for n in range(160)])
    limited(pipeline, at_step, 10_000)
    pipeline.run(
        frame=pipeline.frame(max_offsets_per_trigger=80),
        dead_letter_topic=dead,
        on_error="dead_letter",
        driver_records=driver_records,
    )
    letters, visible = pipeline.visible(dead), pipeline.visible()
    assert len(letters) + len(visible) == 160
    assert 0 < len(letters) < 40
