"""Before a forgotten id is claimed again: does the ledger hold what somebody newer has written?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceward.engine.ledger.record import LedgerRecord
from onceward.ids import AttemptId, BatchId, PipelineId, ProducerIdentity
from onceward.kafka.ledger.chain import KafkaChain

OURS, AN_HEIRS = ProducerIdentity(1, 5), ProducerIdentity(2, 0)


@pytest.mark.parametrize(
    ("sequence", "producer", "outdated"),
    [
        (7, OURS, False),  # the last one that is known
        (8, OURS, False),  # a commit in doubt was carried out after all
        (8, AN_HEIRS, True),
        (9, AN_HEIRS, True),
    ],
)
def test_only_what_somebody_else_wrote_makes_a_copy_outdated(
    sequence: int, producer: ProducerIdentity, outdated: bool
) -> None:
    newest = LedgerRecord(
        PipelineId("p"), sequence, BatchId("q", sequence), (), AttemptId(*producer), {}, 0
    )
    chain: Any = KafkaChain.__new__(KafkaChain)
    chain._topic = SimpleNamespace(peek=lambda: newest)
    chain.transaction = SimpleNamespace(identity=OURS)
    chain._committed, chain._confirmed = 7, True
    assert chain._outdated() is outdated
    assert not chain._confirmed, "a broker that no longer leads may have answered"
