"""Epochs end at 32,767: the coordinator then hands out another producer id, and the pipeline goes
on under it.
"""

from __future__ import annotations

from typing import Any

import pytest
from streaming_pipeline import Pipeline

import fault_table
from onceward.ids import MAX_EPOCH, ProducerIdentity
from onceward.kafka.sink import run
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.transactions.coordinator import NOBODY, TransactionCoordinator
from support.wire_fixtures import LosingClient

BATCHES_LEFT = 4


def use_up_epochs(pipeline: Pipeline, up_to: int) -> ProducerIdentity:
    """All epochs of the transactional id but the last few, one by one: there is no way to ask for
    a later one.
    """
    client = KafkaClient(pipeline.sink().settings.client)
    try:
        coordinator = TransactionCoordinator(client, pipeline.name)
        identity = coordinator.init_producer_id(NOBODY, 60_000, Deadline(30_000))
        while identity.epoch < up_to:
            identity = coordinator.init_producer_id(identity, 60_000, Deadline(30_000))
        return identity
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.fault("epoch-rollover", "end-txn-response-lost")
def test_a_pipeline_goes_on_under_the_next_producer_id(
    any_pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    """Every batch's first answer to ``EndTxn`` is lost, the one with the new producer id among
    them.
    """
    clients: list[LosingClient] = []

    class Losing(LosingClient):
        def __init__(self, settings: Any) -> None:
            super().__init__(settings)
            self.lose("EndTxnRequest", lambda number: "answer" if number % 2 else "")
            clients.append(self)

    old = use_up_epochs(any_pipeline, MAX_EPOCH - 1 - BATCHES_LEFT)
    monkeypatch.setattr(run, "KafkaClient", Losing)
    any_pipeline.feed(160)
    any_pipeline.run(frame=any_pipeline.frame(max_offsets_per_trigger=20))
    any_pipeline.assert_exactly_once(ledger_records=8)
    identities = [tuple(r["attempt"]) for r in any_pipeline.ledger()]
    under_the_old = [epoch for producer_id, epoch in identities if producer_id == old.producer_id]
    under_the_new = [epoch for producer_id, epoch in identities if producer_id != old.producer_id]
    fault_table.fired(under_the_old and under_the_new, f"the epochs did not run out: {identities}")
    fault_table.fired(clients[0].lost >= 8, "no answer to EndTxn was lost")
    assert identities == sorted(identities), "an old identity came back"
    assert len(set(identities)) == len(identities), "two batches shared an epoch"
    assert len(any_pipeline.appended()) == 160
