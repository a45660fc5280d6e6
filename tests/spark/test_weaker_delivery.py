"""``delivery="at_least_once"`` and ``"none"``: everything is written, without transaction, ledger or admission."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from streaming_pipeline import Pipeline, source_records

from onceward.errors import BadColumn, PartitionMissing, RecordTooLarge, TopicMissing
from onceward.testing.topic_reader import end_offsets

WEAKER = pytest.mark.parametrize("delivery", ["at_least_once", "none"])


@WEAKER
def test_all_records_are_written_without_a_transaction(any_pipeline: Pipeline, delivery: str):
    any_pipeline.feed(80)
    any_pipeline.run(delivery=delivery)
    any_pipeline.feed(40)
    any_pipeline.run(delivery=delivery, driver_records=0)
    assert Counter(source_records(any_pipeline.visible())) == Counter(any_pipeline.fed)
    ends = end_offsets(any_pipeline.bootstrap, any_pipeline.output, "read_uncommitted")
    assert sum(ends.values()) == 120, "a transaction marker takes an offset"
    assert sum(end_offsets(any_pipeline.bootstrap, any_pipeline.ledger_topic, "read_uncommitted").values()) == 0


@WEAKER
def test_a_batch_that_runs_again_is_written_again(pipeline: Pipeline, delivery: str):
    """The difference to exactly-once, seen: these modes promise no more than Spark's own sink."""
    pipeline.feed(40)
    pipeline.run(delivery=delivery)
    pipeline.forget_commit()
    pipeline.run(delivery=delivery)
    assert Counter(source_records(pipeline.visible())) == Counter(pipeline.fed + pipeline.fed)


@WEAKER
@pytest.mark.parametrize(
    ("expressions", "options", "kind"),
    [
        (["key"], {}, BadColumn),
        (["'v' AS value", "99 AS partition"], {}, PartitionMissing),
        (["'v' AS value"], {"topic": "topic-that-is-not-there"}, TopicMissing),
        (
            ["repeat('x', 200000) AS value"],
            {"options": {"max.request.size": 100_000, "batch.size": 50_000}},
            RecordTooLarge,
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_errors_keep_their_type(
    pipeline: Pipeline, delivery: str, expressions: list[str], options: dict[str, Any], kind: type[Exception]
):
    pipeline.feed(10)
    error = pipeline.refused(lambda rows: rows.selectExpr(*expressions), delivery=delivery, **options)
    assert type(error) is kind
