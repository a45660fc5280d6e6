"""The model of Kafka answers as Kafka did when it was asked last; ``make model-check`` asks it
again.
"""

from __future__ import annotations

import pytest

from simulation.model_check import recorded
from simulation.model_check.conversations import CLUSTERS, CONVERSATIONS, held_with_the_model

_LEAST = 60
_HELD = [
    (cluster, each)
    for cluster in CLUSTERS
    for each in CONVERSATIONS.values()
    if each.is_for(cluster, each.nodes)
]


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, list[recorded.Fact]]]:
    return {cluster: recorded.read(cluster) for cluster in CLUSTERS}


@pytest.mark.parametrize(
    ("cluster", "conversation"), _HELD, ids=[f"{cluster}-{each.name}" for cluster, each in _HELD]
)
def test_the_model_answers_as_brokers_did(
    cluster: str, conversation: object, said: dict[str, dict[str, list]]
) -> None:
    facts = recorded.as_json(held_with_the_model(cluster, conversation))  # type: ignore[arg-type]
    name = conversation.name  # type: ignore[attr-defined]
    assert name in said[cluster], "not held with real brokers yet: make model-check RECORD=1"
    assert recorded.differences(name, said[cluster][name], facts) == []


def test_nothing_is_recorded_that_is_not_asked(said: dict[str, dict[str, list]]) -> None:
    for cluster, names in said.items():
        assert set(names) == {each.name for other, each in _HELD if other == cluster}
        assert len(names) >= _LEAST


def test_a_difference_is_seen(said: dict[str, dict[str, list]]) -> None:
    one = said["4.3.1"]["a-transaction-is-committed"]
    other = [*one[:3], [*one[3][:-1], "something else"], *one[4:]]
    assert "answer 3" in recorded.differences("it", one, other)[0]
    assert recorded.differences("it", one, one[:-1])
