"""Of a pipeline's records in several partitions of the ledger topic, which is the newest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from onceward.engine.ledger.record import LedgerRecord, RecordState
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.kafka.ledger.topic import FoundRecord, _newest_record

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
