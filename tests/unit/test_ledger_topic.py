"""Of a pipeline's records in several partitions of the ledger topic, which is the newest; and what
the topic is set to while a pipeline runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onceward import surroundings
from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.errors import BrokerUnreachable
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.kafka.ledger.topic import FoundRecord, LedgerTopic, _newest_record

DECIDED = LedgerRecord(
    PipelineId("p"), 4, BatchId("q", 4), (), AttemptId(0, 1), {}, 5, RecordState.DECIDED
)
LATER = replace(DECIDED, attempt=AttemptId(0, 7))
FINISHED = replace(DECIDED, attempt=AttemptId(0, 9), state=RecordState.FINISHED)
NEXT = replace(DECIDED, sequence=5)


@pytest.mark.parametrize(
    "found",
    [
        # Partitions were added twice while the batch was being published: each start that went on
        # with it had another place for the key, and how far it came stands in the last one.
        [FoundRecord(DECIDED, 4), FoundRecord(LATER, 7)],
        [FoundRecord(DECIDED, 4), FoundRecord(LATER, 7), FoundRecord(FINISHED, 9)],
        [FoundRecord(LATER, 0), FoundRecord(FINISHED, 0)],
        [FoundRecord(FINISHED, 9), FoundRecord(NEXT, 4)],
        [FoundRecord(DECIDED, 4)],
    ],
    ids=["published in part", "finished", "by an earlier release", "the next batch", "one"],
)
def test_of_one_sequence_the_place_that_the_key_came_to_last_counts(
    found: list[FoundRecord],
) -> None:
    for order in itertools.permutations([None, *found]):
        assert _newest_record(order) is found[-1].record


def test_no_record() -> None:
    assert _newest_record([None, None]) is None


def test_what_the_topic_is_set_to_in_mid_run_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the batches, each ten minutes. What is set wrong stops the next start, and no batch."""
    clock = [0.0]
    monkeypatch.setattr(surroundings, "monotonic", lambda: clock[0])
    config: dict[str, Any] = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    asked: list[Callable[[str], dict[str, Any]]] = []

    def answer(_: str) -> dict[str, Any]:
        asked.append(answer)
        if not config:
            raise BrokerUnreachable("nobody answers")
        return config

    client: Any = SimpleNamespace(
        topic_partitions=dict.fromkeys, topic_config=answer, replication_factor=lambda _: 3
    )
    topic = LedgerTopic(client, "ledger", PipelineId("p"))
    topic.ensure_topic()

    def said(minutes: float) -> list[str]:
        caplog.clear()
        clock[0] += minutes * 60
        topic.look_again()
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    config["cleanup.policy"] = "compact,delete"
    assert said(9) == []
    assert len(asked) == 1
    (warning,) = said(2)
    assert "cleanup.policy=compact,delete" in warning
    assert "Next: set cleanup.policy=compact on ledger" in warning
    assert said(1) == []
    assert said(10) == [warning]
    config["cleanup.policy"], config["min.insync.replicas"] = "compact", "1"
    (warning,) = said(10)
    assert "min.insync.replicas 1" in warning
    assert said(10) == [], "it was said, and is no worse"
    config.clear()
    assert said(10) == []
    assert len(asked) == 6
