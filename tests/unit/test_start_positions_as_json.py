"""Start positions as Spark wants them: each partition has one, and what nobody knows has one by
rule.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import ConfigurationError
from onceward.ids import (
    AttemptId,
    BatchId,
    PipelineId,
    SourceRange,
    TopicPartition,
    partition_offsets,
)
from onceward.kafka.source.topics_and_positions import ledger_positions, starting_json

EARLIEST, LATEST = -2, -1
THERE = {"known": [0, 1], "other": [0]}
KNOWN = {TopicPartition("known", 0): 7}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, {"known": {"0": 7, "1": LATEST}, "other": {"0": LATEST}}),
        (
            {"new_partitions": "earliest"},
            {"known": {"0": 7, "1": EARLIEST}, "other": {"0": LATEST}},
        ),
        ({"new_topics": "earliest"}, {"known": {"0": 7, "1": EARLIEST}, "other": {"0": EARLIEST}}),
    ],
    ids=["group", "ledger", "pattern"],
)
def test_what_is_not_known_begins_by_rule(rules: Any, expected: dict[str, dict[str, int]]) -> None:
    assert json.loads(starting_json(THERE, KNOWN, "latest", where="here", **rules)) == expected


def test_under_a_pattern_of_which_nothing_is_known_what_comes_begins_likewise() -> None:
    """Not partition by partition: topics that appear until the query begins would have no
    position.
    """
    assert starting_json(THERE, {}, "latest", where="here", new_topics="earliest") == "latest"
    assert starting_json({}, {}, "earliest", where="here", new_topics="earliest") == "earliest"


@pytest.mark.parametrize("rules", [{}, {"new_topics": "earliest"}])
def test_what_may_not_be_unknown_is_named(rules: Any) -> None:
    with pytest.raises(ConfigurationError, match="here has no offset of known-0"):
        starting_json(THERE, {}, "error", where="here", **rules)


A5, A7, B9 = {"a": {"0": 5}}, {"a": {"0": 7}}, {"b": {"0": 9}}


@pytest.mark.parametrize(
    ("ends", "topics", "expected"),
    [
        ([A5], ["a"], A5),
        ([A5, B9], ["b"], B9),
        ([A5, B9, A5], ["a"], A5),  # two that end alike
        ([A5, A5 | B9], ["a"], A5),  # of two, the one that reads just these
        ([A5, A7 | B9], ["a", "b"], A7 | B9),
        ([A5, A7], ["a"], "several sources"),
        ([A7 | B9, A5 | B9], ["a"], "several sources"),
        ([A5, B9], ["c"], "no source"),
        ([{"file": "binlog.000001"}], ["a"], "no source"),
    ],
)
def test_a_source_goes_on_where_those_of_its_topics_end(
    ends: list[Any], topics: list[str], expected: Any
) -> None:
    sources = tuple(SourceRange(None, end) for end in ends)
    pipeline = PipelineId("p")
    record = LedgerRecord(pipeline, 1, BatchId("q", 2), sources, AttemptId(3, 4), {}, 5)
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected):
            ledger_positions(record, pipeline, topics, "them")
    else:
        found = ledger_positions(record, pipeline, topics, "them")
        assert found == partition_offsets(expected)
