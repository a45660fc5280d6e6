"""Dead letters where a count could go wrong: frames that come later, verdicts that change,
functions that skip.

The format is that of :mod:`test_dead_letters`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from streaming_pipeline import Pipeline
from test_dead_letters import Goods, header

from onceward import lineage
from onceward.engine import decoding
from onceward.errors import (
    BatchChanged,
    BatchNotWritten,
    OncewardError,
    RecordTooLarge,
    UnsupportedQuery,
)
from support.verify_process import verify_at


def same(frame: DataFrame) -> DataFrame:
    return frame


def values(pipeline: Pipeline, topic: str | None = None) -> list[bytes]:
    return sorted(message.value() for message in pipeline.visible(topic))


def one_by_one(pipeline: Pipeline, step: Goods, *names: bytes) -> DataFrame:
    """Records of these values, one a batch."""
    pipeline.feed([(b"key", name) for name in names], topic=(topic := pipeline.topic(1)))
    return step.read(pipeline.frame(topic=topic, max_offsets_per_trigger=1)).select("key", "value")


def test_a_second_frame_comes_to_a_committed_batch_with_dead_letters(pipeline: Pipeline):
    dead, rejected = pipeline.topic(1), pipeline.topic(1)
    pipeline.feed([(b"a", b"good-1"), (b"b", b"good-2"), (b"c", b"bad-1")])

    def run(together: bool, **options: str) -> OncewardError | None:
        sink = pipeline.sink(dead_letter_topic=dead, **options)

        def write(frame: DataFrame, batch_id: int) -> None:
            first, second = (
                frame.where(f"CAST(value AS STRING) = 'good-{number}'") for number in (1, 2)
            )
            if not together:
                sink(first, batch_id)
            with sink.batch(frame, batch_id) as batch:
                if together:
                    batch.write(first)
                batch.write(second, topic=rejected)

        run = pipeline.run if together else pipeline.refused
        return run(
            frame=Goods().read(pipeline.frame()).select("key", "value"), transform=same, sink=write
        )

    refused = run(together=False)
    assert isinstance(refused, UnsupportedQuery)
    assert 'resume="write_missing"' in refused.next_step
    run(together=True, resume="write_missing")
    pipeline.forget_commit()
    run(together=True)
    assert (values(pipeline), values(pipeline, rejected)) == ([b"good-1"], [b"good-2"])
    assert values(pipeline, dead) == [b"bad-1"]


class Patient(Goods):
    """Reads what begins with one of ``words``; another start of the query may know more of
    them.
    """

    words = "'good'"

    def read(self, frame: DataFrame) -> DataFrame:
        return frame.alias(self.tag).where(self._is_good())

    def dead_letters(self, rows: DataFrame) -> DataFrame:
        return super().dead_letters(rows).where(f"NOT {self._is_good()}")

    def _is_good(self) -> str:
        return f"(substring(CAST(value AS STRING), 1, 4) IN ({self.words}))"


@pytest.mark.lengthy("chaos")
def test_a_dead_letter_is_not_counted_as_well_when_its_batch_runs_again(pipeline: Pipeline):
    dead = pipeline.topic(1)
    pipeline.feed([(b"a", b"good-1"), (b"b", b"late-1")])

    def run(step: Goods, *, refused: bool = False, **options: str) -> OncewardError | None:
        counts = step.read(pipeline.frame()).groupBy(sql.lit("all").alias("key")).count()
        run = pipeline.refused if refused else pipeline.run
        return run(
            lambda _: counts.selectExpr("key", "CAST(count AS STRING) AS value"),
            mode="update",
            dead_letter_topic=dead,
            **options,
        )

    run(Patient())
    pipeline.forget_commit()
    knows_more = Patient()
    knows_more.words = "'good', 'late'"
    refused = run(knows_more, refused=True)
    assert isinstance(refused, BatchChanged)
    assert "count them, too" in refused.message
    run(Patient())
    pipeline.feed([(b"c", b"good-2")])
    run(knows_more)
    assert (values(pipeline), values(pipeline, dead)) == ([b"1", b"2"], [b"late-1"])


def test_keep_does_not_excuse_what_the_same_run_goes_on_skipping(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    rows = one_by_one(pipeline, step, b"good-1", b"bad-1", b"good-2", b"good-3")
    sink = pipeline.sink(dead_letter_topic=dead, resume="skip_missing", skipped_batches="allow")

    def unless_empty(frame: DataFrame, batch_id: int) -> None:
        if not frame.isEmpty():
            sink(frame, batch_id)

    assert isinstance(
        pipeline.refused(frame=rows, transform=same, sink=unless_empty), BatchNotWritten
    )
    sink = pipeline.sink(dead_letter_topic=dead, resume="skip_missing", skipped_batches="allow")
    pipeline.run(frame=rows, transform=same, sink=unless_empty)
    assert values(pipeline) == [b"good-1", b"good-2", b"good-3"]


def test_a_time_that_passes_between_the_two_readings_is_refused(pipeline: Pipeline):
    step, dead = Goods(), pipeline.topic(1)
    pipeline.feed([(b"a", b"good-1"), (b"b", b"bad-1")])
    late = step.read(pipeline.frame().where("timestamp > now() - INTERVAL 1 DAY"))
    refused = pipeline.refused(
        frame=late.select("key", "value"), transform=same, dead_letter_topic=dead
    )
    assert isinstance(refused, UnsupportedQuery)
    assert "other ones each time" in refused.message


@pytest.mark.lengthy("chaos")
def test_a_query_is_not_forgotten_for_those_that_came_later(pipeline: Pipeline, monkeypatch):
    monkeypatch.setattr(decoding, "_REMEMBERED", 10)
    step, dead = Goods(), pipeline.topic(1)
    sink = pipeline.sink(dead_letter_topic=dead)

    def write(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        with monkeypatch.context() as others:  # queries of this process, each started once
            others.setattr(decoding, "tags_in", lambda *_: [])
            for number in range(6):
                decoding.register(Goods())
                decoding.find_steps(frame, f"run-{batch_id}-{number}")

    rows = one_by_one(pipeline, step, b"bad-1", b"bad-2", b"bad-3", b"bad-4", b"bad-5")
    pipeline.run(frame=rows, transform=same, sink=write)
    assert len(values(pipeline, dead)) == 5


def test_a_step_that_cannot_explain_leaves_the_error_as_it_is(pipeline: Pipeline):
    class Odd(Goods):
        def explain(
            self, error: OncewardError, rows: Callable[[], DataFrame] | None
        ) -> OncewardError | None:
            raise ValueError("nothing to say")

    step = Odd(sets_aside=False)
    sink = pipeline.sink()

    def keeps_errors_to_itself(frame: DataFrame, batch_id: int) -> None:
        step.refuse = RecordTooLarge("not today", next_step="tomorrow") if batch_id == 1 else None
        try:
            sink(frame, batch_id)
        except RecordTooLarge:
            assert batch_id == 1

    rows = one_by_one(pipeline, step, b"good-1", b"good-2", b"good-3")
    assert isinstance(
        pipeline.refused(frame=rows, transform=same, sink=keeps_errors_to_itself), BatchNotWritten
    )
    assert values(pipeline) == [b"good-1"]


def test_what_is_too_large_is_no_lost_write_for_the_checker(pipeline: Pipeline):
    pipeline.output, dead = (
        pipeline.topic(2, max_message_bytes=2_000),
        pipeline.topic(1, max_message_bytes=100_000),
    )
    other = pipeline.topic(1)
    sizes = [10, 5_000, 20, 6_000, 7_000, 30]
    pipeline.feed(
        [(b"k", b"bad") if size == 30 else (b"k", b"good" + b"x" * size) for size in sizes]
    )
    rows = Goods().read(pipeline.frame()).select("key", "value", *lineage())
    sink = pipeline.sink(lineage=True, dead_letter_topic=dead, on_error="dead_letter")

    def write(frame: DataFrame, batch_id: int) -> None:
        with sink.batch(frame, batch_id) as batch:
            batch.write(frame.where("octet_length(value) <> 14"))
            batch.write(frame.where("octet_length(value) = 14"), topic=other)

    pipeline.run(frame=rows, transform=same, sink=write)
    pipeline.forget_commit()
    pipeline.run(frame=rows, transform=same, sink=write)
    answer = verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--conserves", "exactly"
    )
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    assert [len(pipeline.visible(topic)) for topic in (pipeline.output, other, dead)] == [1, 1, 4]


def test_what_is_too_large_is_as_old_as_its_writing(pipeline: Pipeline):
    pipeline.output, dead = (
        pipeline.topic(1, max_message_bytes=2_000),
        pipeline.topic(1, max_message_bytes=100_000),
    )
    pipeline.feed([(b"k", b"x" * 5_000), (b"k", b"small")])
    rows = pipeline.frame().selectExpr(
        "key", "value", "TIMESTAMP_MILLIS(1577836800123) AS timestamp"
    )
    began = time.time_ns() // 1_000_000
    pipeline.run(frame=rows, transform=same, dead_letter_topic=dead, on_error="dead_letter")
    (letter,), (small,) = pipeline.visible(dead), pipeline.visible()
    assert letter.timestamp()[1] >= began
    assert header(letter, "onceward.timestamp") == b"1577836800123"
    assert (small.timestamp()[1], small.headers()) == (1577836800123, None)


@pytest.mark.parametrize("delivery", ["at_least_once", "none"])
def test_dead_letters_with_a_weaker_delivery(pipeline: Pipeline, delivery: str):
    dead = pipeline.topic(1)
    pipeline.feed([(b"a", b"good-1"), (b"b", b"bad-1")])
    rows = Goods().read(pipeline.frame()).select("key", "value")
    pipeline.run(frame=rows, transform=same, dead_letter_topic=dead, delivery=delivery)
    assert (values(pipeline), values(pipeline, dead)) == ([b"good-1"], [b"bad-1"])


def test_a_batch_that_is_skipped_without_a_ledger(pipeline: Pipeline):
    dead = pipeline.topic(1)
    sink = pipeline.sink(dead_letter_topic=dead, delivery="at_least_once", skipped_batches="allow")

    def unless_empty(frame: DataFrame, batch_id: int) -> None:
        if not frame.isEmpty():
            sink(frame, batch_id)

    for name in (b"good-1", b"bad-1", b"good-2"):
        pipeline.feed([(name, name)])
    one_by_one = Goods().read(pipeline.frame(max_offsets_per_trigger=1)).select("key", "value")
    error = pipeline.refused(frame=one_by_one, transform=same, sink=unless_empty)
    assert isinstance(error, BatchNotWritten), error
    assert values(pipeline) == [b"good-1"]
