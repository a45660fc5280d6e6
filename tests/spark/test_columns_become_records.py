"""Every column of the sink, and what a consumer is given for it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import DataFrame
from streaming_pipeline import Pipeline

RECORDS = 120


def numbered(pipeline: Pipeline, count: int = RECORDS) -> DataFrame:
    """One batch with a column ``n`` from 0 to ``count - 1``."""
    pipeline.feed([(None, b"%d" % n) for n in range(count)])
    frame = pipeline.frame(max_offsets_per_trigger=count * 10)
    return frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")


def test_null_keys_spread_evenly_whatever_the_number_of_tasks(any_pipeline: Pipeline):
    frame = numbered(any_pipeline)
    for driver_records in (10_000, 0):
        topic = any_pipeline.topic(4)
        any_pipeline.run(
            lambda rows: rows.selectExpr("CAST(n AS STRING) AS value"),
            frame=frame,
            topic=topic,
            pipeline_id=f"{any_pipeline.name}-{driver_records}",
            checkpoint=any_pipeline.checkpoint / str(driver_records),
            driver_records=driver_records,
        )
        messages = any_pipeline.visible(topic)
        assert all(message.key() is None for message in messages)
        assert sorted(int(message.value()) for message in messages) == list(range(RECORDS))
        counts = Counter(message.partition() for message in messages)
        assert set(counts) == {0, 1, 2, 3}
        assert max(counts.values()) - min(counts.values()) <= 2


def test_tombstones_empty_values_and_null_keys_stay_what_they_are(any_pipeline: Pipeline):
    any_pipeline.run(
        lambda rows: rows.selectExpr(
            "CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE CONCAT('k', n) END AS key",
            "CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE CONCAT('v', n) END AS value",
        ),
        frame=numbered(any_pipeline),
    )
    expected = Counter(
        ([None, b"", b"k%d" % n][n % 3], [None, b"", b"v%d" % n, b"v%d" % n][n % 4])
        for n in range(RECORDS)
    )
    assert Counter((m.key(), m.value()) for m in any_pipeline.visible()) == expected


def test_text_and_bytes_are_both_taken(pipeline: Pipeline):
    pipeline.run(
        lambda rows: rows.selectExpr("CONCAT('schlüssel-', n) AS key", "unhex(hex(n)) AS value"),
        frame=numbered(pipeline),
    )
    assert {m.key().decode() for m in pipeline.visible()} == {
        f"schlüssel-{n}" for n in range(RECORDS)
    }
    text = pipeline.topic()
    pipeline.run(
        lambda rows: rows.selectExpr("X'00FF80' AS key", "CONCAT('wert-ß-', n) AS value"),
        frame=numbered(pipeline, 5),
        topic=text,
        pipeline_id=f"{pipeline.name}-text",
        checkpoint=pipeline.checkpoint / "text",
    )
    messages = pipeline.visible(text)
    assert {m.key() for m in messages} == {b"\x00\xff\x80"}
    assert {m.value().decode() for m in messages} >= {f"wert-ß-{n}" for n in range(5)}


@pytest.mark.parametrize("driver_records", [0, 10_000])
def test_a_text_of_bytes_that_are_no_utf_8_keeps_them(pipeline: Pipeline, driver_records: int):
    """Spark makes such texts (``CAST(binary AS STRING)``) and looks at none."""
    pipeline.run(
        lambda rows: rows.selectExpr(
            "CAST(unhex(concat('00FF', lpad(hex(n), 4, '0'))) AS STRING) AS value"
        ),
        frame=numbered(pipeline),
        driver_records=driver_records,
    )
    assert {m.value() for m in pipeline.visible()} == {
        b"\x00\xff" + n.to_bytes(2, "big") for n in range(RECORDS)
    }


def test_headers_null_and_empty_and_repeated(any_pipeline: Pipeline):
    headers = """CASE n % 4
        WHEN 0 THEN CAST(NULL AS array<struct<key: string, value: binary>>)
        WHEN 1 THEN CAST(array() AS array<struct<key: string, value: binary>>)
        WHEN 2 THEN array(named_struct('key', 'n', 'value', CAST(CAST(n AS STRING) AS BINARY)),
                          named_struct('key', 'none', 'value', CAST(NULL AS BINARY)))
        ELSE array(named_struct('key', 'twice', 'value', X'01'), named_struct('key', 'twice', 'value', X''),
                   named_struct('key', '', 'value', X'02'))
        END AS headers"""
    any_pipeline.run(
        lambda rows: rows.selectExpr("CAST(n AS STRING) AS value", headers),
        frame=numbered(any_pipeline),
    )
    found = {int(m.value()): m.headers() for m in any_pipeline.visible()}
    assert len(found) == RECORDS
    for n, got in found.items():
        if n % 4 < 2:
            assert not got
        elif n % 4 == 2:
            assert got == [("n", b"%d" % n), ("none", None)]
        else:
            assert got == [("twice", b"\x01"), ("twice", b""), ("", b"\x02")]


def test_timestamps_of_each_record_and_the_time_of_writing_where_it_is_null(
    any_pipeline: Pipeline,
):
    before = int(datetime.now(timezone.utc).timestamp() * 1000)
    any_pipeline.run(
        lambda rows: rows.selectExpr(
            "CAST(n AS STRING) AS value",
            "CASE WHEN n % 2 = 0 THEN timestamp_millis(1700000000123 - n * 3600000L) END AS "
            "timestamp",
        ),
        frame=numbered(any_pipeline),
    )
    after = int(datetime.now(timezone.utc).timestamp() * 1000)
    found = {int(m.value()): m.timestamp()[1] for m in any_pipeline.visible()}
    assert len(found) == RECORDS
    for n, timestamp_ms in found.items():
        if n % 2 == 0:
            assert timestamp_ms == 1_700_000_000_123 - n * 3_600_000
        else:
            assert before <= timestamp_ms <= after


@pytest.mark.parametrize(
    "options",
    [{"driver_records": 10_000}, {"driver_records": 0}, {"delivery": "at_least_once"}],
    ids=["driver", "tasks", "at_least_once"],
)
@pytest.mark.parametrize("column", ["topic=", "topic column"])
def test_records_that_a_topic_does_not_keep_are_spoken_of_once(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, options: dict[str, Any], column: str
):
    pipeline.feed(60)
    week = pipeline.topic(2, retention_ms=604_800_000)
    where = [] if column == "topic=" else [f"'{week}' AS topic"]
    query = pipeline.run(
        lambda rows: rows.selectExpr(
            "value", "timestamp_millis(1700000000000) AS timestamp", *where
        ),
        topic=None if where else week,
        **options,
    )
    assert query.lastProgress["batchId"] > 0, "there was more than one batch"
    spoken = [text for text in caplog.messages if f"topic {week} was sent records" in text]
    assert len(spoken) == 1
    assert "keeps records for 7.0 days (retention.ms=604800000)" in spoken[0]


def test_the_partition_column_wins_over_the_key_and_null_leaves_it_to_the_key(
    any_pipeline: Pipeline,
):
    by_key = any_pipeline.topic(3)
    any_pipeline.run(
        lambda rows: rows.selectExpr("CONCAT('k', n) AS key", "CAST(n AS STRING) AS value"),
        frame=numbered(any_pipeline),
        topic=by_key,
        pipeline_id=f"{any_pipeline.name}-by-key",
        checkpoint=any_pipeline.checkpoint / "by-key",
    )
    keyed = {m.key(): m.partition() for m in any_pipeline.visible(by_key)}
    frame = any_pipeline.frame(max_offsets_per_trigger=1000).selectExpr(
        "CAST(CAST(value AS STRING) AS INT) AS n"
    )
    any_pipeline.run(
        lambda rows: rows.selectExpr(
            "CONCAT('k', n) AS key",
            "CAST(n AS STRING) AS value",
            "CASE WHEN n < 60 THEN n % 3 END AS partition",
        ),
        frame=frame,
    )
    found = {m.key(): m.partition() for m in any_pipeline.visible()}
    assert len(found) == RECORDS
    for n in range(RECORDS):
        assert found[b"k%d" % n] == (n % 3 if n < 60 else keyed[b"k%d" % n])


def test_a_batch_fans_out_to_three_topics_and_is_one_transaction(any_pipeline: Pipeline):
    topics = [any_pipeline.topic(n) for n in (1, 2, 3)]
    names = ", ".join(f"'{name}'" for name in topics)
    any_pipeline.feed([(None, b"%d" % n) for n in range(90)])
    any_pipeline.run(
        lambda rows: rows.selectExpr(
            "CAST(CAST(value AS STRING) AS INT) AS n", "CONCAT(partition, ':', offset) AS position"
        ).selectExpr(
            f"explode(array({names})) AS topic",
            "CONCAT('k', n) AS key",
            "CONCAT(position, ':', n) AS value",
        ),
        frame=any_pipeline.frame(max_offsets_per_trigger=30),
        topic=None,
    )
    chain = any_pipeline.ledger()
    assert len(chain) >= 3
    for topic in topics:
        messages = any_pipeline.visible(topic)
        assert sorted(int(m.value().split(b":")[2]) for m in messages) == list(range(90))
        for record in chain:  # a batch is whole in every topic: the same source records in each
            parts = record["outputs"]["kafka"]["data"][topic]
            inside = [m for m in messages if str(m.partition()) in parts and _within(m, parts)]
            assert len(inside) == sum(part[0] for part in parts.values()) == record["records"] // 3
            source = record["sources"][0]
            for message in inside:
                partition, offset, _ = message.value().split(b":")
                place = (any_pipeline.source, partition.decode())
                assert (
                    source["start"][place[0]][place[1]]
                    <= int(offset)
                    < source["end"][place[0]][place[1]]
                )
    assert any_pipeline.open_transactions(any_pipeline.ledger_topic, *topics) == []


def _within(message: Any, parts: dict[str, list[Any]]) -> bool:
    _, first, last, _ = parts[str(message.partition())]
    return bool(first <= message.offset() <= last)


def test_a_static_topic_wins_over_the_column(pipeline: Pipeline):
    other = pipeline.topic()
    pipeline.run(
        lambda rows: rows.selectExpr("CAST(n AS STRING) AS value", f"'{other}' AS topic"),
        frame=numbered(pipeline, 10),
    )
    assert len(pipeline.visible()) == 10
    assert pipeline.visible(other) == []
