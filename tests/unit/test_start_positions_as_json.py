"""Start positions as Spark wants them: each partition has one, and what nobody knows has one by
rule.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceward.errors import ConfigurationError
from onceward.ids import TopicPartition
from onceward.kafka.source.positions import starting_json

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
