"""``KafkaSink(lineage=True)``: each record names its input, and the checker accounts for every one
of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from streaming_pipeline import Pipeline

import onceward
from onceward.errors import InvalidColumn
from support.verify_process import verify_at

FED = 120


def rows(pipeline: Pipeline) -> DataFrame:
    """What was fed, with where it came from, every third record with a header of its own."""
    own = sql.expr(
        "CASE WHEN offset % 3 = 0 THEN array(named_struct('key', 'mine', 'value', X'01')) END AS "
        "headers"
    )
    return pipeline.frame().select("key", "value", own, *onceward.lineage())


def judged(pipeline: Pipeline, *options: str) -> dict[str, Any]:
    return verify_at(
        pipeline.bootstrap, pipeline.name, pipeline.ledger_topic, "--expect-caught-up", *options
    )


@pytest.mark.lengthy("ci")
def test_two_frames_account_for_their_input(pipeline: Pipeline):
    other = pipeline.topic(2)
    sink = pipeline.sink(lineage=True)

    def both(frame: DataFrame, batch_id: int) -> None:
        with sink.batch(frame, batch_id) as batch:
            batch.write(frame)
            batch.write(frame.drop("headers").withColumn("key", sql.lit("all")), topic=other)

    pipeline.feed(FED)
    pipeline.run(frame=rows(pipeline), transform=lambda frame: frame, sink=both)
    pipeline.forget_commit()  # the last batch runs again, and is a replay
    pipeline.feed(30)
    pipeline.run(frame=rows(pipeline), transform=lambda frame: frame, sink=both)
    answer = judged(pipeline, "--conserves", "exactly", "--each-topic")
    assert (answer["verdict"], answer["anomalies"]) == ("exactly_once", []), answer
    facts = answer["facts"]["conservation"]
    assert (facts["input_records"], facts["output_records"]) == (FED + 30, 2 * (FED + 30))
    assert {topic: counts["named"] for topic, counts in facts["counts"].items()} == {
        pipeline.output: FED + 30,
        other: FED + 30,
    }
    once = judged(pipeline, "--conserves", "exactly")
    assert {anomaly["name"] for anomaly in once["anomalies"]} == {"duplicate-input"}, (
        "both topics name each input"
    )
    fed = {record[0]: number for number, record in enumerate(pipeline.fed)}
    for message in pipeline.visible():
        number = fed[message.key()]
        source, offset = number % 2, number // 2
        mine = [("mine", b"\x01")] if offset % 3 == 0 else []
        names = [
            ("onceward.topic", pipeline.source.encode()),
            ("onceward.partition", b"%d" % source),
        ]
        assert message.headers() == [*mine, *names, ("onceward.offset", b"%d" % offset)]


def test_filtered_rows_and_rows_of_no_source(pipeline: Pipeline):
    pipeline.feed(FED)
    kept = rows(pipeline).where("source_offset % 2 = 0")
    pipeline.run(frame=kept, transform=lambda frame: frame, lineage=True)
    answer = judged(pipeline, "--conserves", "at-most")
    assert answer["verdict"] == "exactly_once", answer
    assert answer["facts"]["conservation"]["counts"]["all topics"]["never_named"] == FED // 2
    pipeline.feed(10)
    unknown = rows(pipeline).withColumn("source_offset", sql.lit(None).cast("long"))
    pipeline.run(frame=unknown, transform=lambda frame: frame, lineage=True)
    answer = judged(pipeline, "--conserves", "at-least", "--ignore-expired")
    assert answer["facts"]["conservation"]["nameless_records"] == 10
    assert {anomaly["name"] for anomaly in answer["anomalies"]} == {"lost-input"}


def test_lineage_without_its_columns(pipeline: Pipeline):
    pipeline.feed(4)
    error = pipeline.refused(lineage=True)
    assert isinstance(error, InvalidColumn)
    assert "source_topic, source_partition, source_offset" in error.message
    assert "*onceward.lineage()" in error.next_step
    pipeline.run(lambda frame: frame.select("key", "value", *onceward.lineage()), lineage=True)
    assert judged(pipeline, "--conserves", "exactly")["verdict"] == "exactly_once"


def test_source_columns_without_lineage(pipeline: Pipeline):
    pipeline.feed(4)
    error = pipeline.refused(frame=rows(pipeline), transform=lambda frame: frame)
    assert "lineage=True" in error.next_step
