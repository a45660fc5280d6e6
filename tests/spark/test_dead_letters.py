"""I20: what a format cannot read becomes dead letters, in the transaction of its batch.

The format is the smallest that there is: it reads values that begin with ``good``. That of Avro
has tests of its own.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from streaming_pipeline import Pipeline
from typer.testing import CliRunner

import onceward
from onceward.cli import app
from onceward.engine import decoding
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.errors import (
    BatchNotWritten,
    ContradictoryOptions,
    InvalidColumn,
    OncewardError,
    RecordTooLarge,
    UnsupportedQuery,
)
from support.verify_process import verify_at


class Goods(decoding.DecodingStep):
    """See the module. ``said``: what a batch has met."""

    def __init__(self, *, sets_aside: bool = True) -> None:
        self.tag = decoding.TAG + uuid.uuid4().hex
        self.sets_aside = sets_aside
        self.looked = 0
        self.refuse: OncewardError | None = None
        self.met: list[OncewardError] = []
        decoding.register(self)

    def read(self, frame: DataFrame) -> DataFrame:
        return frame.alias(self.tag).where(
            sql.expr("substring(value, 1, 4) = CAST('good' AS BINARY)")
        )

    def before_batch(self) -> None:
        self.looked += 1
        if self.refuse is not None:
            raise self.refuse

    def dead_letters(self, rows: DataFrame) -> DataFrame:
        return rows.where(sql.expr("substring(value, 1, 4) <> CAST('good' AS BINARY)")).selectExpr(
            "key",
            "value",
            "headers",
            "topic AS source_topic",
            "partition AS source_partition",
            "offset AS source_offset",
            "timestamp AS source_timestamp",
            "'DoesNotFit' AS error_class",
            "'it is not good' AS error_message",
        )

    def explain(
        self, error: OncewardError, rows: Callable[[], DataFrame] | None
    ) -> OncewardError | None:
        self.met.append(error)
        return (
            None
            if rows is None or error is not self.refuse
            else InvalidColumn(f"{rows().count()} rows", next_step="nothing")
        )


def fed(pipeline: Pipeline, count: int = 60) -> tuple[int, int]:
    """Every fifth is bad; how many are good, and how many are not."""
    names = [b"bad" if number % 5 == 0 else b"good" for number in range(count)]
    pipeline.feed([(b"key-%d" % n, name + b"-%d" % n) for n, name in enumerate(names)])
    return names.count(b"good"), names.count(b"bad")


def header(message: Message, name: str) -> bytes:
    return dict(message.headers() or [])[name]


def test_dead_letters_are_in_the_batches_transaction_and_accounted_for(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(2)
    sink = pipeline.sink(lineage=True, dead_letter_topic=dead)
    good, bad = fed(pipeline)

    def run() -> None:
        rows = step.read(pipeline.frame()).select("key", "value", *onceward.lineage())
        pipeline.run(frame=rows, transform=lambda frame: frame, sink=sink)

    run()
    pipeline.forget_commit()  # a replay, which compares dead letters, too, and writes none
    fed(pipeline, 10)
    run()
    letters = pipeline.visible(dead)
    assert len(letters) == bad + 2
    assert len(pipeline.visible()) == good + 8
    assert Counter(m.value()[:3] for m in letters) == {b"bad": bad + 2}
    first = next(m for m in letters if m.value() == b"bad-5")
    assert first.key() == b"key-5"
    assert [name for name, _ in first.headers()] == [
        "onceward.error.class",
        "onceward.error.message",
        "onceward.pipeline",
        "onceward.timestamp",
        "onceward.topic",
        "onceward.partition",
        "onceward.offset",
    ]
    assert header(first, "onceward.pipeline") == pipeline.name.encode()
    assert (header(first, "onceward.partition"), header(first, "onceward.offset")) == (b"1", b"2")
    assert first.timestamp()[1] >= int(header(first, "onceward.timestamp"))
    answer = verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--conserves", "exactly"
    )
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    assert all(record["writes"][-1][0] == dead for record in pipeline.ledger())


def test_dead_letters_pass_by_windows_and_joins(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    _, bad = fed(pipeline)
    marked = pipeline.frame().withWatermark("timestamp", "1 minute")
    one = step.read(marked).select("timestamp", sql.col("key").alias("k"))
    counts = one.groupBy(sql.window("timestamp", "1 hour")).count()

    def shaped(_: DataFrame) -> DataFrame:
        return counts.selectExpr(
            "CAST(window.start AS STRING) AS key", "CAST(count AS STRING) AS value"
        )

    pipeline.run(shaped, mode="update", dead_letter_topic=dead)
    letters = pipeline.visible(dead)
    assert Counter(m.value() for m in letters) == Counter(b"bad-%d" % n for n in range(0, 60, 5))
    assert bad == 12
    # The same rows twice in one plan are one reading.
    other = step.read(pipeline.frame(starting="earliest")).alias("a")
    twice = other.select("key", "value").union(other.select("key", "value"))
    pipeline.checkpoint = pipeline.checkpoint.with_name("another")
    more = pipeline.topic(1)
    pipeline.run(
        frame=twice,
        transform=lambda f: f,
        dead_letter_topic=more,
        pipeline_id=f"{pipeline.name}-2",
    )
    assert len(pipeline.visible(more)) == bad


def test_a_small_batch_through_the_driver(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    good, bad = fed(pipeline)
    pipeline.run(frame=step.read(pipeline.frame()), driver_records=10_000, dead_letter_topic=dead)
    pipeline.feed([(b"last", b"bad")])  # a batch without a row of the query's own
    pipeline.run(frame=step.read(pipeline.frame()), driver_records=10_000, dead_letter_topic=dead)
    assert (len(pipeline.visible()), len(pipeline.visible(dead))) == (good, bad + 1)


def test_a_sink_without_a_place_for_them_refuses(pipeline: Pipeline):
    fed(pipeline, 5)
    error = pipeline.refused(frame=Goods().read(pipeline.frame()))
    assert isinstance(error, UnsupportedQuery)
    assert "dead_letter_topic" in error.next_step
    assert pipeline.appended() == []
    with pytest.raises(UnsupportedQuery, match="no place for them"):
        ForeachBatchSink._dead_letters(pipeline.sink(), pipeline.frame())


def test_a_step_before_the_batch_and_after_a_failure(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    fed(pipeline, 10)
    step.refuse = RecordTooLarge("not today", next_step="tomorrow")
    assert isinstance(
        pipeline.refused(frame=step.read(pipeline.frame()), dead_letter_topic=dead), InvalidColumn
    )
    assert [str(error) for error in step.met] == [str(step.refuse)]
    assert pipeline.appended(dead) == []
    step.refuse = None
    pipeline.run(frame=step.read(pipeline.frame()), dead_letter_topic=dead)
    assert len(pipeline.visible(dead)) == 2


def test_what_cannot_be_computed_a_second_time_is_refused(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    fed(pipeline, 10)
    by_chance = step.read(
        pipeline.frame().withColumn(
            "timestamp", sql.expr("timestampadd(SECOND, CAST(rand() * 9 AS INT), timestamp)")
        )
    )
    error = pipeline.refused(frame=by_chance, dead_letter_topic=dead)
    assert isinstance(error, UnsupportedQuery)
    assert "source's own frame" in error.next_step
    once = step.read(
        pipeline.frame()
        .withWatermark("timestamp", "1 minute")
        .dropDuplicatesWithinWatermark(["value"])
    )
    error = pipeline.refused(frame=once, dead_letter_topic=dead)
    assert isinstance(error, UnsupportedQuery)
    assert "DeduplicateWithinWatermark" in error.message
    assert pipeline.appended(dead) == pipeline.appended() == []


def test_a_function_that_skips_a_batch_has_skipped_its_dead_letters(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    sink = pipeline.sink(dead_letter_topic=dead)

    def unless_empty(frame: DataFrame, batch_id: int) -> None:
        if not frame.isEmpty():
            sink(frame, batch_id)

    def run(refused: bool = False, **options: str) -> OncewardError | None:
        nonlocal sink
        sink = pipeline.sink(dead_letter_topic=dead, skipped_batches="allow", **options)
        run = pipeline.refused if refused else pipeline.run
        return run(
            frame=step.read(pipeline.frame()).select("key", "value"),
            transform=lambda f: f,
            sink=unless_empty,
        )

    pipeline.feed([(b"a", b"good-1")])
    run()
    pipeline.feed([(b"b", b"bad-1")])
    run()
    assert pipeline.visible(dead) == []
    pipeline.feed([(b"c", b"good-2"), (b"d", b"bad-2")])
    assert isinstance(run(refused=True), BatchNotWritten)
    assert pipeline.appended(dead) == []
    run(resume="skip_missing")
    assert [m.value() for m in pipeline.visible(dead)] == [b"bad-2"]


def test_files_and_dead_letters_by_one_decision(pipeline: Pipeline, tmp_path: Path):
    step, dead = Goods(), pipeline.topic(1)
    good, bad = fed(pipeline)
    ledger = onceward.KafkaLedger(pipeline.bootstrap, topic=pipeline.ledger_topic)
    archive = onceward.FileSink(
        path=str(tmp_path / "files"), pipeline_id=pipeline.name, ledger=ledger
    )
    sink = onceward.FanOut({"kafka": pipeline.sink(dead_letter_topic=dead), "archive": archive})
    pipeline.run(
        frame=step.read(pipeline.frame()).select("key", "value"), transform=lambda f: f, sink=sink
    )
    assert (len(pipeline.visible()), len(pipeline.visible(dead))) == (good, bad)
    assert pipeline.spark.read.parquet(str(tmp_path / "files")).count() == good


@pytest.mark.parametrize("driver_records", [0, 10_000])
def test_records_that_are_too_large_are_set_aside(pipeline: Pipeline, driver_records: int):
    pipeline.output = pipeline.topic(2, max_message_bytes=2_000)
    dead = pipeline.topic(1, max_message_bytes=100_000)
    sizes = [10, 1_800, 1_869, 1_990, 5_000, 50_000]
    pipeline.feed([(b"k", b"x" * size) for size in sizes])
    rows = pipeline.frame().selectExpr(
        "key", "value", "partition", "array(named_struct('key', 'h', 'value', X'01')) AS headers"
    )
    options = {"driver_records": driver_records, "options": {"batch.size": 1_000}}
    error = pipeline.refused(frame=rows, transform=lambda f: f, **options)
    assert isinstance(error, RecordTooLarge)
    pipeline.run(
        frame=rows,
        transform=lambda f: f,
        dead_letter_topic=dead,
        on_error="dead_letter",
        **options,
    )
    assert sorted(len(m.value()) for m in pipeline.visible()) == [10, 1_800]
    letters = pipeline.visible(dead)
    assert sorted(len(m.value()) for m in letters) == [1_869, 1_990, 5_000, 50_000]
    assert header(letters[0], "onceward.error.class") == b"RecordTooLarge"
    assert header(letters[0], "h") == b"\x01"


def test_settings_that_contradict_each_other(pipeline: Pipeline):
    for settings in (
        {"on_error": "dead_letter"},
        {"dead_letter_topic": pipeline.output},
        {"dead_letter_topic": pipeline.ledger_topic},
        {"dead_letter_topic": "d", "on_error": "dead_letter", "topic": None},
        {"dead_letter_topic": "d", "on_error": "dead_letter", "delivery": "at_least_once"},
    ):
        with pytest.raises(ContradictoryOptions):
            pipeline.sink(**settings)


@pytest.mark.slow
def test_a_letter_that_is_fed_back_is_read_again_and_a_lost_one_is_missed(pipeline: Pipeline):
    """The whole circle; every record of the source is accounted for, also those that came to it by
    a replay.
    """
    dead = pipeline.topic(2)
    sink = pipeline.sink(lineage=True, dead_letter_topic=dead)
    good, bad = fed(pipeline)

    def run(step: Goods) -> None:
        rows = step.read(pipeline.frame()).select("key", "value", *onceward.lineage())
        pipeline.run(frame=rows, transform=lambda frame: frame, sink=sink)

    def replay() -> str:
        asked = [
            "dead-letters",
            "replay",
            "--bootstrap-servers",
            pipeline.bootstrap,
            "--topic",
            dead,
        ]
        done = CliRunner().invoke(app, [*asked, "--ledger-topic", pipeline.ledger_topic])
        assert done.exit_code == 0, done.output
        return done.output

    run(Goods())
    assert f"{bad} to {pipeline.source}" in replay()
    run(Goods())  # it is not better
    assert f"{bad} to {pipeline.source}" in replay()
    letters = pipeline.visible(dead)
    assert Counter(m.value() for m in letters) == Counter(
        b"bad-%d" % n for n in range(0, 60, 5) for _ in range(2)
    )
    again = [m for m in letters if m.headers()[0] == ("onceward.replayed", b"1")]
    assert len(again) == bad
    assert len(pipeline.visible(pipeline.source)) == good + 3 * bad
    answer = verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--conserves", "exactly"
    )
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer

    class Forgetful(Goods):
        def dead_letters(self, rows: DataFrame) -> DataFrame:
            return super().dead_letters(rows).where("value <> CAST('bad-5' AS BINARY)")

    run(Forgetful())
    answer = verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--conserves", "exactly"
    )
    assert answer["verdict"] == "violated", answer
